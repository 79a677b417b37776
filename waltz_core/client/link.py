"""One connection of a client to a server, and its successors after every cut."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from waltz_core.base.contract import Rng
from waltz_core.base.edge import CloseConn, Dial, Port, Send
from waltz_core.base.ids import Endpoint
from waltz_core.base.rules import SafetyRules
from waltz_core.client.calls import Effect
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

    __slots__ = (
        "_codec",
        "_encode",
        "_failures",
        "_filled",
        "_redial_at",
        "_rng",
        "_rules",
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
        rules: SafetyRules,
        versions: Collection[int],
        filled: list[Link],
    ) -> None:
        self.endpoint = endpoint
        self.kind = kind
        self.state = ConnectionState.IDLE
        self.conn = 0
        # Grows with every connection to this endpoint for the life of the client, also after the server
        # vanished and came back: a server honours only the connection with the number it saw last.
        self.net_seq = -1
        self.writable = True
        self.explains: bool | None = None  # the server takes named appends, and tells why one is refused
        self.windows = False  # the server takes feed requests for as much as there is room
        self.reason = ""
        self.last_read = self.last_write = self._since = 0
        self.out = bytearray()
        self._settings, self._rng, self._rules, self._versions = settings, rng, rules, versions
        self._codec: Connection[ClientMessage] | None = None
        self._filled = filled
        self._failures = 0
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

    def dial(self, conn: int, now: int, out: list[Effect]) -> None:
        """Open the next connection, under the id `conn`."""
        assert self.state is ConnectionState.IDLE
        self.state, self.conn, self._since = ConnectionState.DIALING, conn, now
        self._redial_at = None
        self.net_seq += 1
        out.append(Dial(conn, self.endpoint, Port.CLIENT))

    def on_dialed(self, now: int) -> None:
        """The connection stands: greet."""
        self.state, self._since = ConnectionState.GREETING, now
        self._codec = Connection(
            CLIENT_PROTOCOL, HELLO_TEXT, self._versions, self._settings.frame_size_max, rules=self._rules
        )
        self._encode = self._codec.encode
        self.writable = True
        self.explains = None
        self.windows = False
        self.last_read = self.last_write = now
        self._filled.append(self)
        self.out += self._codec.hello()

    def receive(self, data: bytes, now: int, messages: list[ClientMessage]) -> bool:
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

    def flush(self, now: int, out: list[Effect]) -> None:
        """Emit what was encoded in this step."""
        if self.out:
            out.append(Send(self.conn, self.out))
            self.out = bytearray()
            self.last_write = now

    def close(self, reason: str, now: int, out: list[Effect]) -> None:
        """Close the connection; its `Closed` is not waited for. A successor may be dialed after a pause."""
        if self.state not in (ConnectionState.IDLE, ConnectionState.ENDED):
            self.flush(now, out)
            out.append(CloseConn(self.conn, reason))
            self.on_closed(reason, now)

    def end(self, reason: str, now: int, out: list[Effect]) -> None:
        """Close and never dial again."""
        self.close(reason, now, out)
        self.state = ConnectionState.ENDED
        self._redial_at = None

    def revive(self) -> None:
        """The endpoint is wanted again after `end`."""
        if self.state is ConnectionState.ENDED:
            self.state = ConnectionState.IDLE
            self._failures = 0

    def on_closed(self, reason: str, now: int) -> None:
        """The connection is gone: choose when to dial again."""
        connected = self.state is not ConnectionState.DIALING
        if self.state is ConnectionState.READY and now - self._since >= self._settings.reconnect_cap_ms:
            self._failures = 0
        self.state, self.reason = ConnectionState.IDLE, reason
        self._codec = None
        self.out = bytearray()
        self._redial_at = now + self._pause(connected)
        self._failures += 1

    def due(self, now: int, out: list[Effect]) -> bool:
        """Act on passed deadlines; True when the owner must dial now."""
        if self.state is ConnectionState.READY:
            assert self._codec is not None
            if self.version >= _KEEP_ALIVE_VERSION and now - self.last_write >= self._settings.keep_alive_ms:
                self._filled.append(self)
                self.out += self._codec.keep_alive()
        elif self.state is ConnectionState.GREETING:
            if self._rules.silent_peer_dropped and now - self._since >= self._settings.hello_ms:
                self.close("the server does not greet", now, out)
        elif self.state is ConnectionState.IDLE:
            return self._redial_at is None or now >= self._redial_at
        return False

    def deadline(self) -> int | None:
        """When `due` has something to do, as far as known."""
        if self.state is ConnectionState.READY and self.version >= _KEEP_ALIVE_VERSION:
            return self.last_write + self._settings.keep_alive_ms
        if self.state is ConnectionState.GREETING and self._rules.silent_peer_dropped:
            return self._since + self._settings.hello_ms
        if self.state is ConnectionState.IDLE:
            return self._redial_at
        return None

    def _pause(self, connected: bool) -> int:
        if not self._rules.reconnect_paced:
            return 0 if connected else 1_000
        # The first attempt after a working connection comes at once: most cuts are a server restarting.
        if self._failures == 0:
            return self._rng.randrange(self._settings.reconnect_base_ms)
        pause = min(self._settings.reconnect_cap_ms, self._settings.reconnect_base_ms << min(self._failures, 16))
        return pause // 2 + self._rng.randrange(pause // 2 + 1)
