"""Keeps the preferred partitions of a server in ZooKeeper, so that they survive its restart (tools-T13)."""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.base.contract import Tickets
from waltz_core.base.edge import ZkCreate, ZkDone, ZkError, ZkFailed, ZkGet, ZkRequest, ZkSet
from waltz_core.base.ids import Endpoint
from waltz_core.base.rules import SAFE, SafetyRules

_RETRY_MS = 1_000


class Preferences:
    """One persistent node for each endpoint, below `ROOT/preferred`, which 0.13.2 does not look at.

    It is read once, after joining; written after every change, the newest one last.
    """

    def __init__(self, root: str, endpoint: Endpoint, tickets: Tickets, rules: SafetyRules = SAFE) -> None:
        self._kept = rules.preferences_kept
        self._parent = f"{root}/preferred"
        self._path = f"{self._parent}/{endpoint}"
        self._tickets = tickets
        self._requests: list[ZkRequest] = []
        self._ticket: int | None = None
        self._retry_at: int | None = None
        self._known = False  # what is kept was read, or is older than what we write
        self._wanted: bytes | None = None  # to be written
        self._writing: bytes | None = None
        self._creating = False  # by ZkCreate, since there is no node to set
        self._found: tuple[int, ...] | None = None

    def read(self) -> None:
        """Ask for what is kept, unless it is known."""
        if self._kept and not self._known and self._ticket is None and self._retry_at is None:
            self._go_on()

    def keep(self, partitions: Sequence[int]) -> None:
        """Keep this from now on."""
        if not self._kept:
            return
        self._known = True
        self._wanted = ",".join(map(str, partitions)).encode()
        if self._ticket is None:
            self._retry_at = None
            self._go_on()

    @property
    def kept(self) -> bool:
        """Whether ZooKeeper has everything that was to be kept."""
        return self._wanted is None

    def requests(self) -> list[ZkRequest]:
        """What to ask ZooKeeper, since the last call."""
        requests, self._requests = self._requests, []
        return requests

    def take(self) -> tuple[int, ...] | None:
        """What was kept before this process started, once."""
        found, self._found = self._found, None
        return found

    def deadline(self) -> int | None:
        """When to try again."""
        return self._retry_at

    def due(self) -> None:
        """Try again."""
        self._retry_at = None
        self._go_on()

    def answered(self, now: int, event: ZkDone | ZkFailed) -> bool:
        """An answer of ZooKeeper; False if it is not ours."""
        if event.ticket != self._ticket:
            return False
        self._ticket = None
        if self._writing is not None:
            self._on_written(now, event)
        elif isinstance(event, ZkDone):
            if not self._known:
                self._known, self._found = True, _decode(event.data or b"")
        elif event.error is ZkError.NO_NODE:
            self._known = True
        else:
            self._retry_at = now + _RETRY_MS
        if self._retry_at is None:
            self._go_on()
        return True

    def _on_written(self, now: int, event: ZkDone | ZkFailed) -> None:
        written, self._writing = self._writing, None
        creating, self._creating = self._creating, False
        if isinstance(event, ZkDone):
            if written == self._wanted:
                self._wanted = None
        elif event.error is ZkError.NO_NODE and not creating:
            # The node is not there, or its parent is not: both are created, one of them perhaps in vain.
            self._writing, self._creating = written, True
            self._ticket = self._tickets.take()
            self._requests.append(ZkCreate(self._tickets.take(), self._parent, None))
            self._requests.append(ZkCreate(self._ticket, self._path, written))
        elif event.error is not ZkError.NODE_EXISTS:
            self._retry_at = now + _RETRY_MS

    def _go_on(self) -> None:
        if self._ticket is not None:
            return
        if self._wanted is not None:
            self._writing = self._wanted
            self._ticket = self._tickets.take()
            self._requests.append(ZkSet(self._ticket, self._path, self._wanted, -1))
        elif not self._known:
            self._ticket = self._tickets.take()
            self._requests.append(ZkGet(self._ticket, self._path))


def _decode(data: bytes) -> tuple[int, ...]:
    """Partition ids; whatever else somebody wrote there is nothing."""
    try:
        return tuple(int(piece) for piece in data.decode("ascii").split(",") if piece)
    except ValueError:
        return ()
