"""Two checkouts measured by turns on one machine: ratios, and which of them are larger than the noise.

python -m benchmarks.compare BEFORE AFTER [--rounds 5] [--benchmark append] [ARGUMENT...]

BEFORE and AFTER are directories of checkouts, both with their compiled loops built or both without. What follows goes
to the benchmark, such as `--in-flight 1`. Other work on the machine changes from minute to minute, so the two take
turns and each round is one pair: its ratio is AFTER by BEFORE. A median of ratios whose pairs do not all lie on the
same side of 1 says nothing, and is marked so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

Figures = Mapping[str, float]


def figures_of(result: Mapping[str, object]) -> dict[str, float]:
    """The numbers of one run; processor time by process for each transaction."""
    figures = {name: float(value) for name, value in result.items() if isinstance(value, (int, float))}
    seconds, committed = result.get("cpu_s"), result.get("committed")
    if isinstance(seconds, Mapping) and isinstance(committed, int) and committed:
        figures |= {f"cpu_us_per_tx of {name}": value / committed * 1e6 for name, value in seconds.items()}
    return figures


def compare(pairs: Sequence[tuple[Figures, Figures]]) -> list[tuple[str, float, float, float, bool]]:
    """For each figure of all runs: its medians before and after, that of the ratios, and if these tell anything."""
    rows = []
    for name in pairs[0][0]:
        values = [(before[name], after[name]) for before, after in pairs if before.get(name) and name in after]
        if len(values) == len(pairs):
            ratios = [after / before for before, after in values]
            tells = len(ratios) > 1 and (min(ratios) > 1 or max(ratios) < 1)
            medians = median(before for before, _ in values), median(after for _, after in values)
            rows.append((name, *medians, median(ratios), tells))
    return rows


def run(checkout: Path, benchmark: str, arguments: Sequence[str]) -> Figures:
    """One run in a checkout."""
    with tempfile.TemporaryDirectory(prefix="waltz-compare-") as scratch:
        path = Path(scratch) / "figures.json"
        command = [sys.executable, "-m", f"benchmarks.{benchmark}", *arguments, "--json", str(path)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
        return figures_of(json.loads(path.read_text()))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("before", type=Path, help="directory of a checkout")
    parser.add_argument("after", type=Path, help="directory of another one")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs")
    parser.add_argument("--benchmark", default="append", help="one that takes --json")
    options, arguments = parser.parse_known_args(argv)
    pairs = []
    for _ in range(options.rounds):
        before, after = (
            run(checkout.resolve(), options.benchmark, arguments) for checkout in (options.before, options.after)
        )
        pairs.append((before, after))
    print(f"{'':32} {'before':>12} {'after':>12} {'ratio':>7}")
    for name, before_median, after_median, ratio, tells in compare(pairs):
        noise = "" if tells else "  within the noise"
        print(f"{name:32} {before_median:12.1f} {after_median:12.1f} {ratio:7.2f}{noise}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
