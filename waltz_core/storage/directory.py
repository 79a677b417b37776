"""Opening the control file of a data directory, or making it on a new node."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from waltz_core.base.errors import CorruptionError
from waltz_core.storage import control as ctl
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.control import ControlHeader
from waltz_core.storage.effects import Create, FileEntry, SyncDirectory, SyncFile, WriteAt
from waltz_core.storage.procedure import Procedure, list_names, read, write


def open_control(config: StorageConfig, wall_ms: int) -> Procedure[bytes]:
    """Everything behind the header of the control file.

    Raises:
        CorruptionError: the directory is not what it should be; says what was expected and found, and what to do.
        DiskError: the directory cannot be read or written.
    """
    present = yield from list_names("")
    size = next((entry.size for entry in present if entry.name == ctl.NAME), -1)
    data = b""
    if size > 0:
        data = yield from read(ctl.NAME, 0, size)
    header = ctl.decode_header(data)
    if not any(data[: ctl.HEADER_SIZE]):  # absent, or formatting was cut short before the header
        check_new(present)
        yield from format_control(config, wall_ms, exists=size >= 0)
        return ctl.fresh_body(config.partition_count)
    if header is None:
        raise CorruptionError(_too_short(size, ctl.file_size(config.partition_count)))
    _check_header(config, header)
    if size < ctl.file_size(header.partition_count):
        raise CorruptionError(_too_short(size, ctl.file_size(header.partition_count)))
    # Written again and synced: a state that a crash could undo is not trusted.
    yield from write(WriteAt(ctl.NAME, 0, data), SyncFile(ctl.NAME), SyncDirectory(""))
    return data[ctl.HEADER_SIZE :]


def check_new(present: Sequence[FileEntry]) -> None:
    """A directory without a control file must not hold partitions.

    Raises:
        CorruptionError: it does.
    """
    partitions = sorted(int(entry.name) for entry in present if entry.is_directory and entry.name.isdecimal())
    if partitions:
        shown = ", ".join(map(str, partitions[:10]))
        raise CorruptionError(
            f"{ctl.NAME} is missing or empty, but there are directories of partitions ({shown}). Restore the file from "
            "a backup of this node; or, if the data of this node may be given up, move the directories away"
        )


def format_control(config: StorageConfig, wall_ms: int, exists: bool) -> Procedure[None]:
    """Make a new control file: the body first, so that no header exists without its body."""
    header = ControlHeader(wall_ms, config.key, config.partition_count)
    yield from write(
        *(() if exists else (Create(ctl.NAME),)),
        WriteAt(ctl.NAME, ctl.HEADER_SIZE, ctl.fresh_body(config.partition_count)),
        SyncFile(ctl.NAME),
        WriteAt(ctl.NAME, 0, ctl.encode_header(header)),
        SyncFile(ctl.NAME),
        SyncDirectory(""),
    )


def _too_short(size: int, expected: int) -> str:
    return (
        f"{ctl.NAME}: expected {expected} bytes, found {size}: the file has lost its end. It is not formatted anew, "
        "because that would forget all sessions and marks. Restore it from a backup of this node; or, if the data of "
        "this node may be given up, empty the directory"
    )


def _check_header(config: StorageConfig, header: ControlHeader) -> None:
    advice = "Check storage.directory, zookeeper.connectString and cluster.root"
    if header.key != config.key:
        raise CorruptionError(
            f"{ctl.NAME}: cluster key, at offset 12: expected {UUID(bytes=config.key)} (from ZooKeeper), found "
            f"{UUID(bytes=header.key)}: the directory belongs to another cluster. {advice}"
        )
    if header.partition_count != config.partition_count:
        raise CorruptionError(
            f"{ctl.NAME}: number of partitions, at offset 28: expected {config.partition_count} (from ZooKeeper), "
            f"found {header.partition_count}. {advice}"
        )
