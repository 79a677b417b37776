"""Archives on a file system and on an S3 server: two who commit at once, and the whole way there and back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.spark.logs import KEY, make_log, random_payloads
from waltz_spark.archive.archive import plan_archive, plan_verification, run_archive, run_verification
from waltz_spark.archive.restore import restore
from waltz_spark.audit.scan import scan
from waltz_spark.base.errors import ArchiveError
from waltz_spark.base.objects import open_store
from waltz_spark.base.runners import Here
from waltz_spark.read.options import parse_options
from waltz_spark.records import manifest
from waltz_spark.records.manifest import ArchiveState, read_archive
from waltz_spark.write.sink_state import SinkState

pytestmark = pytest.mark.filterwarnings("ignore")

HERE = Here()


@pytest.fixture(params=["directory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "archive")
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"


@pytest.mark.parametrize("written", ["file:{}", "file://{}", "file://localhost{}", "FILE:{}", "{}"])
def test_a_local_place_may_be_written_as_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store(written.format(f"{tmp_path}/a%20b"))
    assert store.put_if_absent("x", b"1")
    assert (tmp_path / "a%20b" / "x").read_bytes() == b"1", "as Spark takes it, beside whose checkpoint it is"


@pytest.mark.parametrize(
    "root", ["s3:/vault/ledger", "hdfs:/checkpoints", "S3A:/vault", "file://vault/x", "file:vault"]
)
def test_what_only_looks_like_a_uri_is_no_folder_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for read_only in (True, False):
        with pytest.raises(ArchiveError, match=f"{root}: expected .*://"):
            open_store(root, read_only=read_only)
    with pytest.raises(ArchiveError, match=f"{root}/waltz-sink: expected "):
        SinkState(root)
    assert list(tmp_path.iterdir()) == []
    assert open_store("./s3:/vault").put_if_absent("x", b"1")


def test_the_refusal_of_another_kind_of_store_names_checkpoints_too() -> None:
    with pytest.raises(
        ArchiveError, match=r"checkpoints of a sink are kept in directories or on s3, s3a, not on memory"
    ):
        SinkState("memory://checkpoint")


def test_of_several_who_create_a_name_at_once_one_wins(root: str) -> None:
    for number in range(10):
        barrier = threading.Barrier(4)
        won: list[int] = []

        def create(who: int, barrier: threading.Barrier = barrier, number: int = number, won: list[int] = won) -> None:
            store = open_store(root)
            barrier.wait()
            if store.put_if_absent(f"race/{number}", bytes([who]) * 100):
                won.append(who)

        threads = [threading.Thread(target=create, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert open_store(root).read(f"race/{number}") == bytes(won) * 100


def test_a_sink_keeps_its_state_in_any_store(root: str) -> None:
    state = SinkState(root, kept=2)
    start = state.begin("bank", (-1, -1))
    assert SinkState(root).begin("bank", (5, 5)) == start
    for batch in range(4):
        state.finish(batch, {0: batch}, {})
    state.publish_rejects(3, None)
    assert (state.finished(1), state.finished(2), state.latest()) == (False, True, 3)
    assert state.base(4) == (3, -1)


def test_two_committers_that_race_lose_no_file_and_fork_no_chain(root: str) -> None:
    barrier = threading.Barrier(2)
    done: list[int] = []

    def commit_ten(partition: int) -> None:
        store = open_store(root)
        barrier.wait()
        for at in range(10):
            while True:
                state = manifest.load(store) or ArchiveState(store.root, KEY, 2, 100, 0, (), ())
                digest = f"{partition * 100 + at:064x}"
                link = manifest.next_link(state.last_link(partition), at, at + 1, digest)
                path = manifest.file_path(partition, at, at + 1)
                file = manifest.ArchivedFile(partition, at, at + 1, path, 41, digest, link, 1, 1)
                if manifest.commit(store, state, [file], (), {}) is not None:
                    break
        done.append(partition)

    threads = [threading.Thread(target=commit_ten, args=(partition,)) for partition in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1]
    state = read_archive(root)
    assert state.commits == 20
    assert [(one.partition, one.first_id) for one in state.files] == [(p, at) for p in range(2) for at in range(10)]


def test_archive_verify_scan_and_restore(root: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_log(log, [random_payloads(400), random_payloads(70)], threshold=9000)
    options = parse_options({"directory": str(log)})
    assert run_archive(plan_archive(options, root, range_count=150), HERE).file_count == 4
    assert run_archive(plan_archive(options, root, range_count=150), HERE).file_count == 0
    verdicts = run_verification(plan_verification(root, [str(log)]), HERE)
    assert [(one.compared, one.problems) for one in verdicts] == [(1, ())] * 4
    assert sum(one.count for one in scan(parse_options({"archive": root}), HERE).partitions) == 470
    restore(root, tmp_path / "again", HERE)
    for path in [*(log / "0").iterdir(), *(log / "1").iterdir()]:
        assert (tmp_path / "again" / path.relative_to(log)).read_bytes() == path.read_bytes()


def test_a_store_without_conditional_puts_is_refused() -> None:
    with pytest.raises(ArchiveError, match="not on ftp"):
        open_store("ftp://host/archive")
