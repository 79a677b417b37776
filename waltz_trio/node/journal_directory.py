"""The files of a decision journal, free of threads: the calls for a group of writes, in order, and the answers.

The driver (`journal.py`) runs it in a thread on a real directory, the simulator on a disk that loses power.

Nothing that stands in a file is ever changed. A process begins files of its own, and notes in each how much of the one
before counts; so a torn end needs no repair, and no damage keeps a server from starting. The first entry of a file is
synced before anything else is written to it, and each group of entries before the next, which begins by saying so: that
is how a reader tells a write that was cut short from damage.

The oldest files are deleted first, and age is read from the files alone: dates of a file system follow a clock that an
operator may set back, and change when a directory is copied. The time that a file says it was begun is later than that
of every file before it in the directory, even if the clock was set back. A file is written until the next one of its
partition begins, the last of a partition until its process ends; what was written last stays longest. A name that goes
is synced before the next one of the partition may go, so that no power failure leaves a hole between files.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from waltz_core.base.edge import Level
from waltz_core.base.errors import CorruptionError
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.server.journal import JournalEvent, JournalFailed, JournalWrite, JournalWritten
from waltz_core.server.journal_format import (
    SUFFIX,
    Mode,
    Started,
    Synced,
    decode_entries,
    encode_entry,
    entry_end,
    sound_size,
)
from waltz_trio.base import durable
from waltz_trio.base.durable import FileSystem
from waltz_trio.base.log import described

_START_MAX = 4096  # bytes; more than the first entry of a file, which names a host

Report = Callable[[Level, str], None]


def file_name(number: int) -> str:
    """Of the file with this number."""
    return f"{number:019d}{SUFFIX}"


@record
class OldFile:
    """A file that is not written any more."""

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


class JournalDirectory:
    """One process's use of the directory of a journal. Blocking; `carry_out` is called by one thread."""

    def __init__(
        self,
        directory: Path,
        mode: Mode,
        endpoint: Endpoint,
        report: Report,
        *,
        file_max: int,
        size_max: int = 0,
        now_us: Callable[[], int],
        system: FileSystem = durable,
    ) -> None:
        """Take a directory that is there.

        Args:
            report: takes what operators should know.
            file_max: bytes of a file, above which the next one is begun.
            size_max: bytes of all files together; the oldest are deleted above it. 0 = keep everything.
            now_us: microseconds since 1970.
            system: where the directory is; simulated in tests.

        Raises:
            OSError: it cannot be listed.
        """
        self._directory = directory
        self._mode = mode
        self._endpoint = endpoint
        self._report = report
        self._file_max = file_max
        self._size_max = size_max
        self._now_us = now_us
        self._system = system
        self._mark = [encode_entry(Synced())] if mode is Mode.SYNC else []
        self._files: dict[int, _Open] = {}
        self._counted: dict[int, tuple[int, int]] = {}  # partition → number of its last file, bytes of it that count
        self._unmade: set[int] = set()  # partitions whose next file is there, perhaps, but could not be begun
        self._begun_us = 0  # the latest time that a file says it was begun
        self._old = deque(self._existing())
        self._undeletable: Path | None = None  # was reported
        self._old_size = sum(file.size for file in self._old)

    def carry_out(self, group: Sequence[JournalWrite]) -> Iterator[list[JournalEvent]]:
        """Write a group, partition by partition, each synced once; gives what became of the writes of each.

        Behind the last of them the oldest files are deleted.
        """
        partitions: dict[int, list[JournalWrite]] = {}
        for write in group:
            partitions.setdefault(write.partition_id, []).append(write)
        for partition_id, writes in partitions.items():
            yield self._append(partition_id, writes)
        self._trim()

    def close(self) -> None:
        """Close every file; syncs nothing."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                self._system.close(file.handle)
        self._files.clear()

    def _append(self, partition_id: int, writes: Sequence[JournalWrite]) -> list[JournalEvent]:
        """All or nothing: the file of a failed write is left as it is; what was good of it is noted in the next."""
        try:
            data = b"".join([*self._mark, *[write.data for write in writes]])
            file = self._file(partition_id, writes[0].key)
            self._write(file.handle, data, file.size)
            if any(write.sync for write in writes):
                self._system.sync_data(file.handle)
        except Exception as error:  # of any type: whoever carries this out serves every partition
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
        present = self._files.get(partition_id)
        if present is not None:
            return present
        folder = self._directory / str(partition_id)
        if partition_id not in self._counted:
            self._system.make_directory(folder)
            self._counted[partition_id] = self._look(folder)
        last, counted = self._counted[partition_id]
        self._sync_before(folder, last)
        path = folder / file_name(last + 1)
        if partition_id in self._unmade:
            with contextlib.suppress(FileNotFoundError):
                self._system.unlink(path)
        handle = self._system.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        file = _Open(handle, last + 1, path)
        self._begun_us = max(self._now_us(), self._begun_us + 1)
        start = Started(key, partition_id, last + 1, counted, self._begun_us, self._mode, str(self._endpoint))
        data = encode_entry(start)
        try:
            self._write(handle, data, 0)
            self._system.sync_data(handle)
            for directory in (folder, self._directory):
                self._system.sync_directory(directory)
        except BaseException:
            # A disk that takes no write may not let a file go either: then the next try begins with that.
            self._unmade.add(partition_id)
            self._system.close(handle)
            with contextlib.suppress(OSError):
                self._system.unlink(path)
            raise
        self._unmade.discard(partition_id)
        file.size = len(data)
        self._files[partition_id] = file
        return file

    def _sync_before(self, folder: Path, last: int) -> None:
        """What a file says of the one before must be on disk first: a process may have been killed before its sync."""
        if last < 0:
            return
        try:
            handle = self._system.open_file(folder / file_name(last), os.O_RDWR)
        except FileNotFoundError:
            return  # it was among the oldest
        try:
            self._system.sync_data(handle)
        finally:
            self._system.close(handle)

    def _write(self, handle: int, data: bytes, offset: int) -> None:
        """Write everything at an offset; the operating system may take it in parts."""
        written = self._system.write_at(handle, data, offset)
        while written < len(data):
            written += self._system.write_at(handle, memoryview(data)[written:], offset + written)

    def _look(self, folder: Path) -> tuple[int, int]:
        """Number of the last file that a process before us has left, and how many bytes of it count."""
        numbers = self._numbers(folder)
        if not numbers:
            return -1, -1
        path = folder / file_name(numbers[-1])
        data = self._content(path)
        size, torn = sound_size(data)
        if torn:
            if size < len(data):
                self._report(Level.INFO, f"{path}: the last {len(data) - size} bytes are a write that was cut short")
            return numbers[-1], size
        self._report(Level.ERROR, f"{path}: damaged at offset {size}; a new file is begun, and this one left as it is")
        return numbers[-1], len(data)

    def _numbers(self, folder: Path) -> list[int]:
        """Of the files of a partition, in order."""
        names = [entry.name for entry in self._system.entries(folder) if entry.name.endswith(SUFFIX)]
        return sorted(int(stem) for stem in (name.removesuffix(SUFFIX) for name in names) if _is_number(stem))

    def _content(self, path: Path, size_max: float = math.inf) -> bytes:
        """A file, or its beginning."""
        handle = self._system.open_file(path, os.O_RDONLY)
        try:
            size = min(self._system.size_of(handle), size_max)
            parts, at = [], 0
            while at < size and (part := self._system.read_at(handle, int(size) - at, at)):
                parts.append(part)
                at += len(part)
            return b"".join(parts)
        finally:
            self._system.close(handle)

    def _leave(self, partition_id: int) -> None:
        """Stop writing to the file of a partition."""
        file = self._files.pop(partition_id, None)
        if file is None:
            return
        self._counted[partition_id] = file.number, file.size
        with contextlib.suppress(OSError):
            size = self._system.size_of(file.handle)
            self._old.append(OldFile(file.path, size))
            self._old_size += size
        self._system.close(file.handle)

    # ---- the oldest ------------------------------------------------------------------------------

    def _existing(self) -> list[OldFile]:
        """The files that processes before us have left, the oldest first."""
        aged: list[tuple[float, int, Path, int]] = []
        for entry in self._system.entries(self._directory):
            if entry.is_directory and _is_number(entry.name):
                with contextlib.suppress(OSError):  # its partition cannot be written either, which is reported then
                    aged += self._aged(self._directory / entry.name)
        return [OldFile(path, size) for _, _, path, size in sorted(aged)]

    def _aged(self, folder: Path) -> list[tuple[float, int, Path, int]]:
        """Of each file of a partition: until when it was written, when it was begun, where it is, and its size."""
        paths = [folder / file_name(number) for number in self._numbers(folder)]
        sizes = {entry.name: entry.size for entry in self._system.entries(folder)}
        begun: list[int] = []
        for path in paths:
            # Files that earlier versions wrote have the time of a clock that may have been set back.
            begun.append(max([self._start_of(path), *begun[-1:]]))
        self._begun_us = max([self._begun_us, *begun])
        ended = (*begun[1:], math.inf)
        return [(ended[at], begun[at], path, sizes.get(path.name, 0)) for at, path in enumerate(paths)]

    def _start_of(self, path: Path) -> int:
        """When a file says that it was begun; 0 if it does not say."""
        with contextlib.suppress(OSError, CorruptionError):
            data = self._content(path, _START_MAX)
            for _, entry in decode_entries(data[: max(0, entry_end(data, 0))], str(path)):
                return entry.time_us if isinstance(entry, Started) else 0
        return 0

    def _trim(self) -> None:
        """Delete the oldest files while there is too much."""
        if not self._size_max:
            return
        size = self._old_size + sum(file.size for file in self._files.values())
        while self._old and size > self._size_max:
            oldest = self._old[0]
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._system.unlink(oldest.path)
                self._system.sync_directory(oldest.path.parent)
            except OSError as error:  # the next of its partition must not go before it
                if self._undeletable != oldest.path:
                    self._report(Level.WARNING, f"{oldest.path} cannot be deleted: {error.strerror}")
                self._undeletable = oldest.path
                return
            self._old.popleft()
            size -= oldest.size
            self._old_size -= oldest.size


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
