"""At some moment of a declined call the log asked for it; a decline that nobody confirms may be older."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require
from waltz_core.client.keys import KeyTable
from waltz_core.client.submit_calls import SubmitDone

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld, Call


def check(world: ApplicationWorld, call: Call) -> None:
    """Judge a call that has just ended."""
    match call.outcome:
        case SubmitDone(transaction_id=None):
            require(_was_right(world, call), "DeclineWasRight", f"{call}")


def _was_right(world: ApplicationWorld, call: Call) -> bool:
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
