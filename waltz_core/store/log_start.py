"""Raising the log start of an open session: every replica gives up, durably, what is below.

What any replica has given up is given up, so reads begin at the largest start of all. A quorum decides: from then on
no later session can need what is below, as each begins from a quorum. A replica that cannot move its start (a node of
0.13.2) would wait for ever for what was given up, so all of them must be here, and able to.
"""

from __future__ import annotations

from collections.abc import Mapping

from waltz_core.base.outbox import Emits
from waltz_core.store import recovery_events as rec
from waltz_core.store.replica_link import LinkState, ReplicaLink
from waltz_core.store.requests import Requests
from waltz_core.store.session_notes import LogStartProblem, LogStartRaised


class LogStart:
    """Where the log begins, and the raise under way: one at a time."""

    __slots__ = ("_events", "_limit", "_links", "_notes", "_quorum", "_raised", "_raising", "_requests")

    def __init__(
        self,
        quorum: int,
        links: Mapping[str, ReplicaLink],
        requests: Requests,
        events: Emits[rec.Event],
        notes: Emits[LogStartRaised],
    ) -> None:
        self._quorum = quorum
        self._links = links
        self._requests = requests
        self._events = events
        self._notes = notes
        self._limit: int | None = None  # the largest start that is allowed, while the session is open
        self._raising: int | None = None
        self._raised: set[str] = set()  # replicas that have it on disk

    def opened(self, mark: int) -> None:
        """The session is open, and began behind this mark."""
        self._limit = mark + 1

    def closed(self) -> None:
        """The session has ended."""
        self._limit = None

    @property
    def present(self) -> int:
        """The smallest id that may be read: what any replica has given up is given up."""
        return max(link.start for link in self._links.values())

    @property
    def moving(self) -> bool:
        """Whether some replica has not answered the last raise yet."""
        return self._raising is not None

    def problem(self, start: int) -> tuple[LogStartProblem, str] | None:
        """Why the log start cannot be raised to `start` now; None if it can."""
        if self._limit is None or self.moving:
            return LogStartProblem.NOT_READY, "the partition is opening, or its log start is being raised"
        for link in self._links.values():
            if link.state is not LinkState.FOLLOWING:
                why = f"replica {link.replica} is {link.state.value}: it needs all of the log"
                return LogStartProblem.NOT_READY, why
            if not link.movable:
                why = f"replica {link.replica} is on a node of 0.13.2, which would wait for what was given up"
                return LogStartProblem.NOT_POSSIBLE, why
        if start > self._limit:
            why = f"it can be raised up to {self._limit}, where the present store session began"
            return LogStartProblem.NOT_READY, why
        return None

    def raise_to(self, start: int) -> None:
        """Ask all replicas; `LogStartRaised` follows once a quorum has it on disk, or the session ends."""
        assert self.problem(start) is None
        self._raising, self._raised = start, set()
        for replica in self._links:
            self._requests.raise_log_start(replica, start)

    def raised(self, replica: str) -> None:
        """A replica has given up what is below."""
        if self._raising is None:
            return
        start = self._raising
        self._links[replica].start = max(self._links[replica].start, start)
        self._raised.add(replica)
        if len(self._raised) == self._quorum:
            self._events.put(rec.LogStartRaised(start))
            self._notes.put(LogStartRaised(start))
        if len(self._raised) == len(self._links):
            self._raising = None
