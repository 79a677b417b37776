"""What goes wrong in a run: kinds of faults, when they strike, and where they must stop.

Whatever is drawn stays within what the cluster must survive. One storage node at most (the victim) ever
loses or damages what it acknowledged; the replicas are changed one at a time, and only after the last
change has been taken up.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.model.cluster import ROOT, RawPeer, SimStorage
from tests.model.moving import Plan
from waltz_core.base.edge import Shutdown, ZkSet
from waltz_core.base.errors import StorageError
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.operations import moves
from waltz_core.storage.effects import DiskList, DiskRead, FaultKind, Operation, SyncDirectory, SyncFile, WriteAt
from waltz_core.store.last_resort import confirm_metadata
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import PartitionMetadata, decode_partition_metadata, encode_partition_metadata
from waltz_testing.simulation.disk import SimDisk
from waltz_testing.simulation.world import SimNode

if TYPE_CHECKING:
    from tests.model.run import Run

_ARCHIVIST = 1_000_000  # its client id
_TRIES_MAX = 60
_LOOK_AFTER_MS = 20_000  # an operator gives the partitions so long to come back by themselves


class Faults:
    """Carries out the faults of one run; each kind draws from a stream of its own."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.world = run.world
        self.cluster = run.cluster
        self.on = True
        self.rng = Random(0)  # of the kind that strikes
        self.victim: SimStorage = run.cluster.storages[Random(f"{run.seed}/victim").randrange(run.plan.replicas)]
        self.changing = False  # the operator is busy with the replicas of this run
        self._rewound: dict[int, PartitionMetadata] = {}  # partition → what was there before, or is to be confirmed
        self._repairs: dict[int, Callable[[int], None]] = {}  # how the operator puts that right
        self._snapshot: tuple[SimDisk, list[int]] | None = None

    def schedule(self, kind: str, start: int, end: int) -> None:
        """Let a kind strike a few times."""
        rng = Random(f"{self.run.seed}/fault/{kind}")
        strike: Callable[[], str] = getattr(self, kind)

        def act() -> None:
            if not self.on:
                return
            self.rng = rng
            what = strike()
            if what:
                self.run.observer.counts[f"fault {kind}"] += 1
                self.world.trace(f"fault: {kind} {what}")

        for _ in range(rng.randint(1, 4)):
            self.world.at(start + rng.randrange(end - start), act)

    def stop(self) -> None:
        """All faults are over; what they left behind is healed."""
        self.on = False
        self.world.network.latency = (0, 2)
        self.world.network.heal()
        self.world.zookeeper.latency = (0, 3)
        self.world.zookeeper.lag = 0
        self.world.zookeeper.losing.clear()
        self.world.zookeeper.losing_at.clear()
        for app in self.run.apps:
            app.put_right()
        for partition in list(self._rewound):
            self._repairs[partition](partition)
        self.world.after(_LOOK_AFTER_MS, self._confirm_what_waits)
        for storage in self.cluster.storages:
            storage.disk.disk.fault = None
            storage.disk.disk.capacity = None
            storage.disk.latency = storage.disk.usual_latency
        for node in self.world.nodes.values():
            node.crash_at_effect = None
            node.thaw()

    # ---- choosing ----------------------------------------------------------------------------------

    def _storage(self) -> SimStorage | None:
        living = [storage for storage in self.cluster.storages if storage.node.alive]
        return self.rng.choice(living) if living else None

    def _server(self) -> SimNode | None:
        living = [server for server in self.cluster.servers if server.alive]
        return self.rng.choice(living) if living else None

    def _processes(self) -> list[SimNode]:
        return [
            *(storage.node for storage in self.cluster.storages),
            *self.cluster.servers,
            *(app.node for app in self.run.apps),
        ]

    def _process(self) -> SimNode | None:
        living = [node for node in self._processes() if node.alive and not node.frozen]
        return self.rng.choice(living) if living else None

    def _later(self, low: int, high: int, action: Callable[[], None]) -> None:
        """Undo something after a while; the end of all faults undoes it too."""

        def act() -> None:
            if self.on:
                action()

        self.world.after(self.rng.randint(low, high), act)

    # ---- processes -----------------------------------------------------------------------------

    def kill_storage(self) -> str:
        """kill -9: what the process gave to the operating system is kept."""
        storage = self._storage()
        if storage is None:
            return ""
        storage.crash(power=False)
        return storage.node.name

    def power_storage(self) -> str:
        """The machine loses its power: unsynced bytes go, connections die without a word or with one."""
        storage = self._storage()
        if storage is None:
            return ""
        storage.crash(power=True, silent=self.rng.random() < 0.4)
        return storage.node.name

    def power_all_storages(self) -> str:
        """All storage nodes at once."""
        for storage in self.cluster.storages:
            storage.crash(power=True)
        return "all"

    def storage_between_effects(self) -> str:
        """A storage process dies between two effects."""
        storage = self._storage()
        if storage is None:
            return ""
        storage.power_fails = self.rng.random() < 0.5
        storage.node.crash_at_effect = storage.node.effect_count + self.rng.randint(1, 80)
        return storage.node.name

    def kill_server(self) -> str:
        """A server dies."""
        server = self._server()
        if server is None:
            return ""
        server.crash(silent=self.rng.random() < 0.3)
        return server.name

    def server_between_effects(self) -> str:
        """A server dies between two effects."""
        server = self._server()
        if server is None:
            return ""
        server.crash_at_effect = server.effect_count + self.rng.randint(1, 80)
        return server.name

    def stop_server(self) -> str:
        """A server is asked to end."""
        server = self._server()
        if server is None:
            return ""
        server.post(Shutdown())
        return server.name

    def kill_client(self) -> str:
        """A client dies; the application in it goes on where its mark stands."""
        app = self.rng.choice(self.run.apps)
        if not app.node.alive:
            return ""
        app.node.crash()
        return app.name

    def client_astray(self) -> str:
        """A client comes back with a database of another cluster, ahead of this log; later it is put right."""
        apps = [app for app in self.run.apps if app.node.alive and not app.astray and not app.habits.tail]
        if not apps:
            return ""
        app = self.rng.choice(apps)
        app.stray()
        self._later(2_000, 15_000, app.put_right)
        return app.name

    def freeze(self) -> str:
        """A process is not scheduled for a while and wakes up believing what it believed."""
        node = self._process()
        if node is None:
            return ""
        node.freeze()
        self._later(300, 15_000, node.thaw)
        return node.name

    # ---- network -------------------------------------------------------------------------------

    def partition(self) -> str:
        """Some links are cut, in both directions or in one: between two nodes, or around one."""
        names = [node.name for node in self._processes()]
        one = self.rng.choice(names)
        others = [name for name in names if name != one]
        if self.rng.random() < 0.5:
            others = self.rng.sample(others, self.rng.randint(1, 2))
        pairs = {(one, other) for other in others}
        direction = self.rng.randrange(3)
        if direction == 0:
            pairs |= {(b, a) for a, b in pairs}
        elif direction == 1:
            pairs = {(b, a) for a, b in pairs}
        self.world.network.cut |= pairs
        self._later(200, 15_000, lambda: self.world.network.heal(pairs))
        return f"{one} {('both ways', 'to', 'from')[direction]} {others}"

    def reset(self) -> str:
        """All connections between two nodes break, with what is on its way."""
        node = self._process()
        peers = sorted({way.target.name for way in node.conns.values()}) if node is not None else []
        if node is None or not peers:
            return ""
        other = self.rng.choice(peers)
        self.world.network.reset_between(node.name, other)
        return f"{node.name} {other}"

    def stall(self) -> str:
        """One connection passes nothing in one direction for a while."""
        node = self._process()
        ways = list(node.conns.values()) if node is not None else []
        if node is None or not ways:
            return ""
        way = self.rng.choice(ways)
        way.stalled = True

        def over() -> None:
            way.stalled = False
            way.unblock()

        self._later(200, 12_000, over)
        return f"{node.name} {way.target.name}"

    def slow_reader(self) -> str:
        """A process takes no bytes from one peer for a while."""
        node = self._process()
        ways = list(node.conns.values()) if node is not None else []
        if node is None or not ways:
            return ""
        way = self.rng.choice(ways).other
        way.stalled = True

        def over() -> None:
            way.stalled = False
            way.unblock()

        self._later(200, 8_000, over)
        return f"{node.name} {way.sender.name}"

    def slow_network(self) -> str:
        """Everything takes longer for a while."""
        high = self.rng.choice((20, 100, 400))
        self.world.network.latency = (0, high)
        self._later(500, 6_000, lambda: setattr(self.world.network, "latency", (0, 2)))
        return f"up to {high} ms"

    # ---- disks ---------------------------------------------------------------------------------

    def slow_disk(self) -> str:
        """One disk takes longer for a while."""
        storage = self.rng.choice(self.cluster.storages)
        high = self.rng.choice((50, 300, 1500))
        storage.disk.latency = (0, high)
        self._later(500, 8_000, lambda: setattr(storage.disk, "latency", storage.disk.usual_latency))
        return f"{storage.node.name} up to {high} ms"

    def io_error(self) -> str:
        """The next writes, syncs or reads of one disk fail; later the operator restarts the node."""
        storage = self._storage()
        if storage is None:
            return ""
        kinds = self.rng.choice(((SyncFile, SyncDirectory), (WriteAt,), (DiskRead,), (SyncFile, WriteAt, DiskRead)))
        left = self.rng.randint(1, 3)

        def fault(effect: Operation | DiskRead | DiskList) -> FaultKind | None:
            nonlocal left
            if left and isinstance(effect, kinds):
                left -= 1
                return FaultKind.IO
            return None

        disk = storage.disk.disk
        disk.fault = fault
        epoch = storage.node.epoch
        power = self.rng.random() < 0.5

        def restart() -> None:
            disk.fault = None
            if storage.node.epoch == epoch:
                storage.crash(power=power)

        self._later(1_000, 6_000, restart)
        return f"{storage.node.name} {[kind.__name__ for kind in kinds]}"

    def full_disk(self) -> str:
        """One disk has no room for a while."""
        storage = self.rng.choice(self.cluster.storages)
        disk = storage.disk.disk
        used = sum(len(content) for content in disk.files().values())
        disk.capacity = used + self.rng.randrange(2_000)
        self._later(500, 6_000, lambda: setattr(disk, "capacity", None))
        return storage.node.name

    def bit_rot(self) -> str:
        """A byte of the victim's disk changes."""
        self.run.observer.lossy[self.victim.node.name] = None
        disk = self.victim.disk.disk
        names = sorted(disk.durable_names())
        if self.rng.random() < 0.7:  # mostly where the records are, else control, side and index files
            names = [name for name in names if name.endswith(".seg") and len(disk.durable(name) or b"") > 128]
        if not names:
            return ""
        name = self.rng.choice(names)
        content = disk.durable(name)
        if not content:
            return ""
        low = 128 if len(content) > 128 and self.rng.random() < 0.8 else 0
        at = self.rng.randrange(low, len(content))
        if at >= len(disk.files().get(name, b"")):  # cut or deleted, and the disk does not know it for good yet
            return ""
        disk.flip(name, at, 1 << self.rng.randrange(8))
        self.victim.disk.changed()
        return f"{self.victim.node.name} {name} byte {at}"

    def wipe(self) -> str:
        """The victim comes back with an empty disk; the operator assigns its partitions again."""
        self.run.observer.lossy[self.victim.node.name] = None
        self.run.operator.wipe(self.victim)
        return self.victim.node.name

    def roll_back(self) -> str:
        """The victim comes back with the disk it had some time ago."""
        if self._snapshot is None:
            if not self.victim.node.alive or not self.victim.ready:
                return ""
            disk = self.victim.disk.disk.clone()
            disk.lose_unsynced()
            replicas = self.victim.node.machine.replicas
            self._snapshot = disk, [replica.entry.current.session_id for replica in replicas]
            self._later(3_000, 12_000, self._restore)
            return f"{self.victim.node.name} is saved"
        return ""

    def _restore(self) -> None:
        assert self._snapshot is not None
        (disk, sessions), self._snapshot = self._snapshot, None
        name = str(self.victim.data_endpoint)
        for partition, session in enumerate(sessions):
            metadata = self._metadata(partition)
            states = {state.replica_id.storage: state for state in metadata.replica_states} if metadata else {}
            if name not in states or states[name].session_id <= session:
                return  # nobody could tell that it lost something: no quorum of three survives that
        self.run.observer.lossy[self.victim.node.name] = None
        self.victim.crash()
        self.victim.disk.replace(disk.clone())
        self.run.observer.counts["fault rolled_back"] += 1
        self.world.trace(f"fault: {self.victim.node.name} is rolled back")

    # ---- ZooKeeper -----------------------------------------------------------------------------

    def _zk_node(self) -> SimNode | None:
        nodes = [node for node in self._processes() if node.alive and node.uses_zookeeper and not node.frozen]
        return self.rng.choice(nodes) if nodes else None

    def zk_suspend(self) -> str:
        """A process loses its connection to ZooKeeper, for less or more than its session lives."""
        node = self._zk_node()
        if node is None:
            return ""
        self.world.zookeeper.suspend(node, self.rng.choice((50, 1_000, 3_500, 4_500, 12_000)))
        return node.name

    def zk_expire(self) -> str:
        """ZooKeeper gives a session up; the process notices at once or later."""
        node = self._zk_node()
        if node is None:
            return ""
        self.world.zookeeper.expire(node, self.rng.choice((0, 500, 3_000)))
        return node.name

    def zk_slow(self) -> str:
        """Answers and watches take longer for a while."""
        self.world.zookeeper.latency = (0, self.rng.choice((50, 300, 1_500)))
        self._later(1_000, 8_000, lambda: setattr(self.world.zookeeper, "latency", (0, 3)))
        return "everybody"

    def zk_down(self) -> str:
        """Nobody reaches ZooKeeper, for less or more than sessions live."""
        length = self.rng.choice((500, 3_000, 7_000))
        for node in self._processes():
            if node.alive and node.uses_zookeeper and not node.frozen:
                self.world.zookeeper.suspend(node, length)
        return f"{length} ms"

    def zk_behind(self) -> str:
        """Some processes get a ZooKeeper server that falls behind the others: old data, late watches."""
        nodes = [node for node in self._processes() if node.alive and node.uses_zookeeper and not node.frozen]
        if not nodes or self.world.zookeeper.lag:
            return ""
        chosen = self.rng.sample(nodes, self.rng.randint(1, len(nodes)))
        lag = self.rng.choice((300, 2_000, 6_000))
        for node in chosen:
            self.world.zookeeper.follow(node)

        def fall_behind() -> None:
            self.world.zookeeper.lag = lag

        self._later(60, 200, fall_behind)
        self._later(3_000, 15_000, lambda: setattr(self.world.zookeeper, "lag", 0))
        return f"{[node.name for node in chosen]} by {lag} ms"

    def zk_lose_answer(self) -> str:
        """The next write of a process is applied, and its connection breaks before the answer."""
        node = self._zk_node()
        if node is None:
            return ""
        self.world.zookeeper.losing.add(node.name)
        return node.name

    def lose_id(self) -> str:
        """Two processes start anew; the write with which the first takes its id is applied, and it never learns."""
        nodes = [node for node in self._processes() if node.alive and node.uses_zookeeper and not node.frozen]
        nodes = [node for node in nodes if not node.name.startswith("storage")]
        if len(nodes) < 2:
            return ""
        first, second = self.rng.sample(nodes, 2)
        paths = cluster_paths(ROOT)
        self.world.zookeeper.losing_at[first.name] = (paths.client_ids, paths.server_ids)
        first.crash()
        second.crash()
        return f"{first.name}, and {second.name} starts too"

    def zk_rewind(self) -> str:
        """The metadata of a partition is set back by some sessions; later the operator repairs it."""
        partition = self.rng.randrange(self.cluster.partitions)
        present = self._metadata(partition)
        older = [one for one in self.run.observer.history[partition] if one != present]
        if present is None or not older or partition in self._rewound:
            return ""
        chosen = older[-min(len(older), self.rng.randint(1, 12))]
        self._rewound[partition] = present
        self._write_metadata(partition, chosen)
        # Half of the operators kept a copy, the others have the word of the storage nodes only.
        repair = self._confirm if Random(f"{self.run.seed}/confirm").random() < 0.5 else self._repair
        self._repairs[partition] = repair
        self._later(2_000, 20_000, lambda: repair(partition))
        return f"partition {partition} from {present.session_id} to {chosen.session_id}"

    def _write_metadata(self, partition: int, metadata: PartitionMetadata) -> None:
        self.run.observer.metadata[partition] = metadata  # it falls by our doing
        path = cluster_paths(ROOT).partition(partition)
        self.world.zookeeper.write([ZkSet(0, path, encode_partition_metadata(metadata), -1)])

    def _repair(self, partition: int) -> None:
        right, present = self._rewound.pop(partition, None), self._metadata(partition)
        if right is None or present is None:
            return
        newest = max(state.session_id for state in right.replica_states) if right.replica_states else -1
        if any(state.session_id > newest for state in present.replica_states):
            return  # nothing committed was forgotten, and a later session has opened
        session = max(right.session_id, present.session_id)
        generation = max(right.generation, present.generation)
        self._write_metadata(partition, PartitionMetadata(generation, session, right.replica_states))
        self.world.trace(f"fault: the metadata of partition {partition} is repaired")

    def _confirm(self, partition: int) -> None:
        """As `waltz storage confirm-metadata` does it; again and again while the partition waits."""
        present = self._metadata(partition)
        if present is None or partition not in self._rewound:
            return
        told = [storage.witness(partition) for storage in self.cluster.storages]
        witnesses = [one for one in told if one is not None]
        assigned = [str(storage.data_endpoint) for storage in self.cluster.replicas_of(partition)]
        try:
            plan = confirm_metadata(partition, present, assigned, witnesses)
        except StorageError as refused:
            self.world.trace(f"fault: the metadata of partition {partition} are not confirmed: {refused}")
            # A partition that is served yet does not know what was done to it: it will wait for this.
            self.world.after(5_000, lambda: self._confirm(partition))
        else:
            self._write_metadata(partition, plan.metadata)
            self.world.trace(f"fault: the metadata of partition {partition} are confirmed: {plan.lines[-1]}")
            self.world.after(5_000, lambda: self._confirm_again(partition))

    def _confirm_again(self, partition: int) -> None:
        if partition in self.run.healthy():
            self._rewound.pop(partition, None)
        else:
            self._confirm(partition)

    def _confirm_what_waits(self) -> None:
        """A disk was lost, and a partition waits for an operator to say that nothing else exists.

        The lost disk may have been the only one that could tell whether records on another one were copied there by a
        recovery that came to nothing, or committed by a session that the metadata have forgotten.
        """
        if not self.run.observer.lossy:
            return
        waiting = {
            partition_id
            for server in self.cluster.servers
            if server.alive
            for partition_id, partition in server.machine.partitions.items()
            if "until an operator confirms" in partition.trouble(server.clock)
        }
        for partition in sorted(waiting - self._rewound.keys()):
            if (present := self._metadata(partition)) is not None:
                self._rewound[partition] = present
                self._confirm(partition)

    def raise_start(self) -> str:
        """Old transactions are in an archive, and everybody has read them: the log may begin behind them."""
        partition = self.rng.randrange(self.cluster.partitions)
        known = [app.needs_behind(partition) for app in self.run.apps]
        read = [one for app in self.run.apps for where, one in app.waiting_fetches if where == partition]
        end = min([len(self.run.observer.logs[partition]) - 1, *(mark for mark in known if mark is not None), *read])
        before = self.run.observer.archived[partition]
        if end <= before:
            return ""
        start = self.rng.randint(before + 1, end)
        self.run.observer.archived[partition] = start
        Archivist(self.run, partition, start).ask()
        return f"partition {partition} begins at {start}"

    def take_out(self) -> str:
        """The operator takes a replica out of service for a while, as `waltz storage availability` does."""
        living = [storage for storage in self.cluster.storages if storage.node.alive and storage.holds]
        if not living:
            return ""
        storage = self.rng.choice(living)
        partition = self.rng.choice(storage.holds)
        self.run.operator.switch(storage, partition, False)
        self._later(1_000, 12_000, lambda: self.run.operator.switch(storage, partition, True))
        return f"partition {partition} on {storage.node.name}"

    # ---- membership ----------------------------------------------------------------------------

    def _metadata(self, partition: int) -> PartitionMetadata | None:
        data = self.world.zookeeper.read(cluster_paths(ROOT).partition(partition))
        return decode_partition_metadata(data) if data else None

    def change_replicas(self) -> str:
        """One storage node takes the place of another."""
        spare = [storage for storage in self.cluster.storages if storage not in self.cluster.replicas]
        if not spare:
            return ""
        wanted = {str(storage.data_endpoint) for storage in self.cluster.replicas}
        for partition in range(self.cluster.partitions):
            metadata = self._metadata(partition)
            if metadata is None or {state.replica_id.storage for state in metadata.replica_states} != wanted:
                return ""  # the last change has not been taken up
        leaving = self.rng.choice(self.cluster.replicas)
        if self.run.may_lose:
            if self.victim not in self.cluster.replicas:
                return ""
            leaving = self.victim  # any other node may hold the only copy
        joining = self.rng.choice(spare)
        self.cluster.set_replicas([joining if one is leaving else one for one in self.cluster.replicas])
        self.run.operator.replaced = joining, leaving
        return f"{joining.node.name} for {leaving.node.name}"

    def add_node(self) -> str:
        """The operator adds a storage node, as one more replica of some partitions or of all."""
        joining = self._stranger()
        beside = self._leaving()
        if joining is None or beside is None:
            return ""
        group = dict(self.cluster.maps.groups.groups)[str(beside.data_endpoint)]
        count = self.rng.randint(1, self.cluster.partitions)
        partitions = sorted(self.rng.sample(range(self.cluster.partitions), count))
        name, port = str(joining.data_endpoint), joining.admin_endpoint.port
        return self._move(
            lambda view: moves.add(view, name, port, group, partitions),
            f"{joining.node.name} with {partitions} to the group of {beside.node.name}",
        )

    def drain_node(self) -> str:
        """The operator empties a storage node; its partitions go to others of its group."""
        leaving = self._leaving()
        if leaving is None:
            return ""
        name = str(leaving.data_endpoint)
        return self._move(lambda view: moves.drain(view, name), leaving.node.name)

    def replace_node(self) -> str:
        """The operator puts a new storage node in the place of one that runs, or is down."""
        joining, leaving = self._stranger(), self._leaving()
        if joining is None or leaving is None:
            return ""
        if self.rng.random() < 0.3 and leaving.node.alive:
            leaving.crash(power=False)
        source, target, port = str(leaving.data_endpoint), str(joining.data_endpoint), joining.admin_endpoint.port
        return self._move(
            lambda view: moves.replace(view, source, target, port), f"{leaving.node.name} by {joining.node.name}"
        )

    def move_partition(self) -> str:
        """The operator moves one partition to another storage node of the group."""
        leaving = self._leaving()
        if leaving is None:
            return ""
        groups = dict(self.cluster.maps.groups.groups)
        source, partition = str(leaving.data_endpoint), self.rng.choice(leaving.holds)
        others = [name for name, group in groups.items() if name != source and group == groups[source]]
        if not others:
            return ""
        target = self.rng.choice(others)
        return self._move(
            lambda view: moves.move(view, [partition], source, target), f"{partition} from {source} to {target}"
        )

    def _move(self, plan: Plan, text: str) -> str:
        moving = self.run.operator.moving
        if moving.plan is not None or not moving.begin(plan, delete=self.rng.random() < 0.5):
            return ""
        return text

    def _stranger(self) -> SimStorage | None:
        """A storage node that the cluster does not know."""
        known = dict(self.cluster.maps.groups.groups)
        found = [one for one in self.cluster.storages if str(one.data_endpoint) not in known]
        return self.rng.choice(found) if found else None

    def _leaving(self) -> SimStorage | None:
        """A replica that may go: any other than the victim may hold the only copy."""
        if self.run.may_lose:
            return self.victim if self.victim.holds else None
        return self.rng.choice([storage for storage in self.cluster.storages if storage.holds])


KINDS = tuple(
    name
    for name, value in vars(Faults).items()
    if callable(value) and not name.startswith("_") and name not in ("schedule", "stop")
)
"""Names of all kinds."""

LOSING = ("bit_rot", "wipe", "roll_back")
"""Kinds that damage or lose acknowledged bytes, of the victim only."""

MEMBERSHIP = ("add_node", "drain_node", "replace_node", "move_partition")
"""Kinds that change which storage nodes hold a partition, or how many do."""

ASTRAY = "client_astray"

ARCHIVE = "raise_start"

OUTAGE = "take_out"

LOSE_ID = "lose_id"

BEYOND_LEGACY = (
    "power_storage",
    "power_all_storages",
    "storage_between_effects",
    "io_error",
    "full_disk",
    "zk_rewind",
    *LOSING,
)
"""Kinds that a storage node of 0.13.2 does not survive."""


class Archivist:
    """Asks the owner of a partition to let the log begin later, until it does."""

    def __init__(self, run: Run, partition: int, start: int) -> None:
        self._run = run
        self._partition = partition
        self._start = start
        self._tries = 0
        self._peer: RawPeer | None = None
        self._connection: Connection[messages.ClientMessage]

    def ask(self) -> None:
        """Try once more, a second after the last time."""
        if self._answered() or self._tries > _TRIES_MAX:
            return
        self._tries += 1
        self._run.world.after(1_000, self.ask)
        owners = [
            server.name
            for server in self._run.cluster.servers
            if server.alive and self._partition in server.machine.partitions
        ]
        if owners:
            self._connection = Connection(CLIENT_PROTOCOL, "archivist", {5})
            self._peer = self._run.cluster.raw_peer(Endpoint(owners[0], 6000))
            self._run.world.after(300, self._greet)
            self._run.world.after(600, self._send)

    def _greet(self) -> None:
        if self._peer is not None:
            self._peer.send(self._connection.hello())

    def _send(self) -> None:
        self._receive()
        if self._peer is not None and self._connection.version is not None:
            data = bytearray()
            req_id = make_req_id(_ARCHIVIST, 0, self._partition, self._tries)
            self._connection.encode(messages.SetLogStartRequest(req_id, self._start), data)
            self._peer.send(bytes(data))

    def _receive(self) -> list[messages.ClientMessage]:
        found: list[messages.ClientMessage] = []
        if self._peer is not None:
            self._connection.receive(self._peer.take_bytes(), found)
        return found

    def _answered(self) -> bool:
        done = any(isinstance(answer, messages.LogStartResponse) for answer in self._receive())
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        if done:
            self._run.observer.counts["log starts raised"] += 1
        return done
