"""Names of locks on the wire: packed, because only refusals and journals read them.

For each lock, in the order write, read, append: an i32 count, so many bytes of UTF-8, and the id as i64; a count of
-1 and nothing behind it where the client sent no name. No bytes at all: no lock has a name.
"""

from __future__ import annotations

from struct import Struct, error

from waltz_core.wire.primitives import decode_text, encode_text

NO_NAMES = b""
UNNAMED = b"\xff\xff\xff\xff"
_SIZE = Struct(">i")
_ID = Struct(">q")


def pack_text(name: str) -> bytes:
    """What stands in front of the id."""
    text = encode_text(name)
    return _SIZE.pack(len(text)) + text


def name_end(packed: bytes, at: int) -> int:
    """Where the name at `at` ends.

    Raises:
        ValueError: beyond the end.
    """
    try:
        size = _SIZE.unpack_from(packed, at)[0]
    except error:
        raise ValueError("names of locks are cut short") from None
    end = at + 4 if size == -1 else at + size + 12
    if size < -1 or end > len(packed):
        raise ValueError("names of locks are cut short")
    return end


def name_at(packed: bytes, index: int) -> tuple[str, int] | None:
    """The name of one lock, None if it is missing."""
    if not packed or index < 0:
        return None
    at, end = 0, 0
    for _ in range(index + 1):
        if end >= len(packed):
            return None
        at, end = end, name_end(packed, end)
    return _name(packed, at, end)


def unpack_names(packed: bytes, count: int) -> list[tuple[str, int] | None]:
    """The names of `count` locks.

    Raises:
        ValueError: these are not so many.
    """
    if not packed:
        return [None] * count
    names: list[tuple[str, int] | None] = []
    at = 0
    for _ in range(count):
        end = name_end(packed, at)
        names.append(_name(packed, at, end))
        at = end
    if at != len(packed):
        raise ValueError(f"{len(packed) - at} bytes behind the names of {count} locks")
    return names


def _name(packed: bytes, at: int, end: int) -> tuple[str, int] | None:
    if end - at <= len(UNNAMED):
        return None
    return decode_text(packed[at + 4 : end - 8]), _ID.unpack_from(packed, end - 8)[0]
