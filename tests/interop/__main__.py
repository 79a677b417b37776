"""Runs every scenario with a given installation of the original and prints the table.

python -m tests.interop [--json PATH] [--only TEXT]... [--keep DIRECTORY]

WALTZ_JAVA_CLASSPATH names the installation (a class path), WALTZ_JAVA_OPTS what its Java needs; `java` and
`javac` are on PATH. Exit status: 1 if anything fails, 3 if no installation is given.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.interop import installation
from tests.interop.scenarios import MIXES, Scenario, Scene, scenarios
from tests.processes import zookeeper

_WIDTH = 56


def main() -> int:
    """Run, print, write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description="Live clusters with the original.")
    parser.add_argument("--json", type=Path, help="write the table as one JSON object")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="scenarios whose name holds TEXT")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="leave logs and data there")
    options = parser.parse_args()
    missing = installation.missing() or zookeeper.missing()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 3
    wanted = {
        name: scenario
        for name, scenario in scenarios().items()
        if not options.only or any(text in name for text in options.only)
    }
    if not wanted:
        parser.error("no scenario has such a name")
    logging.getLogger("waltz").setLevel(logging.ERROR)  # of our reading client: the table is what counts
    rows = _run_all(wanted, options.keep)
    mixes = [row for row in rows if row["name"] in MIXES]
    passed = all(row["passed"] for row in rows)
    held = [sum(row["passed"] for row in some) for some in (mixes, rows)]
    print(f"{held[0]} of {len(mixes)} mixes, {held[1]} of {len(rows)} in all")
    if options.json is not None:
        options.json.write_text(json.dumps({"passed": passed, "mixes": len(mixes), "rows": rows}, indent=2) + "\n")
    return 0 if passed else 1


def _run_all(wanted: dict[str, Scenario], keep: Path | None) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        if keep is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="waltz-interop-")))
        else:
            directory = keep.resolve()
            directory.mkdir(parents=True, exist_ok=True)
        server = stack.enter_context(zookeeper.running_zookeeper())
        stage = Scene(directory, server, installation.prepare(directory / "original"))
        print(f"{'':{_WIDTH}} {'':6} {'transactions':>12} {'seconds':>8}")
        return [
            _run(name, scenario, stage.at(directory / str(number)))
            for number, (name, scenario) in enumerate(wanted.items())
        ]


def _run(name: str, scenario: Scenario, scene: Scene) -> dict[str, Any]:
    print(f"{name:{_WIDTH}} ", end="", flush=True)
    begin = time.monotonic()
    row: dict[str, Any] = {"name": name, "passed": False, "transactions": 0}
    try:
        scene.directory.mkdir()
        outcome = scenario(scene)
        row.update(passed=True, transactions=outcome.transactions, note=outcome.note)
    except Exception as error:
        row["note"] = f"{type(error).__name__}: {error}"
        row["story"] = traceback.format_exc()
    row["seconds"] = round(time.monotonic() - begin, 1)
    shown = row["note"].splitlines()[0][:100]
    print(
        f"{'pass' if row['passed'] else 'FAIL':6} {row['transactions']:12} {row['seconds']:8.1f}  {shown}", flush=True
    )
    if not row["passed"]:
        print(row["story"], file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
