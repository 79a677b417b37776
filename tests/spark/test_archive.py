"""Archive, verification and restore, without Spark: the same functions that executors run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import trio

import waltz_trio as waltz
from tests.spark.logs import KEY, make_log, make_records, random_payloads, write_control, write_segments, write_start
from tests.spark.test_live import admin_endpoints, append, outside
from waltz_core.base.ids import parse_endpoint
from waltz_core.storage import control
from waltz_spark.archive import freeing
from waltz_spark.archive import restore as restoring
from waltz_spark.archive.archive import (
    ArchiveReport,
    Check,
    FileTask,
    plan_archive,
    plan_verification,
    run_archive,
    run_verification,
    verify_file,
    write_file,
)
from waltz_spark.archive.freeing import Freed, plan_free
from waltz_spark.archive.restore import _Files, _tasks, restore
from waltz_spark.audit.scan import scan
from waltz_spark.base import runners
from waltz_spark.base.errors import ArchiveError, OptionError, RecordDamagedError, UnreachableError
from waltz_spark.base.objects import LocalStore, open_store
from waltz_spark.base.planning import Range, StoragePlace
from waltz_spark.base.runners import Here
from waltz_spark.read.cluster import Marks
from waltz_spark.read.inventory import Inventory
from waltz_spark.read.options import parse_options
from waltz_spark.read.ports import AdminPort
from waltz_spark.read.reading import drop_connections
from waltz_spark.records import manifest
from waltz_spark.records.manifest import ArchiveState, read_archive
from waltz_spark.spark.source import BatchReader
from waltz_trio.cli.main import main
from waltz_trio.net.tls import ClientTls, TlsSettings
from waltz_trio.node.embedded import embedded_cluster

COUNTS = (1000, 0, 350)
HERE = Here()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    make_log(tmp_path / "log", [random_payloads(count, seed=at) for at, count in enumerate(COUNTS)], threshold=9000)
    return tmp_path / "log"


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


def archive(log: Path, root: str, *, range_count: int = 300, partial: bool = True, keep_last: int = 0) -> ArchiveReport:
    options = parse_options({"directory": str(log)})
    plan = plan_archive(options, root, range_count=range_count, partial=partial, keep_last=keep_last)
    return run_archive(plan, HERE)


def files_below(directory: Path, suffix: str) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob(f"*{suffix}"))}


def problems(root: str, *directories: Path) -> list[str]:
    checks = plan_verification(root, [str(one) for one in directories])
    return [problem for verdict in run_verification(checks, HERE) for problem in verdict.problems]


# ---- there and back


def test_a_restored_log_is_the_archived_one_byte_for_byte(log: Path, root: str, tmp_path: Path) -> None:
    report = archive(log, root)
    assert (report.record_count, report.file_count) == (1350, 6)
    found = restore(root, tmp_path / "again", HERE)
    assert found.record_count == 1350
    for suffix in (".seg", ".idx"):
        ours, theirs = files_below(tmp_path / "again", suffix), files_below(log, suffix)
        empty = f"1/{0:019d}{suffix}"
        assert ours.pop(empty)[12:] == theirs.pop(empty)[12:]  # nothing tells when the segment of no record was made
        assert ours == theirs
    reader = BatchReader(parse_options({"directory": str(tmp_path / "again"), "verify": "record"}))
    assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 1350


def test_several_processes_write_the_same_archive(
    log: Path, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(log, root)
    plan = plan_archive(parse_options({"directory": str(log)}), str(tmp_path / "other"), range_count=300)
    started: list[int] = []

    def pool(*call: Any, **named: Any) -> ProcessPoolExecutor:
        started.append(1)
        return ProcessPoolExecutor(*call, **named)

    monkeypatch.setattr(runners, "ProcessPoolExecutor", pool)
    monkeypatch.setattr("waltz_spark.archive.archive._WAVE", 1)  # three waves of two
    here = Here(2)
    run_archive(plan, here)
    here.close()
    assert len(started) == 1
    assert files_below(Path(root), ".parquet") == files_below(tmp_path / "other", ".parquet")


def test_giant_and_empty_records_survive(tmp_path: Path, root: str) -> None:
    make_log(tmp_path / "log", [[b"", bytes(9_000_000), b"x", b""]])
    archive(tmp_path / "log", root)
    restore(root, tmp_path / "again", HERE)
    assert files_below(tmp_path / "again", ".seg") == files_below(tmp_path / "log", ".seg")


def test_an_archive_can_be_read_as_a_log(log: Path, root: str) -> None:
    archive(log, root)
    rows = {}
    for name, option in (("archive", {"archive": root}), ("file", {"directory": str(log)})):
        reader = BatchReader(parse_options({**option, "verify": "record", "columns": "transaction_id,length,data,seq"}))
        reader.pushFilters([])
        rows[name] = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert rows["archive"] == rows["file"]
    assert len(rows["archive"]) == 1350


class Tagged:
    """A codec: the header and the length of the data."""

    schema = pa.schema([("tag", pa.int32()), ("size", pa.int32())])

    def decode(self, data: Any, header: Any) -> list[Any]:
        return [header, pc.binary_length(data)]


@pytest.mark.parametrize("verify", ["record", "none"])
@pytest.mark.parametrize("columns", ["transaction_id,data", "data", "data,header"])
def test_a_codec_gets_the_headers_from_an_archive_that_nobody_asked_for(
    log: Path, root: str, columns: str, verify: str
) -> None:
    archive(log, root)
    rows = []
    for place in ({"archive": root}, {"directory": str(log)}):
        options = {**place, "columns": columns, "codec": f"{__name__}:Tagged", "verify": verify}
        reader = BatchReader(parse_options(options))
        rows.append([row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 1350
    assert {row["tag"] for row in rows[0]} == {-2, -1, 0, 1, 2}


def test_archive_and_live_files_make_one_log(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root, partial=False)
    for name in sorted((log / "0").glob("*"))[:4]:
        name.unlink()  # old segments, archived and freed
    write_start(log, 0, min(int(path.stem) for path in (log / "0").glob("*.seg")))
    options = {"archive": root, "directory": str(log), "origin": "true", "columns": "partition,transaction_id"}
    reader = BatchReader(parse_options(options))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert [(row["partition"], row["transaction_id"]) for row in rows] == [
        (partition, at) for partition, count in enumerate(COUNTS) for at in range(count)
    ]
    assert [row["_origin"] for row in rows] == ["archive"] * 900 + ["file"] * 100 + ["archive"] * 300 + ["file"] * 50


# ---- growing


def test_a_scan_of_an_archive_that_goes_on_behind_a_directory_has_read_all_there_is(root: str, tmp_path: Path) -> None:
    make_log(tmp_path / "long", [random_payloads(100)])
    make_log(tmp_path / "short", [random_payloads(100)[:50]])
    archive(tmp_path / "long", root)
    report = scan(parse_options({"archive": root, "directory": str(tmp_path / "short")}), HERE)
    assert (report.verdict, report.left_out, str(report.coverage)[:26]) == ("passed", 0, "100 of 100 records (100 %)")


def test_a_scan_of_a_local_archive_with_a_file_that_is_gone_or_cannot_be_read_fails(root: str, tmp_path: Path) -> None:
    """It called that unproven, as if a store had not answered."""
    make_log(tmp_path / "log", [random_payloads(100)])
    archive(tmp_path / "log", root)
    options = parse_options({"archive": root, "retries": "1"})
    assert scan(options, HERE).verdict == "passed"
    path = Path(root) / read_archive(root).files[0].path
    content = path.read_bytes()
    path.unlink()
    for way in ("gone", "a loop", "short"):
        if way == "a loop":  # as one without rights, which the user of a test may have
            path.symlink_to(path)
        elif way == "short":
            path.unlink()
            path.write_bytes(content[:-1])
        report = scan(options, HERE)
        assert report.verdict == "failed"
        assert path.name in report.partitions[0].problems[0]
        assert not report.partitions[0].unread


def test_a_later_run_adds_what_is_new_and_a_rerun_adds_nothing(log: Path, root: str, tmp_path: Path) -> None:
    assert archive(log, root, partial=False).record_count == 1200
    assert archive(log, root, partial=False).record_count == 0
    assert archive(log, root, keep_last=30).record_count == 1350 - 1200 - 60
    assert archive(log, root).record_count == 60
    state = read_archive(root)
    assert [(one.first_id, one.end_id) for one in state.files_of(0)] == [
        (0, 300),
        (300, 600),
        (600, 900),
        (900, 970),
        (970, 1000),
    ]
    restore(root, tmp_path / "again", HERE)
    assert files_below(tmp_path / "again" / "0", ".seg") == files_below(log / "0", ".seg")


def test_files_end_at_multiples_of_the_range_wherever_the_log_starts(tmp_path: Path, root: str) -> None:
    write_segments(tmp_path / "log", 0, make_records(0, [b"x"] * 500, first=130))
    write_control(tmp_path / "log", [630])
    write_start(tmp_path / "log", 0, 130)
    archive(tmp_path / "log", root)
    assert [(one.first_id, one.end_id) for one in read_archive(root).files] == [(130, 300), (300, 600), (600, 630)]
    restore(root, tmp_path / "again", HERE)
    assert files_below(tmp_path / "again", ".seg") == files_below(tmp_path / "log", ".seg")
    (segment,) = (tmp_path / "again").rglob("*.seg")
    assert main(["disk", "verify-segment", str(segment)]) == 0, "a node would say that what was freed is gone"
    assert archive(tmp_path / "again", root).record_count == 0


def test_two_archivers_of_the_same_log_agree(log: Path, root: str) -> None:
    options = parse_options({"directory": str(log)})
    plans = [plan_archive(options, root, range_count=300) for _ in range(2)]
    states = [run_archive(plan, HERE).state for plan in plans]
    assert states[0].files == states[1].files == read_archive(root).files
    assert problems(root, log) == []


def test_of_two_archivers_with_different_cuts_one_has_to_start_again(log: Path, root: str) -> None:
    options = parse_options({"directory": str(log)})
    whole, short = (plan_archive(options, root, range_count=300, keep_last=keep) for keep in (0, 10))
    run_archive(short, HERE)
    with pytest.raises(ArchiveError, match="goes on at id 990"):
        run_archive(whole, HERE)
    assert archive(log, root).record_count == 20
    assert problems(root, log) == []


@pytest.mark.parametrize("number", [0, -5, 2**63])
def test_numbers_of_ids_that_can_be_none_are_refused(log: Path, root: str, number: int) -> None:
    options = parse_options({"directory": str(log)})
    with pytest.raises(OptionError, match="range_count: expected a whole number from 1 to"):
        plan_archive(options, root, range_count=number)
    if number == 0:
        return
    with pytest.raises(OptionError, match="keep_last: expected a whole number from 0 to"):
        plan_archive(options, root, keep_last=number)
    with pytest.raises(OptionError, match="keep_local: expected a whole number from 0 to"):
        plan_free(options, root, keep_local=number)


def test_a_log_of_another_cluster_or_one_that_went_back_is_not_archived(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root)
    make_log(tmp_path / "other", [[b"x"]] * 3, key=bytes(16))
    with pytest.raises(ArchiveError, match="another cluster"):
        archive(tmp_path / "other", root)
    write_control(log, [800, 0, 350])
    with pytest.raises(ArchiveError, match="archived up to id 999, the log ends at 799"):
        archive(log, root)


def test_what_is_damaged_is_not_archived(log: Path, root: str) -> None:
    flip(log / "2" / "0000000000000000000.seg", 4000)
    with pytest.raises(RecordDamagedError, match="partition 2, "):
        archive(log, root)
    assert list(Path(root).rglob("*.parquet.*")) == []


def test_data_that_were_stored_with_a_wrong_checksum_are_named(tmp_path: Path, root: str) -> None:
    records = make_records(0, random_payloads(100))
    records[61] = attrs.evolve(records[61], checksum=records[61].checksum ^ 1)
    write_segments(tmp_path / "log", 0, records)
    write_control(tmp_path / "log", [100])
    with pytest.raises(RecordDamagedError, match=r"transaction 61, .*the checksum of the data does not match"):
        archive(tmp_path / "log", root)


# ---- verification


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_sound_archive_has_no_problem_and_equals_its_replicas(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root)
    shutil.copytree(log, tmp_path / "replica")
    checks = plan_verification(root, [str(log), str(tmp_path / "replica")])
    verdicts = run_verification(checks, HERE)
    assert [(verdict.problems, verdict.compared) for verdict in verdicts] == [((), 2)] * 6


def test_any_flipped_bit_of_an_archive_file_is_found(log: Path, root: str) -> None:
    archive(log, root)
    path = next(Path(root).rglob("*.parquet"))
    size = path.stat().st_size
    for at in range(0, size, size // 25):
        flip(path, at)
        assert len(problems(root)) >= 1, at
        flip(path, at)
    assert problems(root) == []


def test_a_replica_that_differs_is_named_with_the_ids(log: Path, root: str) -> None:
    archive(log, root)
    flip(log / "2" / "0000000000000000000.seg", 4000)
    (problem,) = problems(root, log)
    assert f"{log}: partition 2, ids 0 to 299: digest" in problem


def test_of_a_file_of_which_replicas_have_a_part_that_part_is_compared(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root)
    shutil.copytree(log, tmp_path / "replica")
    flip(tmp_path / "replica" / "0" / "0000000000000000000.seg", 4000)
    (place,) = [one for one in read_archive(root).files if (one.partition, one.first_id) == (0, 0)]
    for start in (0, 1, 150, 299):

        def ranges(directory: Path, start: int = start) -> tuple[Range, ...]:
            options = parse_options({"directory": str(directory)})
            ends = (place.end_id, 0, 0)
            inventory = Inventory(options)
            return tuple(inventory.ranges(inventory.look(), (start, 0, 0), ends))

        replicas = (("sound", ranges(log)), ("flipped", ranges(tmp_path / "replica")))
        verdict = verify_file(Check(root, place, replicas, start))
        if start < 100:
            assert verdict.compared == 1
            assert verdict.problems[0].startswith("flipped: partition 0, ")
        else:
            assert (verdict.compared, verdict.problems) == (2, ()), "what differs is in front of it"


class FreeingCluster:
    """Three replicas that have the ids 400 to 1299."""

    silent: Mapping[object, str] = MappingProxyType({})

    def marks(self, partitions: object) -> Marks:
        return Marks((1300,), (5,))

    def log_start(self, partition: int) -> int:
        return 400

    def places(self, *asked: object) -> tuple[StoragePlace, ...]:
        return tuple(StoragePlace(parse_endpoint(name), TlsSettings(), KEY, 1, 5) for name in ("a:1", "b:1", "c:1"))

    def replica_count(self, partition: int) -> int:
        return 3


@pytest.mark.parametrize(("end", "refused"), [(1000, None), (1301, "is archived up to id 1300, the log ends at 1299")])
def test_nothing_is_freed_without_a_comparison(
    monkeypatch: pytest.MonkeyPatch, root: str, end: int, refused: str | None
) -> None:
    digest = "0" * 64
    file = manifest.ArchivedFile(0, 0, 1000, manifest.file_path(0, 0, 1000), 40_000, digest, digest, 1, 1)
    more = attrs.evolve(file, first_id=1000, end_id=end)
    state = ArchiveState(root, KEY, 1, 1000, 1, (file, more)[: 1 if refused is None else 2], ())
    inventory = SimpleNamespace(
        cluster=FreeingCluster(), key=KEY, partition_count=1, partitions=(0,), close=lambda: None
    )
    monkeypatch.setattr(freeing, "Inventory", lambda options: inventory)
    monkeypatch.setattr(freeing, "read_archive", lambda root: state)
    options = parse_options({"archive": root})
    if refused is not None:
        with pytest.raises(ArchiveError, match=refused):
            plan_free(options, root)
        return
    plan = plan_free(options, root)
    assert (plan.partitions, plan.quorums) == ((Freed(0, 400, 1000),), (2,))
    (check,) = plan.checks
    assert [(name, one.start, one.end) for name, (one,) in check.replicas] == [
        (name, 400, 1000) for name in ("a:1", "b:1", "c:1")
    ]


def test_a_missing_archive_file_is_found(log: Path, root: str) -> None:
    archive(log, root)
    next(Path(root).rglob("*.parquet")).unlink()
    assert "No such file" in problems(root)[0]


def test_a_changed_manifest_breaks_the_chain(log: Path, root: str) -> None:
    archive(log, root)
    path = min(Path(root).rglob("*.json"))
    commit = json.loads(path.read_text())
    commit["files"][2]["sha256"] = "00" * 32
    path.write_text(json.dumps(commit))
    with pytest.raises(ArchiveError, match="the hash chain of partition 0 breaks at"):
        read_archive(root)


def test_archives_with_the_same_last_link_hold_the_same_records(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root)
    other = tmp_path / "log2"
    make_log(other, [random_payloads(count, seed=at) for at, count in enumerate(COUNTS)], threshold=2000)
    archive(other, str(tmp_path / "b"))
    assert read_archive(root).last_link(0) == read_archive(str(tmp_path / "b")).last_link(0)
    assert len({manifest.first_link(KEY, 0), manifest.first_link(KEY, 1), manifest.first_link(bytes(16), 0)}) == 3


# ---- manifest


def empty_state(root: str) -> ArchiveState:
    return ArchiveState(root, KEY, 2, 100, 0, (), ())


def test_a_commit_number_is_given_once(tmp_path: Path) -> None:
    store, state = open_store(str(tmp_path)), empty_state(str(tmp_path))
    assert manifest.commit(store, state, (), (), {}) is not None
    assert manifest.commit(store, state, (), (), {}) is None


def test_checkpoints_shorten_the_way_and_change_nothing(tmp_path: Path) -> None:
    store, state = open_store(str(tmp_path)), empty_state(str(tmp_path))
    link = manifest.first_link(KEY, 0)
    for at in range(205):
        digest = f"{at:064x}"
        link = manifest.next_link(link, at, at + 1, digest)
        file = manifest.ArchivedFile(0, at, at + 1, manifest.file_path(0, at, at + 1), 41, digest, link, 1, 1)
        after = manifest.commit(store, state, [file], (), {})
        assert after is not None
        state = after
    assert len(list((tmp_path / "_waltz" / "manifest").glob("checkpoint-*"))) == 2
    assert read_archive(str(tmp_path)) == state
    assert len(state.files) == 205


class Counted(tuple[Any, ...]):
    """Counts the items that are read."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.reads += len(self)
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        Counted.reads += 1
        return super().__getitem__(at)


def small_files(store: LocalStore, state: ArchiveState, ids: range, *, each: int) -> ArchiveState:
    """Commit files of partition 0 that hold one id each, so many at a time; there is nothing but their names."""
    link = state.last_link(0)
    files = []
    for at in ids:
        link = manifest.next_link(link, at, at + 1, f"{at:064x}")
        path = manifest.file_path(0, at, at + 1)
        files.append(manifest.ArchivedFile(0, at, at + 1, path, 41, f"{at:064x}", link, 1, 1))
        if len(files) == each:
            after = manifest.commit(store, state, files, (), {})
            assert after is not None
            state, files = after, []
    return state


def test_the_work_of_a_manifest_grows_with_its_files_and_no_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real_end, real_sorted = ArchiveState.end, manifest._sorted

    def end(self: ArchiveState, partition: int) -> int | None:
        asked.append(partition)
        return real_end(self, partition)

    monkeypatch.setattr(ArchiveState, "end", end)
    store = LocalStore(str(tmp_path))
    state = small_files(store, attrs.evolve(empty_state(str(tmp_path)), partition_count=1000), range(90), each=1)
    assert set(asked) == {0}, "the other partitions have nothing to do with it"
    sorted_: list[int] = []

    def counting(files: Any) -> Any:
        files = tuple(files)
        sorted_.append(len(files))
        return real_sorted(files)

    monkeypatch.setattr(manifest, "_sorted", counting)
    assert read_archive(str(tmp_path)) == state
    assert sum(sorted_) <= 4 * 90
    files = Counted(state.files)
    state = attrs.evolve(state, files=files)
    Counted.reads = 0
    for at in range(1000):
        state.files_of(at)
    assert Counted.reads == 90


def test_the_plan_of_a_read_looks_for_each_file_without_going_through_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, count = LocalStore(str(tmp_path / "archive")), 500
    small_files(store, attrs.evolve(empty_state(store.root), partition_count=1), range(count), each=count)
    make_log(tmp_path / "log", [random_payloads(count)], threshold=128)
    real = ArchiveState.files_of
    monkeypatch.setattr(ArchiveState, "files_of", lambda self, at: Counted(real(self, at)))
    for place in ({"archive": store.root}, {"directory": str(tmp_path / "log")}):
        inventory = Inventory(parse_options(place))
        look = inventory.look()
        for replica in look.replicas:
            parts = tuple(attrs.evolve(part, segments=Counted(part.segments)) for part in replica.partitions)
            look = attrs.evolve(look, replicas=(attrs.evolve(replica, partitions=parts),))
        Counted.reads = 0
        ranges = inventory.ranges(look, (0,), (count,))
        assert [(one.start, one.end) for one in ranges] == [(at, at + 1) for at in range(count)]
        assert Counted.reads <= 20 * count


def test_a_missing_commit_is_noticed(tmp_path: Path) -> None:
    store, state = open_store(str(tmp_path)), empty_state(str(tmp_path))
    for _ in range(3):
        state = manifest.commit(store, state, (), (), {}) or state
    (tmp_path / "_waltz" / "manifest" / f"{1:020d}.json").unlink()
    with pytest.raises(ArchiveError, match="a commit is missing"):
        read_archive(str(tmp_path))


def test_where_there_is_no_archive_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="holds no archive"):
        read_archive(str(tmp_path))


def test_a_file_that_stands_there_already_must_hold_the_same_records(log: Path, root: str) -> None:
    plan = plan_archive(parse_options({"directory": str(log)}), root, range_count=300)
    first, second = plan.tasks[0], plan.tasks[1]
    again = [write_file(first), write_file(first)]
    assert attrs.astuple(again[0]) == attrs.astuple(again[1])
    wrong = FileTask(root, 0, first.first_id, first.end_id, second.ranges, second.patience)
    with pytest.raises((ArchiveError, RecordDamagedError)):
        write_file(wrong)


# ---- restore


def test_nothing_is_restored_over_something(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root)
    with pytest.raises(ArchiveError, match="is not empty"):
        restore(root, log, HERE)


def test_a_log_that_begins_late_is_restored_to_files_that_a_node_takes_for_whole(
    log: Path, root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *_ = sorted((log / "0").glob("*.seg"))
    first.unlink()  # freed, and archived elsewhere
    first.with_suffix(".idx").unlink()
    write_start(log, 0, int(second.stem))
    archive(log, root)
    assert read_archive(root).files_of(0)[0].first_id == int(second.stem) > 0
    restore(root, tmp_path / "again", HERE)
    restored = sorted((tmp_path / "again").rglob("*.seg"))
    assert restored[0].name == second.name
    for path in restored:
        assert main(["disk", "verify-segment", str(path)]) == 0, capsys.readouterr().out
    assert [path.parent.name for path in (tmp_path / "again").rglob("waltz.start")] == ["0"]


def test_a_second_attempt_at_a_task_leaves_alone_what_the_first_has_written(
    log: Path, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may start a task twice, and end neither: the second attempt emptied segments that were checked already."""
    archive(log, root)
    late: list[_Files] = []

    class Twice(Here):
        def run(self, work: Any, tasks: Any) -> Any:
            if work is restoring.write_segments:
                late.append(_Files(tasks[0], tasks[0].first_id))  # the first attempt, which is slow
            results = super().run(work, tasks)
            if work is restoring.write_segments:
                late.append(_Files(tasks[0], tasks[0].first_id))  # the second one, once the first is done
                stray = Path(tasks[0].directory) / str(tasks[0].partition) / ".attempt-killed"
                stray.write_bytes(b"x")
            return results

    restore(root, tmp_path / "again", Twice())
    assert files_below(tmp_path / "again" / "0", "") == files_below(log / "0", "")
    with pytest.raises(FileNotFoundError):
        late[0].close()
    for attempt in late:
        attempt.drop()
    attempt = _Files(_tasks(read_archive(root), 0, str(tmp_path / "again"), 1 << 30, 0, [])[0], 0)
    assert attempt.close()[0].endswith("0000000000000000000.seg")  # shorter: it is not the one that counts
    assert files_below(tmp_path / "again" / "0", "") == files_below(log / "0", "")


def test_a_restore_that_was_killed_is_begun_anew_by_the_same_command(
    log: Path, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that the directory was not empty, and the operator had to delete what the first one had left."""
    archive(log, root)
    target = tmp_path / "restored"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("waltz_spark.archive.restore._check", interrupted)
        with pytest.raises(KeyboardInterrupt):
            restore(root, target, HERE)
    assert any(target.rglob("*.seg"))
    assert not (target / control.NAME).exists()
    with monkeypatch.context() as patch:  # while it runs another one keeps away

        def another(*_: object) -> None:
            command = [sys.executable, "-m", "waltz_trio.cli.main", "spark", "restore", "--archive", root]
            done = subprocess.run([*command, "--to", str(target)], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (1, f"Error: {target}: another restore works in it\n")

        patch.setattr("waltz_spark.archive.restore._check", another)
        restore(root, target, HERE)
    assert sorted(path.name for path in target.iterdir())[-1] == control.NAME
    with pytest.raises(ArchiveError, match="is not empty"):
        restore(root, target, HERE)


def test_a_damaged_archive_is_not_restored_to_a_directory_that_a_node_would_start_on(
    log: Path, root: str, tmp_path: Path
) -> None:
    archive(log, root)
    state = read_archive(root)
    first, second = state.files_of(0)[:2]
    shutil.copyfile(Path(root) / second.path, Path(root) / first.path)
    with pytest.raises((ArchiveError, RecordDamagedError)):
        restore(root, tmp_path / "again", HERE)
    assert not (tmp_path / "again" / "waltz-storage.ctl").exists()


def test_a_restore_of_what_can_be_none_is_refused_before_it_begins(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root)
    target = tmp_path / "restored"
    for wanted, told in (((9,), "there is no 9"), ((0, -1), "there is no -1"), ((), "expected at least one")):
        with pytest.raises(OptionError, match=f"partitions: {told}"):
            restore(root, target, Here(), partitions=wanted)
    for size in (127, -4, 2**63):
        with pytest.raises(OptionError, match="threshold: expected a whole number from 128 to"):
            restore(root, target, Here(), threshold=size)
    assert not target.exists()


def forget_segments(root: str) -> None:
    """As if the archive had been made over the network."""
    for path in Path(root).rglob("*.json"):
        commit = json.loads(path.read_text())
        path.write_text(json.dumps({**commit, "segments": []}))


def test_the_smallest_segment_holds_one_record(tmp_path: Path, root: str) -> None:
    make_log(tmp_path / "log", [random_payloads(7)])
    archive(tmp_path / "log", root)
    forget_segments(root)
    assert restore(root, tmp_path / "restored", Here(), threshold=128).segment_count == 7


def test_without_borders_segments_are_cut_by_size(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root)
    forget_segments(root)
    restore(root, tmp_path / "again", HERE, threshold=9000)
    ours, theirs = files_below(tmp_path / "again", ".seg"), files_below(log, ".seg")
    assert {name: zlib.crc32(data[128:]) for name, data in ours.items()} == {
        name: zlib.crc32(data[128:]) for name, data in theirs.items()
    }


def test_what_servers_added_to_an_archive_of_files_is_cut_by_size(tmp_path: Path, root: str) -> None:
    """All of it went into the last segment that the files had, of any size."""
    payloads = random_payloads(2000)
    make_log(tmp_path / "log", [payloads[:1000]], threshold=9000)
    archive(tmp_path / "log", root)
    known = [int(path.stem) for path in sorted((tmp_path / "log" / "0").glob("*.seg"))]
    make_log(tmp_path / "log", [payloads[:1600]], threshold=9000)
    options = parse_options({"directory": str(tmp_path / "log")})
    run_archive(attrs.evolve(plan_archive(options, root), segments=()), HERE)  # as over the network
    again = tmp_path / "again"
    restore(root, again, HERE, threshold=20_000)
    firsts = [int(path.stem) for path in sorted((again / "0").glob("*.seg"))]
    assert firsts[: len(known)] == known
    more = firsts[len(known) :]
    assert len(more) > 1
    assert min(more) > 1000, "the segment that was open then goes on"
    assert max(path.stat().st_size for path in (again / "0").glob("*.seg")) < 20_000 + 100
    # Files once more: from there on the borders are known again.
    make_log(tmp_path / "log", [payloads], threshold=9000)
    archive(tmp_path / "log", root)
    restore(root, tmp_path / "third", HERE, threshold=1_000_000)
    theirs = [int(path.stem) for path in (tmp_path / "log" / "0").glob("*.seg")]
    ours = [int(path.stem) for path in (tmp_path / "third" / "0").glob("*.seg")]
    assert sorted(ours) == sorted(one for one in theirs if one < 1000 or one >= max(x for x in theirs if x <= 1600))


@pytest.mark.parametrize("wave", [1, 100])
def test_what_one_run_archived_of_files_and_over_the_network_is_cut_where_that_can_be_known(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch, wave: int
) -> None:
    """All that came over the network went into the last segment of the files."""
    records = make_records(0, random_payloads(3000))
    write_segments(tmp_path / "front", 0, records[:700], threshold=9000)
    write_control(tmp_path / "front", [700])
    write_segments(tmp_path / "behind", 0, records[700:])
    write_control(tmp_path / "behind", [3000])
    write_start(tmp_path / "behind", 0, 700)
    elsewhere = str(tmp_path / "elsewhere")  # in the place of the network: no file of segments
    archive(tmp_path / "behind", elsewhere)
    options = parse_options({"directory": str(tmp_path / "front"), "archive": elsewhere})
    monkeypatch.setattr("waltz_spark.archive.archive._WAVE", wave)
    run_archive(plan_archive(options, root, range_count=50), HERE)
    restore(root, tmp_path / "again", HERE, threshold=12_000)
    known = [int(path.stem) for path in sorted((tmp_path / "front" / "0").glob("*.seg"))]
    restored = sorted((tmp_path / "again" / "0").glob("*.seg"))
    assert [int(path.stem) for path in restored][: len(known)] == known
    assert len(restored) > len(known) + 5
    assert max(path.stat().st_size for path in restored) < 12_000 + 100
    assert problems(root, tmp_path / "again") == []


@pytest.mark.parametrize("short", [False, True])
def test_an_archive_that_cannot_be_read_is_no_loss_where_a_directory_has_some_of_it(
    log: Path, root: str, tmp_path: Path, short: bool
) -> None:
    archive(log, root, range_count=1000)
    path = next(path for path in Path(root).rglob("*.parquet") if "partition=0" in str(path))
    path.unlink()
    if short:
        make_log(tmp_path / "short", [random_payloads(500), [], []], threshold=9000)
    place = str(tmp_path / "short" if short else log)
    reader = BatchReader(parse_options({"archive": root, "directory": place, "partitions": "0"}))
    rows = []
    with pytest.raises(UnreachableError, match="No such file") if short else contextlib.nullcontext():
        for task in reader.partitions():
            for batch in reader.read(task):
                rows += batch.column("transaction_id").to_pylist()
    assert rows == list(range(500 if short else 1000))


async def test_a_node_starts_on_a_restored_directory_and_the_cluster_goes_on(tmp_path: Path, root: str) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=2, storage_nodes=3) as cluster:
        await append(cluster, (120, 7))
        tls = cluster.directory / "tls"
        values = {"url": cluster.url, "ssl.certificate": str(tls / "node.pem"), "ssl.key": str(tls / "node.key")}
        options = parse_options({**values, "directory": str(tmp_path / "c" / "storage-0")})
        report = await outside(lambda: run_archive(plan_archive(options, root, range_count=50), HERE))
        assert report.record_count == 127
        await cluster.stop_storage(1)
        shutil.rmtree(tmp_path / "c" / "storage-1")
        await outside(lambda: restore(root, tmp_path / "c" / "storage-1", HERE))
        await cluster.restart_storage(1)
        await append(cluster, (30, 5), start=120)
        _, admin = cluster.layout.storage_ports[1]
        endpoint = next(one for one in admin_endpoints(cluster).split(",") if one.endswith(str(admin)))
        client_tls = ClientTls(TlsSettings(certificate=values["ssl.certificate"], key=values["ssl.key"], verify=False))

        def records_of_the_restored_node() -> list[int]:
            from waltz_core.base.ids import parse_endpoint

            with AdminPort(parse_endpoint(endpoint), client_tls, cluster.key, 2, 5.0) as port:
                found = []
                for partition in range(2):
                    port.request_records(partition, 0, 1000)
                    block = port.records(partition, 0, 1000)
                    found.append(0 if block is None else block.count)
            return found

        with trio.fail_after(30):
            while await outside(records_of_the_restored_node) != [150, 12]:  # noqa: ASYNC110  # it has no listeners
                await trio.sleep(0.1)
        drop_connections()


async def test_a_running_cluster_can_be_archived_over_the_network(tmp_path: Path, root: str) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=1) as cluster:
        await append(cluster, (90,))
        options = parse_options({"url": cluster.url})
        await outside(lambda: run_archive(plan_archive(options, root, range_count=50), HERE))
        drop_connections()
    restore(root, tmp_path / "again", HERE)
    (ours,) = files_below(tmp_path / "again", ".seg").values()
    (theirs,) = files_below(tmp_path / "c" / "storage-0", ".seg").values()
    assert ours[128:] == theirs[128:]
    async with embedded_cluster(tmp_path / "c") as cluster, waltz.open_client(cluster.url) as client:
        assert await client.committed_mark(0) == 89


def test_a_store_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="No such file"):
        open_store(str(tmp_path)).read("nothing")
    with pytest.raises(ArchiveError, match="xyz"):
        open_store("xyz://bucket/archive")


# ---- archives that somebody else has written ------------------------------------------------------


def rewrite(root: str, **changes: object) -> None:
    """Leave one commit with one file, of which it says something else, with a hash chain that fits."""
    path, *others = sorted((Path(root) / "_waltz" / "manifest").glob("0*.json"))
    for other in others:
        other.unlink()
    commit = json.loads(path.read_text())
    commit["files"] = [commit["files"][0] | changes]
    key = UUID(commit["cluster"]).bytes
    file = commit["files"][0]
    with contextlib.suppress(TypeError, ValueError, struct.error):
        link = manifest.first_link(key, file["partition"])
        file["chain"] = manifest.next_link(link, file["first_id"], file["end_id"], file["sha256"])
    path.write_text(json.dumps(commit))


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "../outside.parquet"},
        {"path": "/dev/zero"},
        {"path": f"data/partition=0/../partition=0/{0:019d}-{299:019d}.parquet"},
        {"file_size": -1},
        {"raw_size": 1 << 70},
        {"raw_size": 300},
        {"partition": 9},
        {"end_id": "300"},
        {"sha256": "../../etc/passwd"},
    ],
)
def test_a_commit_cannot_name_what_no_archiver_writes(log: Path, root: str, changes: dict[str, object]) -> None:
    archive(log, root)
    rewrite(root, **changes)
    with pytest.raises(ArchiveError, match=re.escape(root)):
        read_archive(root)


def test_what_is_no_regular_file_inside_the_archive_is_not_opened(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root)
    path = min(Path(root).rglob("*.parquet"))
    original = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    assert any("is no regular file" in problem for problem in problems(root))
    for target in ("/dev/zero", str(tmp_path / "outside")):
        (tmp_path / "outside").write_bytes(original)
        path.unlink()
        path.symlink_to(target)
        assert any("is no regular file" in one or "is not inside" in one for one in problems(root))
    commit = next((Path(root) / "_waltz" / "manifest").iterdir())
    commit.unlink()
    os.mkfifo(commit)
    with pytest.raises(ArchiveError, match="is no regular file"):
        read_archive(root)


def test_a_symbolic_link_to_the_root_itself_is_fine(log: Path, root: str, tmp_path: Path) -> None:
    archive(log, root)
    (tmp_path / "link").symlink_to(root)
    assert problems(str(tmp_path / "link")) == []


@pytest.mark.parametrize("encoding", ["dictionary", "prefixes", "rows", "bytes", "columns"])
def test_a_small_file_that_would_fill_the_memory_is_refused_before_it_is_decoded(
    log: Path, root: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(log, root)
    path = Path(root) / manifest.file_path(0, 0, 300)
    table = pq.read_table(path, partitioning=None)
    column = table.schema.get_field_index("data")
    repeat = 3 if encoding == "rows" else 1
    huge = pa.array([bytes(1 << 16)] * table.num_rows, pa.binary())
    table = table.set_column(column, table.schema.field("data"), huge)
    table = pa.concat_tables([table] * repeat)
    if encoding == "columns":
        table = table.append_column("more", huge)
    options: dict[str, Any] = {"use_dictionary": ["data"]} if encoding == "dictionary" else {"use_dictionary": False}
    if encoding == "prefixes":
        options["column_encoding"] = {"data": "DELTA_BYTE_ARRAY"}
    pq.write_table(table, path, compression="zstd", **options)
    rewrite(root, file_size=path.stat().st_size)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("it was decoded"))
    (problem,) = [one for one in problems(root) if "digest" not in one and "CRC" not in one]
    assert "the manifest says" in problem or "encoded as" in problem or "has columns" in problem


def test_a_file_of_another_size_is_not_decoded(log: Path, root: str) -> None:
    archive(log, root)
    path = Path(root) / manifest.file_path(0, 0, 300)
    path.write_bytes(path.read_bytes() + b"PAR1")
    size = path.stat().st_size
    found = problems(root)
    assert any(f"has {size} bytes, the manifest says {size - 4}" in problem for problem in found)


def test_a_checkpoint_is_believed_no_more_than_commits(log: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_CHECKPOINT_EVERY", 1)
    archive(log, root)
    path = max((Path(root) / "_waltz" / "manifest").glob("checkpoint-*.json"))
    state = json.loads(path.read_text())
    state["files"][0]["path"] = "../outside.parquet"
    path.write_text(json.dumps(state))
    with pytest.raises(ArchiveError, match="names the file"):
        read_archive(root)


def test_archives_and_restored_logs_are_for_their_owner_alone(log: Path, root: str, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        archive(log, root)
        restore(root, tmp_path / "again", HERE)
    finally:
        os.umask(before)
    for top in (Path(root), tmp_path / "again"):
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (top, *top.rglob("*"))}
        assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}


def test_a_commit_is_fetched_once_however_often_the_log_is_looked_at(
    log: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(log, root, partial=False)
    read: list[str] = []
    real = LocalStore.read

    def fetch(store: LocalStore, name: str, *size: int) -> bytes:
        read.append(name)
        return real(store, name, *size)

    monkeypatch.setattr(LocalStore, "read", fetch)
    inventory = Inventory(parse_options({"archive": root, "directory": str(log)}))
    looks = [inventory.look() for _ in range(5)]
    commits = len(list((Path(root) / "_waltz" / "manifest").iterdir()))
    assert len(read) == commits
    archive(log, root)
    more = len(list((Path(root) / "_waltz" / "manifest").iterdir())) - commits
    read.clear()
    last = inventory.look()
    assert len(read) == more == 1
    assert last.archive is not None
    assert looks[0].archive is not None
    assert len(last.archive.files) > len(looks[0].archive.files)
