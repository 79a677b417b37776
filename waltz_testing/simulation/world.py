"""A deterministic world around process machines: one heap of events, a network, ZooKeeper, disks.

No Trio, no threads, no sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waltz_core.base.edge import (
    CloseConn,
    Closed,
    Dial,
    Ended,
    Level,
    Port,
    Reading,
    Report,
    Send,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkGet,
    ZkMulti,
    ZkSet,
)
from waltz_core.base.ids import Endpoint
from waltz_testing.simulation.timeline import Timeline
from waltz_testing.simulation.world_network import Network, Way
from waltz_testing.simulation.world_zookeeper import ZooKeeper

_ZK_KINDS = frozenset({ZkGet, ZkChildren, ZkCreate, ZkSet, ZkDelete, ZkMulti})


class World(Timeline):
    """What there is on one timeline: processes, a network, ZooKeeper; and who looks on."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.nodes: dict[str, SimNode] = {}
        self.network = Network(self, self.nodes)
        self.zookeeper = ZooKeeper(self, self.nodes)
        self.after_step: Callable[[SimNode], None] | None = None  # looks at a node before its effects are performed
        self.on_step: Callable[[SimNode, list[Any], list[Any]], None] | None = None  # what went in, and what came out
        self.on_send: Callable[[SimNode, int, bytes], None] | None = None  # a process gave bytes to a connection
        self.on_rare: Callable[[SimNode, Any], None] | None = None  # any other effect of the edge
        self.tolerates: Callable[[str], bool] = lambda text: "stays out" in text  # reports of errors that are no bug


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
        self.unclaimed: list[Any] = []
        self.on_effect: Callable[[Any], None] | None = None
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
            self.world.network.dark.discard(endpoint)
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
            if silent:
                self.world.network.dark.add(endpoint)
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
                used = effect.conn in self._dialing or effect.conn in self.conns
                assert not used, f"{self.name} dials under the id of another connection, {effect.conn}"
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
            case _ if self.on_effect is not None:
                self.on_effect(effect)
            case _:
                self.unclaimed.append(effect)

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

    def dial_failed(self, conn: int, reason: str, *, refused: bool = False) -> None:
        """A connection does not come to stand; `refused` where nobody listens."""
        if conn in self._dialing:
            self._dialing.discard(conn)
            self.post(Closed(conn, reason, refused=refused))
