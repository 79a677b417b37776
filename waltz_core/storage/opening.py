"""Opening a partition: find the end of the log, distinguish a torn tail from damage, rebuild caches.

Nothing that may have been acknowledged is ever cut. A state that an interrupted write cannot explain
becomes a `problem`: the partition is then in limbo, its files stay, its intact records can be read.
"""

from __future__ import annotations

from itertools import islice, pairwise

from waltz_core.storage.control import ControlEntry
from waltz_core.storage.effects import FileEntry, SyncDirectory, SyncFile, Unlink, WriteAt
from waltz_core.storage.evidence import Evidence, MarkedEnd, Opened
from waltz_core.storage.log_files import (
    LogFiles,
    LogPlace,
    Segment,
    create_operations,
    remove_operations,
    segment_of,
)
from waltz_core.storage.procedure import Procedure, ReadSpan, foreseen, read, write
from waltz_core.storage.scanning import CHUNK, read_readable
from waltz_core.storage.segment import (
    HEADER_SIZE,
    data_name,
    id_of_name,
    index_name,
)
from waltz_core.storage.segment_opening import SegmentOpening
from waltz_core.storage.side import FROM_ZERO, LogStart

_AHEAD = 128  # sealed segments whose ends are read together: a hop to the disk and back takes longer than what it reads


class Opening:
    """One run of the procedure.

    Args:
        entry: control record of the partition.
        marked: what the durable mark says beside the present control struct, None if there is none.
        present: content of the partition's directory.
        assigned: the control file says that files exist.
        start: where the log begins.
    """

    def __init__(
        self,
        where: LogPlace,
        entry: ControlEntry,
        marked: MarkedEnd | None,
        present: tuple[FileEntry, ...],
        *,
        assigned: bool,
        created_ms: int,
        start: LogStart = FROM_ZERO,
    ) -> None:
        evidence = Evidence(where, present, created_ms, entry.current.local_low_water_mark)
        self._evidence = evidence
        self._where = where
        self._sizes = evidence.sizes
        self._created_ms = created_ms
        self._out = evidence.out
        self._marked = marked
        self._assigned = assigned
        self._start = start

    def run(self) -> Procedure[Opened]:
        """Open, repairing caches and cutting a torn tail on the way.

        Raises:
            DiskError: a file cannot be read or written.
        """
        names = self._data_names()
        self._find_floor(names)
        kept = yield from self._without_leftover(names)
        kept = yield from self._without_given_up(kept)
        if kept != names:
            names = kept
            self._find_floor(names)
        if not names:
            yield from self._none()
            return self._out
        segments: list[Segment] = []
        segment_opening = SegmentOpening(self._evidence)  # from here on the evidence does not change
        firsts = [id_of_name(name) or 0 for name in names]
        known: dict[ReadSpan, bytes] = {}
        for at, name in enumerate(names):
            if at % _AHEAD == 0:
                sealed = zip(names[at:-1], pairwise(firsts[at:]), strict=True)
                known = yield from segment_opening.read_ahead(list(islice(sealed, _AHEAD)))
            first, following = firsts[at], firsts[at + 1] if at + 1 < len(names) else None
            # The first file may begin before the log does: files are removed whole.
            expected = segments[-1].next_id if segments else min(first, self._start.first_id)
            self._evidence.check_gap(expected, first)
            segment = yield from foreseen(segment_opening.run(name, first, following), known)
            segments.append(segment)
        self._out.log = LogFiles(segments)
        self._out.forgive(self._start.first_id)
        self._evidence.check_end(segments[-1])
        if self._marked is not None and self._marked.last_segment > firsts[-1]:
            self._evidence.check_last_segment(segments[-1], self._marked)
        if self._out.problem is None:
            yield from self._settle(segments[-1], segment_opening)
            yield from self._evidence.write_index(segments[-1], segment_opening.entries, segment_opening.position)
        return self._out

    # ---- names -----------------------------------------------------------------------------------

    def _data_names(self) -> list[str]:
        names = []
        for name in sorted(self._sizes):
            if not name.endswith(".seg"):
                continue
            if id_of_name(name) is None:
                self._out.blame(
                    f"{self._evidence.path(name)}: expected a name of 19 digits for a data file, found {name}"
                )
            else:
                names.append(name)
        return names

    def _find_floor(self, names: list[str]) -> None:
        last = id_of_name(names[-1]) if names else 0
        assert last is not None
        counts = self._marked is not None and self._marked.last_segment == last
        self._evidence.adopt_mark(self._marked.mark if self._marked is not None and counts else None)

    def _none(self) -> Procedure[None]:
        """No data file at all: right only before the partition was assigned."""
        orphans = [name for name in self._sizes if name.endswith(".idx") and self._sizes[name] > HEADER_SIZE]
        if self._assigned or self._evidence.floor >= 0 or orphans or self._out.problem:
            self._out.blame(
                f"{self._where.directory}: the partition is assigned, but its data files are gone: expected "
                f"{data_name(0)}, found none"
            )
            return
        first = segment_of(self._where, 0)
        yield from write(*create_operations(self._where, first, self._created_ms))
        self._out.log = LogFiles([first])

    def _without_leftover(self, names: list[str]) -> Procedure[list[str]]:
        """Remove the last data file if a roll was cut short before its header was durable.

        A segment gets its first record after its header is durable, so this one holds nothing.
        """
        if not names:
            return names
        name = names[-1]
        first = id_of_name(name)
        assert first is not None
        if self._evidence.floor >= first or self._evidence.entries_in(name) or (len(names) == 1 and self._assigned):
            return names
        size = self._sizes[name]
        if size > HEADER_SIZE * 2:
            return names
        data = yield from read_readable(self._evidence.path(name), 0, HEADER_SIZE * 2)
        if data is None or (size >= HEADER_SIZE and any(data)):
            return names
        yield from write(
            Unlink(self._evidence.path(index_name(name))),
            Unlink(self._evidence.path(name)),
            SyncDirectory(self._where.directory),
        )
        self._out.notes.append(f"removed {self._evidence.path(name)}, left over from a segment that was never begun")
        return names[:-1]

    def _without_given_up(self, names: list[str]) -> Procedure[list[str]]:
        """Continue an interrupted raise of the log start: remove files that end below it, the oldest first."""
        start = self._start.first_id
        firsts = [first for name in names if (first := id_of_name(name)) is not None]
        if not start or not firsts or len(firsts) != len(names):
            return names
        if self._start.anew and firsts[-1] < start:
            segment = segment_of(self._where, start)
            yield from write(*create_operations(self._where, segment, self._created_ms))
            self._sizes[data_name(start)] = self._sizes[index_name(data_name(start))] = HEADER_SIZE
            names, firsts = [*names, data_name(start)], [*firsts, start]
        count = sum(following <= start for following in firsts[1:])
        for name in names[:count]:
            path, index = self._evidence.path(name), index_name(name)
            yield from write(*remove_operations(self._where.directory, self._evidence.path(index), path))
            del self._sizes[name]
            self._sizes.pop(index, None)
            self._out.notes.append(f"removed {path}, which ends below the log start, {start}")
        return names[count:]

    # ---- the end ---------------------------------------------------------------------------------

    def _settle(self, last: Segment, segment_opening: SegmentOpening) -> Procedure[None]:
        """Make durable what was read."""
        # After a failed sync the page cache shows bytes that are not on disk, and that no later sync will
        # write. Writing them again makes them dirty, so that the sync below means what it says.
        at = 0
        if self._evidence.floor >= last.first_id:
            at = segment_opening.place(last, self._evidence.floor + 1)
        while at < last.end:
            piece = yield from read(last.data_path, at, min(CHUNK, last.end - at))
            yield from write(WriteAt(last.data_path, at, piece))
            at += len(piece)
        # Names too: a file whose removal is not durable would come back at the next power failure.
        yield from write(SyncFile(last.data_path), SyncDirectory(self._where.directory))
