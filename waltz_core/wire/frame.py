"""Frames: magic, version, length, body; and how a stream of bytes is gathered into whole ones."""

from __future__ import annotations

from struct import Struct

from waltz_core.base.errors import FrameTooLargeError, ProtocolError

HEADER = Struct(">Bhi")  # magic, version, length of the body
HEADER_SIZE = 7
LENGTH = Struct(">i")
LENGTH_AT = 3  # place of the length inside a header

HELLO_MAGIC = 0x48
HELLO_VERSION = 0
HELLO_SIZE_MAX = 65536  # a greeting is some thirty bytes; no peer may make us gather more before it

FRAME_SIZE_MAX_STORAGE = 1 << 30


def frame(magic: int, version: int, body: bytes = b"") -> bytes:
    """One frame; without a body it is a keep-alive."""
    return HEADER.pack(magic, version, len(body)) + body


def refused(head: tuple[int, int, int], magic: int, version: int, limit: int) -> ProtocolError:
    """Why a frame header (magic, version, length) is not acceptable."""
    if head[0] != magic:
        return ProtocolError(f"magic byte {magic:#04x} expected, {head[0]:#04x} found")
    if head[1] != version:
        return ProtocolError(f"version {version} expected after magic byte {magic:#04x}, {head[1]} found")
    if head[2] < 0:
        return ProtocolError(f"negative frame length {head[2]}")
    return FrameTooLargeError(head[2], limit)


class Gatherer:
    """Keeps the bytes of an unfinished frame, each copied once however small the pieces are."""

    __slots__ = ("_kept", "_wanted")

    def __init__(self) -> None:
        self._kept = bytearray()
        self._wanted = HEADER_SIZE  # bytes with which something new can be decided

    def add(self, data: bytes | bytearray | memoryview) -> bytes | None:
        """Everything kept plus `data`, or None when that cannot end a frame yet."""
        if not self._kept:
            return bytes(data)
        if len(self._kept) + len(data) < self._wanted:
            self._kept += data
            return None
        gathered = b"".join((self._kept, data))
        self._kept = bytearray()
        return gathered

    def keep(self, buffer: bytes, at: int, wanted: int) -> None:
        """Hold back what starts at `at`; it needs `wanted` bytes before it can be looked at again."""
        if at < len(buffer):
            self._kept += memoryview(buffer)[at:]
            self._wanted = wanted

    def clear(self) -> None:
        """Forget what is kept: the connection is lost."""
        self._kept = bytearray()

    def __len__(self) -> int:
        return len(self._kept)
