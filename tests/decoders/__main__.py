"""Fuzz every decoder: blindly, from valid inputs, guided by coverage; and weigh their memory.

    python -m tests.decoders [--seconds 300] [--inputs N] [--guided SECONDS] [--seed N] [--json PATH]

`--inputs` is the number of blind inputs over all decoders together (the bar is 1e8); without it half of the
time is theirs. Exit status 0 if nothing but declared errors was raised and memory stayed within 2 x input + 1 MiB.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.decoders import guided
from tests.decoders.inputs import Blind, mutated
from tests.decoders.targets import Target, all_targets

BATCH = 2_000
MEMORY_SLACK = 1 << 20


class Tally:
    """Inputs by decoder, and what went wrong."""

    def __init__(self) -> None:
        self.inputs: dict[str, int] = {}
        self.failures: list[str] = []
        self.seconds = 0.0

    def give(self, target: Target, inputs: list[bytes]) -> None:
        """Decode each."""
        decode, declared = target.decode, target.declared
        for data in inputs:
            try:
                decode(data)
            except declared:
                pass
            except Exception as error:
                if len(self.failures) < 20:
                    self.failures.append(f"{target.name}: {error!r}: {data.hex()}")
        self.inputs[target.name] = self.inputs.get(target.name, 0) + len(inputs)

    def report(self) -> dict[str, Any]:
        count = sum(self.inputs.values())
        return {
            "inputs": count,
            "seconds": round(self.seconds, 1),
            "per_s": round(count / self.seconds) if self.seconds else 0,
        }


def blind(targets: list[Target], rng: Random, seconds: float, count: int | None) -> Tally:
    """Random bytes, shared out by the shares of the decoders."""
    tally, source, began = Tally(), Blind(rng), time.monotonic()
    total = sum(target.share for target in targets)
    done = rounds = 0
    while (done < count) if count is not None else (time.monotonic() - began < seconds):
        for target in targets:
            inputs = source.take(max(1, round(BATCH * len(targets) * target.share / total / 4)))
            tally.give(target, inputs)
            done += len(inputs)
        rounds += 1
        if rounds % 4 == 0:
            source.refill()
    tally.seconds = time.monotonic() - began
    return tally


def changed(targets: list[Target], rng: Random, seconds: float) -> Tally:
    """Valid inputs with a few things changed."""
    tally, began = Tally(), time.monotonic()
    while time.monotonic() - began < seconds:
        for target in targets:
            count = 1 if target.share < 0.1 else 50
            tally.give(target, [mutated(rng, target.seeds) for _ in range(count)])
    tally.seconds = time.monotonic() - began
    return tally


def weigh(targets: list[Target], rng: Random, each: int) -> tuple[int, list[str]]:
    """Memory of a sample of inputs: the most that any took beyond twice its input, and who broke the bar."""
    source = Blind(rng)
    worst, failures = 0, []
    tracemalloc.start()
    try:
        for target in targets:
            few = [mutated(rng, target.seeds) for _ in range(each)] + source.take(each)
            large = [rng.choice(target.seeds) + bytes([rng.randrange(256)]) * 60_000, rng.randbytes(60_000)]
            for data in few + (large if target.name != "configuration" else []):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                Tally().give(target, [data])
                taken = tracemalloc.get_traced_memory()[1] - before
                worst = max(worst, taken - 2 * len(data))
                if taken > 2 * len(data) + MEMORY_SLACK:
                    failures.append(f"{target.name}: {taken} bytes for {len(data)}: {data[:200].hex()}")
    finally:
        tracemalloc.stop()
    return worst, failures


def fuzz(seconds: float, count: int | None, guided_s: float, seed: int) -> dict[str, Any]:
    """All of it."""
    rng, targets = Random(seed), all_targets()
    worst, heavy = weigh(targets, rng, 20)
    random = blind(targets, rng, seconds / 2, count)
    close = changed(targets, rng, seconds / 4)
    report: dict[str, Any] = {
        "seed": seed,
        "decoders": len(targets),
        "blind": random.report(),
        "changed": close.report(),
        "memory_beyond_twice_the_input": worst,
        "undeclared": [*random.failures, *close.failures],
        "heavy": heavy,
        "by_decoder": {name: random.inputs[name] + close.inputs[name] for name in random.inputs},
    }
    if guided_s > 0:
        report["guided"] = guided.run(guided_s, seed)
        report["undeclared"] += report["guided"].pop("failures")
    report["inputs"] = sum(report[kind]["inputs"] for kind in ("blind", "changed", "guided") if kind in report)
    return report


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.decoders", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="of the whole run, if --inputs is not given")
    parser.add_argument("--inputs", type=lambda text: int(float(text)), help="blind inputs, over all decoders")
    parser.add_argument("--guided", type=float, help="seconds for the guided part; a quarter of all by default")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000)
    parser.add_argument("--json", metavar="PATH", help="write one object")
    options = parser.parse_args()
    guided_s = options.seconds / 4 if options.guided is None else options.guided
    report = fuzz(options.seconds, options.inputs, guided_s, options.seed)
    console = Console()
    table = Table("inputs", "count", "per second", title=f"{report['decoders']} decoders, seed {report['seed']}")
    for kind in ("blind", "changed"):
        table.add_row(kind, f"{report[kind]['inputs']:,}", f"{report[kind]['per_s']:,}")
    if "guided" in report:
        found = report["guided"]
        reached = ", ".join(f"{name} {number}" for name, number in found["reached"].items())
        table.add_row(f"guided ({found['engine']})", f"{found['inputs']:,}", reached)
    console.print(table)
    console.print(f"memory beyond twice the input: at most {report['memory_beyond_twice_the_input']:,} bytes")
    for line in report["undeclared"] + report["heavy"]:
        console.print(line, style="bold red", markup=False)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 1 if report["undeclared"] or report["heavy"] else 0


if __name__ == "__main__":
    sys.exit(main())
