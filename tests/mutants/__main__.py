"""Plant every bug of the corpus, one at a time, and tell who found it.

    python -m tests.mutants [--only NAME ...] [--budget SECONDS] [--jobs N] [--json PATH]

Exit status: 0 if every bug was found, half of them within a minute, and the code as it is passes the same seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.mutants.corpus import CORPUS
from tests.mutants.planted import ROOT

COUNT_MIN = 30
MEDIAN_MAX_S = 60


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="*", default=None, help="names of the corpus")
    parser.add_argument("--budget", type=float, default=20, help="seconds for the simulator, for each bug")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", metavar="PATH", help="write one object")
    options = parser.parse_args()
    names = [one.name for one in CORPUS if options.only is None or one.name in options.only]
    console = Console()

    def run(name: str) -> dict[str, Any]:
        result = ask(name, "--budget", str(options.budget))
        console.print(f"{name}: {result['by'] or 'SURVIVED'} {result.get('seed', '')} ({result['seconds']} s)")
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(run, names))
    report = _report(results, _false_alarms(results))
    console.print(_table(results))
    for name in ("planted", "found", "survivors", "median_s", "false_alarms"):
        console.print(f"{name:>14}: {report[name]}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    enough = options.only is not None or len(results) >= COUNT_MIN
    good = enough and not report["survivors"] and report["median_s"] < MEDIAN_MAX_S and not report["false_alarms"]
    return 0 if good else 1


def ask(*arguments: str) -> dict[str, Any]:
    """Hunt in a process of its own."""
    command = [sys.executable, "-m", "tests.mutants.hunt", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments[0]}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _false_alarms(results: Iterable[dict[str, Any]]) -> list[str]:
    """What the code as it is fails of everything that found a bug."""
    seeds = {by: sorted({one["seed"] for one in results if one["by"] == by}) for by in ("simulator", "storage")}
    tests = sorted({one["seed"] for one in results if one["by"] == "test"})
    clean = ask("none", "--simulator", *seeds["simulator"], "--storage", *seeds["storage"])
    alarms = [f"{clean['by']} {clean['seed']}: {clean['said']}"] if clean["by"] else []
    if tests:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        alarms += [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return alarms


def _report(results: list[dict[str, Any]], alarms: list[str]) -> dict[str, Any]:
    found = [one for one in results if one["by"]]
    return {
        "planted": len(results),
        "found": len(found),
        "survivors": [one["name"] for one in results if not one["by"]],
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
