"""Notes and alarms of the machines inside a storage node to the node.

A note is put into an outbox that the node owns; it empties that after each event, when no call is under way. An
alarm is a key of the node's one heap of due times.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from waltz_core.access.admission import Silence
from waltz_core.base.record import record
from waltz_core.wire.admin_messages import AdminMessage
from waltz_core.wire.storage_messages import StorageMessage

Reply: TypeAlias = tuple[int, StorageMessage | AdminMessage]
"""Connection and message; encoded at the end of the step, dropped if the connection is gone by then."""

Range: TypeAlias = tuple[int, int]
"""First and last transaction id."""

# ---- notes -----------------------------------------------------------------------------------


@record
class Opened:
    """The files of an assigned partition were examined; `problem` ends the process."""

    partition_id: int
    problem: str | None


@record
class ChangeEnded:
    """An administrative change is durable, or was refused."""

    ticket: int
    refusal: str | None


@record
class Scrubbed:
    """A piece of a log was verified: the next id to look at, and the bytes that were read."""

    next_id: int
    size: int


@record
class Surveyed:
    """For a repair: the damaged records."""

    partition_id: int
    ranges: tuple[Range, ...]


@record
class Mended:
    """For a repair: the number of records in place now, and what is wrong with the next one."""

    partition_id: int
    count: int
    problem: str


@record
class RepairRecorded:
    """For a repair: what is left is on disk, and the partition is open again if it could be."""

    partition_id: int


RepairNote: TypeAlias = Surveyed | Mended | RepairRecorded
Note: TypeAlias = Opened | ChangeEnded | Scrubbed | RepairNote

# ---- alarms ----------------------------------------------------------------------------------


@attrs.frozen(eq=False)  # one object for each replica, looked up at every append: by its identity
class MarkDue:
    """The durable mark of a partition lags far enough behind to be written."""

    partition_id: int


@record
class ScrubDue:
    """The next piece may be read."""


@record
class GreetingDue:
    """A new connection has had its time to show the cluster key."""

    conn: int


@record
class AnswersDue:
    """The sources of a repair have had their time to answer."""

    partition_id: int


Alarm: TypeAlias = MarkDue | ScrubDue | GreetingDue | AnswersDue | Silence
