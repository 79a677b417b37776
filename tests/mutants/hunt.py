"""One bug in one fresh process: who finds it, and how soon.

    python -m tests.mutants.hunt "answer before sync" [--budget 20]
    python -m tests.mutants.hunt none --simulator 5001 5004 --storage 3     (the code as it is, on given seeds)

Prints one JSON object.
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
from collections.abc import Iterator, Sequence
from types import FrameType

import attrs

from tests.mutants.corpus import CORPUS
from tests.mutants.planted import ROOT, Mutant, plant

SEEDS = 5_000
"""First seed of the simulator."""
HANG_S = 40
"""A seed that takes so long does not end; it takes half a second otherwise."""
TEST_HANG_S = 150
"""A test that takes so long does not end; the first one of a session may have to start Spark."""


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
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def simulator(seeds: Iterator[int], budget: float) -> Found | None:
    """Whole clusters under faults."""
    from tests.model.run import run_seed

    end = time.monotonic() + budget
    for seed in seeds:
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


def storage(seeds: Iterator[int], budget: float) -> Found | None:
    """One storage node, crashed and restarted."""
    from tests.unit.storage.fuzz import run

    end = time.monotonic() + budget
    for seed in seeds:
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

    def __init__(self) -> None:
        self.failed = ""
        self.said = ""

    def pytest_runtest_logstart(self) -> None:
        signal.signal(signal.SIGALRM, _hangs)
        signal.setitimer(signal.ITIMER_REAL, TEST_HANG_S)

    def pytest_runtest_logfinish(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.failed:
            self.failed = str(getattr(report, "nodeid", ""))
            self.said = str(getattr(report, "longreprtext", "")).strip().splitlines()[-1][:150]


def scenarios(module: str) -> Found | None:
    """Unit tests and scenarios, those nearest to the module first."""
    package = module.partition(".")[0]
    near = [f"tests/unit/{package}"] if (ROOT / "tests/unit" / package).is_dir() else ["tests/unit/locks/test_table.py"]
    others = ["tests/model/test_server.py", "tests/model/test_identity.py", "tests/model/test_reads.py"]
    others += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/model").glob("test_defects_*.py"))
    others += [f"tests/unit/{name}" for name in ("server", "store", "client", "storage") if name != package]
    return tests(near) or tests(others)


def tests(paths: Sequence[str]) -> Found | None:
    """These test files."""
    import pytest

    first = _First()
    os.chdir(ROOT)
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        # The simulator has run in this process: what it imported stays as it is, asserts of tests are rewritten.
        ignored = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", *ignored]
        status = pytest.main([*options, *paths], plugins=[first])
    if first.failed:
        return Found("test", first.failed, first.said)
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"{', '.join(paths)} cannot be run: {text.getvalue()[-2000:]}")
    return None


def hunt(mutant: Mutant | None, budget: float) -> Found | None:
    """Try the detectors in order; those that the bug names, where it does."""
    if mutant is not None and mutant.found_by:
        return tests(mutant.found_by)
    module = mutant.module if mutant else "storage"
    found = simulator(itertools.count(SEEDS), budget)
    if found is None and module.startswith("storage"):
        found = storage(itertools.count(), budget / 2)
    return found or scenarios(module)


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
    began = time.process_time()
    if options.simulator is not None or options.storage is not None:
        found = simulator(iter(options.simulator or ()), 1e9) or storage(iter(options.storage or ()), 1e9)
    else:
        found = hunt(mutant, options.budget)
    seconds = round(time.process_time() - began, 1)
    print(json.dumps({"name": options.name, "seconds": seconds, **(attrs.asdict(found) if found else {"by": ""})}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
