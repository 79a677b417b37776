"""The watch over the other servers of the cluster, by which the end of one is noticed at once.

ZooKeeper keeps the descriptor of a server that was killed until its session times out, and until then nobody serves its
partitions. The kernel of its host knows better: when a process ends, for whatever reason, its connections end, and who
dials its port again is refused, as nobody listens there. So each server keeps a connection to the client port of every
other one that does the same.

```
             lets us in               ends                 refused
UNKNOWN ────────────────► SEEN ──────────────► in doubt ────────────► gone: its descriptor is deleted
   ▲ │ any failure         ▲                     │ │ any other failure: dialed again, pauses grow
   └─┘ dialed again        └─────────────────────┘ └─────────────────────────────────────────────► in doubt
                                lets us in
```

* **Only who was seen can be gone.** A firewall may refuse us what it lets clients do: a server whose descriptor is new
  must let us in before a refusal says anything of it.
* **Silence says nothing.** Who is paused, cut off, or whose host has lost its power, refuses nothing: the time-out of
  the session decides, as in 0.13.2.
* **No safety rests on it**: see `Registration.gone`. Several servers may delete the same descriptor; the name of a
  descriptor is never used again, so that nobody deletes that of a server which has started again.

Servers of 0.13.2 are neither watched nor watch; their descriptors lack our mark.
"""

from __future__ import annotations

from collections.abc import Callable

from waltz_core.base.attempts import Attempts
from waltz_core.base.contract import Rng, earliest
from waltz_core.base.edge import Closed, Level, Port, Report
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.base.outbox import Emits
from waltz_core.wire.client_messages import ClientMessage, ClusterInfoRequest, ClusterInfoResponse
from waltz_core.wire.connection import CLIENT_PROTOCOL
from waltz_core.wire.dialer import Dialer, DialerEffect, DialState
from waltz_core.wire.port_session import PortSession

HELLO_TEXT = "Waltz Server"
PAUSE_MIN_MS = 100
PAUSE_MAX_MS = 30_000
GREETING_MS = 10_000
ASK_MS = 600_000  # as often as clients send their keep-alives: who is silent for half an hour loses its connection
_VERSIONS = (5,)  # who watches speaks it
_WORTH_A_LINE = 3  # failures in a row: a server that ends, or restarts, is no trouble of the watch


class _Calm(Attempts):
    """Only an answer is a success: who lets us in and then ends the connection is dialed more and more rarely."""

    __slots__ = ("_failures",)

    def __init__(self, rng: Rng) -> None:
        super().__init__(PAUSE_MIN_MS, PAUSE_MAX_MS, rng)
        self._failures = 0

    def failed(self, reason: str, *, quiet: bool = False) -> bool:
        """See `Attempts`."""
        self._failures += 1
        return super().failed(reason, quiet=quiet or self._failures < _WORTH_A_LINE)

    def succeeded(self) -> bool:
        """It has let us in, which is not worth a line yet."""
        return False

    def answered(self) -> bool:
        """The server has nothing against us; whether that is worth a line."""
        self._failures = 0
        return super().succeeded()


class Neighbor(Dialer[ClientMessage]):
    """One other server, from the time when its descriptor appears to its end."""

    __slots__ = ("_ask_at", "_asked", "_calm", "name", "seen")

    def __init__(
        self, name: str, endpoint: Endpoint, out: Emits[DialerEffect], new_conn: Callable[[], int], rng: Rng
    ) -> None:
        self._calm = _Calm(rng)
        super().__init__(
            endpoint,
            Port.CLIENT,
            out,
            new_conn,
            lambda: PortSession[ClientMessage](CLIENT_PROTOCOL, HELLO_TEXT, _VERSIONS),
            name=f"server {endpoint}",
            kind="a server",
            greeting_ms=GREETING_MS,
            again=self._calm,
        )
        self.name = name
        self.seen = False  # it has let us in
        self._asked = False  # on the present connection
        self._ask_at: int | None = None  # when it is asked again; None without a connection

    def warning(self, reason: str) -> str:
        """See `Dialer`. Clients may reach the server all the same, and it may be silent because its host is gone."""
        return (
            f"cannot watch server {self.endpoint}: {reason}; its end would be noticed only when its ZooKeeper session "
            "times out: if it runs, open its client port to the other servers (firewall, certificates)"
        )

    def dialed(self, now: int) -> None:
        """The connection stands."""
        self._asked = False
        self._ask_at = now + ASK_MS
        super().dialed(now)

    def received(self, data: bytes) -> list[ClientMessage]:
        """Bytes of the server: ask it something, as it ends connections that never do."""
        answers = super().received(data)
        if self.state is DialState.READY and not self._asked:
            self._asked = self.seen = True
            self._ask()
        if any(isinstance(answer, ClusterInfoResponse) for answer in answers) and self._calm.answered():
            self._out.put(Report(Level.INFO, f"server {self.endpoint} is watched again"))
        self.flush()
        return answers

    def closed(self, now: int, reason: str, *, untrusted: bool = False) -> None:
        """The connection ended, or the dial failed."""
        self._ask_at = None
        super().closed(now, reason, untrusted=untrusted)

    def due(self, now: int) -> None:
        """Besides what every dialer does: ask again, or the connection would end as one that is idle."""
        super().due(now)
        if self._ask_at is not None and now >= self._ask_at:
            self._ask_at = now + ASK_MS
            if self.state is DialState.READY:
                self._ask()
                self.flush()

    def deadline(self) -> int | None:
        """When `due` has something to do."""
        return earliest(super().deadline(), self._ask_at)

    def _ask(self) -> None:
        self.send(ClusterInfoRequest(make_req_id(-1, 0, 0, 0), client_id_wanted=False, subscribe=False))


class Neighbors:
    """All other servers that are watched."""

    def __init__(self, out: Emits[DialerEffect], new_conn: Callable[[], int], rng: Rng) -> None:
        self._out = out
        self._new_conn = new_conn
        self._rng = rng
        self._watched: dict[str, Neighbor] = {}  # by the name of the descriptor
        self._of_conn: dict[int, Neighbor] = {}  # also those that are not watched any more, until the connection ends

    def changed(self, servers: tuple[tuple[str, Endpoint], ...]) -> None:
        """The others are these now."""
        present = dict(servers)
        for name in [name for name in self._watched if name not in present]:
            self._watched.pop(name).give_up("it has left the cluster")
        for name, endpoint in present.items():
            if name not in self._watched:
                self._watched[name] = neighbor = Neighbor(name, endpoint, self._out, self._new_conn, self._rng)
                neighbor.want()
                self._keep(neighbor)

    def dialed(self, now: int, conn: int) -> None:
        """A connection stands."""
        self._of_conn[conn].dialed(now)

    def received(self, conn: int, data: bytes) -> None:
        """Bytes of a server."""
        self._of_conn[conn].received(data)

    def closed(self, now: int, event: Closed) -> str | None:
        """A connection has ended, or could not be made; returns the descriptor of a server that is gone by that."""
        neighbor = self._of_conn.pop(event.conn)
        neighbor.closed(now, event.reason, untrusted=event.untrusted)
        if not (event.refused and neighbor.seen and neighbor.name in self._watched):
            return None
        del self._watched[neighbor.name]
        text = (
            f"server {neighbor.endpoint} has ended: nobody listens there; its descriptor {neighbor.name} is deleted, "
            "and its partitions go to other servers; start it again"
        )
        self._out.put(Report(Level.WARNING, text))
        return neighbor.name

    def due(self, now: int) -> None:
        """The alarm rang."""
        for neighbor in self._watched.values():
            neighbor.due(now)
            self._keep(neighbor)

    def deadline(self) -> int | None:
        """When `due` has something to do."""
        return earliest(*(neighbor.deadline() for neighbor in self._watched.values()))

    def _keep(self, neighbor: Neighbor) -> None:
        if neighbor.conn is not None:
            self._of_conn[neighbor.conn] = neighbor
