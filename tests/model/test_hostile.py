"""Hostile peers in the simulator: the others notice nothing, and what lets them through is found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model import hostile
from tests.model.hostile import Hostile
from tests.model.run import Run, run_seed
from waltz_core.server.client_port import ClientConn

_SEEDS = range(8000, 8003)


def test_invariants_hold_for_others_beside_hostile_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "SHARE", 1.0)
    results = [run_seed(seed) for seed in _SEEDS]
    assert [result.failure for result in results] == [""] * len(results)
    assert all("hostile" in result.kinds for result in results)
    kinds = {name for result in results for name in result.counts if name.startswith("hostile_")}
    names = ("flood", "extremes", "lies", "half", "silence", "appends")
    assert kinds == {f"hostile_{name}" for name in names}
    marks = {name for result in results for name in result.counts if name.startswith("mark ")}
    assert "mark an append under a request id of another client was refused" in marks
    assert "mark a hostile connection was ended by the other side" in marks
    assert "mark appends of a hostile flood were committed" in marks


def test_an_append_that_a_hostile_peer_forges_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it let through, the log would hold what nobody appended."""
    made = ClientConn.__init__

    def trusting(self: ClientConn, *arguments: Any) -> None:
        made(self, *arguments)
        self.carries_others = True

    monkeypatch.setattr(ClientConn, "__init__", trusting)
    monkeypatch.setattr(hostile, "SHARE", 1.0)
    failures = (run_seed(seed).failure for seed in range(7000, 7010))
    failure = next(failure for failure in failures if failure)
    assert failure.startswith("InvariantError: Outcomes: nobody appended")


def test_seeds_without_hostile_peers_mean_what_they_meant() -> None:
    """They come from a stream of their own, in their share of the seeds, and not where limits are not drawn."""
    drawn = [Run(seed).hostile.on for seed in range(300)]
    assert 20 < sum(drawn) < 80
    seed = drawn.index(True)
    assert not Run(seed, limits=False).hostile.on
    assert not Run(seed, without=["hostile"]).hostile.on
    calm = Run(drawn.index(False))
    assert isinstance(calm.hostile, Hostile)
    assert not [name for name in calm.world.nodes if name.startswith("hostile")]
