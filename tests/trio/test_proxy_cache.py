"""The files of a proxy's cache: what they hold and for whom, what becomes of them, and of a disk that fails."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from waltz_core.base.errors import ConfigError
from waltz_core.proxy.cache import (
    SILENCE_MS,
    CacheData,
    CacheDrop,
    CacheEffect,
    CacheFailed,
    CacheRead,
    CacheWrite,
    CacheWritten,
    Place,
)
from waltz_trio.node import proxy_cache
from waltz_trio.node.proxy_cache import CacheEvent, ProxyCache


class Desk:
    """A directory, and what its thread has said."""

    def __init__(self, directory: Path) -> None:
        self.said: list[CacheEvent] = []
        self.stay = ""  # what could not be deleted at the end
        self._token = 0
        self._news = trio.Event()
        self.cache = ProxyCache(directory, self._post)

    def _post(self, events: Sequence[CacheEvent]) -> None:
        self.said += events
        self._news.set()

    async def read(self, file: int, offset: int, size: int) -> bytes | None:
        """What stands at a place, behind everything that was asked for before."""
        self._token += 1
        self.cache.perform(CacheRead(0, self._token, Place(file, offset, size, 0, 1)))
        with trio.fail_after(30):
            while True:
                for each in self.said:
                    if isinstance(each, CacheData) and each.token == self._token:
                        return each.data
                self._news = trio.Event()
                await self._news.wait()

    async def do(self, *effects: CacheEffect) -> None:
        """Have something done."""
        for effect in effects:
            self.cache.perform(effect)
        await self.read(-1, 0, 0)

    def written(self) -> list[int]:
        return [each.size for each in self.said if isinstance(each, CacheWritten)]

    def failures(self) -> list[str]:
        return [each.reason for each in self.said if isinstance(each, CacheFailed)]


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Desk]:
    desk = Desk(directory)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.cache.run)
        yield desk
        nursery.cancel_scope.cancel()
    desk.stay = desk.cache.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_what_was_written_is_read_where_it_stands_until_its_file_is_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.do(CacheWrite(0, b"one"), CacheWrite(0, b"two"), CacheWrite(1, b"three"))
        assert await desk.read(0, 3, 3) == b"two"
        assert await desk.read(1, 0, 5) == b"three"
        await desk.do(CacheDrop(0), CacheDrop(0))
        assert names(tmp_path) == ["cache-1", "lock"], "dropped files give their room back"
        assert await desk.read(0, 0, 3) is None
        assert await desk.read(1, 0, 5) == b"three"
        assert desk.failures() == []
    assert names(tmp_path) == ["lock"]


async def test_it_says_how_much_it_is_done_with_whether_the_disk_took_it_or_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.do(CacheWrite(0, b"one"), CacheWrite(0, b"three"))
        assert sum(desk.written()) == len(b"onethree")
        (tmp_path / "cache-1").symlink_to(tmp_path / "nowhere")
        await desk.do(CacheWrite(1, b"two"), CacheWrite(1, b"three"))
        assert sum(desk.written()) == len(b"onethreetwothree")


async def test_a_process_begins_with_nothing(tmp_path: Path) -> None:
    """Else it would append behind what it does not know, and nobody would delete that."""
    (tmp_path / "cache-0").write_bytes(b"of a process that was killed")
    (tmp_path / "cache-77").touch()
    async with opened(tmp_path) as desk:
        assert names(tmp_path) == ["lock"]
        await desk.do(CacheWrite(0, b"mine"))
        assert await desk.read(0, 0, 4) == b"mine"


async def test_records_in_a_cache_are_for_the_user_who_runs_the_proxy_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with opened(tmp_path / "cache") as desk:
            await desk.do(CacheWrite(0, b"x"))
            modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "cache").iterdir()}
            assert modes == {"cache-0": 0o600, "lock": 0o600}
            assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


async def test_nothing_is_written_or_read_through_a_link(tmp_path: Path) -> None:
    directory, precious = tmp_path / "cache", tmp_path / "precious"
    precious.write_bytes(b"of somebody else")
    async with opened(directory) as desk:
        (directory / "cache-0").symlink_to(precious)
        assert await desk.read(0, 0, 16) is None
        await desk.do(CacheWrite(0, b"x"))
        assert len(desk.failures()) == 1
    assert precious.read_bytes() == b"of somebody else"


async def test_a_disk_that_failed_is_told_once_given_its_room_back_and_written_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.do(CacheWrite(0, b"one"))
        (tmp_path / "cache-1").symlink_to(tmp_path / "nowhere")
        await desk.do(CacheWrite(1, b"two"), CacheWrite(1, b"three"), CacheWrite(2, b"four"))
        assert names(tmp_path) == ["lock"]
        (tmp_path / "cache-3").symlink_to(tmp_path / "nowhere")
        await desk.do(CacheWrite(3, b"five"))
        assert desk.failures() == [f"{os.strerror(errno.ELOOP)}: {tmp_path / 'cache-1'}"]


STAY = f"cache-0 ({os.strerror(errno.EISDIR)}), cache-2 ({os.strerror(errno.EISDIR)})"


async def test_a_cache_does_not_begin_with_files_that_it_cannot_delete_and_names_all_of_them(tmp_path: Path) -> None:
    """It would append behind what it does not know. What can be deleted is, and the directory is free again."""
    for name in ("cache-0", "cache-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "cache-1").touch()
    (tmp_path / "cache-3").touch()
    with pytest.raises(ConfigError) as caught:
        Desk(tmp_path)
    text = f"{tmp_path} must be empty, but cannot be emptied: {STAY}; delete what is named"
    assert str(caught.value) == f"proxy.cache.directory: {text}"
    assert names(tmp_path) == ["cache-0", "cache-2", "lock"]
    for name in ("cache-0", "cache-2"):
        (tmp_path / name).rmdir()
    async with opened(tmp_path) as desk:
        await desk.do(CacheWrite(0, b"mine"))


async def test_one_file_that_cannot_be_deleted_keeps_no_other_on_the_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.do(CacheWrite(1, b"one"), CacheWrite(3, b"three"))
        for name in ("cache-0", "cache-2"):
            (tmp_path / name).mkdir()
        await desk.do(CacheWrite(0, b"x"))
        assert names(tmp_path) == ["cache-0", "cache-2", "lock"]
        why = os.strerror(errno.EISDIR)
        assert desk.failures() == [f"{why}: {tmp_path / 'cache-0'}; these files stay: {STAY}"]
    assert desk.stay == STAY


async def test_a_disk_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    pipe = tmp_path / "cache-0"
    async with opened(tmp_path) as desk:
        os.mkfifo(pipe)  # opening it to write waits for a reader
        desk.cache.perform(CacheWrite(0, b"one"))
        await trio.sleep(0.1)
    assert "the disk does not answer" in desk.stay
    assert pipe.exists()
    assert pipe.read_bytes() == b"one", "the disk answers again, and the thread that nobody awaits goes on"


async def test_a_slow_disk_answers_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ten seconds of work at once, and would be given up if the first answer came with the last one."""
    clock = Clock()
    told_at: list[float] = []

    def read(cache: ProxyCache, effect: CacheRead) -> bytes:
        clock.now += 0.05
        return b"x"

    monkeypatch.setattr(proxy_cache, "time", clock)
    monkeypatch.setattr(ProxyCache, "_read", read)
    async with opened(tmp_path) as desk:
        post = desk.cache._post

        def timed(events: Sequence[CacheEvent]) -> None:
            told_at.append(clock.now)
            post(events)

        monkeypatch.setattr(desk.cache, "_post", timed)
        await desk.do(*(CacheRead(0, token, Place(0, 0, 1, 0, 1)) for token in range(1000, 1200)))
        assert [each.token for each in desk.said if isinstance(each, CacheData)] == [*range(1000, 1200), 1]
    silences = [later - earlier for earlier, later in itertools.pairwise([0.0, *told_at])]
    assert sum(silences) > 10
    assert max(silences) * 1000 < SILENCE_MS / 10


class Clock:
    """Stands in for `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """In seconds, as that of the module."""
        return self.now


async def test_an_end_before_a_thread_has_begun_does_not_wait_for_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.do(CacheWrite(0, b"abc"))
        desk.cache.perform(CacheWrite(0, b"def"))  # its task is woken, and ended before it runs
    assert desk.stay == ""
    assert names(tmp_path) == ["lock"]
