"""The submits of one partition, and everybody else who waits for its view.

A submit reads the state, decides, appends, and decides again if a lock was taken meanwhile:

     ┌──(HELD: the view must hold what is known to be committed)
     ▼
    SLOT ──► DECIDING ──► SENT ──committed──► done, or APPLYING (until="applied") ──► done
     ▲           │          ├──conflict──► BLOCKED (the view must apply what blocked) ──► SLOT
     │           │          ├──lost──► PAUSE ──► SLOT
     │           │          └──unknown──► done
     │           ├──another of this process wants the lock──► GATE ──► BLOCKED ──► SLOT
     │           ├──a transaction known here has taken it──► BLOCKED ──► SLOT
     │           ├──state cannot be read──► PAUSE ──► SLOT
     │           ├──a transaction carries its key──► done, or APPLYING ──► done
     │           └──declined──► ASKING ──► done, if the state had everything
     └──────────────────────────────┴────► BEHIND (the view must catch up) ──► SLOT

**Slots** bound how many submits read, decide and have an append in flight. An append keeps its slot until it has an
outcome, even if its caller has left.

**An append that is certain to be refused is not sent.** A decided append queues for its locks (`gate.py`) and is sent
once no other submit of this process is ahead of it at any of them. It keeps its place until its outcome, so the next
one knows what has taken the lock (`taken.py`), waits until the view has applied it, and decides on that state. So
only locks of other clients refuse a submit; where it meets one of its own process, one decision is wasted. A submit
that declines or pauses gives up its place: others need not wait for its questions and pauses.

**Nor is it decided, where most would be decided in vain.** Which locks a submit wants is known once it has decided. So
the machine counts: while more than half of the submits wanted a lock that this process had taken by a transaction
which the view had not applied when they began, a submit is held until the view holds everything that is known to be
committed at its beginning, and decides then. Whoever submits for a lock again and again is such a caller; where most
submits have nothing to do with each other, none waits for the view.

**A decline is confirmed.** `decide` saw some state, and its decline is right for that state. To be right at some moment
of the call, the state must hold everything that was committed when the call began. So the server is asked for its
committed mark, by a question that leaves after the call began. A state older than the answer does not count: the view
catches up, and `decide` is asked again. One answer serves every later decline of the same call. Only one question is
under way at a time; calls that come meanwhile share the next one, since its answer may be older than they are.

**A key is looked for before `decide` is called**, in the same snapshot. A transaction that carries it is the outcome of
this submit, whoever appended it, if it was for the same request; else the submit ends with an error. The state needs
no confirmation: what a view has applied is committed. A snapshot too old to hold the transaction does no harm either,
because an append with a key takes a lock on the key (see `keys.py`). A decline, though, says that no transaction
carries the key, so it must be a confirmed one.

**Limits.** `Retry.attempts` counts the tries that came to nothing: an append that was refused or lost, a state that
could not be read. `Retry.give_up_after` runs from the first try, and ends every wait before another one: for the gate,
for the view, for a pause, for a slot, and that for the server's mark. It never ends the wait for the outcome of an
append.

The machine knows no locks but their hashes, no payload, and no state. Tokens are any values; they come back untouched.
"""

from __future__ import annotations

import bisect
import enum
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from waltz_core.base.contract import earliest
from waltz_core.client.gate import NO_MODES, Gate, modes_of
from waltz_core.client.mark_questions import MarkQuestions
from waltz_core.client.retry import Chance, Retry
from waltz_core.client.submit_calls import (
    AppendJudged,
    AppendsCommitted,
    AskMark,
    Decide,
    Decided,
    DecisionDeclined,
    Effect,
    Event,
    GaveUp,
    KeyFound,
    KeyReused,
    MarkAnswered,
    MarkReached,
    MarkWanted,
    OutcomeUnknown,
    Send,
    StateUnreadable,
    SubmitBegun,
    SubmitDone,
    Unavailable,
    Verdict,
    ViewApplied,
    ViewPaused,
    Withdrawn,
)
from waltz_core.client.taken import TakenLocks


class _Stage(enum.Enum):
    HELD = enum.auto()
    SLOT = enum.auto()
    DECIDING = enum.auto()
    SENT = enum.auto()
    GATE = enum.auto()
    BLOCKED = enum.auto()
    PAUSE = enum.auto()
    ASKING = enum.auto()
    BEHIND = enum.auto()
    APPLYING = enum.auto()
    LEFT = enum.auto()  # the caller is gone; the append keeps its slot


_UNLIMITED = (_Stage.DECIDING, _Stage.SENT, _Stage.APPLYING, _Stage.LEFT)  # no other attempt follows, or not yet
_NEVER_AGAIN = Retry(attempts=1)
_VAIN_MAX = 16  # how far submits are counted that would have been decided in vain, against the others
_HOLD_FROM = 8  # in vain from which submits are held


class _Wait:
    """One who waits: a submit, or somebody who waits for a mark of the view."""

    __slots__ = (
        "attempts",
        "began_at",
        "begun",
        "confirmed",
        "conflicts",
        "declined_at",
        "entries",
        "failures",
        "gives_up_at",
        "mark",
        "modes",
        "stage",
        "token",
        "transaction_id",
        "tries",
    )

    def __init__(self, token: object, begun: SubmitBegun | None) -> None:
        self.token, self.begun = token, begun
        self.stage = _Stage.SLOT
        self.began_at: int | None = None  # the mark of the view, until it has decided for the first time
        self.attempts = self.conflicts = self.tries = self.failures = 0
        self.gives_up_at: int | None = None  # set by the first try
        self.modes = NO_MODES  # of the locks of its last append
        self.mark = -1  # of the view, that it waits for
        self.declined_at = -1  # mark of the state that `decide` declined on
        self.confirmed: int | None = None  # committed at some moment of the call
        self.transaction_id: int | None = None
        self.entries: list[tuple[_Timetable, tuple[int, int, _Wait]]] | None = None  # where it is written down

    @property
    def retry(self) -> Retry:
        return _NEVER_AGAIN if self.begun is None else self.begun.retry

    def set_limit(self, now: int) -> None:
        """Give up so long after now, the begin of the first try, as its retry says."""
        limit = self.retry.give_up_after
        if limit < math.inf:
            self.gives_up_at = now + int(limit * 1000)


class _Timetable:
    """Who waits for which number, sorted; entries are taken out at once when their owner waits no more."""

    __slots__ = ("_entries", "_order")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, _Wait]] = []
        self._order = 0

    def add(self, at: int, wait: _Wait) -> None:
        self._order += 1
        entry = (at, self._order, wait)  # the order is unique, so waits are never compared
        bisect.insort(self._entries, entry)
        if wait.entries is None:
            wait.entries = []
        wait.entries.append((self, entry))

    def remove(self, entry: tuple[int, int, _Wait]) -> None:
        del self._entries[bisect.bisect_left(self._entries, entry)]

    def first(self) -> int | None:
        return self._entries[0][0] if self._entries else None

    def up_to(self, at: int) -> list[_Wait]:
        return [wait for _, _, wait in self._entries[: bisect.bisect_right(self._entries, at, key=lambda e: e[0])]]


class Submitter:
    """Who waits for one partition of an application, and for what."""

    __slots__ = (
        "_decided_on",
        "_gate",
        "_handlers",
        "_held",
        "_marks",
        "_paused",
        "_questions",
        "_rng",
        "_slots",
        "_taken",
        "_times",
        "_vain",
        "_waits",
        "applied_mark",
        "committed_mark",
        "in_flight",
        "in_flight_max",
    )

    def __init__(self, applied_mark: int, in_flight_max: int, rng: Chance) -> None:
        self.applied_mark = applied_mark
        self.committed_mark = -1  # the highest that the server has reported
        self.in_flight = 0  # submits that hold a slot
        self.in_flight_max = in_flight_max
        self._rng = rng
        self._waits: dict[object, _Wait] = {}
        self._slots: deque[_Wait] = deque()
        self._held: deque[_Wait] = deque()  # by the marks that they wait for
        self._vain = 0  # submits that would have been decided in vain, against the others
        self._decided_on = -1  # the newest state of a decision
        self._gate: Gate[_Wait] = Gate()
        self._taken = TakenLocks()
        self._marks = _Timetable()  # of the view
        self._times = _Timetable()  # pauses and limits
        self._questions: MarkQuestions[_Wait] = MarkQuestions()
        self._paused = False
        self._handlers: dict[type[Event], Callable[[Any, int, list[Effect]], None]] = {
            SubmitBegun: self._begin,
            Decided: self._on_decided,
            DecisionDeclined: self._on_decision_declined,
            KeyFound: self._on_key_found,
            StateUnreadable: self._on_unreadable,
            AppendJudged: self._on_judged,
            AppendsCommitted: self._on_appends_committed,
            Withdrawn: self._on_withdrawn,
            MarkWanted: self._want,
            MarkAnswered: self._on_answer,
            ViewApplied: self._on_applied,
            ViewPaused: self._on_paused,
        }

    @property
    def queued(self) -> int:
        """Submits that wait for a slot, or are held."""
        return len(self._slots) + len(self._held)

    @property
    def gated(self) -> int:
        """Submits that wait behind another one that wants the same lock."""
        return len(self._gate.waiting)

    @property
    def waiting(self) -> int:
        """Everybody whom the machine remembers."""
        return len(self._waits)

    def step(self, now: int, events: Sequence[Event], out: list[Effect]) -> None:
        """See `waltz_core.base.contract.Machine`."""
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event, now, out)
        self._on_time(now, out)
        self._fill_slots(now, out)

    def deadline(self) -> int | None:
        """When the next limit or pause ends."""
        return self._times.first()

    def _on_applied(self, event: ViewApplied, now: int, out: list[Effect]) -> None:
        self.applied_mark = applied = max(self.applied_mark, event.mark)
        for wait in self._marks.up_to(applied):
            self._view_is_there(wait, now, out)
        while self._held and self._held[0].mark <= applied:
            self._queue_for_slot(self._held[0])

    # ---- the way of a submit -----------------------------------------------------------------------

    def _begin(self, begun: SubmitBegun, now: int, out: list[Effect]) -> None:
        assert begun.confirm or begun.request_hash is None, "a decline that nobody confirms says nothing about a key"
        wait = self._waits[begun.token] = _Wait(begun.token, begun)
        wait.began_at = self.applied_mark
        if self._paused:
            self._end(wait, Unavailable(wait.token), now, out)
        elif self._vain >= _HOLD_FROM and self.committed_mark > self.applied_mark:
            wait.mark = self.committed_mark
            wait.set_limit(now)
            self._enter(wait, _Stage.HELD)
            self._held.append(wait)
        else:
            self._slots.append(wait)

    def _fill_slots(self, now: int, out: list[Effect]) -> None:
        while self._slots and self.in_flight < self.in_flight_max:
            wait = self._slots.popleft()
            self.in_flight += 1
            if wait.gives_up_at is None:
                wait.set_limit(now)
            if wait.entries:
                self._enter(wait, _Stage.DECIDING)
            else:
                wait.stage = _Stage.DECIDING  # it is written down nowhere
            out.append(Decide(wait.token))

    def _on_decided(self, event: Decided, now: int, out: list[Effect]) -> None:
        wait = self._waits.get(event.token)
        if wait is None:
            return
        if event.mark > self._decided_on:
            self._taken.seen(self._decided_on)  # not yet what this state has first: see `_count`
            self._decided_on = event.mark
        wait.modes = modes = modes_of(event.write, event.read, event.append)
        if wait.began_at is not None:
            self._count(wait, wait.began_at, modes)
        if modes:
            if not self._pass_gate(wait, modes, now, out):
                self.in_flight -= 1
                self._enter(wait, _Stage.GATE)
                if self._paused:
                    self._end(wait, Unavailable(wait.token), now, out)
                return
            blocking = self._taken.last(modes)
            if blocking > event.mark:
                self.in_flight -= 1
                self._on_too_old(wait, blocking, now, out)
                return
        wait.stage = _Stage.SENT
        wait.attempts += 1
        out.append(Send(wait.token))

    def _count(self, wait: _Wait, began_at: int, modes: Mapping[int, int]) -> None:
        """Whether a submit would have been decided in vain, had it not been held."""
        if self._taken.last(modes) > began_at:
            self._vain = min(self._vain + 1, _VAIN_MAX)
        elif self._vain:
            self._vain -= 1
        wait.began_at = None

    def _on_too_old(self, wait: _Wait, blocking: int, now: int, out: list[Effect]) -> None:
        """A decision was made on a state without a transaction that has taken one of its locks."""
        if wait.mark >= blocking and self.applied_mark >= blocking:
            self._on_failure(wait, now, out)  # it has waited for that already: a snapshot of a lagging database
        else:
            self._await_view(wait, _Stage.BLOCKED, blocking, now, out)

    def _on_decision_declined(self, event: DecisionDeclined, now: int, out: list[Effect]) -> None:
        wait = self._waits.get(event.token)
        if wait is not None:
            self.in_flight -= 1
            self._on_declined(wait, event.mark, now, out)

    def _on_declined(self, wait: _Wait, mark: int, now: int, out: list[Effect]) -> None:
        assert wait.begun is not None
        self._leave_gate(wait, now, out)
        if not wait.begun.confirm or (wait.confirmed is not None and mark >= wait.confirmed):
            self._done(wait, now, out)
        elif self._paused:
            self._end(wait, Unavailable(wait.token), now, out)
        elif wait.confirmed is None:
            wait.declined_at = mark
            self._ask(wait, now, out)
        elif self.applied_mark < wait.confirmed:
            self._await_view(wait, _Stage.BEHIND, wait.confirmed, now, out)
        else:
            self._pause(wait, now, out)  # a snapshot older than what this process has applied: of a lagging database

    def _on_key_found(self, event: KeyFound, now: int, out: list[Effect]) -> None:
        wait, entry = self._waits.get(event.token), event.entry
        if wait is None:
            return
        self.in_flight -= 1
        assert wait.begun is not None
        if entry.request_hash != wait.begun.request_hash:
            self._end(wait, KeyReused(wait.token, entry.transaction_id), now, out)
        else:
            self._on_committed(wait, entry.transaction_id, now, out)

    def _on_unreadable(self, event: StateUnreadable, now: int, out: list[Effect]) -> None:
        wait = self._waits.get(event.token)
        if wait is not None:
            self.in_flight -= 1
            self._on_failure(wait, now, out)

    def _on_judged(self, event: AppendJudged, now: int, out: list[Effect]) -> None:
        wait = self._waits.get(event.token)
        if wait is None:
            return
        if event.verdict is Verdict.COMMITTED:
            self._on_append_committed(wait, event.transaction_id, now, out)
            return
        self.in_flight -= 1
        if wait.stage is _Stage.LEFT:
            self._forget(wait, now, out)
            return
        match event.verdict:
            case Verdict.CONFLICT:
                wait.conflicts += 1
                if self._may_try_again(wait, now, out):
                    self._await_view(wait, _Stage.BLOCKED, event.transaction_id, now, out)
            case Verdict.LOST:
                self._on_failure(wait, now, out)
            case Verdict.UNKNOWN:
                self._end(wait, OutcomeUnknown(wait.token), now, out)

    def _on_appends_committed(self, event: AppendsCommitted, now: int, out: list[Effect]) -> None:
        waits = self._waits
        for token, transaction_id in event.outcomes:
            wait = waits.get(token)
            if wait is not None:
                self._on_append_committed(wait, transaction_id, now, out)

    def _on_append_committed(self, wait: _Wait, transaction_id: int, now: int, out: list[Effect]) -> None:
        self.in_flight -= 1
        if self.committed_mark < transaction_id:
            self.committed_mark = transaction_id
        self._taken.add(transaction_id, wait.modes)
        if wait.stage is _Stage.LEFT:
            self._forget(wait, now, out)
        else:
            self._on_committed(wait, transaction_id, now, out)

    def _on_committed(self, wait: _Wait, transaction_id: int, now: int, out: list[Effect]) -> None:
        assert wait.begun is not None
        wait.transaction_id = transaction_id
        if wait.begun.until_applied:
            self._leave_gate(wait, now, out)
            self._await_view(wait, _Stage.APPLYING, transaction_id, now, out)
        else:
            self._done(wait, now, out)

    def _on_failure(self, wait: _Wait, now: int, out: list[Effect]) -> None:
        if self._may_try_again(wait, now, out):
            self._pause(wait, now, out)

    def _may_try_again(self, wait: _Wait, now: int, out: list[Effect]) -> bool:
        """Count a try that came to nothing; False when it was the last one."""
        wait.tries += 1
        if self._paused:
            self._end(wait, Unavailable(wait.token), now, out)
        elif wait.tries >= wait.retry.attempts or (wait.gives_up_at is not None and now >= wait.gives_up_at):
            self._end(wait, GaveUp(wait.token, wait.tries), now, out)
        else:
            return True
        return False

    def _on_withdrawn(self, event: Withdrawn, now: int, out: list[Effect]) -> None:
        wait = self._waits.get(event.token)
        if wait is None:
            return
        if wait.stage is _Stage.SENT:
            self._enter(wait, _Stage.LEFT)
            return
        if wait.stage is _Stage.DECIDING:
            self.in_flight -= 1
        self._forget(wait, now, out)

    # ---- what a submit waits for ---------------------------------------------------------------------

    def _enter(self, wait: _Wait, stage: _Stage, resumes_at: int | None = None, *, limited: bool = True) -> None:
        """Enter another stage; waits of the last one are dropped."""
        if wait.entries:
            for timetable, entry in wait.entries:
                timetable.remove(entry)
            wait.entries.clear()
        if wait.stage is _Stage.SLOT and stage is not _Stage.DECIDING and wait in self._slots:
            self._slots.remove(wait)
        elif wait.stage is _Stage.HELD:
            self._held.remove(wait)  # mostly the first
        wait.stage = stage
        gives_up_at = wait.gives_up_at
        if resumes_at is not None or (gives_up_at is not None and limited and stage not in _UNLIMITED):
            at = earliest(resumes_at, gives_up_at if limited and stage not in _UNLIMITED else None)
            assert at is not None
            self._times.add(at, wait)

    def _queue_for_slot(self, wait: _Wait) -> None:
        self._enter(wait, _Stage.SLOT)
        self._slots.append(wait)

    def _pause(self, wait: _Wait, now: int, out: list[Effect]) -> None:
        wait.failures += 1
        self._leave_gate(wait, now, out)
        self._enter(wait, _Stage.PAUSE, now + max(1, int(wait.retry.delay(wait.failures, self._rng) * 1000)))

    def _pass_gate(self, wait: _Wait, modes: Mapping[int, int], now: int, out: list[Effect]) -> bool:
        """Queue up with the others that want one of the same locks; who has passed for all of them need not."""
        held = self._gate.modes(wait)
        if held == modes:
            return True
        if held:
            # Who decides for other locks each time keeps the first ones, too, or would never come to the front.
            modes = {value: held.get(value, 0) | modes.get(value, 0) for value in (*held, *modes)}
            if modes == held:
                return True
            self._leave_gate(wait, now, out)
        return self._gate.join(wait, modes)

    def _leave_gate(self, wait: _Wait, now: int, out: list[Effect]) -> None:
        for other in self._gate.leave(wait):
            self._await_view(other, _Stage.BLOCKED, max(other.mark, self._taken.last(other.modes)), now, out)

    def _await_view(self, wait: _Wait, stage: _Stage, mark: int, now: int, out: list[Effect]) -> None:
        wait.mark = mark
        self._enter(wait, stage)
        if self.applied_mark >= mark:
            self._view_is_there(wait, now, out)
        elif self._paused:
            self._end(wait, Unavailable(wait.token), now, out)
        else:
            self._marks.add(mark, wait)

    def _view_is_there(self, wait: _Wait, now: int, out: list[Effect]) -> None:
        if wait.begun is None:
            self._end(wait, MarkReached(wait.token, wait.mark), now, out)
        elif wait.stage is _Stage.APPLYING:
            self._done(wait, now, out)
        else:
            self._queue_for_slot(wait)

    def _on_time(self, now: int, out: list[Effect]) -> None:
        while due := self._times.up_to(now):
            for wait in due:
                if wait.gives_up_at is not None and now >= wait.gives_up_at:
                    gated = wait.stage is _Stage.GATE
                    self._end(wait, GaveUp(wait.token, wait.tries, gated), now, out)
                else:
                    self._queue_for_slot(wait)

    # ---- the server's mark ---------------------------------------------------------------------------

    def _want(self, wanted: MarkWanted, now: int, out: list[Effect]) -> None:
        wait = self._waits[wanted.token] = _Wait(wanted.token, None)
        if wanted.mark is not None:
            self._await_view(wait, _Stage.APPLYING, wanted.mark, now, out)
        elif self._paused:
            self._end(wait, Unavailable(wait.token), now, out)
        else:
            self._ask(wait, now, out)

    def _ask(self, wait: _Wait, now: int, out: list[Effect]) -> None:
        # Whoever allows no second attempt at all still gets its only decline confirmed.
        self._enter(wait, _Stage.ASKING, limited=wait.gives_up_at is None or now < wait.gives_up_at)
        if self._questions.join(wait):
            out.append(AskMark())

    def _on_answer(self, event: MarkAnswered, now: int, out: list[Effect]) -> None:
        mark = event.mark
        self.committed_mark = max(self.committed_mark, mark)
        answered, again = self._questions.answered()
        if again:
            out.append(AskMark())
        for wait in answered:
            wait.confirmed = mark
            if wait.begun is None:
                self._await_view(wait, _Stage.APPLYING, mark, now, out)
            elif wait.declined_at >= mark:
                self._done(wait, now, out)
            else:
                self._await_view(wait, _Stage.BEHIND, mark, now, out)

    # ---- the end of waiting --------------------------------------------------------------------------

    def _on_paused(self, _: ViewPaused, now: int, out: list[Effect]) -> None:
        """Everybody who waits for the view, or will, hears of it; appends under way keep their outcomes."""
        self._paused = True
        for wait in list(self._waits.values()):
            if wait.stage not in (_Stage.DECIDING, _Stage.SENT, _Stage.LEFT) and wait.token in self._waits:
                self._end(wait, Unavailable(wait.token), now, out)

    def _done(self, wait: _Wait, now: int, out: list[Effect]) -> None:
        self._end(wait, SubmitDone(wait.token, wait.transaction_id, wait.attempts, wait.conflicts), now, out)

    def _end(self, wait: _Wait, effect: Effect, now: int, out: list[Effect]) -> None:
        out.append(effect)
        self._forget(wait, now, out)

    def _forget(self, wait: _Wait, now: int, out: list[Effect]) -> None:
        del self._waits[wait.token]
        if wait.stage is _Stage.SENT:
            wait.stage = _Stage.LEFT  # it is written down nowhere, and asks for nothing
        else:
            self._enter(wait, _Stage.LEFT)
            self._questions.forget(wait)
        self._leave_gate(wait, now, out)
