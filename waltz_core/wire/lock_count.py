"""Counts the locks of an append before it is decoded: a frame of 64 MiB can hold millions of them."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId
from waltz_core.base.record import record
from waltz_core.wire import named_append

_PLAIN = 2  # type of an AppendRequest
_LOCKS_AT = 25  # behind type, request id and client mark
_ARRAYS = {0: 1, 1: 2}  # codec → lock arrays of an AppendRequest, where it is not three
_INT = Struct(">i")


@record
class OversizedAppend:
    """An append with more locks than the server takes; it was not decoded."""

    req_id: ReqId
    named: bool
    count: int  # of its locks, as far as they were counted


def oversized(locks_max: int, version: int) -> Callable[[bytes, int, int], OversizedAppend | None]:
    """A look at the bodies of one codec: an append with more than `locks_max` locks, else None."""
    arrays = _ARRAYS.get(version, 3)

    def look(buffer: bytes, start: int, end: int) -> OversizedAppend | None:
        kind = buffer[start]
        if kind not in (_PLAIN, named_append.TYPE):
            return None
        named = kind == named_append.TYPE
        try:
            if named:
                count = named_append.count_locks(buffer, start + _LOCKS_AT, end, locks_max)
            else:
                count = _count(buffer, start + _LOCKS_AT, end, arrays)
        except ProtocolError:
            return None  # the decoder says what is wrong
        if count <= locks_max:
            return None
        return OversizedAppend(ReqId(buffer[start + 1 : start + 17]), named, count)

    return look


def _count(buffer: bytes, at: int, end: int, arrays: int) -> int:
    total = 0
    for _ in range(arrays):
        if end - at < 4:
            break
        count = max(_INT.unpack_from(buffer, at)[0], 0)
        total += count
        at += 4 + 4 * count
    return total
