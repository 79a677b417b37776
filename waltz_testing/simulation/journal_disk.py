"""The disk of a simulated server's journal: the driver's calls take their time, and a crash falls between any two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from waltz_core.base.edge import Level
from waltz_core.base.ids import Endpoint
from waltz_core.server.journal import JournalEvent, JournalWrite, JournalWritten
from waltz_core.server.journal_format import SUFFIX, Decision, Mode, Started, decode_entries, sound_size
from waltz_testing.simulation.contents import Sectors
from waltz_testing.simulation.mount import ROOT, Mount, PowerCut
from waltz_testing.simulation.volume import Volume, lose_some, parent_of
from waltz_testing.simulation.world import SimNode, World
from waltz_trio.node.journal_directory import JournalDirectory

_SLOW_MS = 30
_OUTAGE_MS = 3_000
_ROOM_MAX = 60  # bytes that fit in an outage: a write may be cut short before it fails
_CRASH_CALLS = (0, 3, 20)  # calls at most that a process makes between its last answer and its end
_FILE_MAX = (700, 20_000, 1 << 20)
_FILES = (0, 0, 3, 20)  # files of that size that are kept; 0 = all
_JUMPS_MS = (0, 0, -3_600_000, 3_600_000)  # of the wall clock, between one process and the next

Key = tuple[int, int, bytes]  # partition, transaction id, request id


class JournalDisk:
    """The disk of one server; it outlives the process.

    What is written in which order and what is synced is the driver's own code; here is when.

    Attributes:
        outages: from and until when the disk is full.
        decisions: appends that were decided, of which the entry is durable; kept in mode `sync` alone.
    """

    def __init__(self, world: World, node: SimNode, mode: Mode) -> None:
        self.world = world
        self.node = node
        self.mode = mode
        self.decisions: dict[Key, Decision] = {}
        self.outages: list[tuple[int, int]] = []
        self._rng = Random(f"{world.seed}/journal/{node.name}")
        self._file_max = self._rng.choice(_FILE_MAX)
        self._size_max = self._rng.choice(_FILES) * self._file_max
        self._wall_ms = 10 * max(_JUMPS_MS)
        self._volume = Volume(Sectors)
        self._mount = Mount(self._volume)
        self._mount.short = self._rng
        self._mount.on_call = self._called
        self._durable: dict[str, set[Key]] = {}  # file that was not deleted → decisions that are durable in it
        self._writing: dict[int, JournalWrite] = {}  # by ticket
        self._directory: JournalDirectory | None = None  # of the process that runs
        self._queued: list[JournalWrite] = []
        self._group: Iterator[list[JournalEvent]] | None = None  # under way
        node.plugins[JournalWrite] = self._write
        node.on_crash = self._crashed

    def draw_outages(self, before: int) -> None:
        """In some runs the disk is full for a while."""
        for _ in range(self._rng.choice((0, 0, 1, 2))):
            start = self._rng.randrange(max(1, before - _OUTAGE_MS))
            self.outages.append((start, start + self._rng.randrange(_OUTAGE_MS)))

    # ---- the writer ------------------------------------------------------------------------------

    def _write(self, effect: JournalWrite) -> None:
        self._queued.append(effect)
        self._writing[effect.ticket] = effect
        if self._group is None:
            self._later()

    def _later(self) -> None:
        """Go on in a while, with everything that is queued by then."""
        epoch = self.node.epoch
        if self._group is None:
            self._group = iter(())

        def act() -> None:
            if epoch == self.node.epoch:
                self._work()

        self.world.after(self._rng.randrange(1, _SLOW_MS), act)

    def _work(self) -> None:
        """The writes of one partition; those of the next take a while of their own."""
        for event in self._next():
            write = self._writing.pop(event.ticket)
            if isinstance(event, JournalWritten):
                self._note(write)
            self.node.post(event)
        if self._group is not None or self._queued:
            self._later()

    def _next(self) -> list[JournalEvent]:
        """Let the driver go on; what it answers."""
        full = any(start <= self.world.now < end for start, end in self.outages)
        used = sum(file.size for file in self._volume.files.values())
        self._mount.capacity = used + self._rng.randrange(_ROOM_MAX) if full else None
        events = next(self._group, None) if self._group is not None else None
        if events is None:
            self._group = None
            if self._queued:
                group, self._queued = self._queued, []
                self._group = self._open().carry_out(group)
                events = next(self._group)
        return events or []

    def _open(self) -> JournalDirectory:
        if self._directory is None:
            self._wall_ms += self._rng.choice(_JUMPS_MS)
            self._directory = JournalDirectory(
                ROOT,
                self.mode,
                Endpoint(self.node.name, 6000),
                self._report,
                file_max=self._file_max,
                size_max=self._size_max,
                now_us=lambda: (self._wall_ms + self.world.now) * 1000,
                system=self._mount,
            )
        return self._directory

    def _report(self, level: Level, text: str) -> None:
        assert level is not Level.ERROR, f"damaged by a mere crash: {text}"
        self.world.trace(f"{self.node.name}: {text}")

    def _crashed(self) -> None:
        """Some of what was under way happened; if the machine lost its power, unsynced bytes go too."""
        self._mount.calls_left = self._rng.randint(0, self._rng.choice(_CRASH_CALLS))
        try:
            while self._group is not None or self._queued:
                self._next()
        except PowerCut:
            pass
        self._mount.calls_left = None
        self._mount.forget()
        self._queued.clear()
        self._writing.clear()
        self._group = self._directory = None
        if self._rng.random() < 0.5:
            lose_some(self._volume, self._rng)

    # ---- what is durable -------------------------------------------------------------------------

    def _called(self, call: str, path: str, offset: int) -> None:
        if call == "unlink":
            self._durable.pop(path, None)

    def _note(self, write: JournalWrite) -> None:
        """What was acknowledged must be durable, if the journal is synchronous."""
        if self.mode is not Mode.SYNC:
            return
        path = max(name for name in self._volume.files if parent_of(name) == str(write.partition_id))
        kept = self._volume.durable_files.get(path) if parent_of(path) in self._volume.durable_directories else None
        assert kept is not None, f"{path} was acknowledged and may lose its name"
        assert write.data in kept.durable, f"{path} was acknowledged and not synced"
        for _, entry in decode_entries(write.data, path):
            if isinstance(entry, Decision) and entry.transaction_id >= 0:
                key = write.partition_id, entry.transaction_id, entry.req_id
                self.decisions[key] = entry
                self._durable.setdefault(path, set()).add(key)

    def problem(self) -> str:
        """Why a reader of the files would not find now what was durable and was not deleted; empty if it would."""
        held: set[Key] = set()
        names = sorted(name for name in self._volume.files if name.endswith(SUFFIX))
        for name, following in pairwise([*names, ""]):
            data = bytes(self._volume.files[name].volatile)
            size, torn = sound_size(data)
            counted = -1
            if parent_of(following) == parent_of(name):
                if _number(following) != _number(name) + 1:
                    return f"{name} is followed by {following}"
                counted = self._counted_by(following)
            if counted > size:
                return f"{name} has {size} sound bytes, the next file counts {counted}"
            if counted < 0 and not torn:
                return f"{name} is damaged at {size}"
            size = size if counted < 0 else counted
            for _, entry in decode_entries(data[:size], name):
                if isinstance(entry, Decision):
                    held.add((int(parent_of(name)), entry.transaction_id, entry.req_id))
        lost = sorted(set().union(*self._durable.values()) - held)
        return f"decisions were durable and are in no file: {lost[:5]}" if lost else ""

    def _counted_by(self, name: str) -> int:
        """How much of the file before it a file counts; -1 if its process ended before it said so."""
        data = bytes(self._volume.files[name].volatile)
        first = next(decode_entries(data[: sound_size(data)[0]], name), None)
        return first[1].previous_size if first is not None and isinstance(first[1], Started) else -1


def _number(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix(SUFFIX))
