"""Frames of equal kind in a row, cut and decoded at once: appends as a server gets them, a feed as a client does.

What is not whole, not of that kind, or not as its sender must write it, ends a run; the connection then decodes that
frame by itself, and says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from waltz_core.base.errors import ProtocolError
from waltz_core.base.twins import twin
from waltz_core.wire.frame import HEADER, HEADER_SIZE

Decode = Callable[[bytes, int, int], tuple[Any, int]]
DecodeRun = Callable[[bytes, int, int, list[Any]], int]
"""Buffer, place of a whole frame, the largest body to take, list to append to; returns the place behind what was
taken, or the same place. Magic and version of the frame at that place are right, hence also of those equal to it."""

_FEED = Struct(">8s16sqi")  # a whole frame: header and type byte, then the message
_FEED_SIZE = _FEED.size
_FEED_TAIL = b"\x00\x00\x00\x1d\x04"  # length and type byte, behind magic and version


def appends(cls: type[Any], decode: Decode, *, named: bool) -> DecodeRun:
    """Runs of appends, each of which `decode` decodes too."""
    decode_whole = whole(decode)

    def decode_run(buffer: bytes, at: int, limit: int, out: list[Any]) -> int:
        return cut_appends(buffer, at, limit, out, cls, decode_whole, named)

    return decode_run


def whole(decode: Decode) -> Callable[[bytes, int, int], Any]:
    """The same decoder, which gives None for what it cannot decode up to its very end."""

    def decode_whole(buffer: bytes, start: int, end: int) -> Any:
        try:
            message, stop = decode(buffer, start, end)
        except ProtocolError:
            return None
        return message if stop == end else None

    return decode_whole


@twin
def cut_appends(
    buffer: bytes,
    at: int,
    limit: int,
    out: list[Any],
    cls: type[Any],
    decode: Callable[[bytes, int, int], Any],
    named: bool,
) -> int:
    """Append every append of the run that begins at `at` to `out`; the place behind the last of them.

    Args:
        limit: a body of more bytes ends the run.
        cls: what `decode` makes: the class of the messages.
        decode: an append of any form; None if that is not possible.
        named: whether the locks may have names.
    """
    size, unpack = len(buffer), HEADER.unpack_from
    if size - at <= HEADER_SIZE:
        return at
    magic, version, _ = unpack(buffer, at)
    kind = buffer[at + HEADER_SIZE]
    while size - at > HEADER_SIZE:
        next_magic, next_version, length = unpack(buffer, at)
        start = at + HEADER_SIZE
        end = start + length
        if next_magic != magic or next_version != version or buffer[start] != kind:
            break
        if not 0 < length <= limit or end > size:
            break
        message = decode(buffer, start, end)
        if message is None:
            break
        out.append(message)
        at = end
    return at


def feed(cls: type[Any]) -> DecodeRun:
    """Runs of a feed, which consists of little else."""

    def decode_run(buffer: bytes, at: int, limit: int, out: list[Any]) -> int:
        return cut_feed(buffer, at, out, cls)

    return decode_run


@twin
def cut_feed(buffer: bytes, at: int, out: list[Any], cls: type[Any]) -> int:
    """Append a `cls` for each frame of the feed that begins at `at` to `out`; the place behind the last of them."""
    head = buffer[at : at + 8]
    if head[3:] != _FEED_TAIL:
        return at
    frames = memoryview(buffer)[at : at + (len(buffer) - at) // _FEED_SIZE * _FEED_SIZE]
    append = out.append
    for next_head, req_id, transaction_id, header in _FEED.iter_unpack(frames):
        if next_head != head:
            break
        append(cls(req_id, transaction_id, header))
        at += _FEED_SIZE
    return at


@twin
def end_of_run(messages: Sequence[Any], at: int, cls: type[Any]) -> int:
    """The place behind the messages of class `cls` from `at` on that are of the partition of the first one."""
    key = messages[at].req_id[8:12]
    while at < len(messages) and type(messages[at]) is cls and messages[at].req_id[8:12] == key:
        at += 1
    return at
