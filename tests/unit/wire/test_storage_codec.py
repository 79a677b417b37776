"""What the storage codecs do besides plain fields."""

from __future__ import annotations

import pytest

from tests.unit.wire.test_codecs import encoded, opened
from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record, SessionInfo
from waltz_core.wire.connection import STORAGE_PROTOCOL
from waltz_core.wire.shared import Cause, Condition, FailureCode, SuspectRange
from waltz_core.wire.storage_codec import append_around, encode_records
from waltz_core.wire.storage_messages import AppendRequest, FailureResponse, LastSessionInfoResponse


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("offline", [False, True])
def test_records_encoded_once_make_the_same_frame_for_every_replica(version: int, count: int, offline: bool) -> None:
    records = tuple(Record(at, make_req_id(1, 2, 3, at), -at, bytes(at), 7) for at in range(count))
    connection = opened(STORAGE_PROTOCOL, version)
    body = encode_records(0, records)
    head, tail = append_around(8, 9, 10, count, len(body), offline, version=version)
    assert head + body + tail == encoded(connection, [AppendRequest(8, 9, 10, records, offline)])


def test_what_codec_0_cannot_say_arrives_as_unknown() -> None:
    info = SessionInfo(1, 2, 3)
    suspects = (SuspectRange(4, 5, Cause.CHECKSUM),)
    for version, expected in (
        (0, [LastSessionInfoResponse(1, 2, 3, info), FailureResponse(1, 2, 3, "no")]),
        (
            1,
            [
                LastSessionInfoResponse(1, 2, 3, info, 9, Condition.SUSPECT, suspects, "bad records"),
                FailureResponse(1, 2, 3, "no", (), FailureCode.FENCED, 9),
            ],
        ),
    ):
        connection, out = opened(STORAGE_PROTOCOL, version), list[object]()
        connection.receive(
            encoded(
                connection,
                [
                    LastSessionInfoResponse(1, 2, 3, info, 9, Condition.SUSPECT, suspects, "bad records"),
                    FailureResponse(1, 2, 3, "no", (), FailureCode.FENCED, 9),
                ],
            ),
            out,
        )
        assert out == expected
