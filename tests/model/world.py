"""A deterministic world around process machines: one heap of events, a network, ZooKeeper, disks.

No Trio, no threads, no sockets. Time is an integer of milliseconds. Each kind of chance has its own
random stream, so that changing one does not reshuffle the others.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from waltz_core.cluster.znode_tree import ZnodeTree
from waltz_core.edge import (
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
    ZkChanged,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkError,
    ZkFailed,
    ZkGet,
    ZkMulti,
    ZkRequest,
    ZkSet,
    ZkState,
    ZkStateChanged,
)
from waltz_core.ids import Endpoint

ZK_REQUESTS = (ZkGet, ZkChildren, ZkCreate, ZkSet, ZkDelete, ZkMulti)


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
        self.log: list[str] = []
        self.verbose = False
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Do `action` at `time`; actions of one moment keep their order."""
        self._order += 1
        heapq.heappush(self._heap, (max(time, self.now), self._order, action))

    def after(self, delay: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay` ms."""
        self.at(self.now + delay, action)

    def run(self, until: int) -> None:
        """Let time pass up to `until`."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = max(self.now, until)

    def run_while(self, condition: Callable[[], bool], limit: int) -> bool:
        """Let time pass while `condition` holds, at most `limit` ms; returns whether it ended by itself."""
        end = self.now + limit
        while condition():
            if not self._heap or self._heap[0][0] > end:
                self.now = end
                return False
            self.now, _, action = heapq.heappop(self._heap)
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
    """Runs one process machine; `start` makes a new one from its durable state, `crash` forgets it."""

    def __init__(self, world: World, name: str, machine: Callable[[], Any], *, zk_session_ms: int = 4_000) -> None:
        self.world = world
        self.name = name
        self.machine: Any = None
        self.alive = False
        self.frozen = False
        self.ended: Ended | None = None
        self.reports: list[tuple[int, Report]] = []
        self.conns: dict[int, Pipe] = {}
        self.listening: dict[Port, Endpoint] = {}
        self.told: list[Any] = []
        self.on_told: Callable[[Any], None] | None = None
        self.plugins: dict[type, Callable[[Any], None]] = {}
        self.zk_session_ms = zk_session_ms
        self.uses_zookeeper = True
        self.effect_count = 0
        self.crash_at_effect: int | None = None  # crash between two effects
        self._make = machine
        self._inbox: list[Any] = []
        self._scheduled = False
        self._wake_at: int | None = None
        self._epoch = 0
        self._last_accepted = 0
        world.nodes[name] = self

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a fresh machine."""
        assert not self.alive
        self.world.trace(f"{self.name} starts")
        self.alive = True
        self.frozen = False
        self.ended = None
        self._epoch += 1
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

    def crash(self) -> None:
        """The process is gone: connections reset, memory lost, what was not synced at the disk's mercy."""
        if not self.alive:
            return
        self.world.trace(f"{self.name} crashes")
        self.alive = False
        self._epoch += 1
        self.machine = None
        for endpoint in self.listening.values():
            self.world.network.listeners.pop(endpoint, None)
        for pipe in list(self.conns.values()):
            pipe.reset("peer crashed")
        self.conns.clear()
        self.world.zookeeper.abandon(self)

    def freeze(self) -> None:
        """The process stops being scheduled (a pause); it wakes up believing what it believed."""
        self.frozen = True

    def thaw(self) -> None:
        """It goes on."""
        self.frozen = False
        self._schedule()

    # ---- events ------------------------------------------------------------------------------

    def post(self, event: Any) -> None:
        """Deliver an event; it is handled with others of its moment."""
        if self.alive:
            self._inbox.append(event)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self.frozen:
            self._scheduled = True
            epoch = self._epoch
            self.world.after(0, lambda: self._step(epoch))

    def _step(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._scheduled = False
        if self.frozen:
            return
        events, self._inbox = self._inbox, []
        out: list[Any] = []
        self.machine.step(self.world.now, events, out)
        for effect in out:
            self.effect_count += 1
            if self.crash_at_effect is not None and self.effect_count >= self.crash_at_effect:
                self.crash_at_effect = None
                self.crash()
            if not self.alive:
                return
            self._perform(effect)
        self._arm()

    def _arm(self) -> None:
        due = self.machine.deadline()
        if due is None:
            return
        if self._wake_at is not None and self.world.now < self._wake_at <= due:
            return
        # A deadline that has passed already is due in the next millisecond, or time would stand still.
        wake = max(due, self.world.now + 1)
        self._wake_at = wake
        epoch = self._epoch

        def wake_up() -> None:
            if epoch == self._epoch:
                self._wake_at = None
                self._schedule()

        self.world.at(wake, wake_up)

    def _perform(self, effect: Any) -> None:  # noqa: C901  one case per kind of effect
        match effect:
            case Send(conn, data):
                pipe = self.conns.get(conn)
                if pipe is not None:
                    pipe.send(self, bytes(data))
            case CloseConn(conn, reason):
                pipe = self.conns.get(conn)
                if pipe is not None:
                    pipe.close(self, reason)
            case Dial():
                self.world.network.dial(self, effect)
            case Report(level, text):
                self.reports.append((self.world.now, effect))
                self.world.trace(f"{self.name} {level.name} {text}")
                assert level < Level.ERROR or "stays out" in text, text
            case Reading(conn, wanted):
                pipe = self.conns.get(conn)
                if pipe is not None:
                    pipe.reading(self, wanted)
            case Ended():
                self.ended = effect
                self.world.trace(f"{self.name} ended {effect.reason}")
            case _ if isinstance(effect, ZK_REQUESTS):
                self.world.zookeeper.request(self, effect)
            case _:
                plugin = self.plugins.get(type(effect))
                if plugin is not None:
                    plugin(effect)
                elif self.on_told is not None:
                    self.on_told(effect)
                else:
                    self.told.append(effect)

    def next_conn(self) -> int:
        """Id of the next accepted connection."""
        self._last_accepted += 1
        return self._last_accepted


class Pipe:
    """One connection: two directions, first in first out, cut into random pieces."""

    def __init__(self, world: World, a: SimNode, a_conn: int, b: SimNode, b_conn: int) -> None:
        self.world = world
        self.ends = {a: a_conn, b: b_conn}
        self.other = {a: b, b: a}
        self.open = True
        self._ready_at = {a: 0, b: 0}  # when the last piece towards this end arrives
        self._held: dict[SimNode, list[bytes]] = {}
        self.stalled = False  # nothing arrives any more, and nobody is told

    def send(self, sender: SimNode, data: bytes) -> None:
        target = self.other[sender]
        if not self.open or not self.world.network.passes(sender, target):
            return
        rng = self.world.net_rng
        at = 0
        while at < len(data):
            size = len(data) - at if rng.random() < 0.7 else rng.randrange(1, len(data) - at + 1)
            piece = data[at : at + size]
            at += size
            self._arrive(sender, target, piece)

    def _arrive(self, sender: SimNode, target: SimNode, piece: bytes) -> None:
        due = max(self._ready_at[target], self.world.now + self.world.network.delay(sender, target))
        self._ready_at[target] = due

        def deliver() -> None:
            if not self.open or target not in self.ends:
                return
            if target in self._held:
                self._held[target].append(piece)
            else:
                target.post(Received(self.ends[target], piece))

        self.world.at(due, deliver)

    def reading(self, node: SimNode, wanted: bool) -> None:
        """A side takes no bytes for a while."""
        if not wanted:
            self._held.setdefault(node, [])
            return
        for piece in self._held.pop(node, ()):
            node.post(Received(self.ends[node], piece))

    def close(self, closer: SimNode, reason: str) -> None:
        """Orderly: what was sent before arrives, then the end."""
        target = self.other[closer]
        closer.conns.pop(self.ends[closer], None)
        closer_conn = self.ends[closer]
        self.world.after(0, lambda: closer.post(Closed(closer_conn, reason)))
        due = max(self._ready_at[target], self.world.now + self.world.network.delay(closer, target))

        def end() -> None:
            if self.open:
                self.open = False
                if target.conns.pop(self.ends[target], None) is not None:
                    target.post(Closed(self.ends[target], "closed by the peer"))

        self.world.at(due, end)

    def reset(self, reason: str) -> None:
        """Both ends lose it, and everything under way."""
        if not self.open:
            return
        self.open = False
        for node, conn in self.ends.items():
            if node.conns.pop(conn, None) is not None:
                self.world.after(
                    self.world.network.delay(node, node), lambda node=node, conn=conn: node.post(Closed(conn, reason))
                )


class Network:
    """Who reaches whom, and how fast."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listeners: dict[Endpoint, SimNode] = {}
        self.cut: set[tuple[str, str]] = set()  # (from, to): nothing passes
        self.latency = (0, 2)

    def delay(self, sender: SimNode, target: SimNode) -> int:
        """Milliseconds one piece travels."""
        return self.world.net_rng.randint(*self.latency)

    def passes(self, sender: SimNode, target: SimNode) -> bool:
        """Whether bytes get through at all."""
        return (sender.name, target.name) not in self.cut

    def dial(self, node: SimNode, dial: Dial) -> None:
        def connect() -> None:
            target = self.listeners.get(dial.endpoint)
            if not node.alive:
                return
            if target is None or not self.passes(node, target) or not self.passes(target, node):
                node.post(Closed(dial.conn, f"cannot connect to {dial.endpoint}"))
                return
            port = next(port for port, endpoint in target.listening.items() if endpoint == dial.endpoint)
            conn = target.next_conn()
            pipe = Pipe(self.world, node, dial.conn, target, conn)
            node.conns[dial.conn] = pipe
            target.conns[conn] = pipe
            target.post(Accepted(conn, port, node.name))
            node.post(Dialed(dial.conn))

        self.world.after(self.delay(node, node), connect)

    def reset_between(self, a: str, b: str) -> None:
        """Break every connection between two nodes."""
        node, other = self.world.nodes[a], self.world.nodes[b]
        for pipe in list(node.conns.values()):
            if other in pipe.ends:
                pipe.reset("connection reset")


class ZooKeeper:
    """One tree, a session per process, answers after a delay."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tree = ZnodeTree()
        self.sessions: dict[str, int] = {}
        self.latency = (0, 3)
        self.down: set[str] = set()  # processes that do not reach it
        self._ready_at: dict[str, int] = {}

    def connect(self, node: SimNode) -> None:
        """Open a session for a process."""

        def connected() -> None:
            if not node.alive or node.name in self.sessions:
                return
            if node.name in self.down:
                self.world.after(500, connected)
                return
            self.sessions[node.name] = self.tree.open_session()
            node.post(ZkStateChanged(ZkState.CONNECTED, self.sessions[node.name]))

        self.world.after(self._delay(), connected)

    def abandon(self, node: SimNode) -> None:
        """The process died; its session ends after its time-out."""
        session = self.sessions.pop(node.name, None)
        if session is not None:
            self.world.after(node.zk_session_ms, lambda: self._close(session))

    def expire(self, node: SimNode) -> None:
        """ZooKeeper gives up the session of a living process."""
        session = self.sessions.pop(node.name, None)
        if session is None:
            return
        self._close(session)
        node.post(ZkStateChanged(ZkState.EXPIRED))
        self.connect(node)

    def suspend(self, node: SimNode, for_ms: int) -> None:
        """The connection breaks and comes back; the session expires if that takes too long."""
        session = self.sessions.get(node.name)
        if session is None or node.name in self.down:
            return
        self.down.add(node.name)
        self.tree.forget_watches(session)
        node.post(ZkStateChanged(ZkState.SUSPENDED))

        def lost() -> None:
            if self.sessions.get(node.name) == session and node.name in self.down:
                node.post(ZkStateChanged(ZkState.PRESUMED_LOST))
                self._close(session)

        def back() -> None:
            self.down.discard(node.name)
            if not node.alive or self.sessions.get(node.name) != session:
                return
            if self.tree.has_session(session):
                node.post(ZkStateChanged(ZkState.CONNECTED, session))
            else:
                del self.sessions[node.name]
                node.post(ZkStateChanged(ZkState.EXPIRED))
                self.connect(node)

        self.world.after(node.zk_session_ms, lost)
        self.world.after(for_ms, back)

    def request(self, node: SimNode, request: ZkRequest) -> None:
        """Apply a request after a while, answer after another; in order for each process."""
        session = self.sessions.get(node.name)
        if session is None or node.name in self.down:
            self.world.after(0, lambda: node.post(ZkFailed(request.ticket, ZkError.UNAVAILABLE)))
            return
        due = max(self._ready_at.get(node.name, 0), self.world.now + self._delay())
        self._ready_at[node.name] = due

        def apply() -> None:
            answer = self.tree.apply(session, request)
            self._fire()
            if node.name in self.down:
                node.post(ZkFailed(request.ticket, ZkError.OUTCOME_UNKNOWN))
            else:
                node.post(answer)

        self.world.at(due, apply)

    def write(self, requests: list[ZkRequest]) -> None:
        """Apply requests of an operator at once."""
        session = self.tree.open_session()
        for request in requests:
            answer = self.tree.apply(session, request)
            assert not isinstance(answer, ZkFailed), (request, answer)
        self.tree.close_session(session)
        self._fire()

    def _close(self, session: int) -> None:
        self.tree.close_session(session)
        self._fire()

    def _fire(self) -> None:
        for session, path in self.tree.fired():
            for name, owner in self.sessions.items():
                if owner == session and name not in self.down:
                    self.world.nodes[name].post(ZkChanged(path))

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
