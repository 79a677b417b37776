"""The exhaustive search over store sessions: small bounds here, larger ones by hand."""

from __future__ import annotations

import pytest

from tests.model.recovery_model import Bounds, Model, explore, main
from waltz_core.store import recovery_events as rec
from waltz_core.store.members import Member
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.znodes import UNRESOLVED


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
    outcome = explore(Model(bounds), liveness_every=20)
    assert outcome.violation == "", outcome.trace
    assert outcome.complete
    assert outcome.states > 200


class _AppendsEarly(Recovery):
    """Takes every replica for named in ZooKeeper (`states_before_votes`)."""

    def _named(self, member: Member) -> bool:
        return True


class _BelievesWhoWasSetBack(Recovery):
    """Counts a replica that remembers less than ZooKeeper says (`rolled_back_is_absent`)."""

    def _on_up(self, member: Member, event: rec.ReplicaUp, out: list[rec.Effect]) -> None:
        super()._on_up(member, event, out)
        state = self._at.states.get(member.replica)
        if state is not None and state.closing_mark == UNRESOLVED and event.info.session_id < state.session_id:
            member.counted = member.vouched = True


@pytest.mark.parametrize(("recovery", "violation"), [(_AppendsEarly, "S4"), (_BelievesWhoWasSetBack, "S6")])
def test_the_search_finds_what_a_rule_prevents(recovery: type[Recovery], violation: str) -> None:
    """server-D1 and server-D4."""
    outcome = explore(Model(Bounds(sessions=2, ids=1, wipes=1), recovery))
    assert outcome.violation.startswith(f"ViolationError: {violation}:")
    assert outcome.trace


def test_the_search_runs_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sessions", "1", "--ids", "1", "--states-max", "5"]) == 0
    assert "5 states" in capsys.readouterr().out
