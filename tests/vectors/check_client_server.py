"""Client protocol, one message or greeting per line: fields → bytes → fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vectors.messages import fields_of, frame_of, message_class, message_from, opened, read_hello
from tests.vectors.reading import Fields, Unit, lines
from waltz_core.wire.connection import CLIENT_PROTOCOL
from waltz_core.wire.table import WireProtocol


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        yield Unit(name, [line], lambda line=line: check(CLIENT_PROTOCOL, line))  # type: ignore[misc]


def check(protocol: WireProtocol[Any], line: Fields) -> frozenset[str]:
    """One line of either message file."""
    name, version, fields = line["message"], line["version"], line["fields"]
    body, frame = bytes.fromhex(line["body_hex"]), bytes.fromhex(line["frame_hex"])
    expected = line.get("decoded_fields", fields)
    assert frame[7:] == body
    expected, fields = expected.all(), fields.all()
    if name == "Hello":
        check_type(line, None)
        hello = message_from(protocol, name, fields)
        assert frame_of(protocol, version, hello) == frame
        assert fields_of(protocol, read_hello(frame)) == expected
        return frozenset()
    connection = opened(protocol, version)
    out: list[Any] = []
    connection.receive(frame, out)
    if name in ("KeepAlive", "KeepAliveMessage"):
        check_type(line, None)
        assert (out, fields) == ([], {})
        assert connection.keep_alive() == frame
        return frozenset()
    codec = next(c for c in protocol.tables[version].codecs.values() if c.cls is message_class(protocol, name))
    check_type(line, codec.type_id)
    assert body[0] == codec.type_id
    assert frame_of(protocol, version, message_from(protocol, name, fields)) == frame
    assert [type(message).__name__ for message in out] == [name]
    found = fields_of(protocol, out[0])
    assert found == expected, f"{found} instead of {expected}"
    if expected == fields:
        assert frame_of(protocol, version, out[0]) == frame
    return frozenset()


def check_type(line: Fields, type_id: int | None) -> None:
    """The type id, where the file gives one."""
    if "type" in line:
        assert line["type"] == type_id
