"""What the TLS of a peer takes beside what the peer says.

TLS 1.3 lets either side send messages of its own at any time, as KeyUpdate, of 27 bytes: OpenSSL works for 25 us at
each of them, answers it where that is asked for, and hands out nothing. A peer that sends nothing else would keep an
event loop busy, and its answers would pile up where nobody counts them.
"""

from __future__ import annotations

from typing import Final

SLICE: Final = 16_384
"""Bytes that OpenSSL gets at a time, with 600 such messages at most: 15 ms."""
ANSWERS_MAX: Final = 4_096
"""Bytes of answers that may wait at a time: of 150 messages. Peers renew their keys after gigabytes."""
_BARREN_MAX = 65_536  # a record that is not whole has 16 KiB, tickets of sessions a few
_FACTOR = 32  # the least that a peer says at a time is a byte, in a record of 23
EXCESS: Final = "it sends messages of TLS itself, as KeyUpdate, and nothing else"


class Overhead:
    """Bytes of one connection that brought nothing, as far as those that brought something do not explain them."""

    __slots__ = ("_barren",)

    def __init__(self) -> None:
        self._barren = 0

    def took(self, size: int) -> None:
        """So many encrypted bytes came."""
        self._barren += size

    def gave(self, size: int) -> None:
        """They held so many bytes for us."""
        self._barren = max(0, self._barren - _FACTOR * size)

    @property
    def excessive(self) -> bool:
        """The connection should end."""
        return self._barren > _BARREN_MAX
