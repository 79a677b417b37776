"""How a NamedAppendRequest is coded: the common cases, no locks at all or one write lock, with few packings."""

from __future__ import annotations

from struct import Struct

from waltz_core.base.checksum import crc32
from waltz_core.base.errors import ProtocolError
from waltz_core.wire.client_messages import NamedAppendRequest
from waltz_core.wire.lock_names import NO_NAMES, UNNAMED, name_end
from waltz_core.wire.primitives import read_count, short, verify

TYPE = 34
_START = Struct(">x16sq")
_HEAD = Struct(">B16sq")
_WITHOUT_LOCKS = Struct(">x16sqiiiii")  # mark, three counts, header, length of the data
_WITHOUT_LOCKS_HEAD = Struct(">B16sqiiiii")
_ONE = Struct(">x16sqiiBi")  # mark, count, and the only lock up to the length of its name, or the number of read locks
_ONE_HEAD = Struct(">B16sqiiB")
_AFTER_ONE = Struct(">iiii")  # numbers of read and append locks, header, length of the data
_LOCK = Struct(">iB")
_INT = Struct(">i")
_END = Struct(">ii")  # header, length of the data
_LOCK_SIZE_MIN = 5
_NO_LOCKS: tuple[int, ...] = ()


def encode_named_append(message: NamedAppendRequest, out: bytearray) -> None:
    """Append the body of a message, type byte included, to `out`."""
    data, names = message.data, message.names
    write, read, append = message.write_locks, message.read_locks, message.append_locks
    if not (write or read or append):
        out += _WITHOUT_LOCKS_HEAD.pack(TYPE, message.req_id, message.client_mark, 0, 0, 0, message.header, len(data))
    elif len(write) == 1 and not read and not append:
        named = 1 if names else 0
        out += _ONE_HEAD.pack(TYPE, message.req_id, message.client_mark, 1, write[0], named)
        out += names
        out += _AFTER_ONE.pack(0, 0, message.header, len(data))
    else:
        out += _HEAD.pack(TYPE, message.req_id, message.client_mark)
        at = 0
        for locks in (write, read, append):
            out += _INT.pack(len(locks))
            for lock_hash in locks:
                end = name_end(names, at) if names else 0
                if end - at <= len(UNNAMED):
                    out += _LOCK.pack(lock_hash, 0)
                else:
                    out += _LOCK.pack(lock_hash, 1)
                    out += names[at:end]
                at = end
        out += _END.pack(message.header, len(data))
    out += data
    out += _INT.pack(message.checksum)


def decode_named_append(buffer: bytes, start: int, end: int) -> tuple[NamedAppendRequest, int]:
    """The inverse of `encode_named_append`.

    Raises:
        ProtocolError: it is cut short, null, or does not match its checksum.
    """
    if end - start < 49:
        return _decode_any(buffer, start, end)
    locks, names = _NO_LOCKS, NO_NAMES
    if buffer[start + 28] != 1:  # the lowest byte of the number of write locks
        req_id, mark, writes, reads, appends, header, size = _WITHOUT_LOCKS.unpack_from(buffer, start)
        at = start + 45
    else:
        req_id, mark, writes, lock_hash, named, name_size = _ONE.unpack_from(buffer, start)
        at = start + 34
        if named == 1:
            at += name_size + 12
            names = buffer[start + 34 : at]
        if writes != 1 or name_size < 0 or at + 16 > end:
            return _decode_any(buffer, start, end)
        reads, appends, header, size = _AFTER_ONE.unpack_from(buffer, at)
        locks, writes = (lock_hash,), 0
        at += 16
    stop = at + size
    if writes or reads or appends or not at <= stop <= end - 4:
        return _decode_any(buffer, start, end)
    data = buffer[at:stop]
    checksum = _INT.unpack_from(buffer, stop)[0]
    if (crc32(data) ^ 0x80000000) - 0x80000000 != checksum:
        verify(data, checksum)
    return NamedAppendRequest(req_id, mark, locks, (), (), header, data, checksum, names), stop + 4


def _decode_any(buffer: bytes, start: int, end: int) -> tuple[NamedAppendRequest, int]:
    if end - start < 25:
        raise short(start, end, 25)
    req_id, mark = _START.unpack_from(buffer, start)
    at = start + 25
    lists: list[tuple[int, ...]] = []
    names: list[bytes] = []
    for _ in range(3):
        count, at = read_count(buffer, at, end, _LOCK_SIZE_MIN)
        hashes = []
        for _ in range(count):
            lock_hash, name, at = _lock(buffer, at, end)
            hashes.append(lock_hash)
            names.append(name)
        lists.append(tuple(hashes))
    if end - at < 8:
        raise short(at, end, 8)
    header, size = _END.unpack_from(buffer, at)
    at += 8
    stop = at + size
    if size < 0:
        raise ProtocolError("data of an append is null")
    if end - stop < 4:
        raise short(at, end, size + 4)
    data = buffer[at:stop]
    checksum = _INT.unpack_from(buffer, stop)[0]
    verify(data, checksum)
    packed = b"".join(names) if any(name != UNNAMED for name in names) else NO_NAMES
    return NamedAppendRequest(req_id, mark, lists[0], lists[1], lists[2], header, data, checksum, packed), stop + 4


def count_locks(buffer: bytes, at: int, end: int, enough: int) -> int:
    """How many locks the three lists from `at` on hold; those behind the list that makes them more than `enough` apart.

    Raises:
        ProtocolError: the lists are cut short.
    """
    total = 0
    for _ in range(3):
        count, at = read_count(buffer, at, end, _LOCK_SIZE_MIN)
        total += count
        if total > enough:
            break
        for _ in range(count):
            _, _, at = _lock(buffer, at, end)
    return total


def _lock(buffer: bytes, at: int, end: int) -> tuple[int, bytes, int]:
    if end - at < _LOCK_SIZE_MIN:
        raise short(at, end, _LOCK_SIZE_MIN)
    lock_hash, named = _LOCK.unpack_from(buffer, at)
    at += 5
    if named != 1:
        return lock_hash, UNNAMED, at
    if end - at < 4:
        raise short(at, end, 4)
    size = _INT.unpack_from(buffer, at)[0]
    if size < 0:
        raise ProtocolError("text is null")
    stop = at + size + 12
    if stop > end:
        raise short(at, end, size + 12)
    return lock_hash, buffer[at:stop], stop
