"""Archives on a file system and on an S3 server: two who commit at once, and the whole way there and back."""

from __future__ import annotations

import contextlib
import errno
import io
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
)

from tests.spark.logs import KEY, make_log, random_payloads
from waltz_spark.archive.archive import (
    Check,
    Verdict,
    plan_archive,
    plan_verification,
    run_archive,
    run_verification,
    verify_file,
)
from waltz_spark.archive.restore import restore
from waltz_spark.audit.audit import run_audit
from waltz_spark.audit.coverage import FAILED, PASSED, UNPROVEN
from waltz_spark.audit.scan import scan
from waltz_spark.base.errors import ArchiveError, UnreachableError
from waltz_spark.base.objects import RemoteStore, open_store
from waltz_spark.base.runners import Here
from waltz_spark.read.options import parse_options
from waltz_spark.records import manifest
from waltz_spark.records.archived import archived_blocks
from waltz_spark.records.columns import Shape
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


# ---- stores that do not answer


class Failing(io.BytesIO):
    """An object whose store fails from some read on."""

    reads, error = 1 << 30, OSError(errno.EBUSY, "SlowDown: Please reduce your request rate")

    def read(self, size: int | None = -1, /) -> bytes:
        Failing.reads -= 1
        if Failing.reads < 0:
            raise Failing.error
        return super().read(size)


class OfDirectory:
    """As much of a file system of fsspec as reading an archive takes, over a directory."""

    def open(self, path: str, mode: str) -> Failing:
        return Failing(Path(path).read_bytes())


FAILURES = [
    OSError(errno.EBUSY, "SlowDown: Please reduce your request rate"),
    NoCredentialsError(),
    EndpointConnectionError(endpoint_url="https://s3"),
    ConnectionClosedError(endpoint_url="https://s3"),
    ReadTimeoutError(endpoint_url="https://s3"),
    IncompleteReadError(actual_bytes=1, expected_bytes=2),
    aiohttp.ClientPayloadError("Response payload is not completed"),
]


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ArchiveState]]:
    """A directory with an archive, and that archive as one in a remote store, whose objects may fail."""
    make_log(tmp_path / "log", [random_payloads(400)], threshold=9000)
    directory = str(tmp_path / "archive")
    run_archive(plan_archive(parse_options({"directory": str(tmp_path / "log")}), directory, range_count=400), HERE)
    state = attrs.evolve(read_archive(directory), root="slow://vault")
    for module in ("archive.archive", "records.archived"):
        store = RemoteStore("slow://vault", OfDirectory(), directory)
        monkeypatch.setattr(f"waltz_spark.{module}.open_store", lambda root, store=store: store)
    yield directory, state
    Failing.reads = 1 << 30


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_store_that_fails_in_the_middle_of_an_object_says_nothing_of_it(
    vault: tuple[str, ArchiveState], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    _, state = vault
    monkeypatch.setattr(Failing, "error", error)
    check = Check(state.root, state.files[0], ())
    assert verify_file(check) == Verdict(state.files[0], 0, ())
    failed = 0
    for reads in range(100):
        Failing.reads = reads
        verdict = verify_file(check)
        if Failing.reads >= 0:
            break
        failed += 1
        assert (verdict.problems, verdict.read) == ((), False)
        assert str(error) in verdict.unread[0]
        Failing.reads = reads
        place = state.files[0].place(state.root)
        with contextlib.suppress(UnreachableError):  # which any number of reads in front of it leads to, or to the end
            list(archived_blocks(place, 0, 0, 400, Shape()))
    assert failed >= 4, "of the pieces of which it is read"


def test_an_audit_with_an_archive_that_does_not_answer_is_unproven(
    vault: tuple[str, ArchiveState], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltz_spark.audit.audit.read_archive", lambda root: vault[1])
    for reads, verdict in ((1 << 30, PASSED), (3, UNPROVEN)):
        Failing.reads = reads
        report = run_audit([str(tmp_path / "log")], "slow://vault", HERE, judge_locks=False)
        (finding,) = [one for one in report.findings if one.check == "archive equals log"]
        assert (finding.status, report.verdict) == (verdict, verdict)
        assert ("SlowDown" in finding.detail) == (verdict == UNPROVEN)


def test_a_scan_of_an_archive_that_does_not_answer_is_unproven_and_says_why(
    vault: tuple[str, ArchiveState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that the log is not sound."""
    monkeypatch.setattr("waltz_spark.read.inventory.open_store", lambda root: open_store(vault[0]))
    monkeypatch.setattr(manifest.Reader, "read", lambda self: vault[1])
    options = parse_options({"archive": "slow://vault", "retries": "1"})
    for reads, verdict in ((1 << 30, PASSED), (0, UNPROVEN)):
        Failing.reads = reads
        report = scan(options, HERE)
        assert (report.verdict, report.partitions[0].problems) == (verdict, ())
        assert ("SlowDown" in "".join(report.partitions[0].unread)) == (verdict == UNPROVEN)


def test_a_scan_of_a_remote_archive_without_one_of_its_files_fails(
    vault: tuple[str, ArchiveState], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, state = vault
    monkeypatch.setattr("waltz_spark.read.inventory.open_store", lambda root: open_store(directory))
    monkeypatch.setattr(manifest.Reader, "read", lambda self: state)
    (Path(directory) / state.files[0].path).unlink()
    report = scan(parse_options({"archive": "slow://vault", "retries": "1"}), HERE)
    assert (report.verdict, report.partitions[0].unread) == (FAILED, ())


def test_what_is_not_there_or_damaged_is_a_problem_in_a_remote_store_too(vault: tuple[str, ArchiveState]) -> None:
    directory, state = vault
    check, path = Check(state.root, state.files[0], ()), Path(directory) / state.files[0].path
    good = path.read_bytes()
    for place in range(0, len(good), len(good) // 25):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        verdict = verify_file(check)
        assert verdict.problems
        assert not verdict.unread
    path.unlink()
    verdict = verify_file(check)
    assert "No such file" in verdict.problems[0]
    assert not verdict.unread


def test_a_store_that_nobody_serves_is_unreachable(tmp_path: Path) -> None:
    import fsspec

    options = {"endpoint_url": "http://127.0.0.1:9", "skip_instance_cache": True}
    options["config_kwargs"] = {"retries": {"total_max_attempts": 1}}
    for keys in ({"key": "a", "secret": "b"}, {"profile": "nobody-has-it"}):
        store = RemoteStore("s3://vault", fsspec.filesystem("s3", **options, **keys), "vault")
        calls: list[Callable[[], object]] = [
            partial(store.names, "x"),
            partial(store.read, "x"),
            partial(store.find, "x"),
            partial(store.put_if_absent, "x", b"1"),
            partial(store.open_input, "x"),
            partial(store.publish, store.scratch("x"), "x"),
            partial(store.size_and_crc, "x"),
            partial(store.remove, "x"),
        ]
        for call in calls:
            with pytest.raises(UnreachableError, match=r"s3://vault/x: .*(127\.0\.0\.1:9|nobody-has-it)"):
                call()


class Refusing:
    """A store that says in its own way that a name is taken."""

    def __init__(self, code: str) -> None:
        self._code = code

    def pipe_file(self, *call: object, **named: object) -> None:
        response: Any = {"Error": {"Code": self._code, "Message": "At least one of the conditions did not hold"}}
        cause: Exception = ClientError(response, "PutObject")
        raise OSError(errno.EINVAL, "Invalid argument") from cause

    put_file = pipe_file


@pytest.mark.parametrize(("code", "taken"), [("PreconditionFailed", True), ("412", True), ("InvalidArgument", False)])
def test_a_store_that_does_not_name_the_condition_says_that_a_name_is_taken(code: str, taken: bool) -> None:
    store = RemoteStore("s3://vault", Refusing(code), "vault")
    for put in (partial(store.put_if_absent, "x", b"1"), partial(store.publish, store.scratch("x"), "x")):
        if taken:
            assert put() is False
        else:
            with pytest.raises(UnreachableError, match="s3://vault/x: "):
                put()
