"""Where the time of one append goes, across the client, the server and the storage nodes.

python -m benchmarks.timeline [--count 3000] [--size 200] [--into docs/performance.md]

Real processes as in `benchmarks.append --in-flight 1`, one append after the other. Each process notes when it did what
by the clock that all share; then the way of each append is followed back from its outcome: which bytes woke the client,
which step of the server sent them, which storage node's answer made that step, and so on to the call. The third
storage node is therefore on no append's way. Prints a table of medians; `--into` puts it between the marks of a page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

from benchmarks import append
from benchmarks.measured import STAMPS, ready

Stamps = Mapping[str, Sequence[int]]  # of one process: what happened → when, in ns, ascending
STORAGE = "storage"

# The way of an append from its end to its beginning: process, what it did, and what the time since then was for.
WAY = (
    ("client", "known", "the caller's task goes on"),
    ("client", "stepped", "the client's step"),
    ("client", "step", "until the client steps"),
    ("client", "received", "the client receives and decrypts the feed"),
    ("client", "woken", "the client is sent to, and wakes up"),
    ("server", "encrypted", "the server encrypts the feed"),
    ("server", "stepped", "the server's step: quorum, commit, feed"),
    ("server", "step", "until the server steps"),
    ("server", "received", "the server receives and decrypts the answer"),
    ("server", "woken", "the server is sent to, and wakes up"),
    (STORAGE, "encrypted", "the storage node encrypts its answer"),
    (STORAGE, "stepped", "the storage node's step: answer"),
    (STORAGE, "step", "until the storage node steps"),
    (STORAGE, "answered", "until the event loop has the answer"),
    (STORAGE, "synced", "fdatasync"),
    (STORAGE, "written", "write data and index"),
    (STORAGE, "taken", "until it is begun, by the event loop or the writer thread"),
    (STORAGE, "queued", "until the batch is handed over"),
    (STORAGE, "stepped", "the storage node's step: accept"),
    (STORAGE, "step", "until the storage node steps"),
    (STORAGE, "received", "the storage node receives and decrypts the append"),
    (STORAGE, "woken", "the storage node is sent to, and wakes up"),
    ("server", "encrypted", "the server encrypts, for one node after the other"),
    ("server", "stepped", "the server's step: ids, locks, batch"),
    ("server", "step", "until the server steps"),
    ("server", "received", "the server receives and decrypts the append"),
    ("server", "woken", "the server is sent to, and wakes up"),
    ("client", "encrypted", "the client encrypts"),
    ("client", "stepped", "the client's step"),
    ("client", "step", "until the client steps"),
    ("client", "called", ""),
)


def latest(moments: Sequence[int], at: int) -> int:
    """The last of some moments that is not after another; -1 if there is none."""
    place = bisect_right(moments, at)
    return moments[place - 1] if place else -1


def way_of(stamps: Mapping[str, Stamps], known: int) -> list[int] | None:
    """When an append whose outcome was known at some moment passed each station of `WAY`; None if it cannot be told."""
    moments = [known]
    nodes = [name for name in stamps if name.startswith(STORAGE)]
    node = ""
    for process, what, _ in WAY[1:]:
        if process != STORAGE:
            node = ""
        elif not node:  # the one whose answer came last before the server went on
            node = max(nodes, key=lambda name: latest(stamps[name][what], moments[-1]))
        moments.append(latest(stamps[node or process].get(what, ()), moments[-1]))
        if moments[-1] < 0:
            return None
    return moments


def stages(stamps: Mapping[str, Stamps], skipped: int) -> tuple[list[list[int]], list[int]]:
    """For each append how long each stage took, from its first to its last, and how long it took in all; in ns.

    Args:
        skipped: appends at the beginning that are left out.
    """
    client = stamps["client"]
    rows, totals = [], []
    for called, known in list(zip(client["called"], client["known"], strict=False))[skipped:]:
        moments = way_of(stamps, known)
        if moments is not None and moments[-1] == called:
            moments.reverse()
            rows.append([later - earlier for earlier, later in pairwise(moments)])
            totals.append(known - called)
    return rows, totals


def table(rows: Sequence[Sequence[int]], totals: Sequence[int]) -> str:
    """Medians and ninth deciles, as a table of Markdown."""
    lines = ["| stage | µs at the median | 9 of 10 below |", "|---|---|---|"]
    names = [name for _, _, name in reversed(WAY) if name]
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        lines.append(f"| {name} | {median(column) / 1000:.0f} | {quantiles(column, n=10)[-1] / 1000:.0f} |")
    spread = quantiles(totals, n=10)[-1]
    lines.append(f"| **the whole append** | **{median(totals) / 1000:.0f}** | **{spread / 1000:.0f}** |")
    return "\n".join(lines)


def between_marks(page: str, text: str) -> str:
    """A page with a text in place of what stands between its marks.

    Raises:
        ValueError: it has none.
    """
    replaced, count = re.subn(
        r"(<!-- timeline -->\n).*?(<!-- end of timeline -->)",
        lambda match: f"{match[1]}\n{text}\n\n{match[2]}",
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"expected one `<!-- timeline -->` with its `<!-- end of timeline -->`, found {count}")
    return replaced


def measure(options: argparse.Namespace) -> dict[str, Stamps]:
    """Run the benchmark with stamps; those of every process, by name."""
    with tempfile.TemporaryDirectory(prefix="waltz-timeline-") as scratch:
        os.environ[STAMPS] = scratch
        sizes = ["--in-flight", "1", "--size", str(options.size), "--directory", options.directory]
        append.run(append.parse([*sizes, "--count", str(options.count), "--warm-up", "2"]))
        names = {"client-0": "client", "server-0": "server"}  # of which there is one
        return {names.get(path.stem, path.stem): json.loads(path.read_text()) for path in Path(scratch).glob("*.json")}


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timeline", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=3000, help="appends, after two seconds to warm up")
    parser.add_argument("--size", type=int, default=200, help="bytes of each payload")
    parser.add_argument("--directory", default="/var/tmp", help="where the data goes; not on a tmpfs")
    parser.add_argument("--into", type=Path, help="page with the marks `<!-- timeline -->`, `<!-- end of timeline -->`")
    options = parser.parse_args(argv)
    if status := ready():
        return status
    stamps = measure(options)
    stamps = {
        name.removesuffix("-0") if name.startswith(("client", "server")) else name: stamps[name] for name in stamps
    }
    skipped = max(0, len(stamps["client"]["known"]) - options.count)
    rows, totals = stages(stamps, skipped)
    if not rows:
        print("no append could be followed from its call to its outcome", file=sys.stderr)
        return 1
    text = table(rows, totals)
    print(text)
    print(f"{len(rows)} of {options.count} appends followed", file=sys.stderr)
    if options.into is not None:
        options.into.write_text(between_marks(options.into.read_text(), text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
