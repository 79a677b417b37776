"""The exhaustive search over store sessions: small bounds here, larger ones by hand."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.model.recovery_model import Bounds, Model, explore, main
from waltz_core.base.rules import SAFE


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(sessions=2, ids=1),
        Bounds(sessions=2, ids=1, wipes=1),
        Bounds(sessions=2, ids=1, lagging=True, unknown=1, lingering=0),
        Bounds(sessions=2, ids=1, fresh=True, lingering=0),
    ],
)
def test_no_schedule_breaks_an_invariant(bounds: Bounds) -> None:
    """Every state within the bounds."""
    outcome = explore(Model(bounds, SAFE), liveness_every=20)
    assert outcome.violation == "", outcome.trace
    assert outcome.complete
    assert outcome.states > 200


@pytest.mark.parametrize(("rule", "violation"), [("states_before_votes", "S4"), ("rolled_back_is_absent", "S6")])
def test_the_search_finds_what_a_rule_prevents(rule: str, violation: str) -> None:
    """server-D1 and server-D4."""
    rules = evolve(SAFE, **{rule: False})
    outcome = explore(Model(Bounds(sessions=2, ids=1, wipes=1), rules))
    assert outcome.violation.startswith(f"ViolationError: {violation}:")
    assert outcome.trace


def test_the_search_runs_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, and the schedule of a violation."""
    assert main(["--sessions", "1", "--ids", "1", "--states-max", "5"]) == 0
    assert "5 states" in capsys.readouterr().out
    assert main(["--sessions", "2", "--ids", "1", "--off", "states_before_votes"]) == 1
    assert "S4: " in capsys.readouterr().out
