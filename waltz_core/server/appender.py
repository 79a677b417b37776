"""Checks locks, assigns ids, keeps several batches in flight, commits by quorum.

```
 AppendQueue ──take──► locks checked ──┬─► refused, or dropped                              a verdict
      ▲                                └─► Flight: ids given ──quorum has voted──► commit   a verdict
      │                                      │ the session ends
      └───────── head of the queue ◄─────────┘ `resolved`: up to the mark committed, above it queued again
```

It owns the queue, the flights, the votes of the replicas and the locks that flights have taken; the lock table holds
committed takings only. Ids are dense from the commit mark on, so `next_id` alone decides the id of an append. Flights
commit in order, each as a whole.

| state | appends | barriers |
|---|---|---|
| CLOSED, no store session | wait in the queue; flights wait for `resolved` or `restart` | wait |
| OPEN | checked, launched in batches, committed by votes | pass when all before them has a verdict |

Nothing here is durable; a commit is, because a quorum of replicas has synced it. So when a session ends, only the
recovery of the next one knows what became of the flights. If nobody else can have written meanwhile, `resolved` settles
them. Otherwise `restart` assumes nothing, and clients learn the outcome from the feed.

Locks of flights count as taken before they commit. Otherwise two appends in flight could both pass the check and both
commit, although they conflict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TypeAlias

from waltz_core.base.ids import req_generation
from waltz_core.base.lock import LockKind
from waltz_core.base.log import RECORD_OVERHEAD
from waltz_core.base.record import record
from waltz_core.locks.exact import UNEXPLAINED, ExactLocks, Explanation, Suspect
from waltz_core.locks.table import LockTable
from waltz_core.server.append_queue import Append, AppendQueue, Barrier, Run, Sender, Take, cost_of, locks_of
from waltz_core.store.replica_link import Batch
from waltz_core.wire.client_messages import NamedAppendRequest, Refusal
from waltz_core.wire.records import NO_RECORDS, RecordRun
from waltz_core.wire.storage_codec import encode_records


@record
class Refused:
    """A lock check failed; `mark` is the estimate of the lock that failed."""

    conn: int
    request: Append
    mark: int
    why: Explanation = UNEXPLAINED  # of a NamedAppendRequest, or if all are explained
    received: int = 0  # when it came


@record
class Dropped:
    """Appends that will never be decided, and so never be in the log."""

    conn: int
    requests: Sequence[Append]
    refusal: Refusal
    text: str = ""  # for people


@record
class Committed:
    """Transactions `first`, `first + 1`, … are on a quorum of replicas."""

    first: int
    appends: Sequence[Append]
    records: RecordRun  # the same, as replicas have them

    @property
    def last(self) -> int:
        """Id of the last one."""
        return self.first + len(self.appends) - 1


@record
class Passed:
    """A barrier was passed."""

    token: int


Verdict: TypeAlias = Refused | Dropped | Committed | Passed

# Refusals in one step are paid for by what they cost, in microseconds, about.
_REFUSALS_COST = 2_000
_REFUSAL_COST = 5  # of each, besides its locks
_FLIGHT_BATCHES = 16  # full batches in flight: enough for the longest way, and few enough to keep in memory


class Flight:
    """A batch on its way."""

    __slots__ = ("appends", "first", "locked", "marks", "records", "size", "takes")

    def __init__(self, first: int) -> None:
        self.first = first
        self.appends: list[Append] = []
        self.takes: list[Take] = []  # whose they are, in order
        self.marks: dict[int, int] = {}  # id → estimate of its locks, where everything is explained
        self.locked = False  # some append of it has locks
        self.size = 0
        self.records = NO_RECORDS  # once it is launched

    @property
    def last(self) -> int:
        return self.first + len(self.appends) - 1

    def received(self) -> Iterator[int]:
        """When each of its appends came."""
        for take in self.takes:
            yield from repeat(take.run.received, take.count)

    def put(self, run: Run, count: int, size: int) -> Take:
        """The last `count` of its appends are of a run; they have `size` bytes."""
        take = Take(run, count, cost_of(count, size))
        self.takes.append(take)
        return take

    def cut(self, kept: int) -> Flight:
        """Keep the first appends; returns the rest."""
        rest = Flight(self.first + kept)
        rest.appends, self.appends = self.appends[kept:], self.appends[:kept]
        rest.records, self.records = self.records[kept:], self.records[:kept]
        rest.locked = self.locked
        rest.size = sum(len(request.data) + RECORD_OVERHEAD for request in rest.appends)
        self.size -= rest.size
        takes, self.takes = self.takes, []
        for take in takes:
            count = min(take.count, kept)
            kept -= count
            cost = take.cost * count // take.count
            if count:
                self.takes.append(Take(take.run, count, cost))
            if count < take.count:
                rest.takes.append(Take(take.run, take.count - count, take.cost - cost))
        return rest


class Appender:
    """The queue of a partition and the window of appends in flight.

    States: CLOSED (no store session; appends wait) ⇄ OPEN. Every append gets exactly one verdict:
    refused, committed, or, when its session ended before it was committed, it goes back to the head of
    the queue and is decided again, with its locks, by the next session (`resolved`). Appends of one
    client to one partition never overtake each other; clients take turns (`AppendQueue`).

    An append that depends on a lock which one in flight takes is refused with the id of that one: its client
    cannot have seen it. If the other never commits, the refusal was needless and the client simply retries;
    Java lets the whole queue wait instead.
    """

    __slots__ = (
        "_acked",
        "_batch_bytes_max",
        "_batch_count_max",
        "_by_runs",
        "_exact",
        "_explain_all",
        "_flight_bytes",
        "_flight_bytes_max",
        "_flying",
        "_locks",
        "_open",
        "_quorum",
        "_refusals",
        "_taken",
        "commit_mark",
        "next_id",
        "queue",
    )

    def __init__(
        self,
        locks: LockTable,
        commit_mark: int,
        *,
        batch_count_max: int,
        batch_bytes_max: int,
        flight_bytes_max: int,
        exact_locks: int = 0,
        explain_all: bool = False,
        queue: AppendQueue | None = None,
    ) -> None:
        """Every partition has one.

        Args:
            exact_locks: so many takings of locks are remembered to tell true conflicts from false ones.
            explain_all: for a journal: why plain appends are refused too, and the marks of all.
            queue: of what waits, where its turns are not the usual ones.
        """
        assert batch_count_max > 0
        assert batch_bytes_max > 0
        self._locks = locks
        self._explain_all = explain_all
        self._by_runs = not explain_all  # one by one where the estimate of every lock check is written down
        self._exact = ExactLocks(exact_locks, commit_mark)
        self._refusals = _REFUSALS_COST  # what those of this step may cost yet
        self._taken: dict[int, int] = {}  # lock hash → the last append in flight that takes it
        self._batch_count_max = batch_count_max
        self._batch_bytes_max = batch_bytes_max
        self._flight_bytes_max = flight_bytes_max
        self.queue = queue or AppendQueue()
        self._flying: deque[Flight | Barrier] = deque()
        self._flight_bytes = 0
        self._open = False
        self._quorum = 0
        self._acked: dict[str, int] = {}
        self.commit_mark = commit_mark
        self.next_id = commit_mark + 1

    @property
    def pending(self) -> int:
        """Appends and barriers without a verdict."""
        if not self._flying:
            return self.queue.queued
        return self.queue.queued + self.in_flight + sum([isinstance(item, Barrier) for item in self._flying])

    @property
    def busy(self) -> bool:
        """Whether any is."""
        return bool(self._flying or self.queue.queued)

    @property
    def newest(self) -> Flight:
        """What `launch` returned last."""
        return next(item for item in reversed(self._flying) if isinstance(item, Flight))

    @property
    def in_flight(self) -> int:
        """Transactions replicated and not yet committed."""
        return self.next_id - 1 - self.commit_mark

    def enqueue(self, sender: Sender, requests: list[Append], now: int = 0) -> None:
        """Queue appends of one connection, in order; the list is ours from here on."""
        if requests:
            self.queue.put(now, sender, requests)

    def barrier(self, token: int, sender: Sender) -> int:
        """Queue a barrier behind everything received so far that its client may know of; returns its token.

        Where one stands there already, that one serves both.
        """
        standing = self.queue.barrier(token, sender)
        if standing is not None:
            return standing
        last = self._flying[-1] if self._flying else None
        if isinstance(last, Barrier):
            return last.token
        self.queue.put_barrier(Barrier(token))
        return token

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

    def resolved(self, mark: int, out: list[Verdict], now: int = 0) -> None:
        """The next session resolved the log at `mark`, and nobody else wrote in between.

        What is in flight up to `mark` is committed; what is above was cut from every replica, or will be
        before that replica counts again, and is queued once more in its old order.
        """
        assert not self._open
        assert mark >= self.commit_mark, (mark, self.commit_mark)
        assert mark < self.next_id, (mark, self.next_id)
        self._commit(mark, out, now)
        self._return_flights()

    def restart(self, mark: int, generation: int, out: list[Verdict]) -> None:
        """Start at `mark` without a past: the first session, or somebody else wrote since our last one.

        Nothing is known about what was in flight: its clients learn its fate from the feed and from the
        barrier that a flush or a mount sets. What is queued stays if it was meant for this generation.
        """
        assert not self._open
        kept: list[Run | Barrier] = [item for item in self._flying if isinstance(item, Barrier)]
        self._flying.clear()
        self._flight_bytes = 0
        self.queue.nothing_flies()
        for item in self.queue.take_all():
            if isinstance(item, Run):
                appends: list[Append] = []
                others: list[Append] = []
                for append in item.appends:
                    (appends if req_generation(append.req_id) == generation else others).append(append)
                if appends:
                    kept.append(Run(item.sender, appends, item.received))
                if others:
                    out.append(Dropped(item.sender.conn, others, Refusal.GENERATION))
            else:
                kept.append(item)
        self.queue.set_head(kept)
        self._taken.clear()
        self._locks.reset(mark)
        self._exact.reset(mark)
        self.commit_mark = mark
        self.next_id = mark + 1

    def voted(self, replica: str, mark: int) -> None:
        """A replica made everything up to `mark` durable."""
        assert mark >= self._acked[replica]
        self._acked[replica] = mark

    def advance(self, out: list[Verdict], now: int = 0) -> None:
        """Commit what a quorum holds; call once per step, after the votes."""
        if not self._open:
            return
        marks = sorted(self._acked.values(), reverse=True)
        mark = marks[self._quorum - 1]
        if mark > self.commit_mark:
            self._commit(mark, out, now)
        self._pass_barriers(out)

    def begin(self, now: int) -> None:
        """A step begins, which may refuse so much and no more: other partitions wait for its end."""
        self._refusals = _REFUSALS_COST
        self._exact.allowance.refill(now)

    @property
    def unfinished(self) -> bool:
        """Whether the step has refused what it may, and more waits."""
        return self._refusals <= 0 and bool(self.queue)

    def launch(self, out: list[Verdict], now: int = 0) -> Batch | None:
        """Take the next batch from the queue; None when nothing can be launched now.

        A barrier within a batch is passed behind it, so that every batch commits as a whole, and that many
        barriers do not make many small ones.
        """
        if not self._open or not self.queue.queued or self._full:
            return None
        flight = Flight(self.next_id)
        behind: list[Barrier] = []
        while self._has_room(flight) and self._refusals > 0:
            item = self.queue.take(now)
            if item is None:
                break
            if isinstance(item, Barrier):
                (behind if flight.appends else self._flying).append(item)
                continue
            before = item.at
            if not self._take(item, flight, out):
                self.queue.put_back(item)
                if item.at == before:
                    break
        self._pass_barriers(out)
        if not flight.appends:
            return None
        self._flying.append(flight)
        self._flying += behind
        count = len(flight.appends)
        self.next_id = flight.first + count
        self._flight_bytes += flight.size
        encoded = encode_records(flight.first, flight.appends)
        flight.records = RecordRun.uncut(encoded, count)
        return Batch(flight.first, count, encoded)

    def _has_room(self, flight: Flight) -> bool:
        return len(flight.appends) < self._batch_count_max and flight.size < self._batch_bytes_max

    @property
    def _full(self) -> bool:
        """Whether enough is in flight; small appends take more memory than their bytes."""
        if self._flight_bytes >= self._flight_bytes_max:
            return True
        return self.in_flight >= _FLIGHT_BATCHES * self._batch_count_max

    def launch_barriers(self, out: list[Verdict]) -> None:
        """While no append may be launched: let barriers pass that wait for none."""
        if self._open:
            self._flying += self.queue.free_barriers()
        self._pass_barriers(out)

    def _take(self, run: Run, flight: Flight, out: list[Verdict]) -> bool:
        """Move appends from a run into a batch; False when the run is not used up."""
        appends, at = flight.appends, run.at
        taken, size_max, end = flight.size, self._batch_bytes_max, len(run.appends)
        end = min(end, at + self._batch_count_max - len(appends))
        before = len(appends)
        while at < end:
            if self._by_runs:
                at, used = self._take_run(run, at, end, flight, size_max - taken)
                taken += used
                if at == end or taken >= size_max:
                    end = at
                    break
            request = run.appends[at]
            at += 1
            refusal = self._check(run, request, flight)
            if refusal is not None:
                out.append(refusal)
                self._refusals -= _REFUSAL_COST + locks_of((request,))
                if self._refusals <= 0:
                    end = at
                continue
            appends.append(request)
            taken += len(request.data) + RECORD_OVERHEAD
            if taken >= size_max:
                end = at
                break
        self._taken_into(flight, run, len(appends) - before, taken - flight.size)
        self.queue.used(run, end)
        return end == len(run.appends)

    def _check(self, run: Run, request: Append, flight: Flight) -> Refused | Dropped | None:
        """Take the locks of an append that goes into a batch; or why it does not."""
        if request.client_mark > self.commit_mark:
            return Dropped(run.sender.conn, (request,), Refusal.OTHER, self._ahead(request.client_mark))
        if request.write_locks or request.read_locks or request.append_locks:
            transaction_id = flight.first + len(flight.appends)
            mark = self._lock(request, transaction_id)
            flight.locked = True
            if mark > request.client_mark:
                explained = self._explain_all or type(request) is NamedAppendRequest
                why = UNEXPLAINED
                if explained:
                    suspects = _suspects(self._locks, self._taken, request)
                    why = self._exact.explain(suspects, self._taken, request.client_mark)
                return Refused(run.sender.conn, request, mark, why, run.received)
            if self._explain_all:
                flight.marks[transaction_id] = mark
        elif request.client_mark < -1:
            # Java: no locks count as -1
            return Refused(run.sender.conn, request, -1, UNEXPLAINED, run.received)
        return None

    def _taken_into(self, flight: Flight, run: Run, count: int, size: int) -> None:
        """The last appends of a batch are of a run."""
        if count:
            take = flight.put(run, count, size)
            flight.size += size
            self.queue.launched(run.sender, take.cost)

    def _take_run(self, run: Run, at: int, end: int, flight: Flight, room: int) -> tuple[int, int]:
        """Move appends that need no closer look from a run into a batch; where they end, and their bytes."""
        next_id = flight.first + len(flight.appends)
        stop, used, locked = self._locks.take_run(self._taken, run.appends, at, end, self.commit_mark, room, next_id)
        flight.appends += run.appends[at:stop]
        flight.locked |= locked
        return stop, used

    def _ahead(self, client_mark: int) -> str:
        """A client sees only what is committed, so this one's database is of another log: no lock check could fail."""
        return f"decided at mark {client_mark}, but the log ends at {self.commit_mark}: whose database is that?"

    def _lock(self, request: Append, transaction_id: int) -> int:
        """The last transaction that took one of its locks; they are taken unless that is above its client mark."""
        write, read, append = request.write_locks, request.read_locks, request.append_locks
        assert write is not None
        assert read is not None
        assert append is not None
        mark, taken = self._locks.estimate(write, read), self._taken
        if taken:
            for lock_hash in (*write, *read) if read else write:
                holder = taken.get(lock_hash, -1)
                if holder > mark:
                    mark = holder
        if mark <= request.client_mark:
            for lock_hash in (*write, *append) if append else write:
                taken[lock_hash] = transaction_id
        return mark

    def drop_queue(self, out: list[Verdict]) -> None:
        """The partition goes away: nothing queued will ever be written by us."""
        runs = [item for item in self.queue.take_all() if isinstance(item, Run)]
        out.extend(Dropped(run.sender.conn, run.appends, Refusal.NOT_SERVED) for run in runs)

    def _commit(self, mark: int, out: list[Verdict], now: int) -> None:
        flying = self._flying
        while flying and self.commit_mark < mark:
            head = flying.popleft()
            if isinstance(head, Barrier):
                out.append(Passed(head.token))
                continue
            if head.last > mark:
                flying.appendleft(head.cut(mark + 1 - head.first))
            if head.locked:
                self._release(head)
            self._flight_bytes -= head.size
            self.queue.landed([(take.run.sender.client_id, take.cost) for take in head.takes], now)
            self.commit_mark = head.last
            out.append(Committed(head.first, head.appends, head.records))
        assert self.commit_mark == mark

    def _release(self, flight: Flight, *, committed: bool = True) -> None:
        """Let go of the locks of a batch."""
        taken = self._taken
        if committed:
            hashes: list[int] = []
            ids: list[int] = []
            self._locks.commit_run(taken, flight.appends, flight.first, hashes, ids)
            self._exact.took(hashes, ids)
            return
        for at, request in enumerate(flight.appends, start=flight.first):
            for lock_hash in (*(request.write_locks or ()), *(request.append_locks or ())):
                if taken.get(lock_hash) == at:
                    del taken[lock_hash]

    def _pass_barriers(self, out: list[Verdict]) -> None:
        flying = self._flying
        while flying:
            head = flying[0]
            if not isinstance(head, Barrier):
                return
            flying.popleft()
            out.append(Passed(head.token))

    def _return_flights(self) -> None:
        """Put what is in flight back to the head of the queue, in order."""
        returned: list[Run | Barrier] = []
        for item in self._flying:
            if isinstance(item, Barrier):
                returned.append(item)
                continue
            self._release(item, committed=False)
            at = 0
            for take in item.takes:
                returned.append(Run(take.run.sender, item.appends[at : at + take.count], take.run.received))
                at += take.count
        self._flying.clear()
        self._flight_bytes = 0
        self.queue.nothing_flies()
        self.queue.set_head(returned)
        self.next_id = self.commit_mark + 1


def _suspects(table: LockTable, taken: Mapping[int, int], request: Append) -> list[Suspect]:
    """Locks of an append that were taken behind its client mark, perhaps; `taken`: by those in flight."""
    suspects: list[Suspect] = []
    for kind, locks in ((LockKind.WRITE, request.write_locks), (LockKind.READ, request.read_locks)):
        for index, lock_hash in enumerate(locks or ()):
            bound = max(table.estimate((lock_hash,), ()), taken.get(lock_hash, -1))
            if bound > request.client_mark:
                suspects.append((bound, kind, index, lock_hash))
    return suspects
