"""What a decision journal knows of a few records: their locks, and the mark of the state that each was decided on.

A journal is long, and what somebody looks at is short. So it is found by bisection: ids rise through the files of a
partition. They fall back a little where a store session ended with appends in flight, whose ids the next one gives
anew; so the search begins before the place that it came to, goes on behind the last id, and believes a decision only
with the request id of the record. What it misses is not shown; nothing wrong is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from waltz_core.base.ids import ReqId
from waltz_core.server.journal_format import MARKER, SUFFIX, Decision, appended_id, decode_entries, entry_end

_PIECE = 64 << 10  # bytes read at once
_AROUND = 256 << 10  # bytes before the first id and behind the last that are looked at too
_READ_MAX = 8 << 20  # bytes of one search, bisection apart


def find_decisions(directory: Path, partition_id: int, req_ids: Mapping[int, ReqId]) -> dict[int, Decision]:
    """The decisions of transactions, as far as the journal has them.

    Args:
        directory: of the journal of a server.
        partition_id: the partition.
        req_ids: of each transaction that is wanted.

    Raises:
        OSError: it cannot be read.
    """
    folder = directory / str(partition_id)
    if not req_ids or not folder.is_dir():
        return {}
    wanted = range(min(req_ids), max(req_ids) + 1)
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
    begin = len(paths)
    while begin:
        begin -= 1
        with paths[begin].open("rb") as file:
            first = _appended_from(file, 0, _size(file))
        if first is not None and first[1] <= wanted.start:
            break
    decisions: dict[int, Decision] = {}
    room = _READ_MAX
    for path in paths[begin:]:
        with path.open("rb") as file:
            start = _place_of(file, wanted.start)
            until = min(_size(file), start + room)
            beyond = False
            for at, entry in _entries(file, start, until):
                number = appended_id(entry, 0)
                if number in req_ids:
                    _keep(decisions, entry, req_ids[number])
                if number >= wanted.stop and not beyond:
                    beyond, until = True, min(until, at + _AROUND)
                if len(decisions) == len(req_ids) or (beyond and at >= until):
                    return decisions
            room -= until - start
        if room <= 0:
            break
    return decisions


def _keep(decisions: dict[int, Decision], entry: bytes, req_id: ReqId) -> None:
    for _, decision in decode_entries(entry, ""):
        if isinstance(decision, Decision) and decision.req_id == req_id:
            decisions[decision.transaction_id] = decision


def _size(file: BinaryIO) -> int:
    return file.seek(0, 2)


def _place_of(file: BinaryIO, transaction_id: int) -> int:
    """Where to begin to look for an id."""
    low, high = 0, _size(file)
    while high - low > _PIECE:
        middle = (low + high) // 2
        next_one = _appended_from(file, middle, high)
        if next_one is None or next_one[1] >= transaction_id:
            high = middle
        else:
            low = max(middle, next_one[0])
    return max(0, low - _AROUND)


def _appended_from(file: BinaryIO, start: int, end: int) -> tuple[int, int] | None:
    """Place and id of the first decision to append in a range of a file."""
    for at, entry in _entries(file, start, end):
        number = appended_id(entry, 0)
        if number >= 0:
            return at, number
    return None


def _entries(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Sound entries of a range of a file, from any byte on, with their places."""
    data, base, at, ended = b"", start, 0, False
    while True:
        at = data.find(MARKER, at)
        if at >= 0:
            stop = entry_end(data, at)
            if stop >= 0:
                yield base + at, data[at:stop]
                at = stop
                continue
            if ended or len(data) - at >= _PIECE:  # it only looks like one
                at += 1
                continue
        elif ended:
            return
        kept = at if at >= 0 else max(0, len(data) - 1)
        data, base, at = data[kept:], base + kept, 0
        file.seek(base + len(data))
        more = file.read(max(0, min(_PIECE, end - base - len(data))))
        ended = not more
        data += more
