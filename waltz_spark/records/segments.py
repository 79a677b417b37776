"""Reading segment files: header, index, the records of a range as blocks. Never writes, never locks.

The index is a cache: it says where records should be. Every block is compared with the records themselves,
so a short, absent or wrong index costs time (the data file is walked), never correctness.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import numpy as np
import numpy.typing as npt

from waltz_core.storage import index as index_file
from waltz_core.storage.record_codec import RECORD_SIZE_MIN, announced_size, check_record
from waltz_core.storage.segment import (
    HEADER_SIZE,
    SegmentHeader,
    decode_header,
    id_of_name,
    index_name,
    may_be_torn,
)
from waltz_core.storage.segment_opening import RESYNC_WINDOW
from waltz_spark.base.errors import (
    DataLossError,
    PipelineError,
    RecordDamagedError,
    UnreachableError,
    WrongClusterError,
)
from waltz_spark.records.blocks import OVERHEAD, Block, Offsets
from waltz_spark.records.columns import Shape

_CHUNK = 8 << 20  # bytes read at once while walking
_TAIL_ENTRIES = 65_536  # entries of an index whose records may be torn
_ENTRIES = 1 << 20  # of an index, read at once
_UNSHARED = 2  # references to an object that only one place holds


class SegmentFile:
    """One data file and its index, open for reading. Close it, or use it in a `with` block.

    Args:
        path: of the data file.
        key: cluster key, None = any.

    Raises:
        UnreachableError: it cannot be opened.
        WrongClusterError: the header carries another cluster key.
        PipelineError: it is no segment of this partition, or has no whole header.
    """

    def __init__(self, path: str | os.PathLike[str], partition: int, key: bytes | None = None) -> None:
        self.path = Path(path)
        self.partition = partition
        self.notes: list[str] = []  # what was wrong with the index
        self._rooms: list[npt.NDArray[np.uint8]] = []
        self._walked: Offsets | None = None  # offsets of all records and the end, if the index is unusable
        with _explained(self.path):
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(self._file).st_size
            self.header = self._check_header(key)
            self.first_id = self.header.first_id
            self._index: int | None = self._open_index()
        except BaseException:
            os.close(self._file)
            raise
        self._count = 0 if self._index is None else (os.fstat(self._index).st_size - HEADER_SIZE) // 8

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        os.close(self._file)
        if self._index is not None:
            os.close(self._index)

    @property
    def indexed_end(self) -> int:
        """The id behind the last one that the index lists."""
        return self.first_id + (len(self._walked) - 1 if self._walked is not None else self._count)

    # ---- opening ---------------------------------------------------------------------------------

    def _check_header(self, key: bytes | None) -> SegmentHeader:
        header = decode_header(os.pread(self._file, HEADER_SIZE, 0))
        if header is None:
            raise PipelineError(f"{self.path}: {self.size} bytes are no segment, the header alone has {HEADER_SIZE}")
        if header.version != 0:
            raise PipelineError(f"{self.path}: segment of format {header.version}, this program knows 0")
        if key is not None and header.key != key:
            raise WrongClusterError(str(self.path), str(UUID(bytes=key)), str(UUID(bytes=header.key)))
        named = id_of_name(self.path.name)
        if header.partition_id != self.partition or (named is not None and named != header.first_id):
            raise PipelineError(
                f"{self.path}: the header says partition {header.partition_id}, first id {header.first_id}; "
                f"the name says partition {self.partition}, first id {named}"
            )
        return header

    def _open_index(self) -> int | None:
        path = self.path.with_name(index_name(self.path.name))
        try:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.notes.append(f"{path}: {error.strerror}; the data file is walked")
            return None
        found = decode_header(os.pread(opened, HEADER_SIZE, 0))
        ours = self.header
        if found is None or (found.key, found.partition_id, found.first_id) != (
            ours.key,
            ours.partition_id,
            ours.first_id,
        ):
            self.notes.append(f"{path}: its header is not that of the data file, which is walked")
            os.close(opened)
            return None
        return opened

    # ---- where records are -----------------------------------------------------------------------

    def whole_end(self) -> int:
        """The id behind the last record of the file.

        A torn tail is left out. A record that was whole once and is damaged counts: reading it fails.
        """
        first, count = self.first_id, self._count
        if self._index is not None and count:
            start = max(0, count - _TAIL_ENTRIES)
            entries = self._entries(start, count)
            for at in range(len(entries) - 1, -1, -1):
                size = self._check_at(int(entries[at]), first + start + at)
                if size > 0:
                    end, place = self._walk(int(entries[at]) + size, first + start + at + 1, None)
                    return end + self._is_damaged(place, end)
        self._rebuild()
        assert self._walked is not None
        end = first + len(self._walked) - 1
        return end + self._is_damaged(int(self._walked[-1]), end)

    def _is_damaged(self, place: int, transaction_id: int) -> bool:
        """Whether a record, not a torn write, follows the last intact one."""
        left = self.size - place
        if left <= 0:
            return False
        data = os.pread(self._file, min(left, RESYNC_WINDOW), place)
        return not may_be_torn(data, place, transaction_id)

    def offsets(self, start: int, end: int) -> Offsets:
        """Where the records `start .. end - 1` start, and where the last one ends.

        Raises:
            DataLossError: the file does not hold all of them.
        """
        assert self.first_id <= start < end
        if self._walked is None and self._index is not None and end - self.first_id <= self._count:
            entries = self._entries(start - self.first_id, min(end - self.first_id + 1, self._count))
            if len(entries) == end - start:  # the last record of the index: its own length says where it ends
                size = announced_size(os.pread(self._file, OVERHEAD, int(entries[-1])).ljust(OVERHEAD, b"\xff"), 0)
                entries = np.append(entries, entries[-1] + max(size, 0))
            return entries
        if self._walked is None:
            if self._index is not None:
                self.notes.append(f"{self.path}: the index lists {self._count} records; the data file is walked")
            self._rebuild()
        assert self._walked is not None
        at = start - self.first_id
        offsets = self._walked[at : end - self.first_id + 1]
        if len(offsets) < end - start + 1:
            lost = self.first_id + max(len(self._walked) - 1, at)
            raise DataLossError(
                self.partition, lost, end, str(self.path), f"the last whole record of the file is {lost - 1}"
            )
        return offsets

    def _entries(self, start: int, end: int) -> Offsets:
        assert self._index is not None
        data = os.pread(self._index, 8 * (end - start), index_file.entry_place(start))
        return np.frombuffer(data[: len(data) // 8 * 8], ">i8").astype(np.int64)

    def _check_at(self, place: int, transaction_id: int) -> int:
        if not HEADER_SIZE <= place <= self.size - RECORD_SIZE_MIN:
            return -1
        head = os.pread(self._file, OVERHEAD, place)
        size = announced_size(head, 0) if len(head) == OVERHEAD else -1
        if not 0 < size <= self.size - place:
            return -1
        return check_record(os.pread(self._file, size, place), 0, transaction_id)

    def _rebuild(self) -> None:
        """Find all records by walking over the data file."""
        found: list[int] = []
        _, end = self._walk(HEADER_SIZE, self.first_id, found)
        self._walked = np.array([*found, end], np.int64)

    def _walk(self, place: int, next_id: int, places: list[int] | None) -> tuple[int, int]:
        """Walk over intact records; the id behind the last one, and where it ends."""
        while True:
            chunk = os.pread(self._file, _CHUNK, place)
            if len(chunk) >= RECORD_SIZE_MIN and (size := announced_size(chunk, 0)) > len(chunk):
                chunk = os.pread(self._file, min(size, self.size - place), place)
            at = 0
            while (size := check_record(chunk, at, next_id)) > 0:
                if places is not None:
                    places.append(place + at)
                at += size
                next_id += 1
            if at == 0:
                return next_id, place
            place += at

    # ---- records ---------------------------------------------------------------------------------

    def blocks(self, start: int, end: int, shape: Shape) -> Iterator[Block]:
        """The records `start .. end - 1`, cut by `shape`; each block is where the index says it is.

        Raises:
            RecordDamagedError: a record is not there, though the data file was walked.
            DataLossError: the file ends before.
            UnreachableError: the file cannot be read.
        """
        while start < end:
            stop = min(end, start + _ENTRIES)
            offsets = self.offsets(start, stop)
            for at, behind in cut(offsets, shape.rows_max, shape.size_max):
                block = self._block(start + at, offsets[at : behind + 1])
                if block is None or block.misfit() is not None:
                    block = self._again(start + at, start + behind)
                yield block
            start = stop

    def _block(self, first_id: int, offsets: Offsets) -> Block | None:
        """None if the offsets cannot be right."""
        low, high = int(offsets[0]), int(offsets[-1])
        if low < HEADER_SIZE or high > self.size or high - low < OVERHEAD * (len(offsets) - 1):
            return None
        with _explained(self.path):
            buffer = _pread(self._file, low, self._room_for(high - low))
        if len(buffer) < high - low:
            return None
        return Block(self.partition, first_id, buffer, offsets - low, str(self.path), "file")

    def _room_for(self, size: int) -> npt.NDArray[np.uint8]:
        """Memory for a block: that of an earlier one that is no longer referenced, because new memory costs as much as
        reading into it. Two, because readers drop a block only when they have the next.
        """
        rooms = self._rooms
        for at in range(len(rooms)):
            if len(rooms[at]) >= size and sys.getrefcount(rooms[at]) == _UNSHARED:
                return rooms[at][:size]
        rooms[:] = [*rooms[-1:], np.empty(size + size // 8, np.uint8)]
        return rooms[-1][:size]

    def _again(self, start: int, end: int) -> Block:
        """The index or the data are wrong: walk the data to see which."""
        if self._walked is None:
            self.notes.append(f"{self.path}: the index does not fit the data at id {start}; the data file is walked")
            self._rebuild()
        assert self._walked is not None
        known = self.first_id + len(self._walked) - 1
        if known < end:
            place = int(self._walked[-1])
            left = self.size - place
            reason = (
                f"the file ends there ({left} bytes are left)"
                if left < RECORD_SIZE_MIN
                else f"no intact record with this id at byte {place} of {self.size}"
            )
            raise RecordDamagedError(self.partition, known, str(self.path), reason)
        block = self._block(start, self._walked[start - self.first_id : end - self.first_id + 1])
        assert block is not None
        return block


def cut(offsets: Offsets, rows_max: int, size_max: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of records of at most `rows_max` and `size_max` bytes each, or one record."""
    at, count = 0, len(offsets) - 1
    while at < count:
        behind = min(at + rows_max, count)
        if offsets[behind] - offsets[at] > size_max:
            fits = int(np.searchsorted(offsets[at : behind + 1], offsets[at] + size_max, "right")) - 1
            behind = at + max(1, min(fits, behind - at))
        yield at, behind
        at = behind


def _pread(file: int, place: int, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Bytes of a file; fewer at its end."""
    view, done = buffer.data, 0
    while done < len(buffer):
        count = os.preadv(file, [view[done:]], place + done)
        if count == 0:
            break
        done += count
    return buffer[:done]


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreachableError(f"{path}: {error.strerror or error}") from error
