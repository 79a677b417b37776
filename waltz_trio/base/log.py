"""Log lines: reports of the machines and of the drivers, one readable line per event."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from waltz_core.base.edge import Level


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


def set_up(level: str = "info", stream: TextIO | None = None) -> None:
    """Send the log of this process to `stream` (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
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
