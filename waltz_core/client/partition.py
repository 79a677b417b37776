"""One partition of a client: mount, feed, appends and their outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from struct import Struct

from waltz_core.base.contract import earliest
from waltz_core.base.edge import Level, Report
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import Endpoint, ReqId, make_req_id
from waltz_core.base.rules import SafetyRules
from waltz_core.client.calls import (
    Deliver,
    Effect,
    Failed,
    Flushed,
    PartitionStatus,
    Phase,
    Reason,
    StatusChanged,
    Submit,
)
from waltz_core.client.link import Link
from waltz_core.client.monitor import TransactionMonitor
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import (
    AppendRefused,
    AppendRequest,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FeedWindowRequest,
    FlushRequest,
    FlushResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    NamedAppendRequest,
    PartitionState,
    Refusal,
)

_SETTLED = (Phase.CLOSED, Phase.MOUNTED, Phase.CLIENT_AHEAD, Phase.BEFORE_START)  # nothing is under way
_REQ_ID = Struct(">iiii").pack  # as make_req_id, for the hot path
_COUNT_MAX = (1 << 31) - 1
_RESUME_MS = 100  # a feed that has been quiet for this long is not what fills the buffer


class ClientPartition:
    """Mounts a partition wherever it is served, follows its feed and judges its appends.

    States: CLOSED → (TAIL →) WAITING → MOUNTING → MOUNTED; MOUNTING → NOT_READY → MOUNTING after a pause;
    MOUNTING → CLIENT_AHEAD or BEFORE_START until the next mount. Losing the connection leads from anywhere to WAITING.

    Two marks. `seen`: every transaction up to it was received and judged; it never goes back and is never
    set from outside while an append is unresolved, because an own transaction that is skipped would be
    judged lost and be executed twice. `delivered`: what the application got. It lags behind `seen` when
    the application is slow (what does not fit is dropped and asked for again) or has opened its feed at
    an older mark.

    Servers that take feed windows are asked for what there is room for, and cut mounts short, so that a
    transaction comes once to be delivered, and at most once before that to judge an append. Whoever has
    an append to send mounts on and on until a mount reaches the mark: an append that carries an old mark
    is refused for locks that its client might have known. Others go on with windows.

    Appends leave in the order of their submits, over one connection, never again: overtaking would break
    every verdict of the monitor.
    """

    __slots__ = (
        "_behind",
        "_client_id",
        "_consumed",
        "_cut",
        "_delivered",
        "_delivering",
        "_flush_asked_at",
        "_flush_sent",
        "_flush_sent_at",
        "_flush_waiters",
        "_gap",
        "_held_at",
        "_link",
        "_nudged",
        "_parked",
        "_phase",
        "_progress_at",
        "_queue",
        "_resume_at",
        "_retry_at",
        "_rules",
        "_seen",
        "_sequence",
        "_session",
        "_settings",
        "_since",
        "_submitted",
        "_tail_delivery",
        "_warned",
        "_windows",
        "generation",
        "monitor",
        "partition",
    )

    def __init__(self, partition: int, client_id: int, settings: ClientSettings, rules: SafetyRules) -> None:
        self.partition = partition
        self.generation = -1
        self.monitor = TransactionMonitor(partition)
        self._client_id = client_id
        self._settings, self._rules = settings, rules
        self._phase = Phase.CLOSED
        self._since = 0
        self._warned = False
        self._link: Link | None = None
        self._sequence = 0
        self._session: ReqId | None = None  # request id of the last mount on this connection
        self._cut = False  # that mount ends before the server's mark
        self._behind = False  # no mount has brought us to the mark since we asked for less than there is
        self._seen = -1
        # delivery
        self._delivering = False
        self._delivered = self._consumed = -1
        self._tail_delivery = False  # a feed waits for the mark of the tail
        self._gap = False  # a transaction after `_delivered` was dropped: the buffer was full
        self._windows = 0  # feed requests not yet answered by FeedSuspended
        self._parked = False  # suspended and not asked for more
        self._resume_at: int | None = None
        # appends
        self._queue: deque[Submit] = deque()  # not sent yet
        self._submitted = 0  # ordinal of the last submit
        self._flush_waiters: deque[tuple[int, object]] = deque()
        self._flush_sent = 0  # ordinal covered by the last flush request on this connection
        self._flush_sent_at = 0
        self._flush_asked_at: int | None = None  # since when a flush is not answered
        self._held_at: int | None = None  # since when an answer waits for the feed
        self._progress_at = 0  # when the feed moved last
        self._nudged: int | None = None  # attempts lost when the last nudge was sent
        self._retry_at: int | None = None

    # ---- what is asked of it -------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where the partition stands."""
        return self._phase

    @property
    def link(self) -> Link | None:
        """The connection it lives on; messages of any other are not for it."""
        return self._link

    @property
    def unused(self) -> bool:
        """No feed is delivered and nothing was ever appended."""
        return not self._delivering and not self._submitted

    @property
    def wants_tail(self) -> bool:
        """The mark of the server is needed to begin."""
        return self._phase is Phase.TAIL

    def open(self, mark: int | None, deliver: bool, now: int, out: list[Effect]) -> None:
        """Begin, or begin to deliver; None = at the tail."""
        if self._phase is Phase.BEFORE_START and deliver and mark is not None and mark > self._seen:
            # Whoever opens it has got what the log has no more from elsewhere; no append is unresolved.
            self._delivering, self._gap = True, False
            self._seen = self._delivered = self._consumed = mark
            self._enter(Phase.WAITING, now, out)
            self._try_mount(now, out)
        elif self._phase is Phase.CLOSED:
            self._delivering, self._tail_delivery = deliver, deliver and mark is None
            if mark is None:
                self._enter(Phase.TAIL, now, out)
            else:
                self._seen = self._delivered = self._consumed = mark
                self._enter(Phase.WAITING, now, out)
                self._try_mount(now, out)
        elif deliver:
            self._delivering, self._gap = True, False
            if mark is not None:
                self._deliver_from(mark, now, out)
            elif self._phase is Phase.TAIL:
                self._tail_delivery = True
            else:
                self._delivered = self._consumed = self._seen

    def on_tail(self, mark: int, now: int, out: list[Effect]) -> None:
        """The server told its mark, which was needed to begin at the tail."""
        if self._phase is not Phase.TAIL:
            return
        self._seen = mark
        if self._tail_delivery or not self._delivering:
            self._delivered = self._consumed = mark
        self._tail_delivery = False
        self._enter(Phase.WAITING, now, out)
        self._try_mount(now, out)

    def stop_feed(self) -> None:
        """Deliver no more."""
        self._delivering = self._gap = self._tail_delivery = False
        self._resume_at = None
        if self._parked and self._phase is Phase.MOUNTED:
            self._ask_feed()

    def close(self, now: int, out: list[Effect]) -> None:
        """Give the partition up; only an idle one, or with the whole client."""
        self._forget_link()
        self.give_up(Reason.CLOSED, out)
        self._delivering = self._gap = self._tail_delivery = False
        self._link = None
        self._enter(Phase.CLOSED, now, out)

    def give_up(self, reason: Reason, out: list[Effect]) -> None:
        """End every append without a verdict."""
        self.monitor.give_up(reason, out)
        out.extend(Failed(self.partition, submit.token, reason) for submit in self._queue)
        self._queue.clear()
        self._answer_flushes(out)

    def submit(self, submit: Submit, now: int, out: list[Effect]) -> None:
        """Append a transaction, as soon as the partition is mounted."""
        self._submitted += 1
        link = self._link
        ready = self._phase is Phase.MOUNTED and not self._queue and not self._parked and not self._behind
        if ready and link is not None and link.writable:
            self._send_append(submit, self._submitted, link, now, out)
        elif self._phase is Phase.CLIENT_AHEAD:
            out.append(Failed(self.partition, submit.token, Reason.CLIENT_AHEAD))
        elif self._phase is Phase.BEFORE_START:
            out.append(Failed(self.partition, submit.token, Reason.BEFORE_START))
        else:
            self._queue.append(submit)
            if self._phase is Phase.MOUNTED:
                self._drain(now, out)

    def flush(self, token: object, now: int, out: list[Effect]) -> None:
        """Tell when everything submitted so far has an outcome."""
        self._flush_waiters.append((self._submitted, token))
        self._answer_flushes(out)
        self._request_flush(now)

    def consumed(self, mark: int, now: int) -> None:
        """The application is done with what was delivered up to `mark`."""
        if not self._consumed < mark <= self._delivered:
            return
        self._consumed = mark
        if self._phase is Phase.MOUNTED and self._roomy and (self._parked or self._gap):
            if self._parked:
                self._ask_feed()
            elif self._resume_at is None:
                self._resume_at = now + _RESUME_MS

    # ---- connection ----------------------------------------------------------------------------------

    def place(self, link: Link | None, generation: int, now: int, out: list[Effect]) -> None:
        """The partition lives on this connection from now on, or on none, under this generation.

        A newer generation on the same connection: its server may have lost and regained the partition unseen,
        so it is mounted again. Java: only later request ids carry the new number; a server that closed and
        reopened the partition has forgotten the mount, and such a client waits for ever for its feed.
        """
        raised = generation > self.generation
        if raised:
            self.generation = generation
        if link is not self._link:
            self.on_link_lost(now, out)
            self._link = link
            self._try_mount(now, out)
        elif raised and self._rules.remount_on_generation and self._phase in (Phase.MOUNTING, Phase.MOUNTED):
            self._try_mount(now, out)

    def on_link_ready(self, now: int, out: list[Effect]) -> None:
        """The connection it lives on can be used."""
        self._try_mount(now, out)

    def on_link_lost(self, now: int, out: list[Effect]) -> None:
        """The connection it lives on is gone; a successor may follow."""
        self._forget_link()
        if self._phase not in (Phase.CLOSED, Phase.TAIL):
            self._enter(Phase.WAITING, now, out)

    def on_writable(self, now: int, out: list[Effect]) -> None:
        """The connection takes more bytes."""
        if self._phase is Phase.MOUNTED:
            self._drain(now, out)

    # ---- what the server says ------------------------------------------------------------------------

    def on_feed(self, run: list[FeedData], now: int, out: list[Effect]) -> None:
        """A piece of the feed arrived. Whichever of our mounts it belongs to: what is committed is committed."""
        if self._session is None:
            return
        before = self._seen
        seen = self.monitor.on_feed(run, before, out) if self.monitor.unresolved else _follow(run, before)
        self._seen = seen
        self._progress_at = now
        if self._delivering:
            self._deliver(run, before == self._delivered and seen - before == len(run), out)
            if self._resume_at is not None:
                self._resume_at = now + _RESUME_MS
        if seen != before:
            if self._held_at is not None:
                self._note_held(now)
            self._after_verdicts(now, out)

    def on_mount_response(self, response: MountResponse, now: int, out: list[Effect]) -> None:
        """The server has brought us up to its mark, or cannot.

        Raises:
            ProtocolError: a state that does not exist; 0.13.2 drops the connection too.
        """
        if response.req_id != self._session or self._phase is not Phase.MOUNTING:
            return
        if response.partition_state == PartitionState.READY:
            self._on_mounted(now, out)
        elif response.partition_state == PartitionState.NOT_READY:
            self._enter(Phase.NOT_READY, now, out)
            self._retry_at = now + self._settings.not_ready_ms
        elif response.partition_state != PartitionState.CLIENT_AHEAD:
            raise ProtocolError(f"unknown partition state {response.partition_state}")
        else:
            self._enter(Phase.CLIENT_AHEAD, now, out)
            out.append(
                Report(
                    Level.ERROR,
                    f"partition {self.partition}: this client is at {self._cursor}, ahead of the log at "
                    f"{self._server}; is this the right cluster, or was the log restored?",
                )
            )
            self.give_up(Reason.CLIENT_AHEAD, out)

    def on_feed_suspended(self, message: FeedSuspended) -> None:
        """The window is used up; in a mount: it ends before the mark."""
        if message.req_id != self._session:
            return
        self._cut = self._phase is Phase.MOUNTING
        if self._phase is not Phase.MOUNTED:
            return
        self._windows = max(0, self._windows - 1)
        if self._windows == 0:
            self._ask_feed()

    def on_lock_failure(self, message: LockFailure, now: int, out: list[Effect]) -> None:
        """An append was refused because of its locks."""
        self.monitor.on_lock_failure(message.req_id, message.transaction_id, self._seen, out)
        self._note_held(now)
        self._after_verdicts(now, out)

    def on_refused(self, message: AppendRefused, now: int, out: list[Effect]) -> None:
        """An append was refused, and the server says why."""
        if message.refusal == Refusal.LOCK:
            self.monitor.on_lock_failure(message.req_id, message.transaction_id, self._seen, out, message)
            self._note_held(now)
        else:
            self.monitor.on_refused(message.req_id, message.message or "no reason given", out)
        self._after_verdicts(now, out)
        if message.refusal == Refusal.NOT_MOUNTED and self._phase is Phase.MOUNTED:
            self._try_mount(now, out)

    def on_before_start(self, req_id: ReqId, text: str, now: int, out: list[Effect]) -> None:
        """The log does not go back to where we are: what lies between was given up by the storage nodes."""
        if req_id == self._session and self._phase in (Phase.MOUNTING, Phase.MOUNTED):
            self._enter(Phase.BEFORE_START, now, out, text)
            out.append(Report(Level.ERROR, f"partition {self.partition}: {text}"))
            self.give_up(Reason.BEFORE_START, out)

    def on_not_allowed(self, req_id: ReqId, text: str, now: int, out: list[Effect]) -> None:
        """The role of this client does not include a request, which was not carried out."""
        if req_id == self._session and self._phase is Phase.MOUNTING:
            self._enter(Phase.NOT_READY, now, out)
            self._retry_at = now + self._settings.not_ready_ms
            return
        self.monitor.on_refused(req_id, text, out)
        self._after_verdicts(now, out)

    def on_flush_response(self, message: FlushResponse, now: int, out: list[Effect]) -> None:
        """Everything before the flush request is decided."""
        self._flush_asked_at = None
        self.monitor.on_flush_response(message.req_id, message.transaction_id, self._seen, out)
        self._note_held(now)
        self._after_verdicts(now, out)

    # ---- time ----------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """When `due` has something to do."""
        if self._phase is Phase.CLOSED:
            return None
        warning = None
        if not self._warned and self._phase not in _SETTLED:
            warning = self._since + self._settings.unmounted_warning_ms
        return earliest(self._retry_at, self._resume_at, self._nudge_at(), self._silent_at(), warning)

    def due(self, now: int, out: list[Effect]) -> bool:
        """Act on passed deadlines; True when the connection is to be given up as dead."""
        if not self._warned and self._phase not in _SETTLED:
            since = now - self._since
            if since >= self._settings.unmounted_warning_ms:
                self._warned = True
                why = self._link.reason if self._link is not None and not self._link.ready else ""
                out.append(
                    Report(
                        Level.WARNING,
                        f"partition {self.partition} has not been mounted for {since / 1000:.0f} s: "
                        f"{self._phase.value} ({self._server}{': ' if why else ''}{why})",
                    )
                )
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._try_mount(now, out)
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
            self._ask_feed()
        nudge = self._nudge_at()
        if nudge is not None and now >= nudge:
            self._nudged = self.monitor.lost
            self._send_flush(now)
        silent = self._silent_at()
        if silent is None or now < silent:
            return False
        assert self._link is not None
        if now - self._link.last_read >= self._settings.silence_ms:
            return True
        self._try_mount(now, out)  # the server lives, but does not know us: it will say so
        return False

    def status(self, now: int) -> PartitionStatus:
        """A snapshot for people and tests."""
        return PartitionStatus(
            self.partition,
            self._phase,
            now - self._since,
            None if self._link is None else self._link.endpoint,
            self.generation,
            self._seen,
            self._delivered,
            self.monitor.unresolved,
            len(self._queue),
        )

    # ---- inside --------------------------------------------------------------------------------------

    @property
    def _server(self) -> Endpoint | str:
        return "no server is known" if self._link is None else self._link.endpoint

    @property
    def _room(self) -> int:
        return self._settings.feed_buffer_max - (self._delivered - self._consumed)

    @property
    def _roomy(self) -> bool:
        return self._room * 2 >= self._settings.feed_buffer_max

    @property
    def _cursor(self) -> int:
        """The mark from which the feed must go on."""
        if self._delivering and not self._gap and not self._tail_delivery:
            return min(self._delivered, self._seen)
        return self._seen

    def _enter(self, phase: Phase, now: int, out: list[Effect], text: str = "") -> None:
        if phase is self._phase:
            return
        # One complaint per time without a mount, however often the attempts go round.
        if phase in (Phase.MOUNTED, Phase.CLOSED) or self._phase in (Phase.MOUNTED, Phase.CLOSED):
            self._since = now
            self._warned = False
        self._phase = phase
        out.append(StatusChanged(self.partition, phase, text))

    def _forget_link(self) -> None:
        self.monitor.on_link_lost()
        self._session = None
        self._retry_at = self._resume_at = self._flush_asked_at = None

    def _next_req_id(self) -> ReqId:
        self._sequence = sequence = _wrap(self._sequence + 1)
        return make_req_id(self._client_id, self.generation, self.partition, sequence)

    def _try_mount(self, now: int, out: list[Effect], *, onward: bool = False) -> None:
        """Mount, if that is possible; `onward`, towards the mark, whether or not the application has room again."""
        if self._phase in (Phase.CLOSED, Phase.TAIL) or self._link is None or not self._link.ready:
            return
        self._enter(Phase.MOUNTING, now, out)
        self._session = self._next_req_id()
        self._gap = self._gap and (onward or not self._roomy)
        self._parked = self._cut = False
        self._windows = 0
        self._flush_sent = 0
        self._retry_at = self._resume_at = self._nudged = None
        self._progress_at = now
        self._link.send(MountRequest(self._session, self._cursor, self._link.net_seq))

    def _on_mounted(self, now: int, out: list[Effect]) -> None:
        self._behind = self._cut
        if self._behind and not (self._delivering and self._judged):
            self._try_mount(now, out, onward=True)
            return
        self._enter(Phase.MOUNTED, now, out)
        if self.monitor.unresolved:
            self._send_flush(now)
        self._ask_feed()
        self._drain(now, out)

    def _deliver_from(self, mark: int, now: int, out: list[Effect]) -> None:
        self._delivered = self._consumed = mark
        self._tail_delivery = False
        if not self.monitor.unresolved and self._seen != mark:
            self._seen = mark
            if self._phase is Phase.TAIL:
                self._enter(Phase.WAITING, now, out)
            self._try_mount(now, out)
        elif mark < self._seen:
            self._try_mount(now, out)

    def _deliver(self, run: list[FeedData], whole: bool, out: list[Effect]) -> None:
        """Hand on what follows the delivered mark; what does not fit is dropped and asked for later."""
        if self._gap:
            return
        if not whole:
            run = _following(run, self._delivered)
        room = self._room
        if len(run) > room:
            self._gap = True
            run = run[: max(room, 0)]
        if run:
            self._delivered = run[-1].transaction_id
            out.append(Deliver(self.partition, run))

    def _ask_feed(self) -> None:
        """Open the next window, unless nobody has room for it and no append waits for its outcome."""
        assert self._link is not None
        assert self._session is not None
        self._resume_at = None
        windows = self._delivering and self._link.windows
        if self._gap and self._roomy:
            self._gap = False
        elif self._delivering and (self._gap or self._room <= 0 or (windows and not self._roomy)):
            if self._judged:
                self._parked = True
                self._behind = self._behind or windows
                return
            # Nothing of what was seen is sent again for the sake of a verdict.
            self._gap = self._gap or windows
        self._parked = False
        self._windows += 1
        cursor = self._cursor
        if windows and not self._gap:
            # What the application got before it was seen needs no room.
            count = min(self._room + max(self._delivered - cursor, 0), _COUNT_MAX)
            self._link.send(FeedWindowRequest(self._session, cursor, count))
        else:
            self._link.send(FeedRequest(self._session, cursor))

    @property
    def _judged(self) -> bool:
        """Every append has an outcome."""
        return not self._queue and not self.monitor.unresolved

    def _drain(self, now: int, out: list[Effect]) -> None:
        """Send what is queued, as far as the connection takes it."""
        queue, link = self._queue, self._link
        assert link is not None
        if queue and self._behind:
            self._try_mount(now, out, onward=True)
            return
        if queue and self._parked:
            self._ask_feed()
        while queue and link.writable:
            submit = queue.popleft()
            self._send_append(submit, self._submitted - len(queue), link, now, out)
        if self._flush_waiters:
            self._answer_flushes(out)
            self._request_flush(now)

    def _note_held(self, now: int) -> None:
        if not self.monitor.holding:
            self._held_at = None
        elif self._held_at is None:
            self._held_at = now

    def _send_append(self, submit: Submit, ordinal: int, link: Link, now: int, out: list[Effect]) -> None:
        self._sequence = sequence = _wrap(self._sequence + 1)
        req_id = _REQ_ID(self._client_id, self.generation, self.partition, sequence)
        mark = submit.client_mark
        if mark is None:
            mark = self._seen
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
        # The type of a request id is a name for bytes; calling it costs more than packing.
        if link.explains:
            request = NamedAppendRequest(*fields, submit.names if self._settings.lock_names else b"")  # type: ignore[arg-type]
        else:
            request = AppendRequest(*fields)  # type: ignore[arg-type]
        try:
            link.send(request)
        except ProtocolError as error:
            out.append(Failed(self.partition, submit.token, Reason.REFUSED, text=str(error)))
            return
        self.monitor.register(ordinal, request.req_id, submit.token, now)

    def _after_verdicts(self, now: int, out: list[Effect]) -> None:
        if self._flush_waiters:
            self._answer_flushes(out)
        # A feed opened ahead of what we have seen could not move the mark while an append was unresolved.
        if self._delivering and self._delivered > self._seen and not self.monitor.unresolved:
            self._deliver_from(self._delivered, now, out)
        # What a nudge finds lost was dropped by a server that did not tell: it may not know our mount.
        if self._nudged is not None and self.monitor.lost > self._nudged:
            self._nudged = None
            if self._rules.remount_after_loss:
                self._try_mount(now, out)

    def _answer_flushes(self, out: list[Effect]) -> None:
        waiters = self._flush_waiters
        if not waiters:
            return
        oldest = self.monitor.oldest()
        pending = oldest[0] if oldest is not None else self._submitted - len(self._queue) + 1
        while waiters and waiters[0][0] < pending:
            out.append(Flushed(self.partition, waiters.popleft()[1]))

    def _request_flush(self, now: int) -> None:
        """Flush for the waiters, unless the last flush request covers them or appends are still queued."""
        ready = self._phase is Phase.MOUNTED and not self._queue
        if ready and self._flush_waiters and self._flush_sent < self._flush_waiters[-1][0]:
            self._send_flush(now)

    def _send_flush(self, now: int) -> None:
        req_id = self.monitor.begin_flush()
        assert req_id is not None, "a flush with nothing to judge"
        assert self._link is not None
        self._flush_sent = self._submitted - len(self._queue)
        self._flush_sent_at = now
        if self._flush_asked_at is None:
            self._flush_asked_at = now
        self._link.send(FlushRequest(req_id))

    def _nudge_at(self) -> int | None:
        """An append without an outcome is asked about: the server may have dropped it without a word."""
        if self._phase is not Phase.MOUNTED:
            return None
        oldest = self.monitor.oldest()
        if oldest is None:
            return None
        return max(oldest[3], self._flush_sent_at) + self._settings.nudge_ms

    def suspect_at(self) -> int | None:
        """When a server that owes an answer has been silent for so long that another may serve this partition."""
        if self._link is None or not self._rules.silent_peer_dropped:
            return None
        owed_since = self._progress_at if self._phase is Phase.MOUNTING else None
        if self._phase is Phase.MOUNTED and (oldest := self.monitor.oldest()) is not None:
            owed_since = oldest[3]
        return None if owed_since is None else max(owed_since, self._link.last_read) + self._settings.suspect_ms

    def _silent_at(self) -> int | None:
        """When an answer is so late that something must be wrong."""
        if not self._rules.silent_peer_dropped:
            return None
        if self._phase is Phase.MOUNTING:
            return self._progress_at + self._settings.silence_ms
        if self._phase is not Phase.MOUNTED or not self.monitor.unresolved:
            return None
        held = None if self._held_at is None else max(self._progress_at, self._held_at)
        since = earliest(self._flush_asked_at, held)
        return None if since is None else since + self._settings.silence_ms


def _wrap(sequence: int) -> int:
    """Sequence numbers are signed 32-bit integers that wrap, as in 0.13.2."""
    return sequence if sequence < 1 << 31 else sequence - (1 << 32)


def _follow(run: Sequence[FeedData], seen: int) -> int:
    """The mark after a run; ids other than the next one are passed over."""
    for record in run:
        if record.transaction_id == seen + 1:
            seen += 1
    return seen


def _following(run: Sequence[FeedData], delivered: int) -> list[FeedData]:
    """What of a run continues `delivered`."""
    follows = []
    for record in run:
        if record.transaction_id == delivered + 1:
            follows.append(record)
            delivered += 1
    return follows
