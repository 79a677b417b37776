"""The corpus of planted bugs fits the code, and the quickest of them are found."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import COUNT_MIN, ask
from tests.mutants.corpus import CORPUS, QUICK
from tests.mutants.planted import Mutant


@pytest.mark.parametrize("mutant", CORPUS, ids=lambda mutant: mutant.name)
def test_every_bug_still_fits_the_code(mutant: Mutant) -> None:
    compile(mutant.source(), str(mutant.path), "exec")


def test_there_are_enough_of_them() -> None:
    names = [mutant.name for mutant in CORPUS]
    assert len(set(names)) == len(names) >= COUNT_MIN
    assert set(QUICK) <= set(names)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found_by_the_simulator(name: str) -> None:
    assert ask(name, "--budget", "20")["by"] == "simulator"
