"""Runs of headers: equal to the headers they stand for, and passed on as their bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record, RecordHeader
from waltz_core.server.feed_cache import encode_frames, frames_of
from waltz_core.wire.headers import HeaderRun, header_list
from waltz_core.wire.primitives import RECORD_HEADER, Field, Negative, checksum_of, list_of
from waltz_core.wire.records import headers_of, record_list

HEADERS = st.builds(
    RecordHeader,
    st.integers(-(2**63), 2**63 - 1),
    st.binary(min_size=16, max_size=16).map(ReqId),
    st.integers(-(2**31), 2**31 - 1),
)
LISTS = st.lists(HEADERS, max_size=6).map(tuple)


@given(LISTS, st.integers(-7, 7), st.integers(-7, 7))
def test_a_run_stands_for_its_headers(headers: tuple[RecordHeader, ...], first: int, end: int) -> None:
    run = HeaderRun.of(headers)
    assert run == headers
    assert headers == run
    assert run != (*headers, RecordHeader(1, ReqId(bytes(16)), 1))
    assert (list(run), len(run), hash(run), repr(run)) == (list(headers), len(headers), hash(headers), repr(headers))
    assert [run[at] for at in range(-len(run), len(run))] == [*headers, *headers]
    assert run[first:end] == headers[first:end]
    assert isinstance(run[first:end], HeaderRun)
    assert HeaderRun.of(run) is run
    with pytest.raises(IndexError):
        run[len(headers)]


@pytest.mark.parametrize("negative", Negative)
@given(headers=LISTS, cut=st.integers(0, 200), count=st.none() | st.integers(-3, 8))
def test_a_list_is_read_and_written_as_one_of_single_headers(
    negative: Negative, headers: tuple[RecordHeader, ...], cut: int, count: int | None
) -> None:
    field, plain, out, wanted = header_list(negative), list_of(RECORD_HEADER, negative), bytearray(), bytearray()
    field.write(out, HeaderRun.of(headers))
    plain.write(wanted, headers)
    assert out == wanted
    again = bytearray()
    field.write(again, headers)
    assert again == wanted
    if count is not None:
        out[:4] = count.to_bytes(4, signed=True)
    end = min(cut, len(out))
    assert _read(field, bytes(out), end) == _read(plain, bytes(out), end)


def _read(field: Field[Any], buffer: bytes, end: int) -> Any:
    try:
        return field.read(buffer, 0, end)
    except ProtocolError as error:
        return str(error)


@given(st.integers(-5, 5), st.lists(HEADERS, max_size=5))
def test_ids_are_dense_if_each_follows_the_one_before(first: int, headers: list[RecordHeader]) -> None:
    dense = [RecordHeader(first + at, one.req_id, one.header) for at, one in enumerate(headers)]
    assert HeaderRun.of(dense).dense(first)
    assert HeaderRun.of(dense).dense(first + 1) == (not headers)
    for at in range(len(headers)):
        gap = [*dense[:at], RecordHeader(first + at + 1, dense[at].req_id, dense[at].header), *dense[at + 1 :]]
        assert not HeaderRun.of(gap).dense(first)


@given(st.integers(0, 2**62), st.lists(HEADERS, max_size=5))
def test_frames_of_a_run_are_those_of_its_headers(first: int, headers: list[RecordHeader]) -> None:
    dense = [RecordHeader(first + at, one.req_id, one.header) for at, one in enumerate(headers)]
    assert frames_of(HeaderRun.of(dense)) == encode_frames(first, dense)


@given(LISTS, st.binary(max_size=9))
def test_the_headers_of_records_are_the_beginnings_of_their_bytes(
    headers: tuple[RecordHeader, ...], data: bytes
) -> None:
    records = [Record(one.transaction_id, one.req_id, one.header, data, checksum_of(data)) for one in headers]
    out = bytearray()
    record_list(Negative.REFUSED).write(out, records)
    run, _ = record_list(Negative.REFUSED).read(bytes(out), 0, len(out))
    assert headers_of(run) == headers_of(records) == headers
    assert headers_of(HeaderRun.of(headers)) == headers
