"""Whose client id is whose, where clients show certificates.

A client id is a number that the client itself names; a mount with it and a higher connection number takes over. That
is how a client returns after a lost connection, and also how anybody could stall another client. So the first
connection that mounts with an id claims it for the name in its certificate. While one connection with the claim lives,
other names are refused; the same name takes over at once, as `Members` says. Without certificates all names are equal
(the empty one), and so everybody may take over, as in 0.13.2.

The claim belongs to one server process: clients mount on every server that owns partitions of theirs.
"""

from __future__ import annotations


class Claims:
    """Client id → the name that claimed it, and the connections that hold the claim."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: dict[int, tuple[str, set[int]]] = {}

    def mount(self, client_id: int, conn: int, name: str) -> str | None:
        """Claim an id for a connection; None if it has it now, else the name of the owner."""
        owner, conns = self._claims.setdefault(client_id, (name, set()))
        if owner != name:
            return owner
        conns.add(conn)
        return None

    def gone(self, client_id: int, conn: int) -> None:
        """A connection closed; the last one takes the claim with it."""
        claim = self._claims.get(client_id)
        if claim is None:
            return
        claim[1].discard(conn)
        if not claim[1]:
            del self._claims[client_id]
