"""`python -m tests.driver_crashes [--words N] [--json PATH]`: what real drivers make durable, with figures."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from typing import Any

from tests.driver_crashes.lives import OTHERS, WORDS, Life, group_life, storage_life
from tests.driver_crashes.sweep import CHANGES, HARMLESS, UNLIVED, kinds, record, replay, sites
from tests.model.crash_sweep import MORE_LETTERS


def lives_of(words: int, seed: int) -> list[Life]:
    """All short lives of a storage node, so many random long ones, bursts, and the other drivers."""
    rng = random.Random(seed)
    short = ["".join(letters) for count in (1, 2) for letters in itertools.product(MORE_LETTERS, repeat=count)]
    long = ["".join(rng.choices(MORE_LETTERS, k=rng.randint(6, 12))) for _ in range(words)]
    bursts = [group_life(number, whole=whole) for number in range(words) for whole in (False, True)]
    return [*map(storage_life, (*WORDS, *short, *long)), *bursts, *OTHERS]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.driver_crashes", description=__doc__)
    parser.add_argument("--words", type=int, default=30, help="random long lives, and bursts (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the random ones (%(default)s)")
    parser.add_argument("--json", help="write one object there")
    options = parser.parse_args()
    begin = time.monotonic()
    lives = lives_of(options.words, options.seed)
    traces = [record(life) for life in lives]
    figures: dict[str, Any] = dict.fromkeys(("calls", "cuts", "contents"), 0)
    violations: list[str] = []
    for number, (life, calls) in enumerate(zip(lives, traces, strict=True), start=1):
        tally = replay(life, calls)
        for name in figures:
            figures[name] += getattr(tally, name)
        violations += tally.violations
        if sys.stderr.isatty():
            print(f"\r{number} of {len(lives)} lives", end="", file=sys.stderr, flush=True)
    changed, unnoticed = 0, []
    for kind, (name, change) in itertools.product(kinds(traces), CHANGES.items()):
        changed += 1
        tried = ((life, calls) for life, calls in zip(lives, traces, strict=True) if kind in kinds([calls]))
        if not any(replay(life, change(calls, kind)).violations for life, calls in tried):
            unnoticed.append(f"{kind}: {name}")
    unexpected = [one for one in unnoticed if one not in HARMLESS]
    never = sorted({*sites()} - UNLIVED.keys() - {kind.split(": ")[0].split(" < ")[-1] for kind in kinds(traces)})
    passed = not violations and not unexpected and not never
    result = {
        "lives": len(lives),
        **figures,
        "violations": len(violations),
        "first_violations": violations[:10],
        "syncs_changed": changed,
        "noticed": changed - len(unnoticed),
        "harmless": sorted(set(unnoticed) & set(HARMLESS)),
        "unnoticed": unexpected,
        "sites_never_reached": never,
        "wall_s": round(time.monotonic() - begin, 1),
        "passed": passed,
    }
    for name, value in result.items():
        print(f"{name:>20}: {value}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=2)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
