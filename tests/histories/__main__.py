"""Histories of real clusters under kills, pauses, cut networks and clocks that jump, judged.

    python -m tests.histories [--runs 20] [--seconds 25] [--clients 3] [--seed N] [--keep DIRECTORY] [--json PATH]
    python -m tests.histories --check FILE...      judge histories again

Each run is a cluster of processes of its own; clients go through the fronts and views of the library in turn, and are
killed like everything else. `--keep` leaves the histories there, in our form (JSON lines) and as Porcupine's and Elle's
checkers read them. Exit status 1 if an anomaly was found, 3 if something needed is absent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.histories.checker import AnomalyError, check
from tests.histories.history import elle, final_lists, load, porcupine
from tests.histories.runs import Result, record
from tests.processes import clocks
from tests.processes.zookeeper import missing
from tests.views.servers import MariaServer, PostgresServer


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=25, help="how long faults last in each run")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY")
    parser.add_argument("--check", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if options.check:
        print(f"{check(load(options.check), final_lists(options.check))} operations, no anomaly")
        return 0
    problem = missing() or clocks.missing()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 3
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(contextlib.closing(make())) for make in (PostgresServer, MariaServer)]
        results = [_one(number, options, servers) for number in range(options.runs)]
    report = {
        "runs": len(results),
        "operations": sum(one["operations"] for one in results),
        "unknown": sum(one["unknown"] for one in results),
        "faults": _total(one["faults"] for one in results),
        "clients": _total(one["clients"] for one in results),
        "anomalies": [one["anomaly"] for one in results if one["anomaly"]],
        "seed": options.seed,
    }
    print(json.dumps(report))
    if options.json is not None:
        options.json.write_text(json.dumps({**report, "each": results}, indent=1) + "\n")
    return 1 if report["anomalies"] else 0


def _total(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return {"all": total.total(), **dict(sorted(total.items()))}


def _one(number: int, options: argparse.Namespace, servers: Sequence[PostgresServer | MariaServer]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="waltz-histories-") as scratch:
        directory = Path(scratch)
        result = record(directory, options.seed + number, options.seconds, options.clients, servers)
        operations = load(result.files)
        anomaly = ""
        try:
            check(operations, final_lists(result.files))
        except AnomalyError as error:
            anomaly = str(error)
        if options.keep is not None or anomaly:
            keep(options.keep or Path("histories"), f"run-{options.seed + number}", result)
    faults = sum(result.faults.values())
    unknown = sum(not one.known for one in operations)
    print(f"run {number + 1}: {len(operations)} operations, {unknown} unknown, {faults} faults {anomaly}", flush=True)
    figures = {"operations": len(operations), "unknown": unknown, "anomaly": anomaly}
    return {**figures, "faults": result.faults, "clients": result.clients}


def keep(directory: Path, name: str, result: Result) -> None:
    """Write a history in all forms."""
    directory.mkdir(parents=True, exist_ok=True)
    operations = load(result.files)
    (directory / f"{name}.jsonl").write_text("".join(path.read_text() for path in result.files))
    (directory / f"{name}.porcupine.jsonl").write_text("".join(line + "\n" for line in porcupine(operations)))
    (directory / f"{name}.edn").write_text("".join(line + "\n" for line in elle(operations)))


if __name__ == "__main__":
    sys.exit(main())
