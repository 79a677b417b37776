"""The decision journal of one partition: what is written, and what waits for it.

Mode `sync`: a decision is on disk before its record leaves for any storage node. All that a quorum may come to hold,
and any later session may commit, therefore has its decision in the journal of the server that made it. What follows a
decision (ranges that were committed, sessions with the mark at which they opened) needs no such order: a mark that got
lost is written again by the next session.

Mode `async`: written behind. What cannot be written is dropped, counted, and leaves a `Gap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Level, Report
from waltz_core.base.outbox import Emits
from waltz_core.base.record import record
from waltz_core.locks.exact import UNEXPLAINED, Explanation
from waltz_core.server.append_queue import Append
from waltz_core.server.appender import Flight, Refused
from waltz_core.server.journal_format import (
    APPENDED,
    CommittedRange,
    Decision,
    Entry,
    Gap,
    Mode,
    SessionOpened,
    encode_entry,
)
from waltz_core.store.replica_link import Batch
from waltz_core.wire.client_messages import NamedAppendRequest, Refusal

UNWRITTEN_MAX = 32 << 20
"""Bytes on their way to the disk, per partition, above which `async` drops and `sync` waits."""

_RETRY_MS = 1_000


@record
class JournalWrite:
    """Append to the journal of a partition; answered by `JournalWritten` or `JournalFailed`."""

    ticket: int
    partition_id: int
    key: bytes  # of the cluster
    data: bytes
    sync: bool  # on disk before the answer


@record
class JournalWritten:
    """It is there."""

    ticket: int


@record
class JournalFailed:
    """It is not, or nobody knows."""

    ticket: int
    reason: str


JournalEvent: TypeAlias = JournalWritten | JournalFailed


class Journals:
    """What the journals of a server have in common."""

    __slots__ = ("key", "mode", "unwritten_max", "wall_offset")

    def __init__(self, mode: Mode, unwritten_max: int = UNWRITTEN_MAX) -> None:
        self.mode = mode
        self.unwritten_max = unwritten_max
        self.key = bytes(16)
        self.wall_offset = 0  # ms since 1970 minus the clock of the machine

    def of(self, partition_id: int, tickets: Tickets, out: Emits[JournalWrite | Report]) -> Journal | None:
        """The journal of a partition, None if there is none."""
        return Journal(self, partition_id, tickets, out) if self.mode is not Mode.OFF else None


class _Write:
    """Entries on their way, and the batches that wait for them."""

    __slots__ = ("batches", "data", "decisions", "done", "gap", "ticket")

    def __init__(self, ticket: int, data: bytes, decisions: int, batches: list[Batch], gap: Gap | None) -> None:
        self.ticket = ticket
        self.data = data
        self.decisions = decisions
        self.gap = gap  # among the entries
        self.batches = batches
        self.done = False


class Journal:
    """Collects the entries of a step into one write, and lets batches go when theirs are on disk.

    States: well ⇄ in trouble (the last write failed). In trouble `sync` writes the same again every second and
    accepts nothing meanwhile; `async` counts and goes on.
    """

    __slots__ = (
        "_batches",
        "_common",
        "_decisions",
        "_entries",
        "_gap",
        "_out",
        "_partition_id",
        "_retry_at",
        "_sync",
        "_tickets",
        "_unwritten",
        "_writes",
        "dropped",
        "trouble",
        "written",
    )

    def __init__(
        self, common: Journals, partition_id: int, tickets: Tickets, out: Emits[JournalWrite | Report]
    ) -> None:
        self.trouble = ""  # why the last write failed, empty when it did not
        self.written = 0  # decisions that are in the journal
        self.dropped = 0  # decisions that never will be
        self._common = common
        self._sync = common.mode is Mode.SYNC
        self._partition_id = partition_id
        self._tickets = tickets
        self._out = out
        self._entries: list[bytes] = []  # of this step
        self._decisions = 0
        self._batches: list[Batch] = []
        self._writes: dict[int, _Write] = {}  # in order
        self._unwritten = 0  # bytes
        self._gap: Gap | None = None  # not written yet
        self._retry_at: int | None = None

    @property
    def blocked(self) -> bool:
        """No append may be launched now."""
        return self._sync and (bool(self.trouble) or self._unwritten > self._common.unwritten_max)

    @property
    def refusal(self) -> str:
        """Why appends are refused, empty if they are not."""
        return f"the decision journal cannot be written: {self.trouble}" if self._sync and self.trouble else ""

    @property
    def waiting(self) -> int:
        """Writes that are kept: under way, to be tried again, or done with batches that may not leave yet."""
        return len(self._writes)

    def deadline(self) -> int | None:
        """When what failed is tried again."""
        return self._retry_at

    # ---- what happened ---------------------------------------------------------------------------

    def session_opened(self, now: int, session_id: int, generation: int, mark: int) -> None:
        """A store session is open at `mark`."""
        self._note(SessionOpened(session_id, generation, mark, self._us(now)))

    def launched(self, now: int, session_id: int, batch: Batch, flight: Flight) -> bool:
        """A batch was decided; whether it may leave at once, else `ready` returns it in time."""
        decided, marks, us = self._us(now), flight.marks, self._us
        for at, (request, received) in enumerate(zip(flight.appends, flight.received(), strict=True)):
            transaction_id = flight.first + at
            mark = marks.get(transaction_id, -1)
            self._decide(request, session_id, transaction_id, mark, APPENDED, UNEXPLAINED, us(received), decided)
        if self._sync:
            self._batches.append(batch)
        return not self._sync

    def lock_refused(self, now: int, session_id: int, verdict: Refused) -> None:
        """The lock check refused an append."""
        received, decided = self._us(verdict.received), self._us(now)
        self._decide(verdict.request, session_id, -1, verdict.mark, Refusal.LOCK, verdict.why, received, decided)

    def refused(self, now: int, session_id: int, requests: Sequence[Append], why: Refusal) -> None:
        """Appends were refused for another reason."""
        decided = self._us(now)
        for request in requests:
            self._decide(request, session_id, -1, -1, why, UNEXPLAINED, decided, decided)

    def committed(self, now: int, session_id: int, first: int, last: int) -> None:
        """Transactions are on a quorum of replicas."""
        self._note(CommittedRange(session_id, first, last, self._us(now)))

    def session_ended(self) -> None:
        """What has not left will not: the next session decides it again."""
        self._batches.clear()
        for write in list(self._writes.values()):
            write.batches = []
            if write.done:
                self._forget(write)

    # ---- writing ---------------------------------------------------------------------------------

    def flush(self, now: int) -> None:
        """Hand over what was noted in this step, once; and what failed, when it is time."""
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            again, self._writes = self._writes, {}
            for write in again.values():
                if not write.done and write.ticket < 0:
                    write.ticket = self._tickets.take()
                    self._out.put(self._effect(write))
                self._writes[write.ticket] = write
        if not self._entries or (self._sync and self.trouble):
            return
        if not self._sync and self._unwritten > self._common.unwritten_max:
            self._drop(self._us(now), self._decisions, "the disk is too slow")
            self._entries.clear()
            self._decisions = 0
            return
        gap, self._gap = self._gap, None
        if gap is not None:
            self._entries.insert(0, encode_entry(gap))
        write = _Write(self._tickets.take(), b"".join(self._entries), self._decisions, self._batches, gap)
        self._entries, self._decisions, self._batches = [], 0, []
        self._writes[write.ticket] = write
        self._unwritten += len(write.data)
        self._out.put(self._effect(write))

    def answered(self, now: int, event: JournalEvent) -> None:
        """A write ended."""
        write = self._writes.get(event.ticket)
        if write is None:
            return
        if isinstance(event, JournalFailed):
            self._on_failed(now, write, event.reason)
            return
        write.done = True
        self.written += write.decisions
        if self.trouble and not any(one.ticket < 0 for one in self._writes.values()):
            text = f"partition {self._partition_id}: the decision journal is written again"
            self._out.put(Report(Level.INFO, text))
            self.trouble = ""
        if not write.batches:
            self._forget(write)  # `ready` looks for batches, and only while a session is open

    def ready(self) -> list[Batch]:
        """Batches whose decisions are on disk, and those of all before them."""
        batches: list[Batch] = []
        for write in list(self._writes.values()):
            if not write.done:
                break
            batches += write.batches
            self._forget(write)
        return batches

    # ---- inside ----------------------------------------------------------------------------------

    def _on_failed(self, now: int, write: _Write, reason: str) -> None:
        if reason != self.trouble:
            what = "no append is accepted until it can be" if self._sync else "decisions are dropped"
            text = f"partition {self._partition_id}: the decision journal cannot be written: {reason}; {what}"
            self._out.put(Report(Level.ERROR, text))
        self.trouble = reason
        if self._sync:
            self._rename(write, -write.ticket)
            if self._retry_at is None:
                self._retry_at = now + _RETRY_MS
            return
        lost = write.decisions
        if write.gap is not None:  # reported with the next
            self._gap, before = write.gap, self._gap
            lost += before.count if before is not None else 0
            self.dropped -= before.count if before is not None else 0
        self._drop(self._us(now), lost, reason)
        self._forget(write)

    def _rename(self, write: _Write, ticket: int) -> None:
        """Give a write another number, at its place."""
        writes = list(self._writes.values())
        write.ticket = ticket
        self._writes = {one.ticket: one for one in writes}

    def _forget(self, write: _Write) -> None:
        del self._writes[write.ticket]
        self._unwritten -= len(write.data)

    def _drop(self, now_us: int, count: int, reason: str) -> None:
        self.dropped += count
        before = self._gap
        first = before.first_us if before is not None else now_us
        self._gap = Gap((before.count if before is not None else 0) + count, first, now_us, reason)

    def _effect(self, write: _Write) -> JournalWrite:
        return JournalWrite(write.ticket, self._partition_id, self._common.key, write.data, self._sync)

    def _us(self, now: int) -> int:
        return (now + self._common.wall_offset) * 1000

    def _note(self, entry: Entry) -> None:
        self._entries.append(encode_entry(entry))

    def _decide(
        self,
        request: Append,
        session_id: int,
        transaction_id: int,
        mark: int,
        verdict: int,
        why: Explanation,
        received: int,
        decided: int,
    ) -> None:
        if verdict != APPENDED and self.refusal:
            self._drop(decided, 1, self.trouble)
            return
        self._decisions += 1
        self._entries.append(
            encode_entry(
                Decision(
                    session_id,
                    transaction_id,
                    request.req_id,
                    request.header,
                    request.client_mark,
                    mark,
                    verdict,
                    why.conflict,
                    why.blocking_id,
                    why.kind,
                    why.index,
                    received,
                    decided,
                    len(request.data),
                    request.write_locks or (),
                    request.read_locks or (),
                    request.append_locks or (),
                    request.names if type(request) is NamedAppendRequest else b"",
                )
            )
        )
