"""The appends of a partition: queued, sent once, in order, and followed until each has an outcome.

```
 submit ──► queue ──► sent ──► judged by the feed, a refusal or a flush (TransactionMonitor)
   └──────────────────► │ ▲      │
                        │ └ nudge: a flush behind appends that are old
                        └──────► given up with the client, or a log that cannot be followed
```

They leave in the order of their submits, over one connection, and each only once: an append that overtook another would
break every verdict of the monitor. So nothing here retries. What lost its connection stays with the monitor, which
judges it by the feed of the next mount and the flush behind that.

Each submit has an *ordinal*. A flush of the application waits for the ordinals before it, in order; one request to
the server covers every ordinal that was sent before it. The queue is in memory only, like the appends themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from waltz_core.base.contract import earliest
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId, make_req_id, req_sequence
from waltz_core.client.calls import Failed, Flushed, Phase, Reason, Submit, SubmitMany
from waltz_core.client.context import ClientContext
from waltz_core.client.delivery import Delivery
from waltz_core.client.feed_runs import mark_after
from waltz_core.client.link import Link
from waltz_core.client.monitor import TransactionMonitor
from waltz_core.client.own_payloads import GUARDS_IDS_VERSION
from waltz_core.client.standing import Standing
from waltz_core.wire.client_messages import (
    AppendRefused,
    AppendRequest,
    FeedData,
    FlushRequest,
    FlushResponse,
    LockFailure,
    NamedAppendRequest,
    Refusal,
)
from waltz_core.wire.lock_names import NO_NAMES

_REASONS: dict[int, Reason] = {  # for which an append is not in the log; all others are Reason.OTHER
    Refusal.TOO_LARGE: Reason.REFUSED,
    Refusal.NOT_ALLOWED: Reason.REFUSED,
    Refusal.GENERATION: Reason.NOT_NOW,
    Refusal.NOT_MOUNTED: Reason.NOT_NOW,
    Refusal.NOT_SERVED: Reason.NOT_NOW,
    Refusal.NOT_READY: Reason.NOT_NOW,
    Refusal.OVERLOADED: Reason.NOT_NOW,
}


class Appends:
    """What an application appends to one partition."""

    __slots__ = (
        "_asked_at",
        "_client_id",
        "_delivery",
        "_held_at",
        "_lock_names",
        "_nudge_ms",
        "_nudged",
        "_out",
        "_own",
        "_queue",
        "_requested",
        "_requested_at",
        "_standing",
        "_submitted",
        "_waiters",
        "monitor",
    )

    def __init__(self, context: ClientContext, standing: Standing, delivery: Delivery) -> None:
        self._own = own = context.own.of(standing.partition)
        self.monitor = TransactionMonitor(standing.partition, context.out, own)
        self._out = context.out
        self._client_id = context.client_id
        self._lock_names = context.settings.lock_names
        self._nudge_ms = context.settings.nudge_ms
        self._standing = standing
        self._delivery = delivery
        self._queue: deque[Submit] = deque()  # not sent yet
        self._submitted = 0  # ordinal of the last submit
        self._waiters: deque[tuple[int, object]] = deque()  # (ordinal, token) of flushes
        self._requested = 0  # ordinal covered by the last flush request on this connection
        self._requested_at = 0
        self._asked_at: int | None = None  # since when a flush request is not answered
        self._held_at: int | None = None  # since when an answer waits for the feed
        self._nudged: int | None = None  # attempts lost when the last nudge was sent

    # ---- for others to see -------------------------------------------------------------------

    @property
    def used(self) -> bool:
        """Something was ever appended."""
        return self._submitted > 0

    @property
    def queued(self) -> int:
        """Appends not sent yet."""
        return len(self._queue)

    @property
    def judged(self) -> bool:
        """Every append has an outcome."""
        return not self._queue and not self.monitor.unresolved

    @property
    def _keeps(self) -> bool:
        """A feed wants payloads: it need not read those that are sent now."""
        return self._own.wanted and self._delivery.active

    # ---- on their way to the server ----------------------------------------------------------

    def enqueue(self, submit: Submit) -> None:
        """Send it when that is possible, or fail it where the log cannot be followed."""
        self._submitted += 1
        phase = self._standing.phase
        if phase is Phase.CLIENT_AHEAD:
            self._fail(submit, Reason.CLIENT_AHEAD)
        elif phase is Phase.BEFORE_START:
            self._fail(submit, Reason.BEFORE_START)
        else:
            self._queue.append(submit)

    def send(self, now: int, submit: Submit, link: Link) -> None:
        """Send it at once: nothing is queued before it."""
        self._submitted += 1
        self._send(now, submit, self._submitted, link)

    def send_run(self, now: int, submits: Sequence[Submit], at: int, end: int, link: Link) -> None:
        """Send `submits[at:end]` at once, to a server that explains refusals."""
        standing = self._standing
        prefix = make_req_id(self._client_id, standing.generation, standing.partition, 0)[:12]
        req_ids = link.send_appends(submits, at, end, prefix, standing.sequence, self._delivery.seen, self._lock_names)
        standing.sequence = req_sequence(req_ids[-1])
        run = submits[at:end]
        self.monitor.register_run(now, self._submitted + 1, req_ids, [submit.token for submit in run])
        if self._keeps:
            self._own.sending(req_ids, [submit.data for submit in run])
        self._submitted += end - at

    def send_many(self, now: int, call: SubmitMany, link: Link) -> None:
        """Send all rows of a call at once, to a server that explains refusals."""
        standing = self._standing
        prefix = make_req_id(self._client_id, standing.generation, standing.partition, 0)[:12]
        mark = self._delivery.seen if call.client_mark is None else call.client_mark
        req_ids = link.send_columns(call.columns, prefix, standing.sequence, mark, self._lock_names)
        standing.sequence = req_sequence(req_ids[-1])
        self.monitor.register_run(now, self._submitted + 1, req_ids, call.tokens)
        if self._keeps:
            self._own.sending(req_ids, call.columns.payloads)
        self._submitted += len(req_ids)

    def send_queued(self, now: int, link: Link) -> None:
        """Send what is queued, as far as the connection takes it, and the flush that waits behind it."""
        queue = self._queue
        while queue and link.writable:
            submit = queue.popleft()
            self._send(now, submit, self._submitted - len(queue), link)
        if self._waiters:
            self.answer_flushes()
            self._request_flush(now)

    def _send(self, now: int, submit: Submit, ordinal: int, link: Link) -> None:
        req_id = self._standing.next_req_id()
        mark = submit.client_mark
        if mark is None:
            mark = self._delivery.seen
        fields = (
            req_id,
            mark,
            submit.write_locks,
            submit.read_locks,
            submit.append_locks,
            submit.header,
            submit.data,
            submit.checksum,
        )
        request: AppendRequest | NamedAppendRequest
        if link.explains:
            request = NamedAppendRequest(*fields, submit.names if self._lock_names else NO_NAMES)
        else:
            request = AppendRequest(*fields)
        try:
            link.send(request)
        except ProtocolError as error:
            self._out.put(Failed(self._standing.partition, submit.token, Reason.REFUSED, text=str(error)))
            return
        self.monitor.register(now, ordinal, req_id, submit.token)
        if self._keeps and link.version >= GUARDS_IDS_VERSION:
            self._own.sending((req_id,), (submit.data,))

    def _fail(self, submit: Submit, reason: Reason) -> None:
        self._out.put(Failed(self._standing.partition, submit.token, reason))

    # ---- verdicts ----------------------------------------------------------------------------

    def fed(self, run: list[FeedData]) -> None:
        """Judge by a piece of the feed, which moves the mark of what was seen."""
        delivery = self._delivery
        before = delivery.seen
        delivery.seen = self.monitor.on_feed(run, before) if self.monitor.unresolved else mark_after(run, before)

    def moved(self, now: int) -> None:
        """The mark of what was seen has moved: an answer that waited for it may have been given."""
        if self._held_at is not None:
            self._note_held(now)

    def lock_failure(self, now: int, message: LockFailure) -> None:
        """An append was refused because of its locks."""
        self.monitor.on_lock_failure(message.req_id, message.transaction_id, self._delivery.seen)
        self._note_held(now)

    def refused(self, now: int, message: AppendRefused) -> None:
        """An append was refused, and the server says why."""
        if message.refusal == Refusal.LOCK:
            self.monitor.on_lock_failure(message.req_id, message.transaction_id, self._delivery.seen, message)
            self._note_held(now)
        else:
            reason = _REASONS.get(message.refusal, Reason.OTHER)
            self.monitor.on_refused(message.req_id, reason, message.message or "no reason given")

    def not_allowed(self, req_id: ReqId, text: str) -> None:
        """The role of this client does not include an append."""
        self.monitor.on_refused(req_id, Reason.REFUSED, text)

    def flush_answered(self, now: int, message: FlushResponse) -> None:
        """Everything before the flush request is decided."""
        self._asked_at = None
        self.monitor.on_flush_response(message.req_id, message.transaction_id, self._delivery.seen)
        self._note_held(now)

    def lost_unnoticed(self) -> bool:
        """A nudge found that something was lost without a word: its server may not know our mount. Asked once."""
        if self._nudged is None or self.monitor.lost <= self._nudged:
            return False
        self._nudged = None
        return True

    def give_up(self, reason: Reason) -> None:
        """End every append without a verdict."""
        self.monitor.give_up(reason)
        self._out.put_all(Failed(self._standing.partition, submit.token, reason) for submit in self._queue)
        self._queue.clear()
        self.answer_flushes()

    # ---- the connection and its mounts -------------------------------------------------------

    def link_lost(self) -> None:
        """No answer comes any more; who was judged by none is judged after the next mount."""
        self.monitor.on_link_lost()
        self._asked_at = None

    def remounted(self) -> None:
        """A mount is asked for: earlier flush requests and nudges say nothing about this one."""
        self._requested = 0
        self._nudged = None
        self._own.drop_sent()

    def mounted(self, now: int) -> None:
        """The feed has come as far as the mount goes: a flush judges what it did not show."""
        if self.monitor.unresolved:
            self._send_flush(now)

    # ---- flushes -----------------------------------------------------------------------------

    def flush(self, now: int, token: object) -> None:
        """Tell when everything submitted so far has an outcome."""
        self._waiters.append((self._submitted, token))
        self.answer_flushes()
        self._request_flush(now)

    def answer_flushes(self) -> None:
        """Tell those flushes that wait for nothing any more."""
        waiters = self._waiters
        if not waiters:
            return
        oldest = self.monitor.oldest()
        undecided = oldest[0] if oldest is not None else self._submitted - len(self._queue) + 1
        while waiters and waiters[0][0] < undecided:
            self._out.put(Flushed(self._standing.partition, waiters.popleft()[1]))

    def _request_flush(self, now: int) -> None:
        """Flush for the waiters, unless the last flush request covers them or appends are still queued."""
        ready = self._standing.phase is Phase.MOUNTED and not self._queue
        if ready and self._waiters and self._requested < self._waiters[-1][0]:
            self._send_flush(now)

    def _send_flush(self, now: int) -> None:
        req_id = self.monitor.begin_flush()
        link = self._standing.link
        assert req_id is not None, "a flush with nothing to judge"
        assert link is not None
        self._requested = self._submitted - len(self._queue)
        self._requested_at = now
        if self._asked_at is None:
            self._asked_at = now
        link.send(FlushRequest(req_id))

    # ---- time --------------------------------------------------------------------------------

    def nudge_at(self) -> int | None:
        """When an append without an outcome is asked about: the server may have dropped it without a word."""
        if self._standing.phase is not Phase.MOUNTED:
            return None
        oldest = self.monitor.oldest()
        return None if oldest is None else max(oldest[3], self._requested_at) + self._nudge_ms

    def due(self, now: int) -> None:
        """Nudge, if it is time."""
        at = self.nudge_at()
        if at is not None and now >= at:
            self._nudged = self.monitor.lost
            self._send_flush(now)

    def unanswered_since(self) -> int | None:
        """Since when the server owes the answer to a flush, or the feed that an answer waits for."""
        if not self.monitor.unresolved:
            return None
        held = None if self._held_at is None else max(self._standing.progress_at, self._held_at)
        return earliest(self._asked_at, held)

    def _note_held(self, now: int) -> None:
        if not self.monitor.holding:
            self._held_at = None
        elif self._held_at is None:
            self._held_at = now
