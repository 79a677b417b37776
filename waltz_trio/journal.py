"""The files of a server's decision journal: one thread that appends, rotates, and deletes the oldest.

Nothing that stands in a file is ever changed. A process begins files of its own, and notes in each how much of the one
before counts; so a torn end needs no repair, and no damage keeps a server from starting.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.server.journal import JournalEvent, JournalFailed, JournalWrite, JournalWritten
from waltz_core.server.journal_format import Mode, Started, encode_entry, sound_size
from waltz_trio import durable
from waltz_trio.log import described
from waltz_trio.mailbox import Mailbox

SUFFIX = ".journal"
_FILE_MAX = 64 << 20
_FILE_MIN = 1 << 20
_PARTS = 16  # a file is at most this part of all
_WRITE_MAX = 5.0  # seconds that the write under way may take

Deliver = Callable[[Sequence[JournalEvent]], object]
Report = Callable[[Level, str], None]


def file_name(number: int) -> str:
    """Of the file with this number."""
    return f"{number:019d}{SUFFIX}"


@record
class _Old:
    """A file that is not written any more."""

    changed: float
    path: Path
    size: int


class _Open:
    """The file that a partition writes to; `size` is what counts of it."""

    __slots__ = ("handle", "number", "path", "size")

    def __init__(self, handle: int, number: int, path: Path) -> None:
        self.handle = handle
        self.number = number
        self.path = path
        self.size = 0


class JournalFiles:
    """Carries out `JournalWrite`. `perform` queues and returns; answers come to `deliver` in the Trio thread.

    After `close` everything queued has been written. `abandon` is how a killed process looks from the disk.
    An error in a write is its answer, whatever the type; should the thread end by an error all the same, nobody would
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
        self._directory = directory
        self._mode = mode
        self._size_max = size_max
        self._file_max = max(_FILE_MIN, min(_FILE_MAX, size_max // _PARTS)) if size_max else _FILE_MAX
        self._endpoint = endpoint
        self._report = report
        self._failed = failed
        self._token = trio.lowlevel.current_trio_token()
        self._mailbox = Mailbox(deliver, self._token)
        self._files: dict[int, _Open] = {}
        self._counted: dict[int, tuple[int, int]] = {}  # partition → number of its last file, bytes of it that count
        self._queue: SimpleQueue[JournalWrite | None] = SimpleQueue()
        self._lock = _lock(directory)
        self._old = deque(sorted(_existing(directory), key=lambda one: (one.changed, one.path)))
        self._old_size = sum(one.size for one in self._old)
        self._thread = Thread(target=self._watched, name="waltz-journal", daemon=True)
        self._thread.start()

    def perform(self, effect: JournalWrite) -> None:
        """Queue a write."""
        self._queue.put(effect)

    async def close(self) -> None:
        """Write what is queued, then let go of the directory."""
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
            for file in self._files.values():
                with contextlib.suppress(OSError):
                    os.close(file.handle)
            os.close(self._lock)

    def _run(self) -> None:
        stopped = False
        while not stopped:
            group: dict[int, list[JournalWrite]] = {}
            item = self._queue.get()
            while True:
                if item is None:
                    stopped = True
                    break
                group.setdefault(item.partition_id, []).append(item)
                if self._queue.empty():
                    break
                item = self._queue.get()
            if group and not self._mailbox.closed:
                for partition_id, writes in group.items():
                    self._mailbox.post(self._append(partition_id, writes))
                self._trim()

    def _append(self, partition_id: int, writes: Sequence[JournalWrite]) -> list[JournalEvent]:
        """All or nothing: the file of a failed write is left as it is; what was good of it is noted in the next."""
        try:
            data = b"".join([write.data for write in writes])
            file = self._file(partition_id, writes[0].key)
            durable.write_all(file.handle, data)
            if any(write.sync for write in writes):
                durable.sync_data(file.handle)
        except Exception as error:  # of any type: this thread serves every partition
            self._leave(partition_id)
            if isinstance(error, OSError):
                why = error.strerror or str(error)
            else:
                why = f"an error in this process: {described(error)}"
            reason = f"{self._directory}: {why}"
            return [JournalFailed(write.ticket, reason) for write in writes]
        file.size += len(data)
        if file.size >= self._file_max:
            self._leave(partition_id)
        return [JournalWritten(write.ticket) for write in writes]

    def _file(self, partition_id: int, key: bytes) -> _Open:
        """The file of a partition, a new one if there is none."""
        found = self._files.get(partition_id)
        if found is not None:
            return found
        folder = self._directory / str(partition_id)
        if partition_id not in self._counted:
            durable.make_directory(folder)
            self._counted[partition_id] = self._look(folder)
        last, counted = self._counted[partition_id]
        path = folder / file_name(last + 1)
        handle = durable.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        file = _Open(handle, last + 1, path)
        now_us = time.time_ns() // 1000
        start = Started(key, partition_id, last + 1, counted, now_us, self._mode, str(self._endpoint))
        data = encode_entry(start)
        try:
            durable.write_all(handle, data)
            if self._mode is Mode.SYNC:
                # The entries that follow are synced with this one. Until then an empty file counts nothing.
                for one in (folder, self._directory):
                    durable.sync_directory(one)
        except BaseException:
            durable.close(handle)
            with contextlib.suppress(OSError):
                durable.unlink(path)
            raise
        file.size = len(data)
        self._files[partition_id] = file
        return file

    def _look(self, folder: Path) -> tuple[int, int]:
        """Number of the last file that a process before us has left, and how many bytes of it count."""
        stems = [path.stem for path in folder.glob(f"*{SUFFIX}")]
        numbers = sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())
        if not numbers:
            return -1, -1
        path = folder / file_name(numbers[-1])
        data = path.read_bytes()
        size, torn = sound_size(data)
        if torn:
            if size < len(data):
                self._tell(Level.INFO, f"{path}: the last {len(data) - size} bytes are a write that was cut short")
            return numbers[-1], size
        self._tell(Level.ERROR, f"{path}: damaged at offset {size}; a new file is begun, and this one left as it is")
        return numbers[-1], len(data)

    def _leave(self, partition_id: int) -> None:
        """Write no more to the file of a partition."""
        file = self._files.pop(partition_id, None)
        if file is None:
            return
        durable.close(file.handle)
        self._counted[partition_id] = file.number, file.size
        with contextlib.suppress(OSError):
            size = file.path.stat().st_size
            self._old.append(_Old(time.time(), file.path, size))
            self._old_size += size

    def _trim(self) -> None:
        """Delete the oldest files while there is too much."""
        if not self._size_max:
            return
        size = self._old_size + sum(file.size for file in self._files.values())
        while self._old and size > self._size_max:
            oldest = self._old.popleft()
            with contextlib.suppress(FileNotFoundError):
                try:
                    durable.unlink(oldest.path)
                except OSError as error:
                    self._tell(Level.WARNING, f"{oldest.path} cannot be deleted: {error.strerror}")
                    return
            size -= oldest.size
            self._old_size -= oldest.size

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


def _existing(directory: Path) -> list[_Old]:
    found = []
    for path in directory.glob(f"*/*{SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append(_Old(status.st_mtime, path, status.st_size))
    return found
