"""Carries out disk effects: one writer thread per data directory with group commit, a few readers beside it."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TypeAlias

import trio

from waltz_core.storage.effects import (
    DiskBatch,
    DiskBytes,
    DiskDone,
    DiskEffect,
    DiskEvent,
    DiskFailed,
    DiskList,
    DiskListing,
    DiskRead,
    FaultKind,
    Operation,
    SyncDirectory,
    SyncFile,
)
from waltz_trio.log import described
from waltz_trio.mailbox import Mailbox
from waltz_trio.storage.files import Files, kind_of
from waltz_trio.storage.syncs import FileSyncs

READERS = 2
Deliver: TypeAlias = Callable[[Sequence[DiskEvent]], object]
Fail: TypeAlias = Callable[[str], object]

_Sync: TypeAlias = SyncFile | SyncDirectory
_STOP = object()


class DiskStatistics:
    """Counts since the start; written by the threads of the disk, read by anybody."""

    __slots__ = ("_mutex", "batches", "groups", "recent_ms", "syncs")

    def __init__(self) -> None:
        self.batches = 0
        self.groups = 0
        self.syncs = 0
        self.recent_ms: deque[float] = deque(maxlen=100)  # the last syncs
        self._mutex = Lock()

    def synced(self, seconds: float) -> None:
        """A file, a directory, or the whole file system was synced."""
        with self._mutex:
            self.syncs += 1
            self.recent_ms.append(seconds * 1000)

    @property
    def sync_ms(self) -> float:
        """Mean time of the last 100 syncs."""
        recent = list(self.recent_ms)
        return sum(recent) / len(recent) if recent else 0.0


class Disk:
    """The files of one data directory, driven by effects.

    `perform` queues an effect and returns at once; completions arrive at `deliver` in the Trio thread. After
    `close` every queued batch has been carried out. `abandon` is how a killed process looks from the disk: what was not
    carried out never is, nothing is synced any more, and nothing is delivered.

    An error in an operation is the answer to its effect, whatever its type: the partition stops with the reason. Should
    a thread end by an error all the same, nobody would ever answer what is queued, so `failed` must end the process.
    """

    def __init__(
        self, files: Files, deliver: Deliver, failed: Fail, token: trio.lowlevel.TrioToken | None = None
    ) -> None:
        self.files = files
        self.statistics = DiskStatistics()
        self._syncs = FileSyncs(files, self._apply, self.statistics.synced, lambda: self._mailbox.closed)
        self._failed = failed
        self._token = token or trio.lowlevel.current_trio_token()
        self._mailbox = Mailbox(deliver, self._token)
        self._batches: SimpleQueue[object] = SimpleQueue()
        self._reads: SimpleQueue[object] = SimpleQueue()
        loops = {"waltz-disk": (self._write_loop, 1), "waltz-read": (self._read_loop, READERS)}
        self._threads = [
            Thread(target=self._watched, args=(name, loop), name=name, daemon=True)
            for name, (loop, count) in loops.items()
            for _ in range(count)
        ]
        self._ended = Event()
        for thread in self._threads:
            thread.start()

    def perform(self, effect: DiskEffect) -> None:
        """Queue an effect."""
        (self._batches if type(effect) is DiskBatch else self._reads).put(effect)

    async def close(self) -> None:
        """Carry out what is queued, then close every file."""
        self._end()
        await trio.to_thread.run_sync(self._join)
        self.files.close()

    def abandon(self) -> None:
        """Let go without a flush. An operation under way ends by itself; the lock is released behind it."""
        self._mailbox.close()
        self._end()
        Thread(target=self._close_later, name="waltz-abandon", daemon=True).start()

    async def wait_abandoned(self) -> None:
        """Wait until the last operation of an abandoned disk has ended: only then may the directory be opened again."""
        await trio.to_thread.run_sync(self._ended.wait)

    def _watched(self, name: str, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            reason = f"thread {name} of the disk ended by an error in this process: {described(error)}"
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._failed, reason)

    def _end(self) -> None:
        self._batches.put(_STOP)
        for _ in range(READERS):
            self._reads.put(_STOP)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _close_later(self) -> None:
        self._join()
        self.files.close()
        self._ended.set()

    # ---- the writer ------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        stopped = False
        while not stopped:
            group: list[DiskBatch] = []
            item = self._batches.get()
            while True:
                if item is _STOP:
                    stopped = True
                    break
                assert isinstance(item, DiskBatch)
                group.append(item)
                if self._batches.empty():
                    break
                item = self._batches.get()
            if group and not self._mailbox.closed:
                self._mailbox.post(self._carry_out(group))
        self._syncs.close()

    def _carry_out(self, group: list[DiskBatch]) -> list[DiskEvent]:
        """Write all batches, then sync every file they end with, each once."""
        failures: dict[int, Exception] = {}
        wanted: dict[_Sync, list[int]] = {}
        for batch in group:
            body, syncs = _trailing_syncs(batch.operations)
            try:
                for operation in body:
                    if self._mailbox.closed:
                        return []
                    self._apply(operation)
            except Exception as error:  # of any type: this thread serves every partition
                failures[batch.ticket] = error
                continue
            for sync in syncs:
                wanted.setdefault(sync, []).append(batch.ticket)
        for sync, why in self._sync_all(list(wanted)):
            for ticket in wanted[sync]:
                failures.setdefault(ticket, why)
        if self._mailbox.closed:
            return []
        self.statistics.batches += len(group)
        self.statistics.groups += 1
        return [
            _failed(batch.ticket, failures[batch.ticket]) if batch.ticket in failures else DiskDone(batch.ticket)
            for batch in group
        ]

    def _sync_all(self, wanted: list[_Sync]) -> Iterator[tuple[_Sync, Exception]]:
        """Make files durable, then directories: a name must not become durable before what it stands for."""
        files = [sync for sync in wanted if isinstance(sync, SyncFile)]
        if files and not self._mailbox.closed:
            yield from self._syncs.sync(files).items()
        for sync in wanted:
            if isinstance(sync, SyncDirectory) and not self._mailbox.closed:
                try:
                    self._apply(sync)
                except Exception as error:
                    yield sync, error

    def _apply(self, operation: Operation) -> None:
        if type(operation) is SyncFile or type(operation) is SyncDirectory:
            start = time.perf_counter()
            self.files.apply(operation)
            self.statistics.synced(time.perf_counter() - start)
        else:
            self.files.apply(operation)

    # ---- the readers -----------------------------------------------------------------------------

    def _read_loop(self) -> None:
        while (effect := self._reads.get()) is not _STOP:
            if self._mailbox.closed:
                continue
            assert isinstance(effect, DiskRead | DiskList)
            self._mailbox.post([self._look(effect)])

    def _look(self, effect: DiskRead | DiskList) -> DiskEvent:
        try:
            if isinstance(effect, DiskRead):
                return DiskBytes(effect.ticket, self.files.read(effect.path, effect.offset, effect.length))
            return DiskListing(effect.ticket, self.files.entries(effect.path))
        except Exception as error:
            return _failed(effect.ticket, error)


def _trailing_syncs(operations: tuple[Operation, ...]) -> tuple[tuple[Operation, ...], list[_Sync]]:
    """What must be carried out in place, and the syncs at the end that may wait for those of other batches."""
    at = len(operations)
    while at and isinstance(operations[at - 1], SyncFile | SyncDirectory):
        at -= 1
    return operations[:at], [one for one in operations[at:] if isinstance(one, SyncFile | SyncDirectory)]


def _failed(ticket: int, error: Exception) -> DiskFailed:
    if isinstance(error, OSError):
        return DiskFailed(ticket, kind_of(error), error.strerror or str(error))
    return DiskFailed(ticket, FaultKind.IO, f"an error in this process: {described(error)}")
