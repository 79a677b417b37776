"""Frames in chunks through the decoder, and what the encoder refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import versions_0132
from tests.twin_0132.wire import Connection0132
from tests.vectors.deviations import has_surplus
from tests.vectors.messages import fields_of, frame_of, message_from, opened, same_refusal
from tests.vectors.reading import Fields, Unit, lines, plain
from waltz_core.base.errors import HandshakeError, ProtocolError
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        run = {"decode": _decode, "encode": _encode}[line["kind"]]
        yield Unit(name, [line], lambda line=line, run=run: run(line))  # type: ignore[misc]


def _encode(line: Fields) -> frozenset[str]:
    line.ignore("name")
    version, error = int(line["codec"]), line["error"]
    message = message_from(CLIENT_PROTOCOL, line["message"], line["fields"].all())
    if error is None:
        assert frame_of(CLIENT_PROTOCOL, version, message)[7:].hex() == line["body_hex"]
        return frozenset()
    connection, out = opened(CLIENT_PROTOCOL, version), bytearray(b"before")
    refusal: ProtocolError | None = None
    try:
        connection.encode(message, out)
    except ProtocolError as raised:
        refusal = raised
    assert refusal is not None, "not refused"
    assert out == b"before"
    if "unknown message type" in error["text"]:
        error.all()
        assert "does not exist" in str(refusal)
    else:
        same_refusal(error.all(), refusal)
    return frozenset()


def _decode(line: Fields) -> frozenset[str]:
    line.ignore("name", "note", "optional")
    chunks = [bytes.fromhex(chunk) for chunk in line["chunks_hex"]]
    codec, messages, error = line["codec"], plain(line["messages"]), plain(line["error"])
    if not has_surplus(CLIENT_PROTOCOL, codec, b"".join(chunks)):
        _check(codec, chunks, messages, error, Connection)
        return frozenset()
    assert error is not None
    _check(codec, chunks, messages, error, Connection0132)
    _check(codec, chunks, messages[:-1], error, Connection)  # the message with surplus bytes is not handed on
    return frozenset({"surplus_refused"})


def _check(codec: str, chunks: list[bytes], messages: list[Any], error: Any, kind: type[Connection[Any]]) -> None:
    greeting = codec == "hello"
    connection: Connection[Any] = (
        kind(CLIENT_PROTOCOL, "", versions_0132.CLIENT) if greeting else opened(CLIENT_PROTOCOL, int(codec), kind)
    )
    out: list[Any] = []
    raised: ProtocolError | None = None
    for chunk in chunks:
        try:
            connection.receive(chunk, out)
        except ProtocolError as refusal:
            raised = raised or refusal
    if greeting and connection.peer_hello is not None:
        out.append(connection.peer_hello)
    found = [{"message": type(each).__name__, "fields": fields_of(CLIENT_PROTOCOL, each)} for each in out]
    assert found == messages, f"{found} instead of {messages}"
    if (
        greeting
        and error is None
        and messages
        and not set(messages[0]["fields"]["versions"]) & set(versions_0132.CLIENT)
    ):
        assert isinstance(raised, HandshakeError)  # the vector is of the decoder; the greeting ends behind it
    elif error is None:
        assert raised is None, f"refused: {raised}"
    else:
        assert raised is not None, "not refused"
        same_refusal(error, raised)
