"""Writing good records over damaged ones, in place: nothing intact is ever moved, cut or overwritten.

    the place of a run ◀── the end of the intact record before it, or the beginning of the file
    its length must reach exactly the intact record behind it; at the end of the log there may be none
    a header that cannot be read is written together with the first record, which stands in the same sector
    write ──▶ sync ──▶ read again: a record counts as mended only if it reads back as it was written

A crash at any point leaves damage only where damage was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from waltz_core.base.log import Record
from waltz_core.storage.effects import Operation, SyncDirectory, SyncFile, WriteAt
from waltz_core.storage.log_files import LogFiles, LogPlace, Segment, create_operations, segment_of
from waltz_core.storage.procedure import DiskError, Procedure, list_names, read, write
from waltz_core.storage.reading import bounds_of, locate
from waltz_core.storage.record_codec import HEAD_SIZE, encode_record
from waltz_core.storage.scanning import check_in_file, check_readable, read_readable
from waltz_core.storage.segment import HEADER_SIZE, SegmentHeader, decode_header, encode_header


def is_intact(log: LogFiles, transaction_id: int) -> Procedure[bool]:
    """Whether the record at the offset in window or index is whole."""
    return (yield from _place(log, transaction_id)) is not None


def _place(log: LogFiles, transaction_id: int) -> Procedure[tuple[int, int] | None]:
    """Place and size of an intact record; one that cannot be read is not."""
    segment = log.find(transaction_id)
    if segment is None:
        return None
    try:
        bounds = yield from bounds_of(segment, transaction_id, 1)
        if not bounds:
            return (yield from locate(log, segment, transaction_id))
        if not bounds[0]:
            return None  # known to be damaged
        size = yield from check_readable(segment.data_path, bounds[0], transaction_id, segment.end)
    except DiskError:
        return None
    return (bounds[0], size) if size > 0 else None


def _segment_for(log: LogFiles, transaction_id: int) -> Segment | None:
    """The segment to whose file a record belongs, None if it begins before the first one."""
    firsts = [segment.first_id for segment in log.segments]
    at = bisect_right(firsts, transaction_id) - 1
    return log.segments[at] if at >= 0 else None


def mend_run(
    where: LogPlace, log: LogFiles, records: Sequence[Record], last: int, created_ms: int
) -> Procedure[tuple[int, str]]:
    """Write `records`, the first of a run of damaged ones that ends with `last`, where they belong; sync and re-read.

    Returns:
        How many of them are in place now, and why not the next one.

    Raises:
        DiskError: any part of it may have been written.
    """
    first = records[0].transaction_id
    segment = _segment_for(log, first)
    before: tuple[Operation, ...] = ()
    if segment is None:
        segment = segment_of(where, first)
        before = create_operations(where, segment, created_ms)
    place = HEADER_SIZE
    if first > segment.first_id:
        before_it = yield from _place(log, first - 1)
        if before_it is None:
            return 0, f"transaction {first - 1} is damaged, so the place of {first} is not known"
        place = sum(before_it)
    parts = [encode_record(one) for one in records]
    end: int | None = None  # where the run must end
    if last + 1 < segment.next_id:
        follower = yield from _place(log, last + 1)
        end = None if follower is None else follower[0]
    elif not segment.whole and first < segment.next_id:
        end = segment.end
    if end is not None:
        room, size = end - place, sum(map(len, parts))
        if size > room or (records[-1].transaction_id == last and size != room):
            return 0, f"{segment.data_path}: {size} bytes do not fit into the {room} at offset {place}"
    header = b"" if before or place > HEADER_SIZE else (yield from _lost_header(where, segment, created_ms))
    yield from write(
        *before,
        WriteAt(segment.data_path, place - len(header), header + b"".join(parts)),
        SyncFile(segment.data_path),
        SyncDirectory(where.directory),
    )
    if end is None:
        # Behind the last record that is known the window has no places yet.
        _note_places(segment, first, place, parts)
    at = place
    for count, part in enumerate(parts):
        if (yield from read(segment.data_path, at, len(part))) != part:
            return count, f"{segment.data_path}: transaction {first + count} reads back differently"
        if segment.whole and first + count < segment.next_id:
            segment.window[first + count - segment.window_first] = at
        at += len(part)
    return len(parts), ""


def _lost_header(where: LogPlace, segment: Segment, created_ms: int) -> Procedure[bytes]:
    """A header in place of one that cannot be read; nothing if it can."""
    if (yield from read_readable(segment.data_path, 0, HEADER_SIZE)) is not None:
        return b""
    return encode_header(SegmentHeader(created_ms, where.key, where.partition_id, segment.first_id))


def _note_places(segment: Segment, first: int, place: int, parts: Sequence[bytes]) -> None:
    at = place
    for number, part in enumerate(parts):
        if first + number == segment.next_id:
            segment.extend([at], at + len(part))
        at += len(part)
    segment.end = max(segment.end, at)


def mend_headers(where: LogPlace, log: LogFiles | None, created_ms: int) -> Procedure[list[str]]:
    """Rewrite headers of data files whose other contents show that the file is ours.

    A header may be written if at most one of its fields is wrong, or the file ends inside it; and if the first
    record behind it, where there is one, is intact and has the id of the file's name. One that cannot be read is
    written, too, unless what follows it cannot be read either: then it comes with the first record.

    Returns:
        What was done, for people.
    """
    done: list[str] = []
    sizes = {one.name: one.size for one in (yield from list_names(where.directory))}
    for segment in [] if log is None else log.segments:
        size = sizes.get(segment.data_path.rpartition("/")[2], -1)
        if size < 0:
            continue
        data = yield from read_readable(segment.data_path, 0, HEADER_SIZE)
        if data is None and (yield from read_readable(segment.data_path, HEADER_SIZE, HEAD_SIZE)) is None:
            continue
        header = None if data is None else decode_header(data)
        made = created_ms if header is None else header.created_ms
        wanted = SegmentHeader(made, where.key, where.partition_id, segment.first_id)
        if header is not None:
            if header == wanted:
                continue
            wrong = [
                header.version != wanted.version,
                header.key != wanted.key,
                header.partition_id != wanted.partition_id,
                header.first_id != wanted.first_id,
            ]
            intact = yield from check_in_file(segment.data_path, HEADER_SIZE, segment.first_id, size)
            if sum(wrong) > 1 or intact < 0:
                continue
        yield from write(WriteAt(segment.data_path, 0, encode_header(wanted)), SyncFile(segment.data_path))
        done.append(f"{segment.data_path}: header written again")
    return done
