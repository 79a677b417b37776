"""One bug in one fresh process: who finds it, and how soon.

    python -m tests.mutants.hunt "answer before sync" [--budget 20]
    python -m tests.mutants.hunt none --simulator 5001 5004 --storage 3     (the code as it is, on given seeds)

Prints a line of JSON for each seed and each test that it begins, so that whoever started it knows what was under way if
the bug ends this process; the last line is the verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TypeAlias

import attrs

from tests.mutants.corpus import CORPUS
from tests.mutants.planted import ROOT, Mutant, plant

SEEDS = 5_000
"""First seed of the simulator."""
HANG_S = 40
"""A seed that takes so much processor time does not end; it takes half a second otherwise."""
TEST_HANG_S = 150
"""A test that takes so long does not end; the first one of a session may have to start Spark."""


Tell: TypeAlias = Callable[[str, str], None]
"""Told of each detector and its seed or test before it is tried."""


class _HangsError(BaseException):
    """Not an Exception: whoever catches those must not take it for something else."""


@attrs.frozen
class Found:
    """Who found it: the detector, its seed or test, and what it said."""

    by: str
    seed: str
    said: str


def _hangs(number: int, frame: FrameType | None) -> None:
    raise _HangsError


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Of processor time: what runs in between neither waits nor sleeps, and the machine may be busy otherwise."""
    before = signal.signal(signal.SIGPROF, _hangs)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _tell_nobody(by: str, seed: str) -> None:
    """For who hunts in the own process."""


def _teller() -> Tell:
    """Tells on what is the standard output now: while tests run, it is theirs."""
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")

    def tell(by: str, seed: str) -> None:
        stdout.write(json.dumps({"trying": by, "seed": seed}) + "\n")
        stdout.flush()

    return tell


def simulator(seeds: Iterator[int], budget: float, tell: Tell = _tell_nobody) -> Found | None:
    """Whole clusters under faults."""
    from tests.model.run import run_seed

    end = time.monotonic() + budget
    for seed in seeds:
        tell("simulator", str(seed))
        try:
            with _limit(HANG_S):
                failure = run_seed(seed).failure
        except _HangsError:
            failure = "does not end"
        if failure:
            return Found("simulator", str(seed), failure.splitlines()[0][:150])
        if time.monotonic() > end:
            break
    return None


def storage(seeds: Iterator[int], budget: float, tell: Tell = _tell_nobody) -> Found | None:
    """One storage node, crashed and restarted."""
    from tests.unit.storage.fuzz import run

    end = time.monotonic() + budget
    for seed in seeds:
        tell("storage", str(seed))
        for faults, rot in ((False, False), (True, False), (False, True)):
            try:
                with _limit(HANG_S), contextlib.redirect_stdout(io.StringIO()):
                    run(seed, faults=faults, rot=rot)
            except _HangsError:
                return Found("storage", str(seed), "does not end")
            except BaseException as error:  # a crash of the simulated process is one, too
                return Found("storage", str(seed), f"{type(error).__name__}: {error}"[:150])
        if time.monotonic() > end:
            break
    return None


class _First:
    """Keeps the first test that fails; one that does not end fails, too."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.running = ""
        self.failed = ""
        self.said = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running = nodeid
        self._tell("test", nodeid)
        signal.signal(signal.SIGALRM, _hangs)
        signal.setitimer(signal.ITIMER_REAL, TEST_HANG_S)

    def pytest_runtest_logfinish(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_runtest_logreport(self, report: object) -> None:
        self._look_at(report)

    def pytest_collectreport(self, report: object) -> None:
        self._look_at(report)

    def _look_at(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.failed:
            self.failed = str(getattr(report, "nodeid", ""))
            self.said = (str(getattr(report, "longreprtext", "")).strip().splitlines() or [""])[-1][:150]


def scenarios(module: str, tell: Tell) -> Found | None:
    """Unit tests and scenarios, those nearest to the module first."""
    package = module.partition(".")[0]
    near = [f"tests/unit/{package}"] if (ROOT / "tests/unit" / package).is_dir() else ["tests/unit/locks/test_table.py"]
    others = ["tests/model/test_server.py", "tests/model/test_identity.py", "tests/model/test_reads.py"]
    others += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/model").glob("test_defects_*.py"))
    others += [f"tests/unit/{name}" for name in ("server", "store", "client", "storage") if name != package]
    return run_tests(near, tell) or run_tests(others, tell)


def run_tests(paths: Sequence[str], tell: Tell = _tell_nobody) -> Found | None:
    """These test files.

    Raises:
        RuntimeError: they cannot be run, whatever is planted.
    """
    import pytest

    first = _First(tell)
    os.chdir(ROOT)
    text = io.StringIO()
    # The simulator has run in this process: what it imported stays as it is, asserts of tests are rewritten.
    ignored = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", *ignored]
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            status = pytest.main([*options, *paths], plugins=[first])
    except _HangsError:  # raised where pytest does not look after a test
        return Found("test", first.failed or first.running, first.said or "does not end")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if first.failed:
        return Found("test", first.failed, first.said)
    if status == pytest.ExitCode.OK:
        return None
    last = (text.getvalue().strip().splitlines() or [""])[-1]
    if first.running:  # an error in pytest itself, or a test that interrupts it
        return Found("test", first.running, f"broke off: {last}"[:150])
    raise RuntimeError(f"{', '.join(paths)} cannot be run: {text.getvalue()[-2000:]}")


def hunt(mutant: Mutant | None, budget: float, tell: Tell) -> Found | None:
    """Try the detectors in order; those that the bug names, where it does."""
    if mutant is not None and mutant.found_by:
        return run_tests(mutant.found_by, tell)
    module = mutant.module if mutant else "storage"
    caught = simulator(itertools.count(SEEDS), budget, tell)
    if caught is None and module.startswith("storage"):
        caught = storage(itertools.count(), budget / 2, tell)
    return caught or scenarios(module, tell)


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.hunt")
    parser.add_argument("name", help="a name of the corpus, or none")
    parser.add_argument("--budget", type=float, default=20, help="seconds for the simulator, half of it for storage")
    parser.add_argument("--simulator", type=int, nargs="*", help="with none: these seeds only")
    parser.add_argument("--storage", type=int, nargs="*", help="with none: these seeds only")
    options = parser.parse_args(arguments)
    mutant = next((one for one in CORPUS if one.name == options.name), None)
    if mutant is None and options.name != "none":
        parser.error(f"no bug is called {options.name!r}")
    if mutant is not None:
        plant(mutant)
    began, tell = time.process_time(), _teller()
    if options.simulator is not None or options.storage is not None:
        simulated = simulator(iter(options.simulator or ()), 1e9, tell)
        caught = simulated or storage(iter(options.storage or ()), 1e9, tell)
    else:
        caught = hunt(mutant, options.budget, tell)
    seconds = round(time.process_time() - began, 1)
    verdict = attrs.asdict(caught) if caught else {"by": ""}
    print(json.dumps({"name": options.name, "seconds": seconds, **verdict}), flush=True)
    return 0


if __name__ == "__main__":
    status = main()
    # A test that was broken off leaves tasks and threads behind, at which an orderly end of the interpreter can hang.
    os._exit(status)
