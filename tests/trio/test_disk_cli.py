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

from tests.storage_desk import DATA, Desk, desk, filled, flush_marks, mark, reopen, replica, some
from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record
from waltz_core.storage import control, index, side
from waltz_core.storage.effects import FileEntry
from waltz_core.storage.judging import Surroundings, held_throughout
from waltz_core.storage.record_codec import encode_record
from waltz_core.storage.replica import State
from waltz_core.storage.segment import HEADER_SIZE, SegmentHeader, data_name, encode_header, index_name
from waltz_core.storage.walk import Row, Tail, record_at, walk
from waltz_testing.simulation.disk import SimDisk
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


def test_a_wrong_call_prints_nothing_of_a_file(segment: Path, run: Run) -> None:
    """It ended with 1, some behind a header that was printed already."""
    control_file = segment.parent.parent / control.NAME
    calls = {
        ("dump-segment", segment): "Must specify at least one of 'metadata' or 'record'",
        ("dump-segment", segment, "-m", "-d", "com.example.Thing"): "classes of Java",
        ("dump-segment", segment, "-m", "-r", "-t", "x"): 'For input string: "x"',
        ("dump-control-file", control_file, "-p", "0", "-a"): "'assigned' is supported only if",
        ("dump-control-file", control_file, "-p", "x"): 'For input string: "x"',
    }
    for words, problem in calls.items():
        status, out, err = run(*words)
        assert (status, out) == (2, ""), words
        assert problem in err


def test_a_payload_that_is_nested_too_deeply_is_said_to_be(tmp_path: Path, run: Run) -> None:
    path = make(tmp_path, [one(0, b"[" * 200_000), one(1, b"{}")], mark=1)
    status, text, _ = run("dump-segment", path, "-r", "-d", "json", "--json")
    assert status == 0
    assert [row["data"] for row in json.loads(text)["records"]] == ["(not shown as json: nested too deeply)", "{}"]


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


# ---- what a node would say -------------------------------------------------------------------


NEWEST, SEALED = "0000000000000000008.seg", "0000000000000000004.seg"


@pytest.fixture
def node() -> Desk:
    """A node that has stopped: transactions 0..11 in three files, its marks at 5 and 11."""
    made = filled()
    mark(made, 5)
    flush_marks(made)
    return made


def lay_out(disk: SimDisk, directory: Path) -> Path:
    """The directory of a simulated node as a real one."""
    for name, data in disk.files().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory / "0"


def cut(name: str, size: int) -> Callable[[SimDisk], None]:
    """Take bytes from the end of a file, or leave so many if the number is positive."""

    def damage(disk: SimDisk) -> None:
        data = disk.content(f"0/{name}")
        disk.put(f"0/{name}", data[:size])

    return damage


def flipped(name: str, *places: int) -> Callable[[SimDisk], None]:
    def damage(disk: SimDisk) -> None:
        for place in places:
            disk.flip(f"0/{name}", place)

    return damage


def gone(*names: str) -> Callable[[SimDisk], None]:
    def damage(disk: SimDisk) -> None:
        for name in names:
            disk.remove(name)

    return damage


LIMBO = {
    "the newest one cut at a border of records": (NEWEST, cut(NEWEST, -100), "the log ends at transaction 10, but 11"),
    "cut below the mark of the control file": (NEWEST, cut(NEWEST, HEADER_SIZE), "the log ends at transaction 7"),
    "torn below what was synced": (NEWEST, cut(NEWEST, -7), "waltz.mark says that transactions up to 11 were there"),
    "of another cluster": (NEWEST, flipped(NEWEST, 14), f"{NEWEST}: cluster key in the header, at offset 12: expected"),
    "of another partition": (
        NEWEST,
        flipped(NEWEST, 31),
        f"{NEWEST}: partition in the header, at offset 28",
    ),
    "of other transactions": (
        NEWEST,
        flipped(NEWEST, 39),
        f"{NEWEST}: first transaction id in the header",
    ),
    "a sealed one of another cluster": (SEALED, flipped(SEALED, 14), "cluster key in the header"),
    "a sealed one cut at a border": (SEALED, cut(SEALED, -100), "transactions 7..7 are missing"),
    "a sealed one torn": (SEALED, cut(SEALED, -7), "and the next segment begins with transaction 8"),
    "the next one is gone": ("0000000000000000000.seg", gone(f"0/{SEALED}"), "transactions 4..7 are missing"),
    "the newest one is gone": (SEALED, gone(f"0/{NEWEST}"), "0000000000000000008.seg is gone"),
    "the first one is gone": (SEALED, gone(f"0/{DATA[2:]}"), "transactions 0..3 are missing"),
}


@pytest.mark.parametrize("case", LIMBO)
def test_what_puts_a_node_in_limbo_fails(node: Desk, tmp_path: Path, run: Run, case: str) -> None:
    name, damage, expected = LIMBO[case]
    folder = lay_out(node.disk, tmp_path / "good")
    assert run("verify-segment", folder / name)[:2] == (
        0,
        "INDEX VERIFICATION SUMMARY: all check pass! (4 transactions)\n",
    )
    damage(node.disk)
    folder = lay_out(node.disk, tmp_path / "damaged")
    assert replica(reopen(node)).state is State.LIMBO
    status, text, _ = run("verify-segment", folder / name)
    assert (status, "all check pass" in text) == (1, False)
    assert expected in text
    assert run("verify-segment", folder / name, "--json")[0] == 1


def test_what_a_power_failure_may_leave_passes_as_it_does_in_a_node(node: Desk, tmp_path: Path, run: Run) -> None:
    """A write behind the marks that was cut short, or that was whole and not in the index yet."""
    record = encode_record(some(12, 1)[0])
    data = node.disk.content(f"0/{NEWEST}")
    for number, tail in enumerate((record, record[:-7])):
        disk = node.disk.clone()
        disk.put(f"0/{NEWEST}", data + tail)
        folder = lay_out(disk, tmp_path / str(number))
        status, text, _ = run("verify-segment", folder / NEWEST)
        assert status == 0, text
        assert replica(desk(disk)).state is State.OPEN
        assert ("1 of 5 transactions have no index entry" in text, "a torn write" in text) == (not number, bool(number))


def test_the_mark_counts_only_beside_the_files_that_it_was_written_for(node: Desk, tmp_path: Path, run: Run) -> None:
    """Where 0.13.2 ran in between, as the control file shows, only its mark says what must be there."""
    cut(NEWEST, -100)(node.disk)
    node.disk.put("0/waltz.mark", bytes(2 * side.SLOT_SIZE))
    cut(NEWEST[:-3] + "idx", -8)(node.disk)
    folder = lay_out(node.disk, tmp_path)
    assert run("verify-segment", folder / NEWEST)[0] == 0
    assert replica(reopen(node)).state is State.OPEN


def test_a_log_that_ends_below_the_control_file_s_mark_fails(segment: Path, run: Run) -> None:
    """Also where nothing else shows it."""
    segment.write_bytes(segment.read_bytes()[: place_of(segment, 5)])
    index_file = segment.with_suffix(".idx")
    index_file.write_bytes(index_file.read_bytes()[: index.entry_place(5)])
    status, text, _ = run("verify-segment", segment)
    assert (status, "ends at transaction 4, but the control file says that 6 was on disk" in text) == (1, True)


def test_a_copy_without_its_control_file(node: Desk, tmp_path: Path, run: Run) -> None:
    """An index that is not there, or is no index, is never good; one that is short cannot be judged."""
    folder = lay_out(node.disk, tmp_path / "whole")
    alone = tmp_path / "copy"
    alone.mkdir()
    for name in (NEWEST, NEWEST[:-3] + "idx"):
        (alone / name).write_bytes((folder / name).read_bytes())
    assert run("verify-segment", alone / NEWEST)[1] == "INDEX VERIFICATION SUMMARY: all check pass! (4 transactions)\n"
    index_file = alone / (NEWEST[:-3] + "idx")
    body = index_file.read_bytes()
    index_file.write_bytes(body[:-8])
    status, text, _ = run("verify-segment", alone / NEWEST)
    assert (status, "1 of 4 transactions have no index entry, which was not judged" in text) == (0, True)
    index_file.write_bytes(body[:20])
    status, text, _ = run("verify-segment", alone / NEWEST)
    assert (status, "header at offset 0: expected 128 bytes, found 20" in text, "pass!" in text) == (1, True, False)
    index_file.unlink()
    status, text, _ = run("verify-segment", alone / NEWEST)
    assert (status, "expected an index, found no file" in text, "pass!" in text) == (1, True, False)


def test_a_live_node_may_append_cut_and_begin_files_meanwhile() -> None:
    """What must be there was so before the file was read, and is after it."""

    def around(control_mark: int, durable: int | None, *files: str) -> Surroundings:
        present = tuple(FileEntry(name, 500) for name in files)
        return Surroundings("0", 0, KEY, control_mark, durable, side.FROM_ZERO, present)

    before, after = around(5, 11, SEALED, NEWEST), around(5, 9, SEALED)
    for found in (held_throughout(before, after), held_throughout(after, before)):
        assert (found.floor, found.firsts) == (9, [4])
    assert held_throughout(before, around(6, None, SEALED)).floor == 6
