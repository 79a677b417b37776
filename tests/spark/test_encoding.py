"""Columns back to records: byte for byte what the core's encoder writes."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.logs import make_records
from waltz_core.storage.record_codec import encode_record
from waltz_spark.base.errors import RecordDamagedError
from waltz_spark.records import crc
from waltz_spark.records.blocks import Block
from waltz_spark.records.columns import Shape
from waltz_spark.records.encoding import check_batch, encode_batch

FIRST = 41


def block_of(payloads: list[bytes]) -> Block:
    parts = [encode_record(one) for one in make_records(2, payloads, FIRST)]
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    return Block(2, FIRST, np.frombuffer(b"".join(parts), np.uint8), offsets, "here", "file")


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=40))
def test_records_survive_the_way_through_columns(payloads: list[bytes]) -> None:
    block = block_of(payloads)
    again = encode_batch(block.batch(Shape()), 2, "there")
    assert again.data == block.data
    assert again.offsets.tolist() == block.offsets.tolist()
    again.check("record")


def test_payloads_larger_than_the_tables_of_powers_survive_too() -> None:
    block = block_of([b"a", bytes(range(256)) * 20_000, b"", bytes(1 << 24)])
    assert encode_batch(block.batch(Shape()), 2, "there").data == block.data


def test_a_payload_that_is_not_the_one_of_the_checksum_is_found() -> None:
    batch = block_of([b"one", b"two", b"six"]).batch(Shape())
    check_batch(batch, 2, "there")
    at = batch.schema.get_field_index("data")
    wrong = batch.set_column(at, "data", batch.column("data").take([0, 2, 2]))
    with pytest.raises(RecordDamagedError, match="transaction 42, there: the checksum of the data"):
        check_batch(wrong, 2, "there")
    with pytest.raises(RecordDamagedError, match="transaction 42, there: the checksum of the data"):
        encode_batch(wrong, 2, "there").check("payload")


@given(st.lists(st.binary(min_size=36, max_size=36), min_size=1, max_size=20))
def test_checksums_of_rows_of_words_are_those_of_their_bytes(rows: list[bytes]) -> None:
    words = np.frombuffer(b"".join(rows), "<u2").reshape(-1, 18)
    assert crc.of_words(words).tolist() == [zlib.crc32(row) for row in rows]


@pytest.mark.parametrize("kinds", [1, 64, 65, 3000])
def test_checksums_are_shifted_by_any_number_of_sizes(kinds: int) -> None:
    sizes = np.arange(500, dtype=np.int64) * 7 % kinds
    checksums = (np.arange(500, dtype=np.uint32) + np.uint32(1)) * np.uint32(2654435761)
    expected = [
        zlib.crc32(bytes(size), one ^ 0xFFFFFFFF) ^ zlib.crc32(bytes(size), 0xFFFFFFFF)
        for one, size in zip(checksums.tolist(), sizes.tolist(), strict=True)
    ]
    assert crc.shifted(checksums, sizes).tolist() == expected
