"""A call that gave up has kept to its limits, and nothing of it is in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require
from waltz_core.client.submit_calls import GaveUp

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld, Call


def check(world: ApplicationWorld, call: Call) -> None:
    """Judge a call that has just ended."""
    if isinstance(call.outcome, GaveUp):
        require(all(move.call != call.number for move in world.log), "GivenUpIsNotCommitted", f"{call}")
        require(call.attempts <= call.retry.attempts, "RetryHasLimits", f"{call}")
