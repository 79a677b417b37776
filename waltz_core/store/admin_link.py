"""A connection to the admin port of a storage node, as a server or another storage node uses it."""

from __future__ import annotations

import enum
from typing import TypeAlias
from uuid import UUID

from waltz_core.base.edge import CloseConn, Dial, Port, Send
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import Endpoint
from waltz_core.base.outbox import Emits
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_codec import VERSIONS
from waltz_core.wire.connection import ADMIN_PROTOCOL, Connection

HELLO_TEXT = "Waltz Storage Admin Client"

LinkEffect: TypeAlias = Dial | Send | CloseConn


class AdminLinkState(enum.Enum):
    """DIALING → OPENING → READY → ENDED; ENDED from anywhere."""

    DIALING = "connecting"
    OPENING = "greets and shows the cluster key"
    READY = "usable"
    ENDED = "gone"


class AdminLink:
    """Dials at once; requests may be asked when READY and are answered in order. Deadlines are the owner's."""

    __slots__ = (
        "_connection",
        "_key",
        "_num_partitions",
        "_opened",
        "_out",
        "_seq",
        "conn",
        "endpoint",
        "state",
        "trouble",
    )

    def __init__(self, conn: int, endpoint: Endpoint, key: bytes, num_partitions: int, out: Emits[LinkEffect]) -> None:
        self.conn = conn
        self.endpoint = endpoint
        self.state = AdminLinkState.DIALING
        self.trouble = ""  # why it ended
        self._key = UUID(bytes=key)
        self._num_partitions = num_partitions
        self._connection: Connection[admin.AdminMessage] = Connection(ADMIN_PROTOCOL, HELLO_TEXT, VERSIONS)
        self._opened = False  # the open request was sent
        self._seq = 0
        self._out = out
        out.put(Dial(conn, endpoint, Port.ADMIN))

    @property
    def version(self) -> int:
        """Codec agreed on; 0 is 0.13.2."""
        return self._connection.version or 0

    def dialed(self) -> None:
        """The connection stands."""
        if self.state is AdminLinkState.DIALING:
            self.state = AdminLinkState.OPENING
            self._out.put(Send(self.conn, self._connection.hello()))

    def received(self, data: bytes) -> list[admin.AdminMessage]:
        """Bytes arrived; returns the answers to what was asked."""
        answers: list[admin.AdminMessage] = []
        if self.state is AdminLinkState.ENDED:
            return answers
        try:
            self._connection.receive(data, answers)
        except ProtocolError as error:
            self.end(f"{self.endpoint} does not answer as an admin port does: {error}")
        if self.state is not AdminLinkState.OPENING:
            return answers
        if self._connection.version is not None and not self._opened:
            self._opened = True
            self._send(admin.AdminOpenRequest(-1, self._key, self._num_partitions))
        if answers:
            first = answers.pop(0)
            if isinstance(first, admin.AdminSuccessResponse):
                self.state = AdminLinkState.READY
            else:
                self.end(f"{self.endpoint} refused to open: {getattr(first, 'message', first)}")
        return answers

    def closed(self, reason: str) -> None:
        """The connection ended, or the dial failed."""
        self.state = AdminLinkState.ENDED
        self.trouble = self.trouble or f"{self.endpoint}: {reason}"

    def next_seq(self) -> int:
        """A sequence number for the next request."""
        self._seq += 1
        return self._seq

    def ask(self, message: admin.AdminMessage) -> None:
        """Send a request."""
        assert self.state is AdminLinkState.READY
        self._send(message)

    def end(self, reason: str) -> None:
        """Close the connection; nothing more is taken from it."""
        if self.state is not AdminLinkState.ENDED:
            self.state = AdminLinkState.ENDED
            self.trouble = reason
            self._out.put(CloseConn(self.conn, reason))

    def _send(self, message: admin.AdminMessage) -> None:
        data = bytearray()
        self._connection.encode(message, data)
        self._out.put(Send(self.conn, bytes(data)))
