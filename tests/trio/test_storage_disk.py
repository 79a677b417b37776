"""Real files: operations, locks, group commit, abandonment; vectors opened on a real disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from tests.storage_desk import WALL_MS, Desk
from waltz_core.base.errors import ConfigError
from waltz_core.storage import control
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import (
    Create,
    Cut,
    DiskBatch,
    DiskBytes,
    DiskDone,
    DiskEvent,
    DiskFailed,
    DiskList,
    DiskListing,
    DiskRead,
    FaultKind,
    FileEntry,
    MakeDirectory,
    Operation,
    StorageReady,
    SyncDirectory,
    SyncFile,
    Unlink,
    WriteAt,
)
from waltz_core.storage.node import StorageNode
from waltz_testing.simulation.disk import SimDisk
from waltz_trio.base import durable
from waltz_trio.storage.disk import Disk
from waltz_trio.storage.files import Files
from waltz_trio.storage.group import SyncEach, SyncWhole
from waltz_trio.storage.in_place import LONGEST, USUAL, InPlace, simple
from waltz_trio.storage.syncs import FileSyncs, SyncTimes

VECTORS = Path(__file__).parents[1] / "vectors" / "storage_dirs"


class Completions:
    """What a disk delivers, by ticket."""

    def __init__(self) -> None:
        self.events: dict[int, DiskEvent] = {}
        self.failures: list[str] = []
        self._arrived = trio.Event()

    def deliver(self, events: Sequence[DiskEvent]) -> None:
        for event in events:
            self.events[event.ticket] = event
        self._arrived.set()
        self._arrived = trio.Event()

    async def of(self, ticket: int) -> DiskEvent:
        with trio.fail_after(30):
            while ticket not in self.events:
                await self._arrived.wait()
        return self.events[ticket]


@asynccontextmanager
async def open_disk(path: Path) -> AsyncIterator[tuple[Disk, Completions]]:
    found = Completions()
    disk = Disk(Files(path), found.deliver, found.failures.append)
    try:
        yield disk, found
    finally:
        await disk.close()


async def test_operations_do_what_they_say(tmp_path: Path) -> None:
    async with open_disk(tmp_path) as (disk, found):
        disk.perform(
            DiskBatch(
                1,
                (
                    MakeDirectory("7"),
                    Create("7/a"),
                    WriteAt("7/a", 0, b"hello"),
                    WriteAt("7/a", 10, b"there"),
                    SyncFile("7/a"),
                    SyncDirectory("7"),
                ),
            )
        )
        assert await found.of(1) == DiskDone(1)
        disk.perform(DiskRead(2, "7/a", 3, 9))
        assert await found.of(2) == DiskBytes(2, b"lo\0\0\0\0\0th")
        disk.perform(DiskBatch(3, (Cut("7/a", 7), Cut("7/a", 100), Create("7/b"), MakeDirectory("7"))))
        assert await found.of(3) == DiskDone(3)
        disk.perform(DiskList(4, "7"))
        assert await found.of(4) == DiskListing(4, (FileEntry("a", 7), FileEntry("b", 0)))
        disk.perform(DiskList(5, ""))
        listing = await found.of(5)
        assert isinstance(listing, DiskListing)
        assert [(one.name, one.is_directory) for one in listing.entries] == [("7", True), (control.NAME, False)]
        disk.perform(DiskBatch(6, (Unlink("7/a"), Unlink("7/a"), Create("7/b"), SyncDirectory("7"))))
        assert await found.of(6) == DiskDone(6)
        disk.perform(DiskRead(7, "7/a", 0, 1))
        missing = await found.of(7)
        assert isinstance(missing, DiskFailed)
        assert missing.kind is FaultKind.MISSING
        disk.perform(DiskList(8, "8"))
        assert isinstance(await found.of(8), DiskFailed)


async def test_a_batch_that_fails_does_not_stop_those_behind_it(tmp_path: Path) -> None:
    async with open_disk(tmp_path) as (disk, found):
        disk.perform(DiskBatch(1, (WriteAt("absent", 0, b"x"), Create("never"))))
        disk.perform(DiskBatch(2, (Create("there"), SyncFile("there"))))
        disk.perform(DiskBatch(3, (SyncFile("absent"),)))
        failed = await found.of(1)
        assert isinstance(failed, DiskFailed)
        assert failed.kind is FaultKind.MISSING
        assert await found.of(2) == DiskDone(2)
        assert isinstance(await found.of(3), DiskFailed)
        assert not (tmp_path / "never").exists()


async def test_batches_that_wait_share_their_syncs(tmp_path: Path) -> None:
    async with open_disk(tmp_path) as (disk, found):
        disk.perform(DiskBatch(1, (Create("a"), SyncFile("a"))))
        await found.of(1)
        before = disk.statistics.syncs
        for ticket in range(2, 202):
            disk.perform(DiskBatch(ticket, (WriteAt("a", 8 * ticket, b"8 bytes!"), SyncFile("a"))))
        for ticket in range(2, 202):
            assert await found.of(ticket) == DiskDone(ticket)
        assert disk.statistics.syncs - before < 200
        assert disk.statistics.batches == 201
        assert disk.statistics.sync_ms > 0


async def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    found = Completions()
    disk = Disk(Files(tmp_path, open_files_max=3), found.deliver, found.failures.append)
    for ticket in range(1, 20):
        disk.perform(DiskBatch(ticket, (Create(f"f{ticket}"), WriteAt(f"f{ticket}", 0, b"x"))))
        await found.of(ticket)
    for ticket in range(1, 20):
        disk.perform(DiskRead(100 + ticket, f"f{ticket}", 0, 5))
        assert await found.of(100 + ticket) == DiskBytes(100 + ticket, b"x")
    assert 1 <= len(open_below(tmp_path)) < 10
    await disk.close()


def open_below(folder: Path) -> list[Path]:
    """The files of this folder that this process has open; clusters of other tests may run in the same process."""
    return [place for place in Path("/proc/self/fd").iterdir() if place.exists() and folder in place.resolve().parents]


def descriptors_below(folder: Path) -> list[str]:
    """What the descriptors of this process in a folder are of, files that were deleted among them."""
    found = []
    for place in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.append(os.readlink(place))
    return sorted(one for one in found if one.startswith(str(folder)))


@pytest.mark.parametrize("operation", [WriteAt("f", 0, b"four"), SyncFile("f"), Cut("f", 0), Create("f")])
def test_a_file_that_is_gone_is_closed_whatever_was_done_with_it(operation: Operation, tmp_path: Path) -> None:
    """Not its descriptor alone: its room on the disk would be free only when the process ends."""
    files = Files(tmp_path)
    before = descriptors_below(tmp_path)
    for _ in range(2):
        files.apply(Create("f"))
        files.apply(WriteAt("f", 0, b"x"))
        files.apply(operation)
        files.read("f", 0, 4)
        assert f"{tmp_path}/f" in descriptors_below(tmp_path)
        files.apply(Unlink("f"))
        assert descriptors_below(tmp_path) == before
    files.close()
    assert descriptors_below(tmp_path) == []


async def test_a_directory_is_used_by_one_process_only(tmp_path: Path) -> None:
    async with open_disk(tmp_path):
        with pytest.raises(ConfigError, match="another storage process"):
            Files(tmp_path)
        script = (
            "import sys; from pathlib import Path; from waltz_trio.storage.files import Files; Files(Path(sys.argv[1]))"
        )
        other = await trio.run_process([sys.executable, "-c", script, str(tmp_path)], capture_stderr=True, check=False)
        assert b"another storage process" in other.stderr
    async with open_disk(tmp_path):
        pass


def test_the_lock_is_the_one_that_the_original_takes(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.apply(WriteAt(control.NAME, 0, bytes(300)))
    files.apply(SyncFile(control.NAME))
    files.read(control.NAME, 0, 10)
    script = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR); "
        "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 128, 0)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / control.NAME)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    files.close()
    files.close()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    with open(tmp_path / control.NAME, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 128, 0)


def test_a_directory_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage\.directory: .*No such file"):
        Files(tmp_path / "absent")
    (tmp_path / "3").mkdir()
    with pytest.raises(ConfigError, match=r"is missing or empty.*\(3\)"):
        Files(tmp_path)
    assert not (tmp_path / control.NAME).exists()


async def test_an_abandoned_disk_does_nothing_more_and_lets_go(tmp_path: Path) -> None:
    found = Completions()
    disk = Disk(Files(tmp_path), found.deliver, found.failures.append)
    disk.perform(DiskBatch(1, (Create("a"),)))
    await found.of(1)
    disk.abandon()
    disk.perform(DiskBatch(2, (Create("b"),)))
    await disk.wait_abandoned()
    assert not (tmp_path / "b").exists()
    assert 2 not in found.events
    async with open_disk(tmp_path) as (again, more):
        again.perform(DiskRead(1, "a", 0, 1))
        assert await more.of(1) == DiskBytes(1, b"")


# ---- a node on real files ------------------------------------------------------------------------


async def run_node(path: Path, opening: dict[str, Any]) -> StorageNode:
    """A node that has opened a directory."""
    config = StorageConfig(
        UUID(opening["cluster_key"]).bytes,
        opening["num_partitions"],
        opening["segment_size_threshold"],
        wall_clock_offset_ms=WALL_MS,
    )
    node = StorageNode(config)
    found = Completions()
    disk = Disk(Files(path), found.deliver, found.failures.append)
    events: list[Any] = []
    ready = False
    try:
        while True:
            out: list[Any] = []
            node.step(0, events, out)
            tickets = []
            for effect in out:
                if isinstance(effect, DiskBatch | DiskRead | DiskList):
                    disk.perform(effect)
                    tickets.append(effect.ticket)
                ready = ready or isinstance(effect, StorageReady)
            events = [await found.of(ticket) for ticket in tickets]
            if not events:
                assert ready
                return node
    finally:
        await disk.close()


def simulated(path: Path, opening: dict[str, Any]) -> Desk:
    disk = SimDisk()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            disk.put(file.relative_to(path).as_posix(), file.read_bytes())
        else:
            disk.make_directory(file.relative_to(path).as_posix())
    return Desk(
        disk, UUID(opening["cluster_key"]), opening["num_partitions"], threshold=opening["segment_size_threshold"]
    )


def files_in(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def startable() -> list[str]:
    found = []
    for case in sorted(VECTORS.iterdir()):
        kind = json.loads((case / "manifest.json").read_text())["kind"]
        if kind == "good" or case.name.startswith(("torn", "bad", "missing", "orphan", "zero")):
            found.append(case.name)
    return found


@pytest.mark.parametrize("name", startable())
async def test_a_real_directory_ends_as_a_simulated_one(name: str, tmp_path: Path) -> None:
    manifest = json.loads((VECTORS / name / "manifest.json").read_text())
    for directory in manifest["dirs"]:
        (tmp_path / directory).mkdir()
    shutil.copytree(VECTORS / name / "storage", tmp_path, dirs_exist_ok=True)
    twin = simulated(tmp_path, manifest["open"])
    node = await run_node(tmp_path, manifest["open"])
    assert [(one.state, one.max_id) for one in node.replicas] == [(one.state, one.max_id) for one in twin.node.replicas]
    assert files_in(tmp_path) == twin.disk.files()


def test_a_log_is_for_the_user_who_runs_the_node_alone(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(0o755)
    before = os.umask(0)
    try:
        files = Files(directory)
        for operation in (Create(control.NAME), MakeDirectory("3"), Create("3/a.seg")):
            files.apply(operation)
        files.close()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.rglob("*")}
    assert modes == {control.NAME: 0o600, "3": 0o700, "a.seg": 0o600}
    os.chmod(directory / "3" / "a.seg", 0o644)
    Files(directory).close()
    assert (directory / "3" / "a.seg").stat().st_mode & 0o777 == 0o644, "what is there keeps its mode"


# ---- errors that nobody expected -------------------------------------------------------------


async def test_an_error_of_any_type_is_the_answer_and_the_threads_go_on(tmp_path: Path) -> None:
    async with open_disk(tmp_path) as (disk, completions):
        disk.perform(DiskBatch(1, (Create("no\0name"), SyncFile("no\0name"))))
        for ticket in (2, 3, 4):  # more than there are readers
            disk.perform(DiskRead(ticket, "no\0name", 0, 1))
        disk.perform(DiskList(5, "no\0name"))
        for ticket in range(1, 6):
            failed = await completions.of(ticket)
            assert isinstance(failed, DiskFailed)
            assert failed.kind is FaultKind.IO
            assert "an error in this process: ValueError" in failed.reason
        disk.perform(DiskBatch(6, (Create("a"), SyncFile("a"))))
        assert await completions.of(6) == DiskDone(6)
        disk.perform(DiskRead(7, "a", 0, 1))
        assert await completions.of(7) == DiskBytes(7, b"")
    assert completions.failures == []


async def test_a_thread_that_ends_by_an_error_fails_the_disk_with_the_reason(tmp_path: Path) -> None:
    async with open_disk(tmp_path) as (disk, completions):
        disk._batches.put("no batch")  # type: ignore[arg-type]  # as a bug of ours would
        with trio.fail_after(30):
            while not completions.failures:
                await trio.testing.wait_all_tasks_blocked()
    [reason] = completions.failures
    assert reason.startswith("thread waltz-disk of the disk ended by an error in this process: AttributeError")


# ---- many files in one group -----------------------------------------------------------------------


class WatchedFiles(Files):
    """Real files that note what was written and synced, in order; and fail where they are asked to."""

    def __init__(self, directory: Path, *, whole: bool) -> None:
        super().__init__(directory)
        self.log: list[tuple[str, str]] = []
        self.calls = 0  # syncs of any kind
        self.broken: set[str] = set()  # files whose sync fails
        self.whole_fails = False
        if not whole:
            self._sync_whole = None
        elif self._sync_whole is None:
            self._sync_whole = os.sync  # a file system that the call is not relied on for

    def apply(self, operation: Any) -> None:
        if isinstance(operation, SyncFile):
            self.calls += 1
            if operation.path in self.broken:
                raise OSError(errno.EIO, "input/output error")
        super().apply(operation)
        self.log.append((type(operation).__name__, operation.path))

    def sync_whole(self) -> None:
        written = [path for kind, path in self.log if kind == "WriteAt"]
        self.calls += 1
        if self.whole_fails:
            raise OSError(errno.EIO, "input/output error")
        super().sync_whole()
        self.log += [("SyncFile", path) for path in written]


FILES = 40


async def many(disk: Disk, found: Completions, first: int) -> list[DiskEvent]:
    """One append to each of many files; what became of them."""
    for number in range(FILES):
        path = f"{number}"
        disk.perform(DiskBatch(first + number, (WriteAt(path, 8 * first, b"8 bytes!"), SyncFile(path))))
    return [await found.of(first + number) for number in range(FILES)]


@asynccontextmanager
async def watched(path: Path, *, whole: bool) -> AsyncIterator[tuple[Disk, WatchedFiles, Completions]]:
    """A disk of `FILES` files, and a check that nothing is answered before its own file was synced."""
    files, found = WatchedFiles(path, whole=whole), Completions()

    def deliver(events: Sequence[DiskEvent]) -> None:
        for event in events:
            if isinstance(event, DiskDone) and event.ticket > FILES:
                mine = str((event.ticket - 1) % FILES)
                kinds = [kind for kind, path in list(files.log) if path == mine]
                assert kinds[-1] == "SyncFile", kinds
        found.deliver(events)

    disk = Disk(files, deliver, found.failures.append)
    try:
        for number in range(FILES):
            disk.perform(DiskBatch(number + 1, (Create(f"{number}"),)))
        await found.of(FILES)
        yield disk, files, found
    finally:
        await disk.close()


@pytest.mark.parametrize("whole", [False, True])
async def test_an_answer_never_precedes_the_sync_of_its_own_file(tmp_path: Path, whole: bool) -> None:
    async with watched(tmp_path, whole=whole) as (disk, files, found):
        for round_ in range(1, 20):
            outcomes = await many(disk, found, 1 + FILES * round_)
            assert all(isinstance(one, DiskDone) for one in outcomes)
        appends = 19 * FILES
        assert files.calls == disk.statistics.syncs <= appends  # none is synced twice for one answer
        assert whole == any(kind == "SyncFile" and at == "39" for kind, at in files.log if files.calls < appends)


@pytest.mark.parametrize("whole", [False, True])
async def test_a_failed_sync_fails_every_append_to_that_file_and_no_other(tmp_path: Path, whole: bool) -> None:
    """Where the whole file system reports an error, which may be another process's, each file is asked for its own."""
    async with watched(tmp_path, whole=whole) as (disk, files, found):
        files.whole_fails = True
        assert all(isinstance(one, DiskDone) for one in await many(disk, found, 1 + FILES))
        files.broken = {"3", "17"}
        outcomes = await many(disk, found, 1 + 2 * FILES)
        failed = {number for number, one in enumerate(outcomes) if isinstance(one, DiskFailed)}
        assert failed == {3, 17}


async def test_a_file_on_another_file_system_is_synced_for_itself(tmp_path: Path) -> None:
    async with watched(tmp_path, whole=True) as (disk, files, found):
        await many(disk, found, 1 + FILES)
        files._open["5"].device += 1  # as if its directory were a mount of its own
        for round_ in range(2, 5):
            await many(disk, found, 1 + FILES * round_)
        assert files.calls == disk.statistics.syncs
        assert not files.covers([SyncFile("6"), SyncFile("5")])
        assert files.covers([SyncFile("6")])


def test_the_first_sync_of_a_file_is_its_own(tmp_path: Path) -> None:
    """A sync of the file system tells an error once: a process that was killed just then may have been told it."""
    with closing(Files(tmp_path)) as files:
        files.apply(Create("a"))
        files.apply(WriteAt("a", 0, b"x"))
    with closing(WatchedFiles(tmp_path, whole=True)) as files:
        files.apply(WriteAt("a", 1, b"y"))
        assert not files.covers([SyncFile("a")])
        files.broken = {"a"}
        with pytest.raises(OSError, match="input/output error"):
            files.apply(SyncFile("a"))
        assert not files.covers([SyncFile("a")])
        files.broken = set()
        files.apply(SyncFile("a"))
        assert files.covers([SyncFile("a")])


def test_a_simulated_disk_tells_an_error_of_a_whole_sync_once_more_for_the_file_that_it_befell() -> None:
    """As Linux does: the error stays with each file until that is asked, though the disk works again."""
    disk, wanted = SimDisk(), (SyncFile("a"), SyncFile("b"))
    for sync in wanted:
        disk.apply(Create(sync.path))
        disk.apply(SyncDirectory(""))
        disk.apply(WriteAt(sync.path, 0, b"x"))
    disk.fault = lambda operation: FaultKind.IO if operation.path == "b" else None
    assert isinstance(disk.answer(SyncWhole(wanted)), OSError)
    disk.fault = None
    failures = disk.answer(SyncEach(wanted))
    assert isinstance(failures, dict)
    assert list(failures) == [SyncFile("b")]
    disk.apply(WriteAt("b", 0, b"x"))
    assert disk.answer(SyncEach(wanted)) == {}
    assert all(disk.durable(sync.path) == bytearray(b"x") for sync in wanted)


def test_both_ways_are_timed_for_the_next_choice(tmp_path: Path) -> None:
    noted: list[float] = []
    files, wanted, begin = WatchedFiles(tmp_path, whole=True), [SyncFile("a"), SyncFile("b")], perf_counter()
    syncs = FileSyncs(files, files.apply, noted.append, lambda: False)
    for sync in wanted:
        files.apply(Create(sync.path))
        files.apply(WriteAt(sync.path, 0, b"x"))
        files.apply(sync)
    assert syncs.prefers_whole(wanted)
    syncs.whole(wanted)
    assert not syncs.prefers_whole(wanted)  # how long it takes is known
    assert syncs.each(wanted) == {}
    took = perf_counter() - begin
    (whole,), each = noted, syncs._times._each
    assert syncs._times._all == whole
    assert each is not None
    assert 0 < min(whole, each) <= max(whole, each) <= took
    syncs.close()
    files.close()


def chosen(times: SyncTimes, files: int, groups: int, whole: float, each: float) -> list[bool]:
    """Whether each of so many groups was synced as a whole, on a disk that takes so many seconds."""
    found = []
    for _ in range(groups):
        found.append(times.choose(files))
        times.took(found[-1], files, whole if found[-1] else each * files)
    return found


def test_the_faster_way_is_taken_and_the_other_one_tried_again() -> None:
    times = SyncTimes()
    assert chosen(times, 100, 2, 0.010, 0.0002) == [True, False]
    assert chosen(times, 100, 1_000, 0.010, 0.0002).count(False) in range(12, 18)  # twice as slow: after 64 others
    assert chosen(times, 2, 1_000, 0.010, 0.0002).count(True) in range(2, 6)  # two files are synced sooner
    assert chosen(times, 100, 1_000, 1.0, 0.0002).count(True) in range(2, 8)  # another process fills the cache


def test_the_slower_way_is_tried_the_more_seldom_the_more_it_costs() -> None:
    """With 512 files, one group that is synced file by file can take as long as a dozen others."""
    times = SyncTimes()
    ways = chosen(times, 512, 10_000, 0.030, 0.0008)
    tried = ways.count(False)
    assert 0.41 * tried < 0.06 * 10_000 * 0.030
    assert tried > 10


def test_a_way_that_was_slow_once_is_tried_again() -> None:
    times = SyncTimes()
    chosen(times, 100, 2, 0.010, 0.0005)
    times.took(True, 100, 60.0)
    ways = chosen(times, 100, 4_000, 0.010, 0.0005)
    assert all(ways[-30:])


# ---- a batch that is alone -------------------------------------------------------------------------


def append(ticket: int, path: str = "0", size: int = 8) -> DiskBatch:
    return DiskBatch(ticket, (WriteAt(path, 8 * ticket, b"x" * size), SyncFile(path)))


@asynccontextmanager
async def quick(path: Path) -> AsyncIterator[tuple[Disk, WatchedFiles, Completions]]:
    """A disk whose syncs have taken no time so far."""
    async with watched(path, whole=False) as (disk, files, found):
        for _ in range(100):
            disk._in_place.took(0.0)
        yield disk, files, found


async def test_a_batch_that_is_alone_is_synced_and_answered_at_the_end_of_its_step(tmp_path: Path) -> None:
    async with quick(tmp_path) as (disk, files, found):
        disk.offer(append(FILES + 1))
        assert FILES + 1 not in found.events
        disk.settle()
        assert found.events[FILES + 1] == DiskDone(FILES + 1)
        assert files.log[-2:] == [("WriteAt", "0"), ("SyncFile", "0")]
        assert files.calls == disk.statistics.syncs == disk.statistics.in_place == 1
        disk.settle()
        assert disk.statistics.in_place == 1


async def test_an_error_in_place_is_the_answer_to_the_batch(tmp_path: Path) -> None:
    async with quick(tmp_path) as (disk, files, found):
        files.broken = {"0"}
        disk.offer(append(FILES + 1))
        disk.settle()
        assert isinstance(found.events[FILES + 1], DiskFailed)


async def test_batches_of_one_step_go_to_the_writer_in_order(tmp_path: Path) -> None:
    async with quick(tmp_path) as (disk, files, found):
        disk.offer(append(FILES + 1))
        disk.offer(append(FILES + 2, "1"))
        disk.offer(append(FILES + 3, "2"))
        disk.settle()
        for ticket in (1, 2, 3):
            await found.of(FILES + ticket)
        assert disk.statistics.in_place == 0
        assert [path for kind, path in files.log if kind == "WriteAt"] == ["0", "1", "2"]


async def test_nothing_overtakes_what_the_writer_has_not_answered(tmp_path: Path) -> None:
    async with quick(tmp_path) as (disk, files, found):
        disk.perform(append(FILES + 1))
        disk.offer(append(FILES + 2, "1"))
        disk.settle()
        await found.of(FILES + 2)
        assert disk.statistics.in_place == 0
        assert [path for kind, path in files.log if kind == "WriteAt"] == ["0", "1"]


async def test_an_abandoned_disk_does_nothing_in_place(tmp_path: Path) -> None:
    async with quick(tmp_path) as (disk, files, found):
        disk.offer(append(FILES + 1))
        disk.abandon()
        disk.settle()
        assert FILES + 1 not in found.events
        assert [kind for kind, _ in files.log if kind != "Create"] == []
        await disk.wait_abandoned()


def test_a_slow_disk_is_left_to_the_writer_until_it_has_been_quick_again() -> None:
    policy = InPlace()
    assert not policy.allows()  # nothing is known yet
    for _ in range(3):
        policy.took(0.0002)
    assert policy.allows()
    policy.took(0.1)
    assert not policy.allows()
    waited = 0
    while not policy.allows():
        policy.took(0.0002)
        waited += 1
    assert 20 < waited < 40
    policy.took(LONGEST)
    assert not policy.allows()


def test_a_disk_whose_syncs_all_take_a_while_is_left_to_the_writer() -> None:
    """The event loop would stand still most of the time, and serve reads in what is left."""
    policy = InPlace()
    for _ in range(100):
        policy.took((USUAL + LONGEST) / 2)
    assert not policy.allows()
    for _ in range(10):
        policy.took(USUAL / 10)
    assert policy.allows()


def test_what_begins_a_segment_or_is_large_is_left_to_the_writer() -> None:
    assert simple(append(1))
    assert simple(append(1, size=1 << 19))
    assert not simple(append(1, size=(1 << 19) + 1))
    assert not simple(DiskBatch(1, (WriteAt("a", 0, b"x"),)))
    assert not simple(DiskBatch(1, (WriteAt("a", 0, b"x"), SyncFile("a"), SyncFile("b"))))
    assert not simple(DiskBatch(1, (Create("a"), WriteAt("a", 0, b"x"), SyncFile("a"))))


def test_a_file_that_vanishes_while_its_directory_is_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing failed, so that a directory with a control file passed for an empty one."""
    (tmp_path / "stays").write_bytes(b"12345")
    (tmp_path / "goes").write_bytes(b"1")
    listed = list(os.scandir(tmp_path))
    (tmp_path / "goes").unlink()
    monkeypatch.setattr(os, "scandir", lambda directory: contextlib.nullcontext(listed))
    assert durable.entries(tmp_path) == [FileEntry("stays", 5)]
