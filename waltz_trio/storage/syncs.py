"""Makes many files durable at once: in parallel, or by one sync of their file system, whichever is faster here.

A storage node serves hundreds of partitions, each with files of its own; one `fdatasync` after the other costs the
device as many flushes. `syncfs` costs one, but it also writes what other processes have left in the cache of the same
file system. So both are timed, and the cheaper one is used; the other is tried again the more seldom the more it costs.

What a failure means (docs/adr/0016-syncing-many-files.md): `syncfs` reports an error of *any* file of the file system,
also of other processes, and does not say of which. It is then asked file by file, and each file answers for itself: an
error that befell it stays with its descriptor until it is asked. So no file counts as durable after a failure unless
its own `fdatasync` says so, and errors of others stop no partition.

What failed before this process began, `syncfs` would not report: it has told the one before, which may have been killed
just then. So the first sync of every file that was there before is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from waltz_core.storage.effects import SyncFile
from waltz_trio.storage.files import Files
from waltz_trio.storage.group import Failures

THREADS = 4  # more of them wait for the same journal of the file system
_TRY_SHARE = 32  # of the time that syncs take, one part may go into timing the slower way again
_SLOWER_MAX = 8  # times at which it is tried in any case: what was once that slow may have been a hiccup
_NEWEST = 0.25  # weight of the newest time


class SyncTimes:
    """Which way is faster for a number of files: what one sync of all costs, and what each file costs otherwise."""

    __slots__ = ("_all", "_each", "_spent", "_tries")

    def __init__(self) -> None:
        self._all: float | None = None  # seconds of one sync of the file system
        self._each: float | None = None  # seconds for each file, several at a time
        self._spent = 0.0  # seconds of syncs since the slower way was tried
        self._tries = False  # now

    def choose(self, count: int) -> bool:
        """Whether to sync the file system as a whole, for a group of `count` files."""
        if self._all is None or self._each is None:
            return self._all is None
        whole, each = self._all, self._each * count
        slower = min(max(whole, each), _SLOWER_MAX * min(whole, each))
        self._tries = self._spent >= _TRY_SHARE * slower
        return (whole < each) != self._tries

    def took(self, whole: bool, count: int, seconds: float) -> None:
        """A group of `count` files took so long."""
        if whole:
            self._all = self._newer(self._all, seconds)
        else:
            self._each = self._newer(self._each, seconds / count)
        self._spent = 0.0 if self._tries else self._spent + seconds
        self._tries = False

    def _newer(self, before: float | None, newest: float) -> float:
        if before is None or (self._tries and newest < before):
            return newest  # the next groups correct it, if that was luck
        return before + _NEWEST * (newest - before)


class FileSyncs:
    """Syncs groups of files. Used by one thread; `close` when it ends."""

    def __init__(
        self,
        files: Files,
        sync_one: Callable[[SyncFile], None],
        note: Callable[[float], None],
        stopped: Callable[[], bool],
    ) -> None:
        """Sync files of a data directory.

        Args:
            sync_one: makes one file durable, and counts that; called by several threads.
            note: called with the seconds of each sync of the whole file system.
            stopped: whether syncs have ended, and nothing waits for one.
        """
        self._files = files
        self._stopped = stopped
        self._sync_one = sync_one
        self._note = note
        self._times = SyncTimes()
        self._pool: ThreadPoolExecutor | None = None

    def prefers_whole(self, wanted: Sequence[SyncFile]) -> bool:
        """Whether one sync of the file system covers these files and has been the faster way."""
        return self._files.covers(wanted) and self._times.choose(len(wanted))

    def whole(self, wanted: Sequence[SyncFile]) -> None:
        """Make the whole file system durable.

        Raises:
            OSError: something was not, perhaps nothing of ours.
        """
        start = perf_counter()
        self._files.sync_whole()
        seconds = perf_counter() - start
        self._note(seconds)
        self._times.took(True, len(wanted), seconds)

    def each(self, wanted: Sequence[SyncFile]) -> Failures:
        """Each file for itself, a few at a time; returns those that may not be durable, each with its error."""
        if len(wanted) == 1:
            return self._some(wanted)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "waltz-sync")
        start = perf_counter()
        failures: Failures = {}
        parts = [wanted[at::THREADS] for at in range(min(THREADS, len(wanted)))]
        for failed in self._pool.map(self._some, parts):
            failures.update(failed)
        self._times.took(False, len(wanted), perf_counter() - start)
        return failures

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _some(self, wanted: Sequence[SyncFile]) -> Failures:
        failures: Failures = {}
        for sync in wanted:
            if self._stopped():
                break
            try:
                self._sync_one(sync)
            except Exception as error:
                failures[sync] = error
        return failures
