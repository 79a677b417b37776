"""An application in a run: submits appends based on what it has applied, follows feeds, restarts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any
from zlib import crc32

from tests import versions_0132
from tests.lock_names import pack_names
from tests.model.cluster import ROOT
from tests.model.durable import split
from tests.model.observer import Observer, Token
from tests.payloads import numbered
from tests.twin_0132.client import ClientNode0132
from waltz_core.base.contract import Tickets
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.client.calls import (
    ClusterLost,
    Committed,
    Consumed,
    Deliver,
    Failed,
    Fetch,
    Fetched,
    Flush,
    Flushed,
    MarkRead,
    Open,
    Phase,
    ReadMark,
    StatusChanged,
    StopFeed,
    Submit,
)
from waltz_core.client.membership import Membership, ServerMembership, ZkMembership
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_testing.simulation.world import SimNode

_READS = 0.1  # share of an application's acts after which it asks for the committed mark


@record
class Habits:
    """How an application behaves."""

    by_server: bool  # finds the cluster through a server instead of ZooKeeper
    legacy: bool  # a library of 0.13.2
    locks: int  # size of the pool that locks are drawn from; 0 = none
    tail: bool  # begins where the log ends, in every life anew
    pause_ms: int  # between bursts, about
    burst: int  # appends at once, at most
    size: int  # bytes of a payload, about
    feed_buffer: int
    consume_ms: int  # time it takes to apply what was delivered
    names: bool  # tells servers of ours what its locks are called


class App:
    """One client process and the application in it, whose marks survive restarts."""

    root = ROOT
    seed_server = Endpoint("server0", 6000)

    def __init__(self, observer: Observer, number: int, habits: Habits, settings: dict[str, Any] | None = None) -> None:
        self.observer = observer
        self.world = observer.world
        self.name = f"client{number}"
        self.habits = habits
        self._settings = {"feed_buffer_max": habits.feed_buffer} | (settings or {})
        self.rng = Random(f"{self.world.seed}/load/{number}")
        self.reading = Random(f"{self.world.seed}/reads/{number}")
        self.applied: dict[int, int | None] = {}
        self.feeding: dict[int, None] = {}
        self.loading = False
        self.read_together = 0  # payloads of what is delivered that are read at a time, as feeds do; 0 = none are
        self._unread: dict[int, list[int]] = {}
        self.waiting_fetches: dict[tuple[int, int], int] = {}  # → when it was asked for
        self.waiting_flushes: dict[int, None] = {}
        self.waiting_marks = 0
        self._lives = 0
        self._flushes = 0
        self._opened: set[int] = set()
        self._moved_at: dict[int, int] = {}  # partition → when its feed, its mount or its appends were heard of last
        self._right: dict[int, int | None] | None = None  # its own marks, while it has those of another log
        self.node = SimNode(self.world, self.name, self._machine)
        self.node.uses_zookeeper = not habits.by_server
        self.node.on_effect = self._hear
        self.node.on_crash = self._crashed
        observer.clients.append(self)

    # ---- process -------------------------------------------------------------------------------

    def _machine(self) -> ClientNode:
        self._lives += 1
        rng = Random(f"{self.world.seed}/{self.name}/{self._lives}")
        settings = ClientSettings(**self._settings)
        membership: Membership
        if self.habits.by_server:
            membership = ServerMembership(self.seed_server, settings)
        else:
            membership = ZkMembership(self.root, Tickets(), rng)
        if self.habits.legacy:
            return ClientNode0132(membership, settings, rng, versions=versions_0132.CLIENT)
        return ClientNode(membership, settings, rng)

    def start(self) -> None:
        """Start the process and follow every partition from where the application stands."""
        self.node.start()
        self._moved_at = dict.fromkeys(range(self.observer.cluster.partitions), self.world.now)
        for partition in range(self.observer.cluster.partitions):
            self.open(partition)

    def open(self, partition: int) -> None:
        """Follow a partition."""
        mark = self.applied.setdefault(partition, None if self.habits.tail else -1)
        self.feeding[partition] = None
        self._opened.add(partition)
        self.node.post(Open(partition, mark, True))

    def needs_behind(self, partition: int) -> int | None:
        """It needs what is behind this mark; None: it will begin where the log ends then."""
        mark = self.applied.get(partition, -1)
        if mark is not None or not self.node.alive:
            return mark
        following = self.node.machine.partitions.get(partition)
        if following is None:
            return None
        return -1 if following.wants_tail else following.status(self.node.clock, 0).delivered_mark

    @property
    def astray(self) -> bool:
        """It came back with other marks than its own: of another log, ahead of ours, or of none at all."""
        return self._right is not None

    def stray(self) -> None:
        """Its database is replaced by one of another cluster; the process has to be started again."""
        assert self._right is None
        self.node.crash()
        self._right = dict(self.applied)
        self.applied = dict.fromkeys(self._right, 1000000)

    def fall_behind(self) -> None:
        """Its database is lost, and an empty one takes its place; the process has to be started again."""
        assert self._right is None
        self.node.crash()
        self._right = dict(self.applied)
        self.applied = dict.fromkeys(self._right, -1)

    def put_right(self) -> None:
        """Somebody noticed, and restored the database; the process has to be started again."""
        if self._right is not None:
            self.node.crash()
            self.applied, self._right = self._right, None

    def _crashed(self) -> None:
        for token in self.observer.tokens.values():
            if token.client == self.name and not token.outcome:
                token.outcome = "unknown"
        self.feeding.clear()
        if self.habits.tail:
            self.applied.clear()
        self.waiting_fetches.clear()
        self._unread.clear()
        self.waiting_flushes.clear()
        self.waiting_marks = 0

    # ---- what it is told -----------------------------------------------------------------------

    def _hear(self, told: Any) -> None:
        if isinstance(told, Deliver | Committed | Failed | StatusChanged):
            self._moved_at[told.partition] = self.world.now
        self._told(told)

    def _told(self, told: Any) -> None:
        match told:
            case Deliver(partition, run):
                self._delivered(partition, run)
            case Committed(_, outcomes):
                for token, transaction_id in outcomes:
                    assert isinstance(token, Token)
                    self.observer.committed(self, token, transaction_id)
            case Failed(token=token):
                assert isinstance(token, Token)
                self.observer.failed(self, token, told)
            case Fetched(partition, payloads):
                self._fetched(partition, payloads)
            case Flushed(token=token):
                self._flushed(token)
            case MarkRead(partition, mark, tokens):
                for floor in tokens:
                    assert isinstance(floor, int)
                    self.waiting_marks -= 1
                    self.observer.read(self, partition, floor, mark)
            case StatusChanged(phase=phase):
                self.observer.counts[f"phase {phase.name}"] += 1
            case ClusterLost(reason):
                raise AssertionError(f"{self.name} gave the cluster up: {reason}")

    def _delivered(self, partition: int, run: Sequence[Any]) -> None:
        self.observer.delivered(self, partition, run)
        self.applied[partition] = run[-1].transaction_id
        if self.read_together and not self.astray:
            self._read(partition, [each.transaction_id for each in run])
        consumed = Consumed(partition, run[-1].transaction_id)
        if self.habits.consume_ms:
            self.node.post_later(self.rng.randrange(self.habits.consume_ms), consumed)
        else:
            self.node.post(consumed)

    def _flushed(self, token: Any) -> None:
        number, tokens = token
        self.waiting_flushes.pop(number, None)
        late = [one for one in tokens if not one.outcome]
        assert not late, f"{self.name}: flushed, and {late[0]} has no outcome"

    def _fetched(self, partition: int, payloads: Sequence[tuple[int, Sequence[bytes]]]) -> None:
        for transaction_id, data in numbered(payloads):
            self.waiting_fetches.pop((partition, transaction_id), None)
            expected = split(self.observer.logs[partition][transaction_id])[3]
            assert data == expected, f"{self.name} read another payload of {partition}/{transaction_id}"
            self.observer.marks.fetched(self.node, partition, transaction_id)

    # ---- load ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Do something now and then, while `loading`."""
        if not self.loading:
            return
        if self.node.alive:
            self._act()
            if self.reading.random() < _READS:
                self.read_mark(self.reading.randrange(self.observer.cluster.partitions))
        self.world.after(1 + int(self.rng.random() * 2 * self.habits.pause_ms), self.load)

    def _act(self) -> None:
        rng = self.rng
        partition = rng.randrange(self.observer.cluster.partitions)
        kind = rng.random()
        if kind < 0.88:
            for _ in range(rng.randint(1, self.habits.burst)):
                self.submit(partition)
        elif kind < 0.91:
            self._flush(partition)
        elif kind < 0.94:
            self._toggle_feed(partition)
        elif kind < 0.99:
            self._fetch(partition)
        else:
            self.read_mark(partition)

    def read_mark(self, partition: int) -> None:
        """Ask what is committed by now."""
        self.observer.counts["marks asked"] += 1
        self.waiting_marks += 1
        self.node.post(ReadMark(partition, self.observer.highest_known[partition]))

    def submit(self, partition: int) -> None:
        """Append one transaction."""
        rng, habits = self.rng, self.habits
        write: tuple[int, ...] = ()
        read: tuple[int, ...] = ()
        append: tuple[int, ...] = ()
        mark: int | None = self.applied.get(partition)
        if habits.locks and mark is not None and rng.random() < 0.6:
            drawn = [rng.randrange(habits.locks) for _ in range(rng.randint(1, 3))]
            kind = rng.random()
            if kind < 0.5:
                write = (drawn[0],)
            elif kind < 0.7:
                write, read = (drawn[0],), tuple(drawn[1:])
            elif kind < 0.9:
                write, append = tuple(drawn[:1]), tuple(drawn[1:])
            else:
                append = tuple(drawn)
            if rng.random() < 0.1:
                mark = max(-1, mark - rng.randrange(5))
        elif rng.random() < 0.5:
            mark = None
        number = len(self.observer.tokens)
        data = f"{self.name}/{number}/".encode() + bytes(rng.randrange(2 * habits.size + 1))
        token = Token(number, self.name, partition, mark, (write, read, append), data)
        self.observer.submitted(token)
        crc = crc32(data)
        checksum = crc - (1 << 32) if crc >> 31 else crc
        # The name without a letter has the hash 0, and so a small id is the hash of its lock.
        names = pack_names([("", lock) for lock in (*write, *read, *append)]) if habits.names else b""
        self.node.post(Submit(partition, token, mark, write, read, append, number & 0xFFFF, data, checksum, names))

    def _flush(self, partition: int) -> None:
        self._flushes += 1
        tokens = [
            token
            for token in self.observer.tokens.values()
            if token.client == self.name and token.partition == partition and not token.outcome
        ]
        self.waiting_flushes[self._flushes] = None
        self.node.post(Flush(partition, (self._flushes, tokens)))

    def _toggle_feed(self, partition: int) -> None:
        if partition in self.feeding:
            del self.feeding[partition]
            self.node.post(StopFeed(partition))
        else:
            self.open(partition)

    def _fetch(self, partition: int) -> None:
        applied = self.applied.get(partition)
        if applied is None or applied < 0 or self.astray:
            return
        first = 0 if self.observer.cluster.agents else self.observer.archived[partition]
        self._want(partition, tuple(sorted({self.rng.randint(first, applied) for _ in range(3)})))

    def _read(self, partition: int, transaction_ids: Iterable[int]) -> None:
        unread = self._unread.setdefault(partition, [])
        unread += transaction_ids
        if len(unread) >= self.read_together:
            self._want(partition, tuple(unread))
            unread.clear()

    def _want(self, partition: int, transaction_ids: tuple[int, ...]) -> None:
        for each in transaction_ids:
            self.waiting_fetches.setdefault((partition, each), self.world.now)
        self.node.post(Fetch(partition, transaction_ids))

    # ---- the end -------------------------------------------------------------------------------

    def resume(self) -> None:
        """Follow everything again."""
        if self.node.alive:
            for partition in range(self.observer.cluster.partitions):
                if partition not in self.feeding:
                    self.open(partition)

    def stuck_for(self) -> int:
        """How long a partition has got nowhere, or a payload has been waited for, in ms; 0 if nothing is waited for.

        Payloads and marks that arrive say nothing: they come over a connection of their own, and go on coming
        while the connection of mounts and appends leads to a host that is gone.
        """
        now = self.world.now
        for partition in self._moved_at:
            if not self._waits(partition):
                self._moved_at[partition] = now
        return now - min([*self._moved_at.values(), *self.waiting_fetches.values()], default=now)

    def _waits(self, partition: int) -> bool:
        status = self.node.machine.status(partition, self.node.clock)
        if status.phase is not Phase.MOUNTED or status.in_flight or status.queued:
            return True
        return partition in self.feeding and self.applied[partition] != len(self.observer.logs[partition]) - 1

    def unsettled(self) -> str:
        """What this application still waits for, empty if nothing."""
        if not self.node.alive:
            return f"{self.name} is down"
        for partition, log in enumerate(self.observer.logs):
            status = self.node.machine.status(partition, self.node.clock)
            if status.phase is not Phase.MOUNTED:
                return f"{self.name} has not mounted partition {partition}: {status.phase.value}"
            if self.applied.get(partition, -1) not in (None, len(log) - 1):
                return f"{self.name} has applied partition {partition} up to {self.applied.get(partition)}"
        if self.waiting_fetches:
            return f"{self.name} waits for payloads: {list(self.waiting_fetches)[:5]}"
        if self.waiting_flushes:
            return f"{self.name} waits for a flush"
        if self.waiting_marks and not self.habits.legacy:  # 0.13.2 does not ask again (client-C7)
            return f"{self.name} waits for {self.waiting_marks} marks"
        return ""
