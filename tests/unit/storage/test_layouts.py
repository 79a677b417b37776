"""Records, segments, indexes, control structs and side files as bytes."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage_desk import some
from tests.twin_0132.disk import decode_unverified
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.storage import control, index, segment, side
from waltz_core.storage.record_codec import (
    RECORD_SIZE_MIN,
    announced_size,
    check_record,
    decode_run,
    encode_record,
    encode_run,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
RECORDS = st.lists(
    st.tuples(st.binary(min_size=16, max_size=16), INT32, st.binary(max_size=300), INT32), min_size=1, max_size=8
).map(lambda rows: [Record(7 + at, ReqId(r), h, d, c) for at, (r, h, d, c) in enumerate(rows)])


@given(RECORDS)
def test_records_survive_the_disk(records: list[Record]) -> None:
    data = b"".join(map(encode_record, records))
    found, end = decode_run(data, 7, len(records) + 3)
    assert (found, end) == (records, len(data))
    assert [RECORD_SIZE_MIN + len(one.data) for one in records] == [len(encode_record(one)) for one in records]
    assert decode_unverified(data) == records[0]


@given(RECORDS, st.data())
def test_a_changed_bit_is_noticed_and_only_what_stands_before_it_is_read(
    records: list[Record], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(map(encode_record, records)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    found, end = decode_run(bytes(raw), 7, len(records))
    assert found == records[: len(found)]
    assert end <= at


@given(RECORDS, st.integers(0, 400))
def test_a_run_stops_behind_the_record_that_passes_the_threshold(records: list[Record], threshold: int) -> None:
    parts: list[bytes] = []
    offsets = array("Q")
    done, end = encode_run(records, 0, 128, threshold, parts, offsets)
    assert done == len(offsets) >= 1
    assert end == 128 + sum(map(len, parts))
    assert end > threshold or done == len(records)
    assert done == 1 or offsets[-1] <= threshold


@pytest.mark.parametrize("cut", [0, 1, 35, 36, 39, 40, 49])
def test_a_record_cut_short_is_none(cut: int) -> None:
    raw = encode_record(Record(3, ReqId(bytes(16)), 1, b"0123456789", 0))
    assert check_record(raw, 0, 3) == 50
    assert check_record(raw[:cut], 0, 3) == -1
    assert decode_run(raw[:cut], 3, 1) == ([], 0)
    if cut < 46:
        with pytest.raises(ValueError, match="end of file"):
            decode_unverified(raw[:cut])


def test_lengths_are_not_trusted() -> None:
    raw = bytearray(encode_record(Record(3, ReqId(bytes(16)), 1, b"0123456789", 0)))
    for length in (-1, -(2**31), 2**31 - 1, 11):
        raw[28:32] = length.to_bytes(4, "big", signed=True)
        assert check_record(bytes(raw), 0, 3) == -1
        assert announced_size(bytes(raw), 0) == (length + 40 if length >= 0 else -1)
    raw[28:32] = (-5).to_bytes(4, "big", signed=True)
    with pytest.raises(ValueError, match="negative length -5"):
        decode_unverified(bytes(raw))


# ---- segments ------------------------------------------------------------------------------------


@given(st.binary(min_size=16, max_size=16), INT32, INT64, INT64)
def test_a_segment_header_survives(key: bytes, partition: int, first: int, created: int) -> None:
    header = segment.SegmentHeader(created, key, partition, first)
    raw = segment.encode_header(header)
    assert len(raw) == 128
    assert segment.decode_header(raw) == header
    assert segment.decode_header(raw[:127]) is None


def test_file_names() -> None:
    assert segment.data_name(17) == "0000000000000000017.seg"
    assert segment.index_name("0/0000000000000000017.seg") == "0/0000000000000000017.idx"
    assert segment.id_of_name("0000000000000000017.seg") == 17
    assert segment.id_of_name("17.seg") is None
    assert segment.id_of_name("000000000000000001x.seg") is None


def records_behind(bad: bytes, count: int = 3) -> bytes:
    return bad + b"".join(encode_record(Record(11 + at, ReqId(bytes(16)), 1, b"x" * 30, 0)) for at in range(count))


def test_the_next_good_record_is_found_by_the_length_of_the_bad_one() -> None:
    bad = bytearray(encode_record(Record(10, ReqId(bytes(16)), 1, b"y" * 30, 0)))
    bad[50] ^= 1
    assert segment.resync(records_behind(bytes(bad)), 0, 10) == (70, 11)


def test_the_next_good_record_is_found_by_its_id() -> None:
    bad = bytearray(encode_record(Record(10, ReqId(bytes(16)), 1, b"y" * 30, 0)))
    bad[31] ^= 1
    raw = bytearray(records_behind(bytes(bad)))
    assert segment.resync(bytes(raw), 0, 10) == (70, 11)
    raw[71] ^= 1  # the second one is bad too
    assert segment.resync(bytes(raw), 0, 10) == (140, 12)


def test_nothing_good_behind_a_bad_record() -> None:
    decoys = b"".join((11).to_bytes(8) for _ in range(40))
    assert segment.resync(b"\xff" * 60 + decoys, 0, 10) is None
    assert segment.resync(b"", 0, 10) is None


def test_a_sector_never_written_is_told_from_rot() -> None:
    whole = b"\1" * 2000
    assert not segment.holds_lost_sector(whole, 2000, 100)
    lost = whole[:412] + bytes(512) + whole[924:]  # sector 1 of a buffer that begins at byte 100
    assert segment.holds_lost_sector(lost, 600, 100)
    assert not segment.holds_lost_sector(lost, 400, 100)
    assert not segment.holds_lost_sector(b"\1" * 409 + bytes(3) + b"\1" * 500, 900, 100)


def test_a_record_that_lacks_nothing_was_whole_once() -> None:
    one = encode_record(some(300, 1, size=700)[0])
    bad = bytearray(one)
    bad[500] ^= 1
    assert not segment.may_be_torn(bytes(bad), 100, 300)
    assert segment.may_be_torn(one[:39], 100, 300)
    assert segment.may_be_torn(one[:-1], 100, 300)
    for base in range(100, 612):  # its end alone in the last sector, its id alone in the first: wherever borders fall
        border = -base % segment.SECTOR
        lost = one[:border] + bytes(min(segment.SECTOR, len(one) - border)) + one[border + segment.SECTOR :]
        assert segment.may_be_torn(lost, base, 300)
        head = bytes(border) + one[border:]
        assert segment.may_be_torn(head, base, 300) == (border > 6), "two bytes of the id are no zeros"
    longer = one[:28] + (5000).to_bytes(4) + one[32:]
    assert not segment.may_be_torn(longer, 100, 300)


# ---- index ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_index_entries_survive(offsets: list[int]) -> None:
    raw = index.encode_entries(offsets)
    assert len(raw) == 8 * len(offsets)
    assert list(index.decode_entries(raw + b"\1\2\3")) == offsets
    assert index.entry_place(2) == 144


def test_what_an_index_may_hold() -> None:
    assert index.plausible(array("Q", [128, 168, 300]), 340)
    assert not index.plausible(array("Q", [128, 167]), 1000)
    assert not index.plausible(array("Q", [100]), 1000)
    assert not index.plausible(array("Q", [128, 300]), 339)
    assert index.plausible(array("Q"), 128)


# ---- control file --------------------------------------------------------------------------------

STRUCTS = st.builds(control.ControlStruct, INT64, INT64, INT64, INT32, INT32)


@given(STRUCTS, st.integers(0, 35), st.integers(0, 7))
def test_a_control_struct_survives_or_is_noticed(struct: control.ControlStruct, at: int, bit: int) -> None:
    raw = bytearray(control.encode_struct(struct))
    assert control.decode_struct(bytes(raw)) == struct
    raw[at] ^= 1 << bit
    assert control.decode_struct(bytes(raw)) is None
    assert control.decode_struct(bytes(raw[:35])) is None


def test_the_checksums_of_fresh_structs_are_those_of_the_original() -> None:
    assert control.encode_struct(control.fresh_struct(-1))[32:].hex() == "58d1a22d"
    assert control.encode_struct(control.fresh_struct(0))[32:].hex() == "866a82ce"


def test_the_newer_struct_counts() -> None:
    old, new = control.fresh_struct(3), control.fresh_struct(4)
    for structs in ((old, new), (new, old), (None, new), (new, None)):
        entry = control.choose(0, structs)
        assert isinstance(entry, control.ControlEntry)
        assert entry.current == new
    assert control.choose(0, (None, None)) is control.ControlDamage.BOTH_INVALID
    assert control.choose(0, (new, new)) is control.ControlDamage.SAME_SEQUENCE


def test_sequence_numbers_wrap() -> None:
    entry = control.choose(0, (control.fresh_struct(2**31 - 1), None))
    assert isinstance(entry, control.ControlEntry)
    following = entry.plan(1, 2, 3, 5)
    assert following.sequence == -(2**31)
    chosen = control.choose(0, (entry.current, following))
    assert isinstance(chosen, control.ControlEntry)
    assert chosen.current.sequence == -(2**31)


def test_updates_alternate_between_the_structs() -> None:
    body = bytearray(128) + control.fresh_body(2)
    entry = control.decode_entry(bytes(body[128:]), 1)
    assert isinstance(entry, control.ControlEntry)
    places = set()
    for session in range(1, 5):
        struct = entry.plan(session, session, session, 5)
        place = entry.place()
        places.add(place)
        body[place : place + 36] = control.encode_struct(struct)
        entry.adopt(struct)
        again = control.decode_entry(bytes(body[128:]), 1)
        assert isinstance(again, control.ControlEntry)
        assert (again.current, again.place()) == (struct, entry.place())
    assert places == {control.struct_place(1, 0), control.struct_place(1, 1)}


def test_every_prefix_of_a_reset_is_a_valid_state() -> None:
    entry = control.choose(0, (control.fresh_struct(6), control.ControlStruct(9, 8, 7, 5, 7)))
    assert isinstance(entry, control.ControlEntry)
    body = bytearray(128) + control.fresh_body(1)
    for struct, slot in ((control.fresh_struct(6), 0), (entry.current, 1)):
        place = control.struct_place(0, slot)
        body[place : place + 36] = control.encode_struct(struct)
    seen = []
    for place, data in ((0, b""), *entry.reset_writes()):
        body[place : place + len(data)] = data
        state = control.decode_entry(bytes(body[128:]), 0)
        assert isinstance(state, control.ControlEntry)
        seen.append(state.current.session_id)
    assert seen == [9, 9, -1]


# ---- side files ----------------------------------------------------------------------------------

BELONGS = side.Belongs(4, 9, 12)


@given(INT64, st.none() | STRUCTS)
def test_a_fence_survives(session: int, struct: control.ControlStruct | None) -> None:
    belongs = BELONGS if struct is None else side.Belongs(struct.sequence, struct.session_id, 12)
    raw = side.encode_fence(side.Fence(session, struct), belongs, 3)
    assert side.decode_fence(side.newest_slot(raw)) == side.Fence(session, struct)


def test_a_damaged_slot_leaves_the_other() -> None:
    raw = bytearray(2 * side.SLOT_SIZE)
    for counter in (5, 6):
        slot = side.encode_mark(counter * 100, BELONGS, counter)
        place = side.slot_place(counter)
        raw[place : place + len(slot)] = slot
    assert side.decode_mark(side.newest_slot(bytes(raw)), BELONGS) == 600
    raw[side.slot_place(6) + 20] ^= 4
    assert side.decode_mark(side.newest_slot(bytes(raw)), BELONGS) == 500
    raw[side.slot_place(5) + 3] ^= 4
    assert side.newest_slot(bytes(raw)) is None
    assert side.newest_slot(b"") is None
    assert side.decode_fence(None) is None


def test_a_mark_written_beside_other_files_does_not_count() -> None:
    slot = side.newest_slot(side.encode_mark(77, BELONGS, 1))
    assert side.decode_mark(slot, BELONGS) == 77
    for other in (side.Belongs(5, 9, 12), side.Belongs(4, 8, 12), side.Belongs(4, 9, 13)):
        assert side.decode_mark(slot, other) is None
    assert side.decode_fence(slot) is None


@given(st.sets(st.integers(0, 5000), max_size=700))
def test_faults_survive_as_ranges(faults: set[int]) -> None:
    ranges = side.decode_faults(side.newest_slot(side.encode_faults(faults, BELONGS, 1)))
    assert len(ranges) <= side.RANGES_MAX
    assert faults <= {one for a, b in ranges for one in range(a, b + 1)}
    if len(side.ranges_of(faults)) <= side.RANGES_MAX:
        assert ranges == side.ranges_of(faults)
    assert side.decode_faults(None) == []


def test_of_many_faults_the_widest_gaps_stay() -> None:
    """10,000 ranges, of which each thousandth is followed by a wide gap: one pass, however many there are."""
    ids, at = set(), 0
    for number in range(10_000):
        ids.add(at)
        at += 1_000_000 if number % 1000 == 999 else 2
    ranges = side.decode_faults(side.newest_slot(side.encode_faults(ids, BELONGS, 1)))
    assert len(ranges) == side.RANGES_MAX
    assert all(any(a <= each <= b for a, b in ranges) for each in ids)
    assert max(b - a for a, b in ranges) < 2000, "no wide gap is covered"


def test_the_slot_of_another_side_file_names_no_faults() -> None:
    slot = side.newest_slot(side.encode_fence(side.Fence(5, None), side.Belongs(1, 5, 0), 1))
    assert slot is not None
    assert side.decode_faults(slot) == []
