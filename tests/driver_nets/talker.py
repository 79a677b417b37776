"""A machine that talks on many connections and compares every byte that comes with what the other side sent."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs

from waltz_core.base.edge import (
    Accepted,
    CloseConn,
    Closed,
    Dial,
    Dialed,
    Port,
    Reading,
    Received,
    Send,
    Writable,
)
from waltz_core.base.ids import Endpoint

LABEL = 8  # bytes of a connection's number, which the dialing side sends first
BURST_MAX = 60_000  # bytes of one step on one connection
_BLOCK = 65_521  # a prime: nothing that is sent ends where a block does


def content(label: int, dialed: bool, start: int, end: int) -> bytes:
    """What one side sends on a connection, from byte to byte."""
    block = _blocks.get((label, dialed))
    if block is None:
        block = _blocks[label, dialed] = Random(f"{label}/{dialed}").randbytes(_BLOCK)
    first = start % _BLOCK
    whole = block * ((first + end - start) // _BLOCK + 1)
    return whole[first : first + end - start]


_blocks: dict[tuple[int, bool], bytes] = {}


@attrs.define
class Line:
    """One connection as a machine knows it."""

    conn: int
    label: int  # -1 until it is known
    sent: int = 0
    received: int = 0
    prefix: bytes = b""  # the label, while it arrives
    writable: bool = True
    reading: bool = True
    after_pause: int = 0  # deliveries since reading was stopped
    paused_at_close: bool = False
    ended: bool = False  # we closed it
    closed: bool = False

    @property
    def dialed(self) -> bool:
        return self.conn < 0


class Talker:
    """Dials, talks, pauses and closes at times that a seed draws; asserts what a machine is promised.

    Attributes:
        quiet: nothing new is said or closed; what is under way arrives.
        look: called at each step.
    """

    def __init__(self, seed: object, dials: int, endpoint: Endpoint, end: int) -> None:
        self.rng = Random(f"{seed}/talker")
        self.lines: dict[int, Line] = {}
        self.by_label: dict[int, Line] = {}
        self.dialing: set[int] = set()
        self.quiet = False
        self.look: Callable[[], None] = lambda: None
        self._endpoint = endpoint
        self._dial_at = sorted(self.rng.randrange(end) for _ in range(dials))
        self._last_label = 0
        self._act_at = 0
        self._buffers: list[bytearray] = []  # given away in the last step, and used again in the next

    def deadline(self) -> int | None:
        return None if self.quiet else self._act_at

    def step(self, now: int, events: Any, out: list[Any]) -> None:
        for buffer in self._buffers:
            buffer[:] = bytes(len(buffer))
        self._buffers.clear()
        for event in events:
            self._on(event, out)
        if self.quiet:
            for line in self.lines.values():
                if not line.reading and not line.closed:
                    self._read(line, True, out)
        elif now >= self._act_at:
            self._act_at = now + self.rng.choice((1, 5, 50, 400))
            while self._dial_at and self._dial_at[0] <= now:
                self._dial_at.pop(0)
                self._dial(out)
            for line in list(self.lines.values()):
                if not (line.closed or line.ended or line.label < 0):
                    self._act(line, out)
        self.look()

    # ---- events ------------------------------------------------------------------------------------

    def _on(self, event: Any, out: list[Any]) -> None:
        match event:
            case Dialed(conn):
                self.dialing.remove(conn)
                line = self._stands(Line(conn, -conn))
                out.append(Send(conn, line.label.to_bytes(LABEL)))
            case Accepted(conn):
                self._stands(Line(conn, -1))
            case Received(conn, data):
                self._received(self._open(conn), data)
            case Writable(conn, flag):
                line = self._open(conn)
                assert line.writable is not flag, "told twice"
                line.writable = flag
            case Closed(conn):
                if conn in self.dialing:
                    self.dialing.remove(conn)
                else:
                    self._open(conn).closed = True
            case _:
                raise AssertionError(event)

    def _stands(self, line: Line) -> Line:
        assert line.conn not in self.lines, "a number was used twice"
        self.lines[line.conn] = line
        if line.label >= 0:
            self.by_label[line.label] = line
        return line

    def _open(self, conn: int) -> Line:
        line = self.lines[conn]
        assert not line.closed, "something came after the end"
        return line

    def _received(self, line: Line, data: bytes) -> None:
        assert data, "nothing"
        if not line.reading:
            line.after_pause += 1
            assert line.after_pause <= 1, "reading was stopped, and goes on"
        if line.label < 0:
            line.prefix += data
            if len(line.prefix) < LABEL:
                return
            line.label, data = int.from_bytes(line.prefix[:LABEL]), line.prefix[LABEL:]
            assert line.label not in self.by_label, "a connection was doubled"
            self.by_label[line.label] = line
        end = line.received + len(data)
        assert data == content(line.label, not line.dialed, line.received, end), "torn, doubled or reordered"
        line.received = end

    # ---- acts --------------------------------------------------------------------------------------

    def _dial(self, out: list[Any]) -> None:
        self._last_label += 1
        self.dialing.add(-self._last_label)
        out.append(Dial(-self._last_label, self._endpoint, Port.STORAGE))
        if self.rng.random() < 0.05:
            out.append(CloseConn(-self._last_label, "changed our mind"))

    def _act(self, line: Line, out: list[Any]) -> None:
        match self.rng.choices(("send", "reading", "close", "wait"), (6, 1, 0.15, 3))[0]:
            case "send" if line.writable:
                size = self.rng.choice((1, 100, 5_000, BURST_MAX))
                data = bytearray(content(line.label, line.dialed, line.sent, line.sent + size))
                line.sent += size
                self._buffers.append(data)
                out.append(Send(line.conn, data))
            case "reading":
                self._read(line, not line.reading, out)
            case "close":
                line.ended = True
                out.append(CloseConn(line.conn, "said enough"))
            case _:
                pass

    def _read(self, line: Line, wanted: bool, out: list[Any]) -> None:
        line.reading = wanted
        line.after_pause = 0
        line.paused_at_close = line.paused_at_close or not wanted
        out.append(Reading(line.conn, wanted))
