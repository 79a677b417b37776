"""What a replica knows about its files: segments, ends, recent offsets; and the plan of a write. No I/O.

    segment 0 … ─┬─ segment n, sealed ─┬─ the last one, written to
    ids      0 … │ first_id … next_id  │ first_id … next_id, end    ── past the threshold ──▶ a new last one

This is the log as it is on disk once every planned write has ended: operations are planned here, carried out by the
caller, and entered here afterwards. The newest offsets of each segment are in memory (`window`); older ones are read
from its index, which may be wrong, since only the data file counts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

from waltz_core.base.record import record
from waltz_core.storage import index as index_file
from waltz_core.storage.effects import Create, Cut, Operation, SyncDirectory, SyncFile, Unlink, WriteAt
from waltz_core.storage.segment import HEADER_SIZE, SegmentHeader, data_name, encode_header, index_name

WINDOW = 65_536  # offsets kept in memory per segment; older ones are read from the index file


@record
class LogPlace:
    """Where a partition's files stand and what their headers say."""

    directory: str  # relative to the data directory: the partition id
    partition_id: int
    key: bytes  # cluster key, 16 bytes
    threshold: int  # a segment longer than this is followed by a new one
    shown: str = "<dir>"  # the data directory, for messages to people


class Segment:
    """One data file, its index, and the part of the index that is in memory."""

    __slots__ = (
        "data_path",
        "end",
        "first_id",
        "index_first",
        "index_path",
        "next_id",
        "whole",
        "window",
        "window_first",
    )

    def __init__(self, data_path: str, index_path: str, first_id: int) -> None:
        self.data_path = data_path
        self.index_path = index_path
        self.first_id = first_id
        self.index_first = first_id  # from the header of the index; differs only where 0.13.2 would not notice
        self.next_id = first_id
        self.end = HEADER_SIZE  # offset behind the last record
        self.window: array[int] = array("Q")
        self.window_first = first_id  # id whose offset is the first of `window`
        self.whole = False  # the window is complete and counts more than the index file; 0 = damaged

    def extend(self, offsets: Sequence[int], end: int) -> None:
        """Records were added behind the last one."""
        self.window.extend(offsets)
        self.next_id += len(offsets)
        self.end = end
        if len(self.window) > 2 * WINDOW and not self.whole:
            surplus = len(self.window) - WINDOW
            del self.window[:surplus]
            self.window_first += surplus

    def shrink(self, next_id: int, end: int) -> None:
        """Records from `next_id` on were cut."""
        self.next_id = next_id
        self.end = end
        if next_id < self.window_first:
            self.window = array("Q")
            self.window_first = next_id
        else:
            del self.window[next_id - self.window_first :]

    def offset(self, transaction_id: int) -> int | None:
        """Offset of a record, None if only the index file has it."""
        at = transaction_id - self.window_first
        return self.window[at] if 0 <= at < len(self.window) else None


class LogFiles:
    """The segments of one partition, ordered by first id; the last one is written to."""

    __slots__ = ("_firsts", "segments")

    def __init__(self, segments: Sequence[Segment]) -> None:
        assert segments
        self.segments = list(segments)
        self._firsts = [segment.first_id for segment in segments]

    @property
    def last(self) -> Segment:
        """The segment that is written to."""
        return self.segments[-1]

    @property
    def max_id(self) -> int:
        """Id of the last record, -1 if there is none."""
        return self.segments[-1].next_id - 1

    def find(self, transaction_id: int) -> Segment | None:
        """The segment that holds a record, None if none does."""
        at = bisect_right(self._firsts, transaction_id) - 1
        if at < 0:
            return None
        segment = self.segments[at]
        return segment if transaction_id < segment.next_id else None

    def add(self, segment: Segment) -> None:
        """A new segment stands on disk."""
        self.segments.append(segment)
        self._firsts.append(segment.first_id)

    def drop_first(self) -> None:
        """The oldest segment is gone."""
        del self.segments[0], self._firsts[0]

    def drop_last(self) -> None:
        """The newest segment is gone."""
        del self.segments[-1], self._firsts[-1]


def segment_of(where: LogPlace, first_id: int) -> Segment:
    """A new, empty segment, not yet on disk."""
    data = f"{where.directory}/{data_name(first_id)}"
    return Segment(data, index_name(data), first_id)


def create_operations(where: LogPlace, segment: Segment, created_ms: int) -> tuple[Operation, ...]:
    """Make the files of a new segment, durably, before anything is written to them.

    A leftover index troubles 0.13.2 only: `Create` empties it.
    """
    header = encode_header(SegmentHeader(created_ms, where.key, where.partition_id, segment.first_id))
    return (
        Create(segment.index_path),
        WriteAt(segment.index_path, 0, header),
        Create(segment.data_path),
        WriteAt(segment.data_path, 0, header),
        SyncFile(segment.index_path),
        SyncFile(segment.data_path),
        SyncDirectory(where.directory),
    )


def remove_operations(directory: str, index_path: str, data_path: str) -> tuple[Operation, ...]:
    """Remove a segment. The index is durably gone first: an index without its data file would be evidence of a loss."""
    return Unlink(index_path), SyncDirectory(directory), Unlink(data_path), SyncDirectory(directory)


OnRoll: TypeAlias = Callable[[Segment], tuple[Operation, ...]]
"""What else must be durable before the first record of a new segment is written."""


class AppendPlan:
    """One write of a run of records: the operations, and what they change once they are durable."""

    __slots__ = ("_log", "created", "first", "operations", "pieces")

    def __init__(self, log: LogFiles) -> None:
        self._log = log
        last = log.segments[-1]
        self.pieces: list[tuple[Segment, array[int], int]] = []  # what each write to a segment adds to it
        self.first = last, last.end, last.next_id  # where the log ends if no record is kept
        self.created: list[Segment] = []
        self.operations: list[Operation] = []

    def commit(self) -> None:
        """Everything is durable: the records are part of the log."""
        log = self._log
        for segment, offsets, end in self.pieces:
            if segment is not log.segments[-1]:
                log.add(segment)
            segment.extend(offsets, end)

    def retreat(self, directory: str) -> tuple[Operation, ...]:
        """Operations that undo the write, even if it happened in part."""
        segment, end, next_id = self.first
        removals: list[Operation] = []
        for created in reversed(self.created):
            removals += remove_operations(directory, created.index_path, created.data_path)
        return (
            *removals,
            Cut(segment.data_path, end),
            SyncFile(segment.data_path),
            Cut(segment.index_path, index_file.entry_place(next_id - segment.index_first)),
            SyncFile(segment.index_path),
        )


def plan_append(where: LogPlace, log: LogFiles, parts: Sequence[bytes], created_ms: int, on_roll: OnRoll) -> AppendPlan:
    """Write encoded records, whose ids continue the log, rolling to new segments as the size demands.

    An old segment is durable before the next one exists; the next one, and what `on_roll` gives for it,
    before a record goes into it.
    """
    plan = AppendPlan(log)
    (segment, end, next_id), done = plan.first, 0
    while done < len(parts):
        if end > where.threshold:
            plan.operations += (SyncFile(segment.data_path), SyncFile(segment.index_path))
            segment, end = segment_of(where, next_id), HEADER_SIZE
            plan.created.append(segment)
            plan.operations += create_operations(where, segment, created_ms)
            plan.operations += on_roll(segment)
        # Where each record starts, and where the last one ends; the first that starts behind the threshold rolls.
        ends = array("Q", accumulate(map(len, parts[done:] if done else parts), initial=end))
        count = len(ends) - 1
        if ends[-1] > where.threshold:
            count = min(bisect_right(ends, where.threshold), count)
        offsets = ends[:count]
        place = index_file.entry_place(next_id - segment.index_first)
        plan.operations += (
            WriteAt(segment.data_path, end, b"".join(parts[done : done + count])),
            WriteAt(segment.index_path, place, index_file.encode_entries(offsets)),
        )
        end = ends[count]
        plan.pieces.append((segment, offsets, end))
        next_id += count
        done += count
    plan.operations.append(SyncFile(segment.data_path))
    return plan
