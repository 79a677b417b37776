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
LARGE = 16_384  # bytes from which on a piece is kept by itself, and not copied: an object costs little beside it


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
    """Keeps the bytes of an unfinished frame: large pieces as they are, small ones together; all are joined once."""

    __slots__ = ("_pieces", "_small", "_wanted", "kept")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # each of `LARGE` bytes or more
        self._small = bytearray()  # what came behind them
        self.kept = 0  # bytes of both
        self._wanted = HEADER_SIZE  # bytes with which something new can be decided

    def add(self, data: bytes | bytearray | memoryview) -> bytes | None:
        """Everything kept plus `data`, or None when that cannot end a frame yet."""
        if not self.kept:
            return bytes(data)
        if self.kept + len(data) < self._wanted:
            self._hold(data)
            return None
        gathered = b"".join((*self._pieces, self._small, data))
        self.clear()
        return gathered

    def keep(self, buffer: bytes, at: int, wanted: int) -> None:
        """Hold back what starts at `at`; it needs `wanted` bytes before it can be looked at again."""
        if at < len(buffer):
            self._hold(memoryview(buffer)[at:] if at else buffer)
            self._wanted = wanted

    def _hold(self, data: bytes | bytearray | memoryview) -> None:
        self.kept += len(data)
        if len(data) < LARGE:
            self._small += data
            return
        if self._small:
            self._pieces.append(bytes(self._small))
            self._small = bytearray()
        self._pieces.append(bytes(data))

    def clear(self) -> None:
        """Forget what is kept: the connection is lost."""
        self._pieces, self._small, self.kept = [], bytearray(), 0
