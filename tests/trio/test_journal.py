"""The files of the decision journal, and a server that keeps one."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from waltz_core.base.edge import Level
from waltz_core.base.errors import ClientFailedError, ConfigError, LockConflictError, NotCommittedError
from waltz_core.base.ids import Endpoint
from waltz_core.base.lock import Lock
from waltz_core.server.journal import JournalEvent, JournalFailed, JournalWrite, JournalWritten
from waltz_core.server.journal_format import (
    CommittedRange,
    Decision,
    Entry,
    Mode,
    SessionOpened,
    Started,
    Synced,
    decode_entries,
    encode_entry,
)
from waltz_core.wire.lock_names import unpack_names
from waltz_trio.base import durable
from waltz_trio.base.durable import FileSystem
from waltz_trio.client.connect import open_client
from waltz_trio.client.values import Append
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster
from waltz_trio.node.journal import JournalFiles
from waltz_trio.node.journal_directory import JournalDirectory, file_name

KEY = bytes(range(16))


def entries(path: Path) -> list[Entry]:
    """What a file says, without the marks between groups."""
    every = [entry for _, entry in decode_entries(path.read_bytes(), str(path))]
    return [entry for entry in every if entry != Synced()]


class Desk:
    """A directory and what its files answer."""

    def __init__(self, directory: Path, mode: Mode = Mode.SYNC, size_max: int = 0) -> None:
        self.answers: list[JournalEvent] = []
        self.told: list[tuple[Level, str]] = []
        self.failures: list[str] = []
        self._last = 0
        self._news = trio.Event()
        self.files = JournalFiles(
            directory,
            mode,
            size_max,
            Endpoint("a", 1),
            self._arrived,
            lambda level, text: self.told.append((level, text)),
            self.failures.append,
        )

    def _arrived(self, events: object) -> None:
        self.answers += events  # type: ignore[arg-type]
        self._news.set()

    async def write(self, *written: Entry, partition: int = 0) -> JournalEvent:
        """Write entries and wait for the answer."""
        self._last += 1
        data = b"".join(encode_entry(one) for one in written)
        self.files.perform(JournalWrite(self._last, partition, KEY, data, True))
        while not (found := [one for one in self.answers if one.ticket == self._last]):
            self._news = trio.Event()
            await self._news.wait()
        return found[0]


def session(number: int) -> SessionOpened:
    return SessionOpened(number, 1, -1, 0)


async def test_every_process_begins_files_of_its_own_and_says_what_counts_of_the_one_before(tmp_path: Path) -> None:
    for number in range(2):
        desk = Desk(tmp_path / "journal")
        assert await desk.write(session(number)) == JournalWritten(1)
        await desk.files.close()
    first, second = entries(tmp_path / "journal/0" / file_name(0)), entries(tmp_path / "journal/0" / file_name(1))
    assert isinstance(first[0], Started)
    assert isinstance(second[0], Started)
    assert (first[0].key, first[0].partition_id, first[0].previous_size, first[0].endpoint) == (KEY, 0, -1, "a:1")
    assert second[0].previous_size == (tmp_path / "journal/0" / file_name(0)).stat().st_size
    assert (first[1], second[1]) == (session(0), session(1))


async def test_a_torn_end_does_not_count_and_is_left_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    await desk.write(session(1))
    await desk.files.close()
    path = tmp_path / "0" / file_name(0)
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + encode_entry(session(2))[:-3])
    desk = Desk(tmp_path)
    await desk.write(session(3))
    await desk.files.close()
    started = entries(tmp_path / "0" / file_name(1))[0]
    assert isinstance(started, Started)
    assert started.previous_size == whole < path.stat().st_size
    assert [text for level, text in desk.told if "cut short" in text]


@pytest.mark.parametrize(("at", "sound"), [(20, 0), (110, 80)])
async def test_damage_keeps_nobody_from_going_on_and_is_told(tmp_path: Path, at: int, sound: int) -> None:
    desk = Desk(tmp_path)
    await desk.write(session(1))
    await desk.write(session(2))
    await desk.files.close()
    path = tmp_path / "0" / file_name(0)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    desk = Desk(tmp_path)
    assert await desk.write(session(3)) == JournalWritten(1)
    await desk.files.close()
    assert [text for level, text in desk.told if level is Level.ERROR and f"damaged at offset {sound};" in text]


async def test_a_group_that_lost_its_beginning_in_a_power_failure_does_not_count_and_is_no_damage(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    await desk.write(session(1))
    path = tmp_path / "0" / file_name(0)
    whole = path.stat().st_size
    await desk.write(session(2), session(3))
    await desk.files.close()
    data = path.read_bytes()
    path.write_bytes(data[:whole] + bytes(30) + data[whole + 30 :])
    desk = Desk(tmp_path)
    await desk.write(session(4))
    await desk.files.close()
    started = entries(tmp_path / "0" / file_name(1))[0]
    assert isinstance(started, Started)
    assert started.previous_size == whole
    assert [level for level, _ in desk.told] == [Level.INFO]


async def test_a_write_that_fails_is_answered_and_the_next_goes_to_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("not a directory")
    desk = Desk(tmp_path)
    failed = await desk.write(session(1))
    assert isinstance(failed, JournalFailed)
    assert str(tmp_path) in failed.reason
    assert await desk.write(session(1), partition=5) == JournalWritten(2)
    (tmp_path / "0").unlink()
    assert await desk.write(session(2)) == JournalWritten(3)
    await desk.files.close()
    assert entries(tmp_path / "0" / file_name(0))[1:] == [session(2)]


async def test_a_file_that_could_not_be_begun_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(durable, "sync_directory", full)
        assert isinstance(await desk.write(session(1)), JournalFailed)
    assert isinstance(await desk.write(session(2)), JournalWritten)
    await desk.files.close()
    assert [path.name for path in (tmp_path / "0").iterdir()] == [file_name(0)]
    assert entries(tmp_path / "0" / file_name(0))[1:] == [session(2)]


async def test_the_oldest_files_go_when_there_is_too_much(tmp_path: Path) -> None:
    desk = Desk(tmp_path, size_max=4 << 20)
    many = [session(number) for number in range(2_000)]
    for _ in range(150):
        await desk.write(*many)
    await desk.files.close()
    numbers = sorted(int(path.stem) for path in (tmp_path / "0").glob("*.journal"))
    size = sum(path.stat().st_size for path in (tmp_path / "0").glob("*.journal"))
    assert size <= 5 << 20
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[0] > 0
    started = entries(tmp_path / "0" / file_name(numbers[1]))[0]
    assert isinstance(started, Started)
    assert started.previous_size == (tmp_path / "0" / file_name(numbers[0])).stat().st_size


class Hand:
    """The directory as the thread of a process uses it, with a clock that can be set."""

    def __init__(self, directory: Path, size_max: int = 0, system: FileSystem = durable) -> None:
        self.now_us = 1_000_000
        self.told: list[str] = []
        self.files = JournalDirectory(
            directory,
            Mode.SYNC,
            Endpoint("a", 1),
            lambda level, text: self.told.append(text),
            file_max=1,  # every group has a file of its own
            size_max=size_max,
            now_us=lambda: self.now_us,
            system=system,
        )

    def write(self, *partitions: int) -> None:
        """A group, with one entry for each of these."""
        data = encode_entry(session(1))
        writes = [JournalWrite(number, partition, KEY, data, True) for number, partition in enumerate(partitions)]
        for events in self.files.carry_out(writes):
            assert all(isinstance(event, JournalWritten) for event in events)


def kept(directory: Path) -> dict[str, list[int]]:
    """Partition → numbers of its files."""
    return {
        folder.name: sorted(int(path.stem) for path in folder.glob("*.journal"))
        for folder in sorted(directory.iterdir())
    }


def test_what_is_oldest_is_read_from_the_files_and_not_from_dates(tmp_path: Path) -> None:
    """The clock is set back by hours between the processes, and the directory is copied."""
    first = Hand(tmp_path)
    for partition in (0, 1, 0, 1):
        first.now_us += 1
        first.write(partition)
    first.files.close()
    second = Hand(tmp_path)
    second.now_us = 5
    second.write(0, 1)
    second.files.close()
    size = 0
    for age, path in enumerate(sorted(tmp_path.glob("*/*.journal"), reverse=True)):
        os.utime(path, (age, age))
        size += path.stat().st_size
    assert kept(tmp_path) == {"0": [0, 1, 2], "1": [0, 1, 2]}
    third = Hand(tmp_path, size - 1)
    third.write(0)
    assert kept(tmp_path) == {"0": [1, 2, 3], "1": [1, 2]}
    third.write(0)
    assert kept(tmp_path) == {"0": [2, 3, 4], "1": [1, 2]}
    third.files.close()


def test_files_begun_by_a_clock_that_was_set_back_go_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    (tmp_path / "0").mkdir()
    for number, time_us in enumerate((900, 500, 100)):
        started = Started(KEY, 0, number, -1, time_us, Mode.SYNC, "a:1", 1)
        (tmp_path / "0" / file_name(number)).write_bytes(encode_entry(started))
    size = (tmp_path / "0" / file_name(0)).stat().st_size
    hand = Hand(tmp_path, 4 * size)
    hand.now_us = 5
    hand.write(0)
    assert kept(tmp_path) == {"0": [1, 2, 3]}
    newest = entries(tmp_path / "0" / file_name(3))[0]
    assert isinstance(newest, Started)
    assert newest.time_us == 901
    hand.files.close()


def test_a_file_that_cannot_be_deleted_is_reported_once_and_none_after_it_goes(tmp_path: Path) -> None:
    first = Hand(tmp_path)
    first.write(0)
    first.write(0)
    first.files.close()
    oldest = tmp_path / "0" / file_name(0)
    oldest.unlink()
    oldest.mkdir()
    second = Hand(tmp_path, 1)
    second.write(1)
    second.write(1)
    assert [text for text in second.told if "cannot be deleted" in text] == second.told
    assert len(second.told) == 1
    assert kept(tmp_path) == {"0": [0, 1], "1": [0, 1]}
    oldest.rmdir()
    second.write(1)
    second.files.close()
    assert kept(tmp_path) == {"0": [], "1": []}


class Disk:
    """A disk that fails for a while, as one does that the operating system has turned read-only."""

    def __init__(self) -> None:
        self.failing: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name in self.failing:
            return self._fail
        return getattr(durable, name)

    def _fail(self, *_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("failing", [("write_at", "unlink"), ("sync_directory", "unlink"), ("write_at",)])
def test_a_file_that_could_be_neither_begun_nor_deleted_is_made_once_the_disk_is_well(
    tmp_path: Path, failing: tuple[str, ...]
) -> None:
    """It was in the way of each later try, so that a server committed nothing until it was restarted."""
    disk = Disk()
    hand = Hand(tmp_path, system=cast(FileSystem, disk))
    hand.write(0)
    size = (tmp_path / "0" / file_name(0)).stat().st_size
    write = JournalWrite(1, 0, KEY, encode_entry(session(1)), True)
    disk.failing = failing
    for _ in range(2):
        assert list(hand.files.carry_out([write])) == [[JournalFailed(1, f"{tmp_path}: Input/output error")]]
    assert kept(tmp_path) == {"0": [0, 1] if "unlink" in failing else [0]}
    disk.failing = ()
    for _ in range(2):
        assert list(hand.files.carry_out([write])) == [[JournalWritten(1)]]
    hand.files.close()
    assert kept(tmp_path) == {"0": [0, 1, 2]}
    started = entries(tmp_path / "0" / file_name(1))[0]
    assert isinstance(started, Started)
    assert started.previous_size == size


async def test_a_directory_has_one_server(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(ConfigError, match="in use by another server"):
        Desk(tmp_path)
    await desk.files.close()
    await Desk(tmp_path).files.close()


# ---- a whole server ------------------------------------------------------------------------------


def journalled(tmp_path: Path, mode: str = "sync") -> dict[str, object]:
    return {"server.journal.directory": str(tmp_path / "journal"), "server.journal.mode": mode}


def all_entries(tmp_path: Path) -> list[Entry]:
    return [entry for path in sorted((tmp_path / "journal/0").iterdir()) for entry in entries(path)]


async def conflicting(cluster: EmbeddedCluster) -> None:
    """Two appends that commit, and between them one that meets a lock."""
    async with open_client(cluster.url) as client:
        await client.ready()
        stock = Lock("stock", 7)
        assert await client.append(0, Append(b"one", write=[stock]), based_on=-1) == 0
        with pytest.raises(LockConflictError):
            await client.append(0, Append(b"two", read=[stock]), based_on=-1)
        assert await client.append(0, Append(b"three", header=5)) == 1


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_every_decision_is_there_with_names_marks_verdict_and_time(tmp_path: Path, mode: str) -> None:
    with trio.fail_after(30):
        async with embedded_cluster(partitions=1, settings=journalled(tmp_path, mode)) as cluster:
            await conflicting(cluster)
    found = all_entries(tmp_path)
    one, two, three = [entry for entry in found if isinstance(entry, Decision)]
    assert [entry.verdict for entry in (one, two, three)] == [0, 1, 0]
    assert [entry.transaction_id for entry in (one, two, three)] == [0, -1, 1]
    assert one.write_locks == (Lock("stock", 7).wire(),)
    assert unpack_names(one.names, 1) == [("stock", 7)]
    assert (two.client_mark, two.lock_mark, two.blocking_id, two.conflict) == (-1, 0, 0, 1)
    assert (three.header, three.size) == (5, 5)
    assert 1_600_000_000_000_000 < one.received_us <= one.decided_us <= three.decided_us
    committed = [entry for entry in found if isinstance(entry, CommittedRange)]
    assert [(entry.first, entry.last) for entry in committed] == [(0, 0), (1, 1)]
    assert isinstance(found[1], SessionOpened)


async def test_without_one_nothing_is_written(tmp_path: Path) -> None:
    with trio.fail_after(30):
        settings = {"server.journal.directory": str(tmp_path / "journal")}
        async with embedded_cluster(partitions=1, settings=settings) as cluster:
            await conflicting(cluster)
    assert not (tmp_path / "journal").exists()


async def test_in_sync_a_journal_that_cannot_be_written_refuses_appends_and_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "journal/0"
    with trio.fail_after(120):
        async with embedded_cluster(partitions=1, settings=journalled(tmp_path)) as cluster:
            async with open_client(cluster.url) as client:
                assert await client.append(0, Append(b"zero")) == 0
            await cluster.kill_server(0)
            folder.rename(tmp_path / "kept")
            folder.write_text("not a directory")
            await cluster.restart_server(0)
            while True:  # the session of the killed server ends first, which takes longer than a client waits
                with contextlib.suppress(ClientFailedError):
                    async with open_client(cluster.url):
                        break
            async with open_client(cluster.url) as client:
                await client.ready()
                with pytest.raises(NotCommittedError, match="the decision journal cannot be written"):
                    await client.append(0, Append(b"one"))
                server = cluster.server(0)
                assert server is not None
                assert not server.health()[0]
                snapshot = server.snapshot()
                assert snapshot is not None
                assert "decision journal" in snapshot.partitions[0].reason
                folder.unlink()
                (tmp_path / "kept").rename(folder)
                await cluster.wait_ready()
                assert await client.append(0, Append(b"two")) == 1


async def test_in_async_a_journal_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    with trio.fail_after(60):
        (tmp_path / "journal").mkdir()
        (tmp_path / "journal/0").write_text("not a directory")
        async with embedded_cluster(partitions=1, settings=journalled(tmp_path, "async")) as cluster:
            await conflicting(cluster)
            server = cluster.server(0)
            assert server is not None
            counters: dict[str, int] = {}
            while counters.get("journal-dropped", 0) < 3:  # decisions are answered before the journal has tried them
                await trio.sleep(0.01)
                snapshot = server.snapshot()
                assert snapshot is not None
                counters = dict(snapshot.partitions[0].counters)
            assert counters["journal-dropped"] == 3
            assert counters["journal-written"] == 0


async def test_a_journal_of_little_room_has_no_file_for_each_write(tmp_path: Path) -> None:
    desk = Desk(tmp_path, size_max=1)
    for number in range(20):
        assert isinstance(await desk.write(session(number)), JournalWritten)
    await desk.files.close()
    [file] = (tmp_path / "0").iterdir()
    assert entries(file)[1:] == [session(number) for number in range(20)]


async def test_a_mode_without_a_directory_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"server\.journal\.directory is not set"):
        async with embedded_cluster(partitions=1, settings={"server.journal.mode": "sync"}):
            pass


async def test_an_error_of_any_type_is_the_answer_and_the_thread_goes_on(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with trio.fail_after(30):
        desk.files.perform(JournalWrite(99, 0, KEY, "no bytes", True))  # type: ignore[arg-type]
        assert isinstance(await desk.write(session(1), partition=1), JournalWritten)
        [failed] = [one for one in desk.answers if one.ticket == 99]
        assert isinstance(failed, JournalFailed)
        assert "an error in this process: TypeError" in failed.reason
        assert isinstance(await desk.write(session(1)), JournalWritten)
    await desk.files.close()
    assert desk.failures == []


async def test_nothing_is_written_behind_a_write_that_failed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert isinstance(await desk.write(session(1)), JournalWritten)
    desk.files.perform(JournalWrite(99, 0, KEY, "no bytes", True))  # type: ignore[arg-type]
    assert isinstance(await desk.write(session(2), partition=1), JournalWritten)
    assert isinstance(await desk.write(session(3)), JournalWritten)
    await desk.files.close()
    assert [entries(tmp_path / "0" / file_name(number))[1:] for number in (0, 1)] == [[session(1)], [session(3)]]


async def test_a_thread_that_ends_by_an_error_fails_the_journal_with_the_reason(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.files._queue.put("no write")  # type: ignore[arg-type]
    with trio.fail_after(30):
        while not desk.failures:
            await trio.testing.wait_all_tasks_blocked()
        await desk.files.close()
    [reason] = desk.failures
    assert reason.startswith("the thread of the decision journal ended by an error in this process: AttributeError")
    Desk(tmp_path).files.abandon()  # the directory was let go


def held(directory: Path) -> list[str]:
    """Files and directories below it that this process has open."""
    descriptors = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [where for each in descriptors if (where := os.path.realpath(each)).startswith(str(directory))]


async def test_an_abandoned_journal_writes_nothing_more_and_lets_go(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "journal")
    assert isinstance(await desk.write(session(1)), JournalWritten)
    writing, go_on = threading.Event(), threading.Event()
    directory = desk.files._directory
    carry_out = directory.carry_out

    def slowly(group: Sequence[JournalWrite]) -> Iterator[list[JournalEvent]]:
        writing.set()
        go_on.wait()
        return carry_out(group)

    directory.carry_out = slowly  # type: ignore[method-assign]  # a disk that takes its time
    desk.files.perform(JournalWrite(2, 0, KEY, encode_entry(session(2)), True))
    await trio.to_thread.run_sync(writing.wait)
    desk.files.perform(JournalWrite(3, 0, KEY, encode_entry(session(3)), True))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, desk.files.abandon)
            while not desk.files._mailbox.closed:
                await trio.lowlevel.checkpoint()
            go_on.set()
    assert held(tmp_path / "journal") == []
    await trio.testing.wait_all_tasks_blocked()
    assert [answer.ticket for answer in desk.answers] == [1]
    again = Desk(tmp_path / "journal")  # it was let go
    assert isinstance(await again.write(session(4)), JournalWritten)
    await again.files.close()
    written = [entries(tmp_path / "journal/0" / file_name(number))[1:] for number in (0, 1)]
    assert written == [[session(1), session(2)], [session(4)]]
