"""Sectors that cannot be read: an index is a cache, and a record in such a sector is one damaged record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.storage_desk import (
    INDEX,
    Desk,
    Nodes,
    append,
    codec_1,
    desk,
    filled,
    flush_marks,
    mark,
    reopen,
    replica,
    some,
    text_of,
)
from waltz_core.base.edge import Port
from waltz_core.storage import log_files, segment_opening
from waltz_core.storage.effects import Create, DiskRead, FaultKind, Unlink, WriteAt
from waltz_core.storage.record_codec import encode_record
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import FailureCode
from waltz_testing.simulation.disk import SimDisk
from waltz_testing.simulation.mount import PowerCut

SEALED, LAST = "0/0000000000000000004", "0/0000000000000000008"  # of twelve records, four to a file
RECORD = 128 + 3 * 100  # where the fourth record of a file begins


class BadSector:
    """A place of a file that cannot be read until the file is made anew, or the whole place is written."""

    def __init__(self, disk: SimDisk, path: str, at: int, size: int = 1) -> None:
        self.path, self.at, self.end, self.bad = path, at, at + size, True
        disk.fault = self

    def __call__(self, effect: Any) -> FaultKind | None:
        if not self.bad or getattr(effect, "path", "") != self.path:
            return None
        match effect:
            case DiskRead(offset=offset, length=length) if offset < self.end and self.at < offset + length:
                return FaultKind.IO
            case Create():
                self.bad = False
            case WriteAt(offset=offset, data=data) if offset < self.end and self.at < offset + len(data):
                if self.path.endswith(".idx") or not offset <= self.at < self.end <= offset + len(data):
                    return FaultKind.IO  # the page that holds the place would have to be read
                self.bad = False
        return None


def served(node: Desk, size: int = 60) -> Iterator[int]:
    """Ids that can be read."""
    for one in range(max(12, replica(node).max_id + 1)):
        if node.read(0, one) == some(one, 1, size)[0]:
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


@pytest.mark.parametrize("damaged", [6, 7])
def test_a_record_that_cannot_be_read_beside_such_an_index_is_damaged_alone(damaged: int) -> None:
    """So were the sound ones before it."""
    nodes = Nodes(1)
    node = nodes.restart(0)
    record = BadSector(node.disk, f"{SEALED}.seg", 128 + (damaged - 4) * 100 + 50)
    index = BadSector(node.disk, f"{SEALED}.idx", 128)
    node.disk.fault = lambda effect: record(effect) or index(effect)
    for one in range(4, damaged):
        assert node.read(0, one) == some(one, 1)[0]
    assert replica(node).faults == set()
    assert isinstance(node.read(0, damaged), str)
    assert replica(node).faults == {damaged}


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


@pytest.mark.parametrize(("name", "first"), [("0/0000000000000000000", 0), (SEALED, 4), (LAST, 8)])
def test_the_last_records_that_share_a_bad_sector_are_mended_together(name: str, first: int) -> None:
    """It can only be written over as a whole; of the newest file they were mended one by one."""
    nodes = Nodes(3)
    disk = nodes.desks[0].disk.clone()
    BadSector(disk, f"{name}.seg", RECORD - 90, 160)
    node = nodes.desks[0] = nodes.node(disk)
    assert (replica(node).state, replica(node).faults) == (State.LIMBO, {first + 2, first + 3})
    answer = nodes.repair(0, 1, 2)
    assert [(one.first_id, one.last_id, one.outcome) for one in answer.ranges] == [(first + 2, first + 3, 0)]
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


# ---- headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "size", "lost"),
    [(10, 1, set()), (128 + 50, 1, {0}), (10, 150, {0}), (0, 300, {0, 1}), (0, 512, {0, 1, 2, 3})],
)
@pytest.mark.parametrize(("name", "first"), [("0/0000000000000000000", 0), (SEALED, 4), (LAST, 8)])
def test_a_data_file_whose_beginning_cannot_be_read_is_repaired(
    name: str, first: int, at: int, size: int, lost: set[int]
) -> None:
    """The replica stopped, at each start, so that nobody could mend it."""
    nodes = Nodes(3)
    disk = nodes.desks[0].disk.clone()
    right = disk.content(f"{name}.seg")
    sector = BadSector(disk, f"{name}.seg", at, size)
    node = nodes.desks[0] = nodes.node(disk)
    gone = {first + one for one in lost}
    if at < 128:
        assert (replica(node).state, replica(node).faults) == (State.LIMBO, gone)
        assert "its header cannot be read" in replica(node).reason
    assert list(served(node)) == [one for one in range(12) if one not in gone]
    assert nodes.repair(0, 1, 2).message is None
    assert (replica(node).state, replica(node).faults, sector.bad) == (State.OPEN, set(), False)
    assert disk.content(f"{name}.seg")[128:] == right[128:]
    assert list(served(reopen(node))) == list(range(12))


@pytest.mark.parametrize("size", [100, 128, 160, 200])
def test_a_segment_that_was_just_begun_and_cannot_be_read_is_kept_for_a_repair(size: int) -> None:
    """It stopped the replica, at each start; what stands behind its header may have been acknowledged."""
    nodes = Nodes(3)
    disk = nodes.desks[0].disk.clone()
    begun = disk.content("0/0000000000000000000.seg")[:128] + bytes(16)
    disk.put("0/0000000000000000012.seg", begun.ljust(size, b"\1")[:size])
    sector = BadSector(disk, "0/0000000000000000012.seg", 10)
    node = nodes.desks[0] = nodes.node(disk)
    assert replica(node).state is State.LIMBO
    assert "its header cannot be read" in replica(node).reason
    nodes.repair(0, 1, 2)
    assert (replica(node).state, replica(node).faults, sector.bad) == (State.OPEN, set(), False)
    assert list(served(reopen(node))) == list(range(12))
    assert append(node, 12, 2) == wire.SuccessResponse(5, 1, 0)


def test_a_header_that_cannot_be_read_is_not_needed_below_the_log_start() -> None:
    """No other replica has the record that stands in the same sector."""
    node = filled(12)
    mark(node, 11, 6)
    assert codec_1(node, Port.STORAGE).ask(wire.SetLogStartRequest(6, 1, 0, 6)) == wire.SuccessResponse(6, 1, 0)
    flush_marks(node)
    disk = node.disk.clone()
    BadSector(disk, f"{SEALED}.seg", 0, 300)
    again = reopen(desk(disk))
    assert (replica(again).state, replica(again).faults) == (State.OPEN, set())
    assert [one for one in served(again) if one >= 6] == list(range(6, 12))


def test_data_files_are_listed_though_the_header_of_one_cannot_be_read() -> None:
    node = filled(12)
    BadSector(node.disk, f"{SEALED}.seg", 0)
    listed = codec_1(node, Port.ADMIN).ask(admin.SegmentListRequest(1, 0)).segments
    assert [(one.first_id, one.creation_ms < 0) for one in listed] == [(0, False), (4, True), (8, False)]


# ---- the operator's word -------------------------------------------------------------------------


def accept(node: Desk, max_id: int | None = None) -> Any:
    """Let the log end where it is good."""
    end = replica(node).files.usable_end if max_id is None else max_id
    return codec_1(node, Port.ADMIN).ask(admin.AcceptLimboRequest(1, 0, end))


def aside(disk: SimDisk) -> dict[str, bytes]:
    """What was put aside."""
    return {name: data for name, data in disk.files().items() if name.endswith(".given-up")}


@pytest.mark.parametrize("size", [60, 700])
@pytest.mark.parametrize(("name", "fault"), [("0/0000000000000000000", 1), (SEALED, 7), (LAST, 11)])
def test_a_loss_can_be_accepted_where_the_disk_cannot_read(name: str, fault: int, size: int) -> None:
    """It failed, each time, and took sound files out of service before."""
    nodes = Nodes(1, size=size)
    disk = nodes.desks[0].disk.clone()
    before = {path: data for path, data in disk.files().items() if path.endswith(".seg")}
    path = f"{name}.seg" if size == 60 else f"0/{fault:019d}.seg"  # a file for each record
    bad = 128 + (40 + size) * (fault % 4 if size == 60 else 0) + 50
    sector = BadSector(disk, path, bad)
    node = nodes.node(disk)
    if name != SEALED and name != LAST:
        node.read(0, fault)
        disk.flip(max(before), len(before[max(before)]) - 1)
        node = nodes.node(disk)
        node.read(0, fault)
    assert replica(node).state is State.LIMBO
    assert accept(node) == admin.AdminSuccessResponse(1)
    assert (replica(node).state, replica(node).max_id, replica(node).faults) == (State.OPEN, fault - 1, set())
    copies = aside(disk)
    for one, data in before.items():
        kept = disk.files().get(one, b"")
        whole = kept + copies.get(f"{one}.given-up", b"")
        begin, end = bad // 512 * 512, bad // 512 * 512 + 512
        if one != path:
            assert whole[: len(data) - 1] == data[:-1]
            continue
        begin = max(begin, len(kept))
        assert whole == data[:begin] + bytes(min(end, len(data)) - begin) + data[end:]
        told = f"bytes {begin}..{min(end, len(data)) - 1} of {one} cannot be read"
        assert any(told in str(each) for each in node.emitted)
    assert sector.bad
    sector.bad = False
    again = reopen(node)
    assert (replica(again).state, list(served(again, size))) == (State.OPEN, list(range(fault)))


@pytest.mark.parametrize(("at", "size", "end"), [(0, 300, 3), (10, 150, 3), (10, 1, 11)])
def test_a_loss_can_be_accepted_where_a_header_cannot_be_read(at: int, size: int, end: int) -> None:
    nodes = Nodes(1)
    disk = nodes.desks[0].disk.clone()
    before = disk.content(f"{SEALED}.seg")
    BadSector(disk, f"{SEALED}.seg", at, size)
    node = nodes.node(disk)
    assert accept(node) == admin.AdminSuccessResponse(1)
    assert (replica(node).state, replica(node).max_id) == (State.OPEN, end)
    if end == 3:
        assert aside(disk)[f"{SEALED}.seg.given-up"] == bytes(512) + before[512:]
    disk.fault = None
    again = reopen(node)
    assert list(served(again)) == list(range(end + 1))
    assert append(again, end + 1, 9) == wire.SuccessResponse(5, 1, 0)


@pytest.mark.parametrize("where", range(4))
def test_a_disk_that_cannot_take_the_copies_keeps_everything_as_it_is(where: int) -> None:
    nodes = Nodes(1)
    disk = nodes.desks[0].disk.clone()
    sector = BadSector(disk, f"{SEALED}.seg", RECORD + 50)
    node = nodes.node(disk)
    before, written = disk.files(), 0

    def full(effect: Any) -> FaultKind | None:
        nonlocal written
        if getattr(effect, "path", "").endswith(".given-up") and not isinstance(effect, Unlink):
            written += 1
            return FaultKind.FULL if written == where + 2 else None
        return sector(effect)

    disk.fault = full
    assert "no space left" in text_of(accept(node))
    assert disk.files() == before
    assert (replica(node).state, replica(node).max_id, replica(node).faults) == (State.LIMBO, 11, {7})
    assert list(served(node)) == [one for one in range(12) if one != 7]
    disk.fault = sector
    assert accept(node) == admin.AdminSuccessResponse(1)


def test_what_was_put_aside_before_stays() -> None:
    """A second acceptance emptied the copy of the first one."""
    nodes = Nodes(1)
    node = nodes.desks[0]
    for number in (1, 2, 3):
        flush_marks(node)
        disk = node.disk.clone()
        disk.flip(f"{LAST}.seg", RECORD + 50)
        node = nodes.node(disk)
        assert accept(node) == admin.AdminSuccessResponse(1)
        assert len(aside(disk)) == number
        assert append(node, 11, 1, size=60 + number) == wire.SuccessResponse(5, 1, 0)
    assert sorted(aside(disk)) == [f"{LAST}.seg.{number}given-up" for number in ("2.", "3.", "")]
    assert len(set(aside(disk).values())) == 3


# ---- power failures ------------------------------------------------------------------------------


def cut_off(disk: SimDisk, work: Any, sector: BadSector, seed: int) -> Iterator[SimDisk]:
    """What a power failure leaves of the disk behind each call of some work."""
    for calls in range(200):
        for exact in (True, False):
            twin = disk.clone()
            again = BadSector(twin, sector.path, sector.at, sector.end - sector.at)
            node = desk(twin)
            twin.mount.calls_left = calls
            try:
                work(node)
            except PowerCut:
                pass
            else:
                return
            twin.mount.calls_left = None
            twin.lose_unsynced() if exact else twin.crash(random.Random(1000 * seed + calls))
            place = slice(sector.at, sector.end)  # what a write has not reached is as bad as before
            kept = twin.files().get(sector.path, b"")[place]
            again.bad = kept != b"" and disk.content(sector.path)[place].startswith(kept)
            yield twin
    raise AssertionError("it does not end")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("path", "at", "size", "end"),
    [
        (f"{SEALED}.seg", RECORD + 50, 1, 6),
        (f"{LAST}.seg", 128 + 50, 200, 7),
        (f"{SEALED}.seg", 0, 300, 3),
        (f"{LAST}.seg", 0, 300, 7),
        (f"{LAST}.seg", 10_000, 1, 7),  # no bad sector: rot
    ],
)
def test_a_power_failure_while_a_loss_is_accepted_loses_nothing_more(
    path: str, at: int, size: int, end: int, seed: int
) -> None:
    """Each record that can be read is in the log or in a copy, and the operator can say it again."""
    disk = Nodes(1).desks[0].disk.clone()
    disk.flip(f"{LAST}.seg", len(disk.content(f"{LAST}.seg")) - 1)  # so that it is in limbo in any case
    if at > 1000:
        disk.flip(path, 128 + 50)
    sector = BadSector(disk, path, at, size)
    readable = [encode_record(some(one, 1)[0]) for one in served(desk(disk))]
    states = 0
    for left in cut_off(disk, accept, sector, seed):
        node = desk(left)
        if replica(node).state is State.LIMBO:
            assert accept(node) == admin.AdminSuccessResponse(1)
        assert replica(node).state is State.OPEN
        assert replica(node).max_id == end
        held = [data for name, data in left.files().items() if name.endswith((".seg", ".given-up"))]
        for record in readable:
            # What shares a sector with a bad one is lost, where the copy has a hole.
            assert any(record in data for data in held) or _in_hole(disk, path, record, at, size)
        states += 1
    assert states > 30


def _in_hole(disk: SimDisk, path: str, record: bytes, at: int, size: int) -> bool:
    place = disk.content(path).find(record)
    begin, end = at // 512 * 512, -(-(at + size) // 512) * 512
    return place >= 0 and begin < place + len(record) and place < end


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("at", "size"), [(10, 1), (0, 300), (0, 512)])
@pytest.mark.parametrize("name", [SEALED, LAST])
def test_a_power_failure_while_a_header_is_mended_leaves_what_a_repair_mends(
    name: str, at: int, size: int, seed: int
) -> None:
    nodes = Nodes(3)
    disk = nodes.desks[0].disk.clone()
    sector = BadSector(disk, f"{name}.seg", at, size)

    def repair(node: Desk) -> Any:
        nodes.desks[0] = node
        return nodes.repair(0, 1, 2)

    states = 0
    for left in cut_off(disk, repair, sector, seed):
        node = nodes.desks[0] = desk(left)
        nodes.to_do.clear()
        if replica(node).state is State.LIMBO:
            assert nodes.repair(0, 1, 2).message is None
        assert (replica(node).state, replica(node).faults) == (State.OPEN, set())
        assert list(served(node)) == list(range(12))
        states += 1
    assert states > 4


# ---- a full disk ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["sector", "wrong", "empty"])
def test_a_full_disk_that_cannot_take_the_index_damages_no_record(damage: str) -> None:
    """Sound records were refused, and were repaired over and over."""
    nodes = Nodes(1)
    node = nodes.restart(0)  # of a sealed segment no place is in memory
    path = f"{SEALED}.idx"
    right = node.disk.content(path)
    sector = BadSector(node.disk, path, 128 + 8)
    sector.bad = damage == "sector"
    node.disk.put(path, {"sector": right, "wrong": right[:128] + bytes(32), "empty": b""}[damage])

    def full(effect: Any) -> FaultKind | None:
        if isinstance(effect, WriteAt) and effect.path == path:
            return FaultKind.FULL
        return sector(effect)

    node.disk.fault = full
    for _ in range(3):
        assert list(served(node)) == list(range(12))
    assert replica(node).faults == set()
    node.disk.fault = None
    assert list(served(node)) == list(range(12))
    assert node.disk.content(path)[128:] == right[128:]
    assert node.disk.content(path)[12:40] == right[12:40], "the header, too"
