"""A connection to the admin port of a storage node, as a server or another storage node uses it: dialed once."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from waltz_core.base.edge import Port
from waltz_core.base.ids import Endpoint
from waltz_core.base.outbox import Emits
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_codec import VERSIONS
from waltz_core.wire.connection import ADMIN_PROTOCOL
from waltz_core.wire.dialer import Dialer, DialerEffect
from waltz_core.wire.port_session import PortSession

HELLO_TEXT = "Waltz Storage Admin Client"


class AdminLink(Dialer[admin.AdminMessage]):
    """Dials at once; requests may be asked when READY and are answered in order. Deadlines are the owner's."""

    __slots__ = ("_seq",)

    def __init__(
        self,
        endpoint: Endpoint,
        key: bytes,
        num_partitions: int,
        out: Emits[DialerEffect],
        new_conn: Callable[[], int],
    ) -> None:
        opening = admin.AdminOpenRequest(-1, UUID(bytes=key), num_partitions)
        super().__init__(
            endpoint,
            Port.ADMIN,
            out,
            new_conn,
            lambda: PortSession[admin.AdminMessage](ADMIN_PROTOCOL, HELLO_TEXT, VERSIONS, opening),
            name=str(endpoint),
            kind="an admin port",
        )
        self._seq = 0
        self.want()

    def received(self, data: bytes) -> list[admin.AdminMessage]:
        """Bytes arrived; returns the answers to what was asked."""
        answers = super().received(data)
        self.flush()
        return answers

    def next_seq(self) -> int:
        """A sequence number for the next request."""
        self._seq += 1
        return self._seq

    def ask(self, message: admin.AdminMessage) -> None:
        """Send a request."""
        self.send(message)
        self.flush()
