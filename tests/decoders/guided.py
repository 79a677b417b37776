"""Inputs that reach new lines are kept and changed further.

With atheris installed, `python -m tests.decoders.guided --seconds N` runs all decoders under it, in one process,
the first two bytes choosing the decoder. Without it the lines are counted here, with `sys.settrace`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import time
from random import Random
from types import FrameType
from typing import Any

from tests.decoders.inputs import mutated

INPUT_MAX = 4096


def run(seconds: float, seed: int) -> dict[str, Any]:
    """For so long; the engine, the number of inputs, what was reached, and undeclared errors."""
    if importlib.util.find_spec("atheris") is not None:
        return _atheris(seconds, seed)
    return _traced(seconds, seed)


def _atheris(seconds: float, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.decoders.guided", "--seconds", str(int(seconds)), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    runs = re.search(r"Done (\d+) runs", done.stderr)
    reached = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)
    edges, features, corpus = (int(one) for one in (reached[-1] if reached else (0, 0, 0)))
    failures = [] if done.returncode == 0 else [_told(done.stdout + done.stderr)]
    return {
        "engine": "atheris",
        "inputs": int(runs[1]) if runs else 0,
        "reached": {"edges": edges, "features": features, "corpus": corpus},
        "failures": failures,
    }


def _told(text: str) -> str:
    """The line that names decoder and input, or the end of everything that was said."""
    return next((line for line in text.splitlines() if line.startswith("undeclared")), text[-1000:])


def _child(seconds: int, seed: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["waltz_core"]):
        from tests.decoders.targets import all_targets

        targets = [target for target in all_targets() if target.name != "configuration"]

    def one_input(data: bytes) -> None:
        target = targets[int.from_bytes(data[:2]) % len(targets)]
        try:
            target.decode(bytes(data[2:]))
        except target.declared:
            pass
        except Exception as error:
            print(f"undeclared: {target.name}: {error!r}: {data[2:].hex()}", flush=True)
            raise

    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for number, target in enumerate(targets):
            for at, begin in enumerate(target.seeds[:6]):
                path = pathlib.Path(folder) / f"{number}-{at}"
                path.write_bytes(number.to_bytes(2) + begin[: INPUT_MAX - 2])
        options = [
            f"-max_total_time={seconds}",
            f"-max_len={INPUT_MAX}",
            f"-seed={seed + 1}",
            "-artifact_prefix=/dev/null",
        ]
        atheris.Setup([sys.argv[0], *options, folder], one_input)
        atheris.Fuzz()


def _traced(seconds: float, seed: int) -> dict[str, Any]:
    from tests.decoders.targets import all_targets

    rng = Random(seed)
    targets = [target for target in all_targets() if target.name != "configuration"]
    corpora = [list(target.seeds) for target in targets]
    lines: set[tuple[str, int]] = set()
    failures: list[str] = []
    new = 0

    def local(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal new
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            if place not in lines:
                lines.add(place)
                new += 1
        return local

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        return local if "waltz_core" in frame.f_code.co_filename else None

    end, inputs = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for target, corpus in zip(targets, corpora, strict=True):
            data = mutated(rng, tuple(corpus))[:INPUT_MAX]
            new = 0
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                target.decode(data)
            except target.declared:
                pass
            except Exception as error:
                failures.append(f"undeclared: {target.name}: {error!r}: {data.hex()}")
            finally:
                sys.settrace(before)
            if new:
                corpus.append(data)
            inputs += 1
    reached = {"lines": len(lines), "corpus": sum(map(len, corpora))}
    return {"engine": "settrace", "inputs": inputs, "reached": reached, "failures": failures[:20]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.decoders.guided")
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print(json.dumps(_traced(chosen.seconds, chosen.seed)))
    else:
        _child(chosen.seconds, chosen.seed)
