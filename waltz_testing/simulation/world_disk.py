"""A disk in the simulated world: the driver's steps take their time, and a crash falls between any two of its calls."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from waltz_core.storage.effects import DiskBatch, DiskEvent, DiskList, DiskRead, SyncDirectory, SyncFile
from waltz_testing.simulation.disk import SimDisk
from waltz_testing.simulation.mount import PowerCut
from waltz_testing.simulation.world import SimNode, World
from waltz_trio.storage.group import Step, SyncEach, SyncWhole, carry_out
from waltz_trio.storage.in_place import InPlace, simple

_SYNCS = frozenset({SyncFile, SyncDirectory, SyncEach, SyncWhole})
_OPEN_FILES = (3, 512)  # that the driver of a node keeps
_CRASH_CALLS = (0, 3, 40)  # calls at most that a process makes between its last answer and its end


class WorldDisk:
    """The disk of one node; it outlives the process.

    What is written in which order and what is synced is the driver's own code; here is when.

    Attributes:
        usual_latency, latency: least and greatest ms that writing, syncing or reading takes, without faults and now.
        on_call: called for every call of the driver that changed something, as `Mount.on_call`.
        on_content: called after anything else that may have changed the durable content.
        in_place: whether the process writes and syncs lone batches in its event loop, as the driver does where that is
            quick (ADR 0020): it stands still meanwhile.
        done_in_place: batches that were.
    """

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.usual_latency = (0, 2)
        self.latency = self.usual_latency
        self._write_through = False
        self.on_call: Callable[[str, str, int], None] | None = None
        self.on_content: Callable[[], None] | None = None
        self._queued: list[DiskBatch] = []
        self._steps: Generator[Step, Any, list[DiskEvent]] | None = None  # of the group under way
        self._step: Step | None = None  # the next of them
        self.in_place = False
        self.done_in_place = 0
        self._policy = InPlace()
        self._offered: DiskBatch | None = None  # alone so far in this step
        self._loop_busy = False
        self._begin = 0  # of the group under way
        node.afterwards = self._settle
        node.stands_still = lambda: self._loop_busy
        self._put_in(SimDisk(world.disk_rng))

    @property
    def write_through(self) -> bool:
        """Everything is durable at once, for processes that do not sync all they should."""
        return self._write_through

    @write_through.setter
    def write_through(self, on: bool) -> None:
        self._write_through = self.disk.mount.write_through = on

    def sync_in_place(self) -> None:
        """The process carries lone batches out in its event loop, on a disk that is quick enough for that."""
        self.in_place = True
        self.latency = self.usual_latency = (0, 1)

    def plugins(self) -> dict[type, Callable[[Any], None]]:
        """Effects this disk carries out."""
        return {DiskBatch: self._batch, DiskRead: self._look, DiskList: self._look}

    def replace(self, disk: SimDisk) -> None:
        """Put another disk in; the process must be down."""
        assert not self.node.alive
        self._put_in(disk)
        self.changed()

    def _put_in(self, disk: SimDisk) -> None:
        self.disk = disk
        disk.open_files_max = self.world.disk_rng.choice(_OPEN_FILES)
        disk.any_order = True
        disk.mount.short = self.world.disk_rng
        disk.mount.syncs_whole = self.world.disk_rng.random() < 0.5
        disk.mount.on_call = self._called
        disk.mount.write_through = self._write_through

    def _called(self, call: str, path: str, offset: int) -> None:
        if self.on_call is not None:
            self.on_call(call, path, offset)

    def crash(self, power: bool = True) -> None:
        """The process died. Some of what was under way happened; with the power, unsynced bytes go too."""
        rng = self.world.disk_rng
        self._loop_busy = False
        if self._offered is not None:
            self._queue(self._offered)
        self._policy = InPlace()
        if self._steps is not None or self._queued:
            self.disk.mount.calls_left = rng.randint(0, rng.choice(_CRASH_CALLS))
            try:
                while self._begun():
                    self._advance(self.disk.answer(self._step))  # type: ignore[arg-type]  # it has begun
            except PowerCut:
                pass
        self.disk.mount.calls_left = None
        self._queued.clear()
        self._steps = self._step = None
        self.disk.end_process()
        if power:
            self.disk.crash(rng)
            self.changed()

    def changed(self) -> None:
        """The durable content may have changed."""
        if self.on_content is not None:
            self.on_content()

    def _delay(self) -> int:
        low, high = self.latency
        return low + int(self.world.disk_rng.random() * (high - low + 1))

    # ---- the writer ------------------------------------------------------------------------------

    def _batch(self, batch: DiskBatch) -> None:
        if not self.in_place:
            self._queue(batch)
            self._write()
        elif self._offered is not None:
            self._queue(self._offered)
            self._queue(batch)
            self._write()
        elif self._steps is None and not self._queued and self._policy.allows() and simple(batch):
            self._offered = batch
        else:
            self._queue(batch)
            self._write()

    def _queue(self, batch: DiskBatch) -> None:
        self._offered = None
        self._queued.append(batch)

    def _write(self) -> None:
        if self._steps is None:
            self._begun()
            self._later()

    def _settle(self) -> None:
        """The effects of a step are performed: a batch that was alone among them is carried out by the loop itself."""
        if self._offered is not None:
            self._loop_busy = True
            self._queue(self._offered)
            self._work()

    def _begun(self) -> bool:
        """Whether there is something to do; takes everything that waits as the next group."""
        if self._steps is None and self._queued:
            group, self._queued = self._queued, []
            self._begin = self.world.now
            self._steps = carry_out(group, self._prefers_whole)
            self._step = next(self._steps)
        return self._steps is not None

    def _prefers_whole(self, wanted: Sequence[SyncFile]) -> bool:
        return self.disk.open().covers(wanted) and self.world.disk_rng.random() < 0.5

    def _advance(self, answer: object) -> list[DiskEvent]:
        """Give the driver the answer to its step; the answers to a group that has ended."""
        assert self._steps is not None
        try:
            self._step = self._steps.send(answer)
        except StopIteration as end:
            self._steps = self._step = None
            events: list[DiskEvent] = end.value
            self._policy.took((self.world.now - self._begin) / 1000)
            return events
        return []

    def _later(self) -> None:
        epoch = self.node.epoch

        def act() -> None:
            if epoch == self.node.epoch:
                self._work()

        self.world.after(self._delay(), act)

    def _work(self) -> None:
        """Do what can be done at once; each sync takes a while of its own."""
        while self._begun():
            assert self._step is not None
            answer = self.disk.answer(self._step)
            if answer:
                self.changed()  # what failed may have happened in part
            for event in self._advance(answer):
                self.node.post(event)
            if self._loop_busy and self._step is None:
                self._loop_busy = False
                self.done_in_place += 1
                self.node.goes_on()
            if self._step is None or type(self._step) in _SYNCS:
                if self._begun():
                    self._later()
                return

    # ---- the readers -----------------------------------------------------------------------------

    def _look(self, effect: DiskRead | DiskList) -> None:
        epoch = self.node.epoch

        def answer() -> None:
            if epoch == self.node.epoch:
                self.node.post(self.disk.look(effect))

        self.world.after(self._delay(), answer)
