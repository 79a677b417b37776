"""Sees everything that happens in a run and tells the invariants; knows the one true log of each partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.model.cluster import ROOT, SimCluster, SimStorage
from tests.model.durable import DurableLog, split
from tests.model.invariants import Invariant, make_all
from tests.model.invariants.quiet import Quiet
from tests.model.marks import Marks
from waltz_core.base.edge import ZkRequest, ZkSet
from waltz_core.server.node import ServerNode
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import PartitionMetadata, decode_partition_metadata
from waltz_testing.simulation.world import SimNode

if TYPE_CHECKING:
    from tests.model.app import App


class Token:
    """One append of a run: what was asked, and what became of it."""

    __slots__ = (
        "append_locks",
        "client",
        "client_mark",
        "data",
        "floor",
        "number",
        "outcome",
        "partition",
        "read_locks",
        "transaction_id",
        "write_locks",
    )

    def __init__(
        self,
        number: int,
        client: str,
        partition: int,
        client_mark: int | None,
        locks: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
        data: bytes,
    ) -> None:
        self.number = number
        self.client = client
        self.partition = partition
        self.client_mark = client_mark
        self.write_locks, self.read_locks, self.append_locks = locks
        self.data = data
        self.floor = -1  # highest id that any client knew as the outcome of an append when this was submitted
        self.outcome = ""  # "" = none yet, "committed", "failed", "unknown"
        self.transaction_id: int | None = None  # where the log holds it

    def __repr__(self) -> str:
        return f"append {self.number} of {self.client}"


class Observer:
    """The point of view of nobody in the cluster.

    Attributes:
        quorum: copies that make a commit, at least: no partition has fewer replicas than in the beginning.
        logs: partition → the committed records, by id.
        archived: partition → where the log was asked to begin: what stands before is kept elsewhere.
        lossy: storage nodes whose disk lost or damaged acknowledged records by our doing.
    """

    def __init__(self, cluster: SimCluster, quorum: int = 2) -> None:
        self.cluster = cluster
        self.quorum = quorum
        self.world = cluster.world
        self.logs: list[list[bytes]] = [[] for _ in range(cluster.partitions)]
        self.archived = [0] * cluster.partitions
        self.tokens: dict[bytes, Token] = {}
        self.lossy: dict[str, None] = {}
        self.counts: Counter[str] = Counter()
        self.metadata: dict[int, PartitionMetadata] = {}
        self.history: list[list[PartitionMetadata]] = [[] for _ in range(cluster.partitions)]
        self.clients: list[App] = []
        self.highest_outcome = [-1] * cluster.partitions  # acknowledged to some client
        self.highest_known = [-1] * cluster.partitions  # the same, or read as the committed mark by some client
        self._marks: dict[tuple[str, int, int], int] = {}
        self._metadata_paths = {
            cluster_paths(ROOT).partition(partition): partition for partition in range(cluster.partitions)
        }
        self._storages = {storage.node.name: storage for storage in cluster.storages}
        self.servers = {server.name for server in cluster.servers}
        self.marks = Marks(self)
        self.durable: dict[str, DurableLog] = {}
        for storage in cluster.storages:
            self._watch(storage)
        invariants = make_all(self)
        self.quiet = next(one for one in invariants if isinstance(one, Quiet))
        self._hooks: dict[str, list[Any]] = {
            name: [getattr(one, name) for one in invariants if getattr(type(one), name) is not getattr(Invariant, name)]
            for name in vars(Invariant)
            if name.startswith(("on_", "at_"))
        }
        self._on_server, self._on_storage = self._hooks["on_server"], self._hooks["on_storage"]
        self.world.after_step = self._after_step
        self.world.zookeeper.on_write = self._on_zk_write
        self._every_second()

    def _watch(self, storage: SimStorage) -> None:
        def changed(partition: int, ids: list[int]) -> None:
            lost = [one for one in ids if one >= self.archived[partition]]
            if lost:
                self.tell("on_gone", storage, partition, lost)

        self.durable[storage.node.name] = DurableLog(storage.disk, self.cluster.partitions, changed)

    def tell(self, hook: str, *facts: Any) -> None:
        """Ask every invariant that cares."""
        for one in self._hooks[hook]:
            one(*facts)

    def _every_second(self) -> None:
        self.tell("on_second")
        self.marks.second()
        self.world.after(1000, self._every_second)

    # ---- processes -------------------------------------------------------------------------------

    def _after_step(self, node: SimNode) -> None:
        name = node.name
        if name in self.servers:
            self._look_at_server(node, node.machine)
        elif name in self._storages:
            storage = self._storages[name]
            for one in self._on_storage:
                one(storage)

    def _look_at_server(self, node: SimNode, machine: ServerNode) -> None:
        self.marks.look_at_server(node, machine.partitions)
        for partition_id, partition in machine.partitions.items():
            mark = partition.high_water_mark
            key = (node.name, node.epoch, partition_id)
            for one in self._on_server:
                one(node, node.epoch, partition_id, mark)
            if mark != self._marks.get(key):
                self._marks[key] = mark
                self._on_mark(partition_id, mark, node, partition.session)

    def _on_mark(self, partition: int, mark: int, node: SimNode, session: Any) -> None:
        log = self.logs[partition]
        self.world.trace(f"{node.name} has committed {partition}/{mark}")
        self.marks.committed(partition, mark, node, session)
        for transaction_id in range(len(log), mark + 1):
            body = self.most_copied(partition, transaction_id)
            log.append(body)
            self.counts["commits"] += 1
            self.tell("on_commit", partition, transaction_id, body, node, session)
        self.tell("on_mark", partition, mark, node)

    def copies(self, partition: int, transaction_id: int, body: bytes) -> int:
        """How many disks hold this very record durably."""
        return sum(log.records[partition].get(transaction_id) == body for log in self.durable.values())

    def most_copied(self, partition: int, transaction_id: int) -> bytes:
        """The record of an id that most disks hold, empty if none does."""
        found = Counter(
            body for log in self.durable.values() if (body := log.records[partition].get(transaction_id)) is not None
        )
        return found.most_common(1)[0][0] if found else b""

    def fetch_archived(self) -> None:
        """Take what was given up on purpose for held: every replica is judged by what it must hold itself."""
        for storage in self.cluster.storages:
            for partition in storage.holds:
                held, log = self.durable[storage.node.name].records[partition], self.logs[partition]
                for one in range(self.archived[partition]):
                    held.setdefault(one, log[one])

    def needed_copies(self) -> int:
        """How many disks must hold each committed record: one fewer where we damaged a disk."""
        return self.quorum - len(self.lossy)

    # ---- ZooKeeper -------------------------------------------------------------------------------

    def _on_zk_write(self, request: ZkRequest) -> None:
        if not isinstance(request, ZkSet):
            return
        partition = self._metadata_paths.get(request.path)
        if partition is None:
            return
        after = decode_partition_metadata(request.data or b"")
        before = self.metadata.get(partition)
        self.metadata[partition] = after
        self.history[partition].append(after)
        if before is not None and before.session_id != after.session_id:
            self.counts["sessions"] += 1
        if before is not None and before.replica_states != after.replica_states:
            self.counts["recoveries"] += 1
        self.tell("on_metadata", partition, before, after)

    # ---- clients ---------------------------------------------------------------------------------

    def submitted(self, token: Token) -> None:
        """A client is about to submit."""
        token.floor = self.highest_outcome[token.partition]
        self.tokens[token.data] = token
        self.counts["submits"] += 1
        self.tell("on_submit", token)

    def delivered(self, client: App, partition: int, run: Sequence[Any]) -> None:
        """A client got transactions."""
        self.tell("on_deliver", client, partition, run)

    def committed(self, client: App, token: Token, transaction_id: int) -> None:
        """A client was told where its append stands."""
        self.tell("on_committed", client, token, transaction_id)
        token.outcome = "committed"
        self.world.trace(f"{token} committed as {transaction_id}")
        for highest in (self.highest_outcome, self.highest_known):
            highest[token.partition] = max(highest[token.partition], transaction_id)

    def read(self, client: App, partition: int, floor: int, mark: int) -> None:
        """A client read the committed mark; `floor` was known to be committed when it began."""
        self.counts["marks read"] += 1
        self.tell("on_read", client, partition, floor, mark)
        self.highest_known[partition] = max(self.highest_known[partition], mark)

    def failed(self, client: App, token: Token, failed: Any) -> None:
        """A client was told that its append failed."""
        self.tell("on_failed", client, token, failed)
        self.world.trace(f"{token} failed: {failed.reason.name}")
        token.outcome = "failed" if failed.reason.certain else "unknown"
        self.counts[f"outcome {failed.reason.name}"] += 1

    def token_of(self, body: bytes) -> Token | None:
        """The append that made a record."""
        return self.tokens.get(split(body)[3]) if body else None
