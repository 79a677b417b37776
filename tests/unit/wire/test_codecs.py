"""Every message of every protocol in every version."""

from __future__ import annotations

import contextlib
import tracemalloc
import typing
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.wire.strategies import PROTOCOLS, VERSIONS, any_message, every_codec, messages
from waltz_core.base.errors import ProtocolError
from waltz_core.wire.admin_messages import AdminMessage
from waltz_core.wire.client_messages import ClientMessage
from waltz_core.wire.connection import CLIENT_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.frame import frame
from waltz_core.wire.storage_messages import StorageMessage
from waltz_core.wire.table import Codec, WireProtocol

CODECS = every_codec()


def opened(protocol: WireProtocol[Any], version: int) -> Connection[Any]:
    connection = Connection(protocol, "", [version])
    connection.receive(connection.hello(), [])
    return connection


def encoded(connection: Connection[Any], sent: list[Any]) -> bytes:
    out = bytearray()
    for message in sent:
        connection.encode(message, out)
    return bytes(out)


@pytest.mark.parametrize(
    ("protocol", "version", "codec"), CODECS, ids=[f"{p.name}{v}-{c.cls.__name__}" for p, v, c in CODECS]
)
def test_what_is_encoded_is_decoded_again(protocol: WireProtocol[Any], version: int, codec: Codec[Any]) -> None:
    connection = opened(protocol, version)

    @settings(max_examples=15, deadline=None, database=None)
    @given(st.lists(messages(protocol, version, codec), min_size=1, max_size=3))
    def check(sent: list[Any]) -> None:
        out: list[Any] = []
        connection.receive(encoded(connection, sent), out)
        assert out == sent

    check()


@pytest.mark.parametrize(("protocol", "version"), VERSIONS, ids=lambda each: getattr(each, "name", str(each)))
def test_any_chunking_gives_the_same_messages(protocol: WireProtocol[Any], version: int) -> None:
    @settings(max_examples=25, deadline=None, database=None)
    @given(
        st.lists(any_message(protocol, version), max_size=6), st.lists(st.integers(1, 90), min_size=1), st.booleans()
    )
    def check(sent: list[Any], sizes: list[int], keep_alive: bool) -> None:
        peer = opened(protocol, version)
        stream = peer.hello() + (peer.keep_alive() if keep_alive else b"") + encoded(peer, sent)
        receiver, out, at, turn = Connection(protocol, "", [version]), list[Any](), 0, 0
        while at < len(stream):
            size = sizes[turn % len(sizes)]
            receiver.receive(memoryview(stream)[at : at + size], out)
            at, turn = at + size, turn + 1
        assert out == sent
        assert receiver.gathered == 0

    check()


def refused_or_decoded(protocol: WireProtocol[Any], version: int, stream: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        opened(protocol, version).receive(stream, [])


@pytest.mark.parametrize(
    ("protocol", "version", "codec"), CODECS, ids=[f"{p.name}{v}-{c.cls.__name__}" for p, v, c in CODECS]
)
def test_garbage_raises_nothing_but_protocol_errors(
    protocol: WireProtocol[Any], version: int, codec: Codec[Any]
) -> None:
    @settings(max_examples=15, deadline=None, database=None)
    @given(st.binary(max_size=120))
    @example(b"\xff" * 100)
    @example(b"\x7f" * 100)
    def check(body: bytes) -> None:
        refused_or_decoded(protocol, version, frame(protocol.magic, version, bytes([codec.type_id]) + body))

    check()


@pytest.mark.parametrize(
    ("protocol", "version", "codec"), CODECS, ids=[f"{p.name}{v}-{c.cls.__name__}" for p, v, c in CODECS]
)
def test_every_shorter_or_longer_body_is_refused(protocol: WireProtocol[Any], version: int, codec: Codec[Any]) -> None:
    connection = opened(protocol, version)

    @settings(max_examples=5, deadline=None, database=None)
    @given(messages(protocol, version, codec))
    def check(message: Any) -> None:
        body = encoded(connection, [message])[7:]
        for changed in [body[:size] for size in range(1, len(body))] + [body + b"\0"]:
            out: list[Any] = []
            with pytest.raises(ProtocolError):
                opened(protocol, version).receive(frame(protocol.magic, version, changed), out)
            assert out == []

    check()


@settings(max_examples=100, deadline=None, database=None)
@given(st.data())
def test_a_damaged_stream_raises_nothing_but_protocol_errors(data: st.DataObject) -> None:
    protocol, version = data.draw(st.sampled_from(VERSIONS))
    stream = bytearray(
        encoded(opened(protocol, version), data.draw(st.lists(any_message(protocol, version), min_size=1)))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    refused_or_decoded(protocol, version, bytes(stream))


@pytest.mark.parametrize("count", [0x7FFFFFFF, 0x40000000, 0x10000000, 1 << 20])
def test_no_count_makes_a_decoder_take_more_memory_than_twice_its_input(count: int) -> None:
    """One frame of some forty bytes ended 0.13.2 with an OutOfMemoryError."""
    tracemalloc.start()
    try:
        for protocol, version, codec in CODECS:
            for zeros in range(0, 60, 4):
                body = bytes([codec.type_id]) + bytes(zeros) + count.to_bytes(4, "big") + bytes(40)
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                refused_or_decoded(protocol, version, frame(protocol.magic, version, body))
                assert tracemalloc.get_traced_memory()[1] - before < 2 * len(body) + (1 << 20)
    finally:
        tracemalloc.stop()


NULL = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        (CLIENT_PROTOCOL, b"\x02" + bytes(16 + 8 + 12 + 4) + NULL + bytes(4)),
        (CLIENT_PROTOCOL, b"\x07" + bytes(16 + 8) + b"\x01" + NULL + bytes(4)),
        (STORAGE_PROTOCOL, b"\x06" + bytes(20) + b"\0\0\0\x01" + bytes(28) + NULL + bytes(5)),
    ],
    ids=["append", "transaction data", "storage append"],
)
def test_data_that_is_null_is_refused(protocol: WireProtocol[Any], body: bytes) -> None:
    version = max(protocol.tables)
    with pytest.raises(ProtocolError, match="null"):
        opened(protocol, version).receive(frame(protocol.magic, version, body), [])


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.name)
def test_the_newest_table_knows_every_message_once(protocol: WireProtocol[Any]) -> None:
    newest = [codec.cls for codec in protocol.tables[max(protocol.tables)].codecs.values()]
    unions: dict[str, Any] = {"client": ClientMessage, "storage": StorageMessage, "admin": AdminMessage}
    assert len(set(newest)) == len(newest)
    assert set(newest) == set(typing.get_args(unions[protocol.name]))
