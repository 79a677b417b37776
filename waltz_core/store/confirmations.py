"""Proof that a store session is still the newest: a quorum answered what was sent after a question came.

A server that was paused, or cut off, cannot know by itself that a successor has taken over. Its storage nodes do: a
successor commits nothing before a quorum of them has answered it, and from then on they refuse every older session.
Any two quorums share a node, so if a quorum answers a request that left after a question came, nobody else had
committed anything before that question.

Questions are counted in rounds, one for each step of the server at most. Every append carries the round in which it
left, and its vote confirms that round. A replica that has nothing of the round on its way is asked by a request of
its own, one at a time: what comes meanwhile shares the next.
"""

from __future__ import annotations


class Confirmations:
    """Rounds of one store session: which is wanted, and which a quorum of replicas has confirmed."""

    __slots__ = ("_asked", "_heard", "_quorum", "confirmed", "wanted")

    def __init__(self, quorum: int) -> None:
        self.wanted = 0  # the newest round
        self.confirmed = 0  # the newest that a quorum has confirmed
        self._quorum = quorum
        self._heard: dict[str, int] = {}  # replica → the newest round that an answer of it confirms
        self._asked: dict[str, int] = {}  # replica → round of the request that it has not answered

    def want(self) -> int:
        """Begin a round: what is sent from now on confirms it."""
        self.wanted += 1
        return self.wanted

    @property
    def open(self) -> bool:
        """A round is wanted that is not confirmed."""
        return self.wanted != self.confirmed

    def must_ask(self, replica: str, appended: int) -> bool:
        """Whether a replica needs a request of its own; `appended` is the newest round of its appends in flight."""
        if not self.open or replica in self._asked:
            return False
        return max(self._heard.get(replica, 0), appended) < self.wanted

    def ask(self, replica: str) -> None:
        """A request leaves for a replica."""
        assert replica not in self._asked
        self._asked[replica] = self.wanted

    def answered(self, replica: str) -> None:
        """A replica answered its request."""
        self.heard(replica, self._asked.pop(replica))

    def heard(self, replica: str, sent_in: int) -> None:
        """A replica answered something that left in round `sent_in`."""
        assert sent_in <= self.wanted
        if sent_in <= self._heard.get(replica, 0):
            return
        self._heard[replica] = sent_in
        if len(self._heard) >= self._quorum:
            self.confirmed = sorted(self._heard.values(), reverse=True)[self._quorum - 1]
