"""The port for clients: their connections, what they may hold of this process, and in which order they are served.

What a connection goes through:

    accepted ──▶ stranger ── greeted ──▶ known ── closed by us ──▶ closing ── Closed ──▶ forgotten
                    └───── no greeting in time, evicted, or a breach of the protocol ─────▲

A batch of requests is handed on at once if it is small; more of one connection waits in turns (`Turns`), and reading
from it stops until they are handled. Only as many frames are decoded as one turn takes; the rest stays bytes, which
cost nothing when the connection ends.
How much one step handles, and what a request costs, is `StepBudget`'s.

Reading stops also while a connection takes no data, while payloads wait for it, and while it holds more than its fair
part of what is scarce.
Bytes for a connection gather during a step and leave as one `Send`; a connection that has nothing to send costs a step
nothing.

This file owns everything that is known of a connection. Partitions see it as `Peer`, by whose number they reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeAlias, assert_never

from waltz_core.access.admission import Admission, Eviction, Silence, owner_of
from waltz_core.access.roles import Access, RolesChanged
from waltz_core.base.contract import earliest
from waltz_core.base.edge import Accepted, CloseConn, Closed, Level, Reading, Received, Report, Send, Writable
from waltz_core.base.errors import ProtocolError
from waltz_core.base.log import RECORD_OVERHEAD
from waltz_core.base.turns import Turns
from waltz_core.server.claims import Claims
from waltz_core.server.context import ClientAlarm, NodeContext
from waltz_core.server.feed import SendFrames
from waltz_core.server.feed_cache import with_version
from waltz_core.server.peer import Peer
from waltz_core.server.source import ServedPartitions
from waltz_core.server.step_budget import APPENDS, TURN_COST, StepBudget
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.lock_count import oversized
from waltz_core.wire.records import RecordRun

HELLO_TEXT = "Waltz Server"

_Bulk: TypeAlias = messages.TransactionDataResponse | messages.RecordRangeResponse | messages.RecordHeaderRangeResponse
_BULK = (messages.TransactionDataResponse, messages.RecordRangeResponse, messages.RecordHeaderRangeResponse)
_PIECE = 100  # frames of a connection that are decoded together, a row of appends counting as one
_MOUNTS_SPARE = 1_000  # in one piece, above two for each partition
_CROWD = 1_000  # requests of one connection, appends apart, that wait for their turns: worth a line in the log
_CROWD_BYTES = 24 * _CROWD  # of those that are not decoded: fewer cannot hold so many

Batch: TypeAlias = list[messages.ClientMessage]


def _bulk_size(message: _Bulk) -> int:
    """Bytes, about, of what a client asked for."""
    match message:
        case messages.TransactionDataResponse(data=data):
            return len(data)
        case messages.RecordRangeResponse(records=RecordRun() as run):
            return run.size(RECORD_OVERHEAD)
        case messages.RecordRangeResponse(records=records):
            return sum(RECORD_OVERHEAD + len(one.data) for one in records)
        case messages.RecordHeaderRangeResponse(record_headers=headers):
            return RECORD_OVERHEAD * len(headers)


class ClientConn(Peer):
    """One connection, as the port and the desk behind it see it."""

    __slots__ = (
        "access",
        "backlog",
        "backlog_bytes",
        "certificate",
        "closing",
        "connection",
        "crowd_reported",
        "error",
        "gathered",
        "held",
        "mounts",
        "names",
        "out",
        "partitions",
        "queued",
        "refused",
        "writable",
    )

    def __init__(self, event: Accepted, access: Access, connection: Connection[messages.ClientMessage]):
        self.certificate = event.names[0] if event.names else ""  # the name in it
        owner = self.certificate or owner_of(event.peer)
        super().__init__(event.conn, owner, access.who, carries_others=access.carries_others)
        self.address = event.peer
        self.names = event.names
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
        self.crowd_reported = False
        self.queued = 0  # requests that had to wait for their turn, since none waited, appends apart
        self.mounts = 0  # of these
        self.refused: set[str] = set()  # what it was refused, so that each is reported once

    def decode(self, data: bytes, count_max: int) -> Batch:
        """Its messages, in order."""
        batch: Batch = []
        try:
            self.connection.receive(data, batch, count_max)
        except ProtocolError as error:
            self.error = str(error)
        return batch

    def greeted(self, version: int, locks_max: int) -> None:
        """It has said what it speaks."""
        self.version = version
        # What comes of it is no message of the protocol, but goes the way of one.
        self.connection.look_at(4 * locks_max, oversized(locks_max, version))  # type: ignore[arg-type]


class ClientPort:
    """All connections of clients."""

    make_connection: ClassVar[type[Connection[messages.ClientMessage]]] = Connection

    def __init__(self, context: NodeContext, partitions: ServedPartitions) -> None:
        config = context.config
        self._config = config
        self._roles = config.roles
        self._out = context.out
        self._alarms = context.alarms
        self._replies = context.clients
        self._waiting = context.waiting
        self._partitions = partitions
        self.claims = Claims()
        self._conns: dict[int, ClientConn] = {}
        self._strangers: deque[tuple[int, int]] = deque()  # until when each new connection must have greeted
        self._admission = Admission(context.alarms, config.places.for_members(config.roles.rules is not None))
        self._gathered = 0  # bytes of unfinished frames
        self._gathered_max = max(config.gathered_max, config.frame_size_max)
        self._turns: Turns[messages.ClientMessage] = Turns(TURN_COST)  # requests of those who send many at once
        self._behind: dict[int, ClientConn] = {}  # connections with frames that are not decoded
        self._budget = StepBudget(partitions)
        self._restless: dict[int, ClientConn] = {}  # connections that are held back, or may have to be
        self._heard: dict[int, ClientConn] = {}  # connections of which something came in this step
        self.backlogged: dict[int, ClientConn] = {}  # connections with payloads that wait
        self._rests = False  # the alarm of what is left for the next step is set, or has rung
        self._unsent: dict[int, ClientConn] = {}  # connections with bytes to send in this step
        self._full: dict[int, ClientConn] = {}  # their feeds wait for the next step: this one sends them enough
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
        """Requests that were received and not looked at; what is not decoded counts as one of each connection."""
        return len(self._turns) + len(self._behind)

    def announced(self, conn: ClientConn, capabilities: int) -> None:
        """What a client says of itself with a ClusterInfoRequest; the last one decides."""
        conn.feed_windows = bool(capabilities & messages.ClientCapability.FEED_WINDOWS)
        if self._config.proxies_trusted and conn.access.unrestricted:  # where roles are, the role proxy says it
            conn.carries_others = bool(capabilities & messages.ClientCapability.CARRIES_OTHERS)

    # ---- connections come and go -------------------------------------------------------------

    def accepted(self, now: int, event: Accepted) -> None:
        """A client has connected: greet it."""
        config = self._config
        connection = self.make_connection(CLIENT_PROTOCOL, HELLO_TEXT, config.versions, config.frame_size_max)
        access = self._roles.access(event.names, event.peer)
        self._conns[event.conn] = ClientConn(event, access, connection)
        if config.greeting_ms:
            self._strangers.append((now + config.greeting_ms, event.conn))
            self._watch_strangers()
        self._out.put(Send(event.conn, connection.hello()))
        self._evict(self._admission.accepted(now, event.conn, owner_of(event.peer), member=access.member))

    def closed(self, now: int, event: Closed) -> None:
        """A connection has ended: nobody waits for what it asked."""
        conn = self._conns.pop(event.conn, None)
        if conn is None:
            return
        left = conn.connection.gathered - conn.connection.undecoded
        if left:
            text = f"{conn.who} ended its connection in the middle of a frame, of which {left} bytes came"
            self._out.put(Report(Level.WARNING, text, conn.address, conn.owner))
        self._admission.gone(event.conn)
        self._gathered -= conn.gathered
        self._restless.pop(conn.conn, None)
        self._heard.pop(conn.conn, None)
        self._unsent.pop(conn.conn, None)
        self._full.pop(conn.conn, None)
        if conn.client_id is not None:
            self.claims.gone(conn.client_id, conn.conn)
        self._forget_work(conn)

    def _forget_work(self, conn: ClientConn) -> None:
        self.backlogged.pop(conn.conn, None)
        self._behind.pop(conn.conn, None)
        self._turns.drop(conn.conn)
        self._partitions.gone(conn, conn.partitions)
        self._waiting.drop(conn.conn)

    def close(self, conn_id: int, reason: str) -> None:
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
        self._out.put(Report(Level.WARNING, conn.access.closed_line(conn.address, reason), conn.address, conn.owner))
        self._out.put(CloseConn(conn_id, reason))

    def close_all(self, reason: str) -> None:
        """The process ends."""
        for conn_id in list(self._conns):
            self.close(conn_id, reason)

    def roles_changed(self, now: int, event: RolesChanged) -> None:
        """Other rules hold: whoever may now do more or less has to connect again."""
        self._roles = event.roles
        for conn in list(self._conns.values()):
            access = event.roles.access(conn.names, conn.address)
            if not access.allows_as(conn.access):
                self.close(conn.conn, f"the roles have changed: {conn.access.who} is {access.who} now")

    def due(self, now: int, alarm: ClientAlarm | Silence) -> None:
        """An alarm of this port rang."""
        match alarm:
            case Silence(conn):
                eviction = self._admission.due(now, conn)
                if eviction is not None:
                    self._evict([eviction])
            case ClientAlarm.GREETINGS:
                self._end_strangers(now)
            case ClientAlarm.REST:
                pass  # every step looks at it
            case _:
                assert_never(alarm)

    def _end_strangers(self, now: int) -> None:
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
        self._alarms.set(ClientAlarm.GREETINGS, self._strangers[0][0] if self._strangers else None)

    def _evict(self, evictions: Iterable[Eviction]) -> None:
        for eviction in evictions:
            self.close(eviction.conn, eviction.reason)

    # ---- what clients send -------------------------------------------------------------------

    def received(self, now: int, event: Received) -> tuple[ClientConn, Batch] | None:
        """Bytes have arrived; returns what is to be handled at once, after which `handled` must be called."""
        conn = self._conns.get(event.conn)
        if conn is None or conn.closing:
            return None
        self._heard[conn.conn] = conn
        waits = self._waits(conn)
        batch = conn.decode(event.data, 0 if waits else _PIECE)
        if not conn.version and conn.connection.version is not None:
            conn.greeted(conn.connection.version, self._config.locks_max)
        self._admission.heard(now, conn.conn)
        if batch:
            self._admission.proven(now, conn.conn)
        if not waits and conn.writable and not conn.connection.undecoded and self._budget.at_once(now, batch):
            return conn, batch
        self._put_in_turn(conn, batch)
        return conn, []

    def _waits(self, conn: ClientConn) -> bool:
        """Whether something of a connection waits for its turn."""
        return conn.conn in self._behind or (self._turns.size > 0 and self._turns.waits(conn.conn))

    def handled(self, conn: ClientConn) -> None:
        """What came in one piece was handled: close the connection if the piece ended in a breach of the protocol."""
        if conn.error:
            self.close(conn.conn, conn.error)
        # Bound what the unfinished frames of all clients hold together.
        gathered = 0 if conn.closing else conn.connection.gathered
        self._gathered += gathered - conn.gathered
        conn.gathered = gathered
        while self._gathered > self._gathered_max:
            most = max(self._conns.values(), key=lambda one: one.gathered)
            text = f"unfinished frames hold {self._gathered} bytes, and this connection most of them"
            self.close(most.conn, text)

    def _put_in_turn(self, conn: ClientConn, batch: Batch) -> None:
        """Many requests of one connection do not delay what others ask; nothing more is read until they are handled.

        A client mounts each partition once: one that mounts again and again takes time from others, also after its end.
        """
        conn.queued += sum([type(message) not in APPENDS for message in batch])
        conn.mounts += sum([type(message) is messages.MountRequest for message in batch])
        if conn.mounts > _MOUNTS_SPARE + 2 * len(self._partitions.served):
            text = f"it mounts {conn.mounts} times at once, at {len(self._partitions.served)} partitions"
            self.close(conn.conn, text)
            return
        for message in batch:
            self._turns.put(conn.conn, conn.owner, self._budget.cost(message), message)
        if conn.connection.undecoded:
            self._behind[conn.conn] = conn
        self._restless[conn.conn] = conn
        if not conn.crowd_reported:
            self._look_for_crowd(conn)

    def _look_for_crowd(self, conn: ClientConn) -> None:
        """Appends are no crowd: who sends too many of them is known by what waits in its partition."""
        count = conn.queued
        if count < _CROWD and conn.connection.undecoded >= _CROWD_BYTES:
            count += conn.connection.undecoded_count(_CROWD, APPENDS)
        if count >= _CROWD:
            self._report_crowd(conn, f"{count} requests or more wait for their turns")

    def _report_crowd(self, conn: ClientConn, much: str) -> None:
        if not conn.crowd_reported:
            conn.crowd_reported = True
            text = f"{conn.who} asks for more than its part: {much}"
            self._out.put(Report(Level.WARNING, text, conn.address, conn.owner))

    def turns(self, now: int) -> Iterable[tuple[ClientConn, Batch]]:
        """Some of what waits for its turn, in runs of one connection; each is handled before the next is taken."""
        # Whoever waits for a turn, or has a backlog, stays among the restless until nothing of him waits any more.
        if self._restless:
            return self._take_turns(now)
        self._budget.no_turns(now)
        return ()

    def _take_turns(self, now: int) -> Iterator[tuple[ClientConn, Batch]]:
        left = self._budget.turns(now)
        run: Batch = []
        last: ClientConn | None = None
        while left > 0 and (taken := self._turns.take()) is not None:
            conn, message = self._conns[taken[0]], taken[1]
            if conn is not last:
                if last is not None:
                    yield self._taken(last), run
                run, last = [], conn
            run.append(message)
            left -= self._budget.cost(message)
        if last is not None:
            yield self._taken(last), run
        self._budget.end(left)
        self._decode_more()

    def _taken(self, conn: ClientConn) -> ClientConn:
        """A connection of which nothing waits any more is counted anew."""
        if not self._waits(conn):
            conn.queued = conn.mounts = 0
        return conn

    def _decode_more(self) -> None:
        """Decode the next piece of each connection that has no decoded requests left."""
        for conn in self._starving():
            del self._behind[conn.conn]
            self._put_in_turn(conn, conn.decode(b"", _PIECE))
            self.handled(self._taken(conn))  # what was left may be the beginning of a frame: nothing waits then

    def _starving(self) -> list[ClientConn]:
        return [conn for conn in self._behind.values() if not self._turns.waits(conn.conn)]

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
        # What has no payload is small, and a step answers only so many requests.
        if isinstance(message, _BULK) and (conn.backlog or len(conn.out) > self._config.out_bytes_max):
            self._put_off(conn, message)
        else:
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
        self.backlogged[conn.conn] = conn
        self._restless[conn.conn] = conn
        if conn.backlog_bytes > self._config.unsent_max:
            self.close(conn.conn, f"it takes data too slowly: {conn.backlog_bytes} bytes of payloads wait for it")

    def send_backlogs(self) -> None:
        """Payloads for those that take data again."""
        for conn in list(self.backlogged.values()):
            while conn.backlog and conn.writable and len(conn.out) <= self._config.out_bytes_max and not conn.closing:
                message = conn.backlog.popleft()
                conn.backlog_bytes -= _bulk_size(message)
                self._encode(conn, message)
            if not conn.backlog:
                self.backlogged.pop(conn.conn, None)

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
        if conn.conn not in self._full and conn.writable and len(conn.out) > self._config.out_bytes_max:
            self._full[conn.conn] = conn
            self._partitions.writable(conn.conn, conn.partitions, False)
        self._unsent[conn.conn] = conn

    def _send(self, conn: ClientConn) -> None:
        if conn.out:
            self._out.put(Send(conn.conn, conn.out))
            conn.out = bytearray()

    # ---- once per step -----------------------------------------------------------------------

    def flush(self, now: int) -> None:
        """Send what was gathered in this step; say when the next one is due."""
        if self._unsent:
            for conn in self._unsent.values():
                self._send(conn)
            self._unsent.clear()
        if self._frames:
            self._frames.clear()
        if self._full:
            self._go_on()
            self._alarms.set(ClientAlarm.REST, now)
        elif self._restless or self._rests:
            turns = self._budget.next_turns(now) if self._turns.ready else None
            rest = now if any(conn.writable for conn in self.backlogged.values()) else None
            # Of a piece of keep-alives nothing waits for a turn.
            more = now if self._starving() else None
            self._alarms.set(ClientAlarm.REST, earliest(turns, more, rest))
            self._rests = bool(self._restless)

    def _go_on(self) -> None:
        """Connections that were sent as much as one step sends get the next slices of their feeds in the next one."""
        for conn in self._full.values():
            if conn.writable:
                self._partitions.writable(conn.conn, conn.partitions, True)
        self._full.clear()

    def hold_back(self) -> None:
        """Stop reading from clients that ask more than their part, or do not read; and resume."""
        if self._partitions.crowded or self._waiting.total > self._config.reads_count_max:
            self._restless |= self._heard  # who has sent nothing has not become greedy
        if self._heard:
            self._heard.clear()
        if not self._restless:
            return
        for conn in list(self._restless.values()):
            held = self._to_hold(conn)
            if conn.held != held:
                conn.held = held
                self._out.put(Reading(conn.conn, not held))
            if held and conn.client_id is not None and self._partitions.hinders(conn.client_id):
                self._report_crowd(conn, "so many appends that those of others would have to wait for them")
            if held:
                self._restless[conn.conn] = conn
            else:
                self._restless.pop(conn.conn, None)

    def _to_hold(self, conn: ClientConn) -> bool:
        if not conn.writable or conn.backlog or self._waits(conn):
            return True
        if self._waiting.greedy(conn.conn, self._config.reads_count_max):
            return True
        return conn.client_id is not None and self._partitions.greedy(conn.client_id)
