"""Opening a partition: find the end of the log, tell a torn tail from damage, rebuild what is a cache.

Nothing that may have been acknowledged is ever cut. Whatever cannot be explained by a write that was cut
short becomes a `problem`: the partition is then in limbo, its files stay, its intact records can be read.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from zlib import crc32

from waltz_core.base.errors import CorruptionError
from waltz_core.base.rules import SafetyRules
from waltz_core.storage import index as index_file
from waltz_core.storage.control import ControlEntry
from waltz_core.storage.effects import Create, Cut, FileEntry, Operation, SyncDirectory, SyncFile, Unlink, WriteAt
from waltz_core.storage.log_files import (
    WINDOW,
    LogFiles,
    LogPlace,
    Segment,
    create_operations,
    remove_operations,
    segment_of,
)
from waltz_core.storage.procedure import Procedure, read, write
from waltz_core.storage.record_codec import HEAD_SIZE, RECORD_SIZE_MIN, announced_size, check_record
from waltz_core.storage.segment import (
    HEADER_SIZE,
    SegmentHeader,
    data_name,
    decode_header,
    encode_header,
    holds_lost_sector,
    id_of_name,
    index_name,
    may_be_torn,
    resync,
    scan,
)
from waltz_core.storage.side import FROM_ZERO, LogStart

CHUNK = 1 << 20  # bytes read at once while scanning
RESYNC_WINDOW = 64 << 20  # bytes searched for an intact record behind a bad one
TORN_MAX = 32 << 20  # more than one write can leave behind; beyond it a hole is not a torn write


class Opened:
    """The result: files, and what is wrong with them."""

    __slots__ = ("faults", "grave", "log", "notes", "problem")

    def __init__(self) -> None:
        self.log: LogFiles | None = None
        self.problem: str | None = None  # why the partition is in limbo
        self.faults: set[int] = set()  # ids whose records are damaged or missing
        self.grave = False  # something is wrong that `faults` do not tell
        self.notes: list[str] = []  # what was repaired

    def blame(self, problem: str) -> None:
        """Keep the first problem; the others follow from it more often than not."""
        self.grave = True
        self.blame_records(problem)

    def blame_records(self, problem: str) -> None:
        """The same for records that are damaged or missing, and are told in `faults`."""
        if self.problem is None:
            self.problem = problem

    def forgive(self, log_start: int) -> None:
        """Damage below the log start is nobody's loss, and no other replica could mend it."""
        if self.problem is not None and not self.grave and max(self.faults, default=log_start) < log_start:
            self.notes.append(f"{self.problem}; it is below the log start, {log_start}, so it is left as it is")
            self.problem = None
            self.faults.clear()


class Opening:
    """One run of the procedure.

    Args:
        entry: control record of the partition.
        mark_beside: durable mark written beside a last segment with this first id, None if there is none.
        found: content of the partition's directory.
        assigned: the control file says that files exist.
        start: where the log begins.
    """

    def __init__(
        self,
        where: LogPlace,
        entry: ControlEntry,
        mark_beside: Callable[[int], int | None],
        found: tuple[FileEntry, ...],
        rules: SafetyRules,
        *,
        assigned: bool,
        created_ms: int,
        start: LogStart = FROM_ZERO,
    ) -> None:
        self._where = where
        self._mark_beside = mark_beside
        self._mark: int | None = None
        self._floor = entry.current.local_low_water_mark  # everything up to here was on disk
        self._rules = rules
        self._assigned = assigned
        self._created_ms = created_ms
        self._start = start
        self._sizes = {one.name: one.size for one in found if not one.is_directory}
        self._out = Opened()

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
        for at, name in enumerate(names):
            first = id_of_name(name)
            assert first is not None
            self._check_gap(segments, first)
            following = id_of_name(names[at + 1]) if at + 1 < len(names) else None
            segment = yield from self._segment(name, first, following)
            segments.append(segment)
        self._out.log = LogFiles(segments)
        self._out.forgive(self._start.first_id)
        self._check_orphan(segments[-1])
        self._check_end(segments[-1])
        if self._out.problem is None:
            yield from self._settle(segments[-1])
        return self._out

    # ---- names -----------------------------------------------------------------------------------

    def _data_names(self) -> list[str]:
        names = []
        for name in sorted(self._sizes):
            if not name.endswith(".seg"):
                continue
            if id_of_name(name) is None:
                self._out.blame(f"{self._path(name)}: expected a name of 19 digits for a data file, found {name}")
            else:
                names.append(name)
        return names

    def _find_floor(self, names: list[str]) -> None:
        last = id_of_name(names[-1]) if names else 0
        assert last is not None
        self._mark = self._mark_beside(last)
        if self._mark is not None:
            self._floor = self._mark

    def _path(self, name: str) -> str:
        return f"{self._where.directory}/{name}"

    def _entries_in(self, name: str) -> int:
        """Records the index of a data file speaks of."""
        return max(0, self._sizes.get(index_name(name), 0) - HEADER_SIZE) // index_file.ENTRY_SIZE

    def _none(self) -> Procedure[None]:
        """No data file at all: right only before the partition was assigned."""
        orphans = [name for name in self._sizes if name.endswith(".idx") and self._sizes[name] > HEADER_SIZE]
        if self._assigned or self._floor >= 0 or orphans or self._out.problem:
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

        Nothing goes into a segment before its header is durable, so there is nothing in it to lose.
        """
        if not names:
            return names
        name = names[-1]
        first = id_of_name(name)
        assert first is not None
        if self._floor >= first or self._entries_in(name) or (len(names) == 1 and self._assigned):
            return names
        size = self._sizes[name]
        if size > HEADER_SIZE * 2:
            return names
        data = yield from read(self._path(name), 0, HEADER_SIZE * 2)
        if size >= HEADER_SIZE and any(data):
            return names
        yield from write(
            Unlink(self._path(index_name(name))), Unlink(self._path(name)), SyncDirectory(self._where.directory)
        )
        self._out.notes.append(f"removed {self._path(name)}, left over from a segment that was never begun")
        return names[:-1]

    def _without_given_up(self, names: list[str]) -> Procedure[list[str]]:
        """Go on where raising the log start was cut short: files that end below it go, the oldest first."""
        start = self._start.first_id
        firsts = [found for name in names if (found := id_of_name(name)) is not None]
        if not start or not firsts or len(firsts) != len(names):
            return names
        if self._start.anew and firsts[-1] < start:
            segment = segment_of(self._where, start)
            yield from write(*create_operations(self._where, segment, self._created_ms))
            self._sizes[data_name(start)] = self._sizes[index_name(data_name(start))] = HEADER_SIZE
            names, firsts = [*names, data_name(start)], [*firsts, start]
        count = sum(following <= start for following in firsts[1:])
        for name in names[:count]:
            path, index = self._path(name), index_name(name)
            yield from write(*remove_operations(self._where.directory, self._path(index), path))
            del self._sizes[name]
            self._sizes.pop(index, None)
            self._out.notes.append(f"removed {path}, which ends below the log start, {start}")
        return names[count:]

    def _check_gap(self, segments: list[Segment], first: int) -> None:
        # The first file may begin before the log does: files go as a whole.
        expected = segments[-1].next_id if segments else min(first, self._start.first_id)
        if first == expected or not self._rules.headers_checked:
            return
        if first > expected:
            self._out.faults.update(range(expected, min(first, expected + 10_000)))
            directory = self._where.directory
            self._out.blame(
                f"transactions {expected}..{first - 1} are missing: no data file in {directory} has them: expected "
                f"{data_name(expected)} or a longer file before it, found {data_name(first)} next"
            )
        else:
            self._out.blame(
                f"{self._path(data_name(first))} begins inside the segment before it: expected first transaction "
                f"{expected}, found {first}"
            )

    # ---- one segment -----------------------------------------------------------------------------

    def _segment(self, name: str, first: int, following: int | None) -> Procedure[Segment]:
        path = self._path(name)
        segment = Segment(path, self._path(index_name(name)), first)
        size = self._sizes[name]
        header = decode_header((yield from read(path, 0, HEADER_SIZE)))
        wrong = self._wrong_field(header, first)
        if wrong is not None:
            self._out.blame(f"{path}: {wrong}")
        if header is None:
            return segment
        if following is not None:
            yield from self._sealed(segment, size, following)
        else:
            yield from self._last(segment, size)
        return segment

    def _wrong_field(self, header: SegmentHeader | None, first: int) -> str | None:
        if header is None:
            size = self._sizes[data_name(first)]
            return f"header at offset 0: expected {HEADER_SIZE} bytes, found {size}"
        if header.key != self._where.key:
            key = self._where.key.hex()
            return f"cluster key in the header, at offset 12: expected {key}, found {header.key.hex()}"
        if header.partition_id != self._where.partition_id:
            wanted = self._where.partition_id
            return f"partition in the header, at offset 28: expected {wanted}, found {header.partition_id}"
        if header.first_id != first and self._rules.headers_checked:
            return f"first transaction id in the header, at offset 32: expected {first}, found {header.first_id}"
        return None

    def _blame_record(self, segment: Segment, at: int, bad_id: int, size: int) -> Procedure[None]:
        """Say what is wrong with the record that should be at an offset."""
        path = segment.data_path
        what = yield from self._wrong_with_record(path, at, bad_id, size)
        self._out.blame_records(f"{path}: transaction {bad_id} at offset {at} is damaged: {what}")

    def _wrong_with_record(self, path: str, at: int, bad_id: int, size: int) -> Procedure[str]:
        if size - at < RECORD_SIZE_MIN:
            return f"expected at least {RECORD_SIZE_MIN} bytes, found {size - at}"
        head = yield from read(path, at, HEAD_SIZE)
        found_id = int.from_bytes(head[:8], signed=True)
        if found_id != bad_id:
            return f"its id: expected {bad_id}, found {found_id}"
        length = int.from_bytes(head[28:32], signed=True)
        room = size - at - RECORD_SIZE_MIN
        if not 0 <= length <= room:
            return f"its length: expected 0 to {room}, found {length}"
        body = yield from read(path, at, RECORD_SIZE_MIN + length)
        found = int.from_bytes(body[-4:])
        return f"its checksum: expected {crc32(body[:-4]):08x}, found {found:08x}"

    def _index_fits(self, segment: Segment) -> Procedure[bool]:
        """Whether there is an index whose header belongs to this segment."""
        if self._sizes.get(segment.index_path.rpartition("/")[2], 0) < HEADER_SIZE:
            return False
        header = decode_header((yield from read(segment.index_path, 0, HEADER_SIZE)))
        return header is not None and (header.key, header.partition_id, header.first_id) == (
            self._where.key,
            self._where.partition_id,
            segment.first_id,
        )

    def _sealed(self, segment: Segment, size: int, following: int) -> Procedure[None]:
        """A segment with another one behind it: complete, or damaged."""
        count = following - segment.first_id
        end = yield from self._trusted_end(segment, size, count)
        if end is not None:
            segment.next_id, segment.end = following, end
            segment.window_first = following
            return
        offsets: list[int] = []
        at, next_id = yield from scan_file(segment.data_path, segment.first_id, HEADER_SIZE, size, offsets)
        if next_id == following:
            if self._out.problem is None:
                yield from self._write_index(segment, array("Q", offsets), 0)
            segment.whole = self._out.problem is not None
            segment.extend(offsets, at)
            return
        if next_id > following:
            self._out.blame(
                f"{segment.data_path} holds transactions beyond {following - 1}, as does the next segment: expected "
                f"its end, found transaction {following}"
            )
        elif at >= size:
            missing = f"transactions {next_id}..{following - 1} are missing"
            self._out.blame_records(
                f"{missing}: {segment.data_path} ends at offset {at}: expected transaction {next_id}, found the end; "
                "the next segment begins behind them"
            )
        else:
            yield from self._blame_record(segment, at, next_id, size)
        yield from self._salvage(segment, size, offsets, at, following)

    def _trusted_end(self, segment: Segment, size: int, count: int) -> Procedure[int | None]:
        """Offset behind the last record if the index and the last record check out, without reading the others.

        The others are verified when they are read.
        """
        if not (yield from self._index_fits(segment)):
            return None
        if self._entries_in(segment.data_path.rpartition("/")[2]) != count or count < 1:
            return None
        head = index_file.decode_entries((yield from read(segment.index_path, HEADER_SIZE, index_file.ENTRY_SIZE)))
        tail = index_file.decode_entries(
            (yield from read(segment.index_path, index_file.entry_place(count - 1), index_file.ENTRY_SIZE))
        )
        last_id = segment.first_id + count - 1
        record_size = yield from check_in_file(segment.data_path, tail[0], last_id, size)
        if head[0] != HEADER_SIZE or record_size < 0:
            return None
        end = tail[0] + record_size
        if end < size and (yield from check_in_file(segment.data_path, end, last_id + 1, size)) > 0:
            return None
        return end

    def _last(self, segment: Segment, size: int) -> Procedure[None]:
        """The segment that was written to: find its end."""
        start, start_id = yield from self._checkpoint(segment, size)
        offsets: list[int] = []
        at, next_id = yield from scan_file(segment.data_path, start_id, start, size, offsets)
        segment.extend(offsets, at)
        assert segment.next_id == next_id
        if at < size:
            torn = yield from self._is_torn(segment, at, next_id, size)
            if not torn:
                yield from self._blame_record(segment, at, next_id, size)
                all_offsets: list[int] = []
                at, next_id = yield from scan_file(segment.data_path, segment.first_id, HEADER_SIZE, size, all_offsets)
                yield from self._salvage(segment, size, all_offsets, at, None)
                return
            if self._out.problem is not None:
                return
            yield from write(Cut(segment.data_path, at), SyncFile(segment.data_path))
            self._out.notes.append(
                f"{segment.data_path}: cut {size - at} bytes behind transaction {next_id - 1}, a write that was never "
                "acknowledged"
            )

    def _checkpoint(self, segment: Segment, size: int) -> Procedure[tuple[int, int]]:
        """Where to begin scanning: behind everything known durable if the index agrees, else at the start."""
        beginning = HEADER_SIZE, segment.first_id
        entries = self._entries_in(segment.data_path.rpartition("/")[2])
        count = min(entries, self._floor - segment.first_id + 1)
        if count < 1 or not (yield from self._index_fits(segment)):
            return beginning
        first = max(0, count - WINDOW)
        data = yield from read(
            segment.index_path, index_file.entry_place(first), index_file.ENTRY_SIZE * (count - first)
        )
        known = index_file.decode_entries(data)
        if len(known) != count - first or not index_file.plausible(known, size):
            return beginning
        if first == 0 and known[0] != HEADER_SIZE:
            return beginning
        last_id = segment.first_id + count - 1
        record_size = yield from check_in_file(segment.data_path, known[-1], last_id, size)
        if record_size < 0:
            return beginning
        segment.window_first = segment.first_id + first
        segment.next_id = segment.window_first
        segment.extend(known, known[-1] + record_size)
        return segment.end, segment.next_id

    def _is_torn(self, segment: Segment, at: int, bad_id: int, size: int) -> Procedure[bool]:
        """Whether the bytes behind the last intact record are a write that was cut short, and not damage."""
        if bad_id <= self._floor:
            return False
        window = yield from read(segment.data_path, at, min(size - at, RESYNC_WINDOW))
        follower = resync(window, 0, bad_id)
        if follower is not None:
            follower = at + follower[0], follower[1]
        else:
            follower = yield from self._indexed_follower(segment, at, bad_id, size)
        if follower is None:
            # Without a mark of ours the last write may be one of 0.13.2, of which less is known.
            return size - at <= RESYNC_WINDOW and (self._mark is None or may_be_torn(window, at, bad_id))
        # Intact records behind a bad one: rot, unless a power failure left a hole in the one write under way.
        return self._mark is not None and size - at <= TORN_MAX and holds_lost_sector(window, follower[0] - at, at)

    def _indexed_follower(self, segment: Segment, at: int, bad_id: int, size: int) -> Procedure[tuple[int, int] | None]:
        """The next intact record behind a bad one that the index knows: place in the file and id."""
        if not (yield from self._index_fits(segment)):
            return None
        position = bad_id + 1 - segment.first_id
        data = yield from read(segment.index_path, index_file.entry_place(position), index_file.ENTRY_SIZE * WINDOW)
        for number, place in enumerate(index_file.decode_entries(data)):
            if at < place < size:
                found = bad_id + 1 + number
                if (yield from check_in_file(segment.data_path, place, found, size)) > 0:
                    return place, found
        return None

    def _salvage(
        self, segment: Segment, size: int, offsets: list[int], at: int, following: int | None
    ) -> Procedure[None]:
        """Find the intact records of a damaged segment, for reading only.

        A record behind a bad one counts if the bad one's length or the index leads to it; bytes that merely
        look like a record may be part of somebody's data.
        """
        next_id = segment.first_id + len(offsets)
        while at < size and (following is None or next_id < following):
            follower = None
            announced = yield from self._announced(segment, at, size)
            if announced > 0 and ((yield from check_in_file(segment.data_path, at + announced, next_id + 1, size)) > 0):
                follower = at + announced, next_id + 1
            if follower is None:
                follower = yield from self._indexed_follower(segment, at, next_id, size)
            if follower is None:
                break
            place, found = follower
            self._out.faults.update(range(next_id, found))
            offsets.extend([0] * (found - next_id))
            at, next_id = yield from scan_file(segment.data_path, found, place, size, offsets)
        if following is not None and next_id > following:
            del offsets[following - segment.first_id :]
        elif following is not None and next_id < following:
            self._out.faults.update(range(next_id, min(following, next_id + 10_000)))
        elif following is None and at < size:
            self._out.faults.add(next_id)
        segment.whole = True
        segment.window_first = segment.next_id = segment.first_id
        segment.window = array("Q")
        segment.extend(offsets, at)

    def _announced(self, segment: Segment, at: int, size: int) -> Procedure[int]:
        head = yield from read(segment.data_path, at, HEAD_SIZE)
        if len(head) < HEAD_SIZE:
            return -1
        announced = announced_size(head, 0)
        return announced if 0 < announced <= size - at - RECORD_SIZE_MIN else -1

    # ---- the end ---------------------------------------------------------------------------------

    def _check_orphan(self, last: Segment) -> None:
        """An index with entries that continues the log speaks of a data file that is gone.

        A truncation leaves no such index: it keeps the segment that begins right behind the end.
        """
        data = data_name(last.next_id)
        if data not in self._sizes and self._entries_in(data):
            self._out.blame(f"{self._path(data)} is gone: expected the data of its index, found no file")

    def _check_end(self, last: Segment) -> None:
        """A log that ends before the durable mark has lost records."""
        end = last.next_id - 1
        if end >= self._floor or self._out.problem is not None:
            return
        # Without a mark of our own only the local low-water mark is known, below which 0.13.2 may truncate;
        # an index that goes on behind the data tells a loss from a truncation.
        if self._mark is not None or self._entries_in(last.data_path.rpartition("/")[2]) > end + 1 - last.first_id:
            self._out.faults.update(range(end + 1, min(self._floor + 1, end + 10_000)))
            self._out.blame(
                f"{last.data_path}: the log ends at transaction {end}, but {self._floor} was on disk: expected it at "
                f"offset {last.end} or behind, found the end"
            )

    def _settle(self, last: Segment) -> Procedure[None]:
        """Make sure that what was found is on disk, and that the index of the last segment says so."""
        # After a failed sync the page cache shows bytes that are not on disk, and that no later sync will
        # write. Writing them again makes them dirty, so that the sync below means what it says.
        start: int | None = 0
        if self._floor >= last.first_id:
            start = last.offset(self._floor + 1)
        at = last.end if start is None else start
        while at < last.end:
            piece = yield from read(last.data_path, at, min(CHUNK, last.end - at))
            yield from write(WriteAt(last.data_path, at, piece))
            at += len(piece)
        # Names too: a file whose removal is not durable would come back at the next power failure.
        yield from write(SyncFile(last.data_path), SyncDirectory(self._where.directory))
        entries = array("Q", last.window)
        yield from self._write_index(last, entries, last.window_first - last.first_id)

    def _write_index(self, segment: Segment, entries: array[int], position: int) -> Procedure[None]:
        """Make the index hold `entries` from `position` on and nothing behind; writes only what differs."""
        if not self._rules.index_rebuilt:
            raise CorruptionError(f"{segment.index_path}: the index does not fit the data")
        path = segment.index_path
        size = self._sizes.get(path.rpartition("/")[2], -1)
        wanted = index_file.encode_entries(entries)
        place = index_file.entry_place(position)
        operations: list[Operation] = []
        if not (yield from self._index_fits(segment)):
            assert position == 0
            header = SegmentHeader(self._created_ms, self._where.key, self._where.partition_id, segment.first_id)
            operations += (Create(path), WriteAt(path, 0, encode_header(header) + wanted), SyncFile(path))
            operations.append(SyncDirectory(self._where.directory))
            self._out.notes.append(f"{path}: rebuilt")
        else:
            present = yield from read(path, place, max(0, size - place))
            if present[: len(wanted)] != wanted:
                operations.append(WriteAt(path, place, wanted))
            if size > place + len(wanted):
                operations.append(Cut(path, place + len(wanted)))
            if operations:
                self._out.notes.append(f"{path}: corrected")
            operations.append(SyncFile(path))
        yield from write(*operations)


def check_in_file(path: str, at: int, transaction_id: int, size: int) -> Procedure[int]:
    """Size of the record at an offset of a file if it is intact and has this id, else -1."""
    if not HEADER_SIZE <= at <= size - RECORD_SIZE_MIN:
        return -1
    data = yield from read(path, at, min(size - at, 4096))
    if len(data) >= RECORD_SIZE_MIN:
        announced = announced_size(data, 0)
        if len(data) < announced <= size - at:
            data = yield from read(path, at, announced)
    return check_record(data, 0, transaction_id)


def scan_file(path: str, first_id: int, start: int, size: int, offsets: list[int]) -> Procedure[tuple[int, int]]:
    """Walk over intact records of a file from offset `start` on.

    Returns:
        The offset at which the walk ended, and the id expected there.
    """
    at, next_id, length = start, first_id, CHUNK
    while at < size:
        data = yield from read(path, at, min(length, size - at))
        walked, found = scan(data, 0, next_id, offsets, at)
        at += walked
        if found > next_id:
            next_id, length = found, CHUNK
            continue
        announced = announced_size(data, 0) if len(data) >= RECORD_SIZE_MIN else -1
        if len(data) < announced <= size - at and length < announced:
            length = announced  # one record longer than a chunk
            continue
        break
    return at, next_id
