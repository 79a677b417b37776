"""A storage node as lists: what it must answer, without files. Takes the same rules as the real one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import attrs

from waltz_core.base.log import Record, RecordHeader, SessionInfo
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire

CLOSED = "connection closed by the server, no message"
SE = "com.wepay.waltz.storage.exception.StorageException: "
CU = "com.wepay.waltz.storage.exception.ConcurrentUpdateException: "
ANY_TEXT = "*"


class RefusedError(Exception):
    """Becomes a failure answer."""


class Partition:
    """One partition; `log` survives unassignment unless it is deleted."""

    def __init__(self) -> None:
        self.assigned = False
        self.available = True
        self.log: list[Record] = []
        self.info = SessionInfo(-1, -1, -1)
        self.fence = -1


@attrs.frozen
class Rules:
    """Which of our rules a node of lists keeps; each of them can be tried alone."""

    open_required: bool = True
    fence_persisted: bool = True
    sessions_plausible: bool = True
    append_atomic: bool = True
    truncation_floor: bool = True
    unassigned_refused: bool = True


OURS = Rules()
NONE = Rules(*[False] * 6)
"""As 0.13.2."""


class StorageTwin:
    """Answers like a node; `segment_firsts` tells where truncating below -1 leaves 0.13.2."""

    def __init__(self, key: UUID, count: int, rules: Rules, first_segment_end: int | None = None) -> None:
        self.key = key
        self.count = count
        self.rules = rules
        self.partitions = [Partition() for _ in range(count)]
        self.opened: set[Any] = set()
        self.threshold = first_segment_end

    def ask(self, conn: Any, message: Any) -> Any:
        """The answer; failures have the text of 0.13.2 or ANY_TEXT."""
        is_admin = type(message).__module__.endswith("admin_messages")
        return self._admin(conn, message) if is_admin else self._storage(conn, message)

    # ---- storage port ----------------------------------------------------------------------------

    def _storage(self, conn: Any, m: Any) -> Any:
        if isinstance(m, wire.OpenRequest):
            refusal = self._open(conn, m.key, m.num_partitions)
            return wire.SuccessResponse(-1, -1, -1) if refusal is None else wire.FailureResponse(-1, -1, -1, refusal)
        ids = m.session_id, m.seq_num, m.partition_id
        try:
            if self.rules.open_required and conn not in self.opened:
                raise RefusedError(ANY_TEXT)
            if not 0 <= m.partition_id < self.count or not self.partitions[m.partition_id].assigned:
                raise RefusedError(f"java.lang.Exception: Partition:{m.partition_id} is not assigned.")
            return self._serve(self.partitions[m.partition_id], m, ids)
        except RefusedError as error:
            return wire.FailureResponse(*ids, str(error))

    def _open(self, conn: Any, key: UUID, count: int) -> str | None:
        if key != self.key:
            return f"{SE}Provided cluster key is inconsistent with key in control file."
        if count != self.count:
            return (
                f"{SE}Provided number of partitions is inconsistent with "
                "the total number of partitions in control file."
            )
        self.opened.add(conn)
        return None

    def _enter(self, p: Partition, m: Any) -> None:
        highest = max(p.fence, p.info.session_id)
        if not self.rules.fence_persisted:
            p.fence = max(p.fence, m.session_id)
        if getattr(m, "used_by_offline_recovery", False):
            if p.available:
                raise RefusedError(f"{SE}cannot run offline recovery while partition is online")
            if m.session_id != p.info.session_id:
                raise RefusedError(
                    f"{SE}partition last session id has changed to {p.info.session_id}, "
                    f"but request context contains {m.session_id}"
                )
            return
        if not p.available:
            raise RefusedError(f"{SE}read and write for partition={m.partition_id} have been disabled on storage node")
        if self.rules.sessions_plausible and m.session_id > highest + 2**32:
            raise RefusedError(f"{SE}session id {m.session_id} is more than {2**32} above the highest known, {highest}")
        if m.session_id < p.fence:
            raise RefusedError(f"{CU}session id has changed to {p.fence}, but request context contains {m.session_id}")
        p.fence = m.session_id

    def _serve(self, p: Partition, m: Any, ids: tuple[int, int, int]) -> Any:
        self._enter(p, m)
        match m:
            case wire.LastSessionInfoRequest():
                return wire.LastSessionInfoResponse(*ids, p.info)
            case wire.MaxTransactionIdRequest():
                return wire.MaxTransactionIdResponse(*ids, len(p.log) - 1)
            case wire.AppendRequest():
                self._append(p, m.records)
                return wire.SuccessResponse(*ids)
            case wire.SetLowWaterMarkRequest():
                self._mark(p, m)
                return wire.SuccessResponse(*ids)
            case wire.TruncateRequest():
                return wire.MaxTransactionIdResponse(*ids, self._truncate(p, m))
            case wire.RecordRequest():
                return wire.RecordResponse(*ids, next(iter(_some(p.log, m.transaction_id, 1)), None))
            case wire.RecordHeaderRequest():
                found = _headers(_some(p.log, m.transaction_id, 1))
                return wire.RecordHeaderResponse(*ids, found[0] if found else None)
            case wire.RecordListRequest():
                return wire.RecordListResponse(*ids, tuple(_some(p.log, m.transaction_id, m.max_num_records)))
            case wire.RecordHeaderListRequest():
                return wire.RecordHeaderListResponse(
                    *ids, tuple(_headers(_some(p.log, m.transaction_id, m.max_num_records)))
                )
        codes = {
            "LastSessionInfoResponse": 3,
            "SuccessResponse": 7,
            "FailureResponse": 8,
            "RecordHeaderResponse": 10,
            "RecordResponse": 12,
            "MaxTransactionIdResponse": 14,
            "RecordHeaderListResponse": 16,
            "RecordListResponse": 18,
        }
        raise RefusedError(f"java.lang.IllegalStateException: unknown message type: {codes[type(m).__name__]}")

    def _append(self, p: Partition, records: Iterable[Record]) -> None:
        log = list(p.log)
        for one in records:
            if one.transaction_id != len(log):
                if not self.rules.append_atomic:
                    p.log = log
                raise RefusedError(f"{SE}transaction out of order")
            log.append(one)
        p.log = log

    def _mark(self, p: Partition, m: Any) -> None:
        highest = len(p.log) - 1
        if highest > m.low_water_mark:
            raise RefusedError(f"{SE}low-water mark is lower than the max transaction id")
        if m.session_id < p.info.session_id:
            raise RefusedError(
                f"{CU}session id has changed to {p.info.session_id}, "
                f"but low watermark request contains session id {m.session_id}"
            )
        for name, wanted, present in (
            ("low watermark", m.low_water_mark, p.info.low_water_mark),
            ("local low watermark", highest, p.info.local_low_water_mark),
        ):
            if wanted < present:
                raise RefusedError(
                    f"{SE}unable to set {name} to value {wanted} because it's less than current {name} {present}"
                )
        p.info = SessionInfo(m.session_id, m.low_water_mark, highest)

    def _truncate(self, p: Partition, m: Any) -> int:
        highest = len(p.log) - 1
        if m.transaction_id >= highest:
            return highest
        beyond = highest > p.info.low_water_mark
        floor = p.info.low_water_mark if beyond else p.info.local_low_water_mark
        if self.rules.truncation_floor and m.transaction_id < floor:
            raise RefusedError(ANY_TEXT)
        if m.transaction_id < -1:
            p.log = p.log[: self._first_segment(p.log)]
            raise RefusedError(f"{SE}transaction id out of range: file=<dir>/{m.partition_id}/{0:019d}.seg")
        p.log = p.log[: m.transaction_id + 1]
        return int(m.transaction_id)

    def _first_segment(self, log: list[Record]) -> int:
        """Records in the first segment: what truncating below -1 leaves."""
        if self.rules.truncation_floor or self.threshold is None:
            return len(log)
        size = 128
        for at, one in enumerate(log):
            size += 40 + len(one.data)
            if size > self.threshold:
                return at + 1
        return len(log)

    # ---- admin port ------------------------------------------------------------------------------

    def _admin(self, conn: Any, m: Any) -> Any:
        if isinstance(m, admin.AdminOpenRequest):
            refusal = self._open(conn, m.key, m.num_partitions)
            return admin.AdminSuccessResponse(-1) if refusal is None else admin.AdminFailureResponse(-1, refusal)
        try:
            if self.rules.open_required and conn not in self.opened:
                raise RefusedError(ANY_TEXT)
            return self._administer(m)
        except RefusedError as error:
            return admin.AdminFailureResponse(m.seq_num, str(error))

    def _administer(self, m: Any) -> Any:
        match m:
            case admin.PartitionAvailableRequest() | admin.PartitionAssignmentRequest():
                return self._change(m)
            case admin.RecordListRequest():
                records = _some(self._assigned(m.partition_id).log, m.transaction_id, m.max_num_records)
                return admin.RecordListResponse(m.seq_num, m.partition_id, tuple(records))
            case admin.LastSessionInfoRequest():
                return admin.LastSessionInfoResponse(m.seq_num, m.partition_id, self._assigned(m.partition_id).info)
            case admin.AssignedPartitionStatusRequest():
                status = tuple((at, p.available) for at, p in enumerate(self.partitions) if p.assigned)
                return admin.AssignedPartitionStatusResponse(m.seq_num, status)
            case admin.MetricsRequest():
                return admin.MetricsResponse(m.seq_num, ANY_TEXT)
        return CLOSED

    def _assigned(self, partition_id: int) -> Partition:
        if 0 <= partition_id < self.count and self.partitions[partition_id].assigned:
            return self.partitions[partition_id]
        raise RefusedError(f"java.lang.Exception: Partition:{partition_id} is not assigned.")

    def _change(self, m: Any) -> Any:
        ids = m.partition_ids
        gives_up = isinstance(m, admin.PartitionAssignmentRequest) and not m.toggled
        strict = self.rules.unassigned_refused
        if ids is None:
            return self._impossible(strict, m)
        outside = [one for one in ids if not 0 <= one < self.count]
        if outside and (strict or isinstance(m, admin.PartitionAvailableRequest)):
            return self._impossible(strict, m)
        if strict and gives_up and not all(self.partitions[one].assigned for one in ids):
            return self._impossible(strict, m)
        for one in dict.fromkeys(ids) if strict else ids:
            if one in outside:
                return CLOSED
            p = self.partitions[one]
            if isinstance(m, admin.PartitionAvailableRequest):
                p.available = m.toggled
            elif not gives_up:
                if not p.assigned:
                    p.fence = max(p.info.session_id, p.fence if self.rules.fence_persisted else -1)
                p.assigned = True
            else:
                was = p.assigned
                p.assigned, p.available, p.info = False, True, SessionInfo(-1, -1, -1)
                if not was:
                    return CLOSED
                if m.delete_storage_files:
                    p.log, p.fence = [], -1
        return admin.AdminSuccessResponse(m.seq_num)

    def _impossible(self, strict: bool, m: Any) -> Any:
        return admin.AdminFailureResponse(m.seq_num, ANY_TEXT) if strict else CLOSED


def _some(log: list[Record], first: int, count: int) -> list[Record]:
    return log[first : first + count] if 0 <= first < len(log) and count > 0 else []


def _headers(records: list[Record]) -> list[RecordHeader]:
    return [RecordHeader(one.transaction_id, one.req_id, one.header) for one in records]
