"""One side of a connection as in 0.13.2.

Defects: a message with surplus bytes is handed on, and only then the connection breaks (`surplus_refused`); so is a
greeting.
"""

from __future__ import annotations

from typing import TypeVar

from waltz_core.wire.connection import Connection, SurplusError
from waltz_core.wire.hello import decode_hello

M = TypeVar("M")


class Connection0132(Connection[M]):
    """Hands on what has surplus bytes behind it."""

    __slots__ = ()

    def _messages(self, buffer: bytes, at: int, version: int, out: list[M]) -> None:
        try:
            super()._messages(buffer, at, version, out)
        except SurplusError as error:
            out.append(error.message)
            raise

    def _open(self, buffer: bytes, start: int, end: int) -> None:
        self.peer_hello, _ = decode_hello(buffer, start, end)
        super()._open(buffer, start, end)
