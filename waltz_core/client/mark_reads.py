"""Questions for the committed mark of one partition.

A mark says what was committed when the server read its question. A call must see every append that was acknowledged
before the call, so only a question that leaves after the call may answer it. While a question is in flight, calls
gather and share the next one: at most one is in flight, however many call. One that is not answered in time is asked
again, under a new number; a late answer to the earlier number still answers the calls before it.
"""

from __future__ import annotations

from collections import deque

from waltz_core.base.ids import ReqId, req_sequence
from waltz_core.base.record import record
from waltz_core.client.context import ClientContext
from waltz_core.client.read_link import ReadLink, following, reached
from waltz_core.wire.client_messages import HighWaterMarkRequest, HighWaterMarkResponse

_TAIL = object()
"""The caller that is the partition itself."""


@record
class MarkAnswer:
    """Whom a mark answers."""

    tail: bool = False  # the partition, which is to begin there
    tokens: tuple[object, ...] = ()  # calls of the application, by what it calls them


class MarkReads:
    """Who waits for the mark of one partition."""

    __slots__ = ("_calls", "_link", "_owed_at", "_question", "_settings", "again_at")

    def __init__(self, context: ClientContext, link: ReadLink) -> None:
        self._settings = context.settings
        self._link = link
        self._calls: deque[tuple[int, object]] = deque()  # (number of the first question that may answer, token)
        self._question: int | None = None  # number of the one in flight
        self._owed_at = 0  # when the one in flight was asked first
        self.again_at: int | None = None  # when to ask (again)

    def read_tail(self, now: int) -> None:
        """Ask so that the partition can begin there."""
        self.read(now, _TAIL)

    def read(self, now: int, token: object) -> None:
        """Ask; calls that come while a question is in flight share the next one."""
        self._calls.append((following(self._link.sequence), token))
        if self._question is None and self.again_at is None:
            self._ask(now)

    def forget(self, token: object) -> None:
        """A call has left; without any other, nothing is asked again."""
        calls = self._calls
        self._calls = deque(call for call in calls if call[1] is not token)
        if calls and not self._calls:
            self._question = self.again_at = None

    def link_ready(self, now: int) -> None:
        """The connection can be used."""
        if self._calls:
            self._ask(now)

    def link_lost(self) -> None:
        """No answer comes over the old connection any more."""
        self._question = self.again_at = None

    def answered(self, now: int, response: HighWaterMarkResponse) -> MarkAnswer:
        """Take the server's mark; returns the calls that it answers.

        A partition that is still opening is asked again. So is the server when calls came after the question.
        """
        sequence, calls = req_sequence(response.req_id), self._calls
        if not reached(self._link.sequence, sequence):
            return MarkAnswer()  # no question of ours
        if sequence == self._question:
            self._question = self.again_at = None
        if response.high_water_mark < -1:
            if calls and self._question is None:
                self.again_at = now + self._settings.not_ready_ms
            return MarkAnswer()
        answered = []
        while calls and reached(sequence, calls[0][0]):
            answered.append(calls.popleft()[1])
        if not calls:
            self._question = self.again_at = None
        elif self._question is None:
            self._ask(now)
        tokens = tuple(token for token in answered if token is not _TAIL)
        return MarkAnswer(len(tokens) < len(answered), tokens)

    def refused(self, now: int, req_id: ReqId, *, later: bool) -> MarkAnswer | None:
        """The server does not say what is committed; returns the calls that end by that. None: no question of ours.

        For want of a quorum it may say so `later`. Else it refuses, as it does to a role that may not read: the calls
        of the application end, and the partition goes on asking, as a mount does. After either, a pause.
        """
        sequence, calls = req_sequence(req_id), self._calls
        if sequence != self._question or not self._link.is_ours(req_id):
            return None
        self._question = None
        self.again_at = now + self._settings.not_ready_ms
        if later:
            return MarkAnswer()
        ended = [call for call in calls if call[1] is not _TAIL and reached(sequence, call[0])]
        self._calls = deque(call for call in calls if call not in ended)
        return MarkAnswer(tokens=tuple(token for _, token in ended))

    def due(self, now: int) -> None:
        """Ask again, if it is time."""
        if self.again_at is not None and now >= self.again_at:
            self.again_at = None
            if self._calls:
                self._ask(now)

    def owed_since(self) -> int | None:
        """Since when the server owes an answer."""
        return None if self._question is None else self._owed_at

    def _ask(self, now: int) -> None:
        self.again_at = None
        link = self._link.usable
        if link is None:
            return
        self.again_at = now + self._settings.mark_retry_ms
        if self._question is None:
            self._owed_at = now
        self._question = self._link.take()
        link.send(HighWaterMarkRequest(self._link.req_id(self._question)))
