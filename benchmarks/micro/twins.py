"""`python -m benchmarks.micro.twins`: each loop over transactions, in Python and compiled, µs of CPU per transaction.

Without the compiled part only the first column is there.
"""

from __future__ import annotations

import importlib
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import waltz_speedups
from waltz_core.base.ids import make_req_id
from waltz_core.base.twins import REFERENCES
from waltz_core.client.calls import Submit
from waltz_core.client.columns import Columns, RowLocks
from waltz_core.wire import runs
from waltz_core.wire.client_messages import FeedData, NamedAppendRequest
from waltz_core.wire.lock_names import pack_text
from waltz_core.wire.named_append import decode_named_append
from waltz_core.wire.primitives import checksum_of
from waltz_trio.client.codecs import Raw
from waltz_trio.client.values import Append, Transaction, lock_hashes

COUNT = 500
ROUNDS = 30
DATA = bytes(range(200))
HEAD, PREFIX = b"\x4c\x00\x05\x00\x00\x00\x00", make_req_id(1, 2, 3, 0)[:12]


for module in ("waltz_core.server.node", "waltz_core.storage.transcode", "waltz_core.client.node"):
    importlib.import_module(module)  # for the references in them


def submits(locks: int) -> list[Submit]:
    """Appends of an application."""
    names = (pack_text("row") + bytes(8)) * locks
    return [
        Submit(3, None, at - 1, tuple(range(at, at + locks)), (), (), 0, DATA, checksum_of(DATA), names)
        for at in range(COUNT)
    ]


def cases() -> dict[str, tuple[str, Callable[[], tuple[Any, ...]]]]:
    """What is measured: name → the function, and fresh arguments for it."""
    frames: dict[int, bytes] = {}
    for locks in (0, 1):
        out = bytearray()
        REFERENCES["encode_appends"](out, HEAD, submits(locks), 0, COUNT, PREFIX, 0, -1, True)
        frames[locks] = bytes(out)
    decode = runs.whole(decode_named_append)
    requests: dict[int, list[Any]] = {0: [], 1: []}
    for locks, made in requests.items():
        REFERENCES["cut_appends"](frames[locks], 0, 1 << 20, made, NamedAppendRequest, decode, True)
    records = REFERENCES["encode_records"](0, requests[0])
    starts = REFERENCES["cut_records"](records, 0, len(records), COUNT)
    stored = b"".join(REFERENCES["transcode_records"](records, 0, len(records), COUNT)[0])
    feed = REFERENCES["encode_frames"](0, requests[0])
    read: list[FeedData] = []
    REFERENCES["cut_feed"](feed, 0, read, FeedData)
    payloads = [DATA] * COUNT
    table = array("q", [-1]) * 100_000

    def judged() -> tuple[Any, ...]:
        attempts = [(at, one.req_id, None, 0) for at, one in enumerate(read)]
        return read, 0, -1, {attempt[1]: attempt for attempt in attempts}, deque(attempts), []

    def taken(locks: int) -> tuple[Any, ...]:
        return table, {}, requests[locks], 0, COUNT, COUNT, 1 << 30, 0

    asked = [submits(0), submits(1)]
    plain, columns = [Append(DATA) for _ in range(COUNT)], Columns()
    fence = (("sink", 7),)
    fenced, locked = [Append(DATA, read=fence) for _ in range(COUNT)], Columns()
    names: list[bytes] = []
    under = RowLocks(None, (), lock_hashes(fence, names), (), names[0])
    for _ in range(COUNT):
        columns.add(0, DATA)
        locked.add(0, DATA, under)
    outcomes = [(at + 1, at) for at in range(COUNT)]
    return {
        "client: encode appends": (
            "encode_appends",
            lambda: (bytearray(), HEAD, asked[0], 0, COUNT, PREFIX, 0, -1, True),
        ),
        "client: encode appends, 1 lock": (
            "encode_appends",
            lambda: (bytearray(), HEAD, asked[1], 0, COUNT, PREFIX, 0, -1, True),
        ),
        "client: gather plain appends": (
            "take_plain",
            lambda: (plain, 0, Append, Raw, 1 << 20, 1 << 30, [], [], []),
        ),
        "client: encode columns": (
            "encode_columns",
            lambda: (bytearray(), HEAD, columns, 0, COUNT, PREFIX, 0, -1, True),
        ),
        "client: gather appends under one lock": (
            "take_alike",
            lambda: (fenced, 0, fenced[0], Append, Raw, 1 << 20, 1 << 30, [], [], []),
        ),
        "client: encode columns under one lock": (
            "encode_columns",
            lambda: (bytearray(), HEAD, locked, 0, COUNT, PREFIX, 0, -1, True),
        ),
        "client: outcomes of rows": ("take_rows", lambda: (outcomes, 0, 1, COUNT + 1, [None] * COUNT, 0)),
        "client: cut the feed": ("cut_feed", lambda: (feed, 0, [], FeedData)),
        "client and server: find a run of a partition": ("end_of_run", lambda: (read, 0, FeedData)),
        "client: follow the feed": ("mark_after", lambda: (read, -1)),
        "client: hand out the feed": ("hand_out", lambda: ([], Transaction, 0, read, payloads, None, None)),
        "client: cut a range": ("cut_records", lambda: (records, 0, len(records), COUNT)),
        "client: payloads of a range": ("data_of", lambda: (records, starts, COUNT)),
        "client: verify a range": ("sound_count", lambda: (records, starts, 0)),
        "client: match outcomes": ("judge_run", judged),
        "server: cut appends": (
            "cut_appends",
            lambda: (frames[0], 0, 1 << 20, [], NamedAppendRequest, decode, True),
        ),
        "server: cut appends, 1 lock": (
            "cut_appends",
            lambda: (frames[1], 0, 1 << 20, [], NamedAppendRequest, decode, True),
        ),
        "server: may they be queued": ("all_acceptable", lambda: (requests[0], requests[0][0].req_id[:8], 0, 1 << 20)),
        "server: count payloads": ("payload_bytes", lambda: (requests[0], 0, COUNT)),
        "server: take": ("take_run", lambda: taken(0)),
        "server: check and take locks": ("take_run", lambda: taken(1)),
        "server: commit locks": ("release_run", lambda: (table[:], {}, requests[1], 0, [], [])),
        "server: encode records": ("encode_records", lambda: (0, requests[0])),
        "server: encode the feed": ("encode_frames", lambda: (0, requests[0])),
        "storage: wire to disk": ("transcode_records", lambda: (records, 0, len(records), COUNT)),
        "storage: disk to wire": ("transcode_disk", lambda: (stored, 0, COUNT)),
    }


def best(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> float:
    """The fastest of some rounds, in µs per transaction."""
    times = []
    for _ in range(ROUNDS):
        arguments = make()
        began = time.thread_time_ns()
        function(*arguments)
        times.append(time.thread_time_ns() - began)
    return min(times) / 1000 / COUNT


def main() -> None:
    """The command."""
    loops = waltz_speedups.loops
    print(f"{'loop':34}{'Python':>8}{'compiled':>10}{'times':>7}")
    for title, (name, make) in cases().items():
        reference = best(REFERENCES[name], make)
        line = f"{title:34}{reference:8.3f}"
        if loops is not None:
            compiled = best(getattr(loops, name), make)
            line += f"{compiled:10.3f}{reference / compiled:7.1f}"
        print(line)


if __name__ == "__main__":
    main()
