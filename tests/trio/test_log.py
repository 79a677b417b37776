"""Log lines: one per event, whatever a peer puts into them."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from waltz_core.base.edge import Level
from waltz_trio.base import log


@pytest.fixture(autouse=True)
def _keep_logging() -> Iterator[None]:
    """Other tests keep their handlers and levels."""
    loggers = [logging.getLogger(name) for name in (None, "waltz", "waltz.zookeeper.kazoo")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


def test_a_report_is_one_line_with_time_level_and_name() -> None:
    stream = io.StringIO()
    log.set_up("info", stream)
    report = log.reporter("server-0")

    report(Level.WARNING, "hello\r\n2024-01-01T00:00:00.000Z INFO forged: line")
    report(Level.DEBUG, "not told")

    (line,) = stream.getvalue().splitlines()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING server-0: hello\\r\\n2024", line)


def test_what_a_terminal_or_a_reader_of_lines_would_follow_is_escaped() -> None:
    stream = io.StringIO()
    log.set_up("info", stream)
    report = log.reporter("server-0")

    report(Level.WARNING, "\x1b]0;x\x07\x1b[2J \x85\u2028\x0b\t \u202eright \udc80 a\\b")
    report(Level.WARNING, "Zoë → C:\\b")

    first, second = stream.getvalue().splitlines()
    assert first.endswith(r"server-0: \x1b]0;x\x07\x1b[2J \x85\u2028\x0b\t \u202eright \udc80 a\\b")
    assert second.endswith("server-0: Zoë → C:\\b")


def test_libraries_are_heard_from_warnings_on() -> None:
    stream = io.StringIO()
    log.set_up("info", stream)

    logging.getLogger("library").info("chatter")
    logging.getLogger("waltz.zookeeper.kazoo").info("Connecting to ...")
    logging.getLogger("library").warning("trouble")

    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == ["WARNING library: trouble"]


def test_a_warning_is_told_once() -> None:
    told: list[str] = []
    warn = log.warn_once(lambda level, text: told.append(text))

    for text in ("a", "b", "a"):
        warn(text)

    assert told == ["a", "b"]


def pipe() -> tuple[int, int]:
    return os.pipe()


def socket_pair() -> tuple[int, int]:
    """As the journal of a service manager."""
    reading, writing = socket.socketpair()
    return reading.detach(), writing.detach()


@pytest.mark.parametrize("make", [pipe, socket_pair])
def test_a_reader_that_takes_nothing_is_not_waited_for(make: Callable[[], tuple[int, int]]) -> None:
    """The lines that it did not take are lost, and counted; the write would wait for ever."""
    reading, writing = make()
    with open(writing, "w", encoding="utf-8") as stream, open(reading, "rb", buffering=0) as reader:
        log.set_up("info", stream)
        report = log.reporter("server-0")
        for number in range(2000):
            report(Level.INFO, f"{number} {'ä' * 3000}")
        os.set_blocking(reading, False)
        taken = b""
        while piece := reader.read(1 << 16):
            taken += piece
        report(Level.INFO, "goes on")
        taken += reader.read(1 << 16) or b""
        lines = taken.decode().splitlines()

    whole = [line for line in lines if line.endswith("ä" * 3000)]
    assert 0 < len(whole) < 2000
    assert [line.split()[3] for line in whole] == [str(number) for number in range(len(whole))]
    told = f"WARNING log: {2000 - len(whole)} lines of this log are lost: nobody took them"
    assert lines[-2].split(" ", 1)[1] == told
    assert lines[-1].endswith("server-0: goes on")


class SlowPipe(io.StringIO):
    """A pipe whose reader takes one write every 200 ms; stands in for what waits for that, and for the clock."""

    POLLOUT = select.POLLOUT

    def __init__(self, number: int) -> None:
        super().__init__()
        self.now = 0.0  # seconds
        self._number = number
        self._room_at = 0.0

    def fileno(self) -> int:
        return self._number

    def write(self, text: str) -> int:
        assert self.now >= self._room_at, "the write would wait"
        self._room_at = self.now + 0.2
        return super().write(text)

    def register(self, number: int, events: int) -> None:
        assert (number, events) == (self._number, self.POLLOUT)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        self.now = min(max(self.now, self._room_at), self.now + timeout / 1000)
        return [(self._number, self.POLLOUT)] if self.now >= self._room_at else []

    def texts(self) -> list[str]:
        """Of all lines, without the time."""
        return [line.split(" ", 1)[1] for line in self.getvalue().splitlines()]


def test_a_slow_reader_is_not_waited_for_at_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait for it succeeds; a hundred of them in a row would stop the whole process for twenty seconds."""
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8"), open(reading, "rb"):
        pipe = SlowPipe(writing)
        monkeypatch.setattr(log, "select", SimpleNamespace(poll=lambda: pipe, POLLOUT=pipe.POLLOUT))
        clock = SimpleNamespace(monotonic=lambda: pipe.now, strftime=time.strftime, gmtime=time.gmtime)
        monkeypatch.setattr(log, "time", clock)
        log.set_up("info", pipe)
        report = log.reporter("server-0")

        for number in range(100):
            report(Level.INFO, str(number))

        assert pipe.now == pytest.approx(0.25)
        shown = [f"INFO    server-0: {number}" for number in range(2)]
        assert pipe.texts() == shown
        for text in ("a", "b"):  # lines, and not only the word that some are lost, as soon as there is room
            pipe.now += 0.3
            report(Level.INFO, text)
        shown += ["WARNING log: 98 lines of this log are lost: nobody took them"]
        shown += ["INFO    server-0: a", "INFO    server-0: b"]
        assert pipe.texts() == shown
        pipe.now += 10
        for text in ("c", "d"):
            report(Level.INFO, text)
        assert pipe.texts() == [*shown, "INFO    server-0: c", "INFO    server-0: d"], "it may be waited for again"
        assert pipe.now == pytest.approx(11.05)
