"""Requests of tools, and of nodes that repair: state, records, changes.

    opened with the cluster's key? ── no ──▶ refused
       └─ yes ──▶ does the role include it? ── no ──▶ refused, with a line in the audit
                     └─ yes ──▶ state, marks, figures                  answered in this step
                              ├─▶ records, digests, segments           by the replica's lane, answered when read
                              ├─▶ assignment, availability, log start  by `AdminChanges`, one after the other, audited
                              └─▶ repair                               by `Repairs`, answered when it has ended

The port owns nothing but this table: who may ask what, and who answers. What a change makes durable is decided where it
is carried out, and its answer follows that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from waltz_core.base.edge import Level
from waltz_core.storage import metrics
from waltz_core.storage.admin_changes import AdminChanges, refuse
from waltz_core.storage.context import NodeContext
from waltz_core.storage.lane import AdminReading
from waltz_core.storage.peers import Caller
from waltz_core.storage.refusals import SE, Refusal, not_assigned, wrong_cluster
from waltz_core.storage.repairs import Repairs
from waltz_core.storage.replica import State, StorageReplica
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.shared import FailureCode

CAPABILITIES = (
    admin.AdminCapability.LOG_START
    | admin.AdminCapability.SET_LOG_START
    | admin.AdminCapability.REPLICA_STATE
    | admin.AdminCapability.REPAIR
    | admin.AdminCapability.ACCEPT_LIMBO
    | admin.AdminCapability.SEGMENTS
    | admin.AdminCapability.RECORD_RANGE
    | admin.AdminCapability.STATISTICS
    | admin.AdminCapability.DIGEST
)


class AdminPort:
    """Messages of the admin port."""

    def __init__(
        self,
        context: NodeContext,
        replicas: Sequence[StorageReplica],
        changes: AdminChanges,
        repairs: Repairs,
        awaited: Callable[[], Mapping[tuple[int, str], int]],
    ) -> None:
        self._context = context
        self._replicas = replicas
        self._awaited = awaited
        self._handlers: dict[type, Callable[[Caller, Any], None]] = {
            admin.PartitionAvailableRequest: changes.set_available,
            admin.PartitionAssignmentRequest: changes.set_assigned,
            admin.AcceptLimboRequest: changes.accept_limbo,
            admin.SetLogStartRequest: changes.set_log_start,
            admin.RepairRequest: repairs.begin,
            admin.RecordListRequest: self._on_reading,
            admin.RecordRangeRequest: self._on_reading,
            admin.DigestRequest: self._on_reading,
            admin.SegmentListRequest: self._on_reading,
            admin.SegmentReadRequest: self._on_reading,
            admin.LastSessionInfoRequest: self._on_session_info,
            admin.MetricsRequest: self._on_metrics,
            admin.AssignedPartitionStatusRequest: self._on_status,
            admin.NodeInfoRequest: self._on_node_info,
            admin.ReplicaStateRequest: self._on_replica_state,
            admin.LogStartRequest: self._on_log_start,
            admin.StatisticsRequest: self._on_statistics,
        }

    def serve(self, caller: Caller, message: admin.AdminMessage) -> str | None:
        """Do it, or begin to; returns why the connection must end, if it must."""
        if isinstance(message, admin.AdminOpenRequest):
            return self._open(caller, message)
        if not caller.opened:
            text = f"{SE}the connection was not opened: send AdminOpenRequest first"
            refuse(self._context, caller, message.seq_num, Refusal(text, FailureCode.WRONG_CLUSTER))
            return None
        handler = self._handlers.get(type(message))
        problem = caller.access.admin_problem(message)
        if problem is not None:
            self._context.report(Level.WARNING, f"audit: refused: {problem}", caller.name, caller.owner)
            refuse(self._context, caller, message.seq_num, Refusal(f"{SE}{problem}"))
        elif handler is not None:
            handler(caller, message)
        else:
            return f"{type(message).__name__} is not a request"
        return None

    def _open(self, caller: Caller, message: admin.AdminOpenRequest) -> str | None:
        problem = caller.access.admin_port_problem()
        if problem is not None:
            refuse(self._context, caller, -1, Refusal(f"{SE}{problem}"))
            return problem
        refusal = wrong_cluster(self._context.config, message.key, message.num_partitions)
        if refusal is not None:
            caller.wrong_key = True
            refuse(self._context, caller, -1, refusal)
            return None
        caller.opened = True
        self._context.reply(caller.conn, admin.AdminSuccessResponse(-1))
        return None

    # ---- of one partition ------------------------------------------------------------------------

    def _on_reading(self, caller: Caller, message: AdminReading) -> None:
        replica = self._replica(caller, message.seq_num, message.partition_id)
        if replica is not None:
            replica.read_for_admin(caller.conn, message)

    def _on_session_info(self, caller: Caller, message: admin.LastSessionInfoRequest) -> None:
        replica = self._replica(caller, message.seq_num, message.partition_id)
        if replica is not None:
            info = replica.session_info()
            self._context.reply(caller.conn, admin.LastSessionInfoResponse(message.seq_num, message.partition_id, info))

    def _on_replica_state(self, caller: Caller, message: admin.ReplicaStateRequest) -> None:
        replica = self._replica(caller, message.seq_num, message.partition_id)
        if replica is not None:
            self._context.reply(caller.conn, replica.files.admin_state(message.seq_num))

    def _on_log_start(self, caller: Caller, message: admin.LogStartRequest) -> None:
        replica = self._replica(caller, message.seq_num, message.partition_id)
        if replica is not None:
            ends = replica.log_start, replica.max_id
            self._context.reply(caller.conn, admin.LogStartResponse(message.seq_num, message.partition_id, *ends))

    def _replica(self, caller: Caller, seq_num: int, partition_id: int) -> StorageReplica | None:
        if 0 <= partition_id < len(self._replicas):
            replica = self._replicas[partition_id]
            if replica.state is not State.UNASSIGNED:
                return replica
        refuse(self._context, caller, seq_num, not_assigned(partition_id))
        return None

    # ---- of the node -----------------------------------------------------------------------------

    def _on_metrics(self, caller: Caller, message: admin.MetricsRequest) -> None:
        text = metrics.as_json(self._replicas, self._context.config.version)
        self._context.reply(caller.conn, admin.MetricsResponse(message.seq_num, text))

    def _on_status(self, caller: Caller, message: admin.AssignedPartitionStatusRequest) -> None:
        status = tuple(
            (replica.partition_id, replica.entry.current.available and replica.state is State.OPEN)
            for replica in self._replicas
            if replica.entry.current.assigned
        )
        self._context.reply(caller.conn, admin.AssignedPartitionStatusResponse(message.seq_num, status))

    def _on_node_info(self, caller: Caller, message: admin.NodeInfoRequest) -> None:
        config = self._context.config
        key, software = UUID(bytes=config.key), f"waltz-log {config.version}"
        info = admin.NodeInfoResponse(message.seq_num, key, config.partition_count, CAPABILITIES, software)
        self._context.reply(caller.conn, info)

    def _on_statistics(self, caller: Caller, message: admin.StatisticsRequest) -> None:
        context = self._context
        statistics = metrics.statistics_of(
            context, self._replicas, self._awaited(), message.partition_id, message.prefixes
        )
        context.reply(caller.conn, admin.StatisticsResponse(message.seq_num, context.wall_ms, statistics))
