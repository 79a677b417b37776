"""Where the log of a partition begins: what is below was given up on purpose, and nobody is given it.

The log start is on a quorum of replicas before it counts (`waltz_core.store.log_start`); it only rises. A client asks
to raise it → the session asks the replicas → all that waited for a start up to the new one are answered. A session
that ends first answers them NOT_READY: the replicas may or may not have it, and asking again is safe.
"""

from __future__ import annotations

from waltz_core.base.edge import CloseConn, Level, Report
from waltz_core.base.ids import ReqId
from waltz_core.server.context import ClientEffect, NodeContext, Reply
from waltz_core.server.ownership import Ownership
from waltz_core.server.ranges import before_start
from waltz_core.store.session_notes import LogStartProblem
from waltz_core.wire import client_messages as messages
from waltz_core.wire.client_codec import EXTENDED


class LogBeginning:
    """The smallest id that storage nodes hold, and, where an archive is read through, the smallest that it does."""

    __slots__ = ("_clients", "_out", "_partition_id", "archive", "archived", "present")

    def __init__(self, archive: str, context: NodeContext, partition_id: int) -> None:
        self.present = 0
        self.archived: int | None = None  # first id that is served from the archive, if any is
        self.archive = archive  # where to find what is below it, for people
        self._out = context.out
        self._clients = context.clients
        self._partition_id = partition_id

    @property
    def floor(self) -> int:
        """The smallest id that clients can read."""
        return self.present if self.archived is None else min(self.present, self.archived)

    def refuses(self, conn: int, req_id: ReqId, client_mark: int, version: int) -> bool:
        """Whether a feed behind `client_mark` would begin below what can be read, which its client must learn."""
        wanted = max(client_mark, -1) + 1
        if wanted >= self.floor:
            return False
        answer = before_start(req_id, wanted, self.floor, self.archive)
        refusal: ClientEffect = Reply(conn, answer)
        if version < EXTENDED:
            refusal = CloseConn(conn, f"partition {self._partition_id}: {answer.message}")
        self._clients.put(refusal)
        return True

    def rises(self, start: int) -> bool:
        """A quorum has given up what is below `start`; False if that was known."""
        if start <= self.present:
            return False
        self.present = start
        text = f"partition {self._partition_id}: the log begins at {start}: what is before it was given up"
        self._out.put(Report(Level.INFO, text))
        return True


class LogStart(LogBeginning):
    """The same, and who waits for it to rise."""

    __slots__ = ("_ownership", "_waiting")

    def __init__(self, archive: str, context: NodeContext, ownership: Ownership) -> None:
        super().__init__(archive, context, ownership.partition_id)
        self._ownership = ownership
        self._waiting: list[tuple[int, ReqId, int]] = []  # who waits for which log start

    def ask(self, conn: int, req_id: ReqId, start: int, mark: int) -> bool:
        """Somebody gives up what is below `start`; `LogStartResponse` once a quorum has done so durably.

        Returns whether a new session must begin first: it marks everything there is, and then it can be.
        """
        session = self._ownership.session
        code, text, again = messages.ErrorCode.NOT_READY, "the partition is not open", False
        if not 0 <= start <= mark + 1:
            code, text = messages.ErrorCode.INVALID, f"expected a log start of 0 to {mark + 1}, found {start}"
        elif start <= self.present:
            self._clients.put(Reply(conn, messages.LogStartResponse(req_id, self.present, mark)))
            return False
        elif self._ownership.open and session is not None:
            problem = session.log_start.problem(start)
            if problem is None:
                self._waiting.append((conn, req_id, start))
                session.log_start.raise_to(start)
                return False
            text = problem[1]
            if start > session.low_water_mark + 1 and problem[0] is LogStartProblem.NOT_READY:
                again = True
                text += "; a new one begins as soon as ZooKeeper answers"
            if problem[0] is LogStartProblem.NOT_POSSIBLE:
                code = messages.ErrorCode.NOT_IMPLEMENTED
        self._clients.put(Reply(conn, messages.ErrorResponse(req_id, code, text)))
        return again

    def answer(self, mark: int, why_not: str = "") -> None:
        """Tell those who asked for a log start, once it is raised or cannot be any more."""
        for conn, req_id, start in self._waiting:
            answer: messages.LogStartResponse | messages.ErrorResponse
            if start <= self.present:
                answer = messages.LogStartResponse(req_id, self.present, mark)
            else:
                answer = messages.ErrorResponse(req_id, messages.ErrorCode.NOT_READY, why_not)
            self._clients.put(Reply(conn, answer))
        self._waiting = []
