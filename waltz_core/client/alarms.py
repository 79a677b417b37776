"""When a client must be stepped: one heap of alarms for all its machines, and who must set theirs again.

```
 something happens to a machine ──► touched ──end of the step──► its alarms are set ──► Alarms (base/alarms.py)
                                                                      │ HURRY is past            │ rings
                                                                      ▼                          ▼
                                                                   Doubts ◄──── HURRY ──── the machine looks at the time
```

A machine has one alarm for each purpose (`Due`). It sets them at the end of every step in which something happened to
it, so a step with a thousand messages for one partition moves each of its alarms once. The time of a machine that
nothing happened to can only move later: a connection on which something arrived is known to live for longer, and so is
whoever waits for it. Its alarm then rings too early, the machine finds nothing to do, and sets it again. What moves
with every append is not even moved while it is set (`set_by`).

HURRY is no work of the machine itself. A server that owes it an answer has been silent, so others are to be asked who
serves what. That stays true until the machine hears something, and is kept in `Doubts` meanwhile.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import NamedTuple, Protocol, TypeAlias

from waltz_core.base.alarms import Alarms
from waltz_core.client.link import Link


class ClusterDue(enum.Enum):
    """What the view of the cluster wants a step for."""

    CONNECT = "no cluster has answered in time"
    MEMBERSHIP = "the membership asks again, or somebody else"


class Due(enum.IntEnum):
    """What a partition or a reader wants a step for."""

    WARNING = 0  # a mount takes so long that an operator should know
    MOUNT = 1  # the pause before the next mount ends
    RESUME = 2  # what was dropped of the feed is asked for again
    NUDGE = 3  # an append without an outcome is asked about
    MARK = 4  # the committed mark is asked for again
    PAYLOADS = 5  # the pause before payloads are asked for again ends
    RECORDS = 6  # the same of whole records
    SILENCE = 7  # the server has owed an answer for so long that something must be wrong
    HURRY = 8  # others are to be asked who serves this partition


class Timed(Hashable, Protocol):
    """A partition, or the reader of one."""

    def set_alarms(self, now: int) -> None:
        """Set the alarm of every purpose to its present time."""

    def hurry_at(self) -> int | None:
        """When others are to be asked who serves the partition; None: what is known will do."""

    def due(self, now: int, due: Due) -> bool:
        """An alarm rang: act if it is time; True when the connection is to be given up as dead."""

    @property
    def link(self) -> Link | None:
        """The connection it lives on."""


class MachineAlarm(NamedTuple):
    """A machine wants a step. (A tuple, as its alarms are set at the end of every step that concerns it.)"""

    machine: Timed
    due: Due


AlarmKey: TypeAlias = ClusterDue | Link | MachineAlarm


class Doubts:
    """The machines whose servers are doubted: their HURRY is past, and nothing has moved it since."""

    __slots__ = ("_machines",)

    def __init__(self) -> None:
        self._machines: dict[Timed, None] = {}

    def __bool__(self) -> bool:
        return bool(self._machines)

    def note(self, now: int, machine: Timed) -> int | None:
        """Keep or drop a machine; returns when it is to be looked at again."""
        at = machine.hurry_at()
        if at is not None and at <= now:
            self._machines[machine] = None
            return None
        self._machines.pop(machine, None)
        return at

    def confirmed(self, now: int) -> bool:
        """Whether one of them is still right; those that are not set their alarms anew."""
        for machine in list(self._machines):
            at = machine.hurry_at()
            if at is None or at > now:
                machine.set_alarms(now)
        return bool(self._machines)


class MachineAlarms:
    """The alarms of one partition, or of one reader, in the heap of the client."""

    __slots__ = ("_alarms", "_doubts", "_keys", "_machine", "_rings_at")

    def __init__(self, machine: Timed, alarms: Alarms[AlarmKey], doubts: Doubts) -> None:
        self._machine = machine
        self._alarms = alarms
        self._doubts = doubts
        self._keys = [MachineAlarm(machine, due) for due in Due]
        self._rings_at: list[int | None] = [None for _ in Due]

    def set(self, due: Due, at: int | None, /) -> None:
        """Ring at `at` (milliseconds) instead of when it was to ring before; None cancels."""
        if at != self._rings_at[due]:
            self._rings_at[due] = at
            self._alarms.set(self._keys[due], at)

    def set_by(self, due: Due, at: int | None, /) -> None:
        """Ring at `at`, or before: an alarm that is set stays unless it is too late.

        For times that move with every append: whoever hears it ring early finds nothing to do, and sets it anew.
        """
        rings_at = self._rings_at[due]
        if at is not None and (rings_at is None or at < rings_at):
            self.set(due, at)

    def set_hurry(self, now: int) -> None:
        """Set HURRY, or begin to doubt the server."""
        self.set_by(Due.HURRY, self._doubts.note(now, self._machine))

    def rang(self, due: Due) -> None:
        """One has rung: it is not set any more."""
        self._rings_at[due] = None
