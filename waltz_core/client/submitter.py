"""The submits of one partition, and everybody else who waits for its view.

A submit reads the state, decides, appends, and decides again if a lock was taken meanwhile:

     ┌──(HELD: the view must hold what is known to be committed; or GATE, where it says what it expects to want)
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

**Who says what it expects to want** queues for that before it decides, and decides once, on a state that holds what its
lock was taken by. What it expected holds until it has decided: then it queues for what it wants, at the end, unless
that was a part of it. So to expect the wrong locks costs waiting, its own and that of who wants them; nothing is sent
for an expectation, and every append is checked as if there were none.

**A decline is confirmed.** `decide` saw some state, and its decline is right for that state. To be right at some moment
of the call, the state must hold everything that was committed when the call began. So the server is asked for its
committed mark, by a question that leaves after the call began; if the server refuses to tell it, the call ends. A state
older than the answer does not count: the view catches up, and `decide` is asked again. One answer serves every later
decline of the same call. Only one question is under way at a time; calls that come meanwhile share the next one, since
its answer may be older than they are.

**A key is looked for before `decide` is called**, in the same snapshot. A transaction that carries it is the outcome of
this submit, whoever appended it, if it was for the same request; else the submit ends with an error. The state needs
no confirmation: what a view has applied is committed. A snapshot too old to hold the transaction does no harm either,
because an append with a key takes a lock on the key (see `keys.py`). A decline, though, says that no transaction
carries the key, so it must be a confirmed one.

**Limits.** `Retry.attempts` counts the tries that came to nothing: an append that was refused or lost, a state that
could not be read. `Retry.give_up_after` runs from the first try, and ends every wait before another one: for the gate,
for the view, for a pause, for a slot, and that for the server's mark. It never ends the wait for the outcome of an
append. An append that the server would refuse again, for its size or for the role of this client, ends its submit at
once: to repeat it would be to wait without a word, for ever where there is no limit.

The machine knows no locks but their hashes, no payload, and no state. Tokens are any values; they come back untouched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from waltz_core.base.contract import earliest
from waltz_core.client.gate import Gate, joint, modes_of
from waltz_core.client.mark_questions import MarkQuestions
from waltz_core.client.retry import Chance
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
    NoMark,
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
from waltz_core.client.waits import Stage, Timetable, VainDecisions, Wait

_UNLIMITED = (Stage.DECIDING, Stage.SENT, Stage.APPLYING, Stage.LEFT)  # no other attempt follows, or not yet


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
        self._waits: dict[object, Wait] = {}
        self._slots: deque[Wait] = deque()
        self._held: deque[Wait] = deque()  # by the marks that they wait for
        self._vain = VainDecisions()
        self._decided_on = -1  # the newest state of a decision
        self._gate: Gate[Wait] = Gate()
        self._taken = TakenLocks()
        self._marks = Timetable()  # of the view
        self._times = Timetable()  # pauses and limits
        self._questions: MarkQuestions[Wait] = MarkQuestions()
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
        wait = self._waits[begun.token] = Wait(begun.token, begun)
        wait.began_at = self.applied_mark
        if self._paused:
            self._end(wait, Unavailable(wait.token), now, out)
        elif begun.expects:
            self._expect(wait, begun.expects, now, out)
        elif self._vain.mostly and self.committed_mark > self.applied_mark:
            wait.mark = self.committed_mark
            wait.set_limit(now)
            self._enter(wait, Stage.HELD)
            self._held.append(wait)
        else:
            self._slots.append(wait)

    def _expect(self, wait: Wait, locks: tuple[int, ...], now: int, out: list[Effect]) -> None:
        """Queue up for what it will probably want, and decide when its turn has come."""
        wait.began_at, wait.expects, wait.modes = None, True, modes_of(locks)
        wait.set_limit(now)
        if self._gate.join(wait, wait.modes):
            self._await_view(wait, Stage.BLOCKED, self._taken.last(wait.modes), now, out)
        else:
            self._enter(wait, Stage.GATE)

    def _fill_slots(self, now: int, out: list[Effect]) -> None:
        while self._slots and self.in_flight < self.in_flight_max:
            wait = self._slots.popleft()
            self.in_flight += 1
            if wait.gives_up_at is None:
                wait.set_limit(now)
            if wait.entries:
                self._enter(wait, Stage.DECIDING)
            else:
                wait.stage = Stage.DECIDING  # it is written down nowhere
            out.append(Decide(wait.token))

    def _on_decided(self, event: Decided, now: int, out: list[Effect]) -> None:
        wait = self._waits.get(event.token)
        if wait is None:
            return
        if event.mark > self._decided_on:
            self._taken.seen(self._decided_on)  # not yet what this state has first, which may have been waited for
            self._decided_on = event.mark
        wait.modes = modes = modes_of(event.write, event.read, event.append)
        if wait.began_at is not None:
            self._vain.heard(in_vain=self._taken.last(modes) > wait.began_at)
            wait.began_at = None
        if modes:
            if not self._pass_gate(wait, modes, now, out):
                self.in_flight -= 1
                self._enter(wait, Stage.GATE)
                if self._paused:
                    self._end(wait, Unavailable(wait.token), now, out)
                return
            blocking = self._taken.last(modes)
            if blocking > event.mark:
                self.in_flight -= 1
                self._on_too_old(wait, blocking, now, out)
                return
        wait.stage = Stage.SENT
        wait.attempts += 1
        out.append(Send(wait.token))

    def _on_too_old(self, wait: Wait, blocking: int, now: int, out: list[Effect]) -> None:
        """A decision was made on a state without a transaction that has taken one of its locks."""
        if wait.mark >= blocking and self.applied_mark >= blocking:
            self._on_failure(wait, now, out)  # it has waited for that already: a snapshot of a lagging database
        else:
            self._await_view(wait, Stage.BLOCKED, blocking, now, out)

    def _on_decision_declined(self, event: DecisionDeclined, now: int, out: list[Effect]) -> None:
        wait, mark = self._waits.get(event.token), event.mark
        if wait is None:
            return
        self.in_flight -= 1
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
            self._await_view(wait, Stage.BEHIND, wait.confirmed, now, out)
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
        if wait.stage is Stage.LEFT:
            self._forget(wait, now, out)
            return
        match event.verdict:
            case Verdict.CONFLICT:
                wait.conflicts += 1
                if self._may_try_again(wait, now, out):
                    self._await_view(wait, Stage.BLOCKED, event.transaction_id, now, out)
            case Verdict.LOST | Verdict.REFUSED as verdict:
                self._on_failure(wait, now, out, last=verdict is Verdict.REFUSED)
            case Verdict.UNKNOWN:
                self._end(wait, OutcomeUnknown(wait.token), now, out)

    def _on_appends_committed(self, event: AppendsCommitted, now: int, out: list[Effect]) -> None:
        waits = self._waits
        for token, transaction_id in event.outcomes:
            wait = waits.get(token)
            if wait is not None:
                self._on_append_committed(wait, transaction_id, now, out)

    def _on_append_committed(self, wait: Wait, transaction_id: int, now: int, out: list[Effect]) -> None:
        self.in_flight -= 1
        if self.committed_mark < transaction_id:
            self.committed_mark = transaction_id
        self._taken.add(transaction_id, wait.modes)
        if wait.stage is Stage.LEFT:
            self._forget(wait, now, out)
        else:
            self._on_committed(wait, transaction_id, now, out)

    def _on_committed(self, wait: Wait, transaction_id: int, now: int, out: list[Effect]) -> None:
        assert wait.begun is not None
        wait.transaction_id = transaction_id
        if wait.begun.until_applied:
            self._leave_gate(wait, now, out)
            self._await_view(wait, Stage.APPLYING, transaction_id, now, out)
        else:
            self._done(wait, now, out)

    def _on_failure(self, wait: Wait, now: int, out: list[Effect], *, last: bool = False) -> None:
        if self._may_try_again(wait, now, out, last=last):
            self._pause(wait, now, out)

    def _may_try_again(self, wait: Wait, now: int, out: list[Effect], *, last: bool = False) -> bool:
        """Count a try that came to nothing; False when it was the last one."""
        wait.tries += 1
        if self._paused:
            self._end(wait, Unavailable(wait.token), now, out)
        elif last or wait.tries >= wait.retry.attempts or (wait.gives_up_at is not None and now >= wait.gives_up_at):
            self._end(wait, GaveUp(wait.token, wait.tries), now, out)
        else:
            return True
        return False

    def _on_withdrawn(self, event: Withdrawn, now: int, out: list[Effect]) -> None:
        wait = self._waits.get(event.token)
        if wait is None:
            return
        if wait.stage is Stage.SENT:
            self._enter(wait, Stage.LEFT)
            return
        if wait.stage is Stage.DECIDING:
            self.in_flight -= 1
        self._forget(wait, now, out)

    # ---- what a submit waits for ---------------------------------------------------------------------

    def _enter(self, wait: Wait, stage: Stage, resumes_at: int | None = None, *, limited: bool = True) -> None:
        """Enter another stage; waits of the last one are dropped."""
        if wait.entries:
            for timetable, entry in wait.entries:
                timetable.remove(entry)
            wait.entries.clear()
        if wait.stage is Stage.SLOT and stage is not Stage.DECIDING and wait in self._slots:
            self._slots.remove(wait)
        elif wait.stage is Stage.HELD:
            self._held.remove(wait)  # mostly the first
        wait.stage = stage
        gives_up_at = wait.gives_up_at
        if resumes_at is not None or (gives_up_at is not None and limited and stage not in _UNLIMITED):
            at = earliest(resumes_at, gives_up_at if limited and stage not in _UNLIMITED else None)
            assert at is not None
            self._times.add(at, wait)

    def _queue_for_slot(self, wait: Wait) -> None:
        self._enter(wait, Stage.SLOT)
        self._slots.append(wait)

    def _pause(self, wait: Wait, now: int, out: list[Effect]) -> None:
        wait.failures += 1
        self._leave_gate(wait, now, out)
        self._enter(wait, Stage.PAUSE, now + max(1, int(wait.retry.delay(wait.failures, self._rng) * 1000)))

    def _pass_gate(self, wait: Wait, modes: Mapping[int, int], now: int, out: list[Effect]) -> bool:
        """Queue up with the others that want one of the same locks; who has passed for all of them need not."""
        expected, wait.expects = wait.expects, False
        held = self._gate.modes(wait)
        both = joint(held, modes)
        if both == held:
            return True
        self._leave_gate(wait, now, out)
        # Who decides for other locks each time keeps the first ones, too, or would never come to the front; what was
        # only expected of it is not kept.
        return self._gate.join(wait, modes if expected else both)

    def _leave_gate(self, wait: Wait, now: int, out: list[Effect]) -> None:
        for other in self._gate.leave(wait):
            self._await_view(other, Stage.BLOCKED, max(other.mark, self._taken.last(other.modes)), now, out)

    def _await_view(self, wait: Wait, stage: Stage, mark: int, now: int, out: list[Effect]) -> None:
        wait.mark = mark
        self._enter(wait, stage)
        if self.applied_mark >= mark:
            self._view_is_there(wait, now, out)
        elif self._paused:
            self._end(wait, Unavailable(wait.token), now, out)
        else:
            self._marks.add(mark, wait)

    def _view_is_there(self, wait: Wait, now: int, out: list[Effect]) -> None:
        if wait.begun is None:
            self._end(wait, MarkReached(wait.token, wait.mark), now, out)
        elif wait.stage is Stage.APPLYING:
            self._done(wait, now, out)
        else:
            self._queue_for_slot(wait)

    def _on_time(self, now: int, out: list[Effect]) -> None:
        while due := self._times.up_to(now):
            for wait in due:
                if wait.gives_up_at is not None and now >= wait.gives_up_at:
                    gated = wait.stage is Stage.GATE
                    self._end(wait, GaveUp(wait.token, wait.tries, gated), now, out)
                else:
                    self._queue_for_slot(wait)

    # ---- the server's mark ---------------------------------------------------------------------------

    def _want(self, wanted: MarkWanted, now: int, out: list[Effect]) -> None:
        wait = self._waits[wanted.token] = Wait(wanted.token, None)
        if wanted.mark is not None:
            self._await_view(wait, Stage.APPLYING, wanted.mark, now, out)
        elif self._paused:
            self._end(wait, Unavailable(wait.token), now, out)
        else:
            self._ask(wait, now, out)

    def _ask(self, wait: Wait, now: int, out: list[Effect]) -> None:
        # Whoever allows no second attempt at all still gets its only decline confirmed.
        self._enter(wait, Stage.ASKING, limited=wait.gives_up_at is None or now < wait.gives_up_at)
        if self._questions.join(wait):
            out.append(AskMark())

    def _on_answer(self, event: MarkAnswered, now: int, out: list[Effect]) -> None:
        mark = event.mark
        self.committed_mark = max(self.committed_mark, -1 if mark is None else mark)
        answered, again = self._questions.answered()
        if again:
            out.append(AskMark())
        for wait in answered:
            wait.confirmed = mark
            if mark is None:
                self._end(wait, NoMark(wait.token), now, out)
            elif wait.begun is None:
                self._await_view(wait, Stage.APPLYING, mark, now, out)
            elif wait.declined_at >= mark:
                self._done(wait, now, out)
            else:
                self._await_view(wait, Stage.BEHIND, mark, now, out)

    # ---- the end of waiting --------------------------------------------------------------------------

    def _on_paused(self, _: ViewPaused, now: int, out: list[Effect]) -> None:
        """Everybody who waits for the view, or will, hears of it; appends under way keep their outcomes."""
        self._paused = True
        for wait in list(self._waits.values()):
            if wait.stage not in (Stage.DECIDING, Stage.SENT, Stage.LEFT) and wait.token in self._waits:
                self._end(wait, Unavailable(wait.token), now, out)

    def _done(self, wait: Wait, now: int, out: list[Effect]) -> None:
        self._end(wait, SubmitDone(wait.token, wait.transaction_id, wait.attempts, wait.conflicts), now, out)

    def _end(self, wait: Wait, effect: Effect, now: int, out: list[Effect]) -> None:
        out.append(effect)
        self._forget(wait, now, out)

    def _forget(self, wait: Wait, now: int, out: list[Effect]) -> None:
        del self._waits[wait.token]
        if wait.stage is Stage.SENT:
            wait.stage = Stage.LEFT  # it is written down nowhere, and asks for nothing
        else:
            self._enter(wait, Stage.LEFT)
            self._questions.forget(wait)
        self._leave_gate(wait, now, out)
