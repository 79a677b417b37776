"""From columns back to records as they stand on disk, a batch at a time."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waltz_spark import crc
from waltz_spark.blocks import HEAD_DTYPE, HEAD_SIZE, OVERHEAD, Block, payload_bytes
from waltz_spark.errors import RecordDamagedError


def encode_batch(batch: Any, partition: int, place: str) -> Block:
    """A batch with the columns of an archive file as a block; checksums of the payloads are verified on the way.

    The checksum of a record is made of that of its head and the stored one of its payload, so payloads are
    gone through once only.

    Raises:
        RecordDamagedError: ids are not dense, or a payload does not match its checksum.
    """
    count = batch.num_rows
    heads = np.zeros(count, HEAD_DTYPE)
    for name in ("transaction_id", "client_id", "generation", "seq", "header", "checksum"):
        heads[name] = batch.column(name).to_numpy(zero_copy_only=False)
    heads["partition"] = partition
    data = batch.column("data")
    if isinstance(data, pa.ChunkedArray):
        data = data.combine_chunks()
    lengths = pc.binary_length(data).to_numpy(zero_copy_only=False).astype(np.int64)
    heads["length"] = lengths
    first_id = int(heads["transaction_id"][0])
    _check(heads, data, lengths, partition, place)
    checksums = _record_checksums(heads, lengths)
    disk = pc.binary_join_element_wise(
        _fixed(heads.view(np.uint8), HEAD_SIZE), data, _fixed(checksums.astype(">u4").view(np.uint8), 4), b""
    )
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths + OVERHEAD)])
    buffer = np.frombuffer(payload_bytes(disk), np.uint8)
    return Block(partition, first_id, buffer, offsets, place, "archive")


def _check(heads: Any, data: Any, lengths: Any, partition: int, place: str) -> None:
    ids = heads["transaction_id"].astype(np.int64)
    wrong = np.flatnonzero(ids != ids[0] + np.arange(len(ids)))
    if len(wrong):
        expected = int(ids[0] + wrong[0])
        raise RecordDamagedError(partition, expected, place, f"id {int(ids[wrong[0]])} stands there")
    stored = heads["checksum"].astype(np.int32).view(np.uint32)
    ends = np.cumsum(lengths)
    if ends[-1] <= crc.SPAN_MAX and zlib.crc32(payload_bytes(data)) == crc.combined(stored, ends):
        return
    for at, payload in enumerate(data):
        if zlib.crc32(payload.as_buffer()) != int(stored[at]):
            raise RecordDamagedError(partition, int(ids[at]), place, "the checksum of the data does not match")


def _record_checksums(heads: Any, lengths: Any) -> crc.Words:
    words = heads.view(np.uint8).reshape(-1, HEAD_SIZE).view("<u2").astype(np.uint32)
    stored = heads["checksum"].astype(np.int32).view(np.uint32)
    return np.asarray(crc.shifted(crc.of_words(words), lengths) ^ stored)


def _fixed(data: Any, size: int) -> Any:
    """A binary array of entries of one size over some bytes."""
    count = len(data) // size
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
