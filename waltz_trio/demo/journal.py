"""What a client of the demonstration knows of its requests, written down so that it outlives the client.

One line per event: `time event request [partition id]`, the time in nanoseconds of a clock that all processes
of this machine share. A line is handed to the operating system before the client goes on, so that a client
that is killed takes nothing along.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from waltz_core.base.record import record
from waltz_trio.base import durable

ASKED: Final = "asked"
COMMITTED: Final = "committed"
DECLINED: Final = "declined"
UNKNOWN: Final = "unknown"


@record
class Event:
    """One line."""

    time: int
    kind: str
    client: int
    request: int
    partition: int
    transaction_id: int  # where committed, else -1


class Journal:
    """The file of one client; requests continue counting where an earlier process of the client stopped."""

    def __init__(self, path: Path) -> None:
        self.last_request = max((event.request for event in read(path, 0)), default=0) if path.exists() else 0
        self._fd = durable.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def asked(self, partition: int) -> int:
        """Note a request that is about to be made; returns its number."""
        self.last_request += 1
        self._write(ASKED, self.last_request, partition, -1)
        return self.last_request

    def settled(self, kind: str, request: int, partition: int, transaction_id: int = -1) -> None:
        """Note what became of it."""
        self._write(kind, request, partition, transaction_id)

    def _write(self, kind: str, request: int, partition: int, transaction_id: int) -> None:
        durable.write_all(self._fd, f"{time.monotonic_ns()} {kind} {request} {partition} {transaction_id}\n".encode())

    def close(self) -> None:
        """Close the file."""
        durable.close(self._fd)


def read(path: Path, client: int) -> list[Event]:
    """The events of one client, in order; a last line that was cut short is left out."""
    *lines, _ = path.read_text().split("\n")
    events = []
    for line in lines:
        moment, kind, request, partition, transaction_id = line.split(" ")
        events.append(Event(int(moment), kind, client, int(request), int(partition), int(transaction_id)))
    return events
