"""Requests that the server itself answers: the cluster, its partitions and storage nodes, what it prefers, figures.

    assignment, health, status, figures   from what this process knows: answered in this step
    cluster information, client ids       by `ClusterPort`, at once or when ZooKeeper has answered
    preferred partitions                  by `ClusterPort`, when ZooKeeper keeps them; audited
    connectivity of storage nodes         by `StoragePort`, when all have answered or had their time
    ranges, log start                     by the partition, which must be here and open

Who asks has been found to be allowed to (`requests.py`). Nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from waltz_core.base.edge import Level, Report
from waltz_core.base.ids import ReqId, req_partition
from waltz_core.server.client_port import ClientConn, ClientPort
from waltz_core.server.cluster_port import ClusterPort
from waltz_core.server.context import NodeContext
from waltz_core.server.partition import NOT_OPEN_MARK, PartitionServer
from waltz_core.server.partitions import Partitions
from waltz_core.server.refusals import NOT_SERVED
from waltz_core.server.snapshot import ServerSnapshot, statistics_of, status_of
from waltz_core.server.storage_port import StoragePort
from waltz_core.wire import client_messages as messages

_WAITING_MAX = 100  # checks of storage nodes, or changes of preferences, that one connection may wait for

SERVER_MESSAGES = frozenset(
    {
        messages.CheckStorageConnectivityRequest,
        messages.ServerPartitionsAssignmentRequest,
        messages.ServerPartitionsHealthStatRequest,
        messages.AddPreferredPartitionRequest,
        messages.RemovePreferredPartitionRequest,
        messages.ClusterInfoRequest,
        messages.RecordRangeRequest,
        messages.LogStartRequest,
        messages.SetLogStartRequest,
        messages.StatisticsRequest,
        messages.PartitionStatusRequest,
        messages.StorageNodesRequest,
    }
)
"""Those that do not go through a partition's queue."""

_ReaderRequest = messages.LogStartRequest | messages.SetLogStartRequest | messages.RecordRangeRequest


class ServerRequests:
    """Answers at once where it can; what takes time is answered by the port that was asked."""

    def __init__(
        self,
        context: NodeContext,
        clients: ClientPort,
        partitions: Partitions,
        storage: StoragePort,
        cluster: ClusterPort,
        snapshot: Callable[[int], ServerSnapshot],
    ) -> None:
        self._context = context
        self._out = context.out
        self._clients = clients
        self._partitions = partitions
        self._storage = storage
        self._cluster = cluster
        self._snapshot = snapshot

    def handle(self, now: int, conn: ClientConn, message: messages.ClientMessage) -> None:
        """One request; who asks was found to be allowed to."""
        match message:
            case messages.CheckStorageConnectivityRequest(req_id):
                self._on_check(now, conn, req_id)
            case messages.ServerPartitionsAssignmentRequest(req_id):
                assigned = tuple(sorted(self._partitions.served))
                self._reply(conn, messages.ServerPartitionsAssignmentResponse(req_id, assigned))
            case messages.ServerPartitionsHealthStatRequest(req_id):
                health = tuple((one.partition_id, not one.trouble(now)) for one in self._partitions.ordered())
                self._reply(conn, messages.ServerPartitionsHealthStatResponse(req_id, health))
            case messages.AddPreferredPartitionRequest() | messages.RemovePreferredPartitionRequest():
                self._on_preference(now, conn, message)
            case messages.ClusterInfoRequest():
                self._clients.announced(conn, message.capabilities)
                self._cluster.info(conn.conn, conn.access, message)
            case messages.LogStartRequest() | messages.SetLogStartRequest() | messages.RecordRangeRequest():
                self._on_reader(conn, message, self._partitions.get(req_partition(message.req_id)))
            case messages.StatisticsRequest(req_id, partition_id, prefixes):
                figures = statistics_of(self._snapshot(now), partition_id, prefixes)
                wall = now + self._context.journals.wall_offset
                self._reply(conn, messages.StatisticsResponse(req_id, wall, figures))
            case messages.PartitionStatusRequest(req_id):
                states = tuple(status_of(now, one) for one in self._partitions.ordered())
                self._reply(conn, messages.PartitionStatusResponse(req_id, states))
            case messages.StorageNodesRequest(req_id):
                nodes = tuple(
                    messages.StorageNodeStatus(pool.replica, pool.usable, pool.trouble or None)
                    for pool in self._storage.pools()
                )
                self._reply(conn, messages.StorageNodesResponse(req_id, nodes))
            case _:
                text = f"{type(message).__name__} is not something this server does"
                self._reply(conn, messages.ErrorResponse(message.req_id, messages.ErrorCode.NOT_IMPLEMENTED, text))
        self._clients.deliver()

    def _reply(self, conn: ClientConn, message: messages.ClientMessage) -> None:
        self._clients.reply(conn.conn, message)

    def _on_check(self, now: int, conn: ClientConn, req_id: ReqId) -> None:
        if self._storage.checks_of(conn.conn) >= _WAITING_MAX:
            self._clients.close(conn.conn, f"more than {_WAITING_MAX} checks of storage nodes at once")
        else:
            self._storage.check(now, conn.conn, req_id)

    # ---- bulk readers ------------------------------------------------------------------------

    def _on_reader(self, conn: ClientConn, message: _ReaderRequest, partition: PartitionServer | None) -> None:
        """Bulk readers ask one partition, which must be here and open."""
        if partition is None or partition.high_water_mark == NOT_OPEN_MARK:
            code, text = messages.ErrorCode.NOT_READY, "the partition has not been opened yet"
            if partition is None:
                code, text = messages.ErrorCode.NOT_SERVED, NOT_SERVED
            if isinstance(message, messages.SetLogStartRequest):
                what = f"raise the log start of partition {req_partition(message.req_id)} to {message.log_start}"
                self._audit(conn, f"{what}: refused: {text}", changes=False)
            self._reply(conn, messages.ErrorResponse(message.req_id, code, text))
        elif isinstance(message, messages.LogStartRequest):
            ends = partition.log_start, partition.high_water_mark
            self._reply(conn, messages.LogStartResponse(message.req_id, *ends))
        elif isinstance(message, messages.SetLogStartRequest):
            what = f"raise the log start of partition {partition.partition_id} to {message.log_start}"
            changes = partition.log_start < message.log_start <= partition.high_water_mark + 1
            self._audit(conn, what if changes else f"{what}: nothing changes", changes=changes)
            partition.log_start_asked(conn.conn, message.req_id, message.log_start)
            self._partitions.touch(partition.partition_id)
        else:
            conn.partitions.add(partition.partition_id)
            partition.range_asked(conn, message)
            self._partitions.touch(partition.partition_id)

    # ---- preferred partitions ----------------------------------------------------------------

    def _on_preference(
        self,
        now: int,
        conn: ClientConn,
        request: messages.AddPreferredPartitionRequest | messages.RemovePreferredPartitionRequest,
    ) -> None:
        partitions, preferred = request.partitions, self._cluster.preferred
        adds = isinstance(request, messages.AddPreferredPartitionRequest)
        named = frozenset(partitions)  # a client may name many, and some again and again
        kept = preferred if adds else [partition_id for partition_id in preferred if partition_id not in named]
        wanted: dict[int, None] = {**dict.fromkeys(kept), **dict.fromkeys(partitions if adds else ())}
        done = self._prefer(now, conn, partitions, wanted)
        what = f"{'prefer' if adds else 'do not prefer'} partitions {_shown(partitions)}"
        changes = done and wanted.keys() != preferred.keys()
        self._audit(conn, f"{what}: {'done' if done else 'refused'}", changes=changes)
        answer: messages.AddPreferredPartitionResponse | messages.RemovePreferredPartitionResponse
        answer = messages.RemovePreferredPartitionResponse(request.req_id, done)
        if adds:
            answer = messages.AddPreferredPartitionResponse(request.req_id, done)
        if done and self._cluster.preferring(conn.conn) >= _WAITING_MAX:
            self._clients.close(conn.conn, f"more than {_WAITING_MAX} changes of preferred partitions at once")
        else:
            self._cluster.answer_preference(conn.conn, answer)

    def _prefer(self, now: int, conn: ClientConn, partitions: Sequence[int], wanted: dict[int, None]) -> bool:
        """Change the preferred partitions; False when the request makes no sense."""
        if not partitions or min(partitions) < 0 or max(partitions) >= self._context.cluster.num_partitions:
            return False
        return self._cluster.prefer(now, wanted, conn)

    def _audit(self, conn: ClientConn, text: str, *, changes: bool) -> None:
        """A line for each change that is asked for; those that change nothing are counted, or would fill the log."""
        about = ("", "") if changes else (conn.address, conn.owner)
        self._out.put(Report(Level.INFO, f"audit: {conn.access.who}: {text}", *about))


def _shown(partitions: Sequence[int]) -> str:
    """Partitions for people, not too many."""
    return ", ".join(map(str, partitions[:20])) + (" ..." if len(partitions) > 20 else "")
