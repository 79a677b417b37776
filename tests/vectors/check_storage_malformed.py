"""Bodies that the decoders of the storage and admin protocols refuse, or accept in odd forms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.twin_0132.wire import Connection0132
from tests.vectors.deviations import has_surplus
from tests.vectors.messages import PROTOCOLS, fields_of, frame_of, opened, same_refusal
from tests.vectors.reading import Fields, Unit, lines
from waltz_core.base.errors import ProtocolError
from waltz_core.wire.connection import Connection
from waltz_core.wire.frame import frame
from waltz_core.wire.table import WireProtocol


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        yield Unit(name, [line], lambda line=line: _check(line))  # type: ignore[misc]


def _check(line: Fields) -> frozenset[str]:
    line.ignore("note")
    protocol, version = PROTOCOLS[line["protocol"]], line["version"]
    body, java = bytes.fromhex(line["body_hex"]), line["java"].all()
    outcome = java["outcome"]
    surplus = has_surplus(protocol, str(version), frame(protocol.magic, version, body))
    assert surplus == (outcome == "decoded_then_rejected")
    messages, raised = _receive(protocol, version, body, Connection)
    if outcome == "accepted":
        assert raised is None, f"refused: {raised}"
        assert [type(message).__name__ for message in messages] == [java["message"]]
        _same_body(protocol, version, messages[0], bytes.fromhex(java["reencoded_body_hex"]))
        return frozenset()
    assert raised is not None, "not refused"
    assert messages == []
    same_refusal(java, raised)
    if not surplus:
        return frozenset()
    messages, raised = _receive(protocol, version, body, Connection0132)
    assert raised is not None
    assert len(messages) == 1
    return frozenset({"surplus_refused"})


def _receive(
    protocol: WireProtocol[Any], version: int, body: bytes, kind: type[Connection[Any]]
) -> tuple[list[Any], ProtocolError | None]:
    out: list[Any] = []
    try:
        opened(protocol, version, kind).receive(frame(protocol.magic, version, body), out)
    except ProtocolError as refusal:
        return out, refusal
    return out, None


def _same_body(protocol: WireProtocol[Any], version: int, message: Any, java: bytes) -> None:
    ours = frame_of(protocol, version, message)[7:]
    if ours != java:  # only the order of a map is free
        again, _ = _receive(protocol, version, java, Connection)
        assert len(ours) == len(java)
        assert _unordered(fields_of(protocol, message)) == _unordered(fields_of(protocol, again[0]))


def _unordered(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: sorted(value) if key == "partition_status" else value for key, value in fields.items()}
