"""Exactly once, shown on schedules: the protocol of the sink against the lock table and the appender of the core.

Attempts are killed or live on as zombies, connections break, messages are lost or arrive late, the lock table is so
small that it refuses without a reason, servers restart and forget their locks, live clients append meanwhile.
"""

from __future__ import annotations

import os
import random
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import pytest

from waltz_core.base.ids import make_req_id, req_client
from waltz_core.base.lock import Lock
from waltz_core.base.log import MARKER_HEADER
from waltz_core.locks.table import LockTable
from waltz_core.server.append_queue import Append as Request
from waltz_core.server.append_queue import Sender
from waltz_core.server.appender import Appender, Committed, Refused, Verdict
from waltz_core.wire.client_messages import AppendRequest
from waltz_spark.write.epochs import (
    Append,
    AppendRun,
    Attempt,
    Different,
    Done,
    Effect,
    EpochWriter,
    Fenced,
    Locks,
    ResendingWriter,
    Row,
    Scan,
    Seen,
    decode_marker,
    encode_marker,
)

SCHEDULES = int(os.environ.get("WALTZ_SINK_SCHEDULES", "300"))
LIVE_CLIENT = 999


def hashes(locks: Locks) -> tuple[int, ...]:
    return tuple(Lock(name, number).wire() for name, number in locks)


class Server:
    """One partition: the real queue, the real lock table; verdicts wait to be carried."""

    def __init__(self, slots: int) -> None:
        self.log: list[Request] = []
        self.verdicts: dict[int, deque[tuple[int, bool, int]]] = {}  # by connection: token, committed?, id
        self.tokens: dict[tuple[int, Any], int] = {}
        self._slots = slots
        self._conns: dict[Any, int] = {}
        self.restart()

    @property
    def mark(self) -> int:
        return len(self.log) - 1

    def receive(self, conn: int, token: int, request: AppendRequest) -> None:
        self.tokens[conn, request.req_id] = token
        self._conns[request.req_id] = conn
        self.appender.enqueue(Sender(conn, req_client(request.req_id)), [request])

    def work(self) -> None:
        """Launch what is queued; it stays in flight."""
        out: list[Verdict] = []
        self.appender.launch(out)
        self._carry(out)

    def vote(self) -> None:
        out: list[Verdict] = []
        self.appender.voted("replica", self.appender.next_id - 1)
        self.appender.advance(out)
        self._carry(out)

    def settle(self) -> None:
        while self.appender.pending:
            self.work()
            self.vote()

    def restart(self) -> None:
        """Another process: what was not committed is gone, and no lock is remembered."""
        table = LockTable(self._slots, 3, self.mark)
        self.appender = Appender(table, self.mark, batch_count_max=3, batch_bytes_max=1 << 20, flight_bytes_max=1 << 20)
        self.appender.opened(1, ["replica"])

    def next_session(self) -> None:
        """The same process: what is in flight is queued and decided once more."""
        out: list[Verdict] = []
        self.appender.closed()
        self.appender.resolved(self.mark, out)
        self._carry(out)
        self.appender.opened(1, ["replica"])

    def _carry(self, out: list[Verdict]) -> None:
        for verdict in out:
            if isinstance(verdict, Committed):
                for request in verdict.appends:
                    self.log.append(request)
                    self._say(self._conns[request.req_id], request, True, self.mark)
            elif isinstance(verdict, Refused):
                self._say(verdict.conn, verdict.request, False, verdict.mark)

    def _say(self, conn: int, request: Request, committed: bool, number: int) -> None:
        token = self.tokens.pop((conn, request.req_id))
        if conn in self.verdicts:
            self.verdicts[conn].append((token, committed, number))


class Client:
    """An attempt with its connection. Dead, its messages may still arrive."""

    _ids = 0

    def __init__(self, world: World, writer: EpochWriter, rows: list[Row]) -> None:
        self.world = world
        self.writer = writer
        self.rows = deque(rows)
        self.out: list[Effect] = []
        self.scans: deque[Scan] = deque()
        self.unsent: deque[tuple[int, AppendRequest]] = deque()
        self.unjudged: dict[int, None] = {}
        self.of_runs: set[int] = set()  # tokens
        self.longest = 1  # verdicts that were given together
        self.result: Effect | None = None
        self.steps = 0
        world.clients += 1
        self.client_id = world.clients
        self._sequence = 0
        self.conn = -1
        self.connect()
        self.writer.start(self.out)
        self._act()

    def connect(self) -> None:
        self.world.conns += 1
        self.world.server.verdicts.pop(self.conn, None)
        self.conn = self.world.conns
        self.world.server.verdicts[self.conn] = deque()

    def _act(self) -> None:
        """Carry out what the writer wants."""
        self.steps += 1
        while self.out:
            effect = self.out.pop(0)
            if isinstance(effect, Append):
                self._append(effect)
            elif isinstance(effect, AppendRun):
                for token, row in enumerate(effect.rows, start=effect.first):
                    assert row.plain
                    self.of_runs.add(token)
                    self._append(Append(token, row.header, row.data, (), effect.read, (), effect.mark))
            elif isinstance(effect, Scan):
                self.scans.append(effect)
            else:
                self.result = effect
        if self.writer.wants_rows and self.result is None:
            count = self.world.rng.randrange(1, 4)
            offered = [self.rows.popleft() for _ in range(min(count, len(self.rows)))]
            self.writer.offer(offered, self.out, last=not self.rows)
            self._act()

    def _append(self, effect: Append) -> None:
        self._sequence += 1
        req_id = make_req_id(self.client_id, 0, 0, self._sequence)
        mark = -1 if effect.mark is None else effect.mark
        locks = hashes(effect.write), hashes(effect.read), hashes(effect.add)
        request = AppendRequest(req_id, mark, *locks, effect.header, effect.data, 0)
        self.unsent.append((effect.token, request))
        self.unjudged[effect.token] = None

    # ---- what may happen to it

    def send(self) -> bool:
        if not self.unsent:
            return False
        self.world.server.receive(self.conn, *self.unsent.popleft())
        return True

    def hear(self) -> bool:
        waiting = self.world.server.verdicts[self.conn]
        if not waiting:
            return False
        token, committed, number = waiting.popleft()
        del self.unjudged[token]
        count = 1
        if committed and token in self.of_runs and self.world.rng.random() < 0.7:
            while waiting and waiting[0] == (token + count, True, number + count) and token + count in self.of_runs:
                del self.unjudged[waiting.popleft()[0]]
                count += 1
            self.writer.committed_run(token, number, count, self.out)
        else:
            (self.writer.committed if committed else self.writer.refused)(token, number, self.out)
        self.longest = max(self.longest, count)
        self._act()
        return True

    def scan(self) -> bool:
        if not self.scans:
            return False
        found = self.scans.popleft()
        upto = self.world.server.mark if found.upto is None else found.upto
        for at in range(found.after + 1, upto + 1):
            request = self.world.server.log[at]
            client_id = req_client(request.req_id)
            if self.writer.wants(request.header, client_id):
                self.writer.saw([Seen(at, client_id, request.header, request.data)])
        self.writer.scanned(upto, self.out)
        self._act()
        return True

    def lose(self) -> bool:
        """The connection breaks: what was sent or is about to be may arrive late, no verdict comes any more."""
        self.world.late += [(self.conn, *message) for message in self.unsent]
        self.unsent.clear()
        self.connect()
        lost, self.unjudged = self.unjudged, {}
        for token in lost:
            self.writer.lost(token, self.out)
            self._act()
        return bool(lost)

    def die(self) -> None:
        self.world.late += [(self.conn, *message) for message in self.unsent]
        self.unsent.clear()
        self.world.server.verdicts.pop(self.conn)


class World:
    def __init__(self, seed: int, slots: int, kind: type[EpochWriter] = EpochWriter) -> None:
        self.rng = random.Random(seed)
        self.server = Server(slots)
        self.kind = kind
        self.clients = self.conns = self.attempts = 0
        self.late: list[tuple[int, int, AppendRequest]] = []
        self.alive: list[Client] = []
        self.base = -1
        self._live = 0

    def start(self, batch: int, rows: list[Row]) -> Client:
        self.attempts += 1
        attempt = Attempt("sink", batch, f"attempt {self.attempts}", 0)
        shuffled = self.rng.sample(rows, len(rows))
        client = Client(self, self.kind(attempt, self.base, window=5), shuffled)
        self.alive.append(client)
        return client

    def live_append(self, locks: Locks = ()) -> None:
        self._live += 1
        data = b"live"
        request = AppendRequest(
            make_req_id(LIVE_CLIENT, 0, 0, self._live), self.server.mark, hashes(locks), (), (), 0, data, 0
        )
        self.server.receive(0, 0, request)

    def disturb(self) -> None:
        """One random thing happens."""
        rng, server = self.rng, self.server
        choice = rng.random()
        if choice < 0.7 and self.alive:
            client = rng.choice(self.alive)
            rng.choice((client.send, client.send, client.hear, client.hear, client.scan))()
        elif choice < 0.85:
            rng.choice((server.work, server.vote))()
        elif choice < 0.9:
            self.live_append((("live", rng.randrange(4)),) if rng.random() < 0.7 else ())
        elif choice < 0.94 and self.late:
            message = self.late.pop(rng.randrange(len(self.late)))
            if rng.random() < 0.7:
                server.receive(*message)
        elif choice < 0.97 and self.alive:
            rng.choice(self.alive).lose()
        elif choice < 0.985:
            rng.choice((server.restart, server.next_session))()

    def finish(self, client: Client) -> None:
        """Nothing goes wrong for a while."""
        for _ in range(2000):
            if client.result is not None:
                return
            client.send()
            self.server.settle()
            client.hear()
            client.scan()
        raise AssertionError("it does not come to an end")

    def arrive(self) -> None:
        """Everything that is still on its way arrives."""
        for message in self.late:
            self.server.receive(*message)
        self.late.clear()
        for client in self.alive:
            while client.send():
                pass
        self.server.settle()


def run_batch(world: World, batch: int, rows: list[Row], events: int) -> Client:
    """Attempts, several at a time, until one is done."""
    world.start(batch, rows)
    for _ in range(events):
        world.disturb()
        for client in list(world.alive):
            if isinstance(client.result, Done) and client.writer.attempt.batch == batch:
                world.alive.remove(client)
                return client
            if client.result is not None:
                world.alive.remove(client)
            elif world.rng.random() < 0.002:
                world.alive.remove(client)
                client.die()
        current = [client for client in world.alive if client.writer.attempt.batch == batch]
        if not current or (len(world.alive) < 3 and world.rng.random() < 0.01):
            world.start(batch, rows)
    client = world.start(batch, rows)
    world.finish(client)
    world.alive.remove(client)
    return client


def rows_of(rng: random.Random, batch: int) -> list[Row]:
    count = rng.randrange(1, 12)
    return [Row(at % 2, b"%d:%d" % (batch, rng.randrange(8)), number=at) for at in range(count)]


def written(world: World) -> Counter[tuple[int, bytes]]:
    return Counter(
        (one.header, one.data) for one in world.server.log if one.header != MARKER_HEADER and one.data != b"live"
    )


def faults(seed: int, kind: type[EpochWriter] = EpochWriter) -> tuple[int, int]:
    """How many rows are there too often, and how many are missing, after some batches under random faults."""
    world = World(seed, slots=(5, 50, 5000)[seed % 3], kind=kind)
    expected: Counter[tuple[int, bytes]] = Counter()
    for batch in range(3):
        rows = rows_of(world.rng, batch)
        expected.update((row.header, row.data) for row in rows)
        done = run_batch(world, batch, rows, events=300)
        if not isinstance(done.result, Done):
            return 1, 0  # it saw for itself that there are rows too many
        world.base = done.result.last_id
    for _ in range(100):  # zombies
        world.disturb()
    world.arrive()
    found = written(world)
    return (found - expected).total(), (expected - found).total()


def test_no_schedule_of_faults_doubles_or_loses_a_row() -> None:
    assert [(seed, found) for seed in range(SCHEDULES) if (found := faults(seed)) != (0, 0)] == []


class Unfenced(EpochWriter):
    """The same without the read lock: what the test must be able to see."""

    def _fence(self) -> Locks:
        return ()


def test_without_the_fence_the_same_schedules_find_duplicates() -> None:
    found = [faults(seed, Unfenced) for seed in range(100)]
    assert sum(doubled > 0 for doubled, _ in found) > 20


# ---- a kill at every step


def steps(world: World, client: Client) -> Iterator[None]:
    """One thing at a time, as smoothly as can be."""
    while client.result is None:
        for act in (client.send, world.server.work, world.server.vote, client.hear, client.scan):
            act()
            yield


@pytest.mark.parametrize("fate", ["lost", "arrives before", "arrives late"])
@pytest.mark.parametrize("trouble", [False, True])
def test_a_kill_at_any_step_doubles_and_loses_nothing(fate: str, trouble: bool) -> None:
    rows = [Row(at % 2, b"0:%d" % (at // 2)) for at in range(6)]
    expected = Counter((row.header, row.data) for row in rows)
    count = 0
    while True:
        count += 1
        world = World(1, slots=1000)
        client = world.start(0, rows)
        if trouble:  # the first epoch ends in a broken connection
            for _, _ in zip(range(25), steps(world, client), strict=False):
                pass
            client.lose()
        killed = False
        for at, _ in enumerate(steps(world, client)):
            if at == count:
                killed = True
                break
        if not killed:
            break
        world.alive.remove(client)
        client.die()
        if fate == "lost":
            world.late.clear()
        elif fate == "arrives before":
            world.arrive()
        again = world.start(0, rows)
        if fate == "arrives late":
            for _, _ in zip(range(12), steps(world, again), strict=False):
                pass
            world.arrive()
        world.finish(again)
        assert isinstance(again.result, Done)
        world.arrive()
        assert written(world) == expected, count
    assert count > 20


# ---- one thing at a time


def done(world: World, client: Client) -> Effect:
    world.finish(client)
    assert client.result is not None
    return client.result


def test_an_undisturbed_batch_costs_one_marker() -> None:
    world = World(0, slots=5000)
    client = world.start(0, [Row(0, b"%d" % at) for at in range(10)])
    assert done(world, client) == Done(10)
    assert (client.writer.markers, client.writer.appended, client.writer.found_before) == (1, 10, 0)


def test_a_repeated_batch_appends_nothing_but_a_marker() -> None:
    world = World(0, slots=5000)
    rows = [Row(0, b"x")] * 3
    done(world, world.start(0, rows))
    again = world.start(0, rows)
    assert done(world, again) == Done(4)
    assert (again.writer.appended, again.writer.found_before) == (0, 3)


def test_the_next_batch_with_the_same_rows_is_another_batch() -> None:
    world = World(0, slots=5000)
    rows = [Row(0, b"x")] * 3
    found = done(world, world.start(0, rows))
    assert isinstance(found, Done)
    world.base = found.last_id
    done(world, world.start(1, rows))
    assert written(world) == {(0, b"x"): 6}


def test_an_older_attempt_finds_out_that_it_is_fenced() -> None:
    world = World(0, slots=5000)
    rows = [Row(0, b"%d" % at) for at in range(4)]
    old = world.start(0, rows)
    while not old.scan():
        old.send()
        world.server.settle()
        old.hear()
    new = world.start(0, rows)
    done(world, new)
    assert done(world, old) == Fenced(new.writer.attempt)
    assert written(world) == Counter((0, b"%d" % at) for at in range(4))


def test_a_driver_that_is_a_batch_behind_writes_nothing() -> None:
    world = World(0, slots=5000)
    found = done(world, world.start(0, [Row(0, b"a")]))
    assert isinstance(found, Done)
    stale = world.base
    world.base = found.last_id
    newer = world.start(1, [Row(0, b"b")])
    done(world, newer)
    world.base = stale
    assert done(world, world.start(0, [Row(0, b"other")])) == Fenced(newer.writer.attempt)
    assert written(world) == {(0, b"a"): 1, (0, b"b"): 1}


def test_rows_that_differ_between_attempts_are_told() -> None:
    world = World(0, slots=5000)
    done(world, world.start(0, [Row(0, b"a"), Row(0, b"b")]))
    assert done(world, world.start(0, [Row(0, b"a"), Row(0, b"now b")])) == Different(1)


def test_a_server_that_forgot_its_locks_costs_another_marker() -> None:
    world = World(0, slots=5000)
    client = world.start(0, [Row(0, b"%d" % at) for at in range(9)])
    while client.writer.appended < 3:
        client.send()
        world.server.settle()
        client.hear()
        client.scan()
    world.live_append()
    world.server.settle()
    world.server.restart()
    assert isinstance(done(world, client), Done)
    assert client.writer.markers == 2
    assert sorted(data for _, data in written(world)) == [b"%d" % at for at in range(9)]


def marked(attempt: Attempt, at: int) -> tuple[EpochWriter, list[Effect]]:
    """A writer whose marker is in the log at this id, and behind nothing of its batch."""
    writer, out = EpochWriter(attempt, at - 1), list[Effect]()
    writer.start(out)
    go_on_behind_marker(writer, at, out)
    assert not out
    return writer, out


def go_on_behind_marker(writer: EpochWriter, at: int, out: list[Effect]) -> None:
    """The marker that is asked for is committed and read."""
    (marker,) = out
    assert isinstance(marker, Append)
    out.clear()
    writer.committed(marker.token, at, out)
    assert out == [Scan(at - 1, at)]
    out.clear()
    writer.saw([Seen(at, OWN, MARKER_HEADER, marker.data)])
    writer.scanned(at, out)


OWN = 7


@pytest.mark.parametrize("lost_first", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_own_rows_behind_one_that_was_lost_do_not_count_for_it(lost_first: bool, count: int) -> None:
    """They are equal, and the log is read once more: what was lost would never be in it."""
    writer, out = marked(Attempt("sink", 0, "a", 0), 0)
    writer.offer([Row(0, b"same", add=(("x", 1),)), *[Row(0, b"same")] * count], out, last=True)
    alone, run = out
    assert isinstance(alone, Append)
    assert isinstance(run, AppendRun)
    out.clear()
    if lost_first:
        writer.lost(alone.token, out)
    writer.committed_run(run.first, 1, count, out)
    if not lost_first:
        writer.lost(alone.token, out)
    assert out == [Scan(0, None)]
    out.clear()
    writer.saw([Seen(at, OWN, 0, b"same") for at in range(1, count + 1)])
    writer.scanned(count, out)
    go_on_behind_marker(writer, count + 1, out)
    (again,) = out
    assert isinstance(again, Append), "it is sent again"
    out.clear()
    writer.committed(again.token, count + 2, out)
    assert out == [Done(count + 2)]
    assert (writer.appended, writer.found_before) == (count + 1, 0)


def test_a_batch_ends_behind_its_last_row_in_whatever_order_verdicts_come() -> None:
    writer, out = marked(Attempt("sink", 0, "a", 0), 0)
    writer.offer([Row(0, b"a", write=(("x", 1),)), Row(0, b"b")], out, last=True)
    probe, run = out
    assert isinstance(probe, Append)
    assert isinstance(run, AppendRun)
    out.clear()
    writer.committed_run(run.first, 1, 1, out)
    writer.refused(probe.token, 0, out)  # its lock was taken behind its cut
    assert writer.rejected == [(Row(0, b"a", write=(("x", 1),)), 0)]
    assert out == [Done(1)], "or the next batch would take this row for one of its own"


@pytest.mark.parametrize("fence_taken_by", [5, 6])
def test_a_refused_row_is_rejected_only_while_the_fence_stands(fence_taken_by: int) -> None:
    """Its own marker is 5; who has taken the fence right behind it writes this row, which is not for us to reject."""
    writer, out = marked(Attempt("sink", 0, "a", 0), 5)
    row = Row(0, b"a", write=(("x", 1),), cut=3)
    writer.offer([row], out, last=True)
    for blocking_id in (3, 6, fence_taken_by):  # its locks are free at the cut; it is refused; by the fence?
        (asked,) = out
        assert isinstance(asked, Append)
        out.clear()
        writer.refused(asked.token, blocking_id, out)
    assert writer.rejected == ([(row, 5)] if fence_taken_by == 5 else [])
    assert out == ([Done(5)] if fence_taken_by == 5 else [Scan(5, None)])


@pytest.mark.parametrize("batch", [3, 4])
def test_another_sink_in_the_same_partition_neither_fences_nor_has_written_the_rows_of_this_one(batch: int) -> None:
    writer, out = EpochWriter(Attempt("sink", 3, "a", 0), -1), list[Effect]()
    writer.start(out)
    (marker,) = out
    assert isinstance(marker, Append)
    out.clear()
    writer.committed(marker.token, 2, out)
    assert out == [Scan(-1, 2)]
    out.clear()
    theirs = encode_marker(Attempt("other", batch, "b", 0), -1)
    log = (
        Seen(0, OWN + 1, MARKER_HEADER, theirs),
        Seen(1, OWN + 1, 0, b"same"),
        Seen(2, OWN, MARKER_HEADER, marker.data),
    )
    writer.saw(seen for seen in log if writer.wants(seen.header, seen.client_id))
    writer.scanned(2, out)
    assert writer.wants_rows
    writer.offer([Row(0, b"same")], out, last=True)
    (run,) = out
    assert isinstance(run, AppendRun)
    out.clear()
    writer.committed_run(run.first, 3, 1, out)
    assert out == [Done(3)]


def test_markers_of_others_are_not_markers() -> None:
    attempt = Attempt("sink", 3, "a", 1)
    assert decode_marker(encode_marker(attempt, 17)) == attempt
    for data in (b"", b"{}", b"[1]", b'{"waltz": "sink", "version": 2}', b'{"waltz": "sink", "version": 1}', b"\xff"):
        assert decode_marker(data) is None


# ---- rows with locks of their own


def test_rows_whose_locks_were_taken_since_the_cut_are_rejected_and_no_others() -> None:
    world = World(0, slots=5000)
    for account in (1, 2):
        world.live_append((("account", account),))
        world.server.settle()
    cut = 0  # before the transaction on account 2
    rows = [Row(0, b"%d" % at, write=(("account", at),), cut=cut, number=at) for at in range(4)]
    client = world.start(0, rows)
    done(world, client)
    assert [(row.number, blocking) for row, blocking in client.writer.rejected] == [(2, 1)]
    assert sorted(data for _, data in written(world)) == [b"0", b"1", b"3"]


def test_of_two_rows_under_one_lock_the_second_is_rejected() -> None:
    world = World(0, slots=5000)
    rows = [Row(0, b"%d" % at, write=(("account", 7),)) for at in range(2)]
    client = world.start(0, rows)
    done(world, client)
    assert len(client.writer.rejected) == 1
    again = world.start(0, rows)
    done(world, again)
    assert [row for row, _ in again.writer.rejected] == [row for row, _ in client.writer.rejected]
    assert written(world).total() == 1


def conditional_faults(seed: int) -> list[str]:
    """What is wrong after a batch of rows with locks under random faults."""
    world = World(seed, slots=(20, 5000)[seed % 2])
    rng = world.rng
    for _ in range(6):
        world.live_append((("live", rng.randrange(4)),))
        world.server.settle()
    rows = [
        Row(0, b"0:%d" % at, write=(("live", rng.randrange(6)),), read=(("live", at),), cut=rng.randrange(-1, 6))
        for at in range(6)
    ]
    done = run_batch(world, 0, rows, events=300)
    for _ in range(100):
        world.disturb()
    world.arrive()
    problems = []
    rejected = {row.data for row, _ in done.writer.rejected}
    by_data = {row.data: row for row in rows}
    last: dict[int, int] = {}
    for at, request in enumerate(world.server.log):
        row = by_data.pop(request.data, None)
        if row is not None:
            taken = max((last.get(one, -1) for one in hashes((*row.write, *row.read))), default=-1)
            if taken > row.cut:
                problems.append(f"{row} is at {at}, but {taken} took a lock of it")
            if row.data in rejected:
                problems.append(f"{row} was rejected and is at {at}")
        elif request.data.startswith(b"0:"):
            problems.append(f"{request.data!r} is there twice")
        for one in (*(request.write_locks or ()), *(request.append_locks or ())):
            last[one] = at
    problems += [f"{data!r} is missing" for data in by_data if data not in rejected]
    return problems


def test_no_schedule_of_faults_commits_a_row_against_its_locks() -> None:
    assert [(seed, found) for seed in range(SCHEDULES) if (found := conditional_faults(seed))] == []


# ---- at least once


def test_at_least_once_sends_again_what_is_lost() -> None:
    writer, out = ResendingWriter(), list[Effect]()
    writer.start(out)
    writer.offer([Row(0, b"a"), Row(0, b"b")], out)
    writer.lost(1, out)
    writer.committed(2, 5, out)
    writer.offer([], out, last=True)
    writer.committed(3, 6, out)
    together, again, end = out
    assert together == AppendRun(1, [Row(0, b"a"), Row(0, b"b")], (), None)
    assert again == Append(3, 0, b"a", (), (), (), None)
    assert end == Done(6)


# ---- runs


@pytest.mark.parametrize("kind", [EpochWriter, ResendingWriter])
def test_plain_rows_leave_together_and_those_with_locks_alone(kind: type[Any]) -> None:
    out: list[Effect] = []
    if kind is EpochWriter:
        writer = kind(Attempt("sink", 0, "a", 0), -1)
        writer.start(out)
        writer.committed(1, 0, out)
        writer.scanned(0, out)
    else:
        writer = kind()
        writer.start(out)
    out.clear()
    rows = [Row(0, b"a"), Row(0, b"b"), Row(0, b"c", add=(("x", 1),)), Row(0, b"d")]
    writer.offer(rows, out)
    assert [type(effect) for effect in out] == [AppendRun, Append, AppendRun]
    assert [list(effect.rows) for effect in out if isinstance(effect, AppendRun)] == [rows[:2], rows[3:]]


def test_a_run_of_large_rows_is_cut() -> None:
    out: list[Effect] = []
    rows = [Row(0, bytes(600_000)) for _ in range(5)]
    ResendingWriter().offer(rows, out)
    assert [(effect.first, len(effect.rows)) for effect in out if isinstance(effect, AppendRun)] == [
        (1, 2),
        (3, 2),
        (5, 1),
    ]


def test_verdicts_come_by_runs() -> None:
    world = World(0, slots=5000)
    client = world.start(0, [Row(0, b"%d" % at) for at in range(20)])
    while client.result is None:
        client.scan()
        while client.send():
            pass
        world.server.settle()
        client.hear()
    assert client.result == Done(20)
    assert client.longest > 1
    assert (client.writer.appended, written(world).total()) == (20, 20)
