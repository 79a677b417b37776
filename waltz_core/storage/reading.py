"""Reading records back: located by window or index, verified by checksum; if they disagree, the data file counts.

Theory of operation:

* **Where a record is.** The places of the newest are in memory (`window`), of the others in the index file. Both are
  hints: a record counts if the data file has it at that place, with its id and a checksum that matches.
* **A run is one read** of adjacent records, made ready for the wire in one pass, without an object for each; it ends at
  the first that is not intact where the hint says.
* **If the hint is wrong** the segment is walked from its beginning. Where the walk reaches its end, the index is
  written anew, except the newest's, which is still appended to. So a damaged index, and one that cannot be read, costs
  a scan, once.
* **If the record is wrong** its id is returned as damaged, after the sound ones before it. Nothing is guessed and
  nothing beyond it is left out silently; repair (`repair.py`) or another replica has it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress

from waltz_core.storage import index as index_file
from waltz_core.storage.effects import Create, Operation, SyncFile, WriteAt
from waltz_core.storage.log_files import LogFiles, Segment
from waltz_core.storage.procedure import DiskError, Procedure, read, write
from waltz_core.storage.record_codec import RECORD_SIZE_MIN
from waltz_core.storage.scanning import check_readable, scan_readable
from waltz_core.storage.segment import HEADER_SIZE
from waltz_core.storage.transcode import transcode_disk
from waltz_core.wire.records import NO_RECORDS, RecordRun


def read_range(log: LogFiles, first: int, count: int, size_max: int) -> Procedure[tuple[RecordRun, int | None]]:
    """Read intact records from `first` upward.

    Ends early at the end of the log, at a damaged record, and when the records take `size_max` bytes (at least one
    is returned).

    Returns:
        The records, and the id that is damaged if that is why there are no more.

    Raises:
        DiskError: a file cannot be read.
    """
    runs: list[RecordRun] = []
    next_id, end, left = first, first + count, size_max
    while next_id < end and 0 <= next_id <= log.max_id and left > 0:
        segment = log.find(next_id)
        if segment is None:
            return RecordRun.joined(runs), next_id  # a hole
        wanted = min(end, segment.next_id) - next_id
        got = yield from _read_run(segment, next_id, wanted, left)
        if not got:
            got = yield from _read_relocated(log, segment, next_id)
        if not got:
            return RecordRun.joined(runs), next_id
        size = got.size(RECORD_SIZE_MIN)
        if runs and size > left:
            break  # one is always read: here it would be one too many
        runs.append(got)
        next_id += len(got)
        left -= size
        if len(got) < wanted:
            break  # by size, or before a record that the next request will find damaged
    return RecordRun.joined(runs), None


def _read_run(segment: Segment, first: int, count: int, size_max: int) -> Procedure[RecordRun]:
    """Adjacent records at the offset in window or index; empty if the first is not intact there."""
    count = min(count, size_max // RECORD_SIZE_MIN + 1)  # no more fit, however many are asked for
    bounds = yield from bounds_of(segment, first, count)
    if not bounds or not index_file.plausible(bounds[:-1], segment.end):
        # Fall back to the first: an index damaged further on must not hide it.
        bounds = yield from bounds_of(segment, first, 1)
        if not bounds or not index_file.plausible(bounds[:-1], segment.end):
            return NO_RECORDS
    number = len(bounds) - 1
    while number > 1 and bounds[number] - bounds[0] > size_max:
        number -= 1
    data = yield from read(segment.data_path, bounds[0], max(0, bounds[number] - bounds[0]))
    return RecordRun(*transcode_disk(data, first, number))


def bounds_of(segment: Segment, first: int, count: int) -> Procedure[array[int]]:
    """Places of `count` records and of what follows the last of them; nothing if the index cannot be read."""
    bounds = array("Q")
    at = first - segment.window_first
    if at >= 0 and at + count <= len(segment.window):
        bounds = segment.window[at : at + count + 1]
    else:
        place = index_file.entry_place(first - segment.index_first)
        try:
            data = yield from read(segment.index_path, place, index_file.ENTRY_SIZE * (count + 1))
        except DiskError:  # of a cache: no record is damaged by that
            return bounds
        bounds = index_file.decode_entries(data)
    if first + count == segment.next_id:
        del bounds[count:]
    if len(bounds) <= count:
        bounds.append(segment.end)
    return bounds


def _read_relocated(log: LogFiles, segment: Segment, transaction_id: int) -> Procedure[RecordRun]:
    """One record, found by walking over the data file because the index is unusable; empty if it is damaged."""
    place = yield from locate(log, segment, transaction_id)
    if place is None:
        return NO_RECORDS
    offset, size = place
    data = yield from read(segment.data_path, offset, size)
    return RecordRun(*transcode_disk(data, transaction_id, 1))


def locate(log: LogFiles, segment: Segment, transaction_id: int) -> Procedure[tuple[int, int] | None]:
    """Place and size of an intact record, None if it is damaged.

    An index that disagrees with the data file is corrected.

    Raises:
        DiskError: the data file is gone.
    """
    bounds = yield from bounds_of(segment, transaction_id, 1)
    if bounds:
        size = yield from check_readable(segment.data_path, bounds[0], transaction_id, segment.end)
        if size > 0:
            return bounds[0], size
    if segment.whole:
        return None
    offsets: list[int] = []
    _, next_id, _ = yield from scan_readable(segment.data_path, segment.first_id, HEADER_SIZE, segment.end, offsets)
    if next_id <= transaction_id:
        return None
    if next_id >= segment.next_id and segment is not log.last:
        yield from _correct_index(segment, offsets, readable=bool(bounds))
    offset = offsets[transaction_id - segment.first_id]
    size = yield from check_readable(segment.data_path, offset, transaction_id, segment.end)
    return (offset, size) if size > 0 else None


def _correct_index(segment: Segment, offsets: Sequence[int], readable: bool) -> Procedure[None]:
    """Write the index of a sealed segment, if it can be written: it is a cache, the record is there all the same.

    One with a bad sector becomes a new file, since it cannot be overwritten; a full disk may leave less than a header.
    """
    path = segment.index_path
    operations: list[Operation] = [] if readable else [Create(path)]
    place, data = index_file.entry_place(0), index_file.encode_entries(offsets)
    with suppress(DiskError):
        if not readable or len((yield from read(path, 0, HEADER_SIZE))) < HEADER_SIZE:
            header = yield from read(segment.data_path, 0, HEADER_SIZE)  # that of the index is the same
            place, data = 0, header + data
        yield from write(*operations, WriteAt(path, place, data), SyncFile(path))
