"""Opening one data file: its header, its end if it was written to last, what is intact of it if it is damaged.

| file | is sound if |
|---|---|
| sealed: another one follows | index and last record check out, or else all records, up to where the next file begins |
| last: it was written to | behind its last intact record stands nothing, or a write that was cut short; that is cut |

A file that is not sound is damaged, and never changed. Its intact records are found for reading only: where the index
or the length of a bad record leads to them, as bytes that merely look like a record may be part of a payload.

A record that the disk cannot read is damaged, and never a write that was cut short: it may come back. An index that it
cannot read is none. A header that it cannot read is written again by a repair; in the same sector stand the first
records, so all of them are looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress

from waltz_core.base.checksum import crc32
from waltz_core.storage import index as index_file
from waltz_core.storage.effects import Cut, SyncFile
from waltz_core.storage.evidence import MISSING_MAX, Evidence
from waltz_core.storage.log_files import WINDOW, LogPlace, Segment
from waltz_core.storage.procedure import DiskError, Procedure, ReadSpan, read, read_all, write
from waltz_core.storage.record_codec import HEAD_SIZE, RECORD_SIZE_MIN, announced_size
from waltz_core.storage.scanning import (
    check_readable,
    passable,
    place_in_file,
    read_readable,
    record_span,
    scan_readable,
)
from waltz_core.storage.segment import (
    HEADER_SIZE,
    SegmentHeader,
    decode_header,
    holds_lost_sector,
    index_name,
    may_be_torn,
    resync,
)

# More than one write can leave behind: a server's batch with one payload of the largest frame, 64 MiB, or several
# appends of `write_bytes_max` together. Beyond it a hole is not a torn write.
TORN_MAX = 80 << 20
RESYNC_WINDOW = TORN_MAX  # bytes searched for an intact record behind a bad one


def wrong_field(header: SegmentHeader | None, size: int, where: LogPlace, first: int) -> str | None:
    """What is wrong with the header of a data or index file of `size` bytes; None if nothing is."""
    if header is None:
        return f"header at offset 0: expected {HEADER_SIZE} bytes, found {size}"
    if header.key != where.key:
        return f"cluster key in the header, at offset 12: expected {where.key.hex()}, found {header.key.hex()}"
    if header.partition_id != where.partition_id:
        return f"partition in the header, at offset 28: expected {where.partition_id}, found {header.partition_id}"
    if header.first_id != first:
        return f"first transaction id in the header, at offset 32: expected {first}, found {header.first_id}"
    return None


class SegmentOpening:
    """The data files of one partition, one after the other."""

    __slots__ = ("_evidence", "_floor", "_mark", "_out", "_sizes", "_where", "entries", "position")

    def __init__(self, evidence: Evidence) -> None:
        self.entries = array("Q")  # what the index of the last file should hold from `position` on
        self.position = 0
        self._evidence = evidence
        self._where = evidence.where
        self._sizes = evidence.sizes
        self._floor = evidence.floor
        self._mark = evidence.mark
        self._out = evidence.out

    def run(self, name: str, first: int, following: int | None) -> Procedure[Segment]:
        """Open the file of a name, whose first id is `first`; the next file, if there is one, begins at `following`.

        Raises:
            DiskError: a file cannot be read or written.
        """
        path = self._evidence.path(name)
        segment = Segment(path, self._evidence.path(index_name(name)), first)
        size = self._sizes[name]
        try:
            header = decode_header((yield from read(path, 0, HEADER_SIZE)))
        except DiskError as fault:
            if not passable(fault):
                raise
            yield from self._without_header(segment, size, following, fault)
            return segment
        wrong = wrong_field(header, size, self._where, first)
        if wrong is not None:
            self._out.blame(f"{path}: {wrong}")
        if header is None:
            return segment
        if following is not None:
            yield from self._sealed(segment, size, following)
        else:
            yield from self._last(segment, size)
        return segment

    def read_ahead(self, sealed: Sequence[tuple[str, tuple[int, int]]]) -> Procedure[dict[ReadSpan, bytes]]:
        """What opening these files, given with their first id and that behind them, reads if they are sound.

        Where something cannot be read, nothing more is read ahead: the opening of that file meets it, and judges it.
        """
        known: dict[ReadSpan, bytes] = {}
        with suppress(DiskError):
            yield from self._read_ahead(sealed, known)
        return known

    def _read_ahead(
        self, sealed: Sequence[tuple[str, tuple[int, int]]], known: dict[ReadSpan, bytes]
    ) -> Procedure[None]:
        spans: list[ReadSpan] = []
        lasts: list[tuple[str, ReadSpan]] = []  # data file, and where its index has the place of the last record
        for name, (first, following) in sealed:
            path, index = self._evidence.path(name), self._evidence.path(index_name(name))
            spans.append(ReadSpan(path, 0, HEADER_SIZE))
            entries = self._evidence.entries_in(name)
            if 1 <= entries == following - first:
                spans.append(ReadSpan(index, 0, HEADER_SIZE))
                spans.append(ReadSpan(index, HEADER_SIZE, index_file.ENTRY_SIZE))
                last = ReadSpan(index, index_file.entry_place(entries - 1), index_file.ENTRY_SIZE)
                spans.append(last)
                lasts.append((name, last))
        known.update(zip(spans, (yield from read_all(spans)), strict=True))
        spans = []
        for name, last in lasts:
            at, size = int.from_bytes(known[last]), self._sizes[name]
            if place_in_file(at, size):
                spans.append(record_span(self._evidence.path(name), at, size))
        known.update(zip(spans, (yield from read_all(spans)), strict=True))

    def place(self, last: Segment, transaction_id: int) -> int:
        """Offset of a record of the last file, none before those that were scanned; its end if it is behind all."""
        # Not from the window of the segment: that forgets all but the newest.
        at = transaction_id - last.first_id - self.position
        assert at >= 0
        return self.entries[at] if at < len(self.entries) else last.end

    def _blame_record(self, segment: Segment, at: int, bad_id: int, size: int) -> Procedure[None]:
        """Say what is wrong with the record that should be at an offset."""
        path = segment.data_path
        try:
            what = yield from self._wrong_with_record(path, at, bad_id, size)
        except DiskError as fault:
            if not passable(fault):
                raise
            what = f"it cannot be read: {fault}"
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

    def _without_header(self, segment: Segment, size: int, following: int | None, fault: DiskError) -> Procedure[None]:
        """A segment whose header cannot be read: find what else cannot."""
        problem = f"{segment.data_path}: its header cannot be read: {fault}"
        self._out.blame_records(problem)
        offsets: list[int] = []
        at, *_ = yield from scan_readable(segment.data_path, segment.first_id, HEADER_SIZE, size, offsets)
        yield from self._salvage(segment, size, offsets, at, following)
        if following is None:
            self.entries, self.position = array("Q", offsets), 0
        if segment.first_id not in self._out.faults:
            self._out.blame(problem)  # else it is mended with the first record, or given up with it

    def _sealed(self, segment: Segment, size: int, following: int) -> Procedure[None]:
        """A segment with another one behind it: complete, or damaged."""
        count = following - segment.first_id
        end = yield from self._trusted_end(segment, size, count)
        if end is not None:
            segment.next_id, segment.end = following, end
            segment.window_first = following
            return
        offsets: list[int] = []
        at, next_id, _ = yield from scan_readable(segment.data_path, segment.first_id, HEADER_SIZE, size, offsets)
        if next_id == following:
            if self._out.problem is None:
                yield from self._evidence.write_index(segment, array("Q", offsets), 0)
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
        if not (yield from self._evidence.index_fits(segment)):
            return None
        if self._evidence.entries_in(segment.data_path.rpartition("/")[2]) != count or count < 1:
            return None
        read_index = self._evidence.read_index
        head = index_file.decode_entries(
            (yield from read_index(segment.index_path, HEADER_SIZE, index_file.ENTRY_SIZE))
        )
        tail = index_file.decode_entries(
            (yield from read_index(segment.index_path, index_file.entry_place(count - 1), index_file.ENTRY_SIZE))
        )
        if not head or not tail:
            return None
        last_id = segment.first_id + count - 1
        record_size = yield from check_readable(segment.data_path, tail[0], last_id, size)
        if head[0] != HEADER_SIZE or record_size < 0:
            return None
        end = tail[0] + record_size
        if end < size and (yield from check_readable(segment.data_path, end, last_id + 1, size)) > 0:
            return None
        return end

    def _last(self, segment: Segment, size: int) -> Procedure[None]:
        """The segment that was written to: find its end."""
        start, start_id = yield from self._checkpoint(segment, size)
        offsets: list[int] = []
        at, next_id, stuck = yield from scan_readable(segment.data_path, start_id, start, size, offsets)
        # Before the segment forgets all but the newest: an index that does not count is made from all of them.
        self.position = segment.window_first - segment.first_id
        self.entries = array("Q", [*segment.window, *offsets])
        segment.extend(offsets, at)
        assert segment.next_id == next_id
        if at < size:
            # What cannot be read may have been acknowledged, and come back.
            torn = not stuck and (yield from self._is_torn(segment, at, next_id, size))
            if not torn:
                yield from self._blame_record(segment, at, next_id, size)
                all_offsets: list[int] = []
                at, next_id, _ = yield from scan_readable(
                    segment.data_path, segment.first_id, HEADER_SIZE, size, all_offsets
                )
                yield from self._salvage(segment, size, all_offsets, at, None)
                # If the damage is forgiven, the file goes on behind it: so must the index.
                self.entries, self.position = array("Q", all_offsets), 0
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
        entries = self._evidence.entries_in(segment.data_path.rpartition("/")[2])
        count = min(entries, self._floor - segment.first_id + 1)
        if count < 1 or not (yield from self._evidence.index_fits(segment)):
            return beginning
        first = max(0, count - WINDOW)
        # To its end, as it is compared later: that it cannot be read must be known here, where all can be scanned.
        data = yield from self._evidence.read_index(
            segment.index_path, index_file.entry_place(first), index_file.ENTRY_SIZE * (entries + 1 - first)
        )
        known = index_file.decode_entries(data[: index_file.ENTRY_SIZE * (count - first)])
        if len(known) != count - first or not index_file.plausible(known, size):
            return beginning
        if first == 0 and known[0] != HEADER_SIZE:
            return beginning
        last_id = segment.first_id + count - 1
        record_size = yield from check_readable(segment.data_path, known[-1], last_id, size)
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
        try:
            window = yield from read(segment.data_path, at, min(size - at, RESYNC_WINDOW))
        except DiskError as fault:
            if not passable(fault):
                raise
            return False
        follower = resync(window, 0, bad_id)
        if follower is not None:
            follower = at + follower[0], follower[1]
        else:
            follower = yield from self._indexed_follower(segment, at, bad_id, size)
        if follower is None:
            # Without a mark of ours the last write may be one of 0.13.2, about which less is known.
            return size - at <= RESYNC_WINDOW and (self._mark is None or may_be_torn(window, at, bad_id))
        # Intact records behind a bad one: rot, unless a power failure left a hole in the one write under way.
        return self._mark is not None and size - at <= TORN_MAX and holds_lost_sector(window, follower[0] - at, at)

    def _indexed_follower(self, segment: Segment, at: int, bad_id: int, size: int) -> Procedure[tuple[int, int] | None]:
        """The next intact record behind a bad one that the index knows: place in the file and id."""
        if not (yield from self._evidence.index_fits(segment)):
            return None
        position = bad_id + 1 - segment.first_id
        data = yield from self._evidence.read_index(
            segment.index_path, index_file.entry_place(position), index_file.ENTRY_SIZE * WINDOW
        )
        for number, place in enumerate(index_file.decode_entries(data)):
            if at < place < size:
                found = bad_id + 1 + number
                if (yield from check_readable(segment.data_path, place, found, size)) > 0:
                    return place, found
        return None

    def _salvage(
        self, segment: Segment, size: int, offsets: list[int], at: int, following: int | None
    ) -> Procedure[None]:
        """Find the intact records of a damaged segment, for reading only.

        A record behind a bad one counts if the bad one's length or the index leads to it; bytes that merely
        look like a record may be part of a payload.
        """
        next_id = segment.first_id + len(offsets)
        while at < size and (following is None or next_id < following):
            follower = None
            announced = yield from self._announced(segment, at, size)
            behind = at + announced, next_id + 1
            if announced > 0 and (yield from check_readable(segment.data_path, *behind, size)) > 0:
                follower = behind
            if follower is None:
                follower = yield from self._indexed_follower(segment, at, next_id, size)
            if follower is None:
                break
            place, resumed = follower
            self._out.faults.update(range(next_id, resumed))
            offsets.extend([0] * (resumed - next_id))
            at, next_id, _ = yield from scan_readable(segment.data_path, resumed, place, size, offsets)
        if following is not None and next_id > following:
            del offsets[following - segment.first_id :]
        elif following is not None and next_id < following:
            self._out.faults.update(range(next_id, min(following, next_id + MISSING_MAX)))
        elif following is None and at < size:
            last_id, span = next_id, record_span(segment.data_path, at, size)
            if self._mark is not None and (yield from read_readable(span.path, span.offset, span.length)) is None:
                # Others may be in the bad sector, and it can only be written over as a whole.
                last_id = max(next_id, min(self._mark, next_id + MISSING_MAX))
            self._out.faults.update(range(next_id, last_id + 1))
        segment.whole = True
        segment.window_first = segment.next_id = segment.first_id
        segment.window = array("Q")
        segment.extend(offsets, at)

    def _announced(self, segment: Segment, at: int, size: int) -> Procedure[int]:
        try:
            head = yield from read(segment.data_path, at, HEAD_SIZE)
        except DiskError as fault:
            if not passable(fault):
                raise
            return -1
        if len(head) < HEAD_SIZE:
            return -1
        announced = announced_size(head, 0)
        return announced if 0 < announced <= size - at - RECORD_SIZE_MIN else -1
