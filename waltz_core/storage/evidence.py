"""The evidence by which a partition's files are judged at opening, and the verdict."""

from __future__ import annotations

from array import array

from waltz_core.base.record import record
from waltz_core.storage import index as index_file
from waltz_core.storage.effects import Create, Cut, FaultKind, FileEntry, Operation, SyncDirectory, SyncFile, WriteAt
from waltz_core.storage.log_files import LogFiles, LogPlace, Segment
from waltz_core.storage.procedure import DiskError, Procedure, read, write
from waltz_core.storage.segment import (
    HEADER_SIZE,
    SegmentHeader,
    data_name,
    decode_header,
    encode_header,
    index_name,
)

MISSING_MAX = 10_000  # missing records of one gap that are named at once


@record
class MarkedEnd:
    """A durable mark: up to where the log was on disk, and the first id of the segment that was the last one then."""

    mark: int
    last_segment: int


class Opened:
    """The result: files, and what is wrong with them."""

    __slots__ = ("faults", "grave", "log", "notes", "problem")

    def __init__(self) -> None:
        self.log: LogFiles | None = None
        self.problem: str | None = None  # why the partition is in limbo
        self.faults: set[int] = set()  # ids whose records are damaged or missing
        self.grave = False  # something is wrong beyond what `faults` name
        self.notes: list[str] = []  # what was repaired

    def blame(self, problem: str) -> None:
        """Keep the first problem; the others usually follow from it."""
        self.grave = True
        self.blame_records(problem)

    def blame_records(self, problem: str) -> None:
        """The same for records that are damaged or missing, and stand in `faults`."""
        if self.problem is None:
            self.problem = problem

    def forgive(self, log_start: int) -> None:
        """Damage below the log start loses nothing, and no other replica could mend it."""
        if self.problem is not None and not self.grave and max(self.faults, default=log_start) < log_start:
            self.notes.append(f"{self.problem}; it is below the log start, {log_start}, so it is left as it is")
            self.problem = None
            self.faults.clear()


class Evidence:
    """Of one opening."""

    __slots__ = ("created_ms", "floor", "mark", "out", "sizes", "where")

    def __init__(self, where: LogPlace, present: tuple[FileEntry, ...], created_ms: int, floor: int) -> None:
        self.where = where
        self.created_ms = created_ms  # of files that are made
        self.sizes = {entry.name: entry.size for entry in present if not entry.is_directory}
        self.floor = floor  # everything up to here was on disk
        self.mark: int | None = None  # the durable mark, None if none counts
        self.out = Opened()

    def adopt_mark(self, mark: int | None) -> None:
        """Judge by the durable mark; where none counts, the local low-water mark is all that is known."""
        self.mark = mark
        if mark is not None:
            self.floor = mark

    def path(self, name: str) -> str:
        """A file of the partition."""
        return f"{self.where.directory}/{name}"

    def entries_in(self, name: str) -> int:
        """Records the index of a data file speaks of."""
        return max(0, self.sizes.get(index_name(name), 0) - HEADER_SIZE) // index_file.ENTRY_SIZE

    def read_index(self, path: str, offset: int, length: int) -> Procedure[bytes]:
        """Bytes of an index, which is a cache: where it cannot be read there are none."""
        try:
            return (yield from read(path, offset, length))
        except DiskError:
            return b""

    def index_fits(self, segment: Segment) -> Procedure[bool]:
        """Whether there is an index whose header belongs to this segment."""
        path = segment.index_path
        if self.sizes.get(path.rpartition("/")[2], 0) < HEADER_SIZE:
            return False
        header = decode_header((yield from self.read_index(path, 0, HEADER_SIZE)))
        return header is not None and (header.key, header.partition_id, header.first_id) == (
            self.where.key,
            self.where.partition_id,
            segment.first_id,
        )

    def write_index(self, segment: Segment, entries: array[int], position: int) -> Procedure[None]:
        """Make the index hold `entries` from `position` on and nothing behind; writes only what differs.

        Raises:
            DiskError: it cannot be written; or not be read, though it was when `entries` were found.
        """
        path = segment.index_path
        size = self.sizes.get(path.rpartition("/")[2], -1)
        wanted = index_file.encode_entries(entries)
        place = index_file.entry_place(position)
        operations: list[Operation] = []
        fits, present = (yield from self.index_fits(segment)), b""
        if fits:
            try:
                present = yield from read(path, place, max(0, size - place))
            except DiskError:
                fits = False
        if not fits and position:
            raise DiskError(FaultKind.IO, f"{path} cannot be read any more")
        if not fits:
            header = SegmentHeader(self.created_ms, self.where.key, self.where.partition_id, segment.first_id)
            operations += (Create(path), WriteAt(path, 0, encode_header(header) + wanted), SyncFile(path))
            operations.append(SyncDirectory(self.where.directory))
            self.out.notes.append(f"{path}: rebuilt")
        else:
            if present[: len(wanted)] != wanted:
                operations.append(WriteAt(path, place, wanted))
            if size > place + len(wanted):
                operations.append(Cut(path, place + len(wanted)))
            if operations:
                self.out.notes.append(f"{path}: corrected")
            operations.append(SyncFile(path))
        yield from write(*operations)

    # ---- the log as a whole ----------------------------------------------------------------------

    def check_gap(self, expected: int, first: int) -> None:
        """A data file begins where the one before it ends."""
        if first > expected:
            self.out.faults.update(range(expected, min(first, expected + MISSING_MAX)))
            self.out.blame(
                f"transactions {expected}..{first - 1} are missing: no data file in {self.where.directory} has them: "
                f"expected {data_name(expected)} or a longer file before it, found {data_name(first)} next"
            )
        elif first < expected:
            self.out.blame(
                f"{self.path(data_name(first))} begins inside the segment before it: expected first transaction "
                f"{expected}, found {first}"
            )

    def check_end(self, last: Segment) -> None:
        """A log that ends before the durable mark has lost records."""
        self._check_orphan(last)
        end = last.next_id - 1
        if end >= self.floor or self.out.problem is not None:
            return
        # Without a mark of our own only the local low-water mark is known, below which 0.13.2 may truncate;
        # an index that continues behind the data shows a loss, not a truncation.
        if self.mark is not None or self.entries_in(last.data_path.rpartition("/")[2]) > end + 1 - last.first_id:
            self.out.faults.update(range(end + 1, min(self.floor + 1, end + MISSING_MAX)))
            self.out.blame(
                f"{last.data_path}: the log ends at transaction {end}, but {self.floor} was on disk: "
                f"expected it at offset {last.end} or behind, found the end"
            )

    def check_last_segment(self, last: Segment, marked: MarkedEnd) -> None:
        """The segment is gone that was the last one when the mark was written, with its index.

        A truncation lowers the mark before it removes a segment. A full disk may take one back whose records were not
        acknowledged, beside a mark that ends before it.
        """
        end = last.next_id - 1
        if marked.mark >= marked.last_segment:
            self.out.faults.update(range(end + 1, min(marked.mark + 1, end + MISSING_MAX)))
            self.out.blame(
                f"{self.path(data_name(marked.last_segment))} is gone: transaction {marked.mark} was on disk, found "
                f"the log to end at {end}"
            )

    def _check_orphan(self, last: Segment) -> None:
        """An index with entries that continues the log shows that a data file is gone.

        A truncation leaves no such index: it keeps the segment that begins right behind the end.
        """
        data = data_name(last.next_id)
        if data not in self.sizes and self.entries_in(data):
            self.out.blame(f"{self.path(data)} is gone: expected the data of its index, found no file")
