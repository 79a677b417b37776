"""A client against a scripted server: what ours sends is compared, frame by frame, with what 0.13.2 sent.

Each probe runs against the twin of its client, in the order of the record: where the record
says that the server sent or closed, ours gets it; where it says that the client connected, sent or closed,
ours must have done so too. Times are not compared, with one exception: they tell a nudge from the
flush of a mount. Free is the one race that the original has with itself: between an append by the
application and the flush and feed requests that follow a mount.

Where the record shows the original dialing again (whatever the reason), the probe is also run with
our client: the same connections follow one another, with pauses instead of in a hot loop.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import versions_0132
from tests.fixed_membership import FixedMembership
from tests.twin_0132.client import ClientNode0132
from tests.vectors.deviations import dials_again, nudge_finds_loss
from tests.vectors.messages import fields_of, message_from, opened, read_hello
from tests.vectors.reading import Fields, Unit, lines
from waltz_core.base.edge import CloseConn, Closed, Dial, Dialed, Received, Send
from waltz_core.base.ids import Endpoint
from waltz_core.client.calls import Deliver, Failed, Fetch, Open, ReadMark, Submit
from waltz_core.client.link import Kind
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.connection import CLIENT_PROTOCOL
from waltz_core.wire.frame import HEADER, HEADER_SIZE

SERVER = Endpoint("server.example", 1)
NUDGE_MS = ClientSettings().nudge_ms
_PATIENCE_MS = 700_000  # how long we wait for our client to do what the original did; it sends keep-alives after 600 s
_RACING = ("AppendRequest", "FlushRequest", "FeedRequest")


def units(path: Path) -> Iterator[Unit]:
    probes: dict[str, list[Fields]] = {}
    for _, line in lines(path):
        if line["probe"] == "_header":
            line.ignore("description")
        else:
            probes.setdefault(line["probe"], []).append(line)
    for probe, its_lines in probes.items():
        yield Unit(f"{path.name}:{probe}", its_lines, lambda its=its_lines: check(its))  # type: ignore[misc]


def check(its_lines: list[Fields]) -> frozenset[str]:
    summaries = [line for line in its_lines if line["event"] == "summary"]
    its_lines = [line for line in its_lines if line["event"] != "summary"]
    assert [line["seq"] for line in its_lines] == list(range(len(its_lines)))
    for line in its_lines:
        check_frame(line)
    legacy = Replay(its_lines, ClientNode0132)
    legacy.run()
    loss = nudge_finds_loss(its_lines, NUDGE_MS)
    if loss is not None:
        # 0.13.2 only sends again; ours first makes sure that the server knows its mount.
        safe = Replay(its_lines[: loss + 1], ClientNode)
        safe.run(complete=False)
        names = [name_of(frame) for sent in safe.sent.values() for frame in sent]
        assert names == ["MountRequest"], names
        return frozenset({"remount_after_loss"})
    if not dials_again(its_lines):
        Replay(its_lines, ClientNode).run()
        return frozenset()
    # 0.13.2 dials again in the very moment, for ever; ours waits, the longer the more often it failed.
    assert max(legacy.pauses) == 0
    safe = Replay(its_lines, ClientNode)
    safe.run()
    assert abs(len(safe.pauses) - len(legacy.pauses)) <= 2  # a pause may be under way when the record ends
    settings = ClientSettings()
    assert all(pause <= settings.reconnect_cap_ms for pause in safe.pauses)
    if len(safe.pauses) > 6:
        assert min(safe.pauses[-2:]) >= settings.reconnect_cap_ms // 4
    for summary in summaries:
        most = 2 * (8 + summary["in_ms"] // (settings.reconnect_cap_ms // 2))
        assert most < summary["connections"], "no hot loop in the record?"
    return frozenset({"reconnect_paced"})


def check_frame(line: Fields) -> None:
    """Name, fields and bytes of a recorded frame say the same."""
    line.ignore("t_ms", "conn", "event")
    if "hex" not in line:
        return
    frame, name, fields = bytes.fromhex(line["hex"]), line["message"], line["fields"].all()
    head = HEADER.unpack_from(frame)
    assert head[2] == len(frame) - HEADER_SIZE
    if name == "Hello":
        assert fields_of(CLIENT_PROTOCOL, read_hello(frame)) == fields
    elif name == "KeepAlive":
        assert (head[2], fields) == (0, {})
    else:
        try:
            (found,) = decode(frame, head[1])
        except ValueError:
            assert fields.get("checksum") is not None, "only a wrong checksum is sent on purpose"
        else:
            assert (type(found).__name__, fields_of(CLIENT_PROTOCOL, found)) == (name, fields)


def decode(frame: bytes, version: int) -> list[Any]:
    """The messages of a frame; ValueError if it does not decode."""
    out: list[Any] = []
    try:
        opened(CLIENT_PROTOCOL, version).receive(frame, out)
    except Exception as error:
        raise ValueError(str(error)) from error
    return out


def _first_req_id(its_lines: list[Fields]) -> dict[str, int]:
    """Who the recorded client is, its partition and the generation: all are in its first request."""
    for line in its_lines:
        if line["event"] == "client_send" and "req_id" in line["fields"].all():
            return dict(line["fields"].all()["req_id"])
    return {"client_id": 7, "partition_id": 0, "generation": 1}  # it never got so far


def _initial_mark(its_lines: list[Fields]) -> int:
    """What the recorded client had applied: it is in its first mount."""
    mounts = (line for line in its_lines if line["event"] == "client_send" and line["message"] == "MountRequest")
    mount = next(mounts, None)
    return -1 if mount is None else int(mount["fields"].all()["client_high_water_mark"])


class Replay:
    """Our client machine, driven along one record."""

    def __init__(self, its_lines: list[Fields], node: type[ClientNode]) -> None:
        self.lines = its_lines
        self.now = 0
        first = _first_req_id(its_lines)
        self.partition: int = first["partition_id"]
        self.node = node(
            FixedMembership(
                first["client_id"], self.partition + 1, [(SERVER, [(self.partition, first["generation"])])]
            ),
            ClientSettings(),
            random.Random(1),
            versions=versions_0132.CLIENT,
        )
        self.dials: list[int] = []
        self.conns: dict[int, int] = {}  # recorded → ours
        self.sent: dict[int, list[bytes]] = {}
        self.closed: set[int] = set()
        self.lost_at: dict[Kind, int] = {}
        self.pauses: list[int] = []
        self.mark = _initial_mark(its_lines)
        self.kinds: dict[int, Kind] = {}
        self.kind_of = kinds_of(its_lines)
        mine = [line for line in its_lines if line["event"] == "client_send"]
        self.reads_payloads = any(line["message"] == "TransactionDataRequest" for line in mine)
        self.reads_mark = any(line["message"] == "HighWaterMarkRequest" for line in mine)
        appended = next((line["fields"].all() for line in mine if line["message"] == "AppendRequest"), None)
        self.append = None if appended is None else message_from(CLIENT_PROTOCOL, "AppendRequest", appended)

    def run(self, *, complete: bool = True) -> None:
        self.step(Open(self.partition, self.mark, True))
        if self.reads_mark:
            self.step(ReadMark(self.partition, "m"))
        if self.append is not None:
            self.submit()
        for at, line in enumerate(self.lines):
            match line["event"]:
                case "connect" | "accepted_then_closed":
                    self.connect(line)
                case "server_send":
                    self.step(Received(self.conns[line["conn"]], bytes.fromhex(line["hex"])))
                case "server_close":
                    self.end(self.conns[line["conn"]])
                case "client_send":
                    self.expect(at, line)
                case "closed_by_client":
                    self.wait(lambda conn=self.conns[line["conn"]]: conn in self.closed, line)
                case other:
                    raise AssertionError(f"unknown event {other}")
        for sent in self.sent.values() if complete else ():
            names = [name_of(frame) for frame in sent]
            assert set(names) <= {"Hello", "FeedRequest", "AppendRequest"}, f"sent beyond the record: {names}"
            assert names.count("AppendRequest") <= 1

    # ---- the driver ----------------------------------------------------------------------------

    def step(self, *events: Any) -> None:
        out: list[Any] = []
        self.node.step(self.now, events, out)
        self.perform(out)

    def perform(self, out: list[Any]) -> None:
        for effect in out:
            match effect:
                case Dial(conn=conn):
                    self.dials.append(conn)
                    kind = self.node.link_kind(conn)
                    if kind in self.lost_at:
                        self.pauses.append(self.now - self.lost_at.pop(kind))
                case Send(conn=conn, data=data):
                    self.sent.setdefault(conn, []).extend(cut(bytes(data)))
                case CloseConn(conn=conn):
                    self.closed.add(conn)
                    self.note_loss(conn)
                case Deliver(run=run):
                    for record in run:
                        assert record.transaction_id == self.mark + 1
                        self.mark += 1
                        if self.reads_payloads:
                            self.step(Fetch(self.partition, (record.transaction_id,)))
        for effect in out:
            if isinstance(effect, Failed) and effect.reason.certain:
                self.submit()  # as the original's retry queue does, with all that was applied by now

    def submit(self) -> None:
        a = self.append
        assert a is not None
        self.step(
            Submit(
                self.partition,
                "it",
                self.mark,
                a.write_locks,
                a.read_locks,
                a.append_locks,
                a.header,
                a.data,
                a.checksum,
            )
        )

    def note_loss(self, conn: int) -> None:
        for recorded, ours in self.conns.items():
            if ours == conn and (kind := self.kinds.get(recorded)) is not None:
                self.lost_at.setdefault(kind, self.now)

    def end(self, conn: int) -> None:
        self.note_loss(conn)
        self.step(Closed(conn, "closed by the server"))

    def connect(self, line: Fields) -> None:
        wanted = self.kind_of.get(line["conn"])

        def found() -> int | None:
            return next((conn for conn in self.dials if wanted in (None, self.node.link_kind(conn))), None)

        self.wait(lambda: found() is not None, line)
        conn = found()
        assert conn is not None
        self.dials.remove(conn)
        self.conns[line["conn"]] = conn
        kind = self.node.link_kind(conn)
        assert kind is not None
        self.kinds[line["conn"]] = kind
        self.step(Dialed(conn))
        if line["event"] == "accepted_then_closed":
            assert [name_of(frame) for frame in self.sent.pop(conn)] == ["Hello"]
            self.end(conn)

    def wait(self, done: Any, line: Fields) -> None:
        """Let time pass until our client did it too."""
        until = self.now + _PATIENCE_MS
        while not done():
            due = self.node.deadline()
            assert due is not None, f"ours never does: {line['event']} {line.get('message')}"
            assert due <= until, f"ours does not: {line['event']} {line.get('message')}"
            self.now = max(self.now, due)
            self.step()

    # ---- comparing -----------------------------------------------------------------------------

    def expect(self, at: int, line: Fields) -> None:
        """Our client must have sent this frame, next on its connection except for the race."""
        conn = self.conns[line["conn"]]
        frame = bytes.fromhex(line["hex"])
        if self.is_optional(at, line) and frame not in self.sent.get(conn, ()):
            return
        self.wait(lambda: frame in self.sent.get(conn, ()), line)
        sent = self.sent[conn]
        place = sent.index(frame)
        skipped = [name_of(ours) for ours in sent[:place]]
        assert not skipped or {*skipped, line["message"]} <= set(_RACING), f"{skipped} before {line['message']}"
        del sent[place]

    def is_optional(self, at: int, line: Fields) -> bool:
        """A flush for an append that slipped in between the mount and its flush."""
        if line["message"] != "FlushRequest":
            return False
        for earlier in reversed(self.lines[:at]):
            if earlier.get("message") == "AppendRequest" and earlier["event"] == "client_send":
                same_conn = earlier["conn"] == line["conn"]
                return bool(same_conn and line["t_ms"] - earlier["t_ms"] < NUDGE_MS)
        return False


def kinds_of(its_lines: list[Fields]) -> dict[int, Kind]:
    """What the recorded connections were for: by their messages, else because the other of the pair is known."""
    rpc = ("TransactionDataRequest", "HighWaterMarkRequest")
    found = {line["conn"]: Kind.STREAM for line in its_lines if line.get("message") == "MountRequest"}
    found |= {line["conn"]: Kind.RPC for line in its_lines if line.get("message") in rpc}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, line in enumerate(its_lines):
        first.setdefault(line["conn"], at)
        ended = line["event"] in ("closed_by_client", "server_close", "accepted_then_closed")
        last[line["conn"]] = at if ended else len(its_lines)
    for _ in first:
        for one in first:
            for other in found.keys() & first.keys() - {one}:
                if one not in found and first[one] < last[other] and first[other] < last[one]:
                    found[one] = Kind.RPC if found[other] is Kind.STREAM else Kind.STREAM
                    break
    return found


def cut(data: bytes) -> list[bytes]:
    frames, at = [], 0
    while at < len(data):
        end = at + HEADER_SIZE + HEADER.unpack_from(data, at)[2]
        frames.append(data[at:end])
        at = end
    return frames


def name_of(frame: bytes) -> str:
    magic, version, length = HEADER.unpack_from(frame)
    if length == 0:
        return "KeepAlive"
    if magic == 0x48:
        return "Hello"
    return type(decode(frame, version)[0]).__name__
