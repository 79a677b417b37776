"""Frames between a server and the process that keeps its archive."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record
from waltz_core.server.archive_calls import (
    ArchiveCommit,
    ArchiveCompare,
    ArchiveData,
    ArchiveFailed,
    ArchiveHolds,
    ArchiveLook,
    ArchiveRead,
    ArchiveTake,
)
from waltz_core.server.archive_frames import ArchiveMessage, FrameReader, encode_message


def _record(at: int, data: bytes) -> Record:
    checksum = crc32(data)
    return Record(at, make_req_id(7, 1, 0, at), at, data, checksum - ((checksum & 1 << 31) << 1))


RECORDS = tuple(_record(at, b"x" * at) for at in range(4))
MESSAGES: tuple[ArchiveMessage, ...] = (
    ArchiveLook(1, 0, bytes(range(16)), 3, 100, 7),
    ArchiveTake(2, 0, 0, 0, RECORDS),
    ArchiveCommit(3, 0, 0, 4),
    ArchiveCompare(4, 0, 0, RECORDS, True),
    ArchiveRead(5, 0, 0, 9),
    ArchiveHolds(6, 0, 4, 100),
    ArchiveData(7, RECORDS),
    ArchiveFailed(8, "no space left on device \u2013 \x00"),
)


@given(st.lists(st.integers(1, 200)))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(sizes: list[int]) -> None:
    stream = b"".join(map(encode_message, MESSAGES))
    reader = FrameReader()
    decoded: list[ArchiveMessage] = []
    for size in [*sizes, len(stream)]:
        decoded += reader.receive(stream[:size])
        stream = stream[size:]
    assert tuple(decoded) == MESSAGES


@pytest.mark.parametrize(
    "stream",
    [
        b"\xff" * 8,
        (2).to_bytes(4, "big") + bytes(4) + b"[]",
        encode_message(ArchiveCommit(3, 0, 0, 4)).replace(b"end", b"eng"),
        encode_message(ArchiveData(7, RECORDS)).replace(b'"count": 4', b'"count": 5'),
        encode_message(ArchiveRead(5, 0, 0, 9)).replace(b"ArchiveRead", b"ArchiveRoad"),
    ],
)
def test_what_is_no_frame_is_refused_with_its_beginning(stream: bytes) -> None:
    with pytest.raises(ProtocolError, match="archive"):
        list(FrameReader().receive(stream))
