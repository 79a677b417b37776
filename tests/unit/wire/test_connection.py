"""Greeting, frames and errors of one connection."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import versions_0132
from tests.twin_0132.wire import Connection0132
from waltz_core.base.errors import ChecksumError, FrameTooLargeError, HandshakeError, ProtocolError
from waltz_core.base.ids import make_req_id
from waltz_core.server.feed_cache import encode_frames, with_version
from waltz_core.wire import admin_codec, client_codec, storage_codec
from waltz_core.wire.client_messages import (
    AppendRequest,
    ClientMessage,
    ClusterInfoRequest,
    FeedData,
    FeedSuspended,
    FlushRequest,
)
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.frame import HELLO_SIZE_MAX, frame
from waltz_core.wire.hello import Hello, encode_hello
from waltz_core.wire.primitives import checksum_of

REQ_ID = make_req_id(1, 2, 3, 4)
FLUSH = FlushRequest(REQ_ID)


def server(kind: type[Connection[Any]] = Connection, **options: Any) -> Connection[ClientMessage]:
    return kind(CLIENT_PROTOCOL, "Waltz Server", client_codec.VERSIONS, **options)


def opened(version: int = 4, **options: Any) -> Connection[ClientMessage]:
    connection = server(**options)
    connection.receive(encode_hello(Hello((version,), None)), [])
    assert connection.version == version
    return connection


def encoded(message: ClientMessage, version: int = 4) -> bytes:
    out = bytearray()
    opened(version).encode(message, out)
    return bytes(out)


def test_our_greeting_offers_every_version_in_order() -> None:
    assert server().hello() == encode_hello(Hello((0, 1, 2, 3, 4, 5), "Waltz Server"))


@pytest.mark.parametrize(
    ("protocol", "ours", "theirs", "version"),
    [
        (CLIENT_PROTOCOL, client_codec.VERSIONS, client_codec.VERSIONS, 5),
        (CLIENT_PROTOCOL, client_codec.VERSIONS, versions_0132.CLIENT, 4),
        (STORAGE_PROTOCOL, storage_codec.VERSIONS, storage_codec.VERSIONS, 1),
        (STORAGE_PROTOCOL, versions_0132.STORAGE, storage_codec.VERSIONS, 0),
        (ADMIN_PROTOCOL, admin_codec.VERSIONS, admin_codec.VERSIONS, 1),
        (ADMIN_PROTOCOL, admin_codec.VERSIONS, versions_0132.ADMIN, 0),
    ],
)
def test_both_sides_find_the_largest_common_version(protocol: Any, ours: range, theirs: range, version: int) -> None:
    here, there = Connection[Any](protocol, "", ours), Connection[Any](protocol, "", theirs)
    here.receive(there.hello(), [])
    there.receive(here.hello(), [])
    assert (here.version, there.version) == (version, version)


def test_unknown_and_negative_versions_of_the_peer_are_ignored() -> None:
    connection = server()
    connection.receive(encode_hello(Hello((-1, 3, 32767), "x")), [])
    assert connection.version == 3
    assert connection.peer_hello == Hello((-1, 3, 32767), "x")


def test_without_a_common_version_the_handshake_fails() -> None:
    connection = server()
    with pytest.raises(HandshakeError, match="no version in common"):
        connection.receive(encode_hello(Hello((6, 7), None)), [])
    assert connection.version is None


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (encoded(FLUSH), "magic byte"),
        (b"\x48\x00\x01\x00\x00\x00\x00", "version 0 expected"),
        (b"\x48\x00\x00\xff\xff\xff\xff", "negative frame length"),
        (b"\x48\x00\x00" + (HELLO_SIZE_MAX + 1).to_bytes(4, "big"), "announced"),
        (frame(0x48, 0, encode_hello(Hello((4,), None))[7:] + b"\0"), "surplus"),
    ],
)
def test_anything_else_before_the_greeting_fails_the_handshake(stream: bytes, text: str) -> None:
    connection = server()
    with pytest.raises(HandshakeError, match=text):
        connection.receive(stream, [])
    assert connection.peer_hello is None


def test_a_greeting_too_short_for_its_count_is_refused() -> None:
    with pytest.raises(ProtocolError, match="corrupted"):
        server().receive(frame(0x48, 0, b"\x00\x00\x00\x05\x00\x04"), [])


def test_a_keep_alive_may_come_before_the_greeting() -> None:
    connection = server()
    connection.receive(connection.keep_alive() + encode_hello(Hello((4,), None)), [])
    assert connection.version == 4


def test_messages_may_follow_the_greeting_in_one_read() -> None:
    connection, out = server(), list[ClientMessage]()
    connection.receive(encode_hello(Hello((4,), None)) + encoded(FLUSH), out)
    assert out == [FLUSH]


@pytest.mark.parametrize("split", range(1, 40))
def test_a_greeting_may_come_in_pieces(split: int) -> None:
    connection, out = server(), list[ClientMessage]()
    stream = encode_hello(Hello((4,), "Waltz Client")) + encoded(FLUSH)
    connection.receive(stream[:split], out)
    connection.receive(stream[split:], out)
    assert out == [FLUSH]


def test_a_second_greeting_is_refused() -> None:
    with pytest.raises(ProtocolError, match="magic byte"):
        opened().receive(encode_hello(Hello((4,), None)), [])


def test_fewer_than_seven_bytes_never_fail() -> None:
    for connection in (server(), opened()):
        for _ in range(6):
            connection.receive(b"\xff", [])
        assert connection.gathered == 6


def test_the_messages_before_a_bad_frame_are_handed_on() -> None:
    connection, out = opened(), list[ClientMessage]()
    with pytest.raises(ProtocolError, match="version 4 expected after magic byte 0x4c, 3 found"):
        connection.receive(encoded(FLUSH) + encoded(FLUSH, 3), out)
    assert out == [FLUSH]


def test_a_message_with_surplus_bytes_is_handed_on_only_by_0_13_2() -> None:
    stream = frame(0x4C, 4, encoded(FLUSH)[7:] + b"\0")
    for kind, expected in ((Connection, []), (Connection0132, [FLUSH])):
        connection = opened(kind=kind)
        out: list[ClientMessage] = []
        with pytest.raises(ProtocolError, match="1 surplus bytes after FlushRequest"):
            connection.receive(stream, out)
        assert out == expected


def test_a_broken_connection_stays_broken_and_keeps_nothing() -> None:
    connection = opened()
    connection.receive(b"\x4c\x00", [])
    with pytest.raises(ProtocolError):
        connection.receive(b"\x07\x00\x00\x00\x01", [])
    assert connection.gathered == 0
    with pytest.raises(ProtocolError, match="the connection is broken: version 4 expected"):
        connection.receive(encoded(FLUSH), [])


def test_a_frame_above_the_limit_is_refused_before_its_body_arrives() -> None:
    connection = opened(frame_size_max=100)
    connection.receive(frame(0x4C, 4), [])
    with pytest.raises(FrameTooLargeError, match="101 bytes announced, at most 100") as caught:
        connection.receive(b"\x4c\x00\x04\x00\x00\x00\x65", [])
    assert (caught.value.size, caught.value.limit) == (101, 100)


def test_a_large_frame_in_small_pieces_costs_one_copy() -> None:
    connection, out = opened(), list[ClientMessage]()
    data = bytes(1 << 20)
    stream = encoded(AppendRequest(REQ_ID, 0, (), (), (), 0, data, checksum_of(data)))
    for at in range(0, len(stream), 1000):
        connection.receive(memoryview(stream)[at : at + 1000], out)
        assert connection.gathered <= at + 1000
    assert len(out) == 1
    assert connection.gathered == 0


@given(
    sizes=st.lists(st.sampled_from([1, 7, 1000, 16_383, 16_384, 16_385, 60_000]), min_size=1, max_size=12),
    wrapped=st.sampled_from([bytes, bytearray, memoryview]),
)
def test_frames_come_out_alike_however_large_and_small_pieces_follow_each_other(sizes: list[int], wrapped: Any) -> None:
    connection, out = opened(), list[ClientMessage]()
    data = bytes(range(256)) * 300
    sent: list[ClientMessage] = [AppendRequest(REQ_ID, 0, (), (), (), 0, data, checksum_of(data)), FLUSH] * 2
    stream, at = b"".join(map(encoded, sent)), 0
    for size in itertools.cycle(sizes):
        piece = bytearray(stream[at : at + size])
        connection.receive(wrapped(piece), out)
        piece[:] = bytes(len(piece))  # a peer of the gatherer may use its buffer again
        at += size
        if at >= len(stream):
            break
    assert (out, connection.gathered) == (sent, 0)


def test_keep_alives_decode_to_nothing() -> None:
    connection, out = opened(), list[ClientMessage]()
    assert connection.keep_alive() == bytes.fromhex("4c000400000000")
    connection.receive(connection.keep_alive() + encoded(FLUSH) + connection.keep_alive(), out)
    assert out == [FLUSH]


def test_a_keep_alive_of_a_silent_peer_is_that_of_the_greeting() -> None:
    assert server().keep_alive() == bytes.fromhex("48000000000000")


def test_nothing_may_be_encoded_before_the_greeting_of_the_peer() -> None:
    with pytest.raises(AssertionError):
        server().encode(FLUSH, bytearray())


def test_a_message_that_the_version_lacks_is_not_encoded() -> None:
    out = bytearray(b"before")
    with pytest.raises(ProtocolError, match="ClusterInfoRequest does not exist in client codec 4"):
        opened().encode(ClusterInfoRequest(REQ_ID, True, True), out)
    assert out == b"before"


@pytest.mark.parametrize(("version", "reads", "appends"), [(0, (1,), ()), (0, (), (1,)), (1, (), (1,))])
def test_locks_that_the_version_lacks_are_not_dropped_but_refused(
    version: int, reads: tuple[int, ...], appends: tuple[int, ...]
) -> None:
    append = AppendRequest(REQ_ID, 0, (), reads, appends, 0, b"", 0)
    out = bytearray(b"before")
    with pytest.raises(ProtocolError, match="locks need codec"):
        opened(version).encode(append, out)
    assert out == b"before"


def test_a_feed_run_ends_where_another_message_begins() -> None:
    connection, out = opened(), list[ClientMessage]()
    feed = [FeedData(make_req_id(at, 0, 0, 0), at, -at) for at in range(5)]
    stream = bytearray()
    for at, data in enumerate(feed):
        stream += with_version(encode_frames(data.transaction_id, [data]), 4)
        if at == 2:
            connection.encode(FeedSuspended(REQ_ID), stream)
    connection.receive(stream[:-1], out)
    assert out == [*feed[:3], FeedSuspended(REQ_ID), feed[3]]
    connection.receive(stream[-1:], out)
    assert out[-1] == feed[4]


def test_feed_data_of_a_wrong_size_is_refused() -> None:
    body = bytearray(encoded(FeedData(REQ_ID, 1, 2))[7:])
    for changed in (body[:-1], body + b"\0"):
        with pytest.raises(ProtocolError, match="corrupted"):
            opened().receive(frame(0x4C, 4, bytes(changed)), [])


def test_a_wrong_checksum_is_an_error_of_its_own() -> None:
    for locks in ((), (7,)):
        append = AppendRequest(REQ_ID, 0, locks, (), (), 0, b"data", 1)
        with pytest.raises(ChecksumError, match="checksum error: 1"):
            opened().receive(encoded(append), [])


def test_large_bodies_are_shown_before_they_are_decoded() -> None:
    connection = opened()
    small, large = (AppendRequest(REQ_ID, -1, locks, (), (), 0, b"", 0) for locks in ((), (1, 2)))
    body = len(encoded(large)) - len(frame(0, 0, b""))
    shown: list[bytes] = []

    def look(buffer: bytes, start: int, end: int) -> ClientMessage | None:
        shown.append(bytes(buffer[start:end]))
        return FLUSH if len(shown) == 1 else None

    connection.look_at(body - 1, look)
    out: list[ClientMessage] = []
    connection.receive(encoded(small) + encoded(large) + encoded(large), out)
    assert out == [small, FLUSH, large]
    assert shown == [encoded(large)[-body:]] * 2
    connection.look_at(body, look)
    connection.receive(encoded(large), out)
    assert len(shown) == 2


def test_no_more_is_decoded_than_asked_for_and_the_rest_later() -> None:
    flushes = [FlushRequest(make_req_id(1, 2, 3, number)) for number in range(10)]
    stream = b"".join(map(encoded, flushes))
    connection, out = opened(), list[ClientMessage]()
    connection.receive(stream[:-3], out, 4)
    assert out == flushes[:4]
    assert connection.undecoded == connection.gathered == len(stream) - 3 - 4 * len(encoded(FLUSH))
    connection.receive(stream[-3:], out, 0)
    assert len(out) == 4
    connection.receive(b"", out, 5)
    assert out == flushes[:9]
    connection.receive(b"", out)
    assert (out, connection.undecoded, connection.gathered) == (flushes, 0, 0)


def test_what_was_not_decoded_is_counted_by_frames() -> None:
    append = encoded(AppendRequest(REQ_ID, 0, (), (), (), 0, b"data", checksum_of(b"data")))
    connection = opened()
    connection.receive(encoded(FLUSH) + (append + encoded(FLUSH)) * 5 + connection.keep_alive() + append[:-1], [], 1)
    assert connection.undecoded_count(100) == 10
    assert connection.undecoded_count(100, {AppendRequest}) == 5
    assert connection.undecoded_count(3) == 3
    connection = opened()
    connection.receive(encoded(FLUSH) * 3 + b"\xff" * 9, [], 1)
    assert connection.undecoded_count(100) == 2


def test_a_breach_is_told_when_it_is_reached() -> None:
    connection, out = opened(), list[ClientMessage]()
    connection.receive(encoded(FLUSH) * 2 + b"\xff" * 9, out, 2)
    assert len(out) == 2
    with pytest.raises(ProtocolError, match="magic"):
        connection.receive(b"", out)
    assert connection.gathered == 0


def test_what_was_not_decoded_is_forgotten_with_the_connection() -> None:
    connection = opened()
    connection.receive(encoded(FLUSH) * 2, [], 1)
    connection.forget()
    assert connection.gathered == 0


def test_an_unfinished_frame_is_forgotten_with_the_connection() -> None:
    connection = opened()
    connection.receive(encoded(FLUSH)[:-1], [])
    assert connection.gathered > 0
    connection.forget()
    assert connection.gathered == 0
    with pytest.raises(ProtocolError, match="the connection is broken: closed"):
        connection.receive(encoded(FLUSH), [])


@given(
    st.lists(st.sampled_from(["flush", "append", "nothing"]), max_size=30),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4)), max_size=60),
)
def test_however_little_is_decoded_at_a_time_everything_comes_in_order(
    kinds: list[str], reads: list[tuple[int, int]]
) -> None:
    append = AppendRequest(REQ_ID, -1, (), (), (), 0, b"x", checksum_of(b"x"))
    frames = {"flush": encoded(FLUSH), "append": encoded(append), "nothing": opened().keep_alive()}
    stream = b"".join(frames[kind] for kind in kinds)
    connection, out, at = opened(), list[ClientMessage](), 0
    for size, count in reads:
        connection.receive(stream[at : at + size], out, count)
        at += size
    connection.receive(stream[at:], out)
    messages = {"flush": FLUSH, "append": append}
    assert out == [messages[kind] for kind in kinds if kind != "nothing"]
    assert connection.gathered == 0
