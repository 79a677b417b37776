"""What the TLS of a peer takes beside what the peer says.

TLS 1.3 lets either side send messages of its own at any time, as KeyUpdate, of 27 bytes: OpenSSL works for 25 us at
each of them, answers it where that is asked for, and hands out nothing. A peer that sends little else would keep an
event loop busy, and its answers would pile up where nobody counts them.
"""

from __future__ import annotations

from typing import Final

SLICE: Final = 16_384
"""Bytes that OpenSSL gets at a time, with 600 such messages at most: 15 ms. A record may begin in one and end in the
next, so that a channel lets two bring nothing before others have their turn: 30 ms."""
ANSWERS_MAX: Final = 4_096
"""Bytes of answers that may wait at a time: of 150 messages. Peers renew their keys after gigabytes."""
_BARREN_MAX = 65_536  # a record that is not whole has 16 KiB, tickets of sessions a few
_AROUND = 96  # what a record has beside its content: 22 bytes, 29 or, with CBC in TLS 1.2, 85
_HEAD = 5  # bytes of a record; the last two say how many follow
EXCESS: Final = "it sends messages of TLS itself, as KeyUpdate, and little else"


class Overhead:
    """Bytes of one connection that brought nothing, as far as those that brought something do not explain them."""

    __slots__ = ("_barren",)

    def __init__(self) -> None:
        self._barren = 0

    def took(self, size: int) -> None:
        """So many encrypted bytes came."""
        self._barren += size

    def gave(self, size: int, records: int) -> None:
        """They held so many bytes for us, in so many records."""
        left = self._barren - size - _AROUND * records
        self._barren = left if left > 0 else 0

    @property
    def barren(self) -> int:
        """So many of them, with those of a record that is not whole yet."""
        return self._barren

    @property
    def excessive(self) -> bool:
        """The connection should end."""
        return self._barren > _BARREN_MAX


class Begun:
    """How much has come of the record that is not whole yet: each says its length in its head."""

    __slots__ = ("_head", "_left", "size")

    def __init__(self) -> None:
        self._head = b""  # what has come of the next record, where that is less than its head
        self._left = 0  # bytes until the next record begins
        self.size = 0

    def took(self, data: bytes) -> None:
        """So much more came."""
        if len(data) < self._left:
            self._left -= len(data)
            self.size += len(data)
            return
        data = self._head + data[self._left :]
        begin = end = 0
        while end + _HEAD <= len(data):
            begin, end = end, end + _HEAD + int.from_bytes(data[end + _HEAD - 2 : end + _HEAD], "big")
        self._left = max(0, end - len(data))
        self._head = data[end:]
        self.size = len(data) - (begin if self._left else end)
