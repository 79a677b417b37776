"""Whose connection makes room for a newcomer at a port where everybody may connect, and nobody has said who he is.

A connection that was given what it asked for is worth more than one that has asked for nothing yet: opening it costs
a peer nothing. Of each kind the one that has waited longest goes first. So whoever opens connections, holds requests
back or lets bodies drip in takes places from his like, and not from callers that ask and are answered.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Room(Generic[T]):
    """The connections that hold a place."""

    __slots__ = ("_answered", "_unproven")

    def __init__(self) -> None:
        self._unproven: dict[T, None] = {}  # the oldest first
        self._answered: dict[T, None] = {}  # who was answered longest ago first

    def __len__(self) -> int:
        return len(self._unproven) + len(self._answered)

    def came(self, conn: T) -> None:
        """A connection takes a place."""
        self._unproven[conn] = None

    def answered(self, conn: T) -> None:
        """It has asked, and has its answer; one without a place stays without."""
        if self.gone(conn):
            self._answered[conn] = None

    def gone(self, conn: T) -> bool:
        """It gives its place back; whether it had one."""
        had = conn in self._unproven or conn in self._answered
        self._unproven.pop(conn, None)
        self._answered.pop(conn, None)
        return had

    def yields(self) -> T:
        """Who makes room for one more; its place is free from here on."""
        conn = next(iter(self._unproven or self._answered))
        self.gone(conn)
        return conn
