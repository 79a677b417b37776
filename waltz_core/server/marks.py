"""Questions for the committed mark, answered only by a server that still owns the partition.

A question waits → is in a round of the store session → is answered with the committed mark when a quorum of storage
nodes has confirmed the round (`waltz_core.store.confirmations`). When the session ends first, it waits for the next.
Nobody gets a mark that was not confirmed: codec 5 is answered NOT_READY after a while, older codecs, which have no
such answer, wait.

A mount from ahead of the log is such a question, too: a server that was replaced unnoticed would tell a client that
has heard of its successor that it belongs to another log, which ends it. A mount can be answered NOT_READY always.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from waltz_core.base.ids import ReqId
from waltz_core.base.record import record
from waltz_core.base.turns import Shares
from waltz_core.server.feeds import Mount
from waltz_core.wire.client_codec import EXTENDED
from waltz_core.wire.client_messages import (
    ErrorCode,
    ErrorResponse,
    HighWaterMarkResponse,
    MountResponse,
    PartitionState,
)

PATIENCE_MS = 4_000
"""A client of codec 5 waits for so long; ours give up a silent server after the same time."""

Answer: TypeAlias = tuple[int, HighWaterMarkResponse | ErrorResponse | MountResponse]
"""A connection and the message for it."""


@record
class _Question:
    conn: int
    req_id: ReqId
    due: int | None  # when it gets NOT_READY; None = never
    mount: Mount | None = None  # what is to be answered, if that is not the mark


class MarkReads:
    """Questions of one partition, in the order in which they came.

    `held` counts what waits for each connection, in all partitions together.
    """

    __slots__ = ("_asked", "_due", "_held", "_waiting")

    def __init__(self, held: Shares) -> None:
        self._held = held
        self._waiting: list[_Question] = []  # for a round
        self._asked: deque[tuple[int, list[_Question]]] = deque()  # round, those in it
        self._due: int | None = None  # when the first one is overdue

    @property
    def wait(self) -> bool:
        """Somebody has no answer."""
        return bool(self._waiting or self._asked)

    @property
    def unasked(self) -> bool:
        """A round is wanted."""
        return bool(self._waiting)

    def ask(self, now: int, conn: int, owner: str, req_id: ReqId, version: int) -> None:
        """A client wants the mark."""
        self._held.add(conn, owner, 1)
        self._wait(_Question(conn, req_id, now + PATIENCE_MS if version >= EXTENDED else None))

    def ask_for_mount(self, now: int, mount: Mount) -> None:
        """A client mounts from ahead of the mark that we know."""
        self._held.add(mount.conn, mount.owner, 1)
        self._wait(_Question(mount.conn, mount.req_id, now + PATIENCE_MS, mount))

    def _wait(self, question: _Question) -> None:
        self._waiting.append(question)
        if self._due is None:
            self._due = question.due

    def begin(self, number: int) -> None:
        """Those that wait are in a round."""
        self._asked.append((number, self._waiting))
        self._waiting = []

    def confirmed(self, number: int, mark: int) -> list[Answer | Mount]:
        """A round, and all before it, is confirmed: the answers, and the mounts that can be answered now."""
        answers: list[Answer | Mount] = []
        while self._asked and self._asked[0][0] <= number:
            _, questions = self._asked.popleft()
            for one in questions:
                self._held.free(one.conn, 1)
                answers.append(one.mount or (one.conn, HighWaterMarkResponse(one.req_id, mark)))
        self._look()
        return answers

    def session_ended(self) -> None:
        """No round of it will be confirmed."""
        self._waiting = [one for _, questions in self._asked for one in questions] + self._waiting
        self._asked.clear()

    def overdue(self, now: int, why: str) -> list[Answer]:
        """NOT_READY for those that have waited long enough."""
        if self._due is None or now < self._due:
            return []
        late = [one for one in self._all() if one.due is not None and one.due <= now]
        self._keep(lambda one: one.due is None or one.due > now)
        return self._refused(late, why)

    def close(self, why: str) -> list[Answer]:
        """The partition goes. Clients of older codecs ask again when they mount at its next server."""
        refused = [one for one in self._all() if one.due is not None]
        for one in self._all():
            if one.due is None:
                self._held.free(one.conn, 1)
        self._keep(lambda one: False)
        return self._refused(refused, why)

    def gone(self, conn: int) -> None:
        """A connection ended: nobody waits for its answers."""
        if self._waiting or self._asked:
            self._keep(lambda one: one.conn != conn)

    def deadline(self) -> int | None:
        """When the first one is overdue."""
        return self._due

    def _all(self) -> Iterator[_Question]:
        for _, questions in self._asked:
            yield from questions
        yield from self._waiting

    def _keep(self, wanted: Callable[[_Question], bool]) -> None:
        self._asked = deque((number, list(filter(wanted, questions))) for number, questions in self._asked)
        self._waiting = list(filter(wanted, self._waiting))
        self._look()

    def _look(self) -> None:
        self._due = next((one.due for one in self._all() if one.due is not None), None)

    def _refused(self, questions: Sequence[_Question], why: str) -> list[Answer]:
        answers: list[Answer] = []
        for question in questions:
            self._held.free(question.conn, 1)
            if question.mount is None:
                answers.append((question.conn, ErrorResponse(question.req_id, ErrorCode.NOT_READY, why)))
            else:
                answers.append((question.conn, MountResponse(question.req_id, PartitionState.NOT_READY)))
        return answers
