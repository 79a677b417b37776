"""What a partition's log is made of."""

from __future__ import annotations

from waltz_core.base.ids import ReqId
from waltz_core.base.record import record

MARKER_HEADER = -0x574C545A
"""Header of transactions that writers of the pipeline make for themselves; applications do not see them."""


RECORD_OVERHEAD = 40
"""Bytes of a record besides its data, on disk; a little more than on the wire."""


class _ProbeMark(int):
    """So that the client can distinguish a probe, which a sink makes on purpose, from a mark that is wrong by one."""


PROBE_MARK = _ProbeMark(-2)
"""Client mark of an append that nobody wants committed: it is below every lock, so the refusal tells who took them."""


@record
class Record:
    """One transaction as it is replicated and stored."""

    transaction_id: int  # dense from 0
    req_id: ReqId  # of the append that made it
    header: int  # application's int32
    data: bytes
    checksum: int  # CRC-32 of `data`, as a signed int32


@record
class RecordHeader:
    """A record without its data."""

    transaction_id: int
    req_id: ReqId
    header: int


@record
class SessionInfo:
    """What a replica persisted with its last `SetLowWaterMark`; -1, -1, -1 when fresh."""

    session_id: int
    low_water_mark: int
    local_low_water_mark: int
