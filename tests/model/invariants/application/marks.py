"""Whoever waited for a mark has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require
from waltz_core.client.submit_calls import MarkReached

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld, Call


def check(world: ApplicationWorld, call: Call) -> None:
    """Judge a call that has just ended."""
    match call.outcome:
        case MarkReached(mark=mark):
            wanted = call.wanted if call.wanted >= 0 else call.began_at
            require(mark >= wanted, "MarkIsReached", f"{call} at {mark}")
