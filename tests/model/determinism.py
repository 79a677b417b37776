"""The same seeds in two processes whose sets and dictionaries of texts have different orders: equal traces?

    python -m tests.model.determinism --seeds 1..1500
    python -m tests.model.determinism --count 10000 --json PATH

Exit status 1 if the traces of any seed differ, or something was found in one.
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


def traces(seeds: range, directory: Path) -> tuple[list[dict[str, str]], list[int]]:
    """Seed → digest of its trace, from one process for each hash seed; and seeds in which something was found."""
    running = []
    for hash_seed in HASH_SEEDS:
        path = directory / f"digests-{hash_seed}"
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "tests.model.fuzz",
            "--seeds",
            f"{seeds[0]}..{seeds[-1]}",
            "--digests",
            path,
        ]
        command += ["--json", path.with_suffix(".json")]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        running.append((path, subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)))
    found = []
    failed: set[int] = set()
    for path, process in running:
        process.wait()
        found.append(dict(line.split() for line in path.read_text().splitlines()))
        failed |= {one["seed"] for one in json.loads(path.with_suffix(".json").read_text())["failures"]}
    return found, sorted(failed)


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
        (one, other), failed = traces(seeds, Path(directory))
    different = sorted(int(seed) for seed in one.keys() | other.keys() if one.get(seed) != other.get(seed))
    report = {
        "seeds": len(seeds),
        "first_seed": seeds[0],
        "compared": len(one.keys() & other.keys()),
        "different": different,
        "failed": failed,
        "wall_s": round(time.monotonic() - began, 1),
    }
    print(f"{report['compared']} of {len(seeds)} seeds from {seeds[0]} ran twice, {len(different)} differ: {different}")
    if failed:
        print(f"something was found in seeds {failed}: python -m tests.model.fuzz --seed {failed[0]}")
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 1 if different or failed or len(one) < len(seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
