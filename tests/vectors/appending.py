"""Runs one append through a real appender with nothing in flight."""

from __future__ import annotations

from typing import NamedTuple

from tests.vectors.reading import Fields
from waltz_core.base.ids import make_req_id
from waltz_core.locks.table import LockTable
from waltz_core.server.append_queue import Sender
from waltz_core.server.appender import Appender, Committed, Refused, Verdict
from waltz_core.wire.client_messages import AppendRequest


class Outcome(NamedTuple):
    name: str  # committed, lock_failure or store_failed
    transaction_id: int


def decide_alone(locks: LockTable, high_water_mark: int, request: Fields) -> Outcome:
    """What becomes of one append; with `store_ok` false its store session ends before it commits."""
    appender = Appender(locks, high_water_mark, batch_count_max=1, batch_bytes_max=1 << 20, flight_bytes_max=1 << 20)
    appender.opened(1, ["replica"])
    append = AppendRequest(
        make_req_id(1, 1, 0, 1),
        request["client_hwm"],
        tuple(request["write"]),
        tuple(request["read"]),
        tuple(request["append"]),
        0,
        b"",
        0,
    )
    appender.enqueue(Sender(1, 7), [append])
    verdicts: list[Verdict] = []
    batch = appender.launch(verdicts)
    if batch is None:
        (refused,) = verdicts
        assert isinstance(refused, Refused)
        return Outcome("lock_failure", refused.mark)
    if request["store_ok"]:
        appender.voted("replica", batch.last)
        appender.advance(verdicts)
        (committed,) = verdicts
        assert isinstance(committed, Committed)
        return Outcome("committed", committed.last)
    appender.closed()
    appender.resolved(high_water_mark, verdicts)
    assert not verdicts
    return Outcome("store_failed", -1)
