"""What servers ask for: the right to ask, figures, and everything else of one partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from waltz_core.storage import metrics
from waltz_core.storage.answers import fail
from waltz_core.storage.context import NodeContext
from waltz_core.storage.peers import Caller
from waltz_core.storage.refusals import SE, Refusal, not_assigned, wrong_cluster
from waltz_core.storage.replica import StorageReplica
from waltz_core.storage.transcode import Incoming
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import FailureCode


class StoragePort:
    """Messages of the storage port."""

    __slots__ = ("_awaited", "_context", "_replicas")

    def __init__(
        self,
        context: NodeContext,
        replicas: Sequence[StorageReplica],
        awaited: Callable[[], Mapping[tuple[int, str], int]],
    ) -> None:
        self._context = context
        self._replicas = replicas
        self._awaited = awaited

    def serve(self, caller: Caller, message: Incoming) -> str | None:
        """Do it, or begin to; returns why the connection must end, if it must."""
        if type(message) is wire.OpenRequest:
            return self._open(caller, message)
        context, partition_id = self._context, message.partition_id
        if not caller.opened:
            why = Refusal(f"{SE}the connection was not opened: send OpenRequest first", FailureCode.WRONG_CLUSTER)
            fail(context, caller.conn, message, why)
        elif type(message) is wire.StatisticsRequest:
            ids = message.session_id, message.seq_num, partition_id
            statistics = metrics.statistics_of(context, self._replicas, self._awaited(), partition_id, message.prefixes)
            context.reply(caller.conn, wire.StatisticsResponse(*ids, context.wall_ms, statistics))
        elif 0 <= partition_id < len(self._replicas):
            self._replicas[partition_id].submit(caller.conn, message)
        else:
            fail(context, caller.conn, message, not_assigned(partition_id))
        return None

    def _open(self, caller: Caller, message: wire.OpenRequest) -> str | None:
        problem = caller.access.storage_problem()
        if problem is not None:
            self._context.reply(caller.conn, wire.FailureResponse(-1, -1, -1, f"{SE}{problem}"))
            return problem
        refusal = wrong_cluster(self._context.config, message.key, message.num_partitions)
        if refusal is not None:
            caller.wrong_key = True
            self._context.reply(caller.conn, wire.FailureResponse(-1, -1, -1, str(refusal), code=refusal.code))
            return None
        caller.opened = True
        self._context.reply(caller.conn, wire.SuccessResponse(-1, -1, -1))
        return None
