"""All benchmarks in one go: a table, a file of figures, and a picture; or two such files side by side.

python -m benchmarks [--only NAME,...] [--rounds 1] [--results benchmarks/results]
python -m benchmarks --compare BEFORE.json AFTER.json

Ten minutes on two cores of their own. Each load is a command of its own, with a cluster of processes of its own,
and can be run alone; rounds go through all of them in turn, so that what other work does to the machine hits all
alike. Exit status: 1 if a load failed, 2 for wrong arguments, 3 if something needed is absent.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.loads import LOADS, Load
from benchmarks.measured import ready
from benchmarks.results import compared, flat, machine, medians, number, plot

_HERE = Path(__file__).resolve().parent
_SHOWN = 8  # figures of each load in the table; the file has all
_HEADLINES = (
    "tx_per_s",
    "per_second",
    "apply",
    "apply_many",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "cpu_us_per_tx",
    "share_of_peak",
    "deliveries_per_s",
    "cpu_us_per_delivery",
    "cpu_us_per_tx.all",
    "serves_s",
    "answers_s",
    "percent_of_a_core",
    "resident_mib",
)


def run(load: Load) -> dict[str, float]:
    """The figures of one run.

    Raises:
        subprocess.CalledProcessError: it failed; it has said why.
    """
    with tempfile.TemporaryDirectory(prefix="waltz-bench-") as scratch:
        path = Path(scratch) / "figures.json"
        command = [sys.executable, "-m", f"benchmarks.{load.module}", *load.arguments, "--json", str(path)]
        environment = {**os.environ, **dict(load.environment)}
        subprocess.run(command, cwd=_HERE.parent, env=environment, check=True, stdout=subprocess.DEVNULL)
        return flat(json.loads(path.read_text()))


def headlines(figures: dict[str, float]) -> list[tuple[str, float]]:
    """What the table shows of a load."""
    ranked = [(name, value) for key in _HEADLINES for name, value in figures.items() if _is(name, key)]
    return list(dict.fromkeys(ranked))[:_SHOWN]


def _is(name: str, key: str) -> bool:
    return name == key or name.endswith((f".{key}", f"_{key}"))


def table(results: dict[str, list[dict[str, float]]]) -> Table:
    """For people."""
    shown = Table(title="Medians")
    for column, justify in (
        ("load", "left"),
        ("figure", "left"),
        ("median", "right"),
        ("least", "right"),
        ("most", "right"),
    ):
        shown.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for load, rounds in results.items():
        for at, (name, value) in enumerate(headlines(medians(rounds))):
            values = [each[name] for each in rounds]
            shown.add_row(load if not at else "", name, *map(number, (value, min(values), max(values))))
    return shown


def compare(before: Path, after: Path, console: Console) -> int:
    """Two files of figures side by side."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    shown = Table(title=f"{before.name} and {after.name}")
    for column in ("load", "figure"):
        shown.add_column(column)
    for column in ("before", "after", "ratio"):
        shown.add_column(column, justify="right")
    shown.add_column("")
    rows = list(compared(old["loads"], new["loads"]))
    if not rows:
        print(f"{before} and {after} have no figure in common", file=sys.stderr)
        return 1
    for load, name, was, now, ratio, tells in rows:
        shown.add_row(load, name, number(was), number(now), f"{ratio:.2f}", "" if tells else "within the noise")
    console.print(shown)
    return 0


def measure(
    loads: Sequence[Load], rounds: int, console: Console
) -> tuple[dict[str, list[dict[str, float]]], list[str]]:
    """All loads in turn, so many times; figures, and what failed."""
    results: dict[str, list[dict[str, float]]] = {}
    failed = []
    for at in range(rounds):
        for load in loads:
            console.print(f"{load.name}: benchmarks.{load.module} {' '.join(load.arguments)}", highlight=False)
            try:
                results.setdefault(load.name, []).append(run(load))
            except subprocess.CalledProcessError as error:
                failed.append(f"{load.name}, round {at + 1}: exit status {error.returncode}")
    return {name: found for name, found in results.items() if found}, failed


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    names = [load.name for load in LOADS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", help=f"loads, separated by commas, of: {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=1, help="how often; five for figures to be published")
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="directory for figures and picture")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="two files of figures")
    options = parser.parse_args(argv)
    console = Console()
    if options.compare:
        absent = [path for path in options.compare if not path.is_file()]
        if absent:
            parser.error(f"--compare: {absent[0]} is no file; expected one that python -m benchmarks has written")
        before, after = options.compare
        return compare(before, after, console)
    chosen = options.only.split(",") if options.only else names
    unknown = [name for name in chosen if name not in names]
    if unknown or options.rounds < 1:
        parser.error(f"--only: {unknown[0]} is none of {', '.join(names)}" if unknown else "--rounds: at least 1")
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is needed for the picture: pip install -e '.[dev]'", file=sys.stderr)
        return 3
    if status := ready():
        return status
    loads = [load for load in LOADS if load.name in chosen]
    console.print(f"{len(loads)} loads, some {sum(load.seconds for load in loads) * options.rounds / 60:.0f} minutes")
    began, busy = datetime.datetime.now(datetime.UTC), os.getloadavg()[0]
    results, failed = measure(loads, options.rounds, console)
    if results:
        where = {**machine(), "load_average_at_start": round(busy, 1)}
        written: dict[str, Any] = {"began": began.isoformat(timespec="seconds"), "machine": where, "loads": results}
        options.results.mkdir(parents=True, exist_ok=True)
        path = options.results / f"{began:%Y-%m-%d-%H%M%S}.json"
        path.write_text(json.dumps(written, indent=2) + "\n")
        title = (
            f"{began:%Y-%m-%d}, {where['cores']} cores, Python {where['python']}, load average {busy:.1f} at the start"
        )
        plot(path.with_suffix(".svg"), results, title)
        console.print(table(results))
        console.print(f"{path}\n{path.with_suffix('.svg')}", highlight=False)
    for text in failed:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
