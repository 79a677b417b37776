"""Captured sessions, in the captured chunks, each direction of each connection through its own decoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vectors.messages import fields_of, frame_of, message_from
from tests.vectors.reading import Fields, Unit, lines
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection

_OTHER = {"c2s": "s2c", "s2c": "c2s"}


def units(path: Path) -> Iterator[Unit]:
    sessions: dict[str, list[Fields]] = {}
    for _, line in lines(path):
        sessions.setdefault(line["session"], []).append(line)
    for session, its_lines in sessions.items():
        yield Unit(f"{path.name}:{session}", its_lines, lambda its=its_lines: _check(its))  # type: ignore[misc]


class _Session:
    """Receivers by connection and direction; the versions a receiver offers are those its side was seen to offer."""

    def __init__(self, its_lines: list[Fields]) -> None:
        self.offered: dict[tuple[int, str], list[int]] = {
            (line["conn"], line["dir"]): frame["fields"]["versions"]
            for line in its_lines
            if line["kind"] == "data"
            for frame in line["frames"]
            if frame["codec"] == "hello"
        }
        self.receivers: dict[tuple[int, str], Connection[Any]] = {}
        self.cut_off = 0  # bytes of frames that ended with their connection

    def end(self, conn: int, direction: str) -> None:
        receiver = self.receivers.pop((conn, direction), None)
        self.cut_off += 0 if receiver is None else receiver.gathered

    def receiver(self, conn: int, direction: str) -> Connection[Any]:
        key = conn, direction
        if key not in self.receivers:
            ours = self.offered[conn, _OTHER[direction]]
            self.receivers[key] = Connection(CLIENT_PROTOCOL, "", ours)
        return self.receivers[key]


def _check(its_lines: list[Fields]) -> frozenset[str]:
    session = _Session(its_lines)
    assert session.offered, "nobody greets: there is nothing to compare"
    assert [line["seq"] for line in its_lines] == sorted(line["seq"] for line in its_lines)
    tails: list[Any] = []
    for line in its_lines:
        line.ignore("t_ms", "text", "description", "role")
        match line["kind"]:
            case "data":
                _receive(session, line)
            case "header":
                tails += line["incomplete_tail"].all().values()
            case "eof":
                session.end(line["conn"], line["dir"])
            case "open":
                line["tls"].all()
                assert (line["conn"], "c2s") not in session.receivers
            case kind:
                assert kind == "mark"
    gathered = sum(receiver.gathered for receiver in session.receivers.values())
    assert session.cut_off + gathered == sum(len(tail) // 2 if isinstance(tail, str) else tail for tail in tails)
    return frozenset()


def _receive(session: _Session, line: Fields) -> None:
    receiver = session.receiver(line["conn"], line["dir"])
    greeted = receiver.peer_hello is not None
    out: list[Any] = []
    receiver.receive(bytes.fromhex(line["hex"]), out)
    if not greeted and receiver.peer_hello is not None:
        out.insert(0, receiver.peer_hello)
    expected = []
    for frame in line["frames"]:
        codec, name, fields, data = frame["codec"], frame["message"], frame["fields"].all(), frame["frame_hex"]
        if len(data) == 14:  # a keep-alive decodes to nothing
            assert data == receiver.keep_alive().hex()
            continue
        expected.append((name, fields))
        if codec != "hello":
            assert codec == receiver.version
        version = 0 if receiver.version is None else receiver.version
        assert frame_of(CLIENT_PROTOCOL, version, message_from(CLIENT_PROTOCOL, name, fields)).hex() == data
        assert frame_of(CLIENT_PROTOCOL, version, out[len(expected) - 1]).hex() == data
    assert [(type(message).__name__, fields_of(CLIENT_PROTOCOL, message)) for message in out] == expected
