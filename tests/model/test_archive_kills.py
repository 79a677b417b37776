"""A round of archiving and freeing ends, whoever is killed at whichever of its steps, and frees only what it may."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.model.archive_kills import COUNT, KEEP, Kill, Round, kills

_EVERY = 50  # of the kills are tried with the quick tests
_ENOUGH = 3  # problems to know what is wrong


@pytest.fixture(scope="module")
def every_kill(tmp_path_factory: pytest.TempPathFactory) -> list[Kill]:
    plain = Round(tmp_path_factory.mktemp("plain") / "vault")
    plain.run()
    assert plain.freed == COUNT - KEEP
    asked = {name.split()[0] for name in plain.steps.names if name.endswith("is answered")}
    assert asked == {"ArchiveLook", "ArchiveTake", "ArchiveCommit", "ArchiveCompare"}
    every = kills(plain)
    assert {kill.who for kill in every} == {"archive", "host", "server0", "storage0", "storage1", "storage2"}
    return every


def try_kills(root: Path, tried: Sequence[Kill]) -> None:
    problems = []
    for number, kill in enumerate(tried):
        killed = Round(root / str(number), kill)
        try:
            killed.run()
            assert killed.kills == 1, f"killed {killed.kills} times"
        except AssertionError as error:
            problems.append(f"{kill}: {error}")
        if len(problems) == _ENOUGH:
            break
    assert problems == []


def test_of_a_round_that_is_killed_at_some_steps_nothing_is_freed_unverified_and_it_ends(
    every_kill: list[Kill], tmp_path: Path
) -> None:
    try_kills(tmp_path, every_kill[::_EVERY])


@pytest.mark.slow
def test_of_a_round_that_is_killed_at_every_step_nothing_is_freed_unverified_and_it_ends(
    every_kill: list[Kill], tmp_path: Path
) -> None:
    assert len(every_kill) > 150
    try_kills(tmp_path, every_kill)
