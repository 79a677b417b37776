"""A short form of the crash sweep, and that it is awake; `make crash-sweep` runs lives of six requests."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from tests.model import crash_sweep
from waltz_testing.simulation.mount import Mount

_LIVES = {
    "a segment below the log start is deleted": "bbmsa",
    "a partition is given up, keeps its files and is taken on again": "bbmurna",
    "a partition is deleted": "bbmdr",
    "a partition with a raised log start is deleted": "bbmsd",
    "the newest decided record rots and is repaired": "bbmxarf",
    "the oldest record rots and is repaired": "bbmyrf",
    "two records rot and are repaired": "bbmxyfa",
    "the newest record rots and is given up": "bbmxsa",
}


def _looked_at(word: str, enough: float = inf) -> crash_sweep.Sweep:
    """A life, and all that it begins with."""
    sweep = crash_sweep.Sweep(len(word), enough)
    for length in range(1, len(word) + 1):
        sweep.one(word[:length])
    return sweep


@pytest.mark.parametrize("what", _LIVES)
def test_no_promise_is_broken_wherever_a_life_is_cut_off_in_which(what: str) -> None:
    assert _looked_at(_LIVES[what], enough=1).violations == []


@pytest.mark.parametrize("word", ["bbbc", "abmbbc", "bmbbwc", "bbcab"])
def test_a_truncation_over_several_segments_breaks_no_promise_wherever_it_is_cut_off(word: str) -> None:
    sweep = _looked_at(word)
    assert sweep.violations == []
    assert sweep.starts > 150


def test_no_promise_is_broken_wherever_the_making_of_a_node_is_cut_off() -> None:
    sweep = crash_sweep.Sweep(0, enough=1)
    sweep.one("")
    assert sweep.violations == []
    assert sweep.starts > 5_000


@pytest.mark.slow
def test_no_short_life_ends_in_a_state_that_breaks_a_promise() -> None:
    sweep = crash_sweep.sweep(3, enough=10)
    assert sweep["first_violations"] == []
    assert sweep["sequences"] == 406
    assert sweep["starts"] > 15_000


@pytest.mark.parametrize(("call", "suffix"), [("sync_data", ".seg"), ("sync_data", ".ctl"), ("sync_directory", "0")])
def test_a_disk_that_only_pretends_to_sync_is_noticed(monkeypatch: pytest.MonkeyPatch, call: str, suffix: str) -> None:
    sync = getattr(Mount, call)

    def pretend(self: Mount[Any], what: Any) -> None:
        name = self._opened(what)[1] if call == "sync_data" else str(what)
        if not name.endswith(suffix):
            sync(self, what)

    monkeypatch.setattr(Mount, call, pretend)
    sweep = crash_sweep.Sweep(1, enough=1)
    for letter in crash_sweep.MORE_LETTERS:
        sweep.one(letter)
    assert len(sweep.violations) == 1
