"""The port for clients: their connections, what they may hold of this process, and in which order they are served.

What a connection goes through:

    accepted ──▶ stranger ── greeted ──▶ known ── closed by us ──▶ closing ── Closed ──▶ forgotten
                    └───── no greeting in time, evicted, or a breach of the protocol ─────▲

A batch of requests is handed on at once if it is small; more of one connection waits in turns (`Turns`), and reading
from it stops until they are handled. Reading stops also while a connection takes no data, while payloads wait for it,
and while it holds more than its fair part of what is scarce. Bytes for a connection gather during a step and leave as
one `Send`; a connection that has nothing to send costs a step nothing.

This file owns everything that is known of a connection. Partitions see it as `Peer`, by whose number they reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from waltz_core.access.admission import Admission, Eviction, host_of
from waltz_core.access.roles import Access
from waltz_core.base.edge import Accepted, CloseConn, Closed, Level, Reading, Received, Report, Send, Writable
from waltz_core.base.errors import ProtocolError
from waltz_core.server.appender import RECORD_OVERHEAD
from waltz_core.server.claims import Claims
from waltz_core.server.context import Alarm, NodeContext
from waltz_core.server.feed import SendFrames
from waltz_core.server.feed_cache import with_version
from waltz_core.server.partitions import Partitions
from waltz_core.server.peer import Peer
from waltz_core.server.turns import Turns
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.lock_count import oversized

HELLO_TEXT = "Waltz Server"

_Bulk: TypeAlias = messages.TransactionDataResponse | messages.RecordRangeResponse | messages.RecordHeaderRangeResponse
_BULK = (messages.TransactionDataResponse, messages.RecordRangeResponse, messages.RecordHeaderRangeResponse)
_APPENDS = frozenset({messages.AppendRequest, messages.NamedAppendRequest})
_REQUEST_COST = 5  # of handling one request, where an append, which comes in runs, counts 1
_TURN_COST = 500  # of what one connection may have handled at once; more waits for its turn
_STEP_COST = 1_000  # of such turns in one step: one or two milliseconds, which everybody else waits

Batch: TypeAlias = list[messages.ClientMessage]


def _bulk_size(message: _Bulk) -> int:
    """Bytes, about, of what a client asked for."""
    match message:
        case messages.TransactionDataResponse(data=data):
            return len(data)
        case messages.RecordRangeResponse(records=records):
            return sum(RECORD_OVERHEAD + len(one.data) for one in records)
        case messages.RecordHeaderRangeResponse(record_headers=headers):
            return RECORD_OVERHEAD * len(headers)


class ClientConn(Peer):
    """One connection, as the port and the desk behind it see it."""

    __slots__ = (
        "access",
        "address",
        "backlog",
        "backlog_bytes",
        "certificate",
        "closing",
        "connection",
        "error",
        "gathered",
        "held",
        "out",
        "partitions",
        "refused",
        "writable",
    )

    def __init__(self, event: Accepted, access: Access, connection: Connection[messages.ClientMessage]):
        self.certificate = event.names[0] if event.names else ""  # the name in it
        owner = self.certificate or event.peer.rpartition(":")[0]
        super().__init__(event.conn, owner, access.who, carries_others=access.carries_others)
        self.address = event.peer
        self.access = access
        self.connection = connection
        self.out = bytearray()
        self.closing = False
        self.error = ""  # why it must be closed once what came before has been handled
        self.held = False  # reading is off
        self.writable = True  # it takes what is sent to it
        self.gathered = 0  # bytes of its unfinished frame
        self.backlog: deque[_Bulk] = deque()  # payloads for when it takes them
        self.backlog_bytes = 0
        self.partitions: set[int] = set()  # those it asked something of
        self.refused: set[str] = set()  # what it was refused, so that each is reported once


class ClientPort:
    """All connections of clients."""

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        config = context.config
        self._config = config
        self._rules = context.rules
        self._out = context.out
        self._alarms = context.alarms
        self._replies = context.clients
        self._waiting = context.waiting
        self._partitions = partitions
        self.claims = Claims()
        self._conns: dict[int, ClientConn] = {}
        self._strangers: deque[tuple[int, int]] = deque()  # until when each new connection must have greeted
        self._admission = Admission(config.places.for_members(config.roles.rules is not None))
        self._gathered = 0  # bytes of unfinished frames
        self._turns: Turns[messages.ClientMessage] = Turns(_TURN_COST)  # requests of those who send many at once
        self._restless: dict[int, ClientConn] = {}  # connections that are held back, or may have to be
        self._backlogged: dict[int, ClientConn] = {}
        self._unsent: dict[int, ClientConn] = {}  # connections with bytes to send in this step
        self._frames: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # id and version → frames, and under the version

    def __len__(self) -> int:
        return len(self._conns)

    def __iter__(self) -> Iterator[ClientConn]:
        return iter(self._conns.values())

    def get(self, conn_id: int) -> ClientConn | None:
        """A connection that is there; None if it is gone."""
        return self._conns.get(conn_id)

    @property
    def in_turns(self) -> int:
        """Requests that were received and not looked at."""
        return len(self._turns)

    # ---- connections come and go -------------------------------------------------------------

    def accepted(self, now: int, event: Accepted) -> None:
        """A client has connected: greet it."""
        config = self._config
        connection = Connection(CLIENT_PROTOCOL, HELLO_TEXT, config.versions, config.frame_size_max, rules=self._rules)
        access = config.roles.access(event.names, event.peer)
        self._conns[event.conn] = ClientConn(event, access, connection)
        if config.greeting_ms:
            self._strangers.append((now + config.greeting_ms, event.conn))
            self._watch_strangers()
        self._out.put(Send(event.conn, connection.hello()))
        self._evict(self._admission.accepted(now, event.conn, host_of(event.peer), member=access.member))

    def closed(self, event: Closed) -> None:
        """A connection has ended: nobody waits for what it asked."""
        conn = self._conns.pop(event.conn, None)
        if conn is None:
            return
        self._admission.gone(event.conn)
        self._gathered -= conn.gathered
        self._restless.pop(conn.conn, None)
        self._unsent.pop(conn.conn, None)
        if conn.client_id is not None:
            self.claims.gone(conn.client_id, conn.conn)
        self._forget_work(conn)

    def _forget_work(self, conn: ClientConn) -> None:
        self._backlogged.pop(conn.conn, None)
        self._turns.drop(conn.conn)
        self._partitions.gone(conn, conn.partitions)
        self._waiting.drop(conn.conn)

    def close(self, conn_id: int, reason: str, *, quiet: bool = False) -> None:
        """End a connection, after what was sent to it before."""
        conn = self._conns.get(conn_id)
        if conn is None or conn.closing:
            return
        conn.closing = True
        self._admission.gone(conn_id)
        conn.connection.forget()
        conn.backlog.clear()
        self._forget_work(conn)
        self._gathered -= conn.gathered
        conn.gathered = 0
        self._send(conn)
        if not quiet:
            self._out.put(Report(Level.WARNING, f"connection of {conn.address} closed: {reason}"))
        self._out.put(CloseConn(conn_id, reason))

    def close_all(self, reason: str) -> None:
        """The process ends."""
        for conn_id in list(self._conns):
            self.close(conn_id, reason)

    def greetings_due(self, now: int) -> None:
        """Clients greet at once; others may not keep their connections."""
        while self._strangers:
            due, conn_id = self._strangers[0]
            conn = self._conns.get(conn_id)
            if conn is not None and conn.connection.version is None and not conn.closing:
                if now < due:
                    break
                self.close(conn_id, f"no greeting within {self._config.greeting_ms / 1000:g} s")
            self._strangers.popleft()
        self._watch_strangers()

    def _watch_strangers(self) -> None:
        self._alarms.set(Alarm.GREETINGS, self._strangers[0][0] if self._strangers else None)

    def admission_due(self, now: int) -> None:
        """Connections that are silent for too long must go."""
        self._evict(self._admission.due(now))

    def _evict(self, evictions: Iterable[Eviction]) -> None:
        for one in evictions:
            self.close(one.conn, one.reason, quiet=one.quiet)

    # ---- what clients send -------------------------------------------------------------------

    def received(self, now: int, event: Received) -> tuple[ClientConn, Batch] | None:
        """Bytes have arrived; returns what is to be handled at once, after which `handled` must be called."""
        conn = self._conns.get(event.conn)
        if conn is None or conn.closing:
            return None
        batch: Batch = []
        try:
            conn.connection.receive(event.data, batch)
        except ProtocolError as error:
            conn.error = str(error)
        if not conn.version and conn.connection.version is not None:
            self._on_greeted(conn, conn.connection.version)
        self._admission.heard(now, conn.conn)
        if batch:
            self._admission.proven(now, conn.conn)
        few = len(batch) * _REQUEST_COST <= _TURN_COST or _APPENDS.issuperset(map(type, batch))
        if few and conn.writable and not self._turns.waits(conn.conn):
            return conn, batch
        self._put_in_turn(conn, batch)
        return conn, []

    def _on_greeted(self, conn: ClientConn, version: int) -> None:
        conn.version = version
        locks_max = self._config.locks_max
        # What comes of it is no message of the protocol, but goes the way of one.
        conn.connection.look_at(4 * locks_max, oversized(locks_max, version))  # type: ignore[arg-type]

    def handled(self, conn: ClientConn) -> None:
        """What came in one piece was handled: close the connection if the piece ended in a breach of the protocol."""
        if conn.error:
            self.close(conn.conn, conn.error)
        self._count_gathered(conn)

    def _count_gathered(self, conn: ClientConn) -> None:
        """Bound what the unfinished frames of all clients hold together."""
        gathered = 0 if conn.closing else conn.connection.gathered
        self._gathered += gathered - conn.gathered
        conn.gathered = gathered
        while self._gathered > max(self._config.gathered_max, self._config.frame_size_max):
            most = max(self._conns.values(), key=lambda one: one.gathered)
            text = f"unfinished frames hold {self._gathered} bytes, and this connection most of them"
            self.close(most.conn, text)

    def _put_in_turn(self, conn: ClientConn, batch: Batch) -> None:
        """Many requests of one connection do not delay what others ask; nothing more is read until they are handled."""
        for message in batch:
            self._turns.put(conn.conn, conn.owner, 1 if type(message) in _APPENDS else _REQUEST_COST, message)
        self._restless[conn.conn] = conn

    def turns(self) -> Iterator[tuple[ClientConn, Batch]]:
        """Some of what waits for its turn, in runs of one connection; each is handled before the next is taken."""
        left = _STEP_COST
        run: Batch = []
        last: ClientConn | None = None
        while left > 0 and (taken := self._turns.take()) is not None:
            conn, message = self._conns[taken[0]], taken[1]
            if conn is not last:
                if last is not None:
                    yield last, run
                run, last = [], conn
            run.append(message)
            left -= 1 if type(message) in _APPENDS else _REQUEST_COST
        if last is not None:
            yield last, run

    def writable(self, event: Writable) -> None:
        """A connection stopped or started taking data."""
        conn = self._conns.get(event.conn)
        if conn is None:
            return
        conn.writable = event.writable
        self._restless[conn.conn] = conn
        self._turns.block(conn.conn, not event.writable)
        self._partitions.writable(conn.conn, conn.partitions, event.writable)

    # ---- what clients are sent ---------------------------------------------------------------

    def deliver(self) -> None:
        """Hand over what other parts have for clients."""
        for effect in self._replies.take():
            if isinstance(effect, SendFrames):
                self._send_frames(effect)
            elif isinstance(effect, CloseConn):
                self.close(effect.conn, effect.reason)
            else:
                self.reply(effect.conn, effect.message)

    def reply(self, conn_id: int, message: messages.ClientMessage) -> None:
        """Send a message; to a connection that is gone, or about to go, nothing is sent."""
        conn = self._conns.get(conn_id)
        if conn is None or conn.closing:
            return
        if len(conn.out) > self._config.out_bytes_max or conn.backlog:
            if isinstance(message, _BULK):
                self._put_off(conn, message)
                return
            if len(conn.out) > 2 * self._config.out_bytes_max:
                self.close(conn_id, "it asks for more at once than can be sent")
                return
        self._encode(conn, message)

    def _encode(self, conn: ClientConn, message: messages.ClientMessage) -> None:
        self._unsent[conn.conn] = conn
        try:
            conn.connection.encode(message, conn.out)
        except ProtocolError as error:
            self.close(conn.conn, str(error))

    def _put_off(self, conn: ClientConn, message: _Bulk) -> None:
        """Keep an answer with a payload until the client has taken what was sent before."""
        conn.backlog.append(message)
        conn.backlog_bytes += _bulk_size(message)
        self._backlogged[conn.conn] = conn
        self._restless[conn.conn] = conn
        if conn.backlog_bytes > self._config.unsent_max:
            self.close(conn.conn, f"it takes data too slowly: {conn.backlog_bytes} bytes of payloads wait for it")

    def send_backlogs(self) -> None:
        """Payloads for those that take data again."""
        for conn in list(self._backlogged.values()):
            while conn.backlog and conn.writable and len(conn.out) <= self._config.out_bytes_max and not conn.closing:
                message = conn.backlog.popleft()
                conn.backlog_bytes -= _bulk_size(message)
                self._encode(conn, message)
            if not conn.backlog:
                self._backlogged.pop(conn.conn, None)

    def _send_frames(self, effect: SendFrames) -> None:
        conn = self._conns.get(effect.conn)
        if conn is None or conn.closing:
            return
        key = id(effect.frames), conn.version
        known = self._frames.get(key)
        if known is None:
            # The frames are kept too: an id may come back once its object is gone.
            known = self._frames[key] = effect.frames, with_version(effect.frames, conn.version)
        conn.out += known[1]
        self._unsent[conn.conn] = conn

    def _send(self, conn: ClientConn) -> None:
        if conn.out:
            self._out.put(Send(conn.conn, bytes(conn.out)))
            conn.out.clear()

    # ---- once per step -----------------------------------------------------------------------

    def flush(self, now: int) -> None:
        """Send what was gathered in this step; say when the next one is due."""
        for conn in self._unsent.values():
            self._send(conn)
        self._unsent.clear()
        self._frames.clear()
        rest = self._turns.ready or any(conn.writable for conn in self._backlogged.values())
        self._alarms.set(Alarm.REST, now if rest else None)
        self._alarms.set(Alarm.ADMISSION, self._admission.deadline())

    def hold_back(self) -> None:
        """Stop reading from clients that ask more than their part, or do not read; and resume."""
        everybody = bool(self._partitions.crowded) or self._waiting.total > self._config.reads_count_max
        if not everybody and not self._restless:
            return
        for conn in list((self._conns if everybody else self._restless).values()):
            held = self._to_hold(conn)
            if conn.held != held:
                conn.held = held
                self._out.put(Reading(conn.conn, not held))
            if held:
                self._restless[conn.conn] = conn
            else:
                self._restless.pop(conn.conn, None)

    def _to_hold(self, conn: ClientConn) -> bool:
        if not conn.writable or conn.backlog or self._turns.waits(conn.conn):
            return True
        if self._waiting.greedy(conn.conn, self._config.reads_count_max):
            return True
        return self._partitions.greedy(conn.conn)
