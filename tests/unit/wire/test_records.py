"""Runs of records: equal to the records they stand for, and passed on as their bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.wire.primitives import Negative, checksum_of
from waltz_core.wire.records import RecordRun, record_list

SIZES = [0, 3, 200, 1]


def record(transaction_id: int, size: int) -> Record:
    data = bytes([transaction_id]) * size
    return Record(transaction_id, ReqId(bytes(range(16))), -transaction_id, data, checksum_of(data))


RECORDS = tuple(record(number, size) for number, size in enumerate(SIZES, start=7))


def run_of(records: tuple[Record, ...]) -> RecordRun:
    field, out = record_list(Negative.REFUSED), bytearray(b"?")
    field.write(out, records)
    run, stop = field.read(bytes(out), 1, len(out))
    assert stop == len(out)
    assert isinstance(run, RecordRun)
    return run


def test_a_run_stands_for_its_records() -> None:
    run = run_of(RECORDS)
    assert run == RECORDS
    assert list(run) == list(RECORDS)
    assert (len(run), run[0], run[-1]) == (4, RECORDS[0], RECORDS[-1])
    assert hash(run) == hash(RECORDS)
    assert repr(run) == repr(RECORDS)
    assert run != RECORDS[:3]
    with pytest.raises(IndexError):
        run[4]


@pytest.mark.parametrize("part", [slice(0, 4), slice(1, 3), slice(2), slice(3, None), slice(3, 1), slice(0, 0)])
def test_a_part_of_a_run_is_a_run(part: slice) -> None:
    run = run_of(RECORDS)[part]
    assert run == RECORDS[part]
    assert run.encoded == run_of(RECORDS[part]).encoded
    assert run.payloads(len(run)) == [each.data for each in RECORDS[part]]


def test_a_run_is_written_as_the_bytes_it_came_in() -> None:
    run, again, once = run_of(RECORDS), bytearray(), bytearray()
    record_list(Negative.REFUSED).write(again, run)
    record_list(Negative.REFUSED).write(once, RECORDS)
    assert again == once


def test_a_run_is_sound_up_to_the_first_record_with_another_id_or_a_wrong_checksum() -> None:
    assert run_of(RECORDS).sound(7) == 4
    assert run_of(RECORDS).sound(8) == 0
    assert run_of((RECORDS[0], RECORDS[2])).sound(7) == 1
    wrong = Record(9, RECORDS[2].req_id, 0, b"other", 0)
    assert run_of((*RECORDS[:2], wrong, RECORDS[3])).sound(7) == 2


@pytest.mark.parametrize(
    ("size_max", "count"), [(0, 1), (40, 1), (82, 1), (83, 2), (322, 2), (323, 3), (363, 3), (364, 4), (9999, 4)]
)
def test_what_fits_counts_every_record_with_its_overhead_and_takes_the_first_in_any_case(
    size_max: int, count: int
) -> None:
    assert run_of(RECORDS).fitting(size_max, 40) == count
    assert run_of(RECORDS).size(40) == 364
    assert run_of(())[:].fitting(size_max, 40) == 0


@pytest.mark.parametrize("size_max", [0, 35, 36, 39, 75, 100, 236, 240, 10_000])
def test_pieces_are_all_of_a_run_but_what_is_too_large(size_max: int) -> None:
    pieces = list(run_of(RECORDS).pieces(size_max, 36))
    assert all(piece.size(36) <= size_max for _, piece in pieces)
    assert [one for _, piece in pieces for one in piece] == [one for one in RECORDS if len(one.data) + 36 <= size_max]
    assert all(piece == RECORDS[first : first + len(piece)] for first, piece in pieces)
    joinable = pairwise(pieces)
    assert all(a + len(one) < b or one.size(36) + other[:1].size(36) > size_max for (a, one), (b, other) in joinable)


def test_runs_that_are_joined_are_cut_when_somebody_asks() -> None:
    run = RecordRun.joined([run_of(RECORDS[:1]), run_of(RECORDS[1:3]), run_of(RECORDS[3:])])
    assert (len(run), run.size(36)) == (4, run_of(RECORDS).size(36))
    assert run == RECORDS
    assert [run.payload(at) for at in range(4)] == [(one.data, one.checksum) for one in RECORDS]
    assert run[1:3] == RECORDS[1:3]
    assert run.sound(7) == 4
