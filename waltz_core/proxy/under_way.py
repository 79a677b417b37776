"""Which clients may have an append under way in a partition of a proxy, and over which connection each is answered.

A *round* is the time between two flushes upstream. A flush leaves behind every append that was carried before. So once
it is answered, and what it speaks of was fed here, none of them is under way, and no refusal of them comes any more. A
proxy flushes every two seconds even if nobody asks: so this holds the clients of some seconds, and those whose appends
wait for their turn, however many there are for whom a proxy behind this one appends in its life.
"""

from __future__ import annotations


class UnderWay:
    """One partition's."""

    __slots__ = ("_clients", "_round")

    def __init__(self) -> None:
        self._round = 0
        # → round and connection of the newest append, and how many wait to be carried; the rounds rise
        self._clients: dict[int, tuple[int, int | None, int]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client_id: int) -> bool:
        """It may have an append under way."""
        return client_id in self._clients

    def taken(self, client_id: int, conn: int, count: int) -> None:
        """Appends of a client came over a connection, and will be carried."""
        waiting = self._clients.pop(client_id, (0, None, 0))[2]
        self._clients[client_id] = self._round, conn, waiting + count

    def carried(self, client_id: int, count: int) -> None:
        """So many of them have left."""
        _, conn, waiting = self._clients.pop(client_id)
        self._clients[client_id] = self._round, conn, waiting - count

    def conn_of(self, client_id: int) -> int | None:
        """Where refusals of its appends go; None: to nobody any more."""
        return self._clients.get(client_id, (0, None, 0))[1]

    def gone(self, conn: int) -> None:
        """A connection ended; what came over it may still commit."""
        for client_id, (number, of, waiting) in self._clients.items():
            if of == conn:
                self._clients[client_id] = number, None, waiting

    def flushed(self) -> int:
        """A flush leaves, behind all that was carried so far: the number of the round that it ends."""
        self._round += 1
        return self._round - 1

    def decided(self, number: int) -> None:
        """All that was carried up to this round is decided, and what was committed of it was fed."""
        while self._clients:
            client_id = next(iter(self._clients))
            of, conn, waiting = self._clients[client_id]
            if of > number:
                return
            del self._clients[client_id]
            if waiting:
                self._clients[client_id] = self._round, conn, waiting
