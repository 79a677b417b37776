"""A disk in the simulated world: answers after a while; a crash falls between any two operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model.disk import SimDisk, SimDiskError
from tests.model.world import SimNode, World
from waltz_core.storage.effects import (
    DiskBatch,
    DiskDone,
    DiskFailed,
    DiskList,
    DiskRead,
    MakeDirectory,
    Operation,
    SyncDirectory,
    SyncFile,
    Unlink,
)


class _UnderWay:
    """A batch and how far it got."""

    __slots__ = ("at", "batch", "failure", "trailing")

    def __init__(self, batch: DiskBatch) -> None:
        self.batch = batch
        self.at = 0
        self.failure: DiskFailed | None = None
        trailing = len(batch.operations)
        while trailing and isinstance(batch.operations[trailing - 1], (SyncFile, SyncDirectory)):
            trailing -= 1
        self.trailing = trailing  # the syncs at the end may be put off until later batches are written


class WorldDisk:
    """The disk of one node; it outlives the process.

    Attributes:
        latency: least and greatest ms that writing, syncing or reading takes.
        on_operation: told of every operation that was carried out.
        on_content: told after anything else that may have changed the durable content.
    """

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.disk = SimDisk(world.disk_rng)
        self.latency = (0, 2)
        self.write_through = False  # everything is durable at once, for processes that do not sync all they should
        self.on_operation: Callable[[Operation], None] | None = None
        self.on_content: Callable[[], None] | None = None
        self._under_way: list[_UnderWay] = []
        self._written_at = 0
        self._synced_at = 0

    def plugins(self) -> dict[type, Callable[[Any], None]]:
        """Effects this disk carries out."""
        return {DiskBatch: self._batch, DiskRead: self._look, DiskList: self._look}

    def replace(self, disk: SimDisk) -> None:
        """Put another disk in; the process must be down."""
        assert not self.node.alive
        self.disk = disk
        self.changed()

    def crash(self, power: bool = True) -> None:
        """The process died. Some of what was under way happened; with the power, unsynced bytes go too."""
        rng = self.world.disk_rng
        for entry in self._under_way:
            count = len(entry.batch.operations)
            stop = rng.randint(entry.at, count)
            self._carry_out(entry, stop)
            if stop < count:
                break
        self._under_way.clear()
        if power:
            fault, self.disk.fault = self.disk.fault, None
            self.disk.crash(rng)
            self.disk.fault = fault
            self.changed()

    def changed(self) -> None:
        """The durable content may have changed."""
        if self.on_content is not None:
            self.on_content()

    def _delay(self) -> int:
        low, high = self.latency
        return low + int(self.world.disk_rng.random() * (high - low + 1))

    def _batch(self, batch: DiskBatch) -> None:
        entry = _UnderWay(batch)
        self._under_way.append(entry)
        epoch = self.node.epoch
        self._written_at = max(self._written_at, self.world.now + self._delay())
        self._synced_at = max(self._synced_at, self._written_at + self._delay())

        def written() -> None:
            if epoch == self.node.epoch:
                self._carry_out(entry, entry.trailing)

        def synced() -> None:
            if epoch != self.node.epoch:
                return
            self._carry_out(entry, len(batch.operations))
            self._under_way.remove(entry)
            self.node.post(entry.failure or DiskDone(batch.ticket))

        if self._synced_at > self._written_at:
            self.world.at(self._written_at, written)
        self.world.at(self._synced_at, synced)

    def _carry_out(self, entry: _UnderWay, stop: int) -> None:
        operations = entry.batch.operations
        while entry.at < stop and entry.failure is None:
            operation = operations[entry.at]
            entry.at += 1
            try:
                self.disk.apply(operation)
            except SimDiskError as error:
                entry.failure = DiskFailed(entry.batch.ticket, error.kind, str(error))
                self.changed()
            else:
                self._note(operation)
                if self.write_through:
                    self._sync(operation)

    def _note(self, operation: Operation) -> None:
        if self.on_operation is not None:
            self.on_operation(operation)

    def _sync(self, operation: Operation) -> None:
        if isinstance(operation, (SyncFile, SyncDirectory)):
            return
        directory = SyncDirectory(operation.path.rpartition("/")[0])
        syncs = (
            (directory,) if isinstance(operation, (Unlink, MakeDirectory)) else (SyncFile(operation.path), directory)
        )
        for sync in syncs:
            self.disk.apply(sync)
            self._note(sync)

    def _look(self, effect: DiskRead | DiskList) -> None:
        epoch = self.node.epoch

        def answer() -> None:
            if epoch == self.node.epoch:
                self.node.post(self.disk.perform(effect))

        self.world.after(self._delay(), answer)
