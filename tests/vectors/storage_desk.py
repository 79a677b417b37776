"""A storage node on a simulated disk with a connection to each port, for vectors and tests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.model.disk import SimDisk, drive
from waltz_core.base.edge import Accepted, CloseConn, Closed, Port, Received, Send
from waltz_core.base.log import Record
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import Stop, StorageFailed
from waltz_core.storage.node import StorageNode
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection

WALL_MS = 1_700_000_000_000
CLOSED = "connection closed by the server, no message"


class Wire:
    """One connection to a node."""

    def __init__(self, desk: Desk, conn: int, port: Port, names: tuple[str, ...] = ()) -> None:
        self.desk = desk
        self.conn = conn
        protocol: Any = ADMIN_PROTOCOL if port is Port.ADMIN else STORAGE_PROTOCOL
        self.connection: Connection[Any] = Connection(protocol, "test", (0,))
        self.received = b""  # everything, hello included
        self.messages: list[Any] = []
        self.closed = False
        desk.wires[conn] = self
        desk.step(Accepted(conn, port, "test", names))

    def send(self, data: bytes) -> None:
        self.desk.step(Received(self.conn, data))

    def greet(self) -> None:
        self.send(self.connection.hello())

    def ask(self, message: Any) -> Any:
        """The one answer to a message, or CLOSED, or None."""
        out = bytearray()
        self.connection.encode(message, out)
        self.messages.clear()
        self.send(bytes(out))
        if self.messages:
            assert len(self.messages) == 1, self.messages
            return self.messages.pop()
        return CLOSED if self.closed else None

    def eat(self, effect: Any) -> None:
        if isinstance(effect, CloseConn):
            self.closed = True
            self.desk.pending.append(Closed(self.conn, effect.reason))
        else:
            self.received += bytes(effect.data)
            self.connection.receive(effect.data, self.messages)


class Desk:
    """A node, its disk and its connections."""

    def __init__(
        self,
        disk: SimDisk,
        key: UUID,
        partition_count: int,
        *,
        threshold: int = 1000,
        rules: SafetyRules = SAFE,
        **settings: Any,
    ) -> None:
        self.disk = disk
        self.key = key
        self.partition_count = partition_count
        config = StorageConfig(key.bytes, partition_count, threshold, wall_clock_offset_ms=WALL_MS, **settings)
        self.node = StorageNode(config, rules)
        self.wires: dict[int, Wire] = {}
        self.pending: list[Any] = []
        self.emitted: list[Any] = []
        self.now = 0
        self.step()

    def step(self, *events: Any) -> None:
        todo = list(events)
        while True:
            for effect in drive(self.node, self.disk, todo, self.now):
                if isinstance(effect, Send | CloseConn):
                    if effect.conn in self.wires:
                        self.wires[effect.conn].eat(effect)
                else:
                    self.emitted.append(effect)
            todo, self.pending = self.pending, []
            if not todo:
                return

    @property
    def failure(self) -> StorageFailed | None:
        """Why the node did not start."""
        return next((one for one in self.emitted if isinstance(one, StorageFailed)), None)

    def dial(self, port: Port) -> Wire:
        """A connection that has greeted and opened."""
        wire_ = Wire(self, len(self.wires) + 1, port)
        wire_.greet()
        if port is Port.ADMIN:
            answer = wire_.ask(admin.AdminOpenRequest(-1, self.key, self.partition_count))
            assert answer == admin.AdminSuccessResponse(-1), answer
        else:
            answer = wire_.ask(wire.OpenRequest(-1, -1, -1, self.key, self.partition_count))
            assert answer == wire.SuccessResponse(-1, -1, -1), answer
        return wire_

    def storage(self, message: Any) -> Any:
        """Ask on a storage connection of its own."""
        return self._any(Port.STORAGE).ask(message)

    def admin(self, message: Any) -> Any:
        """Ask on an admin connection of its own."""
        return self._any(Port.ADMIN).ask(message)

    def _any(self, port: Port) -> Wire:
        for one in self.wires.values():
            if not one.closed and (one.connection.version is not None) and one.desk is self:
                is_admin = one.connection._protocol is ADMIN_PROTOCOL
                if is_admin == (port is Port.ADMIN):
                    return one
        return self.dial(port)

    def read(self, partition_id: int, transaction_id: int) -> Record | str | None:
        """One record without a session: the record, None if absent, the text of a failure."""
        answer = self.admin(admin.RecordListRequest(0, partition_id, transaction_id, 1))
        if isinstance(answer, admin.AdminFailureResponse):
            return str(answer.message)
        return answer.records[0] if answer.records else None

    def stop(self) -> None:
        """End in order."""
        self.step(Stop())
