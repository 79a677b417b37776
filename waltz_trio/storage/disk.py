"""Carries out disk effects: one writer thread per data directory with group commit, a few readers beside it.

A batch that is alone is carried out by the event loop's own thread, where that is quicker (`in_place.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, TypeAlias

import trio

from waltz_core.storage.effects import (
    DiskBatch,
    DiskEffect,
    DiskEvent,
    DiskList,
    DiskRead,
    Operation,
    SyncDirectory,
    SyncFile,
    WriteAt,
)
from waltz_trio.base.groups import groups
from waltz_trio.base.log import described
from waltz_trio.base.mailbox import Mailbox
from waltz_trio.storage.files import Files
from waltz_trio.storage.group import Failures, Step, SyncEach, SyncWhole, carry_out, look
from waltz_trio.storage.in_place import InPlace, simple
from waltz_trio.storage.syncs import FileSyncs

READERS = 2
Deliver: TypeAlias = Callable[[Sequence[DiskEvent]], object]
Fail: TypeAlias = Callable[[str], object]

_Carried: TypeAlias = tuple[float, list[DiskEvent]]
"""How many seconds a group took, and the answers to its batches."""


class DiskStatistics:
    """Counts since the start; written by the threads of the disk, read by any."""

    __slots__ = ("_mutex", "batches", "groups", "in_place", "recent_ms", "syncs")

    def __init__(self) -> None:
        self.batches = 0
        self.groups = 0
        self.in_place = 0  # groups of one batch, by the event loop
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

    An error of any type in an operation is the answer to its effect: the partition stops with the reason. Should
    a thread end by an error even so, what is queued would never be answered, so `failed` must end the process.
    """

    def __init__(
        self, files: Files, deliver: Deliver, failed: Fail, token: trio.lowlevel.TrioToken | None = None
    ) -> None:
        self.files = files
        self.statistics = DiskStatistics()
        self._syncs = FileSyncs(files, self._apply, self.statistics.synced, lambda: self._groups.closed)
        self._failed = failed
        self._token = token or trio.lowlevel.current_trio_token()
        self._deliver = deliver
        self._looks = Mailbox(deliver, self._token)  # of the readers
        self._groups = Mailbox(self._on_groups, self._token)  # of the writer
        self._in_place = InPlace()
        self._offered: DiskBatch | None = None  # alone so far in this step
        self._writing = 0  # batches that the writer thread has not answered yet
        self._batches: SimpleQueue[DiskBatch | None] = SimpleQueue()
        self._reads: SimpleQueue[DiskRead | DiskList | None] = SimpleQueue()
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
        if isinstance(effect, DiskBatch):
            self._writing += 1
            self._batches.put(effect)
        else:
            self._reads.put(effect)

    def offer(self, batch: DiskBatch) -> None:
        """Queue a batch, unless it may turn out to be alone: the caller calls `settle` at the end of its step."""
        offered, self._offered = self._offered, None
        if offered is not None:
            self.perform(offered)
        elif not self._writing and self._in_place.allows() and simple(batch):
            self._offered = batch
            return
        self.perform(batch)

    def settle(self) -> None:
        """Carry out a batch that was alone in its step, here and now; its answer is delivered before this returns."""
        batch, self._offered = self._offered, None
        if batch is not None and not self._groups.closed:
            self.statistics.in_place += 1
            seconds, events = self._carry_out([batch])
            self._in_place.took(seconds)
            self._deliver(events)

    async def close(self) -> None:
        """Carry out what is queued, then close every file."""
        self._end()
        await trio.to_thread.run_sync(self._join)
        self.files.close()

    def abandon(self) -> None:
        """Let go without a flush. An operation under way ends by itself; the lock is released behind it."""
        self._groups.close()
        self._looks.close()
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
        self._batches.put(None)
        for _ in range(READERS):
            self._reads.put(None)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _close_later(self) -> None:
        self._join()
        self.files.close()
        self._ended.set()

    # ---- the writer ------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        for group in groups(self._batches):
            if not self._groups.closed:
                self._groups.post([self._carry_out(group)])
        self._syncs.close()

    def _carry_out(self, group: list[DiskBatch]) -> _Carried:
        """Carry out a group of batches, up to the moment at which the disk is abandoned."""
        begin = time.perf_counter()
        steps = carry_out(group, self._syncs.prefers_whole)
        answer: Any = None
        while not self._groups.closed:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                self.statistics.batches += len(group)
                self.statistics.groups += 1
                return time.perf_counter() - begin, end.value
            answer = self._answer(step)
        return 0.0, []

    def _on_groups(self, groups: Sequence[_Carried]) -> None:
        """In the thread of Trio: groups are done."""
        for seconds, events in groups:
            self._in_place.took(seconds)
            self._writing -= len(events)
            self._deliver(events)

    def _answer(self, step: Step) -> Exception | Failures | None:
        try:
            if type(step) is WriteAt:  # most of them
                self.files.apply(step)
            elif type(step) is SyncEach:
                return self._syncs.each(step.files)
            elif type(step) is SyncWhole:
                self._syncs.whole(step.files)
            else:
                self._apply(step)  # type: ignore[arg-type]  # what is left is an operation
        except Exception as error:
            return error
        return None

    def _apply(self, operation: Operation) -> None:
        if type(operation) is SyncFile or type(operation) is SyncDirectory:
            start = time.perf_counter()
            self.files.apply(operation)
            self.statistics.synced(time.perf_counter() - start)
        else:
            self.files.apply(operation)

    # ---- the readers -----------------------------------------------------------------------------

    def _read_loop(self) -> None:
        while (effect := self._reads.get()) is not None:
            if self._looks.closed:
                continue
            self._looks.post([look(self.files, effect)])
