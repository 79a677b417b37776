"""Conversations with a storage node of 0.13.2, frame by frame.

The twin of its node must answer every frame with the same bytes and end with the same files. Ours must
answer what a node made of lists (`tests/model/storage_twin.py`) answers, which itself must give every
recorded answer when its rules are off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.model.storage_twin import ANY_TEXT, NONE, OURS, Rules, StorageTwin
from tests.storage_desk import CLOSED, Desk, Wire
from tests.twin_0132.storage import StorageNode0132
from tests.twin_0132.wire import Connection0132
from tests.vectors.deviations import storage_session_rules
from tests.vectors.messages import fields_of, message_from
from tests.vectors.reading import Fields, Unit, lines, plain
from waltz_core.base.edge import Port
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.storage.node import StorageNode
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_testing.simulation.disk import SimDisk


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        line.ignore("description")
        yield Unit(f"{name} {line['scenario']}", [line], Session(line).run)


class Session:
    """One conversation."""

    def __init__(self, line: Fields) -> None:
        self.line = line
        self.key = UUID(line["cluster_key"])
        self.count = line["num_partitions"]
        self.threshold = line["segment_size_threshold"]
        self.steps = [plain(step) for step in line["steps"]]
        self.final = plain(line["final"])
        self.ports = {step["conn"]: Port(step["port"]) for step in self.steps if step["do"] == "connect"}

    def run(self) -> frozenset[str]:
        disk = SimDisk()
        desk = self._desk(disk, StorageNode0132)
        self._converse(desk, [self._recorded(step) for step in self.steps])
        self._check_final(desk)
        asked = self._messages()
        rules = storage_session_rules(lambda rules: self._twin_answers(rules, asked))
        for step, message, answer in zip(self.steps, asked, self._twin_answers(NONE, asked), strict=True):
            if message is not None:
                assert _matches(answer, self._as_message(step)), f"twin: {answer}, recorded: {step['reply']}"
        expected = self._twin_answers(OURS, asked)
        desk = self._desk(SimDisk(), StorageNode)
        self._converse(desk, expected)
        if not rules:
            self._check_final(desk)
        return rules

    def _desk(self, disk: SimDisk, kind: type[StorageNode]) -> Desk:
        return Desk(disk, self.key, self.count, threshold=self.threshold, kind=kind, codecs=(0,))

    # ---- the conversation ------------------------------------------------------------------------

    def _converse(self, desk: Desk, answers: list[Any]) -> None:
        """Send every frame; `answers` holds bytes, messages, CLOSED or None per step."""
        conns: dict[str, Wire] = {}
        for step, expected in zip(self.steps, answers, strict=True):
            name = step["conn"]
            if step["do"] == "connect":
                conns[name] = Wire(desk, len(conns) + 1, self.ports[name])
                assert conns[name].received.hex() == step["server_hello_frame_hex"]
                continue
            conn = conns[name]
            conn.received = b""
            conn.messages.clear()
            if step["do"] == "hello":
                conn.connection.receive(b"", [])
                conn.send(bytes.fromhex(step["send_frame_hex"]))
                continue
            if conn.closed:  # by the rules, where 0.13.2 went on, or the other way round
                assert expected == CLOSED
                continue
            conn.send(self._frame(step, desk))
            self._check_answer(conn, step, expected)

    def _check_answer(self, conn: Wire, step: Mapping[str, Any], expected: Any) -> None:
        where = f"{step['conn']} {step.get('message') or step.get('note')}"
        if expected in (CLOSED, None):
            assert not conn.messages, f"{where}: {expected} expected, {conn.messages} found"
            assert conn.closed == (expected == CLOSED), where
            return
        assert not conn.closed, f"{where}: the connection was closed"
        if isinstance(expected, bytes):
            assert conn.received == expected, f"{where}: {conn.messages} found"
            return
        assert len(conn.messages) == 1, f"{where}: {conn.messages}"
        assert _matches(expected, conn.messages[0]), f"{where}: {expected} expected, {conn.messages[0]} found"

    def _frame(self, step: Mapping[str, Any], desk: Desk | None) -> bytes:
        if step["do"] == "raw":
            return bytes.fromhex(step["send_hex"])
        if step["send_frame_hex"] is not None:
            return bytes.fromhex(step["send_frame_hex"])
        out = bytearray()
        connection = Connection(STORAGE_PROTOCOL, "test", (0,))
        connection.receive(connection.hello(), [])
        connection.encode(self._omitted(step, desk), out)
        return bytes(out)

    def _omitted(self, step: Mapping[str, Any], desk: Desk | None) -> Any:
        """An append that the record leaves out for its size: one record that fills its segment."""
        assert step["message"] == "AppendRequest"
        ids = step["reply"]["fields"]
        if desk is not None and not hasattr(self, "_large"):
            log = desk.node.replicas[ids["partition_id"]].files.log
            assert log is not None
            last = log.last
            size = self.final["file_sizes"][last.data_path] - last.end - 40
            self._large = Record(log.max_id + 1, ReqId(bytes(16)), 0, bytes(size), 0)
        return wire.AppendRequest(ids["session_id"], ids["seq_num"], ids["partition_id"], (self._large,), False)

    # ---- what is expected ------------------------------------------------------------------------

    def _recorded(self, step: Mapping[str, Any]) -> Any:
        """The recorded answer: bytes where they are given, else a message."""
        reply = step.get("reply")
        if reply is None or reply == "none":
            return None
        if reply == CLOSED:
            return CLOSED
        if "frame_hex" in reply:
            return bytes.fromhex(reply["frame_hex"])
        return self._as_message(step)

    def _as_message(self, step: Mapping[str, Any]) -> Any:
        reply = step["reply"]
        if reply == CLOSED or reply == "none":
            return CLOSED if reply == CLOSED else None
        fields = dict(reply["fields"])
        if "exception" in fields:
            fields["exception"] = {"message": fields["exception"]["message"], "stack": []}
        if fields.get("metrics_json") == "omitted":
            fields["metrics_json"] = ANY_TEXT
        protocol: Any = ADMIN_PROTOCOL if self.ports[step["conn"]] is Port.ADMIN else STORAGE_PROTOCOL
        return message_from(protocol, reply["message"], fields)

    def _messages(self) -> list[Any]:
        """What each step asks, None where it is no message."""
        asked: list[Any] = []
        for step in self.steps:
            message = None
            if step["do"] in ("send", "raw"):
                message = self._message(step)
            asked.append(message)
        return asked

    def _message(self, step: Mapping[str, Any]) -> Any:
        is_admin = self.ports[step["conn"]] is Port.ADMIN
        protocol: Any = ADMIN_PROTOCOL if is_admin else STORAGE_PROTOCOL
        if step["do"] == "send" and step["send_frame_hex"] is None:
            return self._omitted(step, None)
        connection: Connection[Any] = Connection0132(protocol, "test", (0,))
        connection.receive(connection.hello(), [])
        out: list[Any] = []
        try:
            connection.receive(self._frame(step, None), out)
        except ProtocolError:
            return None
        if not out:
            return None
        assert len(out) == 1
        if step["do"] == "send":
            assert type(out[0]).__name__ == step["message"]
            assert fields_of(protocol, out[0]) == step["fields"]
        return out[0]

    def _twin_answers(self, rules: Rules, asked: list[Any]) -> list[Any]:
        twin = StorageTwin(self.key, self.count, rules, self.threshold)
        closed: set[str] = set()
        answers: list[Any] = []
        for step, message in zip(self.steps, asked, strict=True):
            if step["conn"] in closed:
                answers.append(CLOSED)
                continue
            answer = self._recorded(step) if message is None else twin.ask(step["conn"], message)
            if isinstance(answer, str) and answer == CLOSED:
                closed.add(step["conn"])
            answers.append(answer)
        return answers

    # ---- the end ---------------------------------------------------------------------------------

    def _check_final(self, desk: Desk) -> None:
        assert [one["partition_id"] for one in self.final["partitions"]] == list(range(self.count))
        for one in self.final["partitions"]:
            current = desk.node.replicas[one["partition_id"]].entry.current
            found = {
                "partition_id": one["partition_id"],
                "session_id": current.session_id,
                "low_water_mark": current.low_water_mark,
                "local_low_water_mark": current.local_low_water_mark,
                "flags": current.flags,
                "assigned": current.assigned,
                "available": current.available,
                "sequence_number": current.sequence,
            }
            assert found == one
        sizes = {name: len(data) for name, data in desk.disk.files().items() if name.endswith((".seg", ".idx", ".ctl"))}
        assert sizes == self.final["file_sizes"]
        assert set(self.final) == {"partitions", "file_sizes"}


def _matches(expected: Any, found: Any) -> bool:
    """Equal, but for texts that are free and the order of a status list."""
    if type(expected) is not type(found):
        return False
    text = getattr(expected, "message", None) or getattr(expected, "metrics_json", None)
    if ANY_TEXT in (text, getattr(found, "metrics_json", None)):
        return bool(getattr(expected, "seq_num", 0) == getattr(found, "seq_num", 0))
    if hasattr(expected, "partition_status"):
        return bool(sorted(expected.partition_status) == sorted(found.partition_status))
    return bool(expected == found)
