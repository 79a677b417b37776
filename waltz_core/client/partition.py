"""One partition of a client: the parts of it, and what an event means for each.

```
 calls ────► Appends ──► server ──► feed ──► Appends (verdicts) ──► the application
    └──────► Delivery ◄──────────────┴─────► Delivery ───────────► the application
                 └► FeedWindow ──► server            Mounting ──► server, before everything else
```

- `Standing`: phase, connection, generation, request ids: what all the others ask about;
- `Mounting`: when it is mounted, and what the server's answer to that means;
- `Appends`: what was submitted, from its queue to its verdict; flushes; nudges;
- `Delivery`: how far the feed has come, seen, delivered and consumed; `FeedWindow`: how much of it is asked for;
- `OwnPayloads`: what was sent from here and is delivered here, which nobody need read at a server;
- `Patience`: when a server that owes an answer is suspected, and when it is given up.

Methods are events, and say which part takes part in which order. This file holds no data. What needs two parts is
decided here: an append waits for a mount that reaches the mark, a verdict may let the feed go back, or forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from waltz_core.base.ids import ReqId
from waltz_core.client.alarms import Due, MachineAlarms
from waltz_core.client.appends import Appends
from waltz_core.client.calls import PartitionStatus, Phase, Submit, SubmitMany
from waltz_core.client.context import ClientContext
from waltz_core.client.delivery import Delivery
from waltz_core.client.link import Link
from waltz_core.client.mounting import Mounting
from waltz_core.client.patience import Patience
from waltz_core.client.standing import Standing
from waltz_core.client.window import FeedWindow
from waltz_core.wire.client_messages import (
    AppendRefused,
    FeedData,
    FeedSuspended,
    FlushResponse,
    LockFailure,
    MountResponse,
    Refusal,
)

_ENDED = (Phase.CLIENT_AHEAD, Phase.BEFORE_START)  # no feed comes by itself


class ClientPartition:
    """Mounts a partition wherever it is served, follows its feed and judges its appends."""

    make_mounting: ClassVar[type[Mounting]] = Mounting
    make_patience: ClassVar[type[Patience]] = Patience

    __slots__ = (
        "_alarms",
        "_appends",
        "_delivery",
        "_mounting",
        "_own",
        "_patience",
        "_standing",
        "_window",
        "partition",
    )

    def __init__(self, partition: int, context: ClientContext) -> None:
        self.partition = partition
        self._alarms = MachineAlarms(self, context.alarms, context.doubts)
        self._standing = Standing(partition, context)
        self._delivery = Delivery(partition, context)
        self._own = context.own.of(partition)
        self._appends = Appends(context, self._standing, self._delivery)
        self._window = FeedWindow(self._standing, self._delivery, self._appends)
        self._mounting = self.make_mounting(context, self._standing, self._delivery, self._appends, self._window)
        self._patience = self.make_patience(context, self._standing, self._appends)

    # ---- for others to see -------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where the partition stands."""
        return self._standing.phase

    @property
    def link(self) -> Link | None:
        """The connection it lives on; messages of any other are not for it."""
        return self._standing.link

    @property
    def unused(self) -> bool:
        """No feed is delivered and nothing was ever appended."""
        return not self._delivery.active and not self._appends.used

    @property
    def wants_tail(self) -> bool:
        """The mark of the server is needed to begin."""
        return self._standing.phase is Phase.TAIL

    def status(self, now: int, owed_ms: int) -> PartitionStatus:
        """A snapshot for people and tests; `owed_ms`: how long a read of it is owed."""
        standing = self._standing
        return PartitionStatus(
            self.partition,
            standing.phase,
            standing.since_ms(now),
            None if standing.link is None else standing.link.endpoint,
            standing.generation,
            self._delivery.seen,
            self._delivery.delivered,
            self._appends.monitor.unresolved,
            self._appends.queued,
            owed_ms,
        )

    # ---- the beginning and the end -----------------------------------------------------------

    def open(self, now: int, mark: int | None, *, deliver: bool, feed: int = 0) -> None:
        """Begin, or begin to deliver, under the number of a feed; None = at the tail."""
        delivery, phase = self._delivery, self._standing.phase
        if deliver:
            self._own.moved()
            self._standing.feed = delivery.feed = feed
        if phase is Phase.BEFORE_START and deliver and mark is not None and mark > delivery.seen:
            # The caller has what the log lost from another source; no append is unresolved.
            delivery.active, delivery.gap = True, False
            self._begin(now, mark)
        elif phase is Phase.CLOSED:
            delivery.active, delivery.at_tail = deliver, deliver and mark is None
            if mark is None:
                self._standing.enter(now, Phase.TAIL)
            else:
                self._begin(now, mark)
        elif deliver:
            delivery.active, delivery.gap = True, False
            if mark is not None:
                self._deliver_from(now, mark)
            elif phase is Phase.TAIL:
                delivery.at_tail = True
            else:
                delivery.delivered = delivery.consumed = delivery.seen
                if phase in _ENDED:
                    self._mounting.mount(now)

    def on_tail(self, now: int, mark: int) -> None:
        """The server sent its mark, which was needed to begin at the tail."""
        if self._standing.phase is Phase.TAIL:
            self._delivery.begin_at_tail(mark)
            self._standing.enter(now, Phase.WAITING)
            self._mounting.mount(now)

    def stop_feed(self, now: int) -> None:
        """Stop delivering; appends go on at the tail where the feed has ended, as the log begins later."""
        self._window.stop()
        self._own.stopped()
        if self._standing.phase is Phase.BEFORE_START:
            self._standing.enter(now, Phase.TAIL)

    def close(self, now: int) -> None:
        """Give the partition up; only an idle one, or with the whole client."""
        self._mounting.close(now)
        self._own.stopped()

    def _begin(self, now: int, mark: int) -> None:
        self._delivery.begin(mark)
        self._standing.enter(now, Phase.WAITING)
        self._mounting.mount(now)

    def _deliver_from(self, now: int, mark: int) -> None:
        """Deliver from another mark on; a mount goes there, unless the feed comes there by itself.

        After one that has ended it goes to the same mark, too: the server is to say it to the new feed.
        """
        delivery = self._delivery
        delivery.move(mark)
        if not self._appends.monitor.unresolved and delivery.seen != mark:
            delivery.seen = mark
            if self._standing.phase is Phase.TAIL:
                self._standing.enter(now, Phase.WAITING)
            self._mounting.mount(now)
        elif mark < delivery.seen or self._standing.phase in _ENDED:
            self._mounting.mount(now)

    # ---- calls -------------------------------------------------------------------------------

    def submit(self, now: int, submits: Sequence[Submit], at: int, end: int) -> None:
        """Append transactions, `submits[at:end]`, as soon as the partition is mounted."""
        appends, link = self._appends, self._free_link()
        if link is None:
            for submit in submits[at:end]:
                appends.enqueue(submit)
                if self._standing.phase is Phase.MOUNTED:
                    self._drain(now)
        elif link.explains:
            appends.send_run(now, submits, at, end, link)
        else:
            for submit in submits[at:end]:
                appends.send(now, submit, link)

    def submit_many(self, now: int, call: SubmitMany) -> None:
        """Append the transactions of one call; what cannot leave at once goes the way of single ones."""
        link = self._free_link()
        if link is not None and link.explains:
            self._appends.send_many(now, call, link)
        else:
            self.submit(now, call.submits(), 0, len(call.tokens))

    def flush(self, now: int, token: object) -> None:
        """Tell when everything submitted so far has an outcome."""
        self._appends.flush(now, token)

    def consumed(self, now: int, mark: int) -> None:
        """The application is done with what was delivered up to `mark`."""
        self._window.consumed(now, mark)
        self._own.consumed(mark)

    def _free_link(self) -> Link | None:
        """The connection, if an append may leave over it at once."""
        standing, window = self._standing, self._window
        if standing.phase is not Phase.MOUNTED or self._appends.queued or window.parked or window.behind:
            return None
        return standing.link if standing.link is not None and standing.link.writable else None

    def _drain(self, now: int) -> None:
        """Send what is queued, once a mount has reached the mark and the feed that judges it is asked for."""
        link = self._standing.link
        assert link is not None
        if self._appends.queued:
            if self._window.behind:
                self._mounting.mount(now, onward=True)
                return
            if self._window.parked:
                self._window.ask()
        self._appends.send_queued(now, link)

    # ---- the connection ----------------------------------------------------------------------

    def place(self, now: int, link: Link | None, generation: int) -> None:
        """The partition lives on this connection from now on, or on none, under this generation."""
        self._mounting.place(now, link, generation)

    def on_link_ready(self, now: int) -> None:
        """The connection it lives on can be used."""
        self._mounting.mount(now)

    def on_link_lost(self, now: int) -> None:
        """The connection it lives on is gone; a successor may follow."""
        self._mounting.link_lost(now)

    def on_writable(self, now: int) -> None:
        """The connection takes more bytes."""
        if self._standing.phase is Phase.MOUNTED:
            self._drain(now)

    # ---- what the server says ----------------------------------------------------------------

    def on_feed(self, now: int, run: list[FeedData]) -> None:
        """A piece of the feed arrived. Whichever of our mounts it belongs to: what is committed is committed."""
        standing, delivery = self._standing, self._delivery
        if standing.session is None:
            return
        before, delivered = delivery.seen, delivery.delivered
        self._appends.fed(run)
        standing.progress_at = now
        if delivery.active:
            delivery.hand_on(run, before)
            self._window.moved(now)
        self._own.fed(run, delivered, delivery.delivered)
        if delivery.seen != before:
            self._appends.moved(now)
            self._after_verdicts(now)

    def on_mount_response(self, now: int, response: MountResponse) -> None:
        """The server has brought us up to its mark, or cannot.

        Raises:
            ProtocolError: a state that does not exist; 0.13.2 drops the connection too.
        """
        if self._mounting.answered(now, response):
            self._drain(now)

    def on_feed_suspended(self, message: FeedSuspended) -> None:
        """The window is used up; in a mount: it ends before the mark."""
        if message.req_id == self._standing.session:
            self._window.suspended()

    def on_lock_failure(self, now: int, message: LockFailure) -> None:
        """An append was refused because of its locks."""
        self._appends.lock_failure(now, message)
        self._after_verdicts(now)

    def on_refused(self, now: int, message: AppendRefused) -> None:
        """An append was refused, and the server says why."""
        self._appends.refused(now, message)
        self._after_verdicts(now)
        if message.refusal == Refusal.NOT_MOUNTED and self._standing.phase is Phase.MOUNTED:
            self._mounting.mount(now)

    def on_before_start(self, now: int, req_id: ReqId, text: str) -> None:
        """The log does not go back to where we are: what lies between was given up by the storage nodes."""
        self._mounting.before_start(now, req_id, text)

    def on_not_allowed(self, now: int, req_id: ReqId, text: str) -> None:
        """The role of this client does not include a request, which was not carried out."""
        if not self._mounting.not_allowed(now, req_id):
            self._appends.not_allowed(req_id, text)
            self._after_verdicts(now)

    def on_flush_response(self, now: int, message: FlushResponse) -> None:
        """Everything before the flush request is decided."""
        self._appends.flush_answered(now, message)
        self._after_verdicts(now)

    def _after_verdicts(self, now: int) -> None:
        appends, delivery = self._appends, self._delivery
        appends.answer_flushes()
        # A feed opened ahead of what we have seen could not move the mark while an append was unresolved.
        if delivery.active and delivery.delivered > delivery.seen and not appends.monitor.unresolved:
            self._deliver_from(now, delivery.delivered)
        if appends.lost_unnoticed():
            self._mounting.lost_unnoticed(now)

    # ---- time --------------------------------------------------------------------------------

    def set_alarms(self, now: int) -> None:
        """Set the alarm of every purpose to its present time."""
        alarms = self._alarms
        alarms.set(Due.WARNING, self._standing.warning_at())
        alarms.set(Due.MOUNT, self._mounting.retry_at)
        alarms.set(Due.RESUME, self._window.resume_at)
        alarms.set_by(Due.NUDGE, self._appends.nudge_at())
        alarms.set_by(Due.SILENCE, self._patience.ends_at())
        alarms.set_hurry(now)

    def hurry_at(self) -> int | None:
        """When others are to be asked who serves this partition."""
        return self._patience.hurry_at()

    def due(self, now: int, due: Due) -> bool:
        """An alarm rang: act if it is time; True when the connection is to be given up as dead."""
        self._alarms.rang(due)
        match due:
            case Due.WARNING:
                self._standing.warn(now)
            case Due.MOUNT:
                self._mounting.due(now)
            case Due.RESUME:
                self._window.due(now)
            case Due.NUDGE:
                self._appends.due(now)
            case Due.SILENCE if self._patience.ended(now):
                if self._patience.is_silent(now):
                    return True
                self._mounting.mount(now)  # the server lives, but does not know us: it will say so
        return False
