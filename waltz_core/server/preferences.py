"""Keeps the preferred partitions of a server in ZooKeeper, so that they survive its restart (tools-T13).

One persistent node for each endpoint, below `ROOT/preferred`, which 0.13.2 does not look at. It is read once, after
joining, and written after every change; one request at a time, so that the newest list is written last.

    idle ── joined ──▶ READ ── found, or no node ──▶ idle
    idle ── changed ──▶ WRITE ── done ──▶ idle, or WRITE again if it was changed meanwhile
                          └── no node ──▶ CREATE_PARENT and CREATE ──▶ as after WRITE

Any other failure is tried again after a pause, which grows. A list that was set before the old one was read replaces
it unread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import assert_never

from waltz_core.base.alarms import SetsAlarms
from waltz_core.base.attempts import Attempts
from waltz_core.base.contract import Rng
from waltz_core.base.edge import Report, ZkCreate, ZkDone, ZkError, ZkFailed, ZkGet, ZkRequest, ZkSet
from waltz_core.base.ids import Endpoint
from waltz_core.base.outbox import Emits
from waltz_core.base.pending import Awaits
from waltz_core.server.context import ClusterAlarm, PreferenceStep
from waltz_core.zookeeper.attempts import ZnodeAttempts

_PAUSE_MIN_MS = 1_000
_PAUSE_MAX_MS = 10_000  # an operator's command waits for the change


class Preferences:
    """What is kept, what is to be kept, and the request under way."""

    def __init__(
        self,
        root: str,
        endpoint: Endpoint,
        out: Emits[ZkRequest | Report],
        awaits: Awaits[PreferenceStep],
        alarms: SetsAlarms[ClusterAlarm],
        rng: Rng,
    ) -> None:
        self._parent = f"{root}/preferred"
        self._path = f"{self._parent}/{endpoint}"
        self._out = out
        self._awaits = awaits
        self._alarms = alarms
        self._attempts = ZnodeAttempts(
            Attempts(_PAUSE_MIN_MS, _PAUSE_MAX_MS, rng),
            out,
            partial(alarms.set, ClusterAlarm.PREFERENCES),
            failing=f"ZooKeeper, {self._path}: the preferred partitions are not kept",
            works=f"ZooKeeper, {self._path}: the preferred partitions are kept again",
        )
        self._asking = False  # a request is under way
        self._pausing = False  # after a failure
        self._known = False  # what is kept was read, or is older than what we write
        self._wanted: bytes | None = None  # to be written
        self._writing = b""  # by the request under way
        self._before: tuple[int, ...] | None = None  # what was kept when this process started

    def read(self) -> None:
        """Ask for what is kept, unless it is known."""
        if not self._known and not self._pausing:
            self._go_on()

    def keep(self, partitions: Sequence[int]) -> None:
        """Keep this from now on."""
        self._known = True
        self._wanted = ",".join(map(str, partitions)).encode()
        if not self._asking:
            self._pausing = False
            self._alarms.set(ClusterAlarm.PREFERENCES, None)
            self._go_on()

    @property
    def kept(self) -> bool:
        """Whether ZooKeeper has everything that was to be kept."""
        return self._wanted is None

    def take(self) -> tuple[int, ...] | None:
        """What was kept before this process started, once."""
        before, self._before = self._before, None
        return before

    def due(self) -> None:
        """Try again."""
        self._pausing = False
        self._go_on()

    def answered(self, now: int, event: ZkDone | ZkFailed, step: PreferenceStep) -> None:
        """ZooKeeper has answered."""
        if step is PreferenceStep.CREATE_PARENT:
            return  # the node below it tells whether it is there
        self._asking = False
        match step:
            case PreferenceStep.READ:
                self._on_read(now, event)
            case PreferenceStep.WRITE | PreferenceStep.CREATE:
                self._on_written(now, event, step)
            case _:
                assert_never(step)
        if not self._pausing:
            self._go_on()

    def _on_read(self, now: int, event: ZkDone | ZkFailed) -> None:
        if isinstance(event, ZkDone):
            self._attempts.succeeded()
            if not self._known:
                self._known, self._before = True, _decode(event.data or b"")
        elif event.error is ZkError.NO_NODE:
            self._known = True
        else:
            self._failed(now, event.error)

    def _on_written(self, now: int, event: ZkDone | ZkFailed, step: PreferenceStep) -> None:
        if isinstance(event, ZkDone):
            self._attempts.succeeded()
            if self._writing == self._wanted:
                self._wanted = None
        elif event.error is ZkError.NO_NODE and step is PreferenceStep.WRITE:
            # The node is not there, or its parent is not: both are created, one of them perhaps in vain.
            self._asking = True
            parent, node = self._awaits.ask(PreferenceStep.CREATE_PARENT), self._awaits.ask(PreferenceStep.CREATE)
            self._out.put(ZkCreate(parent, self._parent, None))
            self._out.put(ZkCreate(node, self._path, self._writing))
        elif event.error is not ZkError.NODE_EXISTS:
            self._failed(now, event.error)

    def _failed(self, now: int, error: ZkError) -> None:
        self._pausing = True
        self._attempts.failed(now, error.value, quiet=error.away)

    def _go_on(self) -> None:
        if self._asking:
            return
        if self._wanted is not None:
            self._asking, self._writing = True, self._wanted
            self._out.put(ZkSet(self._awaits.ask(PreferenceStep.WRITE), self._path, self._wanted, -1))
        elif not self._known:
            self._asking = True
            self._out.put(ZkGet(self._awaits.ask(PreferenceStep.READ), self._path))


def _decode(data: bytes) -> tuple[int, ...]:
    """Partition ids; any other text counts as none."""
    try:
        return tuple(int(piece) for piece in data.decode("ascii").split(",") if piece)
    except ValueError:
        return ()
