"""Where a transaction that cannot be applied pauses a partition, who waits for its view hears of it, nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require
from waltz_core.client.submit_calls import Unavailable

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld, Call, Member


def check(world: ApplicationWorld, call: Call) -> None:
    """Judge a call that has just ended."""
    if isinstance(call.outcome, Unavailable):
        require(call.member is not None and call.member.paused, "OnlyThePausedAreUnavailable", f"{call}")


def check_step(world: ApplicationWorld, member: Member) -> None:
    """Judge a process whose partition is paused, behind a step: whoever is left decides, or has an append in flight."""
    busy = {id(call) for call in member.deciding} | {id(append.call) for append in world.flying}
    for call in world.calls:
        if call.member is member and call.outcome is None:
            require(id(call) in busy, "NobodyWaitsForAPausedView", f"{call}")
