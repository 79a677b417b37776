"""From columns back to records as they stand on disk, a batch at a time."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waltz_spark.base.errors import RecordDamagedError
from waltz_spark.records import crc
from waltz_spark.records.blocks import HEAD_DTYPE, HEAD_SIZE, OVERHEAD, Block, payload_bytes


def encode_batch(batch: Any, partition: int, place: str) -> Block:
    """A batch with the columns of an archive file as a block.

    The checksum of a record is made of that of its head and the stored one of its payload: where payloads
    do not match theirs, neither will the record. `check_batch` shows it; so does the digest of the records.
    """
    count = batch.num_rows
    heads = np.zeros(count, HEAD_DTYPE)
    for name in ("transaction_id", "client_id", "generation", "seq", "header", "checksum"):
        heads[name] = batch.column(name).to_numpy(zero_copy_only=False)
    heads["partition"] = partition
    data = batch.column("data")
    lengths = _lengths(data)
    heads["length"] = lengths
    first_id = int(heads["transaction_id"][0])
    checksums = _record_checksums(heads, lengths)
    disk = pc.binary_join_element_wise(
        _fixed(heads.view(np.uint8), HEAD_SIZE), data, _fixed(checksums.astype(">u4").view(np.uint8), 4), b""
    )
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths + OVERHEAD)])
    buffer = np.frombuffer(payload_bytes(disk), np.uint8)
    return Block(partition, first_id, buffer, offsets, place, "archive")


def check_batch(batch: Any, partition: int, place: str) -> None:
    """Compare payloads with their checksums.

    Raises:
        RecordDamagedError: one does not match.
    """
    data = batch.column("data")
    stored = batch.column("checksum").to_numpy(zero_copy_only=False).astype(np.int32).view(np.uint32)
    lengths = _lengths(data)
    if crc.pieces_match(np.frombuffer(payload_bytes(data), np.uint8), np.cumsum(lengths) - lengths, stored):
        return
    for at, payload in enumerate(data):
        if zlib.crc32(payload.as_buffer()) != int(stored[at]):
            transaction_id = int(batch.column("transaction_id")[at].as_py())
            raise RecordDamagedError(partition, transaction_id, place, "the checksum of the data does not match")


def _lengths(data: Any) -> Any:
    return pc.binary_length(data).to_numpy(zero_copy_only=False).astype(np.int64)


def _record_checksums(heads: Any, lengths: Any) -> crc.Words:
    words = heads.view(np.uint8).reshape(-1, HEAD_SIZE).view("<u2")
    stored = heads["checksum"].astype(np.int32).view(np.uint32)
    return np.asarray(crc.shifted(crc.of_words(words), lengths) ^ stored)


def _fixed(data: Any, size: int) -> Any:
    """A binary array of entries of one size over some bytes."""
    count = len(data) // size
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
