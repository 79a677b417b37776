"""The corpus of planted bugs fits the code, and the quickest of them are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import COUNT_MIN, ask, verdict
from tests.mutants.corpus import CORPUS, QUICK
from tests.mutants.planted import ROOT, Mutant


@pytest.mark.parametrize("mutant", CORPUS, ids=lambda mutant: mutant.name)
def test_every_bug_still_fits_the_code(mutant: Mutant) -> None:
    compile(mutant.source(), str(mutant.path), "exec")


def test_no_bug_uses_a_name_that_is_nowhere(tmp_path: Path) -> None:
    """It would end the process at once, whatever the tests look at."""
    for number, mutant in enumerate(CORPUS):
        (tmp_path / f"bug_{number}.py").write_text(mutant.source(), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ruff"), "check", "--isolated", "--select", "F821", "--no-cache"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_there_are_enough_of_them() -> None:
    names = [mutant.name for mutant in CORPUS]
    assert len(set(names)) == len(names) >= COUNT_MIN
    assert set(QUICK) <= set(names)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found_by_the_simulator(name: str) -> None:
    # Some seconds alone; the budget is generous, as the machine may be shared.
    assert ask(name, "--budget", "90")["by"] == "simulator"


def test_tests_hunt_in_a_process_in_which_the_simulator_has_run() -> None:
    program = """
import tests.model.run
from tests.mutants.hunt import run_tests

assert run_tests(["tests/unit/locks/test_table.py"]) is None
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


HUNT = "import json, os, time; print(json.dumps({'trying': 'test', 'seed': 'tests/a.py::test_b'}), flush=True); "


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("os.kill(os.getpid(), 9)", "the process ended with status -9"),
        ("raise SystemExit('cut off')", "the process ended with status 1: cut off"),
        ("os.fork() or time.sleep(600); os._exit(3)", "the process ended with status 3"),
        ("time.sleep(600)", "does not end"),
    ],
)
def test_a_hunt_that_dies_of_the_bug_has_found_it_with_what_it_was_trying(ends: str, said: str) -> None:
    # Interpreters start in seconds on a busy machine, elsewhere in a tenth of one: who has said nothing gets more time.
    for seconds_max in (1, 15, 60) if said == "does not end" else (60,):
        result = verdict("a bug", [sys.executable, "-c", HUNT + ends], seconds_max)
        if "broken" not in result:
            break
    assert (result["by"], result["seed"], result["said"]) == ("test", "tests/a.py::test_b", said)


def test_a_hunt_that_dies_before_it_tries_anything_has_found_nothing() -> None:
    result = verdict("a bug", [sys.executable, "-c", "raise SystemExit('no such test')"], 60)
    assert (result["by"], result["broken"], result["said"]) == (
        "",
        True,
        "the process ended with status 1: no such test",
    )


def test_a_test_that_does_not_end_is_found_wherever_it_is_broken_off(tmp_path: Path) -> None:
    slow = tmp_path / "test_slow.py"
    slow.write_text(
        "import time\n\ndef test_slow():\n    try:\n        time.sleep(600)\n    finally:\n        raise SystemExit\n"
    )
    program = f"""
from tests.mutants import hunt

hunt.TEST_HANG_S = 1
print(hunt.run_tests([{str(slow)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Found(by='test'" in done.stdout
    assert "test_slow" in done.stdout


def test_a_bug_is_in_the_module_before_pytest_can_read_it_again() -> None:
    """Where `pip install .` has left its egg-info, pytest loads the modules that it names by a hook of its own."""
    program = """
import sys
from tests.mutants.corpus import CORPUS
from tests.mutants.planted import _Loader, plant

plant(CORPUS[0])
assert type(sys.modules[CORPUS[0].fullname].__loader__) is _Loader
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
