"""Clients against the tiny cluster, everything in between chosen by a seed; asserts after every step."""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs

from tests.fixed_membership import FixedMembership
from tests.model.small_server import ServerConn, SmallLog, SmallServer
from tests.payloads import numbered
from waltz_core.base.edge import CloseConn, Closed, Dial, Dialed, Received, Send, Writable
from waltz_core.base.ids import Endpoint
from waltz_core.base.log import Record
from waltz_core.client.calls import (
    CloseClient,
    Committed,
    Consumed,
    Deliver,
    Failed,
    Fetch,
    Fetched,
    Flush,
    Flushed,
    ForgetRecords,
    MarkRead,
    Open,
    Phase,
    ReadMark,
    ReadRecords,
    Reason,
    RecordsCarried,
    StopFeed,
    Submit,
)
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings


@attrs.define(eq=False)
class Wire:
    """One connection: bytes on their way, both directions."""

    conn: int
    server: SmallServer
    theirs: ServerConn | None = None
    up: bytearray = attrs.field(factory=bytearray)
    alive: bool = True


@attrs.define
class Feed:
    """What an application got of one partition."""

    mark: int
    delivered: int
    open: bool = True


class SimClient:
    """A client process with an application that checks what it is told."""

    def __init__(self, world: World, client_id: int, settings: ClientSettings) -> None:
        self.world = world
        self.client_id = client_id
        self.rng = random.Random(world.rng.random())
        endpoints = world.endpoint_map()
        self.membership = FixedMembership(client_id, len(world.logs), endpoints)
        self.node = ClientNode(self.membership, settings, self.rng)
        self.wires: dict[int, Wire] = {}
        self.dialing: deque[Dial] = deque()
        self.outcomes: dict[object, object] = {}
        self.submitted: dict[int, list[object]] = {partition: [] for partition in world.logs}
        self.feeds: dict[int, Feed] = {}
        self.flushed: list[object] = []
        self.flushes: dict[object, int] = {}  # token → submits before it
        self.fetched: dict[tuple[int, int], bytes] = {}
        self.wanted: set[tuple[int, int]] = set()
        self.mark_calls: dict[int, tuple[int, int]] = {}  # token → partition, its mark when the call began
        self.marks_asked = 0
        self.records_asked: dict[int, tuple[int, range]] = {}  # token → partition, ids
        self.reads = 0
        self.records_read = 0
        self.own_read = 0  # payloads of its own that came from its memory
        self.step()

    def step(self, *events: Any) -> None:
        out: list[Any] = []
        self.node.step(self.world.now, events, out)
        for effect in out:
            self._perform(effect)

    def _perform(self, effect: Any) -> None:  # noqa: C901 - one case per effect
        match effect:
            case Dial():
                self.dialing.append(effect)
            case Send(conn=conn, data=data):
                if conn in self.wires:
                    self.wires[conn].up += data
            case CloseConn(conn=conn):
                self.cut(conn, tell=False)
            case Committed(partition=partition, outcomes=outcomes):
                for token, transaction_id in outcomes:
                    self._settle(token, transaction_id)
                    made = self.world.logs[partition].records[transaction_id]
                    assert made.data == data_of(token), "a foreign transaction was taken for an own one"
            case Failed(token=token, partition=partition, reason=reason, blocking_id=blocking_id):
                self._settle(token, reason)
                if reason.certain:
                    assert not self.world.holds(partition, token), f"{token} failed and is in the log"
                if reason is Reason.LOCK:
                    status = self.node.status(partition, self.world.now)
                    assert status.seen_mark >= blocking_id
            case Flushed(token=token, partition=partition):
                self.flushed.append(token)
                early = self.submitted[partition][: self.flushes[token]]
                assert all(submit in self.outcomes for submit in early)
            case Deliver(partition=partition, run=run):
                feed = self.feeds[partition]
                assert feed.open
                for record in run:
                    assert record.transaction_id == feed.delivered + 1
                    made = self.world.logs[partition].records[record.transaction_id]
                    assert (record.req_id, record.header) == (made.req_id, made.header)
                    feed.delivered += 1
            case Fetched(partition=partition, payloads=payloads):
                for transaction_id, data in numbered(payloads):
                    assert (partition, transaction_id) in self.wanted
                    assert self.world.logs[partition].records[transaction_id].data == data
                    assert (partition, transaction_id) not in self.fetched
                    self.fetched[partition, transaction_id] = data
            case MarkRead(partition=partition, mark=mark, tokens=tokens):
                self._mark_read(partition, mark, tokens)

            case RecordsCarried(partition=partition, token=token, records=records):
                assert isinstance(token, int)
                self._records_read(*self.records_asked.pop(token), partition, records)

    def _records_read(self, asked: int, ids: range, partition: int, records: Sequence[Record] | None) -> None:
        assert asked == partition
        if records is None:
            return  # damaged at this server, or it knows no ranges
        assert 0 < len(records) <= len(ids), "a read of committed records was answered by none"
        for transaction_id, record in zip(ids, records, strict=False):
            made = self.world.logs[partition].records[transaction_id]
            found = (record.transaction_id, record.req_id, record.header, record.data)
            assert found == (transaction_id, made.req_id, made.header, made.data)
        self.records_read += len(records)

    def _mark_read(self, partition: int, mark: int, tokens: tuple[object, ...]) -> None:
        for token in tokens:
            assert isinstance(token, int)
            asked, floor = self.mark_calls.pop(token)
            assert asked == partition
            assert floor <= mark <= self.world.logs[partition].mark, f"{mark} read after {floor} was committed"

    def _settle(self, token: object, outcome: object) -> None:
        assert token not in self.outcomes, f"{token} ended twice: {self.outcomes[token]}, {outcome}"
        self.outcomes[token] = outcome

    # ---- the application -----------------------------------------------------------------------

    def submit(self, partition: int, lock: int | None, mark: int | None) -> None:
        token = (self.client_id, partition, len(self.submitted[partition]))
        self.submitted[partition].append(token)
        data = data_of(token)
        locks = () if lock is None else (lock,)
        checksum = zlib.crc32(data)
        checksum -= (checksum & 1 << 31) << 1
        self.step(Submit(partition, token, mark, locks, (), (), 7, data, checksum))

    def flush(self, partition: int) -> None:
        token = ("flush", len(self.flushes))
        self.flushes[token] = len(self.submitted[partition])
        self.step(Flush(partition, token))

    def read_mark(self, partition: int) -> None:
        self.marks_asked += 1
        self.mark_calls[self.marks_asked] = partition, self.world.logs[partition].mark
        self.step(ReadMark(partition, self.marks_asked))

    def open_feed(self, partition: int, mark: int) -> None:
        self.feeds[partition] = Feed(mark, mark)
        self.step(Open(partition, mark, True))

    def stop_feed(self, partition: int) -> None:
        self.feeds[partition].open = False
        self.step(StopFeed(partition))

    def consume(self, partition: int) -> None:
        feed = self.feeds[partition]
        feed.mark = self.rng.randint(feed.mark, feed.delivered)
        self.step(Consumed(partition, feed.mark))

    def fetch(self, partition: int) -> None:
        mark = self.world.logs[partition].mark
        if mark >= 0:
            wanted = {self.rng.randint(0, mark) for _ in range(3)}
            if partition in self.feeds and self.feeds[partition].delivered >= 0:
                wanted.add(self.feeds[partition].delivered)  # as feeds do
            fresh = tuple(t for t in sorted(wanted) if (partition, t) not in self.wanted)
            self.wanted.update((partition, t) for t in fresh)
            self.step(Fetch(partition, fresh))
            self.own_read += sum((partition, t) in self.fetched for t in fresh)  # no server was asked yet
            self._read_records(partition, min(wanted), mark)

    def _read_records(self, partition: int, first: int, mark: int) -> None:
        self.reads += 1
        ids = range(first, min(mark, first + self.reads % 7) + 1)
        self.records_asked[self.reads] = partition, ids
        self.step(ReadRecords(partition, self.reads, first, len(ids)))
        if self.reads % 5 == 0 and self.reads in self.records_asked:
            del self.records_asked[self.reads]
            self.step(ForgetRecords(partition, self.reads))

    # ---- the network ---------------------------------------------------------------------------

    def dial(self) -> None:
        effect = self.dialing.popleft()
        server = self.world.servers.get(effect.endpoint)
        if server is None or self.rng.random() < self.world.faults.refuse:
            self.step(Closed(effect.conn, "connection refused"))
            return
        wire = Wire(effect.conn, server, server.accept())
        self.wires[effect.conn] = wire
        self.step(Dialed(effect.conn))

    def cut(self, conn: int, *, tell: bool = True) -> None:
        wire = self.wires.pop(conn, None)
        if wire is None:
            return
        assert wire.theirs is not None
        self.world.dying.append((wire, wire.theirs))
        if tell:
            self.step(Closed(conn, "cut"))

    def carry_up(self, wire: Wire) -> None:
        assert wire.theirs is not None
        size = self.rng.randint(1, len(wire.up)) if self.rng.random() < 0.5 else len(wire.up)
        data = bytes(wire.up[:size])
        del wire.up[:size]
        wire.server.receive(wire.theirs, data)

    def carry_down(self, wire: Wire) -> None:
        assert wire.theirs is not None
        waiting = wire.theirs.out
        size = self.rng.randint(1, len(waiting)) if self.rng.random() < 0.5 else len(waiting)
        data = bytes(waiting[:size])
        del waiting[:size]
        self.step(Received(wire.conn, data))

    @property
    def unjudged(self) -> int:
        return sum(token not in self.outcomes for tokens in self.submitted.values() for token in tokens)


@attrs.define
class Faults:
    """Probabilities, per choice."""

    refuse: float = 0.0
    lose: float = 0.0
    cut: float = 0.0
    move: float = 0.0
    stall: float = 0.0
    forget: float = 0.0  # a server closes and reopens a partition, and nobody is told
    fail_read: float = 0.0


class World:
    """One seed: partitions, servers, clients and everything that happens between them."""

    def __init__(self, seed: int, *, settings: ClientSettings | None = None) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.generation = 1
        rng = self.rng
        self.faults = Faults(
            refuse=rng.choice((0, 0.2)),
            lose=rng.choice((0, 0, 0.1, 0.5)),
            cut=rng.choice((0, 0.005, 0.03)),
            move=rng.choice((0, 0.003, 0.01)),
            forget=rng.choice((0, 0, 0.003)),
            stall=rng.choice((0, 0.01)),
            fail_read=rng.choice((0, 0.3)),
        )
        self.logs = {partition: SmallLog() for partition in range(rng.randint(1, 2))}
        endpoints = [Endpoint("server", number) for number in range(1, rng.randint(2, 3))]
        self.servers = {
            endpoint: SmallServer(endpoint, self.logs, window=rng.choice((1, 3, 100))) for endpoint in endpoints
        }
        for server in self.servers.values():
            server.view.names = rng.random() < 0.6
            server.loses = lambda request: rng.random() < self.faults.lose
            server.fails_reads = lambda transaction_id: rng.random() < self.faults.fail_read
        for partition in self.logs:
            rng.choice(list(self.servers.values())).own(partition, self.generation)
        self.dying: list[tuple[Wire, ServerConn]] = []
        settings = settings or ClientSettings(feed_buffer_max=rng.choice((1, 4, 50, 1000)), fetch_in_flight_max=2)
        self.clients = [SimClient(self, number + 1, settings) for number in range(rng.randint(1, 2))]

    def endpoint_map(self) -> list[tuple[Endpoint, list[tuple[int, int]]]]:
        return [(server.endpoint, sorted(server.owned.items())) for server in self.servers.values()]

    def holds(self, partition: int, token: object) -> bool:
        return any(made.data == data_of(token) for made in self.logs[partition].records)

    # ---- choices -------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Load and faults, then peace: everything must end."""
        for _ in range(steps):
            self.choose(load=True)
        forgot, self.faults = self.faults.forget > 0, Faults()
        self.settle(forgot=forgot)

    def settle(self, *, forgot: bool = False) -> None:
        if forgot:
            # Only an append that vanishes tells a client that its server has forgotten its mount.
            for client in self.clients:
                for partition in self.logs:
                    client.submit(partition, None, None)
        for _ in range(100_000):
            if self.quiet():
                break
            self.choose(load=False)
        for client in self.clients:
            for partition in self.logs:
                status = client.node.status(partition, self.now)
                assert status.phase in (Phase.MOUNTED, Phase.CLOSED), status
            assert client.unjudged == 0
            assert set(client.flushed) == set(client.flushes)
            assert set(client.fetched) == client.wanted
            assert not client.mark_calls
            assert not client.records_asked
            for partition, feed in client.feeds.items():
                assert not feed.open or feed.delivered == self.logs[partition].mark, (feed, self.logs[partition].mark)
        for partition, log in self.logs.items():
            found = [made.data for made in log.records]
            assert len(set(found)) == len(found), "committed twice"
            for client in self.clients:
                own = [data_of(token) for token in client.submitted[partition]]
                order = [own.index(data) for data in found if data in own]
                assert order == sorted(order), "appends of one client were reordered"
                for token in client.submitted[partition]:
                    assert isinstance(client.outcomes[token], int) == (data_of(token) in found)

    def quiet(self) -> bool:
        return all(
            client.unjudged == 0
            and set(client.flushed) == set(client.flushes)
            and set(client.fetched) == client.wanted
            and not client.mark_calls
            and not client.records_asked
            and all(
                not feed.open or feed.delivered == self.logs[partition].mark for partition, feed in client.feeds.items()
            )
            and not client.dialing
            and all(
                client.node.status(partition, self.now).phase in (Phase.MOUNTED, Phase.CLOSED)
                for partition in self.logs
            )
            for client in self.clients
        )

    def choose(self, *, load: bool) -> None:
        rng = self.rng
        if load:
            self._fault()
            if rng.random() < 0.15:
                self._load(rng.choice(self.clients))
        choices: list[Any] = []
        for server in self.servers.values():
            choices += [lambda s=server, p=p: s.work(p) for p, queue in server.queues.items() if queue]
            choices += [
                lambda s=server, c=conn, w=window: s.feed(c, w, rng.randint(1, 5))
                for conn in server.conns
                for window in conn.windows
                if window.left == 0 or window.mark < self.logs[window.partition].mark
            ]
        for client in self.clients:
            if client.dialing:
                choices.append(client.dial)
            for wire in list(client.wires.values()):
                assert wire.theirs is not None
                if wire.up:
                    choices.append(lambda c=client, w=wire: c.carry_up(w))
                if wire.theirs.out:
                    choices.append(lambda c=client, w=wire: c.carry_down(w))
            if any(feed.open and feed.mark < feed.delivered for feed in client.feeds.values()):
                choices.append(lambda c=client: self._consume(c))
        if self.dying:
            choices.append(self._bury)
        if choices and rng.random() < 0.9:
            rng.choice(choices)()
        else:
            self._pass_time(rng.choice((1, 10, 100, 600)))

    def _consume(self, client: SimClient) -> None:
        client.consume(self.rng.choice([p for p, feed in client.feeds.items() if feed.mark < feed.delivered]))

    def _pass_time(self, most: int) -> None:
        dues = [due for client in self.clients if (due := client.node.deadline()) is not None]
        self.now = max(self.now + 1, min([*dues, self.now + most]))
        for client in self.clients:
            due = client.node.deadline()
            if due is not None and due <= self.now:
                client.step()

    def _bury(self) -> None:
        """The server notices that a connection is gone, after reading what had arrived."""
        wire, theirs = self.dying.pop(self.rng.randrange(len(self.dying)))
        size = self.rng.randint(0, len(wire.up))
        if size:
            wire.server.receive(theirs, bytes(wire.up[:size]))
        wire.server.drop(theirs)

    def _fault(self) -> None:
        rng, faults = self.rng, self.faults
        if rng.random() < faults.cut:
            client = rng.choice(self.clients)
            if client.wires:
                client.cut(rng.choice(list(client.wires)))
        if rng.random() < faults.move:
            self.move(rng.choice(list(self.logs)), rng.choice(list(self.servers.values())))
        if rng.random() < faults.forget:
            partition = rng.choice(list(self.logs))
            server = next(server for server in self.servers.values() if partition in server.owned)
            generation = server.owned[partition]
            server.disown(partition, rng.randint(0, 5))
            server.own(partition, generation)
        if rng.random() < faults.stall:
            client = rng.choice(self.clients)
            if client.wires:
                conn = rng.choice(list(client.wires))
                client.step(Writable(conn, False))
                client.submit(rng.choice(list(self.logs)), None, None)
                client.step(Writable(conn, True))

    def move(self, partition: int, target: SmallServer) -> None:
        self.generation += 1
        for server in self.servers.values():
            if partition in server.owned:
                server.disown(partition, self.rng.randint(0, 5))
        target.own(partition, self.generation)
        for client in self.clients:
            client.membership.change(self.endpoint_map())
            client.step()

    def _load(self, client: SimClient) -> None:
        rng = self.rng
        partition = rng.choice(list(self.logs))
        match rng.randrange(10):
            case 0:
                client.flush(partition)
            case 1:
                feed = client.feeds.get(partition)
                if feed is None or not feed.open:
                    status = client.node.status(partition, self.now)
                    newest = max(status.seen_mark, -1)
                    client.open_feed(partition, rng.choice((-1, newest, rng.randint(-1, newest))))
                elif rng.random() < 0.3:
                    client.stop_feed(partition)
            case 2:
                client.fetch(partition)
            case 3:
                client.read_mark(partition)
            case _:
                status = client.node.status(partition, self.now)
                lock = rng.choice((None, 1, 2, 3))
                client.submit(partition, lock, max(-1, status.seen_mark) if lock is not None else None)

    def close(self) -> None:
        """Closing a client ends everything it waits for."""
        for client in self.clients:
            client.step(CloseClient())
            assert client.unjudged == 0


def data_of(token: object) -> bytes:
    return repr(token).encode()
