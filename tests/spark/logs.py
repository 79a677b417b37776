"""Storage directories made for tests by the core's own encoder: what a node would have written."""

from __future__ import annotations

import random
import zlib
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record
from waltz_core.storage import control, index, side
from waltz_core.storage.record_codec import encode_run
from waltz_core.storage.segment import HEADER_SIZE, SegmentHeader, data_name, encode_header, index_name

KEY = bytes(range(16))
CREATED_MS = 1_700_000_000_000


def signed(checksum: int) -> int:
    return checksum - (1 << 32) if checksum >= 1 << 31 else checksum


def make_records(partition: int, payloads: Sequence[bytes], first: int = 0) -> list[Record]:
    return [
        Record(
            first + at,
            make_req_id(7 + at % 3, 1, partition, at),
            at % 5 - 2,
            data,
            signed(zlib.crc32(data)),
        )
        for at, data in enumerate(payloads)
    ]


def random_payloads(count: int, seed: int = 0, size: Callable[[random.Random], int] | None = None) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size(rng) if size else rng.randrange(60)) for _ in range(count)]


def write_segments(
    directory: Path, partition: int, records: Sequence[Record], *, threshold: int = 1 << 30, key: bytes = KEY
) -> list[Path]:
    """The files of one partition; returns the data files."""
    folder = directory / str(partition)
    folder.mkdir(parents=True, exist_ok=True)
    done, first, paths = 0, records[0].transaction_id if records else 0, []
    while True:
        parts: list[bytes] = []
        offsets: array[int] = array("Q")
        done, _ = encode_run(records, done, HEADER_SIZE, threshold, parts, offsets)
        header = encode_header(SegmentHeader(CREATED_MS, key, partition, first))
        path = folder / data_name(first)
        path.write_bytes(header + b"".join(parts))
        path.with_name(index_name(path.name)).write_bytes(header + index.encode_entries(offsets))
        paths.append(path)
        first += len(offsets)
        if done == len(records):
            return paths


def write_control(directory: Path, ends: Sequence[int | None], *, key: bytes = KEY) -> None:
    """A control file; `ends` are the ids behind the local low-water marks, None = not assigned."""
    directory.mkdir(parents=True, exist_ok=True)
    data = bytearray(control.encode_header(control.ControlHeader(CREATED_MS, key, len(ends))))
    data += control.fresh_body(len(ends))
    for partition, end in enumerate(ends):
        if end is None:
            continue
        flags = control.AVAILABLE | control.ASSIGNED
        struct = control.ControlStruct(3, end - 1, end - 1, flags, 1)
        at = control.struct_place(partition, 0)
        data[at : at + 36] = control.encode_struct(struct)
    (directory / control.NAME).write_bytes(data)


def write_start(directory: Path, partition: int, first_id: int) -> None:
    """A side file that says where the log begins, as a node writes it before it frees what is below."""
    slot = side.encode_start(side.LogStart(first_id, anew=False), side.Belongs(1, 3, first_id), 1)
    (directory / str(partition) / side.START).write_bytes(bytes(side.SLOT_SIZE) + slot.ljust(side.SLOT_SIZE, b"\0"))


def make_log(
    directory: Path, payloads: Sequence[Sequence[bytes]], *, threshold: int = 1 << 30, key: bytes = KEY
) -> list[list[Record]]:
    """A storage directory with one partition per entry, all of it committed."""
    logs = [make_records(partition, found) for partition, found in enumerate(payloads)]
    for partition, records in enumerate(logs):
        write_segments(directory, partition, records, threshold=threshold, key=key)
    write_control(directory, [len(records) for records in logs], key=key)
    return logs
