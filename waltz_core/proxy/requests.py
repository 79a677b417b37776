"""Requests to a proxy: who may speak for which client, and what it answers itself.

A proxy refuses every request that would change the cluster, and names the process to send it to.
"""

from __future__ import annotations

from collections.abc import Callable

from waltz_core.base.ids import req_partition
from waltz_core.proxy.partition import ProxyPartition
from waltz_core.proxy.partitions import ProxyPartitions
from waltz_core.proxy.snapshot import ProxySnapshot, statistics_of
from waltz_core.server.client_port import ClientConn, ClientPort
from waltz_core.server.cluster_port import ClusterPort
from waltz_core.server.context import NodeContext
from waltz_core.server.requests import AnswersItself, Requests
from waltz_core.wire import client_messages as messages


class ProxyRequests(Requests):
    """As of a server; a client whose id the upstream cluster may give to somebody else is refused."""

    def __init__(
        self,
        context: NodeContext,
        clients: ClientPort,
        partitions: ProxyPartitions,
        server: AnswersItself,
        known_id: Callable[[int], bool],
    ) -> None:
        super().__init__(context, clients, partitions, server)
        self._known_id = known_id

    def _claim(self, conn: ClientConn, message: messages.ClientMessage) -> bool:
        client_id = conn.client_id
        assert client_id is not None
        if not conn.carries_others and not self._known_id(client_id) and not conn.closing:
            problem = f"client id {client_id} was not given out by this proxy: take one where its clients do"
            self._refuse(conn, message, problem, f"{conn.who}: {problem}")
            return False
        return super()._claim(conn, message)


class ProxyAnswers:
    """What is not for a partition's feed."""

    def __init__(
        self,
        context: NodeContext,
        clients: ClientPort,
        partitions: ProxyPartitions,
        cluster: ClusterPort,
        snapshot: Callable[[int], ProxySnapshot],
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        self._clients = clients
        self._partitions = partitions
        self._cluster = cluster

    def handle(self, now: int, conn: ClientConn, message: messages.ClientMessage) -> None:
        """One request; who asks was found to be allowed to."""
        served = self._partitions.served
        answer: messages.ClientMessage
        match message:
            case messages.CheckStorageConnectivityRequest(req_id):
                answer = messages.CheckStorageConnectivityResponse(req_id, ())
            case messages.ServerPartitionsAssignmentRequest(req_id):
                answer = messages.ServerPartitionsAssignmentResponse(req_id, tuple(sorted(served)))
            case messages.ServerPartitionsHealthStatRequest(req_id):
                health = tuple((number, not served[number].trouble()) for number in sorted(served))
                answer = messages.ServerPartitionsHealthStatResponse(req_id, health)
            case messages.AddPreferredPartitionRequest(req_id):
                answer = messages.AddPreferredPartitionResponse(req_id, False)
            case messages.RemovePreferredPartitionRequest(req_id):
                answer = messages.RemovePreferredPartitionResponse(req_id, False)
            case messages.ClusterInfoRequest():
                self._clients.announced(conn, message.capabilities)
                self._cluster.info(conn.conn, conn.access, message)
                self._clients.deliver()
                return
            case messages.RecordRangeRequest() | messages.LogStartRequest():
                self._on_reader(conn, message, served.get(req_partition(message.req_id)))
                return
            case messages.StatisticsRequest(req_id, partition_id, prefixes):
                figures = statistics_of(self._snapshot(now), partition_id, prefixes)
                wall = now + self._context.journals.wall_offset
                answer = messages.StatisticsResponse(req_id, wall, figures)
            case messages.StorageNodesRequest(req_id):
                answer = messages.StorageNodesResponse(req_id, ())  # they are the cluster's own
            case messages.PartitionStatusRequest(req_id):
                answer = messages.PartitionStatusResponse(req_id, tuple(_status_of(one) for one in served.values()))
            case _:
                text = f"{type(message).__name__} is not for a proxy: ask a server of the cluster"
                answer = messages.ErrorResponse(message.req_id, messages.ErrorCode.NOT_IMPLEMENTED, text)
        self._clients.reply(conn.conn, answer)

    def _on_reader(
        self,
        conn: ClientConn,
        message: messages.RecordRangeRequest | messages.LogStartRequest,
        partition: ProxyPartition | None,
    ) -> None:
        code, text = messages.ErrorCode.NOT_READY, "the upstream server has not been heard yet"
        if partition is None:
            code, text = messages.ErrorCode.NOT_SERVED, "there is no such partition upstream, or it was not heard yet"
        if partition is None or partition.high_water_mark is None:
            self._clients.reply(conn.conn, messages.ErrorResponse(message.req_id, code, text))
        elif isinstance(message, messages.LogStartRequest):
            ends = partition.log_start, partition.high_water_mark
            self._clients.reply(conn.conn, messages.LogStartResponse(message.req_id, *ends))
        else:
            conn.partitions.add(partition.partition_id)
            partition.range_asked(conn, message)
            self._partitions.touch(partition.partition_id)


def _status_of(partition: ProxyPartition) -> messages.PartitionStatus:
    known = partition.high_water_mark
    state = messages.ServedState.READY if partition.connected else messages.ServedState.OPENING
    mark = -(2**63) if known is None else known
    reason = partition.trouble() or None
    return messages.PartitionStatus(partition.partition_id, partition.generation, state, 0, -1, mark, reason)
