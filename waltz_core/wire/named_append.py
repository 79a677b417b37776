"""How a NamedAppendRequest is coded: the common cases, no locks at all or one write lock, with few packings."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from waltz_core.errors import ProtocolError
from waltz_core.wire.client_messages import NamedAppendRequest
from waltz_core.wire.primitives import decode_text, encode_text, read_count, short, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TYPE = 34
_START = Struct(">x16sq")
_HEAD = Struct(">B16sq")
_WITHOUT_LOCKS = Struct(">x16sqiiiii")  # mark, three counts, header, length of the data
_WITHOUT_LOCKS_HEAD = Struct(">B16sqiiiii")
_ONE_NAMED = Struct(">x16sqiixi")  # mark, count, and the only lock up to the length of its name
_ONE_UNNAMED = Struct(">x16sqiiBiiii")  # mark, count, the only lock, two counts, header, length of the data
_NO_LOCKS: tuple[int, ...] = ()
_NO_NAMES: tuple[tuple[str, int] | None, ...] = ()
_UNNAMED = Struct(">ib")
_NAMED = Struct(">ibi")  # up to the name
_INT = Struct(">i")
_ID = Struct(">q")
_END = Struct(">ii")  # header, length of the data
_LOCK_SIZE_MIN = 5


def encode_named_append(message: NamedAppendRequest, out: bytearray) -> None:
    """Append the body of a message, type byte included, to `out`."""
    data, names = message.data, message.names
    write, read, append = message.write_locks, message.read_locks, message.append_locks
    if not (write or read or append):
        out += _WITHOUT_LOCKS_HEAD.pack(TYPE, message.req_id, message.client_mark, 0, 0, 0, message.header, len(data))
    elif len(write) == 1 and names and names[0] is not None and not read and not append:
        name, number = names[0]
        pack, text = _one_lock(name)
        out += pack(
            TYPE,
            message.req_id,
            message.client_mark,
            1,
            write[0],
            1,
            len(text),
            text,
            number,
            0,
            0,
            message.header,
            len(data),
        )
    else:
        out += _HEAD.pack(TYPE, message.req_id, message.client_mark)
        at = 0
        for locks in (write, read, append):
            out += _INT.pack(len(locks))
            for lock_hash in locks:
                name_and_id = names[at] if names else None
                at += 1
                if name_and_id is None:
                    out += _UNNAMED.pack(lock_hash, 0)
                else:
                    text = encode_text(name_and_id[0])
                    out += _NAMED.pack(lock_hash, 1, len(text))
                    out += text
                    out += _ID.pack(name_and_id[1])
        out += _END.pack(message.header, len(data))
    out += data
    out += _INT.pack(message.checksum)


@lru_cache(maxsize=1024)
def _one_lock(name: str) -> tuple[Callable[..., bytes], bytes]:
    """Packing of an append with one write lock of this name, and the name as it goes on the wire."""
    text = encode_text(name)
    return Struct(f">B16sqiiBi{len(text)}sqiiii").pack, text


@lru_cache(maxsize=1024)
def _after_name(size: int) -> Callable[..., tuple[Any, ...]]:
    """Unpacking of what follows the length of a name: name, id, two counts, header, length of the data."""
    return Struct(f">{size}sqiiii").unpack_from


_text = lru_cache(maxsize=1024)(decode_text)
_NAME_CACHED = 64  # bytes; longer ones are decoded anew


def decode_named_append(buffer: bytes, start: int, end: int) -> tuple[NamedAppendRequest, int]:
    """The inverse of `encode_named_append`.

    Raises:
        ProtocolError: it is cut short, null, or does not match its checksum.
    """
    left = end - start - 49
    if left < 0:
        return _decode_any(buffer, start, end)
    locks, names = _NO_LOCKS, _NO_NAMES
    if buffer[start + 28] != 1:  # the lowest byte of the number of write locks
        req_id, mark, writes, reads, appends, header, size = _WITHOUT_LOCKS.unpack_from(buffer, start)
        at = start + 45
    elif buffer[start + 33] == 1:
        req_id, mark, writes, lock_hash, name_size = _ONE_NAMED.unpack_from(buffer, start)
        at = start + 62 + name_size
        if writes != 1 or not 0 <= name_size <= _NAME_CACHED or at > end:
            return _decode_any(buffer, start, end)
        name, number, reads, appends, header, size = _after_name(name_size)(buffer, start + 38)
        locks, names, writes = (lock_hash,), ((_text(name), number),), 0
    else:
        req_id, mark, writes, lock_hash, _, reads, appends, header, size = _ONE_UNNAMED.unpack_from(buffer, start)
        at = start + 50
        if writes != 1 or at > end:
            return _decode_any(buffer, start, end)
        locks, writes = (lock_hash,), 0
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
    names: list[tuple[str, int] | None] = []
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
    data, checksum, at = _data(buffer, at + 8, end, size)
    known = tuple(names) if any(name is not None for name in names) else ()
    return NamedAppendRequest(req_id, mark, lists[0], lists[1], lists[2], header, data, checksum, known), at


def _lock(buffer: bytes, at: int, end: int) -> tuple[int, tuple[str, int] | None, int]:
    if end - at < _LOCK_SIZE_MIN:
        raise short(at, end, _LOCK_SIZE_MIN)
    lock_hash, named = _UNNAMED.unpack_from(buffer, at)
    at += 5
    if named != 1:
        return lock_hash, None, at
    if end - at < 4:
        raise short(at, end, 4)
    size = _INT.unpack_from(buffer, at)[0]
    at += 4
    if size < 0:
        raise ProtocolError("text is null")
    if end - at < size + 8:
        raise short(at, end, size + 8)
    name = decode_text(buffer[at : at + size])
    return lock_hash, (name, _ID.unpack_from(buffer, at + size)[0]), at + size + 8


def _data(buffer: bytes, at: int, end: int, size: int) -> tuple[bytes, int, int]:
    if size < 0:
        raise ProtocolError("data of an append is null")
    stop = at + size
    if end - stop < 4:
        raise short(at, end, size + 4)
    data = buffer[at:stop]
    checksum = _INT.unpack_from(buffer, stop)[0]
    verify(data, checksum)
    return data, checksum, stop + 4
