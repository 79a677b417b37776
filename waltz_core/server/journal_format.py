"""The bytes of a decision journal: docs/formats.md lays them down.

A file is a row of entries and nothing else, the first of them `Started`. Every entry has its own checksum, so a
file can be read from any entry on, and what a crash left half written at its end is told from damage.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from struct import Struct, error
from typing import TypeAlias
from zlib import crc32

from waltz_core.base.errors import CorruptionError
from waltz_core.base.ids import ReqId
from waltz_core.base.record import record
from waltz_core.wire.lock_names import unpack_names
from waltz_core.wire.primitives import decode_text, encode_text

VERSION = 1
MARKER = b"WJ"
OVERHEAD = 12  # bytes of an entry besides its body
SIZE_MAX = 64 << 20  # bytes of a body

_HEAD = Struct(">2sbxi")  # marker, kind, reserved, size of the body
_CRC = Struct(">I")
_STARTED = Struct(">i16siqqqbi")
_SESSION = Struct(">qiqq")
_DECISION = Struct(">qq16siqqbbqbiqqiiii")
_COMMITTED = Struct(">qqqq")
_GAP = Struct(">qqqi")
DECISION_SIZE = _DECISION.size


class Kind(enum.IntEnum):
    """Of entries; others are to be passed over."""

    STARTED = 1
    SESSION = 2
    DECISION = 3
    COMMITTED = 4
    GAP = 5


class Mode(enum.IntEnum):
    """How far the journal is ahead of the log."""

    OFF = 0
    ASYNC = 1
    SYNC = 2


APPENDED = 0
"""The verdict of a decision that is none of `Refusal`: the record goes to the storage nodes."""


@record
class Started:
    """A file begins. Of the file before, `previous_size` bytes count; -1: there is none."""

    key: bytes  # of the cluster
    partition_id: int
    number: int  # of the file
    previous_size: int
    time_us: int
    mode: int  # Mode
    endpoint: str  # of the server
    version: int = VERSION


@record
class SessionOpened:
    """A store session is open: everything up to `mark` is committed, and no decision above it of an older session."""

    session_id: int
    generation: int
    mark: int
    time_us: int


@record
class Decision:
    """What became of an append at its lock check. Not the commit: that is said by what follows."""

    session_id: int
    transaction_id: int  # -1 unless appended
    req_id: ReqId
    header: int
    client_mark: int
    lock_mark: int  # upper bound of what its locks conflict with; -1 without locks
    verdict: int  # APPENDED or a Refusal
    conflict: int  # Conflict, of the lock that was refused
    blocking_id: int
    lock_kind: int
    lock_index: int
    received_us: int
    decided_us: int
    size: int  # bytes of the payload
    write_locks: tuple[int, ...] = ()
    read_locks: tuple[int, ...] = ()
    append_locks: tuple[int, ...] = ()
    names: bytes = b""  # as in NamedAppendRequest


@record
class CommittedRange:
    """Transactions `first` to `last` are on a quorum of replicas, says this session."""

    session_id: int
    first: int
    last: int
    time_us: int


@record
class Gap:
    """So many decisions were not written."""

    count: int
    first_us: int
    last_us: int
    reason: str


Entry: TypeAlias = Started | SessionOpened | Decision | CommittedRange | Gap


def encode_entry(entry: Entry) -> bytes:
    """An entry as it stands in a file."""
    match entry:
        case Decision():
            return _decision(entry)
        case Started(key, partition_id, number, previous_size, time_us, mode, endpoint, version):
            text = encode_text(endpoint)
            head = _STARTED.pack(version, key, partition_id, number, previous_size, time_us, mode, len(text))
            return _entry(Kind.STARTED, head + text)
        case SessionOpened(session_id, generation, mark, time_us):
            return _entry(Kind.SESSION, _SESSION.pack(session_id, generation, mark, time_us))
        case CommittedRange(session_id, first, last, time_us):
            return _entry(Kind.COMMITTED, _COMMITTED.pack(session_id, first, last, time_us))
        case Gap(count, first_us, last_us, reason):
            text = encode_text(reason)
            return _entry(Kind.GAP, _GAP.pack(count, first_us, last_us, len(text)) + text)


def _entry(kind: Kind, body: bytes) -> bytes:
    data = _HEAD.pack(MARKER, kind, len(body)) + body
    return data + _CRC.pack(crc32(data))


def _decision(one: Decision) -> bytes:
    write, read, append = one.write_locks, one.read_locks, one.append_locks
    locks = (*write, *read, *append) if read or append else write
    parts = [
        _DECISION.pack(
            one.session_id,
            one.transaction_id,
            one.req_id,
            one.header,
            one.client_mark,
            one.lock_mark,
            one.verdict,
            one.conflict,
            one.blocking_id,
            one.lock_kind,
            one.lock_index,
            one.received_us,
            one.decided_us,
            one.size,
            len(write),
            len(read),
            len(append),
        )
    ]
    if locks:
        parts.append(_ints(len(locks)).pack(*locks))
        parts.append(one.names)
    return _entry(Kind.DECISION, b"".join(parts))


_FEW = tuple(Struct(f">{count}i") for count in range(16))


def _ints(count: int) -> Struct:
    return _FEW[count] if count < len(_FEW) else Struct(f">{count}i")


# ---- reading ---------------------------------------------------------------------------------


def decode_entries(data: bytes, place: str) -> Iterator[tuple[int, Entry]]:
    """Offset and content of every entry of known kind, in order.

    Raises:
        CorruptionError: naming `place` and the offset, where an entry is damaged or cut short.
    """
    at = 0
    while at < len(data):
        end = entry_end(data, at)
        if end < 0:
            raise CorruptionError(f"{place}: the entry at offset {at} is damaged or cut short")
        try:
            found = _decode(data[at + 2], data[at + 8 : end - 4])
        except (error, ValueError) as problem:
            raise CorruptionError(f"{place}: the entry at offset {at} has no proper content: {problem}") from problem
        if found is not None:
            yield at, found
        at = end


def entry_end(data: bytes, at: int) -> int:
    """Where the entry at `at` ends; -1 if no whole and sound entry stands there."""
    if len(data) - at < OVERHEAD:
        return -1
    marker, _, size = _HEAD.unpack_from(data, at)
    end = at + size + OVERHEAD
    if marker != MARKER or not 0 <= size <= SIZE_MAX or end > len(data):
        return -1
    return end if crc32(memoryview(data)[at : end - 4]) == _CRC.unpack_from(data, end - 4)[0] else -1


def sound_size(data: bytes) -> tuple[int, bool]:
    """How many bytes from the start are whole entries, and whether what follows is just a torn end.

    It is none if a sound entry stands behind it: a crash tears the end off, it makes no hole.
    """
    at = 0
    while (end := entry_end(data, at)) >= 0:
        at = end
    found = data.find(MARKER, at + 1)
    while found >= 0:
        if entry_end(data, found) >= 0:
            return at, False
        found = data.find(MARKER, found + 1)
    return at, True


def _decode(kind: int, body: bytes) -> Entry | None:
    if kind == Kind.DECISION:
        return _decode_decision(body)
    if kind == Kind.COMMITTED:
        return CommittedRange(*_COMMITTED.unpack(body))
    if kind == Kind.SESSION:
        return SessionOpened(*_SESSION.unpack(body))
    if kind == Kind.GAP:
        count, first_us, last_us, size = _GAP.unpack_from(body)
        return Gap(count, first_us, last_us, _text(body, _GAP.size, size, len(body)))
    if kind == Kind.STARTED:
        version, key, partition_id, number, previous_size, time_us, mode, size = _STARTED.unpack_from(body)
        endpoint = _text(body, _STARTED.size, size, len(body))
        return Started(key, partition_id, number, previous_size, time_us, mode, endpoint, version)
    return None


def _text(body: bytes, at: int, size: int, end: int) -> str:
    if size < 0 or at + size != end:
        raise ValueError(f"a text of {size} bytes where {end - at} are left")
    return decode_text(body[at:end])


def _decode_decision(body: bytes) -> Decision:
    *fixed, writes, reads, appends = _DECISION.unpack_from(body)
    if min(writes, reads, appends) < 0 or 4 * (writes + reads + appends) > len(body) - DECISION_SIZE:
        raise ValueError(f"{writes} write, {reads} read and {appends} append locks")
    count = writes + reads + appends
    locks = _ints(count).unpack_from(body, DECISION_SIZE)
    names = body[DECISION_SIZE + 4 * count :]
    unpack_names(names, count)  # to see that they are as many
    split = writes + reads
    return Decision(*(*fixed, locks[:writes], locks[writes:split], locks[split:], names))
