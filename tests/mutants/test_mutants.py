"""The corpus of planted bugs fits the code, and the quickest of them are found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.__main__ import COUNT_MIN, ask
from tests.mutants.corpus import CORPUS, QUICK
from tests.mutants.planted import ROOT, Mutant


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


def test_tests_hunt_in_a_process_in_which_the_simulator_has_run() -> None:
    program = """
import tests.model.run
from tests.mutants.hunt import tests

assert tests(["tests/unit/locks/test_table.py"]) is None
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
