"""The archive of a server, as its partitions share it: whose turn it is, what is asked, and what is owed for too long.

    ArchivedReads (one per partition) ── reads ──▶ queue, `reads_max` under way ──┐
    Archiving (one per partition) ── turns, `files_max` at a time ── files, checks ┴──▶ the archive's process
                                                                                           │
    PartitionServer ◀────────── the answer, with what it is for ◀──────────────────────────┘

So a slow archive holds a bounded number of pieces and answers, however many partitions and clients there are; a
request that waits is a few numbers in a queue. An archive that owes an answer for `answer_ms` is restarted, which fails
everything under way. An answer for a partition that was released is dropped, even if the partition has come back since.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Level, Report
from waltz_core.base.outbox import Emits
from waltz_core.server.archive_calls import (
    ArchiveAsk,
    ArchiveEffect,
    ArchiveEvent,
    ArchivePolicy,
    ArchiveRead,
    ArchiveReset,
)


class ReadAsked(NamedTuple):
    """A read of the archive for a read of the partition."""

    partition_id: int
    token: int  # of the partition's read
    first: int
    record_count: int


class _Owed(NamedTuple):
    partition_id: int
    since: int
    read: ReadAsked | None  # None: asked by the policy


class Archive:
    """Of one server process."""

    __slots__ = (
        "_out",
        "_owed",
        "_reading",
        "_reset",
        "_tickets",
        "_waiting",
        "_wanting",
        "_working",
        "policy",
        "ready",
    )

    def __init__(self, policy: ArchivePolicy, out: Emits[ArchiveEffect | Report], tickets: Tickets) -> None:
        self.policy = policy
        self._out = out
        self._tickets = tickets
        self._owed: dict[int, _Owed] = {}  # by ticket, the oldest first
        self._waiting: deque[ReadAsked] = deque()
        self._reading = 0  # reads under way
        self._working: dict[int, None] = {}  # partitions whose turn it is to write or check
        self._wanting: dict[int, None] = {}  # those that wait for a turn
        self._reset: int | None = None  # asked for; the last ticket that was owed then, until none up to it is
        self.ready: list[int] = []  # partitions whose turn has come

    # ---- turns -------------------------------------------------------------------------------

    def turn(self, partition_id: int) -> bool:
        """Whether a partition may write or check now; else it is named in `ready` when it may."""
        if partition_id not in self._working:
            if len(self._working) >= self.policy.files_max:
                self._wanting[partition_id] = None
                return False
            self._working[partition_id] = None
        return True

    def turn_over(self, partition_id: int) -> None:
        """It does not need the turn any more, or does not want one."""
        self._wanting.pop(partition_id, None)
        if partition_id in self._working:
            del self._working[partition_id]
            for wanting in list(self._wanting)[:1]:
                del self._wanting[wanting]
                self._working[wanting] = None
                self.ready.append(wanting)

    # ---- questions ---------------------------------------------------------------------------

    def owe(self, now: int, partition_id: int) -> int:
        """The policy of a partition is about to ask: the ticket of its question."""
        return self._owe(now, partition_id, None)

    def put(self, question: ArchiveAsk) -> None:
        """Ask, under the ticket that is in the question."""
        self._out.put(question)

    def read(self, now: int, read: ReadAsked) -> None:
        """Read records, when it is their turn."""
        self._waiting.append(read)
        self._launch(now)

    def call_off(self, partition_id: int, token: int) -> bool:
        """A read is of no use any more: whether it waits, and goes; one that has begun counts until it is answered."""
        before = len(self._waiting)
        self._waiting = deque(
            read for read in self._waiting if (read.partition_id, read.token) != (partition_id, token)
        )
        return len(self._waiting) < before

    def _launch(self, now: int) -> None:
        while self._waiting and self._reading < self.policy.reads_max:
            read = self._waiting.popleft()
            self._reading += 1
            ticket = self._owe(now, read.partition_id, read)
            self._out.put(ArchiveRead(ticket, read.partition_id, read.first, read.record_count))

    def _owe(self, now: int, partition_id: int, read: ReadAsked | None) -> int:
        ticket = self._tickets.take()
        self._owed[ticket] = _Owed(partition_id, now, read)
        return ticket

    def answered(self, now: int, event: ArchiveEvent) -> tuple[int, ReadAsked | None] | None:
        """For which partition an answer is, and for which read of it; None if nobody waits for it."""
        owed = self._owed.pop(event.ticket, None)
        if owed is None:
            return None
        if self._reset is not None and next(iter(self._owed), self._reset + 1) > self._reset:
            self._reset = None  # what is owed now was asked of the archive that was started anew
        if owed.read is not None:
            self._reading -= 1
            self._launch(now)
        return (owed.partition_id, owed.read) if owed.partition_id >= 0 else None

    def gone(self, partition_id: int) -> None:
        """A partition is let go."""
        self.turn_over(partition_id)
        self._waiting = deque(read for read in self._waiting if read.partition_id != partition_id)
        for ticket, owed in self._owed.items():
            if owed.partition_id == partition_id:
                self._owed[ticket] = owed._replace(partition_id=-1)  # it still counts against what is under way

    # ---- time --------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """When the oldest answer has been owed for too long."""
        if self._reset is not None or not self._owed:
            return None
        return next(iter(self._owed.values())).since + self.policy.answer_ms

    def due(self, now: int) -> None:
        """Give up what is owed for too long."""
        deadline = self.deadline()
        if deadline is not None and now >= deadline:
            self._reset = next(reversed(self._owed))
            reason = f"it has not answered for {self.policy.answer_ms / 1000:.0f} s"
            self._out.put(Report(Level.WARNING, f"archive {self.policy.where}: {reason}; it is started anew"))
            self._out.put(ArchiveReset(reason))
