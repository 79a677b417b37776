"""What the storage node of 0.13.2 does to its files, and the words in which it fails.

Defects: every segment is cut at its first bad record (`torn_not_corrupt`), on the word of an index that it believes
(`index_rebuilt`); headers are not compared with names and neighbours (`headers_checked`); a batch out of order leaves
its beginning (`append_atomic`); records are read without their checksums (`reads_verified`); truncation knows no floor
(`truncation_floor`); a short control file is made anew or extended (`control_file_kept`), sequence numbers do not wrap
(`sequence_wraps`), and a partition whose control structs are damaged ends it all (`partitions_isolated`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct

from waltz_core.base.errors import StorageError
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.storage import control as ctl
from waltz_core.storage import index as index_file
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.control import ControlDamage, ControlEntry
from waltz_core.storage.directory import format_control
from waltz_core.storage.effects import Create, Cut, FaultKind, FileEntry, MakeDirectory, SyncFile, Unlink, WriteAt
from waltz_core.storage.log_files import LogFiles, LogPlace, Segment, segment_of
from waltz_core.storage.procedure import DiskError, Procedure, list_names, read, write
from waltz_core.storage.record_codec import (
    HEAD_SIZE,
    RECORD_SIZE_MIN,
    announced_size,
    check_record,
    encode_run,
)
from waltz_core.storage.refusals import SE, io_text
from waltz_core.storage.segment import HEADER_SIZE, SegmentHeader, decode_header, encode_header, index_name

_HEAD = Struct(">q16siii")
_CHECKPOINT = 1000  # Java: Segment.CHECKPOINT_INTERVAL
_CHUNK = 1 << 20
_SEEK_MAX = 1 << 44  # a file of the vectors' file system ends here; seeking behind it is refused
_HEAP = 192 << 20  # a record that announces more than this ends 0.13.2 for want of memory


class JavaError(StorageError):
    """A failure of 0.13.2: its exceptions as `class: message`, outermost first."""

    def __init__(self, *chain: str) -> None:
        super().__init__(chain[0])
        self.chain = chain


def _wrap(number: int) -> int:
    """Arithmetic of a Java long."""
    return ((number + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


class _Index:
    """The index file of one segment; every access goes to the file."""

    def __init__(self, path: str, first_id: int, size: int) -> None:
        self.path = path
        self.first_id = first_id
        self.size = size

    def place(self, transaction_id: int) -> int:
        return _wrap(HEADER_SIZE + index_file.ENTRY_SIZE * (transaction_id - self.first_id))

    def get(self, transaction_id: int) -> Procedure[int]:
        place = self.place(transaction_id)
        if place < HEADER_SIZE:
            raise JavaError(f"{SE}illegal record position:{place}")
        _seek(place)
        data = yield from read(self.path, place, index_file.ENTRY_SIZE)
        return int.from_bytes(data, "big", signed=True) if len(data) == index_file.ENTRY_SIZE else -1

    def cut(self, transaction_id: int) -> Procedure[None]:
        size = self.place(transaction_id + 1)
        if size < 0:
            raise JavaError("java.lang.IllegalArgumentException: Negative size")
        if self.size > size:
            yield from write(Cut(self.path, size), SyncFile(self.path))
            self.size = size

    def put(self, transaction_id: int, offsets: Sequence[int]) -> Procedure[None]:
        if not offsets:
            return
        place = self.place(transaction_id)
        if place < 0:
            raise JavaError("java.lang.IllegalArgumentException: Negative position")
        _seek(place)
        yield from write(WriteAt(self.path, place, index_file.encode_entries(offsets)))
        self.size = max(self.size, place + index_file.ENTRY_SIZE * len(offsets))


def _seek(place: int) -> None:
    if place > _SEEK_MAX:
        raise DiskError(FaultKind.IO, "Invalid argument")


def open_partition(where: LogPlace, entry: ControlEntry, created_ms: int) -> Procedure[LogFiles]:
    """Open as 0.13.2: every segment is cut at its first bad record.

    Raises:
        JavaError: 0.13.2 would not start.
        DiskError: a file cannot be read or written.
    """
    yield from write(MakeDirectory(where.directory))
    found: tuple[FileEntry, ...] = yield from list_names(where.directory)
    sizes = {one.name: one.size for one in found if not one.is_directory}
    segments: list[Segment] = []
    for name in [name for name in sizes if name.endswith(".seg")]:
        segment = yield from _open_segment(where, entry, name, sizes)
        segments.append(segment)
    segments.sort(key=lambda segment: segment.first_id)
    if not segments:
        segments.append((yield from create_segment(where, 0, created_ms)))
    return LogFiles(segments)


def _open_segment(where: LogPlace, entry: ControlEntry, name: str, sizes: dict[str, int]) -> Procedure[Segment]:
    data_path, index_path = f"{where.directory}/{name}", f"{where.directory}/{index_name(name)}"
    shown, index_shown = f"{where.shown}/{data_path}", f"{where.shown}/{index_path}"
    try:
        header = yield from _checked_header(where, data_path)
    except JavaError as error:
        raise JavaError(f"{SE}failed to open segment file: {shown}", *error.chain) from error
    if index_name(name) not in sizes:
        raise JavaError(
            f"{SE}failed to open segment file: {index_shown}", f"java.nio.file.NoSuchFileException: {index_shown}"
        )
    index_header = yield from _checked_header(where, index_path)
    segment = Segment(data_path, index_path, header.first_id)
    segment.index_first = index_header.first_id
    index = _Index(index_path, index_header.first_id, sizes[index_name(name)])
    try:
        yield from _recover(segment, index, entry.current.local_low_water_mark, sizes[name])
    except DiskError as fault:
        raise JavaError(f"{SE}failed to recover segment: segment={shown}", io_text(fault)) from fault
    return segment


def _checked_header(where: LogPlace, path: str) -> Procedure[SegmentHeader]:
    header = decode_header((yield from read(path, 0, HEADER_SIZE)))
    if header is None:
        raise JavaError(f"{SE}end of file")
    if header.key != where.key:
        raise JavaError(f"{SE}the cluster key does not match")
    if header.partition_id != where.partition_id:
        raise JavaError(f"{SE}partition id does not match")
    return header


def _recover(segment: Segment, index: _Index, local_low_water_mark: int, size: int) -> Procedure[None]:
    """Java: Segment.recover."""
    highest = index.first_id + (index.size - HEADER_SIZE) // index_file.ENTRY_SIZE - 1
    if highest <= local_low_water_mark:
        next_id = highest
    else:
        whole = abs(highest - 1) // _CHECKPOINT * _CHECKPOINT  # the division of Java truncates toward zero
        next_id = max(whole if highest > 0 else -whole, local_low_water_mark)
    if next_id <= segment.first_id:
        next_id, offset = segment.first_id, HEADER_SIZE
    else:
        offset = yield from index.get(next_id)
        if offset < 0:
            raise JavaError(f"{SE}segment corrupted: index corrupted")
        yield from index.cut(next_id)
        _seek(offset)
        record_size = yield from _check(segment.data_path, offset, next_id, size)
        if record_size < 0:
            raise JavaError(f"{SE}segment corrupted: record corrupted")
        next_id, offset = next_id + 1, offset + record_size
    first, offsets = next_id, array("Q")
    buffer, base = (yield from read(segment.data_path, offset, _CHUNK)), offset
    while True:
        record_size = check_record(buffer, offset - base, next_id)
        if record_size < 0 and offset > base and base + len(buffer) < size:
            buffer, base = (yield from read(segment.data_path, offset, _CHUNK)), offset
            record_size = check_record(buffer, 0, next_id)
        if record_size < 0:
            record_size = yield from _check(segment.data_path, offset, next_id, size)
        if record_size < 0:
            break
        offsets.append(offset)
        offset += record_size
        next_id += 1
    yield from index.put(first, offsets)
    if offset < size:
        yield from write(Cut(segment.data_path, offset))
    yield from index.cut(next_id - 1)
    yield from write(SyncFile(index.path), SyncFile(segment.data_path))
    segment.next_id, segment.end = next_id, offset
    segment.window_first = next_id


def _check(path: str, at: int, transaction_id: int, size: int) -> Procedure[int]:
    """Java: Segment.checkRecord, which allocates what the length field says before it looks at the file."""
    buffer = yield from read(path, at, HEAD_SIZE)
    if len(buffer) < HEAD_SIZE or int.from_bytes(buffer[:8], "big", signed=True) != transaction_id:
        return -1
    length = announced_size(buffer, 0) - RECORD_SIZE_MIN
    if length < 0:
        number = int.from_bytes(buffer[28:32], "big", signed=True)
        raise JavaError(f"java.lang.IllegalArgumentException: capacity < 0: ({number} < 0)")
    if length > _HEAP:
        raise JavaError("java.lang.OutOfMemoryError: Java heap space")
    if at + RECORD_SIZE_MIN + length > size:
        return -1
    buffer = yield from read(path, at, RECORD_SIZE_MIN + length)
    return check_record(buffer, 0, transaction_id)


def create_segment(where: LogPlace, first_id: int, created_ms: int) -> Procedure[Segment]:
    """Java: Segment.create: the index first; a file that is not empty is in the way."""
    segment = segment_of(where, first_id)
    header = encode_header(SegmentHeader(created_ms, where.key, where.partition_id, first_id))
    found = {one.name: one.size for one in (yield from list_names(where.directory))}
    for path in (segment.index_path, segment.data_path):
        if found.get(path.rpartition("/")[2], 0):
            raise JavaError(f"{SE}segment file not empty: {where.shown}/{path}")
        yield from write(Create(path), WriteAt(path, 0, header), SyncFile(path))
    return segment


def append(where: LogPlace, log: LogFiles, records: Sequence[Record], created_ms: int) -> Procedure[None]:
    """Java: Partition.append: what stands before a record out of order is stored.

    Raises:
        JavaError: out of order, or the next segment cannot be made.
        DiskError: the disk did not do it.
    """
    done = 0
    while done < len(records):
        last = log.last
        if last.end > where.threshold:
            yield from write(SyncFile(last.index_path), SyncFile(last.data_path))
            log.add((yield from create_segment(where, last.next_id, created_ms)))
            continue
        good = done
        while good < len(records) and records[good].transaction_id == last.next_id + good - done:
            good += 1
        parts: list[bytes] = []
        offsets = array("Q")
        stored, end = encode_run(records[:good], done, last.end, where.threshold, parts, offsets)
        index = _Index(last.index_path, last.index_first, 0)
        if offsets:
            yield from index.put(last.next_id, offsets)
            yield from write(WriteAt(last.data_path, last.end, b"".join(parts)))
            last.next_id, last.end = last.next_id + len(offsets), end
        if stored == good and good < len(records) and last.end <= where.threshold:
            raise JavaError(f"{SE}transaction out of order")
        yield from write(SyncFile(last.data_path))
        done = stored


def read_one(log: LogFiles, transaction_id: int) -> Procedure[Record | None]:
    """Java: Segment.getRecord: the id is compared, nothing else.

    Raises:
        JavaError: the index points to something else.
        DiskError: the file cannot be read.
    """
    segment = log.find(transaction_id)
    if segment is None:
        return None
    offset = yield from _Index(segment.index_path, segment.index_first, 0).get(transaction_id)
    if offset < 0:
        return None
    _seek(offset)
    data = yield from read(segment.data_path, offset, HEAD_SIZE)
    if len(data) == HEAD_SIZE:
        if int.from_bytes(data[:8], "big", signed=True) != transaction_id:
            raise JavaError(f"{SE}transaction id mismatch")
        length = int.from_bytes(data[28:32], "big", signed=True)
        if length < 0:
            raise JavaError(f"java.lang.NegativeArraySizeException: {length}")
        data = yield from read(segment.data_path, offset, HEAD_SIZE + length)
    try:
        return decode_unverified(data)
    except ValueError as error:
        raise JavaError(f"{SE}{error}") from error


def decode_unverified(buffer: bytes) -> Record:
    """The record at the start of `buffer` nothing but its length is looked at.

    Raises:
        ValueError: the buffer ends inside the record, or the length is negative.
    """
    if len(buffer) < HEAD_SIZE:
        raise ValueError("end of file")
    found, req_id, header, length, checksum = _HEAD.unpack_from(buffer)
    if length < 0:
        raise ValueError(f"negative length {length}")
    if len(buffer) < HEAD_SIZE + length:
        raise ValueError("end of file")
    return Record(found, ReqId(req_id), header, buffer[HEAD_SIZE : HEAD_SIZE + length], checksum)


def read_unverified(log: LogFiles, first: int, count: int) -> Procedure[list[Record]]:
    """Records from `first` upward, up to the first that is not there.

    Raises:
        JavaError: the index points to something else.
        DiskError: the file cannot be read.
    """
    records: list[Record] = []
    for transaction_id in range(first, first + max(0, count)):
        record = yield from read_one(log, transaction_id)
        if record is None:
            break
        records.append(record)
    return records


def truncate(where: LogPlace, log: LogFiles, last_kept: int) -> Procedure[None]:
    """Java: Partition.truncate.

    Raises:
        JavaError: the id is before the log; later segments are gone already.
        DiskError: the disk did not do it.
    """
    while len(log.segments) > 1 and last_kept + 1 < log.last.first_id:
        yield from write(Unlink(log.last.data_path), Unlink(log.last.index_path))
        log.drop_last()
    last = log.last
    if last.next_id - 1 <= last_kept or last_kept + 1 == last.next_id:
        return
    if last_kept + 1 < last.first_id:
        raise JavaError(f"{SE}transaction id out of range: file={where.shown}/{last.data_path}")
    index = _Index(last.index_path, last.index_first, 1 << 62)
    offset = yield from index.get(last_kept + 1)
    if offset < 0:
        raise JavaError(f"{SE}corrupted")
    yield from index.cut(last_kept)
    yield from write(Cut(last.data_path, offset), SyncFile(last.data_path))
    last.shrink(last_kept + 1, offset)


# ---- the control file ------------------------------------------------------------------------------


def open_control(config: StorageConfig, wall_ms: int) -> Procedure[bytes]:
    """Everything behind the header of the control file.

    Raises:
        JavaError: 0.13.2 would not start.
        DiskError: the directory cannot be read or written.
    """
    present = yield from list_names("")
    size = next((entry.size for entry in present if entry.name == ctl.NAME), -1)
    data = (yield from read(ctl.NAME, 0, size)) if size > 0 else b""
    header = ctl.decode_header(data)
    if header is None:
        yield from format_control(config, wall_ms, exists=size >= 0)
        return ctl.fresh_body(config.partition_count)
    if header.key != config.key:
        raise JavaError(f"{SE}the cluster key does not match")
    if header.partition_count != config.partition_count:
        raise JavaError(f"{SE}the number of partitions does not match")
    missing = ctl.file_size(header.partition_count) - len(data)
    if missing > 0:
        # Mapping the body extends a short file with zeros.
        yield from write(WriteAt(ctl.NAME, len(data), bytes(missing)))
        data += bytes(missing)
    return data[ctl.HEADER_SIZE :]


def decode_entry(body: bytes, partition_id: int) -> ControlEntry:
    """One partition's entry.

    Raises:
        JavaError: neither struct counts.
    """
    one, two = ctl.decode_structs(body, partition_id)
    if one is not None and two is not None and one.sequence != two.sequence:
        slot, current = max(((0, one), (1, two)), key=lambda struct: struct[1].sequence)  # they do not wrap
        return ControlEntry(partition_id, slot, current, current.sequence)
    entry = ctl.choose(partition_id, (one, two))
    if isinstance(entry, ControlDamage):
        raise JavaError(f"{SE}{entry.value}")
    return entry
