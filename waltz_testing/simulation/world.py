"""A deterministic world around process machines: one heap of events, a network, ZooKeeper, disks.

No Trio, no threads, no sockets. Time is an integer of milliseconds. Each kind of chance has its own
random stream, so that changing one does not reshuffle the others.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from waltz_core.base.edge import (
    Accepted,
    CloseConn,
    Closed,
    Dial,
    Dialed,
    Ended,
    Level,
    Port,
    Reading,
    Received,
    Report,
    Send,
    Writable,
    ZkChanged,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkDone,
    ZkError,
    ZkFailed,
    ZkGet,
    ZkMulti,
    ZkRequest,
    ZkSet,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.ids import Endpoint
from waltz_core.zookeeper.znode_tree import ZnodeTree

_ZK_KINDS = frozenset({ZkGet, ZkChildren, ZkCreate, ZkSet, ZkDelete, ZkMulti})


class World:
    """The clock and the heap; everything that happens is a call scheduled here."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0
        self.net_rng = Random(f"{seed}/net")
        self.disk_rng = Random(f"{seed}/disk")
        self.zk_rng = Random(f"{seed}/zk")
        self.load_rng = Random(f"{seed}/load")
        self.fault_rng = Random(f"{seed}/fault")
        self.network = Network(self)
        self.zookeeper = ZooKeeper(self)
        self.nodes: dict[str, SimNode] = {}
        self.after_step: Callable[[SimNode], None] | None = None  # looks at a node before its effects are performed
        self.on_step: Callable[[SimNode, list[Any], list[Any]], None] | None = None  # what went in, and what came out
        self.on_send: Callable[[SimNode, int, bytes], None] | None = None  # a process gave bytes to a connection
        self.on_rare: Callable[[SimNode, Any], None] | None = None  # any other effect of the edge
        self.tolerates: Callable[[str], bool] = lambda text: "stays out" in text  # reports of errors that are no bug
        self.log: list[str] = []
        self.verbose = False
        self.outside = False  # something was handed to a task outside this heap
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Do `action` at `time`; actions of one moment keep their order."""
        self._order = order = self._order + 1
        now = self.now
        heappush(self._heap, (time if time > now else now, order, action))

    def after(self, delay: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay` ms."""
        self.at(self.now + delay, action)

    def run(self, until: int) -> None:
        """Let time pass up to `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action = heappop(heap)
            action()
        self.now = max(self.now, until)

    def run_to_outside(self, until: float) -> int | None:
        """Let time pass up to `until`, or to the end of the first millisecond that hands something outside.

        Returns:
            The time then; None if nothing would ever happen.
        """
        heap, self.outside = self._heap, False
        while heap and heap[0][0] <= until and not (self.outside and heap[0][0] > self.now):
            self.now, _, action = heappop(heap)
            action()
        if not self.outside:
            if until == math.inf:
                return None
            self.now = max(self.now, int(until))
        return self.now

    def run_while(self, condition: Callable[[], bool], limit: int, every: int = 0) -> bool:
        """Let time pass while `condition` holds, at most `limit` ms; returns whether it ended by itself.

        The condition is looked at before each event, or only every so many ms.
        """
        end = self.now + limit
        heap = self._heap
        while condition():
            if every and self.now < end:
                self.run(min(self.now + every, end))
                continue
            if not heap or heap[0][0] > end:
                self.now = end
                return False
            self.now, _, action = heappop(heap)
            action()
        return True

    def trace(self, text: str) -> None:
        """One line of what happened; all lines make the digest."""
        line = f"{self.now:>8} {text}"
        self._digest.update(line.encode())
        if self.verbose:
            self.log.append(line)

    def digest(self) -> str:
        """Fingerprint of everything traced so far."""
        return self._digest.hexdigest()


class SimNode:
    """Runs one process machine; `start` makes a new one from its durable state, `crash` forgets it.

    Attributes:
        offset, drift_ppm: what the clock of this process shows: offset in ms, and how much too fast it goes.
    """

    def __init__(self, world: World, name: str, machine: Callable[[], Any], *, zk_session_ms: int = 4_000) -> None:
        self.world = world
        self.name = name
        self.machine: Any = None
        self.alive = False
        self.frozen = False
        self.ended: Ended | None = None
        self.reports: list[tuple[int, Report]] = []
        self.conns: dict[int, Way] = {}  # where to send on a connection
        self.listening: dict[Port, Endpoint] = {}
        self.told: list[Any] = []
        self.on_told: Callable[[Any], None] | None = None
        self.on_crash: Callable[[], None] | None = None
        self.afterwards: Callable[[], None] | None = None  # called when the effects of a step are performed
        self.stands_still: Callable[[], bool] = lambda: False  # the loop is busy: no step before `goes_on`
        self.plugins: dict[type, Callable[[Any], None]] = {}
        self.zk_session_ms = zk_session_ms
        self.uses_zookeeper = True
        self.effect_count = 0
        self.crash_at_effect: int | None = None  # crash between two effects
        self.offset = 0
        self.drift_ppm = 0
        self.epoch = 0  # grows with every start and crash
        self.certificate = name  # the name in it; empty = it shows none
        self._make = machine
        self._inbox: list[Any] = []
        self._scheduled = False
        self._wake_at: int | None = None
        self._last_accepted = 0
        self._dialing: set[int] = set()
        world.nodes[name] = self

    # ---- clock -------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        """The time of this process."""
        return self._local(self.world.now)

    def _local(self, now: int) -> int:
        return self.offset + now + now * self.drift_ppm // 1_000_000

    def _world_time(self, local: int) -> int:
        """The first moment at which the clock of this process shows `local`."""
        if not self.drift_ppm:
            return local - self.offset
        now = (local - self.offset) * 1_000_000 // (1_000_000 + self.drift_ppm) - 1
        while self._local(now) < local:
            now += 1
        return now

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a fresh machine."""
        assert not self.alive
        self.world.trace(f"{self.name} starts")
        self.alive = True
        self.frozen = False
        self.ended = None
        self.epoch += 1
        self.machine = self._make()
        self._inbox = []
        self._scheduled = False
        self._wake_at = None
        self._last_accepted = 0
        for endpoint in self.listening.values():
            self.world.network.listeners[endpoint] = self
        if self.uses_zookeeper:
            self.world.zookeeper.connect(self)
        self._schedule()

    def crash(self, silent: bool = False) -> None:
        """The process is gone: connections reset, memory lost, what was not synced at the disk's mercy.

        If `silent`, the host is gone too: peers learn of it when they send something to its successor.
        """
        if not self.alive:
            return
        self.world.trace(f"{self.name} crashes")
        self.alive = False
        self.frozen = False
        self.crash_at_effect = None
        self.epoch += 1
        self.machine = None
        for endpoint in self.listening.values():
            self.world.network.listeners.pop(endpoint, None)
        for way in list(self.conns.values()):
            way.abandon("peer crashed", silent)
        self.conns.clear()
        self._dialing.clear()
        self.world.zookeeper.abandon(self)
        if self.on_crash is not None:
            self.on_crash()

    def freeze(self) -> None:
        """The process stops being scheduled (a pause); it wakes up believing what it believed."""
        self.frozen = True
        self.world.zookeeper.silent(self)

    def thaw(self) -> None:
        """It goes on."""
        if not self.frozen:
            return
        self.frozen = False
        for way in list(self.conns.values()):
            way.other.unblock()
        if self.alive:
            self._schedule()

    # ---- events ------------------------------------------------------------------------------

    def post(self, event: Any) -> None:
        """Deliver an event; it is handled with others of its moment."""
        if self.alive:
            self._inbox.append(event)
            if not self._scheduled and not self.frozen:
                self._schedule()

    def post_later(self, delay: int, event: Any) -> None:
        """Deliver an event after a while, unless the process has died by then."""
        epoch = self.epoch

        def deliver() -> None:
            if epoch == self.epoch:
                self.post(event)

        self.world.after(delay, deliver)

    def _schedule(self) -> None:
        if not self._scheduled and not self.frozen:
            self._scheduled = True
            epoch = self.epoch
            self.world.after(0, lambda: self._step(epoch))

    def _step(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        self._scheduled = False
        if self.frozen or self.stands_still():
            return
        events, self._inbox = self._inbox, []
        out: list[Any] = []
        world = self.world
        self.machine.step(self._local(world.now), events, out)
        if world.after_step is not None:
            world.after_step(self)
        if world.on_step is not None:
            world.on_step(self, events, out)
        for effect in out:
            self.effect_count += 1
            if self.crash_at_effect is not None and self.effect_count >= self.crash_at_effect:
                self.crash_at_effect = None
                self.crash()
            if self.epoch != epoch:
                return
            self._perform(effect)
        if self.epoch == epoch:
            if self.afterwards is not None:
                self.afterwards()
            self._arm()

    def goes_on(self) -> None:
        """What the loop was busy with has ended."""
        if self.alive:
            self._schedule()

    def _arm(self) -> None:
        due = self.machine.deadline()
        if due is None:
            return
        # A deadline that has passed already is due in the next millisecond, or time would stand still.
        wake = max(self._world_time(due), self.world.now + 1)
        if self._wake_at is not None and self.world.now < self._wake_at <= wake:
            return
        self._wake_at = wake
        epoch = self.epoch

        def wake_up() -> None:
            if epoch == self.epoch and self._wake_at == wake:
                self._wake_at = None
                due = self.machine.deadline()
                if due is not None and self._world_time(due) > self.world.now:
                    self._arm()  # it was put off
                else:
                    self._schedule()

        self.world.at(wake, wake_up)

    def _perform(self, effect: Any) -> None:
        kind = type(effect)
        if kind is Send:
            way = self.conns.get(effect.conn)
            if way is not None:
                if self.world.on_send is not None:
                    self.world.on_send(self, effect.conn, effect.data)
                way.send(bytes(effect.data))
            return
        plugin = self.plugins.get(kind)
        if plugin is not None:
            plugin(effect)
        elif kind in _ZK_KINDS:
            self.world.zookeeper.request(self, effect)
        else:
            self._perform_rare(effect)

    def _perform_rare(self, effect: Any) -> None:
        if self.world.on_rare is not None:
            self.world.on_rare(self, effect)
        match effect:
            case CloseConn(conn, reason):
                way = self.conns.get(conn)
                if way is not None:
                    way.close(reason)
                elif conn in self._dialing:
                    self._dialing.discard(conn)
                    self.post_later(0, Closed(conn, reason))
            case Dial():
                self._dialing.add(effect.conn)
                self.world.network.dial(self, effect)
            case Report(level, text):
                self.reports.append((self.world.now, effect))
                self.world.trace(f"{self.name} {level.name} {text}")
                assert level < Level.ERROR or self.world.tolerates(text), text
            case Reading(conn, wanted):
                way = self.conns.get(conn)
                if way is not None:
                    way.other.take(wanted)
            case Ended():
                self.ended = effect
                self.world.trace(f"{self.name} ended {effect.reason}")
            case _ if self.on_told is not None:
                self.on_told(effect)
            case _:
                self.told.append(effect)

    def next_conn(self) -> int:
        """Id of the next accepted connection."""
        self._last_accepted += 1
        return self._last_accepted

    def dialed(self, conn: int, way: Way) -> bool:
        """A connection stands; False if it was given up meanwhile."""
        if conn not in self._dialing:
            return False
        self._dialing.discard(conn)
        self.conns[conn] = way
        return True

    def dial_failed(self, conn: int, reason: str) -> None:
        """A connection does not come to stand."""
        if conn in self._dialing:
            self._dialing.discard(conn)
            self.post(Closed(conn, reason))


class Way:
    """One direction of a connection, as its sender sees it: first in first out, cut into random pieces.

    Bytes that cannot pass (a cut network, a frozen or unwilling reader) wait, and are sent again when they
    can, as TCP does. `other` is the way back.
    """

    __slots__ = (
        "_gone",
        "_pending",
        "_ready_at",
        "_stopped",
        "_waiting",
        "_writable",
        "other",
        "sender",
        "sender_conn",
        "stalled",
        "target",
        "target_conn",
        "world",
    )

    def __init__(self, world: World, sender: SimNode, sender_conn: int, target: SimNode, target_conn: int) -> None:
        self.world = world
        self.sender = sender
        self.sender_conn = sender_conn
        self.target = target
        self.target_conn = target_conn
        self.other: Way
        self.stalled = False  # nothing arrives, and neither end notices
        self._ready_at = 0
        self._waiting: list[bytes | Closed] = []
        self._pending = 0  # bytes sent and not taken
        self._writable = True
        self._stopped = False  # the reader takes nothing
        self._gone: str | None = None  # the target's host is dead; what the sender will hear when it finds out

    @property
    def _linked(self) -> bool:
        """The target still holds its end."""
        return self.target.conns.get(self.target_conn) is self.other

    @property
    def _blocked(self) -> bool:
        return self._stopped or self._cut

    @property
    def _cut(self) -> bool:
        return self.stalled or self.target.frozen or (self.sender.name, self.target.name) in self.world.network.cut

    def send(self, data: bytes) -> None:
        """Send bytes."""
        if not self._linked:
            if self._gone is not None and self.target.alive:
                reason, self._gone = self._gone, None
                self._break(reason)
            return
        rng = self.world.net_rng
        self._pending += len(data)
        at, size = 0, len(data)
        piece = self.world.network.piece
        while at < size:
            length = piece or (size - at if rng.random() < 0.7 else rng.randrange(1, size - at + 1))
            self._put(data[at : at + length])
            at += length
        if self._writable and self._pending > self.world.network.high_mark:
            self._writable = False
            self.sender.post(Writable(self.sender_conn, False))

    def _put(self, item: bytes | Closed) -> None:
        network = self.world.network
        self._ready_at = due = max(self._ready_at, self.world.now + network.delay(self.sender, self.target))

        def arrive() -> None:
            if isinstance(item, Closed) and self._stopped and not self._cut:
                self._take(item)  # the end is seen although nothing is read
            elif self._waiting or self._blocked:
                self._waiting.append(item)
            else:
                self._take(item)

        self.world.at(due, arrive)

    def _take(self, item: bytes | Closed) -> None:
        if not self._linked:
            return
        if isinstance(item, Closed):
            del self.target.conns[self.target_conn]
            self.target.post(item)
            return
        self.target.post(Received(self.target_conn, item))
        self._pending -= len(item)
        if not self._writable and self._pending <= self.world.network.high_mark // 4:
            self._writable = True
            if self.sender.conns.get(self.sender_conn) is self:
                self.sender.post(Writable(self.sender_conn, True))

    def take(self, wanted: bool) -> None:
        """The reader takes bytes, or does not for a while."""
        self._stopped = not wanted
        self.unblock()

    def unblock(self) -> None:
        """Something that held bytes back may be over."""
        if not self._waiting or self._cut:
            return
        waiting, self._waiting = self._waiting, []
        if self._stopped:
            end = next((item for item in waiting if isinstance(item, Closed)), None)
            if end is None:
                self._waiting = waiting
            else:
                self._take(end)  # as when it arrives
            return
        for item in waiting:
            self._take(item)

    def close(self, reason: str) -> None:
        """Orderly: what was sent before arrives, then the end."""
        del self.sender.conns[self.sender_conn]
        self.sender.post_later(0, Closed(self.sender_conn, reason))
        if self._linked:
            self._put(Closed(self.target_conn, "closed by the peer"))

    def abandon(self, reason: str, silent: bool = False) -> None:
        """The sender is gone. Its peer gets `Closed`, if it can be reached, and loses what was under way."""
        back = self.other
        if not self._linked:
            return
        cut = self.stalled or (self.sender.name, self.target.name) in self.world.network.cut
        if silent or cut:
            back._gone = reason
        else:
            back._break(reason)

    def _break(self, reason: str) -> None:
        if self.sender.conns.get(self.sender_conn) is self:
            del self.sender.conns[self.sender_conn]
            self.sender.post_later(self.world.network.delay(self.sender, self.sender), Closed(self.sender_conn, reason))

    def reset(self, reason: str) -> None:
        """Both ends lose it, and everything under way."""
        self._break(reason)
        self.other._break(reason)


class Network:
    """Who reaches whom, and how fast."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listeners: dict[Endpoint, SimNode] = {}
        self.cut: set[tuple[str, str]] = set()  # (from, to): nothing passes; end one with `heal`
        self.latency = (0, 2)
        self.dial_timeout = 5_000
        self.piece = 0  # bytes that travel together; 0 = by chance
        self.high_mark = 1 << 20  # bytes sent and not taken above which a sender gets `Writable(False)`

    def delay(self, sender: SimNode, target: SimNode) -> int:
        """Milliseconds one piece travels."""
        low, high = self.latency
        return low + int(self.world.net_rng.random() * (high - low + 1))

    def passes(self, sender: SimNode, target: SimNode) -> bool:
        """Whether bytes get through at all."""
        return (sender.name, target.name) not in self.cut

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Let bytes pass again; everywhere by default."""
        healed = set(self.cut if pairs is None else pairs)
        self.cut -= healed
        for node in self.world.nodes.values():
            # Looked at from the reader: the sender may have let go of a connection whose end is still on its way.
            for way in [way.other for way in node.conns.values()]:
                if pairs is None:
                    way.stalled = False
                way.unblock()

    def dial(self, node: SimNode, dial: Dial) -> None:
        """Connect, or fail; a network that is cut and a frozen peer only show by time."""
        epoch = node.epoch
        give_up = self.world.now + self.dial_timeout

        def connect() -> None:
            if epoch != node.epoch:
                return
            target = self.listeners.get(dial.endpoint)
            if target is None:
                node.dial_failed(dial.conn, f"cannot connect to {dial.endpoint}")
            elif target.frozen or not self.passes(node, target) or not self.passes(target, node):
                if self.world.now >= give_up:
                    node.dial_failed(dial.conn, f"{dial.endpoint} did not answer")
                else:
                    self.world.after(200, connect)
            else:
                self._join(node, dial, target)

        self.world.after(self.delay(node, node), connect)

    def _join(self, node: SimNode, dial: Dial, target: SimNode) -> None:
        port = next(port for port, endpoint in target.listening.items() if endpoint == dial.endpoint)
        conn = target.next_conn()
        way = Way(self.world, node, dial.conn, target, conn)
        back = Way(self.world, target, conn, node, dial.conn)
        way.other, back.other = back, way
        if node.dialed(dial.conn, way):
            target.conns[conn] = back
            names = (node.certificate,) if node.certificate else ()
            target.post(Accepted(conn, port, node.name, names))
            node.post(Dialed(dial.conn))

    def reset_between(self, a: str, b: str) -> None:
        """Break every connection between two nodes."""
        other = self.world.nodes[b]
        for way in list(self.world.nodes[a].conns.values()):
            if way.target is other:
                way.reset("connection reset")


class ZooKeeper:
    """Two servers, a session per process, answers after a delay, in order for each process.

    The leader takes all writes. The follower, if there is one (`with_follower`), applies them later. A process
    connected to it reads the past and gets its watches late; as ZooKeeper promises, it sees its own writes, and
    nobody who moves from one server to the other sees an older state than before.

    Attributes:
        on_write: called with every write that succeeded.
        lag: how much later the follower applies a write, in ms.
        losing: processes whose next write is applied, and whose connection breaks before they hear of it.
        stale_reads: requests answered by a follower that was behind.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.tree = ZnodeTree()
        self.sessions: dict[str, int] = {}
        self.latency = (0, 3)
        self.down: set[str] = set()  # processes that do not reach it
        self.lag = 0
        self.losing: set[str] = set()
        self.stale_reads = 0
        self._follower: ZnodeTree | None = None
        self._entries: deque[Callable[[ZnodeTree], Any]] = deque()  # written, and not applied by the follower
        self._written = 0
        self._ready_at = 0
        self._behind: set[str] = set()  # processes connected to the follower
        self._held: dict[str, list[Callable[[], None]]] = {}  # requests behind a write that the follower lacks
        self._answers: deque[tuple[int, str, list[Callable[[], None]], Callable[[], None]]] = deque()
        self.on_write: Callable[[ZkRequest], None] | None = None
        self.on_answer: Callable[[SimNode, ZkRequest, Any, bool], None] | None = None  # True: it arrives
        self.losing_at: dict[str, tuple[str, ...]] = {}  # as `losing`, of the next write of one of these paths
        self._apply_at: dict[str, int] = {}
        self._reply_at: dict[str, int] = {}
        self._pending: dict[str, dict[int, None]] = {}  # tickets without an answer

    # ---- leader and follower ---------------------------------------------------------------------

    def with_follower(self) -> None:
        """Have a second server, from the beginning."""
        assert not self._written
        self._follower = ZnodeTree()

    def follow(self, node: SimNode) -> None:
        """A process loses its connection and finds the follower, which is up to date at this moment."""
        if self._follower is not None and not self._entries and node.name in self.sessions:
            self.suspend(node, 50)
            self._behind.add(node.name)

    def _write(self, operation: Callable[[ZnodeTree], Any]) -> Any:
        answer = operation(self.tree)
        self._written += 1
        if self._follower is not None:
            self._entries.append(operation)
            self._ready_at = max(self._ready_at, self.world.now + self.lag)
            self.world.at(self._ready_at, self._catch_up)
        return answer

    def _catch_up(self) -> None:
        assert self._follower is not None
        self._entries.popleft()(self._follower)
        self._fire()
        applied = self._written - len(self._entries)
        while self._answers and self._answers[0][0] <= applied:
            _, name, held, answer = self._answers.popleft()
            if self._held.get(name) is held:
                del self._held[name]
            answer()
            for action in held:
                action()

    # ---- sessions --------------------------------------------------------------------------------

    def connect(self, node: SimNode) -> None:
        """Open a session for a process."""
        epoch = node.epoch

        def connected() -> None:
            if epoch != node.epoch or node.name in self.sessions:
                return
            if node.name in self.down or node.frozen:
                self.world.after(500, connected)
                return
            self._behind.discard(node.name)
            self.sessions[node.name] = self._write(ZnodeTree.open_session)
            self._pending[node.name] = {}
            self._reply(node, ZkStateChanged(ZkState.CONNECTED, self.sessions[node.name]))

        self.world.after(self._delay(), connected)

    def abandon(self, node: SimNode) -> None:
        """The process died; its session ends after its time-out."""
        session = self.sessions.pop(node.name, None)
        if session is not None:
            self._forget_watches(session)
            self.world.after(node.zk_session_ms, lambda: self._close(session))

    def silent(self, node: SimNode) -> None:
        """The process sends no heartbeat while it is frozen; it finds out when it wakes up."""
        session = self.sessions.get(node.name)
        if session is None:
            return

        def expired() -> None:
            if node.frozen and self.sessions.get(node.name) == session:
                self._close(session)
                self._told_lost(node, session)

        self.world.after(node.zk_session_ms, expired)

    def expire(self, node: SimNode, notice_ms: int = 0) -> None:
        """ZooKeeper gives up the session of a living process, which notices after a while."""
        session = self.sessions.get(node.name)
        if session is None:
            return
        self._close(session)
        self.world.after(notice_ms, lambda: self._told_lost(node, session))

    def _told_lost(self, node: SimNode, session: int) -> None:
        if self.sessions.get(node.name) != session:
            return
        del self.sessions[node.name]
        self._lose_requests(node)
        self._reply(node, ZkStateChanged(ZkState.EXPIRED))
        self.connect(node)

    def suspend(self, node: SimNode, for_ms: int) -> None:
        """The connection breaks and comes back; the session expires if that takes too long."""
        session = self.sessions.get(node.name)
        if session is None or node.name in self.down:
            return
        self.down.add(node.name)
        self._forget_watches(session)
        self._reply(node, ZkStateChanged(ZkState.SUSPENDED))
        self._lose_requests(node)

        def lost() -> None:
            if self.sessions.get(node.name) == session and node.name in self.down:
                self._reply(node, ZkStateChanged(ZkState.PRESUMED_LOST))
                self._close(session)

        def back() -> None:
            self.down.discard(node.name)
            if self.sessions.get(node.name) != session:
                return
            if self.tree.has_session(session):
                self._reply(node, ZkStateChanged(ZkState.CONNECTED, session))
            else:
                self._told_lost(node, session)

        self.world.after(node.zk_session_ms, lost)
        self.world.after(for_ms, back)

    def _lose_requests(self, node: SimNode) -> None:
        """Nobody will learn what became of the requests on their way."""
        pending, self._pending[node.name] = self._pending.get(node.name, {}), {}
        self._held.pop(node.name, None)
        self._behind.discard(node.name)
        for ticket in pending:
            self._reply(node, ZkFailed(ticket, ZkError.OUTCOME_UNKNOWN))

    def request(self, node: SimNode, request: ZkRequest) -> None:
        """Apply a request after a while, answer after another; in order for each process."""
        session = self.sessions.get(node.name)
        if session is None or node.name in self.down:
            node.post_later(0, ZkFailed(request.ticket, ZkError.UNAVAILABLE))
            return
        epoch = node.epoch
        due = max(self._apply_at.get(node.name, 0), self.world.now + self._delay())
        self._apply_at[node.name] = due
        pending = self._pending.setdefault(node.name, {})
        pending[request.ticket] = None

        def apply() -> None:
            known = epoch == node.epoch and self._pending.get(node.name) is pending
            if not known and self.world.zk_rng.random() < 0.5:
                return  # lost with the connection
            behind = known and node.name in self._behind
            if behind and node.name in self._held:
                self._held[node.name].append(apply)
            elif isinstance(request, (ZkGet, ZkChildren)):
                tree = self._follower if behind and self._follower is not None else self.tree
                self.stale_reads += behind and bool(self._entries)
                answer = tree.apply(session, request)
                if known:
                    self._reply(node, answer, pending)
            else:
                self._apply_write(node, session, request, pending if known else None)

        self.world.at(due, apply)

    def _apply_write(self, node: SimNode, session: int, request: ZkRequest, pending: dict[int, None] | None) -> None:
        answer = self._write(lambda tree: tree.apply(session, request))
        if self.on_write is not None and isinstance(answer, ZkDone):
            self.on_write(request)
        self._fire()
        path = "" if isinstance(request, ZkMulti) else request.path
        loses = node.name in self.losing or path in self.losing_at.get(node.name, ())
        if self.on_answer is not None:
            self.on_answer(node, request, answer, pending is not None and not loses)
        if pending is None:
            return
        if loses:
            self.losing.discard(node.name)
            self.losing_at.pop(node.name, None)
            self.suspend(node, 100)
        elif node.name in self._behind:
            held = self._held[node.name] = []
            self._answers.append((self._written, node.name, held, lambda: self._reply(node, answer, pending)))
        else:
            self._reply(node, answer, pending)

    def _reply(self, node: SimNode, event: Any, pending: dict[int, None] | None = None) -> None:
        """Deliver an event to a process, after all earlier ones."""
        epoch = node.epoch
        due = max(self._reply_at.get(node.name, 0), self.world.now + self._delay() // 2)
        self._reply_at[node.name] = due

        def tell() -> None:
            if epoch != node.epoch:
                return
            if pending is not None:
                if event.ticket not in pending:
                    return  # its loss was reported already
                del pending[event.ticket]
            node.post(event)

        self.world.at(due, tell)

    def write(self, requests: list[ZkRequest]) -> None:
        """Apply requests of an operator at once."""
        session = self._write(ZnodeTree.open_session)
        for request in requests:
            answer = self._write(partial(ZnodeTree.apply, session_id=session, request=request))
            assert not isinstance(answer, ZkFailed), (request, answer)
        self._write(lambda tree: tree.close_session(session))
        self._fire()

    def read(self, path: str) -> bytes | None:
        """Data of a node as it stands, None if there is no such node."""
        session = self._write(ZnodeTree.open_session)
        answer = self.tree.apply(session, ZkGet(0, path))
        self._write(lambda tree: tree.close_session(session))
        return answer.data if isinstance(answer, ZkDone) else None

    def _close(self, session: int) -> None:
        self._write(lambda tree: tree.close_session(session))
        self._fire()

    def _forget_watches(self, session: int) -> None:
        for tree in (self.tree, self._follower):
            if tree is not None:
                tree.forget_watches(session)

    def _fire(self) -> None:
        fired = self.tree.fired() + (self._follower.fired() if self._follower is not None else [])
        for session, path in fired:
            for name, owner in self.sessions.items():
                if owner == session and name not in self.down:
                    self._reply(self.world.nodes[name], ZkChanged(path))

    def _delay(self) -> int:
        return self.world.zk_rng.randint(*self.latency)


@contextmanager
def explained(world: World) -> Iterator[None]:
    """Print the end of the log when something fails."""
    world.verbose = True
    try:
        yield
    except BaseException:
        print("\n".join(world.log[-200:]))
        raise
