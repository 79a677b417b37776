"""Checks locks, assigns ids, keeps several batches in flight, commits by quorum."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from waltz_core.base.ids import req_generation
from waltz_core.base.record import record
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.locks.exact import UNEXPLAINED, ExactLocks, Explanation
from waltz_core.locks.table import LockTable
from waltz_core.server.turns import Shares
from waltz_core.store.replica_link import Batch
from waltz_core.wire.client_messages import AppendRequest, Conflict, LockKind, NamedAppendRequest, Refusal
from waltz_core.wire.storage_codec import encode_run

RECORD_OVERHEAD = 40  # bytes of a record besides its data, on the wire and on disk

_NO_LIMIT = (1 << 63) - 1  # no mark is above it

Append: TypeAlias = AppendRequest | NamedAppendRequest
"""Both have the same attributes; the second is told why it was refused."""


@record
class Barrier:
    """Passed when every append queued before it has its verdict."""

    token: int


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

    @property
    def last(self) -> int:
        """Id of the last one."""
        return self.first + len(self.appends) - 1


@record
class Passed:
    """A barrier was passed."""

    token: int


Verdict: TypeAlias = Refused | Dropped | Committed | Passed


class _Run:
    """Appends of one connection that came together; those before `at` are decided."""

    __slots__ = ("appends", "at", "conn", "owner", "received")

    def __init__(self, conn: int, owner: str, appends: list[Append], received: int) -> None:
        self.conn = conn
        self.owner = owner  # of the connection
        self.received = received
        self.appends = appends
        self.at = 0


class Flight:
    """A batch on its way: `conns` says from which connection each of its appends came, and `received` when."""

    __slots__ = ("appends", "conns", "first", "locked", "marks", "received", "size")

    def __init__(self, first: int) -> None:
        self.first = first
        self.appends: list[Append] = []
        self.conns: list[int] = []
        self.received: list[int] = []
        self.marks: dict[int, int] = {}  # id → estimate of its locks, where everything is explained
        self.locked = False  # some append of it has locks
        self.size = 0

    @property
    def last(self) -> int:
        return self.first + len(self.appends) - 1


class Appender:
    """The queue of a partition and the window of appends in flight.

    States: CLOSED (no store session; appends wait) ⇄ OPEN. Every append gets exactly one verdict:
    refused, committed, or, when its session ended before it was committed, it goes back to the head of
    the queue and is decided again, with its locks, by the next session (`resolved`). Appends of one
    client to one partition never overtake each other: the queue is strictly first in, first out.

    An append that depends on a lock which one in flight takes is refused with the id of that one: its client
    cannot have seen it. Should the other never commit, the refusal was needless, which clients can live with;
    Java lets the whole queue wait instead.
    """

    __slots__ = (
        "_acked",
        "_batch_bytes_max",
        "_batch_count_max",
        "_exact",
        "_explain_all",
        "_flight_bytes",
        "_flight_bytes_max",
        "_flying",
        "_locks",
        "_open",
        "_queue",
        "_queued",
        "_queued_bytes",
        "_quorum",
        "_refuse_ahead",
        "_refuse_early",
        "_taken",
        "bytes_held",
        "commit_mark",
        "held",
        "next_id",
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
        rules: SafetyRules = SAFE,
    ) -> None:
        """Every partition has one.

        Args:
            exact_locks: so many takings of locks are remembered to tell true conflicts from false ones.
            explain_all: for a journal: why plain appends are refused too, and the marks of all.
        """
        assert batch_count_max > 0
        assert batch_bytes_max > 0
        self._locks = locks
        self._refuse_early = rules.conflicts_in_flight_refused
        self._refuse_ahead = rules.marks_ahead_refused
        self._explain_all = explain_all
        self._exact = ExactLocks(exact_locks, commit_mark)
        self._taken: dict[int, int] = {}  # lock hash → the last append in flight that takes it
        self._batch_count_max = batch_count_max
        self._batch_bytes_max = batch_bytes_max
        self._flight_bytes_max = flight_bytes_max
        self._queue: deque[_Run | Barrier] = deque()
        self._queued = 0  # appends and barriers in it
        self._queued_bytes = 0
        self.held = Shares()  # appends in it
        self.bytes_held = Shares()  # their payloads
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
        return self._queued + self.in_flight + sum(isinstance(item, Barrier) for item in self._flying)

    @property
    def queued(self) -> int:
        """Appends and barriers that wait for the lock check."""
        return self._queued

    @property
    def queued_bytes(self) -> int:
        """Payload bytes that wait for the lock check."""
        return self._queued_bytes

    @property
    def newest(self) -> Flight:
        """What `launch` returned last."""
        return next(item for item in reversed(self._flying) if isinstance(item, Flight))

    @property
    def in_flight(self) -> int:
        """Transactions replicated and not yet committed."""
        return self.next_id - 1 - self.commit_mark

    def enqueue(self, conn: int, requests: list[Append], now: int = 0, owner: str = "") -> None:
        """Queue appends of one connection, in order; the list is ours from here on."""
        if requests:
            run = _Run(conn, owner, requests, now)
            self._queue.append(run)
            self._queued += len(requests)
            self._queued_bytes += self._hold(run)

    def _hold(self, run: _Run) -> int:
        """Count what is queued by who sent it; the bytes of its payloads."""
        size = sum([len(request.data) for request in run.appends])
        self.held.add(run.conn, run.owner, len(run.appends))
        self.bytes_held.add(run.conn, run.owner, size)
        return size

    def barrier(self, token: int) -> int:
        """Queue a barrier behind everything received so far; returns its token.

        Where one stands there already, that one serves both.
        """
        last = self._queue[-1] if self._queue else self._flying[-1] if self._flying else None
        if isinstance(last, Barrier):
            return last.token
        self._queue.append(Barrier(token))
        self._queued += 1
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

    def resolved(self, mark: int, out: list[Verdict]) -> None:
        """The next session resolved the log at `mark`, and nobody else wrote in between.

        What is in flight up to `mark` is committed; what is above was cut from every replica, or will be
        before that replica counts again, and is queued once more in its old order.
        """
        assert not self._open
        assert mark >= self.commit_mark, (mark, self.commit_mark)
        assert mark < self.next_id, (mark, self.next_id)
        self._commit(mark, out)
        self._return_flights()

    def restart(self, mark: int, generation: int, out: list[Verdict]) -> None:
        """Start at `mark` without a past: the first session, or somebody else wrote since our last one.

        Nothing is known about what was in flight: its clients learn its fate from the feed and from the
        barrier that a flush or a mount sets. What is queued stays if it was meant for this generation.
        """
        assert not self._open
        kept: list[_Run | Barrier] = [item for item in self._flying if isinstance(item, Barrier)]
        self._flying.clear()
        self._flight_bytes = 0
        for item in self._queue:
            if isinstance(item, _Run):
                appends: list[Append] = []
                others: list[Append] = []
                for append in item.appends[item.at :]:
                    (appends if req_generation(append.req_id) == generation else others).append(append)
                if appends:
                    kept.append(_Run(item.conn, item.owner, appends, item.received))
                if others:
                    out.append(Dropped(item.conn, others, Refusal.GENERATION))
            else:
                kept.append(item)
        self._requeue(kept)
        self._taken.clear()
        self._locks.reset(mark)
        self._exact.reset(mark)
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
        """Take the next batch from the queue; None when nothing can be launched now.

        A barrier within a batch is passed behind it, so that every batch commits as a whole, and that many
        barriers do not make many small ones.
        """
        if not self._open or not self._queue or self._flight_bytes >= self._flight_bytes_max:
            return None
        queue = self._queue
        flight = Flight(self.next_id)
        behind: list[Barrier] = []
        while queue and len(flight.appends) < self._batch_count_max and flight.size < self._batch_bytes_max:
            head = queue[0]
            if isinstance(head, Barrier):
                queue.popleft()
                self._queued -= 1
                (behind if flight.appends else self._flying).append(head)
                continue
            before = head.at
            if self._take(head, flight, out):
                queue.popleft()
            elif head.at == before:
                break  # Java: a lock is held; otherwise there is room left by appends that were refused
        self._pass_barriers(out)
        if not flight.appends:
            return None
        self._flying.append(flight)
        self._flying += behind
        self.next_id = flight.last + 1
        self._flight_bytes += flight.size
        return Batch(flight.first, len(flight.appends), encode_run(flight.first, flight.appends))

    def launch_barriers(self, out: list[Verdict]) -> None:
        """While no append may be launched: let barriers pass that wait for none."""
        queue = self._queue
        while self._open and queue and isinstance(head := queue[0], Barrier):
            queue.popleft()
            self._queued -= 1
            self._flying.append(head)
        self._pass_barriers(out)

    def _take(self, run: _Run, flight: Flight, out: list[Verdict]) -> bool:
        """Move appends from a run into a batch; False when the run is not used up."""
        appends, at = flight.appends, run.at
        taken, size_max, end = flight.size, self._batch_bytes_max, len(run.appends)
        end = min(end, at + self._batch_count_max - len(appends))
        first, before = at, len(appends)
        known = self.commit_mark if self._refuse_ahead else _NO_LIMIT
        for at in range(first, end):
            request = run.appends[at]
            if request.client_mark > known:
                out.append(Dropped(run.conn, (request,), Refusal.OTHER, self._ahead(request.client_mark)))
                continue
            if request.write_locks or request.read_locks or request.append_locks:
                mark = self._lock(request, flight.first + len(appends))
                if mark is None:
                    end = at  # Java: undecided until an earlier append commits
                    break
                flight.locked = True
                if mark > request.client_mark:
                    explained = self._explain_all or type(request) is NamedAppendRequest
                    why = self._explain(request) if explained else UNEXPLAINED
                    out.append(Refused(run.conn, request, mark, why, run.received))
                    continue
                if self._explain_all:
                    flight.marks[flight.first + len(appends)] = mark
            elif request.client_mark < -1:
                out.append(Refused(run.conn, request, -1, UNEXPLAINED, run.received))  # Java: no locks count as -1
                continue
            appends.append(request)
            taken += len(request.data) + RECORD_OVERHEAD
            if taken >= size_max:
                end = at + 1
                break
        flight.conns += [run.conn] * (len(appends) - before)
        flight.received += [run.received] * (len(appends) - before)
        flight.size = taken
        size = sum([len(request.data) for request in run.appends[first:end]])
        self._queued -= end - first
        self._queued_bytes -= size
        self.held.free(run.conn, end - first)
        self.bytes_held.free(run.conn, size)
        run.at = end
        return end == len(run.appends)

    def _ahead(self, client_mark: int) -> str:
        """A client sees only what is committed, so this one's database is of another log: no lock check could fail."""
        return f"decided at mark {client_mark}, but the log ends at {self.commit_mark}: whose database is that?"

    def _lock(self, request: Append, transaction_id: int) -> int | None:
        """The last transaction that took one of its locks; they are taken unless that is above its client mark.

        None: it must wait (Java).
        """
        write, read, append = request.write_locks, request.read_locks, request.append_locks
        assert write is not None
        assert read is not None
        assert append is not None
        if not self._refuse_early:
            return self._hold_slots(request.client_mark, write, read, append)
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

    def _explain(self, request: Append) -> Explanation:
        """Find the lock with the highest bound, and who really took it behind the client mark."""
        taken, best = self._taken, (-2, LockKind.NONE, -1, 0)
        for kind, locks in ((LockKind.WRITE, request.write_locks), (LockKind.READ, request.read_locks)):
            for index, lock_hash in enumerate(locks or ()):
                bound = max(self._locks.estimate((lock_hash,), ()), taken.get(lock_hash, -1))
                if bound > best[0]:
                    best = bound, kind, index, lock_hash
        bound, kind, index, lock_hash = best
        above = request.client_mark
        blocking_id = taken.get(lock_hash, -1)
        if blocking_id <= above:
            blocking_id = self._exact.newest(lock_hash, above, bound)
        if blocking_id > above:
            conflict = Conflict.TRUE
        else:
            conflict = Conflict.FALSE if above >= self._exact.floor else Conflict.UNKNOWN
            blocking_id = -1
        return Explanation(kind, index, lock_hash, conflict, blocking_id)

    def _hold_slots(
        self, client_mark: int, write: tuple[int, ...], read: tuple[int, ...], append: tuple[int, ...]
    ) -> int | None:
        """Java: what shares a slot with an append in flight waits."""
        if not self._locks.begin(write, read, append):
            return None
        mark = self._locks.estimate(write, read)
        if mark > client_mark:
            self._locks.end(write, append)
        return mark

    def drop_queue(self, out: list[Verdict]) -> None:
        """The partition goes away: nothing queued will ever be written by us."""
        runs = [item for item in self._queue if isinstance(item, _Run)]
        out.extend(Dropped(run.conn, run.appends[run.at :], Refusal.NOT_SERVED) for run in runs)
        self._requeue([])

    def _commit(self, mark: int, out: list[Verdict]) -> None:
        flying = self._flying
        while flying and self.commit_mark < mark:
            head = flying.popleft()
            if isinstance(head, Barrier):
                out.append(Passed(head.token))
                continue
            if head.last > mark:
                flying.appendleft(self._split(head, mark))
            if head.locked:
                self._release(head)
            self._flight_bytes -= head.size
            self.commit_mark = head.last
            out.append(Committed(head.first, head.appends))
        assert self.commit_mark == mark

    def _split(self, flight: Flight, mark: int) -> Flight:
        """Cut a batch behind `mark`; returns what is above."""
        rest = Flight(mark + 1)
        kept = mark + 1 - flight.first
        rest.appends, flight.appends = flight.appends[kept:], flight.appends[:kept]
        rest.conns, flight.conns = flight.conns[kept:], flight.conns[:kept]
        rest.received, flight.received = flight.received[kept:], flight.received[:kept]
        rest.locked = flight.locked
        rest.size = sum(len(request.data) + RECORD_OVERHEAD for request in rest.appends)
        flight.size -= rest.size
        return rest

    def _release(self, flight: Flight, *, committed: bool = True) -> None:
        """Let go of the locks of a batch."""
        if not self._refuse_early:
            self._release_slots(flight, committed)
            return
        commit, taken = self._locks.commit, self._taken
        hashes: list[int] = []
        ids: list[int] = []
        for at, request in enumerate(flight.appends, start=flight.first):
            write, append = request.write_locks or (), request.append_locks or ()
            if not write and not append:
                continue
            if committed:
                commit(write, append, at)
            for lock_hash in (*write, *append) if append else write:
                hashes.append(lock_hash)
                ids.append(at)
                if taken.get(lock_hash) == at:
                    del taken[lock_hash]
        if committed:
            self._exact.took(hashes, ids)

    def _release_slots(self, flight: Flight, committed: bool) -> None:
        """Java: slots are held until the end of each append."""
        for at, request in enumerate(flight.appends, start=flight.first):
            write, read, append = request.write_locks or (), request.read_locks or (), request.append_locks or ()
            if write or read or append:
                if committed:
                    self._locks.commit(write, append, at)
                self._locks.end(write, append)

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
        returned: list[_Run | Barrier] = []
        for item in self._flying:
            if isinstance(item, Barrier):
                returned.append(item)
                continue
            self._release(item, committed=False)
            for conn, request, received in zip(item.conns, item.appends, item.received, strict=True):
                last = returned[-1] if returned else None
                if isinstance(last, _Run) and last.conn == conn and last.received == received:
                    last.appends.append(request)
                else:
                    returned.append(_Run(conn, self.held.owner(conn), [request], received))
        self._flying.clear()
        self._flight_bytes = 0
        self._requeue([*returned, *self._queue])
        self.next_id = self.commit_mark + 1

    def _requeue(self, items: list[_Run | Barrier]) -> None:
        """Make `items` the queue."""
        self._queue = deque(items)
        runs = [item for item in items if isinstance(item, _Run)]
        for run in runs:
            run.appends, run.at = run.appends[run.at :], 0
        self._queued = sum(len(run.appends) for run in runs) + len(items) - len(runs)
        self.held, self.bytes_held = Shares(), Shares()
        self._queued_bytes = sum([self._hold(run) for run in runs])
