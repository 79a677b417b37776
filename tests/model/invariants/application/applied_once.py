"""Every database has every transaction, once and in order, and is what they make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld


def check(world: ApplicationWorld) -> None:
    """Judge a world at its end."""
    from tests.model.application_world import apply

    state: dict[int, int] = {}
    for move in world.log:
        apply(move, state)
        require(min(state.values()) >= 0, "NothingIsOverdrawn", f"{state} behind {move}")
    for database in world.databases:
        applied = [transaction_id for transaction_id, _, _ in database.applied]
        require(applied == list(range(len(world.log))), "AppliedOnceInOrder", f"{applied}")
        require(database.state == state, "StateIsThatOfTheLog", f"{database.state}, not {state}")
