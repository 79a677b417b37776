"""What the application layer promises, judged against the log; one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.invariants.application import (
    applied_once,
    committed_once,
    declines,
    keys,
    marks,
    nobody_forgotten,
    pauses,
    receipts,
    retries,
    sending,
)

if TYPE_CHECKING:
    from tests.model.application_world import ApplicationWorld, Call, InFlight, Member


def check_sent(world: ApplicationWorld, append: InFlight) -> None:
    """Judge an append that is about to be sent.

    Raises:
        InvariantError: a promise is broken.
    """
    sending.check(world, append)


def check_call(world: ApplicationWorld, call: Call) -> None:
    """Judge a call that has just ended; errors as `check_sent`."""
    for promise in (receipts, declines, retries, keys, marks, pauses):
        promise.check(world, call)


def check_paused(world: ApplicationWorld, member: Member) -> None:
    """Judge a process whose partition is paused; errors as `check_sent`."""
    pauses.check_step(world, member)


def check_end(world: ApplicationWorld) -> None:
    """Judge everything, once all calls have ended; errors as `check_sent`."""
    for promise in (applied_once, committed_once, nobody_forgotten):
        promise.check(world)
