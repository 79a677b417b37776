"""`python -m tests.driver_nets [--seeds A..B] [--json PATH]`: lives of connections, with figures.

Exit status 1 on a failure. Every seed is one long life; after them a
short life is ended at each of its steps, in every way, on either side.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from functools import partial
from typing import Any

from tests.driver_nets.life import ENDINGS, Life, live

_SHORT = 13


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.driver_nets", description=__doc__)
    parser.add_argument("--seeds", default="1..5000", help="first and last, or one (%(default)s)")
    parser.add_argument("--json", help="write one object there")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    begin = time.monotonic()
    figures: dict[str, Any] = dict.fromkeys(("lives", "connections", "broken", "bytes", "steps", "cancellations"), 0)
    failures: list[str] = []
    for seed in range(int(first), int(last or first) + 1):
        try:
            outcome = live(seed)
        except BaseException:
            traceback.print_exc()
            failures.append(f"python -m tests.driver_nets --seeds {seed}")
            continue
        figures["lives"] += 1
        for name in ("connections", "broken", "bytes", "steps"):
            figures[name] += getattr(outcome, name)
    if last:
        steps = live(_SHORT, partial(Life, short=True)).steps
        for victim in (0, 1):
            for ending in ENDINGS:
                for at in range(1, steps):
                    figures["cancellations"] += 1
                    try:
                        live(_SHORT, partial(Life, short=True, end_at=at, ending=ending, victim=victim))
                    except BaseException:
                        traceback.print_exc()
                        failures.append(f"{ending} of driver {victim} at step {at}")
    result = {
        **figures,
        "failures": len(failures),
        "first_failures": failures[:10],
        "wall_s": round(time.monotonic() - begin, 1),
        "passed": not failures,
    }
    for name, value in result.items():
        print(f"{name:>16}: {value}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=2)
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
