"""A cluster of processes for hours under a steady load, with faults, archive, moves and certificates that expire.

    python -m tests.soak [--hours 2] [--seed N] [--json PATH] [--plot FILE.svg] [--samples PATH]
    python -m tests.soak --judge SAMPLES [--plot FILE.svg]       judge samples of an earlier run again

Two servers, three storage nodes, two clients, a ZooKeeper; TLS everywhere; all connections go through a network that
fails. Memory, descriptors, threads and disk of each process, and the latency of commits, must not grow (see
tests/soak/slopes.py). In the end replicas, archive, databases and outcomes must agree. SIGTERM ends a run early, and
it is judged by what it has. Exit status 1 if a figure grows, something does not agree, or too little happened to judge;
3 if something needed is absent.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.processes.cluster import running_cluster
from tests.processes.load import Load, summary
from tests.processes.torture import Torture
from tests.processes.zookeeper import missing, running_zookeeper
from tests.soak.life import KINDS, WAYS, Life, Plan
from tests.soak.picture import plot
from tests.soak.samples import CLUSTER, Sample, Sampler, read_samples
from tests.soak.slopes import Slope, slopes

SETTINGS = {  # small enough that whatever is bounded has reached its bound within the warm-up
    "server.exactLocks": 5000,
    "server.feedCacheSize": 1 << 20,
    "server.transactionDataCacheSize": 1 << 20,
    "storage.segment.size.threshold": 1 << 19,
}
LOAD = {"submitters": 1, "submit_pause": 0.1, "window": 4, "pause": 0.1}
_FAULTS_MIN = 3


@attrs.frozen
class Run:
    """What a run left behind."""

    plan: Plan
    lasted: float
    samples: list[Sample]
    done: dict[str, int]  # what happened → how often
    faults: dict[str, int]
    commits: int
    verdict: str

    def lacks(self) -> list[str]:
        """What did not happen and had to."""
        missed = [f"no {kind}" for kind in (*KINDS, "free") if not self.done.get(kind)]
        if sum(self.faults.values()) < _FAULTS_MIN:
            missed.append(f"{sum(self.faults.values())} faults only")
        if not self.samples:
            missed.append("nothing was sampled")
        if not self.commits:
            missed.append("nothing was committed")
        return missed


def soak(directory: Path, plan: Plan, seed: int, samples: Path) -> Run:
    """Run a cluster.

    Raises:
        AssertionError: something does not agree.
        TimeoutError: the cluster did not come back after a fault.
    """
    archive = directory / "archive"
    with (
        running_zookeeper() as zookeeper,
        running_cluster(
            directory,
            zookeeper.fresh_chroot(),
            partitions=2,
            servers=2,
            flags=(),
            proxied=True,
            settings=SETTINGS,
            lifetime=datetime.timedelta(seconds=plan.lifetime),
            own_certificates=True,
        ) as cluster,
    ):
        load = Load(cluster, 2, archive=archive, **LOAD)
        load.start()
        torture = Torture(cluster, zookeeper, load, seed, ways=WAYS, everything=0.01)
        life = Life(cluster, load, torture, plan, archive)
        sampler = Sampler(cluster, load, plan.sample, samples)

        def stop(*_: object) -> None:
            life.stopped = True

        before = signal.signal(signal.SIGTERM, stop)
        try:
            with sampler.running():
                life.run()
            lasted = life.lasted
            verdict = load.finish()
        finally:
            signal.signal(signal.SIGTERM, before)
    faults = {name: count for name, count in torture.done.items() if name != "restart"}
    return Run(plan, lasted, sampler.samples, dict(life.done), faults, sampler.commits, summary(verdict))


def judge(found: Sequence[Slope], names: Sequence[str]) -> list[str]:
    """What is wrong with the slopes: those that grow, and processes of which too little was seen."""
    problems = [str(one) for one in found if one.grows]
    for name in names:
        judged = {(one.figure, one.kind) for one in found if one.name == name and one.judged}
        if ("p50_ms" if name == CLUSTER else "memory_mib", "over the run") not in judged:
            problems.append(f"{name}: too little was seen to judge")
    return problems


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--samples", type=Path, metavar="PATH", help="keep every sample there, one JSON line each")
    parser.add_argument("--directory", type=Path, help="keep everything there; default: a temporary one")
    parser.add_argument("--judge", type=Path, metavar="SAMPLES", help="run nothing, judge these")
    options = parser.parse_args(argv)
    problem = missing()
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        problem = "--plot needs matplotlib: pip install -e '.[dev]'"
    if problem is not None:
        print(problem, file=sys.stderr)
        return 3
    if options.judge is not None:
        samples = read_samples(options.judge)
        return _report(options, samples, [], Plan(samples[-1].at), {})
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="waltz-soak-") as scratch:
        directory = options.directory or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        plan = Plan.of(options.hours)
        run = soak(directory, plan, options.seed, options.samples or directory / "samples.jsonl")
    happened = {"seed": options.seed, "hours": run.lasted / 3600, "commits": run.commits, "faults": run.faults}
    print(", ".join(f"{count} × {name}" for name, count in sorted({**run.faults, **run.done}.items())))
    print(f"{run.commits} commits; {run.verdict}")
    return _report(options, run.samples, run.lacks(), run.plan, {**happened, "done": run.done})


def _report(
    options: argparse.Namespace,
    samples: Sequence[Sample],
    lacks: Sequence[str],
    plan: Plan,
    happened: dict[str, Any],
) -> int:
    found = slopes(samples, warm_up=plan.warm_up, block=plan.block)
    for slope in found:
        print(slope)
    problems = [*lacks, *judge(found, sorted({one.name for one in samples}))]
    judged = sum(one.judged for one in found)
    print(f"{len(samples)} samples, {judged} of {len(found)} slopes judged")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    if options.plot is not None:
        plot(options.plot, samples, f"{plan.length / 3600:.1f} hours; grey: processes started again")
    if options.json is not None:
        report = {**happened, "samples": len(samples), "problems": problems}
        report["slopes"] = [{**attrs.asdict(one), "judged": one.judged, "grows": one.grows} for one in found]
        options.json.write_text(json.dumps(report, indent=1, default=str) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
