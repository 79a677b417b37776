"""The same seeds in two processes whose sets and dictionaries of texts have different orders: equal traces?

    python -m tests.model.determinism --seeds 1..1500
    python -m tests.model.determinism --count 10000 --json PATH

Exit status 1 if the traces of any seed differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.model.fuzz import fresh_start, parse_range

ROOT = Path(__file__).parent.parent.parent
HASH_SEEDS = ("1", "20011")


def traces(seeds: range, directory: Path) -> list[dict[str, str]]:
    """Seed → digest of its trace, from one process for each hash seed."""
    running = []
    for hash_seed in HASH_SEEDS:
        path = directory / f"digests-{hash_seed}"
        command = [sys.executable, "-m", "tests.model.fuzz", "--seeds", f"{seeds[0]}..{seeds[-1]}", "--digests", path]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        running.append((path, subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)))
    found = []
    for path, process in running:
        process.wait()  # its status tells of failures of the runs, which are none of our business
        found.append(dict(line.split() for line in path.read_text().splitlines()))
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.determinism", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", metavar="A..B", help="these seeds, both ends included")
    which.add_argument("--count", type=int, help="so many fresh seeds")
    parser.add_argument("--json", metavar="PATH", help="write one object")
    options = parser.parse_args(arguments)
    start = fresh_start()
    seeds = range(start, start + options.count) if options.seeds is None else parse_range(options.seeds)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        one, other = traces(seeds, Path(directory))
    different = sorted(int(seed) for seed in one.keys() | other.keys() if one.get(seed) != other.get(seed))
    report = {
        "seeds": len(seeds),
        "first_seed": seeds[0],
        "compared": len(one.keys() & other.keys()),
        "different": different,
        "wall_s": round(time.monotonic() - began, 1),
    }
    print(f"{report['compared']} of {len(seeds)} seeds from {seeds[0]} ran twice, {len(different)} differ: {different}")
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 1 if different or len(one) < len(seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
