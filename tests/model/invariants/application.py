"""What the application layer promises, judged against the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import InvariantError
from waltz_core.client.keys import KeyTable
from waltz_core.client.submit_calls import GaveUp, KeyReused, MarkReached, SubmitDone

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld, Call, InFlight


def check_application(world: ApplicationWorld, call: Call | None = None) -> None:
    """Judge one call that has just ended, or at the end everything.

    Raises:
        InvariantError: a promise is broken.
    """
    if call is not None:
        _outcome_is_true(world, call)
        return
    _everything_is_applied_once_and_in_order(world)
    _nothing_is_in_the_log_twice(world)
    _nobody_is_forgotten(world)


def check_sent(world: ApplicationWorld, append: InFlight) -> None:
    """Judge an append that is about to be sent: its process knows of nothing for which it would be refused.

    What a decision has seen is forgotten; if the database is set back afterwards, the server has to refuse.

    Raises:
        InvariantError: it does.
    """
    for lock in append.locks:
        taken = append.member.heard.get(lock, -1)
        _require(
            taken <= max(append.based_on, append.member.seen),
            "SentOnAStateThatMayWin",
            f"{append}: {taken} took {lock}",
        )
        for other in world.flying:
            both = other.member is append.member and lock in other.locks
            _require(not both, "OneAppendAtATimePerLock", f"{append} beside {other}")


def _require(holds: bool, name: str, text: str) -> None:
    if not holds:
        raise InvariantError(name, text)


def _outcome_is_true(world: ApplicationWorld, call: Call) -> None:
    log, outcome = world.log, call.outcome
    match outcome:
        case SubmitDone(transaction_id=None):
            _require(_right_to_decline(world, call), "DeclineWasRight", f"{call}")
        case SubmitDone(transaction_id=int(at)):
            move = log[at]
            same = move.call == call.number if call.key is None else (move.key, move.hashed) == (call.key, call.hashed)
            _require(same, "ReceiptIsTrue", f"{call} got {at}, which is {move}")
            if call.until_applied:
                mark = call.member.machine.submitter.applied_mark if call.member is not None else -1
                _require(mark >= at, "ReceiptIsApplied", f"{call} at {mark}")
        case GaveUp():
            _require(all(move.call != call.number for move in log), "GivenUpIsNotCommitted", f"{call}")
            _require(call.attempts <= call.retry.attempts, "RetryHasLimits", f"{call}")
        case KeyReused(transaction_id=at):
            move = log[at]
            _require(move.key == call.key and move.hashed != call.hashed, "ReusedKeyIsReused", f"{call}, {move}")
        case MarkReached(mark=mark):
            wanted = call.wanted if call.wanted >= 0 else call.began_at
            _require(mark >= wanted, "MarkIsReached", f"{call} at {mark}")


def _right_to_decline(world: ApplicationWorld, call: Call) -> bool:
    """At some moment of the call the log asked for it; a decline that nobody confirms may be older."""
    from tests.model.application_world import apply, decide

    state: dict[int, int] = {}
    keys = KeyTable(world.window)
    first = call.began_at if call.confirm else -1
    for mark in range(-1, len(world.log)):
        if mark >= 0:
            apply(world.log[mark], state)
            keys.apply(mark, world.log[mark].key, world.log[mark].hashed)
        unknown = call.key is None or keys.find(call.key, mark) is None
        if mark >= first and unknown and decide(state, call.account, call.amount) is None:
            return True
    return False


def _everything_is_applied_once_and_in_order(world: ApplicationWorld) -> None:
    from tests.model.application_world import apply

    state: dict[int, int] = {}
    for move in world.log:
        apply(move, state)
        _require(min(state.values()) >= 0, "NothingIsOverdrawn", f"{state} behind {move}")
    for database in world.databases:
        applied = [transaction_id for transaction_id, _, _ in database.applied]
        _require(applied == list(range(len(world.log))), "AppliedOnceInOrder", f"{applied}")
        _require(database.state == state, "StateIsThatOfTheLog", f"{database.state}, not {state}")


def _nothing_is_in_the_log_twice(world: ApplicationWorld) -> None:
    calls: dict[int, int] = {}
    keys: dict[str, int] = {}
    for at, move in enumerate(world.log):
        _require(move.call not in calls, "CommittedOnce", f"{move} at {calls.get(move.call)} and {at}")
        calls[move.call] = at
        if move.key is not None:
            before = keys.get(move.key)
            _require(before is None or before < at - world.window, "KeyIsCommittedOnce", f"{move} at {before} and {at}")
            keys[move.key] = at


def _nobody_is_forgotten(world: ApplicationWorld) -> None:
    for call in world.calls:
        _require(call.outcome is not None, "NobodyIsForgotten", f"{call}")
    for member in world.members:
        machine = member.machine.submitter
        left = (machine.waiting, machine.in_flight, machine.queued, machine.gated, machine.deadline())
        _require(left == (0, 0, 0, 0, None), "NothingIsLeft", f"{left}")
        _require(member.expected == len(world.log) - 1, "ViewCatchesUp", f"{member.expected} of {len(world.log) - 1}")
