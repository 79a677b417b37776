"""Sectors that cannot be read: an index is a cache, and a record in such a sector is one damaged record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.storage_desk import INDEX, Desk, Nodes, append, codec_1, desk, flush_marks, reopen, replica, some
from waltz_core.base.edge import Port
from waltz_core.storage import log_files, segment_opening
from waltz_core.storage.effects import Create, DiskRead, FaultKind, WriteAt
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import FailureCode
from waltz_testing.simulation.disk import SimDisk

SEALED, LAST = "0/0000000000000000004", "0/0000000000000000008"  # of twelve records, four to a file
RECORD = 128 + 3 * 100  # where the fourth record of a file begins


class BadSector:
    """A place of a file that cannot be read until the file is made anew, or the place is written."""

    def __init__(self, disk: SimDisk, path: str, at: int) -> None:
        self.path, self.at, self.bad = path, at, True
        disk.fault = self

    def __call__(self, effect: Any) -> FaultKind | None:
        if not self.bad or getattr(effect, "path", "") != self.path:
            return None
        match effect:
            case DiskRead(offset=offset, length=length) if offset <= self.at < offset + length:
                return FaultKind.IO
            case Create():
                self.bad = False
            case WriteAt(offset=offset, data=data) if offset <= self.at < offset + len(data):
                if self.path.endswith(".idx"):
                    return FaultKind.IO  # the page that holds the place would have to be read
                self.bad = False
        return None


def served(node: Desk) -> Iterator[int]:
    """Ids that can be read."""
    for one in range(max(12, replica(node).max_id + 1)):
        if node.read(0, one) == some(one, 1)[0]:
            yield one


@pytest.mark.parametrize("path", [f"{SEALED}.idx", f"{LAST}.idx"])
@pytest.mark.parametrize("at", [0, 128, 128 + 3 * 8])
def test_an_index_with_a_bad_sector_is_made_anew_at_the_opening(path: str, at: int) -> None:
    """The replica stopped, at each start."""
    nodes = Nodes(1)
    disk = nodes.desks[0].disk.clone()
    right = disk.content(path)
    sector = BadSector(disk, path, at)
    node = nodes.node(disk)
    assert (replica(node).state, replica(node).faults) == (State.OPEN, set())
    assert list(served(node)) == list(range(12))
    assert not sector.bad
    assert disk.content(path)[128:] == right[128:]


@pytest.mark.parametrize("number", [0, 30, 38, 45, 49])
def test_so_is_a_long_index_whose_newest_places_alone_are_read(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "WINDOW", 4)
    monkeypatch.setattr(segment_opening, "WINDOW", 4)
    node = desk(threshold=100_000)
    append(node, 0, 40)
    flush_marks(node)
    append(node, 40, 10)
    disk = node.disk.clone()
    right = disk.content(INDEX)
    sector = BadSector(disk, INDEX, 128 + 8 * number)
    again = desk(disk, threshold=100_000)
    assert (replica(again).state, replica(again).max_id) == (State.OPEN, 49)
    assert sector.bad == (number < 36)  # what nothing asks for is not looked at
    disk.fault = None
    assert disk.content(INDEX) == right or disk.content(INDEX)[128:] == right[128:]
    assert list(served(again)) == list(range(50))


@pytest.mark.parametrize("good", range(1, 5))
def test_an_index_that_fails_in_between_stops_the_replica_alone(good: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "WINDOW", 4)
    monkeypatch.setattr(segment_opening, "WINDOW", 4)
    node = desk(threshold=100_000)
    append(node, 0, 40)
    flush_marks(node)
    disk, reads = node.disk.clone(), 0

    def fault(effect: Any) -> FaultKind | None:
        nonlocal reads
        reads += isinstance(effect, DiskRead) and effect.path == INDEX
        return FaultKind.IO if reads > good and isinstance(effect, DiskRead) and effect.path == INDEX else None

    disk.fault = fault
    again = desk(disk, threshold=100_000)
    assert replica(again).state is (State.STOPPED if good in (2, 3) else State.OPEN)
    disk.fault = None
    assert list(served(reopen(again, threshold=100_000))) == list(range(40))


def test_records_whose_index_cannot_be_read_are_not_damaged() -> None:
    """They counted as damaged, and were repaired over and over."""
    nodes = Nodes(3)
    node = nodes.restart(0)  # of a sealed segment no place is in memory
    path = f"{SEALED}.idx"
    right = node.disk.content(path)
    sector = BadSector(node.disk, path, 128 + 8)
    port = codec_1(node, Port.STORAGE)
    answer = port.ask(wire.RecordListRequest(5, 1, 0, 4, 4))
    assert [one.transaction_id for one in answer.records] == [4]
    assert not sector.bad
    assert node.disk.content(path)[128:] == right[128:]
    assert list(served(node)) == list(range(12))
    assert replica(node).faults == set()


def test_a_damaged_record_beside_an_index_that_cannot_be_read_is_mended_alone() -> None:
    nodes = Nodes(3)
    node = nodes.restart(0)
    node.disk.flip(f"{SEALED}.seg", RECORD + 50)
    assert isinstance(node.read(0, 7), str)
    BadSector(node.disk, f"{SEALED}.idx", 128)
    answer = nodes.repair(0, 1, 2)
    assert answer.message is None
    assert [(one.first_id, one.last_id) for one in answer.ranges] == [(7, 7)]
    assert replica(node).faults == set()
    assert list(served(node)) == list(range(12))


def test_its_neighbours_are_not_damaged() -> None:
    """The record before it was repaired, too, as more than itself was read of it."""
    nodes = Nodes(3)
    node = nodes.restart(0)
    BadSector(node.disk, f"{SEALED}.seg", 128 + 2 * 100 + 50)
    assert isinstance(node.read(0, 6), str)
    answer = nodes.repair(0, 1, 2)
    assert [(one.first_id, one.last_id, one.outcome) for one in answer.ranges] == [(6, 6, 0)]
    assert list(served(node)) == list(range(12))


def test_what_cannot_be_read_is_refused_as_damaged_in_the_words_of_0_13_2() -> None:
    """A server took it for a node that is away for now."""
    nodes = Nodes(1)
    node = nodes.restart(0)
    BadSector(node.disk, f"{SEALED}.seg", 128 + 2 * 100 + 50)
    port = codec_1(node, Port.STORAGE)
    assert [one.transaction_id for one in port.ask(wire.RecordListRequest(5, 1, 0, 5, 4)).records] == [5]
    for kind in (wire.RecordListRequest, wire.RecordHeaderListRequest):
        answer = port.ask(kind(5, 1, 0, 6, 2))
        assert (answer.code, answer.detail) == (FailureCode.CORRUPT, 6)
        assert answer.message.startswith("java.io.IOException: ")
    assert codec_1(node, Port.ADMIN).ask(admin.RecordListRequest(1, 0, 6, 2)).code == FailureCode.CORRUPT
    node.disk.fault = lambda effect: FaultKind.MISSING if isinstance(effect, DiskRead) else None
    assert port.ask(wire.RecordListRequest(5, 1, 0, 5, 1)).code == FailureCode.IO


@pytest.mark.parametrize(("name", "fault"), [(SEALED, 7), (LAST, 11)])
def test_a_last_record_that_cannot_be_read_is_one_damaged_record(name: str, fault: int) -> None:
    """The replica stopped, at each start, so that nobody could mend the record."""
    nodes = Nodes(3)
    disk = nodes.desks[0].disk.clone()
    BadSector(disk, f"{name}.seg", RECORD + 50)
    node = nodes.desks[0] = nodes.node(disk)
    assert (replica(node).state, replica(node).faults) == (State.LIMBO, {fault})
    assert "it cannot be read" in replica(node).reason
    assert list(served(node)) == [one for one in range(12) if one != fault]
    assert nodes.repair(0, 1, 2).message is None
    assert (replica(node).state, replica(node).faults) == (State.OPEN, set())
    assert list(served(reopen(node))) == list(range(12))


@pytest.mark.parametrize("name", [SEALED, LAST])
def test_a_record_that_can_be_read_again_needs_no_other_replica(name: str) -> None:
    nodes = Nodes(1)
    disk = nodes.desks[0].disk.clone()
    sector = BadSector(disk, f"{name}.seg", RECORD + 50)
    node = nodes.desks[0] = nodes.node(disk)
    assert replica(node).state is State.LIMBO
    sector.bad = False
    nodes.repair(0)
    assert (replica(node).state, replica(node).faults) == (State.OPEN, set())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_cannot_be_read_behind_the_mark_is_not_cut(number: int) -> None:
    """It may have been acknowledged."""
    node = desk(threshold=100_000)
    append(node, 0, 12)
    flush_marks(node)
    append(node, 12, 3)
    disk = node.disk.clone()
    size = len(disk.content("0/0000000000000000000.seg"))
    sector = BadSector(disk, "0/0000000000000000000.seg", 128 + 100 * (12 + number) + 50)
    again = desk(disk, threshold=100_000)
    assert replica(again).state is State.LIMBO
    assert 12 + number in replica(again).faults
    assert len(disk.content("0/0000000000000000000.seg")) == size
    sector.bad = False
    assert again.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)) == admin.AdminSuccessResponse(1)
    assert list(served(again)) == list(range(15))


def test_remembered_damage_that_cannot_be_read_is_found_again() -> None:
    """The replica stopped, at each start."""
    nodes = Nodes(1)
    node = nodes.desks[0]
    node.disk.flip(f"{SEALED}.seg", 128 + 150)
    assert isinstance(node.read(0, 5), str)
    disk = node.disk.clone()
    sector = BadSector(disk, "0/waltz.faults", 100)
    again = nodes.node(disk)
    assert (replica(again).state, replica(again).faults, sector.bad) == (State.OPEN, set(), False)
    assert isinstance(again.read(0, 5), str)
    assert replica(reopen(again)).faults == {5}
