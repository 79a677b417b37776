"""The lane of a replica: order, what runs alone, what keeps reads out."""

from __future__ import annotations

import pytest

from waltz_core.storage.lane import (
    AcceptLoss,
    AdminRead,
    Assign,
    ChangeJob,
    Job,
    Lane,
    Mend,
    OpenFiles,
    RaiseStart,
    RecordFaults,
    RecordRepair,
    Request,
    SetAvailable,
    Survey,
    Unassign,
)
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire

READ = AdminRead(1, admin.RecordListRequest(1, 0, 0, 1))
ALONE = [
    OpenFiles(),
    Survey(),
    Mend((), 0),
    RecordRepair(),
    *(ChangeJob(1, change) for change in (Assign(), Unassign(False), AcceptLoss(1), RaiseStart(1))),
]
BESIDE = [READ, RecordFaults(), ChangeJob(1, SetAvailable(True))]


def request(seq_num: int, size: int = 0) -> Request:
    return Request(1, wire.MaxTransactionIdRequest(5, seq_num, 0, False), size, exclusive=False)


def lane_with(*jobs: Job) -> Lane:
    lane = Lane()
    for job in jobs:
        lane.add(job)
    return lane


def test_jobs_begin_in_order_and_one_at_a_time() -> None:
    lane = lane_with(request(1), request(2))
    assert lane.begin() == request(1)
    assert (lane.busy, lane.alone, lane.idle) == (True, False, False)
    lane.end()
    assert lane.begin() == request(2)
    lane.end()
    assert lane.idle


@pytest.mark.parametrize("job", ALONE, ids=lambda job: type(job).__name__)
def test_what_changes_files_lets_nothing_begin_beside_it_and_waits_for_what_has(job: Job) -> None:
    lane = lane_with(request(1), job)
    assert lane.closed  # from the moment it waits, or reads could keep it out for ever
    lane.begin()
    lane.end()
    for beside in ("reads", "marking"):
        setattr(lane, beside, True)
        assert lane.begin() is None
        setattr(lane, beside, False)
    assert lane.begin() == job
    assert lane.alone
    assert lane.closed
    lane.end()
    assert not lane.closed


@pytest.mark.parametrize("job", BESIDE, ids=lambda job: type(job).__name__)
def test_everything_else_runs_beside_reads(job: Job) -> None:
    lane = lane_with(job)
    assert not lane.closed
    lane.reads = 1
    assert lane.begin() == job
    assert not lane.closed


def test_bytes_of_appends_count_as_long_as_they_wait() -> None:
    lane = lane_with(request(1, 100), request(2, 50))
    assert lane.bytes_waiting == 150
    assert lane.take() == request(1, 100)
    assert lane.bytes_waiting == 50
    lane.begin()
    assert lane.bytes_waiting == 0
