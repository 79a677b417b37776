"""Verdicts on the appends of one partition, from what its server sends.

Java: TransactionMonitor. There is no answer to an append; its own id in the feed is the only proof
that it committed. That it did not commit follows in exactly three ways: an own later append was seen
in the feed; a flush behind it was answered and the feed has been seen up to the mark of the answer;
its locks were refused and the blocking transaction has been seen. The first two hold because the
appends of one client to one partition leave in order over one connection and are never reordered.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count, repeat

from waltz_core.base.ids import ReqId
from waltz_core.base.outbox import Emits
from waltz_core.base.twins import twin
from waltz_core.client.calls import Committed, Effect, Failed, Reason
from waltz_core.client.own_payloads import OwnPayloads
from waltz_core.wire.client_messages import AppendRefused, FeedData

Attempt = tuple[int, ReqId, object, int]
"""Ordinal of the submit, request id, token, time of sending."""


@twin
def judge_run(
    run: Sequence[FeedData],
    at: int,
    seen: int,
    sent: dict[ReqId, Attempt],
    order: deque[Attempt],
    committed: list[tuple[object, int]],
) -> tuple[int, int]:
    """Judge by the feed from `run[at]` on, up to an attempt of ours that is not the oldest in `order`.

    Those that committed are taken out of `sent` and `order`, and their tokens and ids appended to `committed`. An id
    other than the next one is passed over.

    Returns:
        Where in the run that attempt is (the end if there is none), and the mark before it.
    """
    for place in range(at, len(run)):
        record = run[place]
        if record.transaction_id != seen + 1:
            continue
        attempt = sent.get(record.req_id)
        if attempt is not None:
            if order[0] is not attempt:
                return place, seen
            del sent[record.req_id]
            order.popleft()
            committed.append((attempt[2], record.transaction_id))
        seen += 1
    return len(run), seen


class TransactionMonitor:
    """Unresolved attempts in the order of sending, and answers that wait for the feed."""

    __slots__ = (
        "_explained",
        "_flushes",
        "_held_failures",
        "_held_flushes",
        "_last",
        "_order",
        "_out",
        "_own",
        "_partition",
        "_sent",
        "lost",
    )

    def __init__(self, partition: int, out: Emits[Effect], own: OwnPayloads) -> None:
        self._partition = partition
        self._out = out
        self._own = own
        self.lost = 0  # attempts that vanished: judged by a flush
        self._sent: dict[ReqId, Attempt] = {}
        # Attempts in order; may hold settled ones, which are no longer in `_sent`.
        self._order: deque[Attempt] = deque()
        self._last: Attempt | None = None
        self._flushes: dict[ReqId, int] = {}  # flush requests on their way: id → ordinal they cover
        self._held_flushes: deque[tuple[int, int]] = deque()  # (mark of the answer, ordinal), first come first served
        self._held_failures: list[tuple[int, int, ReqId]] = []  # heap by blocking id
        self._explained: dict[ReqId, AppendRefused] = {}  # of those that the server explained

    @property
    def unresolved(self) -> int:
        """Attempts sent and not judged."""
        return len(self._sent)

    @property
    def holding(self) -> bool:
        """An answer waits for the feed."""
        return bool(self._held_failures or self._held_flushes)

    def oldest(self) -> Attempt | None:
        """The unresolved attempt that was sent first."""
        order, sent = self._order, self._sent
        while order and order[0][1] not in sent:
            order.popleft()
        return order[0] if order else None

    def register(self, now: int, ordinal: int, req_id: ReqId, token: object) -> None:
        """An attempt is being sent; ordinals grow."""
        self._last = attempt = (ordinal, req_id, token, now)
        self._sent[req_id] = attempt
        self._order.append(attempt)

    def register_run(self, now: int, ordinal: int, req_ids: list[ReqId], tokens: Iterable[object]) -> None:
        """Attempts are being sent, the first of which has this ordinal."""
        attempts: list[Attempt] = list(zip(count(ordinal), req_ids, tokens, repeat(now), strict=False))
        if attempts:
            self._sent.update(zip(req_ids, attempts, strict=True))
            self._order.extend(attempts)
            self._last = attempts[-1]

    def on_feed(self, run: Sequence[FeedData], seen: int) -> int:
        """Judge by a piece of the feed; returns the new mark. An id other than the next one is passed over."""
        before = seen
        sent, order = self._sent, self._order
        committed: list[tuple[object, int]] = []
        at = 0
        while True:
            at, seen = judge_run(run, at, seen, sent, order, committed)
            if at == len(run):
                break
            # Own, but not the oldest: those before it were refused, or overtaken.
            attempt = sent.pop(run[at].req_id)
            at += 1
            seen += 1
            if self._held_failures:
                self._release_failures(seen)  # known to be refused, not overtaken
            self._fail_before(attempt)
            committed.append((attempt[2], seen))
        if committed:
            self._out.put(Committed(self._partition, committed))
        if seen != before and (self._held_failures or self._held_flushes):
            self._release(seen)
        self._drop_moot()
        return seen

    def on_lock_failure(self, req_id: ReqId, blocking_id: int, seen: int, why: AppendRefused | None = None) -> None:
        """The server refused an attempt; believed once the blocking transaction has been seen."""
        attempt = self._sent.get(req_id)
        if attempt is not None:
            if why is not None:
                self._explained[req_id] = why
            heapq.heappush(self._held_failures, (blocking_id, attempt[0], req_id))
            self._release(seen)
            self._drop_moot()

    def on_refused(self, req_id: ReqId, reason: Reason, text: str) -> None:
        """The server said why it will not take an attempt."""
        attempt = self._sent.pop(req_id, None)
        if attempt is not None:
            self._fail(attempt, reason, text=text)
            self._drop_moot()

    def begin_flush(self) -> ReqId | None:
        """The request id that a flush request must carry, None when there is nothing to judge."""
        if not self._sent or self._last is None:
            return None
        ordinal, req_id, _, _ = self._last
        self._flushes[req_id] = ordinal
        return req_id

    def on_flush_response(self, req_id: ReqId, mark: int, seen: int) -> None:
        """Everything up to `req_id` is decided; what committed of it has ids up to `mark`."""
        ordinal = self._flushes.pop(req_id, None)
        # Java: a mark below -1 means that the store is not open, which decides nothing.
        if ordinal is None or mark < -1:
            return
        held = self._held_flushes
        if not held or held[-1][1] < ordinal or mark < held[-1][0]:  # else an answer that waits already says more
            held.append((mark, ordinal))
            self._release(seen)
            self._drop_moot()

    def on_link_lost(self) -> None:
        """No answer to an earlier flush request can come any more."""
        self._flushes.clear()

    def give_up(self, reason: Reason) -> None:
        """End every attempt without a verdict."""
        for attempt in self._sent.values():
            self._fail(attempt, reason)
        self._sent.clear()
        self._order.clear()
        self._flushes.clear()
        self._held_flushes.clear()
        self._held_failures.clear()
        self._explained.clear()

    def _release_failures(self, seen: int) -> None:
        failures = self._held_failures
        while failures and failures[0][0] <= seen:
            blocking_id, _, req_id = heapq.heappop(failures)
            attempt = self._sent.pop(req_id, None)
            why = self._explained.pop(req_id, None)
            if attempt is not None:
                self._fail(attempt, Reason.LOCK, blocking_id, refusal=why)

    def _release(self, seen: int) -> None:
        self._release_failures(seen)
        flushes = self._held_flushes
        while flushes and flushes[0][0] <= seen:
            _, ordinal = flushes.popleft()
            order = self._order
            while order and order[0][0] <= ordinal:
                attempt = self._sent.pop(order.popleft()[1], None)
                if attempt is not None:
                    self.lost += 1
                    self._fail(attempt, Reason.FLUSHED)

    def _drop_moot(self) -> None:
        """Answers that wait, and have nothing left to judge.

        The transaction that a refusal blames may have been in flight, and never commit: its id is not seen as long
        as nobody else commits. If the refused attempt was judged by a flush meanwhile, the refusal would wait on,
        and the next append would look as if it had waited for the feed all that time.
        """
        if not self._sent:
            self._order.clear()
            self._held_failures.clear()
            self._held_flushes.clear()
            self._explained.clear()

    def _fail_before(self, attempt: Attempt) -> None:
        while (earlier := self._order.popleft()) is not attempt:
            if self._sent.pop(earlier[1], None) is not None:
                self._fail(earlier, Reason.OVERTAKEN)

    def _fail(
        self,
        attempt: Attempt,
        reason: Reason,
        blocking_id: int = -1,
        *,
        text: str = "",
        refusal: AppendRefused | None = None,
    ) -> None:
        self._own.failed(attempt[1])
        self._out.put(Failed(self._partition, attempt[2], reason, blocking_id, text, refusal))
