"""A receipt names the transaction of its call, and the view has it where the call waited for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require
from waltz_core.client.submit_calls import SubmitDone

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld, Call


def check(world: ApplicationWorld, call: Call) -> None:
    """Judge a call that has just ended."""
    match call.outcome:
        case SubmitDone(transaction_id=int(at)):
            move = world.log[at]
            same = move.call == call.number if call.key is None else (move.key, move.hashed) == (call.key, call.hashed)
            require(same, "ReceiptIsTrue", f"{call} got {at}, which is {move}")
            if call.until_applied:
                mark = call.member.machine.submitter.applied_mark if call.member is not None else -1
                require(mark >= at, "ReceiptIsApplied", f"{call} at {mark}")
