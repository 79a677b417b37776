"""One connection of a client to a server, and its successors after every cut.

    IDLE ──dial──► DIALING ──stands──► GREETING ──hello──► READY
     ▲  ▲             │ failed            │ silent            │ cut, or given up
     │  └─────────────┴───────────────────┴───────────────────┘
     └── wanted again ── ENDED ◄── the server left the cluster, or the client is closed (from any state)

It pauses as every dialer does (`base/attempts.py`), and starts with short pauses again once a connection has lasted for
as long as the longest one: a server that greets and breaks off at once is not dialed in a loop.

It is no `wire/dialer.py: Dialer`, for three reasons. Nothing has to be opened behind the greeting. A connection that
was given up is not waited for: a server honours only the connection with the highest number (`net_seq`), so a successor
may overlap it, and a client whose server is silent must not wait for the end of the old connection before it goes on.
And messages are encoded on the hot path, straight into what the step sends.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from waltz_core.base.attempts import Pauses
from waltz_core.base.contract import Rng
from waltz_core.base.edge import CloseConn, ConnEffect, Dial, Port, Send
from waltz_core.base.ids import Endpoint, ReqId
from waltz_core.base.outbox import Emits
from waltz_core.client.calls import Submit
from waltz_core.client.columns import Columns, encode_columns
from waltz_core.client.outgoing import encode_appends
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import ClientMessage
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection

if TYPE_CHECKING:
    from collections.abc import Collection

HELLO_TEXT = "Waltz Client"
_KEEP_ALIVE_VERSION = 4  # lower codecs do not tell whether the peer knows the empty frame


class Kind(enum.Enum):
    """What a connection is for; the server cannot tell the two apart."""

    STREAM = "stream"  # mounts, appends, feed, flushes
    RPC = "rpc"  # payloads, marks, cluster information


class ConnectionState(enum.Enum):
    """IDLE → DIALING → GREETING → READY → (cut) → IDLE, and again when the pause is over."""

    IDLE = "no connection"
    DIALING = "connecting"
    GREETING = "waiting for the hello"
    READY = "usable"
    ENDED = "given up"


class Link:
    """A connection that is dialed again, with growing pauses, as long as it is wanted.

    `out` collects the bytes of one step; the node sends them at its end. A link that has some stands in `filled`, which
    all links of the node share.
    """

    make_connection: ClassVar[type[Connection[ClientMessage]]] = Connection

    __slots__ = (
        "_codec",
        "_effects",
        "_encode",
        "_filled",
        "_pauses",
        "_redial_at",
        "_settings",
        "_since",
        "_versions",
        "conn",
        "dials",
        "endpoint",
        "explains",
        "kind",
        "last_read",
        "last_write",
        "net_seq",
        "out",
        "reason",
        "state",
        "windows",
        "writable",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        kind: Kind,
        settings: ClientSettings,
        rng: Rng,
        versions: Collection[int],
        effects: Emits[ConnEffect],
        filled: list[Link],
    ) -> None:
        self.endpoint = endpoint
        self.kind = kind
        self.state = ConnectionState.IDLE
        self.conn = 0
        # Grows with every connection to this endpoint for the life of the client, also after the server
        # vanished and came back: a server honours only the connection with the number it saw last.
        self.net_seq = settings.first_connection - 1
        self.writable = True
        self.explains: bool | None = None  # the server takes named appends, and tells why one is refused
        self.windows = False  # the server takes feed requests for as much as there is room
        self.reason = ""
        self.last_read = self.last_write = self._since = 0
        self.out = bytearray()
        self._settings, self._versions = settings, versions
        self._codec: Connection[ClientMessage] | None = None
        self._effects = effects
        self._filled = filled
        self._pauses = Pauses(settings.reconnect_base_ms, settings.reconnect_cap_ms, rng)
        self._redial_at: int | None = None

    @property
    def ready(self) -> bool:
        """Messages can be sent."""
        return self.state is ConnectionState.READY

    @property
    def version(self) -> int:
        """The negotiated version; only while `ready`."""
        assert self._codec is not None
        assert self._codec.version is not None
        return self._codec.version

    def dial(self, now: int, conn: int) -> None:
        """Open the next connection, under the id `conn`."""
        assert self.state is ConnectionState.IDLE
        self.state, self.conn, self._since = ConnectionState.DIALING, conn, now
        self._redial_at = None
        self.net_seq += 1
        self._effects.put(Dial(conn, self.endpoint, Port.CLIENT))

    def on_dialed(self, now: int) -> None:
        """The connection stands: greet."""
        self.state, self._since = ConnectionState.GREETING, now
        self._codec = self.make_connection(CLIENT_PROTOCOL, HELLO_TEXT, self._versions, self._settings.frame_size_max)
        self._encode = self._codec.encode
        self.writable = True
        self.explains = None
        self.windows = False
        self.last_read = self.last_write = now
        self._filled.append(self)
        self.out += self._codec.hello()

    def receive(self, now: int, data: bytes, messages: list[ClientMessage]) -> bool:
        """Decode into `messages`; True when this made the link ready.

        Raises:
            ProtocolError: the peer sent what no server sends; `messages` holds what came before.
        """
        assert self._codec is not None
        self.last_read = now
        self._codec.receive(data, messages)
        if self.state is ConnectionState.GREETING and self._codec.version is not None:
            self.state, self._since = ConnectionState.READY, now
            return True
        return False

    def send(self, message: ClientMessage) -> None:
        """Encode a message into `out`.

        Raises:
            ProtocolError: the negotiated version cannot carry it; nothing was added.
        """
        if not self.out:
            self._filled.append(self)
        self._encode(message, self.out)

    def send_appends(
        self, submits: Sequence[Submit], at: int, end: int, prefix: bytes, sequence: int, seen: int, names_sent: bool
    ) -> list[ReqId]:
        """Encode appends into `out`, where the server explains refusals; see `encode_appends`."""
        assert self._codec is not None
        if not self.out:
            self._filled.append(self)
        return encode_appends(self.out, self._codec.head, submits, at, end, prefix, sequence, seen, names_sent)

    def send_columns(self, columns: Columns, prefix: bytes, sequence: int, mark: int, names_sent: bool) -> list[ReqId]:
        """The same for many appends of one call; see `encode_columns`."""
        assert self._codec is not None
        if not self.out:
            self._filled.append(self)
        head = self._codec.head
        return encode_columns(self.out, head, columns, 0, len(columns), prefix, sequence, mark, names_sent)

    def flush(self, now: int) -> None:
        """Emit what was encoded in this step."""
        if self.out:
            self._effects.put(Send(self.conn, self.out))
            self.out = bytearray()
            self.last_write = now

    def close(self, now: int, reason: str) -> None:
        """Close the connection; its `Closed` is not waited for. A successor may be dialed after a pause."""
        if self.state not in (ConnectionState.IDLE, ConnectionState.ENDED):
            self.flush(now)
            self._effects.put(CloseConn(self.conn, reason))
            self.on_closed(now, reason)

    def end(self, now: int, reason: str) -> None:
        """Close and never dial again."""
        self.close(now, reason)
        self.state = ConnectionState.ENDED
        self._redial_at = None

    def revive(self) -> None:
        """The endpoint is wanted again after `end`."""
        if self.state is ConnectionState.ENDED:
            self.state = ConnectionState.IDLE
            self._pauses.hurry()

    def on_closed(self, now: int, reason: str) -> None:
        """The connection is gone: choose when to dial again."""
        if self.state is ConnectionState.READY and now - self._since >= self._settings.reconnect_cap_ms:
            self._pauses.hurry()
        self.state, self.reason = ConnectionState.IDLE, reason
        self._codec = None
        self.out = bytearray()
        self._redial_at = self._next_dial_at(now)

    def due(self, now: int) -> bool:
        """Act on passed deadlines; True when the owner must dial now."""
        if self.state is ConnectionState.READY:
            assert self._codec is not None
            if self.version >= _KEEP_ALIVE_VERSION and now - self.last_write >= self._settings.keep_alive_ms:
                self._filled.append(self)
                self.out += self._codec.keep_alive()
        elif self.state is ConnectionState.GREETING:
            due = self._greeting_due()
            if due is not None and now >= due:
                self.close(now, "the server does not greet")
        elif self.state is ConnectionState.IDLE:
            return self._redial_at is None or now >= self._redial_at
        return False

    def deadline(self) -> int | None:
        """When `due` has something to do, as far as known."""
        if self.state is ConnectionState.READY and self.version >= _KEEP_ALIVE_VERSION:
            return self.last_write + self._settings.keep_alive_ms
        if self.state is ConnectionState.GREETING:
            return self._greeting_due()
        if self.state is ConnectionState.IDLE:
            return self._redial_at
        return None

    def _next_dial_at(self, now: int) -> int:
        """When the successor of a connection that has ended may be dialed."""
        return self._pauses.pause(now)

    def _greeting_due(self) -> int | None:
        """When a server that has not greeted is given up."""
        return self._since + self._settings.hello_ms
