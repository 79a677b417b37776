"""Copies a replica, up to the mark that its source has, to a storage node that is out of service.

    ASK_DESTINATION ─▶ TRUNCATE ─▶ ASK_SOURCE ─▶ READ ─▶ APPEND ─▶ MARK ─┬─▶ DONE
                                                   ▲─────────────────────┘

The destination is cut to its low-water mark first: what is above may differ from what was committed. Each batch is
marked before the next is read, so an interrupted recovery continues where it was. The source's mark is read once: what
it receives later is not copied.

Java: StorageRecovery copies in the same order; ours refuses a source that has less than its own mark says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

from waltz_core.base.errors import StorageError
from waltz_core.base.log import Record, SessionInfo
from waltz_core.base.record import record


@record
class Truncate:
    """Cut the destination behind `mark`; answered by `Truncated`."""

    mark: int


@record
class AskSource:
    """Ask the source for its session and marks; answered by `SourceInfo`."""


@record
class Read:
    """Read records of the source; answered by `RecordsRead`."""

    first: int
    count: int


@record
class Append:
    """Append to the destination; answered by `Appended`."""

    records: Sequence[Record]


@record
class Mark:
    """Persist the low-water mark of the destination; answered by `Marked`."""

    mark: int


@record
class Done:
    """The destination holds everything up to `mark`."""

    mark: int


Step: TypeAlias = Truncate | AskSource | Read | Append | Mark | Done


@record
class Truncated:
    """The highest id that is left."""

    last: int


@record
class SourceInfo:
    """What the source says of its replica."""

    info: SessionInfo


@record
class RecordsRead:
    """Records from the one asked for on; perhaps fewer than were wanted."""

    records: Sequence[Record]


@record
class Appended:
    """The batch is durable."""


@record
class Marked:
    """The mark is durable."""


Answer: TypeAlias = Truncated | SourceInfo | RecordsRead | Appended | Marked


class RecoverPartition:
    """See the top of this file.

    Args:
        destination: what the destination says of its replica.
        batch_count: records per read.
    """

    __slots__ = ("_batch_count", "_low", "_pending", "mark", "target")

    def __init__(self, destination: SessionInfo, batch_count: int) -> None:
        assert batch_count > 0
        self._low = destination.low_water_mark
        self._batch_count = batch_count
        self._pending: Step = Truncate(self._low)
        self.mark = -1  # the destination holds everything up to it
        self.target = -1  # local low-water mark of the source

    @property
    def step(self) -> Step:
        """The next step."""
        return self._pending

    def answered(self, answer: Answer) -> Step:
        """Take the answer to the step under way; the next step.

        Raises:
            StorageError: the source has less than its mark says, or sends other records than were asked for.
        """
        match answer:
            case Truncated(last=last):
                assert isinstance(self._pending, Truncate)
                self.mark = last
                self._pending = AskSource()
            case SourceInfo(info=info):
                assert isinstance(self._pending, AskSource)
                self.target = info.local_low_water_mark
                self._pending = self._next()
            case RecordsRead(records=records):
                assert isinstance(self._pending, Read)
                self._pending = Append(self._checked(records, self._pending))
            case Appended():
                assert isinstance(self._pending, Append)
                self.mark += len(self._pending.records)
                self._pending = Mark(self.mark)
            case Marked():
                assert isinstance(self._pending, Mark)
                self._pending = self._next()
            case _:
                assert_never(answer)
        return self._pending

    def _next(self) -> Step:
        if self.mark >= self.target:
            return Done(self.mark)
        return Read(self.mark + 1, min(self._batch_count, self.target - self.mark))

    def _checked(self, records: Sequence[Record], read: Read) -> Sequence[Record]:
        if not records:
            raise StorageError(f"the source has no transaction {read.first}, though its mark is {self.target}")
        asked = f"transactions {read.first} to {read.first + read.count - 1} were asked for, the source sends"
        if len(records) > read.count:
            raise StorageError(f"{asked} {len(records)}")
        for expected, copied in enumerate(records, start=read.first):
            if copied.transaction_id != expected:
                raise StorageError(f"{asked} {copied.transaction_id} where {expected} belongs")
        return records
