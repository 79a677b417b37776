"""The network of a simulated world: who reaches whom, how fast, and what a connection does to the bytes on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from waltz_core.base.edge import Accepted, Closed, Dial, Dialed, Port, Received, Writable
from waltz_core.base.ids import Endpoint
from waltz_testing.simulation.timeline import Timeline
from waltz_trio.net.listener import KEEP_ALIVE_AFTER, KEEP_ALIVE_EVERY, KEEP_ALIVE_PROBES

_PROBE_MS = 1_000
"""How long after a host is back it tells those that still have bytes for what it was."""
_KEEP_ALIVE_MS = (KEEP_ALIVE_AFTER * 1_000, KEEP_ALIVE_EVERY * 1_000, KEEP_ALIVE_PROBES)


class Host(Protocol):
    """A process as the network sees it."""

    name: str
    certificate: str
    alive: bool
    frozen: bool
    epoch: int
    conns: dict[int, Way]
    listening: dict[Port, Endpoint]

    def post(self, event: Any) -> None:
        """Deliver an event."""

    def post_later(self, delay: int, event: Any) -> None:
        """Deliver an event after a while."""

    def next_conn(self) -> int:
        """Id of the next accepted connection."""

    def dialed(self, conn: int, way: Way) -> bool:
        """A connection stands; False if it was given up meanwhile."""

    def dial_failed(self, conn: int, reason: str, *, refused: bool = False) -> None:
        """A connection does not come to stand; `refused` where nobody listens."""


class Way:
    """One direction of a connection, as its sender sees it: first in first out, cut into random pieces.

    Bytes that cannot pass (a cut network, a frozen or unwilling reader) wait, and are sent again when they
    can, as TCP does. `other` is the way back.
    """

    __slots__ = (
        "_gone",
        "_network",
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
    )

    def __init__(self, network: Network, sender: Host, sender_conn: int, target: Host, target_conn: int) -> None:
        self._network = network
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
        return self.stalled or self.target.frozen or (self.sender.name, self.target.name) in self._network.cut

    def send(self, data: bytes) -> None:
        """Send bytes."""
        if not self._linked:
            if self._gone is not None and self.target.alive:
                reason, self._gone = self._gone, None
                self._break(reason)
            return
        rng = self._network.time.net_rng
        self._pending += len(data)
        at, size = 0, len(data)
        piece = self._network.piece
        while at < size:
            length = piece or (size - at if rng.random() < 0.7 else rng.randrange(1, size - at + 1))
            self._put(data[at : at + length])
            at += length
        if self._writable and self._pending > self._network.high_mark:
            self._writable = False
            self.sender.post(Writable(self.sender_conn, False))

    def _put(self, item: bytes | Closed) -> None:
        network = self._network
        self._ready_at = due = max(self._ready_at, network.time.now + network.delay(self.sender, self.target))

        def arrive() -> None:
            if isinstance(item, Closed) and self._stopped and not self._cut:
                self._take(item)  # the end is seen although nothing is read
            elif self._waiting or self._blocked:
                self._waiting.append(item)
            else:
                self._take(item)

        network.time.at(due, arrive)

    def _take(self, item: bytes | Closed) -> None:
        if not self._linked:
            return
        if isinstance(item, Closed):
            del self.target.conns[self.target_conn]
            self.target.post(item)
            return
        self.target.post(Received(self.target_conn, item))
        self._pending -= len(item)
        if not self._writable and self._pending <= self._network.high_mark // 4:
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
        cut = self.stalled or (self.sender.name, self.target.name) in self._network.cut
        if silent or cut:
            back._gone = reason
            after, every, times = _KEEP_ALIVE_MS
            self._network.time.after(after, lambda: back._keep_alive(every, times))
            if not back._writable:
                back._probe()
        else:
            back._break(reason)

    def _probe(self) -> None:
        """As TCP does where bytes wait to be sent: ask again and again, until the host says that the target is gone."""
        if not self._answered():
            self._network.time.after(_PROBE_MS, self._probe)

    def _keep_alive(self, every: int, times: int) -> None:
        """As TCP does where nothing is sent: ask a few times, then give up."""
        if self._answered():
            return
        if times:
            self._network.time.after(every, lambda: self._keep_alive(every, times - 1))
        else:
            self._gone = None
            self._break("connection timed out")

    def _answered(self) -> bool:
        """Whether nobody has to ask any more: by now the host itself says that the target is gone, if it is back."""
        if self._gone is None or self.sender.conns.get(self.sender_conn) is not self:
            return True
        network = self._network
        heard = network.passes(self.sender, self.target) and network.passes(self.target, self.sender)
        if not self.target.alive or not heard or self.stalled:
            return False
        reason, self._gone = self._gone, None
        self._break(reason)
        return True

    def _break(self, reason: str) -> None:
        if self.sender.conns.get(self.sender_conn) is self:
            del self.sender.conns[self.sender_conn]
            self.sender.post_later(self._network.delay(self.sender, self.sender), Closed(self.sender_conn, reason))

    def reset(self, reason: str) -> None:
        """Both ends lose it, and everything under way."""
        self._break(reason)
        self.other._break(reason)


class Network:
    """Who reaches whom, and how fast."""

    def __init__(self, time: Timeline, nodes: Mapping[str, Host]) -> None:
        self.time = time
        self._nodes = nodes
        self.listeners: dict[Endpoint, Host] = {}
        self.dark: set[Endpoint] = set()  # their hosts are gone, and refuse nothing
        self.cut: set[tuple[str, str]] = set()  # (from, to): nothing passes; end one with `heal`
        self.latency = (0, 2)
        self.dial_timeout = 5_000
        self.piece = 0  # bytes that travel together; 0 = by chance
        self.high_mark = 1 << 20  # bytes sent and not taken above which a sender gets `Writable(False)`

    def delay(self, sender: Host, target: Host) -> int:
        """Milliseconds one piece travels."""
        low, high = self.latency
        return low + int(self.time.net_rng.random() * (high - low + 1))

    def passes(self, sender: Host, target: Host) -> bool:
        """Whether bytes get through at all."""
        return (sender.name, target.name) not in self.cut

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Let bytes pass again; everywhere by default."""
        healed = set(self.cut if pairs is None else pairs)
        self.cut -= healed
        for node in self._nodes.values():
            # Looked at from the reader: the sender may have let go of a connection whose end is still on its way.
            for way in [way.other for way in node.conns.values()]:
                if pairs is None:
                    way.stalled = way.other.stalled = False
                way.unblock()

    def dial(self, node: Host, dial: Dial) -> None:
        """Connect, or fail; a network that is cut and a frozen peer only show by time."""
        epoch = node.epoch
        give_up = self.time.now + self.dial_timeout

        def connect() -> None:
            if epoch != node.epoch:
                return
            target = self.listeners.get(dial.endpoint)
            if target is None:
                refused = dial.endpoint not in self.dark
                node.dial_failed(dial.conn, f"cannot connect to {dial.endpoint}", refused=refused)
            elif target.frozen or not self.passes(node, target) or not self.passes(target, node):
                if self.time.now >= give_up:
                    node.dial_failed(dial.conn, f"{dial.endpoint} did not answer")
                else:
                    self.time.after(200, connect)
            else:
                self._join(node, dial, target)

        self.time.after(self.delay(node, node), connect)

    def _join(self, node: Host, dial: Dial, target: Host) -> None:
        port = next(port for port, endpoint in target.listening.items() if endpoint == dial.endpoint)
        conn = target.next_conn()
        way = Way(self, node, dial.conn, target, conn)
        back = Way(self, target, conn, node, dial.conn)
        way.other, back.other = back, way
        if node.dialed(dial.conn, way):
            target.conns[conn] = back
            names = (node.certificate,) if node.certificate else ()
            target.post(Accepted(conn, port, node.name, names))
            node.post(Dialed(dial.conn))

    def reset_between(self, a: str, b: str) -> None:
        """Break every connection between two nodes."""
        other = self._nodes[b]
        for way in list(self._nodes[a].conns.values()):
            if way.target is other:
                way.reset("connection reset")
