"""The decision journal of a server: the lock of its directory, and the thread that writes.

What is written in which order, and what is synced, is in `journal_directory.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_core.server.journal import JournalEvent, JournalWrite
from waltz_core.server.journal_format import Mode
from waltz_trio.base import durable
from waltz_trio.base.groups import groups
from waltz_trio.base.log import described
from waltz_trio.base.mailbox import Mailbox
from waltz_trio.node.journal_directory import JournalDirectory, Report

_FILE_MAX = 64 << 20
_FILE_MIN = 1 << 20
_PARTS = 16  # a file is at most this part of all
_WRITE_MAX = 5.0  # seconds that the write under way may take

Deliver = Callable[[Sequence[JournalEvent]], object]


class JournalFiles:
    """Carries out `JournalWrite`. `perform` queues and returns; answers come to `deliver` in the Trio thread.

    After `close` everything queued has been written. `abandon` is how a killed process looks from the disk.
    An error of any type in a write is its answer; should the thread end by an error even so, nothing would
    answer what is queued, so `failed` must end the process.
    """

    def __init__(
        self,
        directory: Path,
        mode: Mode,
        size_max: int,
        endpoint: Endpoint,
        deliver: Deliver,
        report: Report,
        failed: Callable[[str], object],
    ) -> None:
        """Take the directory.

        Args:
            size_max: bytes of all files together; the oldest are deleted above it. 0 = keep everything.

        Raises:
            ConfigError: it cannot be made, or another process has it.
        """
        self._report = report
        self._failed = failed
        self._token = trio.lowlevel.current_trio_token()
        self._mailbox = Mailbox(deliver, self._token)
        self._queue: SimpleQueue[JournalWrite | None] = SimpleQueue()
        self._lock = _lock(directory)
        try:
            self._directory = JournalDirectory(
                directory,
                mode,
                endpoint,
                self._tell,
                file_max=max(_FILE_MIN, min(_FILE_MAX, size_max // _PARTS)) if size_max else _FILE_MAX,
                size_max=size_max,
                now_us=lambda: time.time_ns() // 1000,
            )
        except OSError as error:
            durable.close(self._lock)
            raise ConfigError(f"server.journal.directory {directory}: {error.strerror}") from error
        self._thread = Thread(target=self._watched, name="waltz-journal", daemon=True)
        self._thread.start()

    def perform(self, effect: JournalWrite) -> None:
        """Queue a write."""
        self._queue.put(effect)

    async def close(self) -> None:
        """Write what is queued, then release the directory."""
        self._queue.put(None)
        await trio.to_thread.run_sync(self._thread.join)

    def abandon(self) -> None:
        """Let go without another write; a successor may take the directory at once."""
        self._mailbox.close()
        self._queue.put(None)
        self._thread.join(_WRITE_MAX)

    # ---- the thread ------------------------------------------------------------------------------

    def _watched(self) -> None:
        try:
            self._run()
        except BaseException as error:
            reason = f"the thread of the decision journal ended by an error in this process: {described(error)}"
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._failed, reason)
        finally:
            self._directory.close()
            os.close(self._lock)

    def _run(self) -> None:
        for group in groups(self._queue):
            if not self._mailbox.closed:
                for events in self._directory.carry_out(group):
                    self._mailbox.post(events)

    def _tell(self, level: Level, text: str) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._report, level, text)


def _lock(directory: Path) -> int:
    try:
        durable.make_directories(directory)  # a file is no more durable than the directories above it
        handle = durable.open_file(directory / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ConfigError(f"server.journal.directory {directory}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        durable.close(handle)
        raise ConfigError(f"server.journal.directory {directory} is in use by another server") from error
    return handle
