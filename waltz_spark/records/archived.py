"""Reading the Parquet files of an archive: as rows for the source, as records for restore and verification."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from waltz_spark.base.errors import ArchiveError, RecordDamagedError
from waltz_spark.base.objects import open_store
from waltz_spark.base.planning import ArchivePlace
from waltz_spark.records.blocks import Block
from waltz_spark.records.columns import NAMES, TYPES, Shape, arrow_schema, load_codec
from waltz_spark.records.encoding import check_batch, encode_batch

STORED = tuple(name for name in NAMES if name not in ("partition", "length"))
"""Columns of a file. The partition is in its path, the length follows from the data."""

_PLAIN = frozenset({"PLAIN", "RLE", "DELTA_LENGTH_BYTE_ARRAY"})  # as long as what they hold; RLE is of levels
_SLACK = 1 << 20  # bytes of page headers

_COMPARE = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


def stored_batches(
    place: ArchivePlace,
    partition: int,
    start: int,
    end: int,
    rows_max: int,
    columns: tuple[str, ...] = STORED,
    size_max: int = 4 << 20,
) -> Iterator[Any]:
    """Batches of a file that hold the ids `start .. end - 1`; row groups without any are not read.

    Raises:
        ArchiveError: it is no such file.
        RecordDamagedError: the ids are not dense.
        UnreachableError: it cannot be read.
    """
    with open_store(place.root).open_input(place.path) as raw:
        try:
            file = _opened(place, raw)
            rows_max = _rows_of_batch(file, rows_max, size_max)
            groups, first = [], place.first_id
            lows: list[int] = []
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if first < end and first + count > start:
                    groups.append(group)
                    lows.append(first)
                first += count
            at = lows[0] if lows else start
            for batch in file.iter_batches(rows_max, row_groups=groups, columns=list(columns)):
                ids = batch.column("transaction_id").to_numpy()
                if not np.array_equal(ids, np.arange(at, at + len(ids))):
                    bad = int(np.argmax(ids != np.arange(at, at + len(ids))))
                    raise RecordDamagedError(partition, at + bad, place.path, f"id {int(ids[bad])} stands there")
                low, high = max(0, start - at), min(len(ids), end - at)
                at += len(ids)
                if low < high:
                    yield batch.slice(low, high - low)
        except (pa.ArrowException, OSError) as error:
            raise ArchiveError(f"{place.root}/{place.path}: {error}") from error


def _opened(place: ArchivePlace, raw: Any) -> Any:
    """A file whose footer agrees with the manifest, which is checked before anything is decoded.

    Raises:
        ArchiveError: it is another file, or one that was not written by this package.
    """
    if place.file_size >= 0:
        size = raw.seek(0, os.SEEK_END)
        if size != place.file_size:
            raise ArchiveError(f"{place.path} has {size} bytes, the manifest says {place.file_size}")
        raw.seek(0)
    file = pq.ParquetFile(raw, page_checksum_verification=True)
    metadata, count = file.metadata, place.end_id - place.first_id
    if metadata.num_rows != count or sum(_rows_of(metadata)) != count:
        raise ArchiveError(f"{place.path} holds {metadata.num_rows} records, the manifest says {count}")
    types = {field.name: field.type for field in file.schema_arrow}
    expected = {name: TYPES[name] for name in STORED}
    if types != expected or metadata.num_columns != len(STORED):
        raise ArchiveError(f"{place.path} has columns {types}, those of an archive are {expected}")
    data = STORED.index("data")
    chunks = [metadata.row_group(group).column(data) for group in range(metadata.num_row_groups)]
    for chunk in chunks:
        if chunk.path_in_schema != "data" or not _PLAIN.issuperset(chunk.encodings):
            # Dictionaries and shared prefixes expand: what is decoded could be of any size.
            raise ArchiveError(
                f"{place.path}: data are encoded as {', '.join(chunk.encodings)}, which nobody wrote here"
            )
    decoded = sum(chunk.total_uncompressed_size for chunk in chunks)
    if place.raw_size >= 0 and decoded > place.raw_size + place.raw_size // 64 + _SLACK:
        raise ArchiveError(f"{place.path} holds {decoded} bytes of data, the manifest says {place.raw_size} of records")
    return file


def _rows_of(metadata: Any) -> list[int]:
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _rows_of_batch(file: Any, rows_max: int, size_max: int) -> int:
    """The number of rows for which a batch has about `size_max` bytes, by the averages of the row groups."""
    data = STORED.index("data")
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    average = max((group.column(data).total_uncompressed_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(rows_max, size_max // max(1, average)))


def archived_blocks(place: ArchivePlace, partition: int, start: int, end: int, shape: Shape) -> Iterator[Block]:
    """Records of a file as they stand on disk."""
    for batch in stored_batches(place, partition, start, end, shape.rows_max, size_max=shape.size_max):
        if shape.verify != "none":
            check_batch(batch, partition, place.path)
        yield encode_batch(batch, partition, place.path)


def archived_batches(
    place: ArchivePlace, partition: int, start: int, end: int, shape: Shape
) -> Iterator[tuple[int, Any]]:
    """Rows of a file in the schema of `shape`, and the id behind each batch."""
    wanted = {"transaction_id", *(one.column for one in shape.conditions)}
    wanted.update(name for name in shape.columns if name in STORED)
    if "data" in shape.columns and shape.codec is not None:
        wanted.add("header")  # which the codec is given, too
    if "length" in shape.columns or shape.verify != "none":
        wanted.update(("data", "checksum"))
    columns = tuple(name for name in STORED if name in wanted)
    for batch in stored_batches(place, partition, start, end, shape.rows_max, columns, shape.size_max):
        next_id = int(batch.column("transaction_id")[-1].as_py()) + 1
        if shape.verify != "none":
            check_batch(batch, partition, place.path)
        yield next_id, _shaped(batch, partition, shape)


def _shaped(batch: Any, partition: int, shape: Shape) -> Any:
    for condition in shape.conditions:
        column = batch.column(condition.column)
        if condition.operator == "in":
            mask = pc.is_in(column, value_set=pa.array(condition.values, column.type))
        else:
            mask = _COMPARE[condition.operator](column, pa.scalar(condition.values[0], column.type))
        batch = batch.filter(mask)
    arrays: list[Any] = []
    for name in shape.columns:
        if name == "partition":
            arrays.append(pa.array(np.full(batch.num_rows, partition, np.int32)))
        elif name == "length":
            arrays.append(pc.binary_length(batch.column("data")))
        elif name == "_origin":
            arrays.append(pa.repeat(pa.scalar("archive"), batch.num_rows))
        elif name == "_verified":
            arrays.append(pa.repeat(pa.scalar(shape.verify != "none"), batch.num_rows))
        elif name == "data" and shape.codec is not None:
            arrays.extend(load_codec(shape.codec).decode(batch.column("data"), batch.column("header")))
        else:
            arrays.append(batch.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(shape))
