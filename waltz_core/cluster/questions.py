"""The questions of a coordinator to ZooKeeper, each with its due time, and the pauses after failures.

A question without an answer in time has an unknown outcome. After any failure everything under way
is dropped, and reading begins again after a pause that grows with each failure and is short again after a success.
"""

from __future__ import annotations

from typing import TypeAlias

from waltz_core.base.attempts import Attempts
from waltz_core.base.contract import Rng, Tickets, earliest
from waltz_core.base.pending import Pending
from waltz_core.base.record import record

REQUEST_TIMEOUT_MS = 15_000
RETRY_FIRST_MS = 100
RETRY_MAX_MS = 2_000


@record
class ReadParameters:
    """A znode that every cluster has: its parameters, those of its store, or a counter of ids."""

    path: str


@record
class ReadReplicas:
    """The assignment of replicas to storage nodes."""


@record
class ListServers:
    """The names of all descriptors."""


@record
class ReadServers:
    """The assignment of partitions."""


@record
class ReadDescriptor:
    """One server."""

    name: str


@record
class TakeId:
    """The counter was raised to this number, unless another process was first."""

    number: int


@record
class WriteView:
    """A descriptor or the assignment: the next reading shows what became of it."""

    path: str


Question: TypeAlias = ReadParameters | ReadReplicas | ListServers | ReadServers | ReadDescriptor | TakeId | WriteView


@record
class _Asked:
    question: Question
    due: int


class Questions:
    """Questions that wait for an answer, and when the next one may be asked."""

    __slots__ = ("_asked", "_attempts", "_retry_at")

    def __init__(self, tickets: Tickets, rng: Rng) -> None:
        self._asked: Pending[_Asked] = Pending(tickets)
        self._attempts = Attempts(RETRY_FIRST_MS, RETRY_MAX_MS, rng)
        self._retry_at: int | None = None

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, now: int, question: Question) -> int:
        """A ticket for its request."""
        return self._asked.ask(_Asked(question, now + REQUEST_TIMEOUT_MS))

    def take(self, ticket: int) -> Question | None:
        """What an answer is for; None if nothing waits for it."""
        asked = self._asked.take(ticket)
        return None if asked is None else asked.question

    def drop(self) -> None:
        """Drop all questions."""
        self._asked.forget(lambda asked: True)

    def overdue(self, now: int) -> bool:
        """Whether some were not answered in time; they are dropped, and may still be carried out later."""
        return bool(self._asked.forget(lambda asked: asked.due <= now))

    def pausing(self, now: int) -> bool:
        """Whether a pause after a failure lasts; one that is over is forgotten."""
        if self._retry_at is not None and now < self._retry_at:
            return True
        self._retry_at = None
        return False

    def failed(self, now: int) -> None:
        """Ask nothing for a while."""
        self._retry_at = self._attempts.pause(now)

    def connected(self, connected: bool) -> None:
        """The session with ZooKeeper changed: what was under way is forgotten, and there is no reason to wait."""
        self.drop()
        self._retry_at = None
        if connected:
            self._attempts.hurry()

    def succeeded(self) -> None:
        """The next pause is a short one."""
        self._attempts.hurry()

    @property
    def due(self) -> int | None:
        """When the first answer is overdue."""
        return earliest(*(asked.due for asked in self._asked))

    @property
    def retry_at(self) -> int | None:
        """When the pause ends."""
        return self._retry_at
