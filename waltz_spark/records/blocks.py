"""A block: some consecutive records as they stand on disk, checked as a whole and turned into an Arrow batch.

There is no loop over records: numpy gathers header fields, one Arrow `take` the payloads,
one call over the block the checksums. Only in a wrong block are records checked one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waltz_spark.base.errors import RecordDamagedError
from waltz_spark.records import crc
from waltz_spark.records.columns import TYPES, Condition, Shape, arrow_schema, load_codec

HEAD_SIZE = 36
OVERHEAD = 40  # bytes of a record besides its payload

Offsets = npt.NDArray[np.int64]

HEAD_DTYPE = np.dtype(
    [
        ("transaction_id", ">i8"),
        ("client_id", ">i4"),
        ("generation", ">i4"),
        ("partition", ">i4"),
        ("seq", ">i4"),
        ("header", ">i4"),
        ("length", ">i4"),
        ("checksum", ">i4"),
    ]
)
_COMPARE = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}


class Block:
    """Records `first_id ...` of one partition.

    Args:
        buffer: their bytes (uint8).
        offsets: where each starts in `buffer`, and where the last one ends.
        place: file or node they come from, for messages.
        origin: `file`, `archive`, `storage` or `server`.
    """

    __slots__ = ("_heads", "_payloads", "buffer", "first_id", "offsets", "origin", "partition", "place")

    def __init__(
        self, partition: int, first_id: int, buffer: npt.NDArray[np.uint8], offsets: Offsets, place: str, origin: str
    ) -> None:
        assert len(offsets) > 1
        self.partition = partition
        self.first_id = first_id
        self.buffer = buffer
        self.offsets = offsets
        self.place = place
        self.origin = origin
        self._heads: Any = None
        self._payloads: Any = None

    @property
    def count(self) -> int:
        """Records."""
        return len(self.offsets) - 1

    @property
    def end_id(self) -> int:
        """The id behind the last record."""
        return self.first_id + self.count

    @property
    def data(self) -> memoryview:
        """Bytes of all the records."""
        return self.buffer.data[int(self.offsets[0]) : int(self.offsets[-1])]

    @property
    def heads(self) -> Any:
        """The fields in front of the payloads, as an array of `HEAD_DTYPE`."""
        if self._heads is None:
            room = len(self.buffer) - HEAD_SIZE + 1
            windows = np.ndarray((max(room, 0),), "V36", self.buffer, strides=(1,))
            self._heads = windows[self.offsets[:-1]].view(HEAD_DTYPE)
        return self._heads

    # ---- checks ----------------------------------------------------------------------------------

    def misfit(self) -> tuple[int, str] | None:
        """The first record out of place: position and reason; None if all fit."""
        sizes = np.diff(self.offsets)
        if sizes.min() < OVERHEAD or self.offsets[0] < 0 or self.offsets[-1] > len(self.buffer):
            at = int(np.argmax(sizes < OVERHEAD)) if sizes.min() < OVERHEAD else self.count - 1
            return at, "the offsets of the index are no places of records"
        heads = self.heads
        expected = np.arange(self.first_id, self.end_id, dtype=np.int64)
        wrong = (heads["transaction_id"] != expected) | (heads["length"] != sizes - OVERHEAD)
        if not wrong.any():
            return None
        at = int(np.argmax(wrong))
        found, length = int(heads["transaction_id"][at]), int(heads["length"][at])
        if found != self.first_id + at:
            return at, f"id {found} stands there"
        return at, f"it announces {length} bytes of data, {int(sizes[at]) - OVERHEAD} are there"

    def check(self, verify: str) -> None:
        """Density and, as `verify` says, checksums; `bytes` are those of whole records alone.

        Raises:
            RecordDamagedError: of the first record that is wrong.
        """
        fault = self.misfit()
        if fault is None and verify in ("bytes", "record", "quorum"):
            fault = self._bad_record()
        if fault is None and verify in ("payload", "record", "quorum"):
            fault = self._bad_payload()
        if fault is not None:
            at, reason = fault
            raise RecordDamagedError(self.partition, self.first_id + at, self.place, reason)

    def _bad_record(self) -> tuple[int, str] | None:
        ends, base = self.offsets[1:], int(self.offsets[0])
        if crc.own_match(self.buffer[base : int(ends[-1])], ends - base):
            return None
        tails = np.ndarray((len(self.buffer) - 3,), "V4", self.buffer, strides=(1,))
        stored = tails[ends - 4].view(">u4").astype(np.uint32)
        found = crc.each(self.buffer.data, self.offsets[:-1], ends - 4)
        wrong = found != stored
        return (int(np.argmax(wrong)), "the checksum of the record does not match") if wrong.any() else None

    def _bad_payload(self) -> tuple[int, str] | None:
        """The payload checksums, from the payloads alone."""
        stored = self.heads["checksum"].astype(np.int32).view(np.uint32)
        starts = self.offsets[:-1] - (self.offsets[0] + OVERHEAD * np.arange(self.count))
        if crc.pieces_match(np.frombuffer(payload_bytes(self.payloads(None)), np.uint8), starts, stored):
            return None
        found = crc.each(self.buffer.data, self.offsets[:-1] + HEAD_SIZE, self.offsets[1:] - 4)
        wrong = found != stored
        return (int(np.argmax(wrong)), "the checksum of the data does not match") if wrong.any() else None

    # ---- columns ---------------------------------------------------------------------------------

    def payloads(self, rows: npt.NDArray[np.intp] | None) -> Any:
        """Arrow binary array of the payloads (of some rows), copied out of the buffer.

        A view of the buffer whose entries are, in turn, a payload and the gap behind it costs nothing; the
        payloads are then taken from it.
        """
        if self._payloads is not None:
            return self._payloads if rows is None else self._payloads.take(pa.array(rows))
        base, n = int(self.offsets[0]), self.count
        if int(self.offsets[-1]) - base >= 1 << 31:
            assert n == 1, "blocks of several records are cut below 2 GiB"
        borders = np.empty(2 * n, np.int32)
        borders[0::2] = self.offsets[:-1] + (HEAD_SIZE - base)
        borders[1::2] = self.offsets[1:] - (4 + base)
        view = pa.Array.from_buffers(
            pa.binary(), 2 * n - 1, [None, pa.py_buffer(borders), pa.py_buffer(self.buffer[base:])]
        )
        payloads = view.take(pa.array((np.arange(n, dtype=np.int32) if rows is None else rows) * 2))
        if rows is None:
            self._payloads = payloads
        return payloads

    def batch(self, shape: Shape) -> Any:
        """The rows as an Arrow record batch in the schema of `shape`; may have no row."""
        rows = self._rows(shape.conditions)
        heads = self.heads if rows is None else self.heads[rows]
        count = len(heads)
        arrays: list[Any] = []
        for name in shape.columns:
            if name == "data":
                data = self.payloads(rows)
                if shape.codec is None:
                    arrays.append(data)
                else:
                    header = pa.array(heads["header"].astype(np.int32))
                    arrays.extend(load_codec(shape.codec).decode(data, header))
            elif name == "partition":
                arrays.append(pa.array(np.full(count, self.partition, np.int32)))
            elif name == "_origin":
                arrays.append(pa.repeat(pa.scalar(self.origin), count))
            elif name == "_verified":
                arrays.append(pa.repeat(pa.scalar(shape.verify != "none"), count))
            else:
                kind = np.int64 if TYPES[name] == pa.int64() else np.int32
                arrays.append(pa.array(heads[name].astype(kind)))
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(shape))

    def _rows(self, conditions: tuple[Condition, ...]) -> npt.NDArray[np.intp] | None:
        if not conditions:
            return None
        kept = np.ones(self.count, bool)
        for condition in conditions:
            values = self.heads[condition.column]
            if condition.operator == "in":
                kept &= np.isin(values, np.array(condition.values, np.int64))
            else:
                kept &= _COMPARE[condition.operator](values, condition.values[0])
        return None if kept.all() else np.flatnonzero(kept)


def payload_bytes(array: Any) -> memoryview:
    """The bytes behind a binary array, end to end."""
    _, offsets, data = array.buffers()
    if data is None:
        return memoryview(b"")
    borders = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset)
    return memoryview(data)[int(borders[0]) : int(borders[-1])]
