"""The files of a proxy's cache: one thread does what it is asked, in order. Rules: `waltz_core/proxy/cache.py`."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from waltz_core.base.errors import ConfigError
from waltz_core.proxy.cache import CacheData, CacheDrop, CacheEffect, CacheFailed, CacheRead, CacheWrite, CacheWritten

_PREFIX = "cache-"
_LOCK = "lock"
_DIRECTORY_KEY = "proxy.cache.directory"
_END_S = 1.0  # how long the end waits for what the disk is at
_TURN_S = 0.1  # of the thread; then its answers are told, so that a slow disk is not taken for a silent one

CacheEvent = CacheData | CacheWritten | CacheFailed


class ProxyCache:
    """A directory that holds nothing else; what an earlier process left in it is deleted."""

    def __init__(self, directory: Path, post: Callable[[Sequence[CacheEvent]], None]) -> None:
        """Take the directory.

        Raises:
            ConfigError: it cannot be used, another process uses it, or it holds something else.
        """
        self._directory = directory
        self._post = post
        self._waiting: deque[CacheEffect] = deque()
        self._wanted = trio.Event()
        self._failed = False
        self._idle = threading.Event()
        self._idle.set()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            strange = [path.name for path in directory.iterdir() if not _is_ours(path.name)]
            if strange:
                text = f"{directory} holds {sorted(strange)[0]!r}, which is not of a cache"
                raise ConfigError(f"{_DIRECTORY_KEY}: {text}: give the cache a directory of its own")
            self._lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            self._take_lock()
            if stay := self._clear():
                os.close(self._lock)
                text = f"{directory} must be empty, but cannot be emptied: {stay}; delete what is named"
                raise ConfigError(f"{_DIRECTORY_KEY}: {text}")
        except OSError as error:
            raise ConfigError(f"{_DIRECTORY_KEY}: {directory} cannot be used: {error.strerror}") from error

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(f"{_DIRECTORY_KEY}: another proxy uses {self._directory}") from None

    def _clear(self) -> str:
        """Delete all files; says which of them stay, and why."""
        stay: list[str] = []
        for path in sorted(self._directory.glob(f"{_PREFIX}*")):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                stay.append(f"{path.name} ({error.strerror})")
        return ", ".join(stay)

    def perform(self, effect: CacheEffect) -> None:
        """Do something soon, after what was asked before."""
        self._waiting.append(effect)
        self._wanted.set()

    async def run(self) -> None:
        """Do what is asked."""
        limiter = trio.CapacityLimiter(1)
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            work, self._waiting = self._waiting, deque()
            while work:
                # It ends here or once a thread is at work, not between: its own limiter never keeps it waiting for one.
                await trio.lowlevel.checkpoint_if_cancelled()
                self._idle.clear()
                self._post(await trio.to_thread.run_sync(self._do, work, abandon_on_cancel=True, limiter=limiter))

    def _do(self, work: deque[CacheEffect]) -> list[CacheEvent]:
        try:
            return self._done(work)
        finally:
            self._idle.set()

    def _done(self, work: deque[CacheEffect]) -> list[CacheEvent]:
        """Do the first of the work, as much as a turn is long enough for."""
        events: list[CacheEvent] = []
        done = 0  # bytes of what was to be written
        turn_ends = time.monotonic() + _TURN_S
        while work and time.monotonic() < turn_ends:
            effect = work.popleft()
            done += len(effect.data) if isinstance(effect, CacheWrite) else 0
            if isinstance(effect, CacheRead):
                events.append(CacheData(effect.partition_id, effect.token, self._read(effect)))
                continue
            try:
                self._change(effect)
            except OSError as error:
                stay = self._clear()
                if not self._failed:
                    left = f"; these files stay: {stay}" if stay else ""
                    events.append(CacheFailed(f"{error.strerror}: {self._path(effect.file)}{left}"))
                self._failed = True
        return [*events, CacheWritten(done)] if done else events

    def _read(self, effect: CacheRead) -> bytes | None:
        try:
            number = os.open(self._path(effect.place.file), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return os.pread(number, effect.place.size, effect.place.offset)
        except OSError:
            return None
        finally:
            os.close(number)

    def _change(self, effect: CacheWrite | CacheDrop) -> None:
        path = self._path(effect.file)
        if isinstance(effect, CacheDrop):
            path.unlink(missing_ok=True)
            return
        if self._failed:
            return
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            left = memoryview(effect.data)
            while left:
                left = left[os.write(number, left) :]
        finally:
            os.close(number)

    def _path(self, file: int) -> Path:
        return self._directory / f"{_PREFIX}{file}"

    def close(self) -> str:
        """Delete what is there, and let the directory go; says what stays, and why.

        A disk that hangs does not keep the process: the next one empties the directory.
        """
        stay = self._clear() if self._idle.wait(_END_S) else "the disk does not answer"
        os.close(self._lock)
        return stay


def _is_ours(name: str) -> bool:
    return name == _LOCK or (name.startswith(_PREFIX) and name[len(_PREFIX) :].isdecimal())
