"""What an application knows of one partition: its machine, and who waits for what the machine says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio

from waltz_core.base.errors import (
    ApplyFailedError,
    ClientClosedError,
    KeyReusedError,
    PartitionUnavailableError,
    RetriesExhaustedError,
)
from waltz_core.base.record import record
from waltz_core.client.applier import Commit, Poisoned, TakeNext
from waltz_core.client.calls import Failed, PartitionStatus, Phase
from waltz_core.client.materialized import Event, MaterializedPartition
from waltz_core.client.submit_calls import GaveUp, KeyReused, NoMark, OutcomeUnknown, SubmitDone
from waltz_core.client.submitter import Submitter
from waltz_trio.client.arguments import whole
from waltz_trio.client.at_work import CALLS_NO_CLIENT, Works, inside
from waltz_trio.client.calls import Call
from waltz_trio.client.life import Life
from waltz_trio.client.values import Receipt
from waltz_trio.client.views import View

if TYPE_CHECKING:
    from waltz_trio.client.pending import Judge


class Part:
    """One partition of an application."""

    def __init__(self, partition: int, machine: MaterializedPartition) -> None:
        self.partition = partition
        self.machine = machine
        self.poison: BaseException | None = None  # what `apply` raised last
        self.failure: ApplyFailedError | None = None  # that a transaction cannot be applied
        self.down: str | None = None
        self.no_mark = ""  # why the server did not tell what is committed, when it was asked last
        self.posted: list[Event] = []  # events for the next step of the machine
        self.undecided: dict[Call, None] = {}  # who waits to be decided, or just is
        self.woken: trio.Event | None = None
        self.deciding: list[Call] = []  # those whose `decide` the view runs right now
        self.decided = trio.Event()  # the view has run it
        self.judge: Judge | None = None  # hears of appends that were sent
        self._for_view: deque[Commit | TakeNext | Poisoned] = deque()
        self._has_work = trio.Event()

    @property
    def submitter(self) -> Submitter:
        """Who waits for what."""
        return self.machine.submitter

    @property
    def paused(self) -> ApplyFailedError | None:
        """Why nothing more is applied, while the application goes on."""
        return self.failure if self.machine.pauses else None

    def for_view(self, effect: Commit | TakeNext | Poisoned) -> None:
        """What is to be done with the batch that the view is given."""
        if isinstance(effect, Poisoned):  # known before anybody hears that the partition is paused
            self.failure = ApplyFailedError(self.partition, effect.transaction_id, repr(self.poison))
            self.failure.__cause__ = self.poison
        self._for_view.append(effect)
        self._has_work.set()

    async def next_for_view(self) -> Commit | TakeNext | Poisoned:
        """Wait for it."""
        if not self._for_view:
            self._has_work = trio.Event()
            await self._has_work.wait()
        return self._for_view.popleft()


class Parts(dict[int, Part]):
    """Those of one application, and whether they can be used."""

    def __init__(self, life: Life, view: View[Any], parts: Iterable[Part]) -> None:
        super().__init__((part.partition, part) for part in parts)
        self.entered = False  # the block of the application has been
        self.running = False  # it has not ended
        self._life = life
        self._view = view

    def known(self, partition: int) -> Part:
        """One of them.

        Raises:
            ValueError: it is none of them.
        """
        self._life.check_thread()
        part = self.get(whole(partition, "a partition"))
        if part is None:
            here = ", ".join(map(str, self))
            text = f"partition {partition} is not materialized here, but {here}"
            raise ValueError(f"{text}: name it in client.materialize(view, [...])")
        return part

    def running_one(self, partition: int) -> Part:
        """One of them, for a call that waits.

        Raises:
            ValueError: it is none of them.
            RuntimeError: the call would wait for its own end, or the block was not entered.
            ClientClosedError: the block has ended.
            PartitionUnavailableError: so it has, and the partition was paused.
        """
        part = self.known(partition)
        work = inside()
        if work is not None and work.view is self._view:
            raise RuntimeError(f"this call would wait for {work}, which waits for it: {CALLS_NO_CLIENT}")
        if not self.running:
            if not self.entered:
                raise RuntimeError("the application is not open: use `async with client.materialize(...) as app`")
            raise unavailable(part)
        return part


@record
class ApplicationStatus:
    """What an application is doing with one partition."""

    partition: int
    applied_mark: int
    committed_mark: int  # the highest that the server has told this application, -1 before it did
    in_flight: int  # submits that hold a slot
    waiting: int  # submits that wait for a slot
    gated: int  # submits that wait behind another one that wants the same lock
    view_down: str | None  # why the view does not take transactions right now
    paused: str | None  # the transaction that could not be applied, with on_poison="pause"
    at_work: str | None  # the function that the view runs right now, and since when


def status_of(part: Part, works: Works) -> ApplicationStatus:
    """How it stands with a partition."""
    submitter = part.submitter
    return ApplicationStatus(
        part.partition,
        submitter.applied_mark,
        submitter.committed_mark,
        submitter.in_flight,
        submitter.queued,
        submitter.gated,
        part.down,
        None if part.paused is None else str(part.paused),
        works.longest(part.partition),
    )


class Tell(Protocol):
    """Steps the machine of a partition and hands out what it says."""

    def __call__(self, part: Part, *events: Event) -> None:
        """Post these events."""


class Post(Protocol):
    """Hands an event to the machine of a partition, at the latest in the next round of the event loop."""

    def __call__(self, part: Part, event: Event) -> None:
        """Post this event."""


def outcome_of(part: Part, call: Call) -> Receipt | None:
    """What a call has come to, said once; errors as `submit`."""
    effect, call.effect = call.effect, None  # which names the call: a circle would be left to the garbage collector
    if type(effect) is SubmitDone:  # nearly always
        if effect.transaction_id is None:
            return None
        return Receipt(part.partition, effect.transaction_id, effect.attempts, effect.conflicts, call.result)
    match effect:
        case GaveUp(_, attempts, gated):
            failure = cause(part, call, gated)
            raise RetriesExhaustedError(attempts, str(failure)) from failure
        case KeyReused(_, transaction_id):
            assert call.key is not None
            raise KeyReusedError(part.partition, call.key.key, transaction_id)
        case OutcomeUnknown():
            assert call.pending is not None
            return call.pending._receipt()
        case NoMark():
            raise untold(part)
        case _:
            raise unavailable(part, in_the_log(call))


def in_the_log(call: Call | None) -> str:
    """That the append of a submit is committed, for an error that its caller gets all the same; else nothing."""
    pending = None if call is None else call.pending
    if pending is None or type(pending._outcome) is not int:
        return ""
    again = "" if call is None or call.key is not None else ": to submit it again would append it a second time"
    where = f"as transaction {pending._outcome} of partition {pending.partition}"
    return f"the append of this submit is in the log {where}{again}"


def many_in_the_log(calls: Sequence[Call], most: int = 20) -> str:
    """Which of some submits have an append in the log, or may have, for an error that says nothing of them."""
    pendings = [(at, call.pending._outcome) for at, call in enumerate(calls) if call.pending is not None]
    there = [f"{at} as transaction {outcome}" for at, outcome in pendings if type(outcome) is int]
    sent = [str(at) for at, outcome in pendings if _may_commit(outcome)]
    if not there and not sent:
        return ""
    texts = []
    for kind, places in (("are in the log", there), ("were sent and may commit yet", sent)):
        if places:
            more = f" and {len(places) - most} more" if len(places) > most else ""
            texts.append(f"{kind}: {', '.join(places[:most])}{more}")
    return f"of {len(calls)} submits, counted from 0, {'; '.join(texts)}"


def _may_commit(outcome: object) -> bool:
    """An append without a verdict, or one that nobody will ever hear of."""
    return outcome is None or (isinstance(outcome, Failed) and not outcome.reason.certain)


def unavailable(part: Part, told: str = "") -> Exception:
    """Why nothing can be waited for; `told` is what is known of an append all the same."""
    if part.paused is None:
        return ended(told)
    error = PartitionUnavailableError(part.partition, f"{told and f'{told}. The view is '}paused: {part.paused}")
    error.__cause__ = part.paused
    return error


def untold(part: Part) -> PartitionUnavailableError:
    """Why nobody can say whether a state holds what is committed."""
    return PartitionUnavailableError(part.partition, part.no_mark)


def ended(told: str = "") -> ClientClosedError:
    """The block was left, or could not go on."""
    over = "the block of the application has ended"
    text = f"{over} before the view had applied its transaction; {told}. Enter another block" if told else ""
    return ClientClosedError(f"{text or f'{over}; enter another one'}: client.materialize(...)")


def cause(part: Part, call: Call, gated: bool) -> Exception:
    """The last failure of a submit that gave up."""
    if call.failure is not None:
        return call.failure
    applied, committed = part.submitter.applied_mark, part.submitter.committed_mark
    if gated:
        reason = "another submit of this application, which comes first, holds one of the same locks"
    elif part.down is not None:
        reason = f"the view is down: {part.down}"
    elif committed > applied:
        reason = f"the view has applied {applied} of {committed}"
    else:
        reason = "the server did not tell its committed mark"
    return PartitionUnavailableError(part.partition, reason)


def end_of(call: Call) -> tuple[str, int | None, int, int]:
    """How a submit ended, as instruments name it: outcome, transaction, attempts, conflicts."""
    match call.effect:
        case SubmitDone(_, None, attempts, conflicts):
            return "declined", None, attempts, conflicts
        case SubmitDone(_, transaction_id, attempts, conflicts):
            return "committed", transaction_id, attempts, conflicts
        case GaveUp(_, attempts):
            return "gave_up", None, attempts, 0
        case KeyReused():
            return "key_reused", None, 0, 0
        case OutcomeUnknown():
            return "unknown", None, 0, 0
        case _:
            return "failed" if call.ended or call.waiter.error is not None else "cancelled", None, 0, 0


def held_up(
    parts: Iterable[Part],
    partition: int | None,
    status: Callable[[int], PartitionStatus],
    works: Works,
    began: float,
    most: int = 3,
) -> str:
    """For a call whose time is over: what a partition, or each of them, waits for, as the end of a sentence."""
    reasons = []
    for part in parts:
        if partition in (None, part.partition):
            phase = status(part.partition).phase
            if part.down is not None:
                reasons.append(f"; partition {part.partition}: its view: {part.down}")
            elif phase is not Phase.MOUNTED:
                reasons.append(f"; partition {part.partition}: {phase.value}")
            elif work := works.named(part.partition, began):
                reasons.append(f"; {work}")
    return "".join(reasons[:most])
