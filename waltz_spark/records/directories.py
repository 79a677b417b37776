"""What a storage directory, or a backup of one, holds: segments of each partition and how far they can be trusted.

Read-only: the control file is neither locked nor opened for writing, so the node may run. Its local
low-water mark is where the last store session began: everything up to it is committed. A later recovery may cut what
is behind it, so that is read only on request (`trust=files`) or if a live cluster says
how far it is committed.

A log begins at id 0, or where `waltz.start` says (0.13.2 knows no such file, and frees nothing): what is missing above
that is lost, not freed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from uuid import UUID

from waltz_core.base.record import record
from waltz_core.storage import control, side
from waltz_core.storage.segment import HEADER_SIZE, decode_header, id_of_name
from waltz_spark.base.errors import DataLossError, OptionError, PipelineError, UnreachableError, WrongClusterError
from waltz_spark.records.segments import SegmentFile

TRUST = ("control", "files")


@record
class SegmentSpan:
    """One data file: half-open ids, and bytes of the records."""

    path: str
    first_id: int
    end_id: int
    size: int


@record
class PartitionFiles:
    """One replica: its segments without a hole between them."""

    partition: int
    segments: tuple[SegmentSpan, ...]
    safe_end: int  # id behind the last one that is known to be committed
    whole_end: int  # id behind the last whole record

    @property
    def start(self) -> int:
        """The first id."""
        return self.segments[0].first_id if self.segments else self.safe_end


@record
class Replica:
    """One directory."""

    path: str
    key: bytes
    partition_count: int
    partitions: tuple[PartitionFiles, ...]  # sorted

    def find(self, partition: int) -> PartitionFiles | None:
        """The files of a partition, None if there are none."""
        return next((one for one in self.partitions if one.partition == partition), None)


def read_directory(
    path: str | os.PathLike[str],
    *,
    trust: str = "control",
    partitions: Collection[int] | None = None,
    key: bytes | None = None,
    live: Mapping[int, tuple[int, int]] | None = None,
) -> Replica:
    """Look at a storage directory.

    Args:
        trust: `control`: up to the local low-water mark of the control file; `files`: all whole records.
        partitions: None = all.
        key: of the cluster, None = that of the directory.
        live: what servers say now: store session and committed end, by partition. A replica that took part
            in the session is good up to that end, another one to its own mark.

    Raises:
        UnreachableError: it cannot be read.
        OptionError: there is no control file, which `trust=control` needs.
        WrongClusterError: it belongs to another cluster.
        DataLossError: ids are in no file: between two segments, between the log start and the first one, or all those
            that the control file promises.
    """
    root = Path(path)
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        raise UnreachableError(f"{root}: {error.strerror}") from error
    header, body = _read_control(root)
    if header is None and trust == "control":
        raise OptionError(
            f"{root} has no readable {control.NAME}, which tells how far the log is committed; "
            "trust=files reads all whole records"
        )
    numbers = sorted(int(name) for name in names if name.isdecimal() and (root / name).is_dir())
    found_key = header.key if header is not None else _key_of_files(root, numbers)
    if key is not None and found_key != key:
        raise WrongClusterError(str(root), str(UUID(bytes=key)), str(UUID(bytes=found_key)))
    count = header.partition_count if header is not None else max(numbers, default=-1) + 1
    known = {*numbers, *range(count if header is not None else 0)}  # a folder may be gone
    wanted = [number for number in sorted(known) if (partitions is None or number in partitions) and number < count]
    partition_files = []
    for number in wanted:
        promised = _promised_end(root, body, number, trust) if header is not None else None
        if promised is None and (trust == "control" or number not in numbers):
            continue  # not assigned to this node
        if number not in numbers:
            _check_no_loss(root / str(number), number, 0, promised, "the folder is gone")
            continue
        session_id, end = live.get(number, (0, 0)) if live is not None else (0, 0)
        if trust != "control" or promised is None or _session(body, number) < session_id:
            end = 0
        partition_files.append(_read_trusted(root / str(number), number, found_key, promised, trust, end))
    return Replica(str(root), found_key, count, tuple(partition_files))


def _read_control(root: Path) -> tuple[control.ControlHeader | None, bytes]:
    try:
        data = (root / control.NAME).read_bytes()
    except OSError:
        return None, b""
    header = control.decode_header(data)
    if header is None or header.version != 0 or len(data) < control.file_size(header.partition_count):
        return None, b""
    return header, data[control.HEADER_SIZE :]


def _promised_end(root: Path, body: bytes, partition: int, trust: str) -> int | None:
    """The id behind the local low-water mark; None if the partition is not assigned to the node."""
    entry = control.decode_entry(body, partition)
    if isinstance(entry, control.ControlDamage):
        if trust == "files":
            return None  # nobody knows
        raise PipelineError(f"{root / control.NAME}: partition {partition}: {entry.value}")
    if not entry.current.assigned:
        return None
    return max(entry.current.local_low_water_mark, -1) + 1


def _check_no_loss(folder: Path, partition: int, start: int, promised: int | None, missing: str) -> None:
    """Raises DataLossError: nothing is there of what the control file says that the node has."""
    if promised is not None and promised > start:
        reason = f"{control.NAME} says that the node has them, and {missing}; read another replica, or the archive"
        raise DataLossError(partition, start, promised, str(folder), reason)


def _log_start(folder: Path) -> int:
    """Where the log begins. It is read behind the names of the files: it is durable before the first one is freed.

    Raises:
        UnreachableError: the file that says so cannot be read.
    """
    path = folder / side.START
    try:
        with path.open("rb") as file:
            data = file.read(2 * side.SLOT_SIZE)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UnreachableError(f"{path}: {error.strerror}") from error
    return side.decode_start(side.newest_slot(data)).first_id


def _session(body: bytes, partition: int) -> int:
    entry = control.decode_entry(body, partition)
    assert isinstance(entry, control.ControlEntry)
    return entry.current.session_id


def _key_of_files(root: Path, numbers: list[int]) -> bytes:
    for number in numbers:
        for path in sorted((root / str(number)).glob("*.seg")):
            with path.open("rb") as file:
                header = decode_header(file.read(HEADER_SIZE))
            if header is not None:
                return header.key
    raise PipelineError(f"{root} holds neither a control file nor a segment: is it a storage directory?")


def _read_trusted(
    path: Path, partition: int, key: bytes, promised: int | None, trust: str, live_end: int
) -> PartitionFiles:
    """Args:
    promised: the id behind the local low-water mark, None if it is not known.
    live_end: the id behind what servers say is committed, if the replica took part in that session.
    """
    safe_end = promised if trust == "control" else None
    if safe_end is not None and live_end > safe_end:
        whole = _read_partition(path, partition, key, None, promised)
        safe_end = max(safe_end, min(live_end, whole.whole_end))
    return _read_partition(path, partition, key, safe_end, promised)


def _read_partition(
    path: Path, partition: int, key: bytes, safe_end: int | None, promised: int | None
) -> PartitionFiles:
    """Args: safe_end: None = as far as the records are whole."""
    firsts = sorted(
        first for name in os.listdir(path) if name.endswith(".seg") and (first := id_of_name(name)) is not None
    )
    start = _log_start(path)
    if not firsts:
        _check_no_loss(path, partition, start, promised, "no segment is there")
    elif firsts[0] > start:
        reason = f"it is the first segment, and the log begins at {start}: those before it are lost, not freed"
        raise DataLossError(partition, start, firsts[0], str(path / f"{firsts[0]:019d}.seg"), reason)
    spans: list[SegmentSpan] = []
    whole_end = 0
    for at, first in enumerate(firsts):
        following = firsts[at + 1] if at + 1 < len(firsts) else None
        if safe_end is not None and first > safe_end:
            # It is not read, since a store session may be writing it now; but it is known to exist.
            whole_end = max(whole_end, _indexed_end(path / f"{firsts[-1]:019d}.seg", partition, key))
            break
        name = path / f"{first:019d}.seg"
        with SegmentFile(name, partition, key) as segment:
            if following is not None and segment.indexed_end == following:
                end = following
            elif following is None and safe_end is not None and safe_end <= segment.indexed_end:
                end = segment.indexed_end
            else:
                end = segment.whole_end()
            size = segment.size - HEADER_SIZE
        if following is not None and end < following and (safe_end is None or end < safe_end):
            raise DataLossError(
                partition, end, following, str(name), f"the next segment, {following:019d}.seg, starts behind them"
            )
        end = end if following is None else min(end, following)
        spans.append(SegmentSpan(str(name), first, end, size))
        whole_end = end
    return PartitionFiles(partition, tuple(spans), whole_end if safe_end is None else safe_end, whole_end)


def _indexed_end(path: Path, partition: int, key: bytes) -> int:
    """How far the last segment reaches, by its index alone."""
    try:
        with SegmentFile(path, partition, key) as segment:
            return segment.indexed_end
    except PipelineError:
        return id_of_name(path.name) or 0  # its header is being written
