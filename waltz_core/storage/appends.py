"""Appends of one replica: all that wait at the head of the lane are written and synced together.

What is answered is durable: data and index of the last segment are one batch whose sync comes last, so many
partitions share one (`effects.py`, group commit). A batch that failed in any part is undone before anything else
is done: nothing unsynced is ever trusted, not even if it is there after all.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.base.errors import StorageError
from waltz_core.base.tracing import Traced, traced
from waltz_core.storage.answers import fail, succeed
from waltz_core.storage.effects import FaultKind, Operation
from waltz_core.storage.lane import APPENDS, Lane, Request
from waltz_core.storage.log_files import AppendPlan, Segment, plan_append
from waltz_core.storage.permission import refusal_of
from waltz_core.storage.procedure import DiskError, Procedure, write
from waltz_core.storage.refusals import SE, Refusal, io_refusal, out_of_order
from waltz_core.storage.replica_files import ReplicaFiles, State
from waltz_core.storage.transcode import AppendRun, StoredAppend, run_of
from waltz_core.wire.shared import FailureCode

MARK_EVERY_MS = 1000  # how far the durable mark may lag behind


class Appends:
    """Of one replica."""

    __slots__ = ("_context", "_files", "_lane", "batch_count", "count")

    def __init__(self, files: ReplicaFiles, lane: Lane) -> None:
        self._files = files
        self._lane = lane
        self._context = files.context
        self.count = 0  # admitted ones, including those refused later
        self.batch_count = 0  # durable

    def next(self) -> Procedure[None] | None:
        """Take appends from the head of the lane; returns the work that they need, if any."""
        accepted: list[tuple[int, AppendRun]] = []
        parts: list[bytes] = []
        files, lane, jobs = self._files, self._lane, self._lane.jobs
        next_id, fence = files.max_id + 1, files.fence
        size, size_max = 0, self._context.config.write_bytes_max
        while jobs and size < size_max:
            head = jobs[0]
            if type(head) is not Request or not isinstance(head.message, APPENDS):
                break
            if size and size + head.size > size_max:
                break  # a larger one is written alone
            conn, message = head.conn, head.message
            refusal = refusal_of(files, message, message.used_by_offline_recovery)
            if refusal is not None:
                lane.take()
                fail(self._context, conn, message, refusal)
                continue
            if message.session_id > fence and not message.used_by_offline_recovery:
                if not accepted:
                    return self._fence_for(conn, message)
                break
            lane.take()
            run = self._continuing(conn, message, next_id)
            if run is not None:
                accepted.append((conn, run))
                parts += run.parts
                next_id += len(run.parts)
                size += run.size
        return self._write(parts, accepted)

    def _continuing(self, conn: int, message: StoredAppend, next_id: int) -> AppendRun | None:
        """The records of an append that continues the log; None if it was refused."""
        self.count += 1
        why: StorageError
        if self._context.no_room:
            why = Refusal(f"{SE}{self._context.no_room}", FailureCode.OVERLOADED)
        else:
            run = message if type(message) is AppendRun else run_of(message)
            if run is not None and (not run.parts or run.first == next_id):
                return run
            why = out_of_order(next_id - 1)
        fail(self._context, conn, message, why)
        return None

    def _write(self, parts: Sequence[bytes], accepted: list[tuple[int, AppendRun]]) -> Procedure[None] | None:
        if not parts:
            for conn, message in accepted:
                succeed(self._context, conn, message)
            return None
        plan = plan_append(self._files.where, self._files.opened_log, parts, self._context.wall_ms, self._on_roll)
        self._lane.rolling = bool(plan.created)
        return self._append(plan, accepted)

    def _fence_for(self, conn: int, message: StoredAppend) -> Procedure[None]:
        """Raise the fence for an append at the head of the lane, which is examined again afterwards."""
        try:
            yield from self._files.raise_fence(message.session_id)
        except DiskError as fault:
            self._lane.take()
            fail(self._context, conn, message, io_refusal(fault))

    def _append(self, plan: AppendPlan, accepted: list[tuple[int, AppendRun]]) -> Procedure[None]:
        files, context = self._files, self._context
        begin = context.now
        try:
            yield tuple(plan.operations)
        except DiskError as fault:
            yield from self._retreat(plan, fault)
            for conn, message in accepted:
                fail(context, conn, message, io_refusal(fault))
            return
        plan.commit()
        self.batch_count += 1
        for conn, message in accepted:
            succeed(context, conn, message)
        if context.config.trace_every:
            self._trace(begin, accepted)
        if plan.created:
            files.plan_mark(context.now)  # the old segment is durable; the mark may lag behind
        elif not files.mark_planned:
            files.plan_mark(context.now + MARK_EVERY_MS)

    def _trace(self, begin: int, accepted: Sequence[tuple[int, AppendRun]]) -> None:
        """Tell of the traced transactions among those that are durable now."""
        config, now = self._context.config, self._context.now
        for _, run in accepted:
            transaction_id = traced(config.trace_every, run.first, len(run.parts))
            if transaction_id >= 0:
                where = config.key, run.partition_id, run.session_id, transaction_id, len(run.parts)
                self._context.effects.put(Traced(*where, (("sync", begin, now),)))

    def _on_roll(self, segment: Segment) -> tuple[Operation, ...]:
        """The durable mark must name the segment that is written to, or it does not count at the next opening."""
        return self._files.mark_operations(segment.first_id - 1, segment.first_id)

    def _retreat(self, plan: AppendPlan, fault: DiskError) -> Procedure[None]:
        """Undo a write that may have happened in part, so that nothing unsynced is ever trusted.

        On a full disk the partition keeps what it had; after any other failure it stops.
        """
        files = self._files
        try:
            yield from write(*plan.retreat(files.where.directory))
        except DiskError as second:
            files.stop(second)
            return
        if plan.created:
            yield from self._name_last_segment()
        if fault.kind is not FaultKind.FULL:
            files.stop(fault)

    def _name_last_segment(self) -> Procedure[None]:
        """The mark on disk names a segment that is gone again, so it would not count at the next opening."""
        files = self._files
        try:
            yield from files.write_side(*files.mark_operations(files.max_id))
        except DiskError:
            if files.state is State.OPEN:
                files.plan_mark(self._context.now + MARK_EVERY_MS)
