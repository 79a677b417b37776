"""Run many seeds of the simulator, or one, and say what was found.

    python -m tests.model.fuzz --seeds 1..1000 --jobs 2
    python -m tests.model.fuzz --minutes 5 --json
    python -m tests.model.fuzz --fresh 1000 --jobs 2
    python -m tests.model.fuzz --seed 42

Over many seeds the coverage marks of tests/model/marks.py must be reached, each in its share of the seeds.

Exit status: 0 if nothing was found, 1 if something was, or if `--bar` is given and the runs were too slow
or too poor: the bar is 100 seeds a minute on one core, 200 times real time, half of the runs with 5 faults.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from tests.model.marks import PREFIX, missed_marks
from tests.model.run import Result, run_seed
from waltz_trio.node.main import tune_collector

_LOG_LINES = 60
ROOT = Path(__file__).parent.parent.parent


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    options = _parse(arguments)
    if options.seed is not None:
        return _replay(options)
    seeds: Iterable[int]
    if options.seeds is not None:
        seeds = parse_range(options.seeds)
    else:
        start = _first_seed(options)
        seeds = itertools.count(start) if options.fresh is None else range(start, start + options.fresh)
        print(f"seeds from {start}", flush=True, file=sys.stderr if options.json == "-" else sys.stdout)
    return _many(seeds, options)


def parse_range(text: str) -> range:
    """`A..B`, both ends included, or one number."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def fresh_start() -> int:
    """A seed that nobody has seen: from the clock, with room for a thousand seeds in every second."""
    return time.time_ns() // 1_000_000_000 * 1_000


def of_tree() -> int | None:
    """A seed that belongs to what is checked out: each state of the code has its own, and always the same.

    Packages and tests are the code; documents and benchmarks change no seed. None where it is not known: no git, no
    commit, or files that differ from it.
    """
    code = [path.name for path in sorted(ROOT.iterdir()) if path.name == "tests" or path.name.startswith("waltz_")]

    def asked(*command: str) -> bytes:
        return subprocess.run(["git", *command, "--", *code], cwd=ROOT, capture_output=True, check=True).stdout

    try:
        changed, trees = asked("status", "--porcelain"), asked("ls-tree", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return None
    return None if changed else int(hashlib.sha256(trees).hexdigest()[:10], 16)


def _first_seed(options: argparse.Namespace) -> int:
    if options.start is not None:
        return int(options.start)
    start = of_tree() if options.of_tree else None
    return fresh_start() if start is None else start


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model.fuzz", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", metavar="A..B", help="run these seeds, both ends included")
    which.add_argument("--seed", type=int, help="run one seed again and print what happened")
    which.add_argument("--minutes", type=float, help="run fresh seeds for so long")
    which.add_argument("--fresh", type=int, metavar="N", help="run so many fresh seeds")
    parser.add_argument("--start", type=int, help="first fresh seed; by default of the present time")
    parser.add_argument("--of-tree", action="store_true", help="or of the commit that is checked out: its own seeds")
    parser.add_argument("--bar", action="store_true", help="fail if the figures are not reached")
    parser.add_argument("--digests", metavar="PATH", help="write seed and digest of every run, one line each")
    parser.add_argument(
        "--without", action="append", default=[], metavar="KIND", help="leave a kind of fault, or a small limit, out"
    )
    parser.add_argument(
        "--as-shipped", action="store_true", help="draw no limits: what seeds meant before they were drawn"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", nargs="?", const="-", metavar="PATH", help="write one object, to a file or stdout")
    return parser.parse_args(arguments)


def _many(seeds: Iterable[int], options: argparse.Namespace) -> int:
    began = time.monotonic()
    summary = _Summary()
    for result in _results(seeds, options):
        summary.add(result)
        if result.failure:
            _explain(result, limits=not options.as_shipped)
    if options.digests is not None:
        with open(options.digests, "w", encoding="utf-8") as file:
            file.writelines(summary.digests)
    report = summary.report(time.monotonic() - began)
    _write(report, options.json)
    if options.json != "-":
        for name, value in report.items():
            shown = (
                f"{len(value)} kinds, {sum(value.values())} in all (--json has each)"
                if isinstance(value, dict)
                else value
            )
            print(f"{name:>26}: {shown}")
    missed = summary.missed() if options.bar else []
    if not options.as_shipped:
        missed += summary.marks_missed()
    for what in missed:
        print(f"the bar is missed: {what}", file=sys.stderr)
    return 1 if summary.failures or missed else 0


def _explain(result: Result, *, limits: bool) -> None:
    """How to see a failure again, and the end of its trace with as few kinds of faults as possible."""
    print(f"seed {result.seed} FAILED: {result.failure.splitlines()[0]}", flush=True)
    kept = shrink(result, limits=limits)
    names = (*result.kinds, *result.limits)
    print(f"  replay: {replay_command(result.seed, names, kept)}{'' if limits else ' --as-shipped'}")
    without = tuple(name for name in names if name not in kept)
    shrunk = run_seed(result.seed, without, verbose=True, limits=limits)
    print("  " + "\n  ".join([*shrunk.log[-_LOG_LINES:], *shrunk.failure.splitlines()[:1]]), flush=True)


def _results(seeds: Iterable[int], options: argparse.Namespace) -> Iterator[Result]:
    minutes, jobs = options.minutes, options.jobs
    run = partial(run_seed, limits=not options.as_shipped)
    end = None if minutes is None else time.monotonic() + minutes * 60

    def wanted() -> Iterator[int]:
        for seed in seeds:
            if end is not None and time.monotonic() >= end:
                return
            yield seed

    if jobs <= 1:
        tune_collector()
        yield from map(run, wanted())
        return
    with multiprocessing.get_context("spawn").Pool(jobs, tune_collector) as pool:
        if end is None:
            yield from pool.imap(run, seeds, chunksize=2)
            return
        # Taken in blocks: a pool would run ahead of the clock.
        source = wanted()
        while block := list(itertools.islice(source, jobs * 8)):
            yield from pool.imap(run, block)


class _Summary:
    def __init__(self) -> None:
        self.seeds = 0
        self.failures: list[dict[str, object]] = []
        self._simulated = 0
        self._cpu = 0.0
        self._commits = 0
        self._recoveries = 0
        self._faults: Counter[str] = Counter()
        self._per_run: list[int] = []
        self._counts: Counter[str] = Counter()
        self._digest = hashlib.blake2b(digest_size=16)
        self.digests: list[str] = []

    def add(self, result: Result) -> None:
        self.seeds += 1
        if result.failure:
            self.failures.append({"seed": result.seed, "failure": result.failure})
        self._simulated += result.simulated_ms
        self._cpu += result.wall_s
        self._commits += result.commits
        self._recoveries += result.recoveries
        self._faults.update(result.faults)
        self._per_run.append(sum(result.faults.values()))
        self._counts.update(result.counts)
        self.digests.append(f"{result.seed} {result.digest}\n")
        self._digest.update(self.digests[-1].encode())

    def missed(self) -> list[str]:
        """Figures that are not reached."""
        report = self.report(0)
        bars = {"times_real_time": 200, "seeds_per_core_minute": 100, "faults_median": 5}
        return [f"{name} is {report[name]}, not {bar}" for name, bar in bars.items() if float(str(report[name])) < bar]

    def marks_missed(self) -> list[str]:
        """Coverage marks that too few seeds reached."""
        return missed_marks(self._counts, self.seeds)

    def report(self, wall_s: float) -> dict[str, object]:
        simulated_s = self._simulated / 1000
        return {
            "seeds": self.seeds,
            "failures": self.failures,
            "simulated_s": round(simulated_s),
            "wall_s": round(wall_s, 1),
            "cpu_s": round(self._cpu, 1),
            "times_real_time": round(simulated_s / self._cpu) if self._cpu else 0,
            "cluster_years_per_core_day": round(simulated_s / self._cpu / 365.25, 2) if self._cpu else 0,
            "seeds_per_core_minute": round(60 * self.seeds / self._cpu) if self._cpu else 0,
            "commits": self._commits,
            "recoveries": self._recoveries,
            "faults_median": median(self._per_run) if self._per_run else 0,
            "faults": dict(sorted(self._faults.items())),
            "counts": {name: n for name, n in sorted(self._counts.items()) if not name.startswith(("fault ", PREFIX))},
            "marks": {name[len(PREFIX) :]: n for name, n in sorted(self._counts.items()) if name.startswith(PREFIX)},
            "digest": self._digest.hexdigest(),
        }


def shrink(result: Result, *, limits: bool = True) -> tuple[str, ...]:
    """Kinds of faults and limits without any of which the seed fails no more, as leaving out one by one tells."""
    names = (*result.limits, *result.kinds)
    kept = list(names)
    for name in names:
        fewer = [one for one in kept if one != name]
        if run_seed(result.seed, tuple(set(names) - set(fewer)), limits=limits).failure:
            kept = fewer
    return tuple(kept)


def replay_command(seed: int, kinds: Iterable[str], kept: Iterable[str]) -> str:
    """The command that shows a failure again, with as few kinds of faults as possible."""
    without = [kind for kind in kinds if kind not in set(kept)]
    return " ".join(
        ["python -m tests.model.fuzz --seed", str(seed), *(f"--without {shlex.quote(kind)}" for kind in without)]
    )


def _replay(options: argparse.Namespace) -> int:
    seed, where = options.seed, options.json
    result = run_seed(seed, tuple(options.without), verbose=True, limits=not options.as_shipped)
    summary = _Summary()
    summary.add(result)
    _write(summary.report(result.wall_s), where)
    if where != "-":
        print("\n".join(result.log[-_LOG_LINES:]))
        print(f"kinds of faults: {', '.join(result.kinds)}")
        print(f"small limits: {', '.join(result.limits)}")
        print(f"faults: {result.faults}")
        print(f"seed {seed}: {result.failure or 'nothing found'}; digest {result.digest}")
    return 1 if result.failure else 0


def _write(report: dict[str, object], where: str | None) -> None:
    if where == "-":
        print(json.dumps(report))
    elif where is not None:
        with open(where, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
