"""The way of an append through one partition: queue, lock check, journal, replicas, quorum, verdict.

    enqueue ──▶ Appender.launch ──▶ journal (sync: on disk first) ──▶ session.replicate ──▶ votes ──▶ Appender.advance
                    │                                                                                    │
                    └── refused: LockFailure or AppendRefused            committed: caches, feeds, barriers ◀┘

An append counts when a quorum of replicas has it on disk (`Voted`); nobody sees it before. What is in
flight when its session ends stays here and is settled by the next one (`resolved`, `restart`). This file owns the
lock table, the journal, the queue and the counters. Nothing of it is durable but the journal: the log itself is on
the replicas, and the lock table starts anew, at the mark, with the first session.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import ClassVar

from waltz_core.base.contract import earliest
from waltz_core.base.edge import Level, Report
from waltz_core.base.ids import req_client
from waltz_core.base.tracing import Traced, traced
from waltz_core.locks.exact import UNEXPLAINED
from waltz_core.locks.hot import HotLocks
from waltz_core.locks.table import LockTable
from waltz_core.server.append_queue import Append, AppendQueue, sender_of
from waltz_core.server.appender import Appender, Committed, Dropped, Passed, Refused, Verdict
from waltz_core.server.config import PartitionConfig
from waltz_core.server.context import JournalAsked, NodeContext, Reply, TicketsFor
from waltz_core.server.feeds import Feeds
from waltz_core.server.journal import JournalEvent
from waltz_core.server.ownership import Ownership
from waltz_core.server.peer import Peer
from waltz_core.server.refusals import lock_refusal, refusal
from waltz_core.server.response_times import ResponseTimes
from waltz_core.store.replica_link import Batch
from waltz_core.store.session_notes import SessionOpened
from waltz_core.wire import client_messages as messages

_LOCK_PROBES = 3  # Java: Partition uses 3 hash functions
_STALL_MS = 5_000  # appends that wait so long without a commit or a refusal are trouble


class Commits:
    """Appends of one partition between their arrival and their verdict."""

    make_appender: ClassVar[type[Appender]] = Appender
    make_locks: ClassVar[type[LockTable]] = LockTable

    def __init__(
        self, partition_id: int, config: PartitionConfig, context: NodeContext, ownership: Ownership, feeds: Feeds
    ) -> None:
        self._partition_id = partition_id
        self._config = config
        self._out = context.out
        self._clients = context.clients
        self._tickets = context.tickets
        self._data_cache = context.data_cache
        self._cluster = context.cluster
        self._ownership = ownership
        self._feeds = feeds
        self.journal = context.journals.of(
            partition_id, TicketsFor(context.pending, JournalAsked(partition_id)), context.out
        )
        self._locks = self.make_locks(config.lock_table_size, _LOCK_PROBES, -1)
        self.appender = self.make_appender(
            self._locks,
            -1,
            batch_count_max=config.batch_count_max,
            batch_bytes_max=config.batch_bytes_max,
            flight_bytes_max=config.flight_bytes_max,
            queue=AppendQueue(config.append_turn, config.append_window, config.append_pace),
            exact_locks=config.exact_locks,
            explain_all=self.journal is not None,
        )
        self.counters = {"transaction": 0, "successful-append": 0, "rejected-append": 0}
        self.response_times = ResponseTimes()
        self.hot_locks = HotLocks()
        self._journals = context.journals
        self._traces: dict[int, tuple[int, int]] = {}  # traced transactions in flight → received, launched
        self.doubtful = False  # somebody else may own the partition by now: nothing is launched
        self.draining = False  # a new session is wanted: nothing is launched, and this one ends when nothing flies
        self._closed = False  # this one was, for that
        self._verdicts: list[Verdict] = []
        self._warned_of = -1  # connection whose appends were said to be ahead of the log
        self._waits_since: int | None = None  # when there was last an append that waits, and progress
        self._decided = 0  # appends by then

    # ---- for others to see -------------------------------------------------------------------

    @property
    def mark(self) -> int:
        """Highest committed id."""
        return self.appender.commit_mark

    @property
    def queued(self) -> int:
        """Appends and barriers that wait for the lock check."""
        return self.appender.queue.queued

    @property
    def pending(self) -> int:
        """Appends and barriers without a verdict."""
        return self.appender.pending

    @property
    def refusing(self) -> str:
        """Why appends are refused although the partition may be open, empty if they are not."""
        return self.journal.refusal if self.journal is not None else ""

    def trouble(self, now: int) -> str:
        """Why appends of an open partition cannot be committed now, or are not; empty if all is well."""
        if self.doubtful:
            return "another server may own it by now: ZooKeeper does not answer"
        if self.refusing:
            return self.refusing
        waited = now - self._waits_since if self._waits_since is not None else 0
        if waited < _STALL_MS:
            return ""
        waiting = self.appender.queue.queued + self.appender.in_flight
        return f"{waiting} appends wait, and none was decided for {waited / 1000:.0f} s"

    def greedy(self, client_id: int, count_max: int, bytes_max: int) -> bool:
        """Whether a client has more of these than its fair part."""
        queue = self.appender.queue
        return queue.held.greedy(client_id, count_max) or queue.bytes_held.greedy(client_id, bytes_max)

    def hinders(self, client_id: int) -> bool:
        """Whether others, who have few appends under way, would have to wait for those of a client."""
        return self.appender.queue.hinders(client_id)

    # ---- into the queue ----------------------------------------------------------------------

    def enqueue(self, now: int, peer: Peer, requests: list[Append]) -> None:
        """Appends of one connection that may be decided, in order; the list is ours from here on."""
        self.appender.enqueue(sender_of(peer), requests, now)

    def barrier(self, peer: Peer) -> int:
        """A barrier behind everything of a client that is queued; the feeds hear when it is passed."""
        return self.appender.barrier(self._tickets.take(), sender_of(peer))

    def refuse(self, now: int, conn: int, requests: Sequence[Append], why: messages.Refusal, text: str = "") -> None:
        """Tell those that want to know it why they are not in the log and never will be."""
        if self.journal is not None and why is not messages.Refusal.NOT_READY:
            self.journal.refused(now, self._ownership.session_id, requests, why)
        self._clients.put_all(
            Reply(conn, refusal(request.req_id, why, text or None))
            for request in requests
            if type(request) is messages.NamedAppendRequest
        )

    # ---- sessions ----------------------------------------------------------------------------

    def joined(self, replica: str, acked: int) -> None:
        """A late replica holds everything up to `acked` and votes from now on."""
        self.appender.joined(replica, acked)

    def advance(self, now: int) -> None:
        """Commit what a quorum holds, after the votes of a step."""
        self.appender.advance(self._verdicts, now)
        self._settle(now)

    def restart(self, now: int, mark: int) -> None:
        """Nothing in flight is known of: it is the first session."""
        self.appender.restart(mark, self._ownership.generation, self._verdicts)
        self._settle(now)
        self._feeds.restart(mark)

    def resolved(self, now: int, mark: int) -> None:
        """Nobody else wrote since our last session: what is in flight is settled by the log."""
        self.appender.resolved(mark, self._verdicts, now)
        self._settle(now)

    def gap(self, now: int, mark: int) -> None:
        """Somebody else owned the partition since our last session, and may have written up to `mark`."""
        self.appender.restart(mark, self._ownership.generation, self._verdicts)
        self._settle(now)
        self._data_cache.forget(self._partition_id)
        self._feeds.restart(mark, forget=True)

    def opened(self, now: int, note: SessionOpened) -> None:
        """The session takes appends."""
        if self.journal is not None:
            self.journal.session_opened(now, self._ownership.session_id, self._ownership.generation, note.mark)
        self.appender.opened(note.quorum, note.replicas)

    def session_ended(self, *, recovered: bool) -> bool:
        """What is in flight waits for the next one. Returns whether this one ended on purpose, to make room for it."""
        self.response_times.forget()
        self._traces.clear()
        if self.journal is not None:
            self.journal.session_ended()
        if recovered:
            self.appender.closed()
        planned, self._closed, self.draining = self._closed, False, False
        return planned

    def close(self, now: int) -> None:
        """The partition goes: nothing queued will ever be written by us."""
        self.appender.drop_queue(self._verdicts)
        self._settle(now)

    # ---- once per step -----------------------------------------------------------------------

    def launch(self, now: int) -> None:
        """While a session is open: let batches go, or end it when a new one is wanted."""
        session, appender, journal = self._ownership.session, self.appender, self.journal
        assert session is not None
        if appender.queue.queued:
            appender.begin(now)
        behind = appender.commit_mark - session.low_water_mark
        if behind >= self._config.checkpoint_interval:
            self.draining = True
        # The next session begins with ZooKeeper: while that is away, none would commit anything until it is back.
        draining = self.draining and not self._cluster.zookeeper_away
        if draining and appender.in_flight == 0:
            self._closed = True
            session.close(now, f"checkpoint after {behind} transactions")
            return
        if journal is not None and not self.doubtful:
            for batch in journal.ready():
                session.replicate(batch)
        may = not draining and not self.doubtful
        while may and appender.queue.queued and (journal is None or not journal.blocked):
            launched = appender.launch(self._verdicts, now)
            if launched is None:
                break
            self.response_times.launched(now, launched.last)
            if self._config.trace_every:
                self._trace(now, launched)
            if journal is None or journal.launched(now, session.session_id, launched, appender.newest):
                session.replicate(launched)
        if journal is not None and journal.refusal:
            appender.launch_barriers(self._verdicts)
        if self._verdicts:
            self._settle(now)

    def due(self, now: int) -> int | None:
        """When something may be launched, or written to the journal, though nothing comes before."""
        appender, launch = self.appender, None
        if self._ownership.open:
            launch = now if appender.unfinished else appender.queue.due(now)
        return launch if self.journal is None else earliest(launch, self.journal.deadline())

    def note_progress(self, now: int) -> None:
        """Remember since when appends have waited without a decision."""
        decided = self.appender.commit_mark + self.counters["rejected-append"]
        if not self.appender.queue.queued and not self.appender.in_flight:
            self._waits_since = None
        elif self._waits_since is None or decided != self._decided:
            self._waits_since = now
        self._decided = decided

    def journal_answered(self, now: int, event: JournalEvent) -> None:
        """A write to the journal ended."""
        if self.journal is not None:
            self.journal.answered(now, event)

    def _trace(self, now: int, batch: Batch) -> None:
        """Remember when a traced transaction came and left."""
        transaction_id = traced(self._config.trace_every, batch.first, batch.count)
        if transaction_id >= 0:
            received = next(islice(self.appender.newest.received(), transaction_id - batch.first, None))
            self._traces[transaction_id] = received, now

    def _traced(self, now: int, first: int, count: int) -> None:
        """Tell of the traced transaction among those that were just committed."""
        transaction_id = traced(self._config.trace_every, first, count)
        if transaction_id in self._traces:
            received, launched = self._traces.pop(transaction_id)
            steps = ("append", received, now), ("queue", received, launched), ("replicate", launched, now)
            session_id = self._ownership.session_id
            self._out.put(Traced(self._journals.key, self._partition_id, session_id, transaction_id, count, steps))

    # ---- verdicts ----------------------------------------------------------------------------

    def _settle(self, now: int) -> None:
        """Act on verdicts, in order."""
        verdicts, self._verdicts = self._verdicts, []
        for verdict in verdicts:
            if type(verdict) is Committed:
                self._on_committed(now, verdict)
            elif type(verdict) is Refused:
                self._on_refused(now, verdict)
            elif type(verdict) is Dropped:
                self._on_dropped(now, verdict)
            else:
                assert type(verdict) is Passed
                self._feeds.passed(verdict.token, self.appender.commit_mark)

    def _on_committed(self, now: int, verdict: Committed) -> None:
        count, session = len(verdict.appends), self._ownership.session
        first, last = verdict.first, verdict.last
        self.response_times.committed(now, last, count)
        if self._traces:
            self._traced(now, first, count)
        self.counters["successful-append"] += count
        if self.journal is not None:
            self.journal.committed(now, self._ownership.session_id, first, last)
        self._data_cache.add(self._partition_id, first, verdict.records)
        if session is not None:
            session.committed(last)
        self._feeds.grown(now, first, verdict.appends)

    def _on_refused(self, now: int, verdict: Refused) -> None:
        self.counters["rejected-append"] += 1
        if verdict.why is not UNEXPLAINED:
            self.hot_locks.refused(verdict.why.lock_hash)
        if self.journal is not None:
            self.journal.lock_refused(now, self._ownership.session_id, verdict)
        self._clients.put(Reply(verdict.conn, lock_refusal(verdict)))

    def _on_dropped(self, now: int, verdict: Dropped) -> None:
        self.refuse(now, verdict.conn, verdict.requests, verdict.refusal, verdict.text)
        if verdict.text and verdict.conn != self._warned_of:
            self._warned_of = verdict.conn
            client = req_client(verdict.requests[0].req_id)
            text = f"partition {self._partition_id}: refused appends of client {client}: {verdict.text}"
            self._out.put(Report(Level.WARNING, text))
