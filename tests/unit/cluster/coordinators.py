"""A few processes with a coordinator each, around one in-memory znode tree, with faults on demand."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from waltz_core.base.contract import Tickets
from waltz_core.base.edge import (
    Report,
    ZkChanged,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkDone,
    ZkError,
    ZkEvent,
    ZkFailed,
    ZkGet,
    ZkMulti,
    ZkRequest,
    ZkSet,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.ids import Endpoint
from waltz_core.cluster.coordinator import Coordinator
from waltz_core.cluster.notifications import (
    ClusterFailed,
    CoordinatorEffect,
    EndpointsChanged,
    Joined,
    Left,
    ManagedServer,
    Owned,
    OwnershipConfirmed,
    OwnershipDoubtful,
    ReplicasChanged,
)
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znode_tree import ZnodeTree
from waltz_core.zookeeper.znodes import (
    EMPTY_ASSIGNMENT,
    ClusterParams,
    PartitionAssignment,
    ReplicaAssignments,
    ServerDescriptor,
    StoreParams,
    decode_partition_assignment,
    decode_server_descriptor,
    encode_cluster_params,
    encode_id_counter,
    encode_partition_assignment,
    encode_replica_assignments,
    encode_store_params,
)

ROOT = "/waltz"
PATHS = cluster_paths(ROOT)
KEY = bytes(range(16))
REQUESTS = (ZkGet, ZkChildren, ZkCreate, ZkSet, ZkDelete, ZkMulti)
# Looks around at staggered times follow each other for ever: after so long without a write, the processes are at rest.
REST_MS = 300_000

T = TypeVar("T")


class Process:
    """One process: its coordinator, its session, and everything it was told."""

    def __init__(self, world: World, machine: Coordinator) -> None:
        self.world = world
        self.machine = machine
        self.session = 0
        self.connected = False
        self.requests: deque[ZkRequest] = deque()
        self.inbox: list[ZkEvent] = []
        self.told: list[CoordinatorEffect] = []

    # ---- what it was told --------------------------------------------------------------------

    def all(self, kind: type[T]) -> list[T]:
        return [item for item in self.told if isinstance(item, kind)]

    def last(self, kind: type[T]) -> T:
        return self.all(kind)[-1]

    @property
    def owned(self) -> tuple[tuple[int, int], ...]:
        return self.last(Owned).partitions

    @property
    def doubtful(self) -> bool:
        marks = [item for item in self.told if isinstance(item, (OwnershipDoubtful, OwnershipConfirmed))]
        return bool(marks) and isinstance(marks[-1], OwnershipDoubtful)

    @property
    def endpoints(self) -> dict[Endpoint, tuple[tuple[int, int], ...]]:
        return dict(self.last(EndpointsChanged).endpoints)

    # ---- life --------------------------------------------------------------------------------

    def connect(self) -> Process:
        """The session, or a new one, is usable."""
        if not self.world.tree.has_session(self.session):
            self.session = self.world.tree.open_session()
        self.connected = True
        self.inbox.append(ZkStateChanged(ZkState.CONNECTED, self.session))
        return self

    def suspend(self) -> None:
        """The connection breaks: what is under way gets no answer worth anything."""
        self.connected = False
        self.requests.clear()
        self.world.tree.forget_watches(self.session)
        self.inbox = [ZkStateChanged(ZkState.SUSPENDED)]

    def presume_lost(self) -> None:
        self.inbox.append(ZkStateChanged(ZkState.PRESUMED_LOST))

    def expire(self) -> None:
        """ZooKeeper ends the session, and the process learns it."""
        if self.connected:
            self.suspend()
        self.world.close(self.session)
        self.inbox.append(ZkStateChanged(ZkState.EXPIRED))

    def die(self) -> None:
        """Killed: nothing more is heard or done; the session goes on until it is closed."""
        self.connected = False
        self.world.processes.remove(self)

    # ---- one move ----------------------------------------------------------------------------

    def step(self) -> None:
        """Hand over what has arrived, or just the time."""
        events, self.inbox = self.inbox, []
        out: list[CoordinatorEffect] = []
        self.machine.step(self.world.now, events, out)
        self.take(out)

    def take(self, out: list[CoordinatorEffect]) -> None:
        for item in out:
            if isinstance(item, REQUESTS):
                if self.connected:
                    self.requests.append(item)
                else:
                    self.inbox.append(ZkFailed(item.ticket, ZkError.UNAVAILABLE))
            else:
                self.told.append(item)

    def serve(self, *, reply: bool = True, apply: bool = True) -> ZkRequest:
        """ZooKeeper takes the next request; the request or its reply may get lost."""
        request = self.requests.popleft()
        if not isinstance(request, ZkGet | ZkChildren):
            self.world.written_at = self.world.now
        if apply:
            answer = self.world.tree.apply(self.session, request)
            self.world.distribute()
            if reply:
                self.inbox.append(answer)
        return request

    def call(self, act: Callable[[int, list[CoordinatorEffect]], None]) -> None:
        """Call a method of the machine as its parent does."""
        out: list[CoordinatorEffect] = []
        act(self.world.now, out)
        self.take(out)


class World:
    """The tree and the processes."""

    def __init__(self, num_partitions: int = 4, *, create: bool = True) -> None:
        self.tree = ZnodeTree()
        self.now = 0
        self.written_at = 0  # when a process last tried to change something
        self.processes: list[Process] = []
        self.admin = self.tree.open_session()
        self._ports = 6000
        if create:
            self.create_cluster(num_partitions)

    def create_cluster(self, num_partitions: int, *, name: str = "test", key: bytes = KEY) -> None:
        self.put(ROOT, encode_cluster_params(ClusterParams(name, num_partitions)))
        self.put(PATHS.servers, encode_partition_assignment(EMPTY_ASSIGNMENT))
        self.put(PATHS.ids, None)
        self.put(PATHS.server_ids, encode_id_counter(0))
        self.put(PATHS.client_ids, encode_id_counter(0))
        self.put(PATHS.store, encode_store_params(StoreParams(key, num_partitions)))
        self.put(PATHS.assignment, encode_replica_assignments(ReplicaAssignments(())))

    def put(self, path: str, data: bytes | None) -> None:
        """Create or overwrite a node, as an administrator."""
        if isinstance(self.tree.apply(self.admin, ZkGet(0, path)), ZkDone):
            answer = self.tree.apply(self.admin, ZkSet(0, path, data, -1))
        else:
            answer = self.tree.apply(self.admin, ZkCreate(0, path, data))
        assert isinstance(answer, ZkDone)
        self.distribute()

    def remove(self, path: str) -> None:
        assert isinstance(self.tree.apply(self.admin, ZkDelete(0, path)), ZkDone)
        self.distribute()

    def close(self, session: int) -> None:
        self.tree.close_session(session)
        self.distribute()

    def distribute(self) -> None:
        """Bring the news of watches to their sessions."""
        for session, path in self.tree.fired():
            for process in self.processes:
                if process.session == session and process.connected:
                    process.inbox.append(ZkChanged(path))

    # ---- processes ---------------------------------------------------------------------------

    def add(
        self,
        *,
        manages: ManagedServer | None = None,
        client: bool = False,
        kind: type[Coordinator] = Coordinator,
        seed: int = 1,
    ) -> Process:
        machine = kind(
            ROOT,
            tickets=Tickets(),
            rng=random.Random(seed),
            manages=manages,
            allocate_client_id=client,
        )
        process = Process(self, machine)
        self.processes.append(process)
        return process

    def server(self, *preferred: int, kind: type[Coordinator] = Coordinator, settle: bool = True) -> Process:
        """A new server; connected, and joined unless it is not to settle."""
        self._ports += 1
        process = self.add(manages=ManagedServer(Endpoint("host", self._ports), tuple(preferred)), kind=kind)
        process.connect()
        if settle:
            self.settle()
        return process

    def client(self) -> Process:
        process = self.add(client=True).connect()
        self.settle()
        return process

    def settle(self, until: int | None = None) -> None:
        """Run everything, in order, until the processes have nothing to do but to look around now and then."""
        begin = self.now
        for _ in range(3_000):
            moved = False
            for process in list(self.processes):
                due = process.machine.deadline()
                if process.inbox or (due is not None and due <= self.now):
                    process.step()
                    moved = True
                while process.connected and process.requests:
                    process.serve()
                    moved = True
            if moved:
                continue
            dues = [due for process in self.processes if (due := process.machine.deadline()) is not None]
            horizon = self.now + 25_000 if until is None else until
            if not dues or min(dues) > horizon or (until is None and self.now > max(begin, self.written_at) + REST_MS):
                return
            self.now = max(self.now, min(dues))
        raise AssertionError("the processes do not come to rest")

    # ---- what stands in ZooKeeper ------------------------------------------------------------

    def assignment(self) -> tuple[PartitionAssignment, int]:
        """The assignment, and the cversion it should carry."""
        answer = self.tree.apply(self.admin, ZkGet(0, PATHS.servers))
        assert isinstance(answer, ZkDone)
        assert answer.stat is not None
        return decode_partition_assignment(answer.data or b""), answer.stat.cversion

    def descriptors(self) -> dict[str, ServerDescriptor]:
        answer = self.tree.apply(self.admin, ZkChildren(0, PATHS.servers))
        assert isinstance(answer, ZkDone)
        found: dict[str, ServerDescriptor] = {}
        for name in answer.children:
            node = self.tree.apply(self.admin, ZkGet(0, f"{PATHS.servers}/{name}"))
            assert isinstance(node, ZkDone)
            found[name] = decode_server_descriptor(node.data or b"")
        return found

    def check_converged(self) -> None:
        """Everybody sees the same complete assignment, and it is in force."""
        assignment, cversion = self.assignment()
        descriptors = self.descriptors()
        servers = [process for process in self.processes if process.machine.server_id is not None]
        assert sorted(found.server_id for found in descriptors.values()) == sorted(
            process.machine.server_id or 0 for process in servers
        )
        if not servers:
            return
        assert assignment.cversion == cversion
        held = sorted(pair[0] for server in assignment.servers for pair in server.partitions)
        assert held == list(range(assignment.num_partitions))
        wanted = {
            found.endpoint: assignment.of_server(found.server_id)
            for found in sorted(descriptors.values(), key=lambda found: found.server_id)
        }
        for process in self.processes:
            assert process.endpoints == wanted
            if process.machine.server_id is not None:
                assert process.owned == assignment.of_server(process.machine.server_id)
                assert not process.doubtful


__all__ = [
    "KEY",
    "PATHS",
    "ROOT",
    "ClusterFailed",
    "Joined",
    "Left",
    "Process",
    "ReplicasChanged",
    "Report",
    "World",
]
