"""From an archive back to a storage directory: segments, indexes, control file, byte for byte.

Segments start where those of the source did and carry the same creation times, if the archive was made from
files; what was archived over the network, behind that or from the start, is cut by size. The replica counts as one
that took part in no store session and holds everything up to its end, so a cluster that already has newer records
copies them to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import numpy as np

from waltz_core.base.record import record
from waltz_core.storage import control, side
from waltz_core.storage.segment import HEADER_SIZE, SegmentHeader, data_name, encode_header, index_name
from waltz_spark.base.errors import ArchiveError
from waltz_spark.base.planning import Range
from waltz_spark.base.runners import OnProgress, Runner
from waltz_spark.read.options import check_number, wanted_partitions
from waltz_spark.read.reading import Patience, read_blocks
from waltz_spark.records.columns import Shape
from waltz_spark.records.manifest import ArchivedFile, ArchiveState, ids_from_files, read_archive
from waltz_spark.records.segments import SegmentFile
from waltz_trio.base import durable

THRESHOLD = 1_000_000_000
"""Bytes behind which a new segment starts, where the archive does not tell."""
THRESHOLD_MIN = HEADER_SIZE
"""Bytes of a segment without a record; each segment gets one record at least."""

_SHAPE = Shape(verify="none")  # the digests of the result are compared with those of the archive
_WAVE = 4
_SEQUENCE = 1  # of the control struct of each partition
_ATTEMPT = ".attempt-"  # begins the names of files that are not whole yet
UNFINISHED = "waltz-restore.unfinished"
_SCRATCH = f"{control.NAME}.new"  # the control file before it has its name; it is written over
"""In a directory while a log is restored into it, which the next restore may then begin anew."""


@record
class SegmentTask:
    """Segments to write: one, or as many as the threshold makes of the ids from `known_end` on."""

    directory: str
    partition: int
    key: bytes
    first_id: int
    end_id: int
    created_ms: int
    ranges: tuple[Range, ...]
    threshold: int
    known_end: int  # up to here the source had one segment


@record
class RangeCheck:
    """Ids of a restored directory to compare with the digest of an archived file."""

    directory: str
    key: bytes
    file: ArchivedFile
    segments: tuple[tuple[str, int, int], ...]  # path, ids half-open


@record
class RestoreReport:
    """What was done."""

    record_count: int
    raw_size: int
    segment_count: int
    seconds: float
    directory: str


def restore(
    root: str,
    directory: str | os.PathLike[str],
    runner: Runner,
    *,
    partitions: Collection[int] | None = None,
    threshold: int = THRESHOLD,
    on_progress: OnProgress | None = None,
) -> RestoreReport:
    """Write a storage directory on which a storage node starts. Executors must see it under the same path.

    Args:
        partitions: which ones the node is to have; None = all, those without a record too.

    Raises:
        OptionError: the archive has not all of the partitions, or `threshold` is less than a segment can have; nothing
            was written.
        ArchiveError: the directory is not empty (what a restore that was interrupted has left is deleted), or what was
            written is not what was archived.
        PipelineError: the archive cannot be read.
    """
    check_number("threshold", threshold, THRESHOLD_MIN)
    state = read_archive(root)
    wanted = wanted_partitions(partitions, state.partition_count, f"the archive {state.root}")
    target = Path(directory).absolute()
    durable.make_directories(target.parent, 0o777)  # as others make them
    durable.make_directory(target)
    durable.sync_directory(target.parent)
    lock = _begin(target)
    try:
        return _restore(state, target, runner, wanted, threshold, on_progress)
    finally:
        durable.close(lock)


def _restore(
    state: ArchiveState,
    target: Path,
    runner: Runner,
    wanted: Sequence[int],
    threshold: int,
    on_progress: OnProgress | None,
) -> RestoreReport:
    begin = time.monotonic()
    now_ms = int(time.time() * 1000)
    from_files = ids_from_files(state.root)
    tasks = [
        task for one in wanted for task in _tasks(state, one, str(target), threshold, now_ms, from_files.get(one, ()))
    ]
    for one in wanted:
        durable.make_directory(target / str(one))
    total = sum(task.end_id - task.first_id for task in tasks)
    raw_size = done = 0
    written: list[tuple[int, str, int, int]] = []
    for at in range(0, len(tasks), max(1, runner.width * _WAVE)):
        wave = tasks[at : at + max(1, runner.width * _WAVE)]
        for task, found in zip(wave, runner.run(write_segments, wave), strict=True):
            raw_size += sum(size for _, _, _, size in found)
            written += [(task.partition, path, first, end) for path, first, end, _ in found]
            done += task.end_id - task.first_id
        if on_progress is not None:
            on_progress(done, total)
    _check(state, str(target), written, wanted, runner)
    _remove_scratch(target, wanted)
    for number in wanted:
        _write_start(target, number, [first for partition, _, first, _ in written if partition == number])
    _write_control(target, state, wanted, now_ms)
    durable.unlink(target / UNFINISHED)  # which may come back: beside a control file it means nothing
    return RestoreReport(total, raw_size, len(written), time.monotonic() - begin, str(target))


def may_begin(names: Collection[str]) -> bool:
    """Whether a directory is empty, or holds nothing but what a restore that was interrupted has left."""
    return not names or (
        UNFINISHED in names and all(name in (UNFINISHED, _SCRATCH) or name.isdecimal() for name in names)
    )


def _begin(target: Path) -> int:
    """See that the directory is empty but for what a restore that was interrupted has left, which is deleted.

    Returns:
        A descriptor that keeps other restores out of it.

    Raises:
        ArchiveError: it holds something else, or a finished log, or another restore works in it.
    """
    names = {entry.name for entry in target.iterdir()}
    if not may_begin(names):
        raise ArchiveError(f"{target} is not empty; a log is restored into an empty directory")
    try:
        lock = durable.open_locked(target / UNFINISHED, 1)
    except BlockingIOError:
        raise ArchiveError(f"{target}: another restore works in it") from None
    try:
        durable.sync_directory(target)
        for name in sorted(names - {UNFINISHED, _SCRATCH}):
            shutil.rmtree(target / name)
    except BaseException:
        durable.close(lock)
        raise
    return lock


def _tasks(
    state: ArchiveState,
    partition: int,
    directory: str,
    threshold: int,
    now_ms: int,
    from_files: Sequence[tuple[int, int]],
) -> list[SegmentTask]:
    files = state.files_of(partition)
    if not files:  # a node wants a segment for every partition it has
        return [SegmentTask(directory, partition, state.key, 0, 0, now_ms, (), threshold, 0)]
    start, end = files[0].first_id, files[-1].end_id
    known = [segment for segment in state.segments_of(partition) if segment.first_id < end]
    borders = {max(segment.first_id, start): segment.created_ms for segment in known}
    created_ms = min(borders.values(), default=now_ms)
    recorded = bool(borders) and min(borders) == start
    if not recorded:
        borders = {start: created_ms}
    ids = [*sorted(borders), end]
    tasks = []
    for first, stop in pairwise(ids):
        ranges = tuple(
            Range(
                partition,
                max(first, file.first_id),
                min(stop, file.end_id),
                file.raw_size,
                (file.place(state.root),),
            )
            for file in files
            if file.first_id < stop and file.end_id > first
        )
        known_end = _known_end(first, stop, from_files) if recorded else first
        tasks.append(
            SegmentTask(directory, partition, state.key, first, stop, borders[first], ranges, threshold, known_end)
        )
    return tasks


def _known_end(first: int, stop: int, from_files: Sequence[tuple[int, int]]) -> int:
    """Up to where the records of a segment came from files, so that another border in it would be known."""
    at = first
    for low, high in from_files:
        if low <= at < high:
            at = high
    return min(at, stop)


# ---- writing (in an executor) ----------------------------------------------------------------


class _Files:
    """The two files of the segment that is being written; until they are whole their names are of this attempt alone.

    Another attempt at the same task may work at the same time, or still when a node runs on the directory.
    """

    def __init__(self, task: SegmentTask, first_id: int) -> None:
        folder = Path(task.directory) / str(task.partition)
        self.path = folder / data_name(first_id)
        self.first_id = self.next_id = first_id
        self.end = HEADER_SIZE
        header = encode_header(SegmentHeader(task.created_ms, task.key, task.partition, first_id))
        self._open: dict[Path, int] = {}  # by the names that the files are to have
        self._attempt = uuid4().hex
        self._data = self._create(self.path)
        self._index = self._create(self.path.with_name(index_name(self.path.name)))
        durable.write_all(self._data, header)
        durable.write_all(self._index, header)

    def write(self, data: memoryview, sizes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        ends = self.end + np.cumsum(sizes)
        places = np.concatenate([[self.end], ends[:-1]])
        durable.write_all(self._data, data)
        durable.write_all(self._index, places.astype(">i8").tobytes())
        self.end = int(ends[-1])
        self.next_id += len(sizes)

    def _scratch(self, path: Path) -> Path:
        return path.with_name(f"{_ATTEMPT}{path.name}.{self._attempt}")

    def _create(self, path: Path) -> int:
        """A new file, for its owner alone."""
        fd = durable.open_file(self._scratch(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._open[path] = fd
        return fd

    def drop(self) -> None:
        while self._open:
            path, fd = self._open.popitem()
            durable.close(fd)
            with contextlib.suppress(FileNotFoundError):
                durable.unlink(self._scratch(path))

    def close(self) -> tuple[str, int, int, int]:
        for fd in (self._index, self._data):
            durable.sync_data(fd)
        for path in self._open:
            with contextlib.suppress(FileExistsError):  # of another attempt, with the same bytes, which may be checked
                durable.link(self._scratch(path), path)
        self.drop()
        return str(self.path), self.first_id, self.next_id, self.end - HEADER_SIZE


def write_segments(task: SegmentTask) -> list[tuple[str, int, int, int]]:
    """Write the segments of a task, synced: path, ids half-open, bytes of records of each. Safe to run again."""
    done: list[tuple[str, int, int, int]] = []
    files = _Files(task, task.first_id)
    try:
        for one in task.ranges:
            for block in read_blocks(one, _SHAPE, Patience()):
                at = 0
                while at < block.count:
                    known = task.known_end - block.first_id  # records of this block in front of it
                    if known <= at and files.end > task.threshold:
                        done.append(files.close())
                        files = _Files(task, block.first_id + at)
                    stop = min(known, block.count) if at < known else _fitting(block.offsets, at, files, task.threshold)
                    low, high = int(block.offsets[at]), int(block.offsets[stop])
                    files.write(block.buffer.data[low:high], np.diff(block.offsets[at : stop + 1]))
                    at = stop
        done.append(files.close())
    except BaseException:
        files.drop()
        raise
    return done


def _fitting(offsets: np.ndarray[tuple[int], np.dtype[np.int64]], at: int, files: _Files, threshold: int) -> int:
    """Up to where records go into the present segment: a record that starts within the threshold does."""
    starts = files.end + offsets[at:-1] - offsets[at]
    return at + int(np.searchsorted(starts, threshold, "right"))


# ---- the result ------------------------------------------------------------------------------


def check_range(check: RangeCheck) -> str | None:
    """Why a range of the restored directory is not what was archived; None if it is."""
    digest = hashlib.sha256()
    file = check.file
    for path, first, end in check.segments:
        with SegmentFile(path, file.partition, check.key) as segment:
            for block in segment.blocks(max(first, file.first_id), min(end, file.end_id), _SHAPE):
                digest.update(block.data)
    if digest.hexdigest() == file.sha256:
        return None
    ids = f"ids {file.first_id} to {file.end_id - 1} of partition {file.partition}"
    return f"{check.directory}: {ids} have another digest"


def _check(
    state: ArchiveState,
    directory: str,
    written: Sequence[tuple[int, str, int, int]],
    partitions: Sequence[int],
    runner: Runner,
) -> None:
    checks = []
    for file in state.files:
        if file.partition in partitions:
            own = tuple(
                (path, first, end)
                for partition, path, first, end in written
                if partition == file.partition and first < file.end_id and end > file.first_id
            )
            checks.append(RangeCheck(directory, state.key, file, own))
    for problem in runner.run(check_range, checks):
        if problem is not None:
            raise ArchiveError(f"{problem} than in the archive")


def _remove_scratch(target: Path, partitions: Sequence[int]) -> None:
    """Delete what attempts have left that were killed; one that still works fails, as what it writes is there."""
    for partition in partitions:
        for path in (target / str(partition)).glob(f"{_ATTEMPT}*"):
            with contextlib.suppress(FileNotFoundError):  # it was just given up
                durable.unlink(path)


def _write_start(target: Path, partition: int, firsts: Sequence[int]) -> None:
    """Where the log begins, if later than at 0: a node would take the ids below for lost."""
    start = side.LogStart(min(firsts, default=0), anew=False)
    if start == side.FROM_ZERO:
        return
    belongs = side.Belongs(_SEQUENCE, -1, max(firsts))
    data = bytearray(2 * side.SLOT_SIZE)
    for counter in (1, 2):  # into both slots, as a node writes it
        encoded, at = side.encode_start(start, belongs, counter), side.slot_place(counter)
        data[at : at + len(encoded)] = encoded
    durable.replace_file(target / str(partition) / side.START, bytes(data))


def _write_control(target: Path, state: ArchiveState, partitions: Sequence[int], now_ms: int) -> None:
    """The control file comes last: without it no node starts on a directory that is not whole."""
    data = bytearray(control.encode_header(control.ControlHeader(now_ms, state.key, state.partition_count)))
    data += control.fresh_body(state.partition_count)
    for partition in partitions:
        end = state.end(partition) or 0
        struct = control.ControlStruct(-1, end - 1, end - 1, control.AVAILABLE | control.ASSIGNED, _SEQUENCE)
        at = control.struct_place(partition, 0)
        encoded = control.encode_struct(struct)
        data[at : at + len(encoded)] = encoded
        durable.sync_directory(target / str(partition))
    durable.sync_directory(target)  # the names of the partitions, before that of the control file
    durable.replace_file(target / control.NAME, bytes(data))
