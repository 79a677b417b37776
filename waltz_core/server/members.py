"""Which connection speaks for which client on one partition."""

from __future__ import annotations

from waltz_core.server.peer import Peer


class Members:
    """Client id → the connection whose mount counts (docs/classic-protocol.md, client rule 6)."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[int, tuple[int, int, int]] = {}  # client id → conn, generation, net sequence

    def mount(self, client_id: int, conn: int, generation: int, net_sequence: int) -> bool:
        """Register a mount; it counts if its generation, then its connection sequence, is greater.

        Returns whether messages of `conn` are valid now. Equal sequence numbers are both valid.
        """
        known = self._members.get(client_id)
        if known is None or (generation, net_sequence) > known[1:]:
            self._members[client_id] = conn, generation, net_sequence
            return True
        return known[2] == net_sequence

    def speaks(self, peer: Peer) -> bool:
        """Whether a connection speaks for its client: it has mounted, and no newer mount has replaced its own."""
        if peer.client_id is None or peer.net_sequence is None:
            return False
        known = self._members.get(peer.client_id)
        return known is not None and known[2] == peer.net_sequence

    def gone(self, client_id: int, conn: int) -> None:
        """A connection closed; only the registered one takes its entry with it."""
        known = self._members.get(client_id)
        if known is not None and known[0] == conn:
            del self._members[client_id]
