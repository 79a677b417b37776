"""`waltz disk`: on the directories that 0.13.2 left, on damaged ones, and never writing."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record
from waltz_core.storage import control, index
from waltz_core.storage.record_codec import encode_record
from waltz_core.storage.segment import HEADER_SIZE, SegmentHeader, data_name, encode_header, index_name
from waltz_core.storage.walk import Row, Tail, record_at, walk
from waltz_trio.cli.disk import hex_dump
from waltz_trio.cli.main import main

KEY = UUID(int=77).bytes
Run = Callable[..., tuple[int, str, str]]


def one(number: int, data: bytes | None = None) -> Record:
    text = b'{"n": %d}' % number if data is None else data
    return Record(number, make_req_id(3, 1, 0, number), number % 5, text, 9)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Transactions 0..9 of partition 0, the local low-water mark at 6."""
    return make(tmp_path, [one(number) for number in range(10)], mark=6)


def make(directory: Path, records: list[Record], mark: int) -> Path:
    folder = directory / "0"
    folder.mkdir()
    header = encode_header(SegmentHeader(1_600_000_000_000, KEY, 0, 0))
    parts = [encode_record(record) for record in records]
    offsets, at = [], HEADER_SIZE
    for part in parts:
        offsets.append(at)
        at += len(part)
    path = folder / data_name(0)
    path.write_bytes(header + b"".join(parts))
    (folder / index_name(path.name)).write_bytes(header + index.encode_entries(offsets))
    body = bytearray(control.fresh_body(2))
    struct = control.encode_struct(control.ControlStruct(4, mark, mark, control.AVAILABLE | control.ASSIGNED, 7))
    place = control.struct_place(0, 0) - control.HEADER_SIZE
    body[place : place + len(struct)] = struct
    head = control.encode_header(control.ControlHeader(1_600_000_000_000, KEY, 2))
    (directory / control.NAME).write_bytes(head + body)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["disk", *map(str, words)])
        output = capsys.readouterr()
        return status, output.out, output.err

    return call


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def place_of(path: Path, number: int) -> int:
    return index.decode_entries(path.with_suffix(".idx").read_bytes()[HEADER_SIZE:])[number]


def test_a_good_segment_passes_and_nothing_is_written(segment: Path, run: Run) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in segment.parent.parent.rglob("*.*")}
    for path in before:
        os.chmod(path, 0o400)
    status, text, _ = run("verify-segment", segment)
    assert (status, text) == (0, "INDEX VERIFICATION SUMMARY: all check pass! (10 transactions)\n")
    assert run("verify-segment", segment, "-t", "3")[0] == 0
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before


@pytest.mark.parametrize("number", [2, 9])
def test_a_flipped_bit_is_found_above_and_below_the_mark_and_nothing_is_cut(
    segment: Path, run: Run, number: int
) -> None:
    """0.13.2 cuts the segment it is asked to verify, and says that all is well (tools-T2)."""
    flip(segment, place_of(segment, number) + 40)
    size = segment.stat().st_size
    status, text, _ = run("verify-segment", segment, "--json")
    found = json.loads(text)
    assert segment.stat().st_size == size
    assert status == 1
    assert found["failed"] == [{"transaction_id": number, "index": False, "checksum": False}]
    status, text, _ = run("verify-segment", segment)
    assert (status, text.splitlines()[-1]) == (1, "VERIFICATION SUMMARY: 1 out of 10 check failed")
    assert run("verify-segment", segment, "-t", str(number))[0] == 1
    assert run("verify-segment", segment, "-t", "3")[0] == 0


def test_a_write_that_was_cut_short_behind_the_mark_is_no_failure(segment: Path, run: Run) -> None:
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 3)
    status, text, _ = run("verify-segment", segment, "--json")
    found = json.loads(text)
    assert (status, found["tail"]["transaction_id"], found["lost"]) == (0, 9, False)


def test_a_segment_that_ends_below_the_mark_fails(segment: Path, run: Run) -> None:
    data = segment.read_bytes()
    segment.write_bytes(data[: place_of(segment, 5) + 10])
    status, text, _ = run("verify-segment", segment)
    assert status == 1
    assert "the control file says that transactions up to 6 were there" in text


def test_an_index_that_leads_astray_fails_and_one_that_is_gone_below_the_mark(segment: Path, run: Run) -> None:
    path = segment.with_suffix(".idx")
    flip(path, index.entry_place(4) + 7)
    status, text, _ = run("verify-segment", segment, "--json")
    assert status == 1
    assert json.loads(text)["failed"] == [{"transaction_id": 4, "index": False, "checksum": True}]
    path.unlink()
    assert [row["transaction_id"] for row in json.loads(run("verify-segment", segment, "--json")[1])["failed"]] == [
        *range(7)
    ]


def test_statistics_and_dumps(segment: Path, run: Run) -> None:
    status, text, _ = run("segment-statistic", segment, "--json")
    assert (status, json.loads(text)["rows"], json.loads(text)["max_bytes"]) == (0, 10, 8)
    assert "NUMBER OF ROWS" in run("segment-statistic", segment)[1]
    status, text, _ = run("dump-segment", segment, "-m", "-r", "-t", "3")
    assert status == 0
    assert str(UUID(bytes=KEY)) in text
    assert "ReqId(c:3,g:1,p:0,s:3)" in text
    assert '00000000: 7b22 6e22 3a20 337d                      {"n": 3}' in text
    assert '"n": 9' in run("dump-segment", segment, "-r", "-d", "json")[1]
    found = json.loads(run("dump-segment", segment, "-m", "-r", "-t", "3", "--json")[1])
    assert found["header"]["key"] == str(UUID(bytes=KEY))
    assert [(one["transaction_id"], one["data"]) for one in found["records"]] == [(3, b'{"n": 3}'.hex())]
    assert run("dump-segment", segment, "-r", "-t", "77")[2] == "Error: record not found for transaction id 77\n"
    assert run("dump-segment", segment)[2] == "Error: Must specify at least one of 'metadata' or 'record'\n"
    assert "classes of Java" in run("dump-segment", segment, "-r", "-d", "com.example.Thing")[2]


def test_a_payload_cannot_speak_to_the_terminal(tmp_path: Path, run: Run) -> None:
    path = make(tmp_path, [one(0, b"\x1b[2Jgone\n")], mark=0)
    for words in ((), ("-d", "text")):
        assert "\x1b" not in run("dump-segment", path, "-r", *words)[1]
    assert hex_dump(b"\x1b[2J" * 5).splitlines()[1] == "00000010: 1b5b 324a                                .[2J"


def test_the_control_file(segment: Path, run: Run) -> None:
    path = segment.parent.parent / control.NAME
    status, text, _ = run("dump-control-file", path)
    assert status == 0
    assert text.startswith(f"Control File Key: {UUID(bytes=KEY)}\n")
    found = json.loads(run("dump-control-file", path, "-a", "--json")[1])["partitions"]
    assert [(row["partition"], row["session_id"], row["available"]) for row in found] == [(0, 4, True)]
    assert "Invalid partition id" in run("dump-control-file", path, "-p", "2")[2]
    assert "Control file should be named" in run("dump-control-file", segment)[2]
    flip(path, control.struct_place(1, 0))
    flip(path, control.struct_place(1, 1))
    status, text, _ = run("dump-control-file", path)
    assert (status, "partition info corrupted" in text) == (1, True)
    path.write_bytes(path.read_bytes()[:200])
    assert "the file is torn" in run("dump-control-file", path)[2]


@pytest.mark.parametrize(
    "words", [("verify-segment", "/no/such/0000000000000000000.seg"), ("verify-segment", "/x.txt")]
)
def test_what_is_no_segment_is_refused(run: Run, words: tuple[str, ...]) -> None:
    status, _, text = run(*words)
    assert status == 1
    assert text.startswith("Error: ")


@given(
    st.lists(st.binary(max_size=30), min_size=1, max_size=12),
    st.integers(0, 600),
    st.integers(0, 600),
    st.integers(0, 12),
)
def test_the_walk_shows_every_record_as_it_is_or_as_damaged(
    payloads: list[bytes], cut: int, damage: int, indexed: int
) -> None:
    records = [one(number, data) for number, data in enumerate(payloads)]
    parts = [encode_record(record) for record in records]
    places, at = array("Q"), HEADER_SIZE
    for part in parts:
        places.append(at)
        at += len(part)
    data = bytearray(encode_header(SegmentHeader(1, KEY, 0, 0)) + b"".join(parts))
    if HEADER_SIZE <= damage < len(data):
        data[damage] ^= 0x40
    data = data[: max(HEADER_SIZE, len(data) - cut)]
    seen = -1
    for row in walk(bytes(data), 0, places[:indexed]):
        if isinstance(row, Tail):
            assert row.place + row.size == len(data)
            continue
        assert row.transaction_id == seen + 1
        seen = row.transaction_id
        if row.place is not None:
            assert row.place == places[seen]
            assert record_at(bytes(data), row) == records[seen]
            assert row.index_right == (seen < indexed)
        else:
            assert isinstance(row, Row)
            assert places[seen] <= damage < places[seen] + len(parts[seen])
