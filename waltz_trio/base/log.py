"""Log lines: reports of the machines and of the drivers, one readable line per event."""

from __future__ import annotations

import io
import logging
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

_PIECE: Final = 1024  # characters, of four bytes at most: a pipe with room takes 4,096 bytes without a wait
_PATIENCE_MS: Final = 250  # well below any session's time-out


class _Formatter(logging.Formatter):
    """`2024-05-01T12:00:00.123Z WARNING server: text`, never more than one line."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        name = record.name.removeprefix("waltz.")
        line = f"{stamp}.{int(record.msecs):03d}Z {record.levelname:<7} {name}: {record.getMessage()}"
        # Text of a peer may hold line ends; a forged line must not look like one of ours.
        line = (
            line.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
            if "\n" in line or "\r" in line
            else line
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines; those that a pipe or socket does not take are lost, which is said once it takes some again.

    A process that waited for the reader of its log would serve nobody, while the session of its ZooKeeper client, which
    has a thread of its own, lives on: so no other server takes its partitions over.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lost = 0
        self._is_cut = False  # the last line that was begun is not at its end
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
        try:
            if self._lost and self._write(self._notice()):
                self._lost = 0
            if self._lost or not self._write(self.format(record) + self.terminator):
                self._lost += 1
        except Exception:  # as the handlers of the library do
            self.handleError(record)

    def _notice(self) -> str:
        text = f"{self._lost} lines of this log are lost: nobody took them"
        notice = logging.makeLogRecord({"name": "log", "msg": text, "levelno": logging.WARNING, "levelname": "WARNING"})
        return (self.terminator if self._is_cut else "") + self.format(notice) + self.terminator

    def _write(self, text: str) -> bool:
        """Write what is taken; whether that was all. It waits once for a reader, and not again until it takes some."""
        assert self._room is not None
        for start in range(0, len(text), _PIECE):
            if not self._room.poll(0 if self._lost else _PATIENCE_MS):
                return False
            piece = text[start : start + _PIECE]
            self.stream.write(piece)
            self.flush()
            self._is_cut = not piece.endswith(self.terminator)
        return True


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


def described(error: BaseException) -> str:
    """An unexpected error, with the place that raised it: what a log needs to find the mistake."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{error!r}{place}"
