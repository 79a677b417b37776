"""A whole cluster in a simulated world, set up as an operator would, and raw connections to its parts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import attrs

from waltz_core.base.edge import CloseConn, Closed, Dial, Dialed, Port, Received, Send, ZkCreate, ZkSet
from waltz_core.base.ids import Endpoint
from waltz_core.server.config import ServerConfig
from waltz_core.server.journal_format import Mode
from waltz_core.server.node import ServerNode
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import Stop, StorageFailed, StorageReady, StorageStopped
from waltz_core.storage.node import StorageNode
from waltz_core.storage.replica import State
from waltz_core.store.last_resort import ReplicaReport
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.connection import ADMIN_PROTOCOL, Connection
from waltz_core.wire.frame import HEADER, HEADER_SIZE
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.store_metadata import EMPTY_STORE, StoreChange, StoreMaps, full_store
from waltz_testing.simulation.journal_disk import JournalDisk
from waltz_testing.simulation.world import SimNode, World
from waltz_testing.simulation.world_disk import WorldDisk

ROOT = "/waltz"
KEY = bytes(range(16))


class SimStorage:
    """A storage node with its disk; the disk outlives the process."""

    def __init__(self, cluster: SimCluster, number: int) -> None:
        self.cluster = cluster
        self.data_endpoint = Endpoint(f"storage{number}", 7000)
        self.admin_endpoint = Endpoint(f"storage{number}", 7001)
        self.ready = False
        self.failed: StorageFailed | None = None
        self.node = SimNode(cluster.world, f"storage{number}", self._machine)
        self.node.uses_zookeeper = False
        self.disk = WorldDisk(cluster.world, self.node)
        self.power_fails = False  # the next crash takes what was not synced with it
        self.node.on_crash = self._on_crash
        self.node.plugins.update(self.disk.plugins())
        self.node.plugins[StorageReady] = self._on_ready
        self.node.plugins[StorageFailed] = self._on_failed
        self.node.plugins[StorageStopped] = lambda effect: self.node.crash()

    def witness(self, partition: int) -> ReplicaReport | None:
        """What the node reports to an operator about a partition; None if it does not serve, or does not hold it."""
        replica = self.node.machine.replicas[partition] if self.node.alive and self.ready else None
        if replica is None or not replica.entry.current.assigned:
            return None
        sound = replica.state is State.OPEN
        return ReplicaReport(str(self.data_endpoint), replica.session_info(), replica.fence, replica.max_id, sound)

    @property
    def holds(self) -> tuple[int, ...]:
        """Partitions that the cluster's assignment gives to this node."""
        return dict(self.cluster.maps.replicas.replicas).get(str(self.data_endpoint), ())

    def start(self) -> None:
        """Start the process on what is on its disk."""
        self.ready = False
        self.failed = None
        self.node.start()

    def crash(self, power: bool = True, silent: bool = False) -> None:
        """Kill the process, or cut its power: then what was not synced is at the disk's mercy."""
        self.power_fails = power
        self.node.crash(silent)
        self.power_fails = False

    def _on_crash(self) -> None:
        self.ready = False
        self.disk.crash(self.power_fails)
        self._listen(False)

    def stop(self) -> None:
        """End the process in order."""
        self.node.post(Stop())

    def _machine(self) -> StorageNode:
        config = StorageConfig(
            KEY,
            self.cluster.partitions,
            segment_size_threshold=self.cluster.segment_size,
            wall_clock_offset_ms=1_700_000_000_000,
            **self.cluster.storage_options,
        )
        return self._node_of(config)

    def _node_of(self, config: StorageConfig) -> StorageNode:
        return StorageNode(config)

    def _on_ready(self, effect: Any) -> None:
        self.ready = True
        self._listen(True)

    def _on_failed(self, effect: StorageFailed) -> None:
        self.failed = effect
        self.cluster.world.trace(f"{self.node.name} cannot start: {effect.reason}")

    def _listen(self, on: bool) -> None:
        """Ports are open once the directory is."""
        ports = {Port.STORAGE: self.data_endpoint, Port.ADMIN: self.admin_endpoint}
        listeners = self.cluster.world.network.listeners
        self.node.listening = ports if on else {}
        for endpoint in ports.values():
            if on:
                listeners[endpoint] = self.node
            else:
                listeners.pop(endpoint, None)


class SimCluster:
    """ZooKeeper, storage nodes and servers; every partition on every storage node."""

    def __init__(
        self,
        seed: int,
        *,
        partitions: int = 1,
        storage_nodes: int = 3,
        servers: int = 1,
        versions: frozenset[int] = frozenset(VERSIONS),
        segment_size: int = 1_000_000_000,
        server_options: dict[str, Any] | None = None,
        storage_options: dict[str, Any] | None = None,
        preferred: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.world = World(seed)
        self.partitions = partitions
        self.segment_size = segment_size
        self._versions = versions
        self._server_options = server_options or {}
        self.storage_options = storage_options or {}
        self._preferred = preferred
        self._peers = 0
        self.maps: StoreMaps = EMPTY_STORE  # as they stand in ZooKeeper
        self.journal: Mode = self._server_options.get("journal", Mode.OFF)
        self.journals: list[JournalDisk] = []  # of servers that keep one
        self.storages = [self._storage(n) for n in range(storage_nodes)]
        self.servers = [self._server(n) for n in range(servers)]

    def _storage(self, number: int) -> SimStorage:
        return SimStorage(self, number)

    def _server(self, number: int) -> SimNode:
        endpoint = Endpoint(f"server{number}", 6000)
        options: dict[str, Any] = {"versions": self._versions, **self._server_options}
        if number < len(self._preferred):
            options["preferred_partitions"] = self._preferred[number]

        def machine() -> ServerNode:
            return self._server_of(number, ROOT, endpoint, options)

        node = SimNode(self.world, f"server{number}", machine)
        node.listening = {Port.CLIENT: endpoint}
        if self.journal is not Mode.OFF:
            self.journals.append(JournalDisk(self.world, node, self.journal))
        return node

    def _server_of(self, number: int, root: str, endpoint: Endpoint, options: dict[str, Any]) -> ServerNode:
        """A server process begins."""
        return ServerNode(ServerConfig(root, endpoint, **options), random.Random(f"{self.world.seed}/server{number}"))

    # ---- setting up --------------------------------------------------------------------------

    @property
    def replicas(self) -> list[SimStorage]:
        """Storage nodes that hold some partition, as the assignment says."""
        return [storage for storage in self.storages if storage.holds]

    def replicas_of(self, partition: int) -> list[SimStorage]:
        """Storage nodes that hold a partition, as the assignment says."""
        return [storage for storage in self.storages if partition in storage.holds]

    def start(self, replicas: int | None = None, spares: int = 0) -> None:
        """Create the cluster, start everything, assign every partition to all storage nodes, or to the first few.

        The last `spares` storage nodes run, and the cluster does not know them.
        """
        known = self.storages[: len(self.storages) - spares]
        self._create(known)
        self.set_replicas(known[:replicas])
        for storage in self.storages:
            storage.start()
        assert self.world.run_while(lambda: not all(s.ready for s in self.storages), 60_000)
        for storage in known:
            self.assign(storage, range(self.partitions))
        for server in self.servers:
            server.start()

    def _create(self, known: Sequence[SimStorage]) -> None:
        paths = cluster_paths(ROOT)
        nodes = [(str(storage.data_endpoint), number) for number, storage in enumerate(known)]
        ports = [(str(storage.data_endpoint), storage.admin_endpoint.port) for storage in known]
        self.maps = store = full_store(self.partitions, nodes, ports)
        params = znodes.encode_cluster_params(znodes.ClusterParams("simulated", self.partitions))
        created: list[tuple[str, bytes | None]] = [
            (paths.root, params),
            (paths.servers, znodes.encode_partition_assignment(znodes.EMPTY_ASSIGNMENT)),
            (paths.ids, None),
            (paths.client_ids, znodes.encode_id_counter(0)),
            (paths.server_ids, znodes.encode_id_counter(0)),
            (paths.store, znodes.encode_store_params(znodes.StoreParams(KEY, self.partitions))),
            (paths.partitions, None),
            (paths.groups, znodes.encode_group_descriptor(store.groups)),
            (paths.assignment, znodes.encode_replica_assignments(store.replicas)),
            (paths.connections, znodes.encode_connection_metadata(store.connections)),
        ]
        self.world.zookeeper.write([ZkCreate(0, path, data) for path, data in created])

    def set_replicas(self, storages: Sequence[SimStorage]) -> None:
        """Change the assignment: every partition on exactly these nodes."""
        everything = tuple(range(self.partitions))
        replicas = znodes.ReplicaAssignments(tuple((str(s.data_endpoint), everything) for s in storages))
        self.change_store(StoreChange(attrs.evolve(self.maps, replicas=replicas), ("assignment",)))

    def change_store(self, change: StoreChange) -> None:
        """Write the maps of the storage nodes, as an operator's tool does."""
        paths, maps = cluster_paths(ROOT), change.after
        self.maps = maps
        writes = {
            "group": (paths.groups, znodes.encode_group_descriptor(maps.groups)),
            "assignment": (paths.assignment, znodes.encode_replica_assignments(maps.replicas)),
            "connection": (paths.connections, znodes.encode_connection_metadata(maps.connections)),
        }
        self.world.zookeeper.write([ZkSet(0, *writes[name], -1) for name in change.written])

    def assign(self, storage: SimStorage, partitions: Sequence[int]) -> None:
        """Tell a storage node that it holds partitions, through its admin port."""
        peer = self.raw_peer(storage.admin_endpoint)
        assert self.world.run_while(lambda: not peer.connected, 10_000)
        connection: Connection[admin.AdminMessage] = Connection(ADMIN_PROTOCOL, "operator", {0})
        peer.send(connection.hello())
        answers: list[admin.AdminMessage] = []

        def answered() -> bool:
            connection.receive(peer.take_bytes(), answers)
            return bool(answers)

        assert self.world.run_while(lambda: not answered() and connection.version is None, 10_000)
        requests: list[admin.AdminMessage] = [
            admin.AdminOpenRequest(-1, UUID(bytes=KEY), self.partitions),
            admin.PartitionAssignmentRequest(1, tuple(partitions), True, False),
        ]
        data = bytearray()
        for request in requests:
            connection.encode(request, data)
        peer.send(bytes(data))
        assert self.world.run_while(lambda: not answered() or len(answers) < len(requests), 60_000)
        assert all(isinstance(answer, admin.AdminSuccessResponse) for answer in answers), answers
        peer.close()

    # ---- looking -----------------------------------------------------------------------------

    def until_open(self, limit: int = 60_000) -> None:
        """Wait until every partition is served by some server."""

        def served() -> bool:
            open_ids: set[int] = set()
            for server in self.servers:
                if server.alive:
                    snapshot = server.machine.snapshot(server.clock)
                    open_ids.update(p.partition_id for p in snapshot.partitions if p.healthy)
            return len(open_ids) == self.partitions

        assert self.world.run_while(lambda: not served(), limit, every=10), "not every partition was opened in time"

    def raw_peer(self, endpoint: Endpoint | None = None, certificate: str | None = None) -> RawPeer:
        """A connection whose bytes are made by hand; to the first server by default.

        Args:
            endpoint: where to connect.
            certificate: the name in it; None = the name of the peer, empty = it shows none.
        """
        self._peers += 1
        return RawPeer(self.world, f"peer{self._peers}", endpoint or Endpoint("server0", 6000), certificate)


class RawPeer:
    """The far end of one connection."""

    def __init__(self, world: World, name: str, endpoint: Endpoint, certificate: str | None = None) -> None:
        self.connected = False
        self.closed = False
        self.seen_in_feed: set[tuple[int, int]] = set()  # (partition id, transaction id)
        self._received = bytearray()
        self._node = SimNode(world, name, lambda: _Hands(self))
        self._node.uses_zookeeper = False
        self._node.certificate = name if certificate is None else certificate
        self._endpoint = endpoint
        self._effects: list[Any] = [Dial(-1, endpoint, Port.CLIENT)]
        self._node.start()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._do(Send(-1, data))

    def close(self) -> None:
        """Close the connection."""
        self._do(CloseConn(-1, "the probe is done"))

    def _do(self, effect: Any) -> None:
        self._effects.append(effect)
        self._node.post(None)

    def frames(self) -> list[bytes]:
        """Whole frames received and not taken."""
        frames, at = [], 0
        while len(self._received) - at >= HEADER_SIZE:
            end = at + HEADER_SIZE + HEADER.unpack_from(self._received, at)[2]
            if end > len(self._received):
                break
            frames.append(bytes(self._received[at:end]))
            at = end
        return frames

    def take_frame(self) -> bytes:
        """The first whole frame."""
        frame = self.frames()[0]
        del self._received[: len(frame)]
        return frame

    def take_bytes(self) -> bytes:
        """Everything received."""
        data = bytes(self._received)
        self._received.clear()
        return data

    def step(self, events: Sequence[Any], out: list[Any]) -> None:
        """What the machine of this end does."""
        for event in events:
            match event:
                case Dialed():
                    self.connected = True
                case Received(data=data):
                    self._received += data
                case Closed():
                    self.closed = True
        out += self._effects
        self._effects = []


class _Hands:
    def __init__(self, peer: RawPeer) -> None:
        self._peer = peer

    def step(self, now: int, events: Sequence[Any], out: list[Any]) -> None:
        self._peer.step(events, out)

    def deadline(self) -> int | None:
        return None
