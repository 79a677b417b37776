"""The log browser: a range of records of one partition, as its server gives them to this certificate."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import trio

from waltz_core.base.errors import WaltzError
from waltz_core.base.ids import ReqId, parse_endpoint, req_client
from waltz_core.base.record import record
from waltz_core.operations.page import Page
from waltz_core.server.journal_format import Decision
from waltz_core.wire.lock_names import unpack_names
from waltz_trio.console.journal import find_decisions
from waltz_trio.console.watch import Watch
from waltz_trio.ports.server import ServerPort

COUNT_MAX = 100  # records
DATA_MAX = 4096  # bytes shown of each payload
_SIZE_MAX = 1 << 20  # bytes asked for
_TIME_MAX = 10.0  # seconds


class BadRangeError(WaltzError):
    """The query names no range."""


@record
class Range:
    """What is asked for."""

    partition_id: int
    first: int | None  # None: the last ones
    count: int


def parse_range(query: Mapping[str, Sequence[str]]) -> Range:
    """Read a query.

    Raises:
        BadRangeError: a field is missing, is no number, or out of range.
    """

    def number(name: str, default: int | None, most: int) -> int | None:
        text = query.get(name, [""])[-1]
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= most):
            raise BadRangeError(f"{name}: expected a number from 0 to {most}, found {text[:40]!r}")
        return int(text)

    partition_id = number("partition", None, (1 << 31) - 1)
    if partition_id is None:
        raise BadRangeError("partition is missing")
    count = number("count", 20, COUNT_MAX)
    return Range(partition_id, number("first", None, (1 << 63) - 1 - COUNT_MAX), count or 1)


async def read_log(watch: Watch, wanted: Range, journal: Path | None = None) -> Page:
    """Records of a range.

    Args:
        watch: knows who owns the partition.
        wanted: the range.
        journal: directory of a decision journal, which may know the locks of the records.

    Raises:
        WaltzError: no server owns the partition, or it refused.
        TooSlowError: it did not answer.
    """
    page = watch.page
    rows = page["partitions"] if page is not None else []
    owner = next((row["owner"] for row in rows if row["id"] == wanted.partition_id), None)
    if owner is None:
        known = f"the cluster has partitions 0 to {len(rows) - 1}" if rows else "the cluster was not seen yet"
        raise BadRangeError(f"partition {wanted.partition_id} has no server now; {known}")
    with trio.fail_after(_TIME_MAX):
        async with watch.tool() as tool, tool.server(parse_endpoint(owner)) as port:
            page, req_ids = await _read(port, wanted)
    if journal is not None:
        await _add_locks(page, journal, wanted.partition_id, req_ids)
    return page


async def _read(port: ServerPort, wanted: Range) -> tuple[Page, dict[int, ReqId]]:
    ends = await port.log_ends(wanted.partition_id)
    first = wanted.first if wanted.first is not None else ends.high_water_mark - wanted.count + 1
    first = max(first, ends.log_start, 0)
    last = min(first + wanted.count - 1, ends.high_water_mark)
    records = (await port.records(wanted.partition_id, first, last, _SIZE_MAX)).records if last >= first else ()
    page = {
        "partition": wanted.partition_id,
        "log_start": ends.log_start,
        "high_water_mark": ends.high_water_mark,
        "first": first,
        "records": [
            {
                "id": record.transaction_id,
                "header": record.header,
                "client": req_client(record.req_id),
                "request": bytes(record.req_id).hex(),
                "size": len(record.data),
                "data": b64encode(record.data[:DATA_MAX]).decode(),
            }
            for record in records
        ],
    }
    return page, {record.transaction_id: record.req_id for record in records}


async def _add_locks(page: Page, journal: Path, partition_id: int, req_ids: Mapping[int, ReqId]) -> None:
    """Where the journal has a decision, its record gets `locks`; where it cannot be read, the page says so."""
    try:
        decisions = await trio.to_thread.run_sync(find_decisions, journal, partition_id, req_ids)
    except OSError as error:
        page["journal_problem"] = f"the decision journal {journal} cannot be read: {error.strerror}"
        return
    for row in page["records"]:
        decision = decisions.get(row["id"])
        if decision is not None:
            row["locks"] = _locks_of(decision)


def _locks_of(decision: Decision) -> dict[str, Any]:
    kinds = {"write": decision.write_locks, "read": decision.read_locks, "append": decision.append_locks}
    names = iter(unpack_names(decision.names, sum(map(len, kinds.values()))))
    texts = {kind: list(_texts(hashes, names)) for kind, hashes in kinds.items()}
    return {"mark": decision.client_mark, **texts}


def _texts(hashes: Sequence[int], names: Iterator[tuple[str, int] | None]) -> Iterator[str]:
    """A lock by its name and id, or by its hash where its client sent no name."""
    for value, name in zip(hashes, islice(names, len(hashes)), strict=True):
        yield f"hash {value}" if name is None else f"{name[0]}/{name[1]}"
