"""What the process beside a server answers, of real files: written, read back, compared as they are now."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import attrs
import pyarrow.parquet as pq
import pytest

from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record
from waltz_core.server import archive_calls as calls
from waltz_core.server.archive_frames import FrameReader, encode_message
from waltz_core.wire.primitives import checksum_of
from waltz_spark.archive import agent
from waltz_spark.archive.agent import ArchiveReader, ArchiveWriter, Manifest
from waltz_spark.base.errors import ArchiveError
from waltz_spark.base.objects import open_store
from waltz_trio.base import durable

COUNT = 20


def log(first: int, end: int, *, other: int = -1) -> Sequence[Record]:
    """Records as they come from a server."""
    records = []
    for at in range(first, end):
        data = b"%d" % at * 9 if at != other else b"other"
        records.append(Record(at, make_req_id(3, 1, 0, at), at, data, checksum_of(data)))
    question = calls.ArchiveTake(1, 0, first, first, records)
    (decoded,) = FrameReader().receive(encode_message(question))
    assert isinstance(decoded, calls.ArchiveTake)
    return decoded.records


class Desk:
    """Both threads' work, on one store."""

    def __init__(self, directory: Path) -> None:
        store = open_store(str(directory))
        known = Manifest(store)
        self.writing, self.reading = ArchiveWriter(store, known), ArchiveReader(known, store.root)

    def fill(self) -> None:
        ask: list[calls.ArchiveAsk] = [
            calls.ArchiveLook(1, 0, bytes(16), 1, 10, 0),
            calls.ArchiveTake(2, 0, 0, 0, log(0, 4)),
            calls.ArchiveTake(3, 0, 0, 4, log(4, 10)),
            calls.ArchiveCommit(4, 0, 0, 10),
            calls.ArchiveTake(5, 0, 10, 10, log(10, COUNT)),
            calls.ArchiveCommit(6, 0, 10, COUNT),
        ]
        assert [self.writing.answer(question) for question in ask] == [
            calls.ArchiveHolds(1, 0, 0, 10),
            calls.ArchiveTaken(2),
            calls.ArchiveTaken(3),
            calls.ArchiveHolds(4, 0, 10, 10),
            calls.ArchiveTaken(5),
            calls.ArchiveHolds(6, 0, COUNT, 10),
        ]

    def compare(self, first: int, end: int, *, anew: bool = True, other: int = -1) -> None:
        question = calls.ArchiveCompare(7, 0, first, log(first, end, other=other), anew)
        assert self.writing.answer(question) == calls.ArchiveEqual(7)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.fill()
    return desk


def test_what_was_written_is_read_from_anywhere_to_the_end_of_its_file(desk: Desk) -> None:
    for first, count, end in ((0, 3, 3), (3, 100, 10), (10, 2, 12), (5, 1, 6), (12, 100, COUNT)):
        answer = desk.reading.answer(calls.ArchiveRead(8, 0, first, count))
        assert isinstance(answer, calls.ArchiveData)
        assert list(answer.records) == list(log(first, end))
    with pytest.raises(ArchiveError, match="transaction 20 of partition 0 is in no file"):
        desk.reading.answer(calls.ArchiveRead(8, 0, COUNT, 1))


def test_readers_who_take_turns_get_each_what_they_ask_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three records, of which the last one alone is kept: files go on where somebody has read before."""
    monkeypatch.setattr(agent, "_SHAPE", attrs.evolve(agent._SHAPE, rows_max=3))
    monkeypatch.setattr(agent, "_KEPT_MAX", 1)
    for first in (0, 3, 12, 6, 0, 3, 15, 0, 9, 18):
        answer = desk.reading.answer(calls.ArchiveRead(9, 0, first, 2))
        assert isinstance(answer, calls.ArchiveData)
        assert list(answer.records) == list(log(first, first + len(answer.records)))
        assert len(answer.records) > 0


def test_a_comparison_goes_through_files_in_pieces_and_finds_the_one_record_that_differs(desk: Desk) -> None:
    desk.compare(0, 7)
    desk.compare(7, 13, anew=False)
    desk.compare(13, COUNT, anew=False)
    desk.compare(4, 15)
    for other in (3, 9, 10, 12):
        with pytest.raises(ArchiveError, match="other records than the log"):
            desk.compare(3, 13, other=other)


def test_what_an_earlier_comparison_has_read_frees_nothing_when_the_file_is_gone(tmp_path: Path, desk: Desk) -> None:
    desk.compare(0, 13)
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(Exception, match="No such file"):
        desk.compare(13, 15)


def test_files_of_partitions_that_the_server_lost_make_room(tmp_path: Path) -> None:
    """There was a file in the making of each partition that it had ever begun one of, with up to 64 MB in memory."""
    desk = Desk(tmp_path)
    for partition in range(10):
        desk.writing.answer(calls.ArchiveTake(1, partition, 0, 0, log(0, 3)))
        desk.writing.answer(calls.ArchiveTake(2, 0, 0, 3 + 2 * partition, log(3 + 2 * partition, 5 + 2 * partition)))
    scratch = [path.parent.name for path in tmp_path.rglob(".*")]
    assert sorted(scratch) == ["partition=0", "partition=7", "partition=8", "partition=9"]
    with pytest.raises(ArchiveError, match="expected a file of 0 to 2, found none"):
        desk.writing.answer(calls.ArchiveTake(3, 6, 0, 3, log(3, 4)))
    desk.fill()
    for partition in range(10):
        desk.writing._compared[partition + 1] = desk.writing._compared.get(0) or agent.Cursor(
            desk.writing._known, str(tmp_path), 0, 0
        )
    desk.compare(0, 5)
    assert list(desk.writing._compared) == [8, 9, 10, 0], "an open file each"


def test_a_file_that_does_not_go_on_where_the_last_piece_ended_is_given_up(tmp_path: Path, desk: Desk) -> None:
    desk.writing.answer(calls.ArchiveTake(9, 0, COUNT, COUNT, log(COUNT, 25)))
    with pytest.raises(ArchiveError, match="expected a file of 20 to 26, found 20 to 24"):
        desk.writing.answer(calls.ArchiveTake(9, 0, COUNT, 27, log(27, 28)))
    with pytest.raises(ArchiveError, match="found none"):
        desk.writing.answer(calls.ArchiveCommit(9, 0, COUNT, 25))
    assert [path.name for path in tmp_path.rglob("*") if "tmp" in path.name or "scratch" in path.name] == []


@pytest.mark.parametrize("at", ["rows", "end"])
def test_a_full_disk_leaves_no_file_in_the_making(
    tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Each attempt of the server made one more, until nothing else had room on that disk."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = sorted(tmp_path.rglob("*"))
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        desk.writing.answer(calls.ArchiveTake(9, 0, COUNT, COUNT, log(COUNT, 25)))
        with monkeypatch.context() as patch:
            patch.setattr(pq.ParquetWriter, "write_table" if at == "rows" else "close", full)
            with pytest.raises(OSError, match="No space left"):
                desk.writing.answer(calls.ArchiveCommit(9, 0, COUNT, 25))
    assert sorted(tmp_path.rglob("*")) == before
    assert len(os.listdir("/proc/self/fd")) == opened
    desk.writing.answer(calls.ArchiveTake(9, 0, COUNT, COUNT, log(COUNT, 25)))
    assert isinstance(desk.writing.answer(calls.ArchiveLook(9, 0, bytes(16), 1, 10, 0)), calls.ArchiveHolds)
    with monkeypatch.context() as patch:
        desk.writing.answer(calls.ArchiveTake(9, 0, COUNT, COUNT, log(COUNT, 25)))
        patch.setattr(pq.ParquetWriter, "write_table", full)
        assert isinstance(desk.writing.answer(calls.ArchiveLook(9, 0, bytes(16), 1, 10, 0)), calls.ArchiveHolds)
        patch.setattr(pq.ParquetWriter, "__init__", full)
        with pytest.raises(OSError, match="No space left"):
            desk.writing.answer(calls.ArchiveTake(9, 0, COUNT, COUNT, log(COUNT, 25)))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("step", ["write_all", "sync_data"])
def test_a_small_file_that_has_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = open_store(str(tmp_path))
    assert store.put_if_absent("there/0", b"first")
    monkeypatch.setattr(durable, step, full)
    with pytest.raises(OSError, match="No space left"):
        store.put_if_absent("there/1", b"second")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["0"]


def test_of_two_servers_that_write_the_same_records_none_adds_them_twice(tmp_path: Path, desk: Desk) -> None:
    other = Desk(tmp_path)
    for each in (desk, other):
        assert isinstance(each.writing.answer(calls.ArchiveLook(1, 0, bytes(16), 1, 10, 0)), calls.ArchiveHolds)
        each.writing.answer(calls.ArchiveTake(2, 0, COUNT, COUNT, log(COUNT, 25)))
    assert desk.writing.answer(calls.ArchiveCommit(3, 0, COUNT, 25)) == calls.ArchiveHolds(3, 0, 25, 10)
    assert other.writing.answer(calls.ArchiveCommit(3, 0, COUNT, 25)) == calls.ArchiveHolds(
        3, 0, 25, 10
    )  # it is the same
    other.writing.answer(calls.ArchiveTake(4, 0, COUNT, COUNT, log(COUNT, 24)))
    with pytest.raises(ArchiveError, match=r"goes on at id 25, but .* starts at 20"):
        other.writing.answer(calls.ArchiveCommit(5, 0, COUNT, 24))
    assert desk.writing.answer(calls.ArchiveLook(6, 0, bytes(16), 1, 10, 0)) == calls.ArchiveHolds(6, 0, 25, 10)


def test_the_archive_of_another_cluster_is_refused(desk: Desk) -> None:
    for key, partitions in ((bytes(15) + b"x", 1), (bytes(16), 2)):
        with pytest.raises(ArchiveError, match="archive of another cluster"):
            desk.writing.answer(calls.ArchiveLook(9, 0, key, partitions, 10, 0))
