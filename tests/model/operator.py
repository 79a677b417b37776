"""The people and the supervisor of a run: restart what died, assign what was wiped, replace what is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.model.cluster import KEY, RawPeer, SimStorage
from tests.model.moving import Moving
from waltz_core.storage.replica import State, StorageReplica
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.connection import ADMIN_PROTOCOL, Connection
from waltz_testing.simulation import cluster as simulated
from waltz_testing.simulation.disk import SimDisk
from waltz_testing.simulation.world import SimNode

if TYPE_CHECKING:
    from tests.model.run import Run

PATIENCE_MS = 40_000
"""How long people look at a client of 0.13.2 that gets no answer before they restart it."""

_WAITS_MS = 20_000  # so long a log may wait for a node that was replaced: others may come back meanwhile
_PASSING_MS = 5_000  # so long an index file may be alone, while a segment is begun


class Order(RawPeer):
    """Asks a storage node for something, through its admin port."""

    def __init__(self, run: Run, storage: SimStorage, number: int, request: admin.AdminMessage) -> None:
        self.done = False
        self._storage = storage
        self._connection: Connection[admin.AdminMessage] = Connection(ADMIN_PROTOCOL, "operator", {0, 1})
        self._count = run.cluster.partitions
        self._request = request
        self._world = run.world
        self._give_up = run.world.now + 5_000
        self._greeted = False
        self._asked = False
        super().__init__(run.world, f"operator{number}", storage.admin_endpoint)

    @property
    def failed(self) -> bool:
        """It did not work, or takes too long."""
        return not self.done and (self.closed or self._world.now > self._give_up)

    def step(self, events: Any, out: list[Any]) -> None:
        super().step(events, out)
        if self.connected and not self._greeted:
            self._greeted = True
            self.send(self._connection.hello())
        answers: list[admin.AdminMessage] = []
        self._connection.receive(self.take_bytes(), answers)
        if self._connection.version is not None and not self._asked:
            self._asked = True
            data = bytearray()
            self._connection.encode(admin.AdminOpenRequest(-1, UUID(bytes=KEY), self._count), data)
            self._connection.encode(self._request, data)
            self.send(bytes(data))
        if any(isinstance(answer, admin.AdminSuccessResponse) and answer.seq_num == 1 for answer in answers):
            self.done = True
            self.close()
        elif any(isinstance(answer, admin.AdminFailureResponse) for answer in answers):
            self.close()


class Operator:
    """Looks at everything four times a second."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.world = run.world
        self.rng = Random(f"{run.seed}/operator")
        self._due: dict[str, int] = {}  # dead process → when it is started again
        self._unassigned: dict[str, SimStorage] = {}
        self._assignments: dict[str, Order] = {}
        self.moving = Moving(run, self._order)
        self._orders = 0
        self._switches: dict[tuple[str, int], bool] = {}  # storage node and partition → whether it is to serve
        self._switching: dict[str, Order] = {}
        self._acceptances: dict[StorageReplica, Order] = {}
        self._accepts = Random(f"{run.seed}/limbo").random() < 0.5
        self._alone: dict[tuple[str, str], int] = {}  # node and index file without its data file → since when
        self._paused = False
        # Who joined last, and who left for it.
        self.replaced: tuple[simulated.SimStorage, simulated.SimStorage] | None = None
        self._waits_since: int | None = None  # a log, for the one that left
        self._look()

    def pause(self) -> None:
        """Do nothing for a while."""
        self._paused = True

    def resume(self) -> None:
        """Go on."""
        self._paused = False

    def wipe(self, storage: SimStorage) -> None:
        """Give a storage node an empty disk."""
        storage.crash()
        storage.disk.replace(SimDisk(self.world.disk_rng))
        self._unassigned[storage.node.name] = storage
        self._assignments.pop(storage.node.name, None)

    def _look(self) -> None:
        self.world.after(250, self._look)
        if not self._paused:
            self._switch_all()
            self._look_after_storages()
            self._look_after_others()
            self._assign_again()
            self.moving.look()

    def switch(self, storage: SimStorage, partition: int, wanted: bool) -> None:
        """Take a replica out of service, or let it serve again; asked for until it is so."""
        self._switches[storage.node.name, partition] = wanted

    def _switch_all(self) -> None:
        for storage in self.run.cluster.storages:
            order = self._switching.get(storage.node.name)
            if not storage.ready or (order is not None and not (order.done or order.failed)):
                continue
            for replica in storage.node.machine.replicas:
                wanted = not self.run.faults.on or self._switches.get((storage.node.name, replica.partition_id), True)
                current = replica.entry.current
                if current.assigned and current.available is not wanted:
                    request = admin.PartitionAvailableRequest(1, (replica.partition_id,), wanted)
                    self._switching[storage.node.name] = self._ask(storage, request)
                    break

    def _order(
        self, storage: SimStorage, partitions: Sequence[int], *, holds: bool = True, delete: bool = False
    ) -> Order:
        return self._ask(storage, admin.PartitionAssignmentRequest(1, tuple(partitions), holds, delete))

    def _ask(self, storage: SimStorage, request: admin.AdminMessage) -> Order:
        self._orders += 1
        return Order(self.run, storage, self._orders, request)

    def _look_after_storages(self) -> None:
        for storage in self.run.cluster.storages:
            node = storage.node
            if not node.alive:
                self._restart(node, storage.start)
            elif storage.failed is not None:
                self._cannot_start(storage)
            elif storage.ready and node.name in self._unassigned:
                self._assign(storage)
            elif storage.ready and not self.run.faults.on:
                self._mend(storage)

    def _look_after_others(self) -> None:
        for server in self.run.cluster.servers:
            if server.alive and server.ended is not None:
                server.crash()
            if not server.alive:
                self._restart(server, server.start)
        for app in self.run.apps:
            if not app.node.alive:
                self._restart(app.node, app.start)
            elif app.habits.legacy and app.stuck_for() > PATIENCE_MS and not self.run.faults.on:
                # client-C7: with nothing to send it notices that a server's host is gone by its keep-alive only,
                # 10 minutes after it wrote last.
                app.node.crash()
                self.run.observer.counts["legacy clients restarted"] += 1

    def _restart(self, node: SimNode, start: Any) -> None:
        due = self._due.get(node.name)
        if due is None:
            longest = 6_000 if self.run.faults.on else 500
            self._due[node.name] = self.world.now + int(longest * self.rng.random() ** 2)
        elif self.world.now >= due:
            del self._due[node.name]
            start()

    def _cannot_start(self, storage: SimStorage) -> None:
        name = storage.node.name
        if storage.failed is not None and "input/output" not in storage.failed.reason:
            assert name in self.run.observer.lossy, f"{name} does not start: {storage.failed}"
            self.wipe(storage)
        else:
            storage.crash()

    def _leftovers(self, storage: SimStorage) -> bool:
        """0.13.2, killed while it begins a segment, never gets past the index file: somebody has to delete it."""
        disk = storage.disk.disk
        data = set(disk.durable_names(suffix=".seg"))
        alone = {path for path in disk.durable_names(suffix=".idx") if path.replace(".idx", ".seg") not in data}
        seen = {path: self._alone.get((storage.node.name, path), self.world.now) for path in alone}
        old = [path for path, since in seen.items() if self.world.now - since > _PASSING_MS]
        if old:
            storage.crash(power=False)
            for path in old:
                disk.remove(path)
            self.run.observer.counts["leftovers deleted"] += len(old)
        self._alone = {
            **{key: since for key, since in self._alone.items() if key[0] != storage.node.name},
            **{(storage.node.name, path): since for path, since in seen.items() if path not in old},
        }
        return bool(old)

    def _assign(self, storage: SimStorage) -> None:
        name = storage.node.name
        order = self._assignments.get(name)
        if not storage.holds:
            del self._unassigned[name]
        elif order is not None and order.done:
            del self._assignments[name], self._unassigned[name]
        elif order is None or order.failed:
            self._assignments[name] = self._order(storage, storage.holds)

    def _mend(self, storage: SimStorage) -> None:
        """The faults are over: restart what stopped, replace what is damaged for good."""
        if storage.is_0132 and self._leftovers(storage):
            return
        for replica in storage.node.machine.replicas:
            if replica.state is State.STOPPED or replica.reason.startswith("the disk failed"):
                storage.crash(power=False)
                return
            if replica.state is State.LIMBO:
                name = storage.node.name
                assert name in self.run.observer.lossy, f"{name} is in limbo: {replica.reason}"
                self._end_limbo(storage, replica)
                return
            if replica.state is State.UNASSIGNED and replica.partition_id in storage.holds:
                # Rolled back to a time before it was told its partitions.
                self._unassigned[storage.node.name] = storage

    def _assign_again(self) -> None:
        """The faults are over, and a log waits for a node that is not assigned any more: it is, as the log says."""
        if self.replaced is None or self.run.faults.on:
            return
        joining, leaving = self.replaced
        waits = any(
            f"{leaving.data_endpoint} (not assigned any more; " in partition.reason
            for server in self.run.cluster.servers
            if server.alive
            for partition in server.machine.snapshot(server.clock).partitions
        )
        if not waits:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = self.world.now
        elif self.world.now - self._waits_since > _WAITS_MS:
            self.replaced = None
            replicas = self.run.cluster.replicas
            self.run.cluster.set_replicas([leaving if one is joining else one for one in replicas])
            self.run.observer.counts["nodes assigned again"] += 1

    def _end_limbo(self, storage: SimStorage, replica: StorageReplica) -> None:
        """All other copies are there again: let the log end where it is good, or begin anew with an empty disk."""
        order = self._acceptances.get(replica)
        if replica.files.log is None or not self._accepts or (order is not None and order.closed and not order.done):
            self.wipe(storage)
        elif order is None or order.failed:
            request = admin.AcceptLimboRequest(1, replica.partition_id, replica.files.usable_end)
            self._acceptances[replica] = self._ask(storage, request)
            self.run.observer.counts["limbo accepted"] += 1
