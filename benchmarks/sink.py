"""How fast one task of the sink `waltz` of Spark writes its rows into the log, without Spark.

python -m benchmarks.sink [--rows N] [--partitions N] [--size BYTES] [--mode append|at-least-once] [--rounds N]

A cluster (`waltz dev`) runs in a process of its own; this one is the task: it takes rows from Arrow batches of 10,000,
as Spark hands them over, and ends when each is committed. `writer_us` is the processor time of this process for each
row, `us` that of both; the rows themselves are made beforehand. Every round is a batch of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from benchmarks.client import running_dev
from benchmarks.measured import cpu_seconds
from waltz_spark.write.sink_options import parse_sink_options
from waltz_spark.write.writing import Job, cluster_marks, write_batches

_BATCH = 10_000


def batches_of(count: int, partitions: int, size: int) -> list[Any]:
    """Rows for each partition in turn, as a frame that was arranged has them."""
    found = []
    for first in range(0, count, _BATCH):
        number = min(_BATCH, count - first)
        places = pa.array([at * partitions // number for at in range(number)], pa.int32())
        data = pa.array([b"%0*d" % (size, first + at) for at in range(number)], pa.binary())
        found.append(pa.record_batch([places, data], ["partition", "data"]))
    return found


def measure(url: str, dev: int, options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Rows a second and microseconds for each row, a round at a time."""
    values = parse_sink_options({"url": url, "mode": options.mode})
    _, marks = cluster_marks(values)
    job = Job(values, "benchmark", 0, marks)
    batches = batches_of(options.rows, options.partitions, options.size)
    for number in range(options.rounds):
        began, ours, theirs = time.perf_counter(), time.process_time(), cpu_seconds(dev)
        result = write_batches(iter(batches), job, 0, f"attempt {number}")
        took, mine = time.perf_counter() - began, time.process_time() - ours
        written = {one.partition: one for one in result.partitions}
        assert sum(one.appended for one in written.values()) == options.rows
        last_ids = (written[at].last_id if at in written else mark for at, mark in enumerate(job.marks))
        job = attrs.evolve(job, batch=number + 1, marks=tuple(last_ids))
        both = mine + cpu_seconds(dev) - theirs
        yield {
            "rows_per_s": round(options.rows / took),
            "writer_us": round(mine / options.rows * 1e6, 1),
            "us": round(both / options.rows * 1e6, 1),
        }


def child_of(parent: int) -> int:
    """Its only child."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    assert len(children) == 1, children
    return int(children[0])


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000, help="of each round")
    parser.add_argument("--partitions", type=int, default=3, help="that get some, 3 at most")
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--mode", choices=("append", "at-least-once"), default="append")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, running_dev(Path(folder) / "cluster") as url:
        for round_ in measure(url, child_of(os.getpid()), options):
            print(json.dumps(round_), flush=True)


if __name__ == "__main__":
    main()
