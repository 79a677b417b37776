"""Checks locks, assigns ids, keeps several batches in flight, commits by quorum."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from waltz_core.ids import req_generation
from waltz_core.locks import LockTable
from waltz_core.log import Record
from waltz_core.record import record
from waltz_core.store.replica_link import Batch
from waltz_core.wire.client_messages import AppendRequest
from waltz_core.wire.storage_codec import encode_records


@record
class Barrier:
    """Passed when every append queued before it has its verdict."""

    token: int


@record
class Refused:
    """A lock check failed; `mark` is the estimate of the lock that failed."""

    conn: int
    request: AppendRequest
    mark: int


@record
class Committed:
    """A run of transactions is on a quorum of replicas."""

    records: tuple[Record, ...]

    @property
    def first(self) -> int:
        return self.records[0].transaction_id

    @property
    def last(self) -> int:
        return self.records[-1].transaction_id


@record
class Passed:
    """A barrier was passed."""

    token: int


Verdict: TypeAlias = Refused | Committed | Passed
_Queued: TypeAlias = tuple[int, AppendRequest] | Barrier
_Flying: TypeAlias = tuple[int, AppendRequest, Record] | Barrier


class Appender:
    """The queue of a partition and the window of appends in flight.

    States: CLOSED (no store session; appends wait) ⇄ OPEN. Every append gets exactly one verdict:
    refused, committed, or, when its session ended before it was committed, it goes back to the head of
    the queue and is decided again, with its locks, by the next session (`resolved`). Appends of one
    client to one partition never overtake each other: the queue is strictly first in, first out.
    """

    __slots__ = (
        "_acked",
        "_batch_bytes_max",
        "_batch_count_max",
        "_flight_bytes",
        "_flight_bytes_max",
        "_flying",
        "_locks",
        "_open",
        "_queue",
        "_queued_bytes",
        "_quorum",
        "commit_mark",
        "next_id",
    )

    def __init__(
        self, locks: LockTable, commit_mark: int, *, batch_count_max: int, batch_bytes_max: int, flight_bytes_max: int
    ) -> None:
        assert batch_count_max > 0
        assert batch_bytes_max > 0
        self._locks = locks
        self._batch_count_max = batch_count_max
        self._batch_bytes_max = batch_bytes_max
        self._flight_bytes_max = flight_bytes_max
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._flying: deque[_Flying] = deque()
        self._flight_bytes = 0
        self._open = False
        self._quorum = 0
        self._acked: dict[str, int] = {}
        self.commit_mark = commit_mark
        self.next_id = commit_mark + 1

    @property
    def pending(self) -> int:
        """Appends and barriers without a verdict."""
        return len(self._queue) + len(self._flying)

    @property
    def queued(self) -> int:
        """Appends and barriers that wait for the lock check."""
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Payload bytes that wait for the lock check."""
        return self._queued_bytes

    @property
    def in_flight(self) -> int:
        """Transactions replicated and not yet committed."""
        return self.next_id - 1 - self.commit_mark

    def enqueue(self, conn: int, requests: Iterable[AppendRequest]) -> None:
        """Queue appends of one connection, in order."""
        for request in requests:
            self._queue.append((conn, request))
            self._queued_bytes += len(request.data)

    def barrier(self, token: int) -> None:
        """Queue a barrier behind everything received so far."""
        self._queue.append(Barrier(token))

    def opened(self, quorum: int, replicas: Iterable[str]) -> None:
        """A store session is open at the commit mark; `replicas` hold everything up to it."""
        assert not self._open
        assert not self._flying
        self._open = True
        self._quorum = quorum
        self._acked = dict.fromkeys(replicas, self.commit_mark)
        assert len(self._acked) >= quorum

    def joined(self, replica: str, acked: int) -> None:
        """A late replica holds everything up to `acked` and may vote from now on."""
        self._acked[replica] = acked

    def closed(self) -> None:
        """The store session ended: what is in flight waits for `resolved`."""
        self._open = False
        self._acked = {}

    def resolved(self, mark: int, out: list[Verdict]) -> None:
        """The next session resolved the log at `mark`, and nobody else wrote in between.

        What is in flight up to `mark` is committed; what is above was cut from every replica, or will be
        before that replica counts again, and is queued once more in its old order.
        """
        assert not self._open
        assert mark >= self.commit_mark, (mark, self.commit_mark)
        assert mark < self.next_id, (mark, self.next_id)
        self._commit(mark, out)
        self._requeue()

    def restart(self, mark: int, generation: int) -> None:
        """Start at `mark` without a past: the first session, or somebody else wrote since our last one.

        Nothing is known about what was in flight: its clients learn its fate from the feed and from the
        barrier that a flush or a mount sets. What is queued stays if it was meant for this generation.
        """
        assert not self._open
        dropped = [item for item in self._flying if isinstance(item, Barrier)]
        self._flying.clear()
        self._flight_bytes = 0
        kept = [
            item for item in self._queue if isinstance(item, Barrier) or req_generation(item[1].req_id) == generation
        ]
        self._queue = deque([*dropped, *kept])
        self._queued_bytes = sum(len(item[1].data) for item in self._queue if not isinstance(item, Barrier))
        self._locks.reset(mark)
        self.commit_mark = mark
        self.next_id = mark + 1

    def skip_to(self, mark: int) -> None:
        """Go on at `mark` with the lock table as it is (what 0.13.2 does, server-D3)."""
        assert not self._open
        assert not self._flying
        self.commit_mark = mark
        self.next_id = mark + 1

    def voted(self, replica: str, mark: int) -> None:
        """A replica made everything up to `mark` durable."""
        assert mark >= self._acked[replica]
        self._acked[replica] = mark

    def advance(self, out: list[Verdict]) -> None:
        """Commit what a quorum holds; call once per step, after the votes."""
        if not self._open:
            return
        marks = sorted(self._acked.values(), reverse=True)
        mark = marks[self._quorum - 1]
        if mark > self.commit_mark:
            self._commit(mark, out)
        self._pass_barriers(out)

    def launch(self, out: list[Verdict]) -> Batch | None:
        """Take the next batch from the queue; None when nothing can be launched now."""
        if not self._open or not self._queue or self._flight_bytes >= self._flight_bytes_max:
            return None
        records: list[Record] = []
        size = 0
        queue, flying, locks = self._queue, self._flying, self._locks
        next_id = self.next_id
        while queue and len(records) < self._batch_count_max and size < self._batch_bytes_max:
            head = queue[0]
            if isinstance(head, Barrier):
                queue.popleft()
                flying.append(head)
                continue
            conn, request = head
            write, read, append = request.write_locks or (), request.read_locks or (), request.append_locks or ()
            if write or read or append:
                if not locks.begin(write, read, append):
                    break  # undecided until an earlier append commits; overtaking it would break the order
                mark = locks.estimate(write, read)
            else:
                mark = -1  # Java: no locks count as -1, so a client mark below -1 is refused
            queue.popleft()
            self._queued_bytes -= len(request.data)
            if mark > request.client_mark:
                if write or read or append:
                    locks.end(write, append)
                out.append(Refused(conn, request, mark))
                continue
            item = Record(next_id, request.req_id, request.header, request.data, request.checksum)
            records.append(item)
            flying.append((conn, request, item))
            size += len(request.data) + 40
            next_id += 1
        self._pass_barriers(out)
        if not records:
            return None
        first = self.next_id
        self.next_id = next_id
        encoded = encode_records(records)
        self._flight_bytes += size
        return Batch(first, len(records), encoded)

    def drop_queue(self) -> None:
        """The partition goes away: nothing queued will ever be written by us."""
        self._queue.clear()
        self._queued_bytes = 0

    def _commit(self, mark: int, out: list[Verdict]) -> None:
        flying, locks = self._flying, self._locks
        records: list[Record] = []
        while flying and self.commit_mark < mark:
            head = flying.popleft()
            if isinstance(head, Barrier):
                # A barrier inside the run: what stands before it is committed first.
                if records:
                    out.append(Committed(tuple(records)))
                    records = []
                out.append(Passed(head.token))
                continue
            _, request, item = head
            write, append = request.write_locks, request.append_locks
            if write or append or request.read_locks:
                locks.commit(write or (), append or (), item.transaction_id)
                locks.end(write or (), append or ())
            self._flight_bytes -= len(item.data) + 40
            self.commit_mark = item.transaction_id
            records.append(item)
        if records:
            out.append(Committed(tuple(records)))
        assert self.commit_mark == mark

    def _pass_barriers(self, out: list[Verdict]) -> None:
        flying = self._flying
        while flying:
            head = flying[0]
            if not isinstance(head, Barrier):
                return
            flying.popleft()
            out.append(Passed(head.token))

    def _requeue(self) -> None:
        locks = self._locks
        while self._flying:
            item = self._flying.pop()
            if isinstance(item, Barrier):
                self._queue.appendleft(item)
                continue
            conn, request, _ = item
            if request.write_locks or request.append_locks or request.read_locks:
                locks.end(request.write_locks or (), request.append_locks or ())
            self._queue.appendleft((conn, request))
            self._queued_bytes += len(request.data)
        self._flight_bytes = 0
        self.next_id = self.commit_mark + 1
