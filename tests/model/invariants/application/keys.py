"""A key is refused only where another request has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require
from waltz_core.client.submit_calls import KeyReused

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld, Call


def check(world: ApplicationWorld, call: Call) -> None:
    """Judge a call that has just ended."""
    match call.outcome:
        case KeyReused(transaction_id=at):
            move = world.log[at]
            require(move.key == call.key and move.hashed != call.hashed, "ReusedKeyIsReused", f"{call}, {move}")
