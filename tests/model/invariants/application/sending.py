"""An append is sent only where it may win, as far as its process knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.base import require

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld, InFlight


def check(world: ApplicationWorld, append: InFlight) -> None:
    """What a decision has seen is forgotten; if the database is set back afterwards, the server has to refuse."""
    for lock in append.locks:
        taken = append.member.heard.get(lock, -1)
        seen = max(append.based_on, append.member.seen)
        require(taken <= seen, "SentOnAStateThatMayWin", f"{append}: {taken} took {lock}")
        for other in world.flying:
            both = other.member is append.member and lock in other.locks
            require(not both, "OneAppendAtATimePerLock", f"{append} beside {other}")
