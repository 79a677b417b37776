"""The bytes of a decision journal: docs/formats.md lays them down.

A file is a row of entries and nothing else, the first of them `Started`. Every entry has its own checksum, so a
file can be read from any entry on.

A power failure may leave any sectors of what was not synced, so the group of entries that was being written may have
lost its beginning and kept its end. What tells that from damage is `Synced`, with which every group begins: damage has
one behind it, as the entries before a `Synced` were on disk when it was written. Nothing tells them apart in a file of
mode `async`, which is never synced; nothing is promised of it either.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from struct import Struct, error
from typing import TypeAlias

from waltz_core.base.checksum import crc32
from waltz_core.base.errors import CorruptionError
from waltz_core.base.ids import ReqId
from waltz_core.base.record import record
from waltz_core.wire.lock_names import unpack_names
from waltz_core.wire.primitives import decode_text, encode_text

VERSION = 2
"""Of files that have `Synced`; those of version 1 have none."""
MARKER = b"WJ"
SUFFIX = ".journal"
"""Of the files of a partition, behind their number."""
OVERHEAD = 12  # bytes of an entry besides its body
SIZE_MAX = 64 << 20  # bytes of a body

_HEAD = Struct(">2sbxi")  # marker, kind, reserved, size of the body
_CRC = Struct(">I")
_STARTED = Struct(">i16siqqqbi")
_SESSION = Struct(">qiqq")
_DECISION = Struct(">qq16siqqbbqbiqqiiii")
_TRANSACTION_ID = Struct(">q")
_TRANSACTION_ID_AT = 16  # in an entry: behind the head and the session
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
    SYNCED = 6


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


@record
class Synced:
    """Everything before it in the file is on disk."""


Entry: TypeAlias = Started | SessionOpened | Decision | CommittedRange | Gap | Synced


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
        case Synced():
            return _entry(Kind.SYNCED, b"")


def _entry(kind: Kind, body: bytes) -> bytes:
    data = _HEAD.pack(MARKER, kind, len(body)) + body
    return data + _CRC.pack(crc32(data))


def _decision(decision: Decision) -> bytes:
    write, read, append = decision.write_locks, decision.read_locks, decision.append_locks
    locks = (*write, *read, *append) if read or append else write
    parts = [
        _DECISION.pack(
            decision.session_id,
            decision.transaction_id,
            decision.req_id,
            decision.header,
            decision.client_mark,
            decision.lock_mark,
            decision.verdict,
            decision.conflict,
            decision.blocking_id,
            decision.lock_kind,
            decision.lock_index,
            decision.received_us,
            decision.decided_us,
            decision.size,
            len(write),
            len(read),
            len(append),
        )
    ]
    if locks:
        parts.append(_ints(len(locks)).pack(*locks))
        parts.append(decision.names)
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
            entry = _decode(data[at + 2], data[at + 8 : end - 4])
        except (error, ValueError) as problem:
            raise CorruptionError(f"{place}: the entry at offset {at} has no proper content: {problem}") from problem
        if entry is not None:
            yield at, entry
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


def appended_id(data: bytes, at: int) -> int:
    """Of the sound entry at `at`: the transaction id if it is a decision to append, else -1."""
    if data[at + 2] != Kind.DECISION:
        return -1
    return int(_TRANSACTION_ID.unpack_from(data, at + _TRANSACTION_ID_AT)[0])


def sound_size(data: bytes) -> tuple[int, bool]:
    """How many bytes from the start are whole entries, and whether what follows is just a write that was cut short.

    It is none if an entry stands behind it that says what was on disk before, or if nothing says so in that file.
    """
    at = 0
    while (end := entry_end(data, at)) >= 0:
        at = end
    if at == len(data):
        return at, True
    proof = _proof_of(data)
    marker_at = data.find(MARKER, at + 1)
    while marker_at >= 0:
        if entry_end(data, marker_at) >= 0 and (proof is None or data[marker_at + 2] in proof):
            return at, False
        marker_at = data.find(MARKER, marker_at + 1)
    return at, True


def _proof_of(data: bytes) -> tuple[int, ...] | None:
    """Kinds of entries before which everything was on disk when they were written; None for any kind."""
    end = entry_end(data, 0)
    if end < 0:
        return None  # the first entry is on disk before any other is written
    try:
        first = _decode(data[2], data[8 : end - 4])
    except (error, ValueError):
        return None
    if not isinstance(first, Started) or first.version < VERSION:
        return None
    return () if first.mode == Mode.ASYNC else (Kind.SYNCED,)


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
    return Synced() if kind == Kind.SYNCED else None


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
