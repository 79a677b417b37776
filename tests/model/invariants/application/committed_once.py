"""A call is in the log once at most, and so is a key while views remember it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld


def check(world: ApplicationWorld) -> None:
    """Judge a world at its end."""
    calls: dict[int, int] = {}
    keys: dict[str, int] = {}
    for at, move in enumerate(world.log):
        require(move.call not in calls, "CommittedOnce", f"{move} at {calls.get(move.call)} and {at}")
        calls[move.call] = at
        if move.key is not None:
            before = keys.get(move.key)
            require(before is None or before < at - world.window, "KeyIsCommittedOnce", f"{move} at {before} and {at}")
            keys[move.key] = at
