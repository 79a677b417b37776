"""Log lines: reports of the machines and of the drivers, one readable line per event."""

from __future__ import annotations

import io
import logging
import math
import os
import select
import stat
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

from waltz_core.base.edge import Level
from waltz_trio.base.printable import printable

_PIECE: Final = 1024  # characters, of four bytes at most: a pipe with room takes 4,096 bytes without a wait
_PATIENCE_S: Final = 0.25  # of waiting for readers in each `_PERIOD_S`: well below any session's time-out
_PERIOD_S: Final = 10.0


class _Formatter(logging.Formatter):
    """`2024-05-01T12:00:00.123Z WARNING server: text`, never more than one line."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        name = record.name.removeprefix("waltz.")
        line = f"{stamp}.{int(record.msecs):03d}Z {record.levelname:<7} {name}: {record.getMessage()}"
        # Text of a peer may hold line ends; a forged line must not look like one of ours.
        line = printable(line)
        if record.exc_info:
            line += "\n" + printable(self.formatException(record.exc_info), "\n")
        return line


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines; those that a pipe or socket does not take soon are lost, which is said once it takes some again.

    A process that waited for the reader of its log would serve nobody, while the session of its ZooKeeper client, which
    has a thread of its own, lives on: so no other server takes its partitions over.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lost = 0
        self._is_cut = False  # the last line that was begun is not at its end
        self._patience = _PATIENCE_S  # left of this period
        self._period_end = -math.inf
        self._room: select.poll | None = None
        try:
            number = stream.fileno()
        except io.UnsupportedOperation:
            return
        kind = os.fstat(number).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            self._room = select.poll()
            self._room.register(number, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        if self._room is None:
            super().emit(record)
            return
        if self._lost and not self._room.poll(0):
            self._lost += 1  # it is not waited for again until it takes some
            return
        try:
            notice = self._notice() if self._lost else ""
            text = notice + self.format(record) + self.terminator
            taken = self._write(text)
            if taken >= len(notice):
                self._lost = 0
            self._lost += taken < len(text)
        except Exception:  # as the handlers of the library do
            self.handleError(record)

    def _notice(self) -> str:
        text = f"{self._lost} lines of this log are lost: nobody took them"
        notice = logging.makeLogRecord({"name": "log", "msg": text, "levelno": logging.WARNING, "levelname": "WARNING"})
        return (self.terminator if self._is_cut else "") + self.format(notice) + self.terminator

    def _write(self, text: str) -> int:
        """Write what is taken; how much that was."""
        for start in range(0, len(text), _PIECE):
            if not self._has_room():
                return start
            piece = text[start : start + _PIECE]
            self.stream.write(piece)
            self.flush()
            self._is_cut = not piece.endswith(self.terminator)
        return len(text)

    def _has_room(self) -> bool:
        """Whether a piece can be written without a wait; waits for that, if this period has any patience left.

        A reader that is slow, and takes a little again and again, would else be waited for at each line.
        """
        assert self._room is not None
        if self._room.poll(0):
            return True
        began = time.monotonic()
        if began >= self._period_end:
            self._patience, self._period_end = _PATIENCE_S, began + _PERIOD_S
        if self._patience <= 0:
            return False
        has_room = bool(self._room.poll(self._patience * 1000))
        self._patience -= time.monotonic() - began
        return has_room


def set_up(level: str = "info", stream: TextIO | None = None) -> None:
    """Send the log of this process to `stream` (standard error)."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(_Formatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of libraries, only what matters
    logging.getLogger("waltz").setLevel(getattr(logging, level.upper()))
    if level != "debug":
        logging.getLogger("waltz.zookeeper.kazoo").setLevel(logging.WARNING)  # each attempt to connect is an info


def reporter(name: str) -> Callable[[Level, str], None]:
    """What performs `Report` for the process or node `name`."""
    logger = logging.getLogger(f"waltz.{name}")

    def report(level: Level, text: str) -> None:
        logger.log(int(level), "%s", text)

    return report


def warn_once(report: Callable[[Level, str], None]) -> Callable[[str], None]:
    """A function that writes each different warning once."""
    written: set[str] = set()

    def warn(text: str) -> None:
        if text not in written:
            written.add(text)
            report(Level.WARNING, text)

    return warn


def surprises(report: Callable[[Level, str], None], what: str) -> Callable[[Exception], None]:
    """A function that writes an unexpected error, which has ended `what`; not again as long as it is the same."""
    last = ""

    def surprised(error: Exception) -> None:
        nonlocal last
        text = f"{what} ended by an error in this process: {described(error)}"
        if text != last:
            last = text
            report(Level.ERROR, text)

    return surprised


def described(error: BaseException) -> str:
    """An unexpected error, with the place that raised it: what a log needs to find the mistake."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{error!r}{place}"
