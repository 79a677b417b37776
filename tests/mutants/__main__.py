"""Plant every bug of the corpus, one at a time, and tell who found it.

    python -m tests.mutants [--only NAME ...] [--slice A..B] [--budget SECONDS] [--jobs N] [--json PATH]

Each is hunted in a process of its own. One that dies of its bug, or does not end, has found it with the seed or test
that was under way; one that never came to trying anything could not be run. Neither ends the run, and what is known
so far is in the file of `--json` after each bug.

Exit status: 0 if every bug was found, half of them within a minute (of thirty or more), and the code as it is passes
the same seeds and tests.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.mutants.corpus import CORPUS
from tests.mutants.planted import ROOT

COUNT_MIN = 30
MEDIAN_MAX_S = 60
HUNT_MAX_S = 1_800
"""A hunt that takes so long does not end: a survivor has gone through all tests by then."""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="*", default=None, help="names of the corpus")
    parser.add_argument("--slice", metavar="A..B", help="by their places in the corpus, from 1 on, both ends included")
    parser.add_argument("--budget", type=float, default=20, help="seconds for the simulator, for each bug")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", metavar="PATH", help="write one object")
    options = parser.parse_args()
    try:
        names = _selected(options.only, options.slice)
    except ValueError as error:
        parser.error(str(error))
    console = Console()
    results: list[dict[str, Any]] = []

    def run(name: str) -> None:
        result = ask(name, "--budget", str(options.budget))
        results.append(result)
        by = result["by"] or ("CANNOT BE RUN" if result.get("broken") else "SURVIVED")
        console.print(f"{name}: {by} {result.get('seed', '')} ({result['seconds']} s)", markup=False)
        _write(options.json, _report(results, []))

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, names))
    report = _report(results, _false_alarms(results))
    console.print(_table(results))
    for name in ("planted", "found", "survivors", "broken", "median_s", "false_alarms"):
        console.print(f"{name:>14}: {report[name]}")
    _write(options.json, report)
    selected = options.only is not None or options.slice is not None
    quick = report["median_s"] < MEDIAN_MAX_S if len(results) >= COUNT_MIN else selected
    return 0 if quick and report["found"] == len(results) and not report["false_alarms"] else 1


def _selected(only: Sequence[str] | None, places: str | None) -> list[str]:
    """Names of the corpus; raises `ValueError` for one that is not there, or places that are none."""
    names = [mutant.name for mutant in CORPUS]
    if places is not None:
        first, _, last = places.partition("..")
        if not first.isdecimal() or not (last or first).isdecimal() or not 1 <= int(first) <= int(last or first):
            raise ValueError(f"--slice {places}: expected A..B with 1 <= A <= B, and there are {len(names)}")
        names = names[int(first) - 1 : int(last or first)]
    if only is not None:
        if unknown := set(only) - set(names):
            raise ValueError(f"no bug is called {sorted(unknown)[0]!r}")
        names = [name for name in names if name in only]
    return names


def ask(*arguments: str, seconds_max: float = HUNT_MAX_S) -> dict[str, Any]:
    """Hunt in a process of its own, and tell what came of it however it ends."""
    command = [sys.executable, "-m", "tests.mutants.hunt", *arguments]
    return verdict(arguments[0], command, seconds_max)


def verdict(name: str, command: Sequence[str], seconds_max: float) -> dict[str, Any]:
    """The last line that a hunt printed, or what it was trying when it died."""
    began = time.monotonic()
    # Files, not pipes: a process that the hunt started and left would keep a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        hunt = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=errors, start_new_session=True)
        try:
            status = f"the process ended with status {hunt.wait(seconds_max)}"
        except subprocess.TimeoutExpired:
            status = "does not end"
        finally:
            _end_group(hunt)
        out.seek(0)
        errors.seek(0)
        lines, said = out.read().splitlines(), errors.read().strip().splitlines()
    last = _last_object(lines)
    if hunt.returncode == 0 and "by" in last:
        return last
    seconds = round(time.monotonic() - began, 1)
    text = ": ".join([status, *(line[-100:] for line in said[-1:])])
    if "trying" in last:
        return {"name": name, "seconds": seconds, "by": last["trying"], "seed": last["seed"], "said": text}
    return {"name": name, "seconds": seconds, "by": "", "said": text, "broken": True}


def _end_group(leader: subprocess.Popen[Any]) -> None:
    """End a process and those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def _last_object(lines: Iterable[str]) -> dict[str, Any]:
    """The last line that is an object: a test may print others, and a line may be cut."""
    last: dict[str, Any] = {}
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and ("by" in value or "trying" in value):
            last = value
    return last


def _write(path: str | None, report: dict[str, Any]) -> None:
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


def _false_alarms(results: Iterable[dict[str, Any]]) -> list[str]:
    """What the code as it is fails of everything that found a bug."""
    seeds = {by: sorted({one["seed"] for one in results if one["by"] == by}) for by in ("simulator", "storage")}
    tests = sorted({one["seed"] for one in results if one["by"] == "test"})
    alarms = []
    if any(seeds.values()):
        clean = ask("none", "--simulator", *seeds["simulator"], "--storage", *seeds["storage"])
        if clean["by"] or clean.get("broken"):
            alarms.append(f"{clean['by']} {clean.get('seed', '')}: {clean['said']}")
    if tests:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        alarms += [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if done.returncode and not alarms:
            alarms.append(f"pytest ended with status {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return alarms


def _report(results: list[dict[str, Any]], alarms: list[str]) -> dict[str, Any]:
    found = [one for one in results if one["by"]]
    return {
        "planted": len(results),
        "found": len(found),
        "survivors": [one["name"] for one in results if not one["by"] and not one.get("broken")],
        "broken": [f"{one['name']}: {one['said']}" for one in results if one.get("broken")],
        "median_s": median(one["seconds"] for one in found) if found else 0.0,
        "false_alarms": alarms,
        "mutants": results,
    }


def _table(results: Iterable[dict[str, Any]]) -> Table:
    table = Table("bug", "found by", "seed or test", "seconds", "what was said")
    for one in results:
        said = one.get("said", "")
        table.add_row(one["name"], one["by"] or "[bold]nobody", one.get("seed", ""), str(one["seconds"]), said[:60])
    return table


if __name__ == "__main__":
    sys.exit(main())
