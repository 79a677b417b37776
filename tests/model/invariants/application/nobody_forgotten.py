"""Every call has an outcome, every view catches up, and machines keep nothing of what is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld


def check(world: ApplicationWorld) -> None:
    """Judge a world at its end."""
    for call in world.calls:
        require(call.outcome is not None, "NobodyIsForgotten", f"{call}")
    for member in world.members:
        machine = member.machine.submitter
        left = (machine.waiting, machine.in_flight, machine.queued, machine.gated, machine.deadline())
        require(left == (0, 0, 0, 0, None), "NothingIsLeft", f"{left}")
        require(member.expected == len(world.log) - 1, "ViewCatchesUp", f"{member.expected} of {len(world.log) - 1}")
