"""Storage nodes on simulated disks, for vectors and tests: the one desk that all of them are worked from.

* `Desk`: a node, its disk and connections (`Wire`) to its ports; everything that is asked happens at once.
* `desk`, `filled`, `reopen`, `append`, …: the usual beginnings, and the usual questions.
* `Slow`: the same with a disk that answers when it is let.
* `Nodes`: several nodes whose dials reach one another, for repairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from tests.twin_0132.storage import StorageNode0132
from waltz_core.base.edge import Accepted, CloseConn, Closed, Dial, Dialed, Port, Received, Send
from waltz_core.base.ids import Endpoint, ReqId
from waltz_core.base.log import Record
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import DiskBatch, DiskRead, FaultKind, Stop, StorageFailed
from waltz_core.storage.node import StorageNode
from waltz_core.storage.replica import StorageReplica
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.primitives import checksum_of
from waltz_testing.simulation.disk import SimDisk, drive

WALL_MS = 1_700_000_000_000
CLOSED = "connection closed by the server, no message"
KEY = UUID(int=42)
DATA = "0/0000000000000000000.seg"
INDEX = "0/0000000000000000000.idx"


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
        kind: type[StorageNode] = StorageNode,
        **settings: Any,
    ) -> None:
        self.disk = disk
        self.key = key
        self.partition_count = partition_count
        config = StorageConfig(key.bytes, partition_count, threshold, wall_clock_offset_ms=WALL_MS, **settings)
        self.node = kind(config)
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


# ---- the usual beginnings and questions ----------------------------------------------------------


def some(first: int, count: int, size: int = 60, salt: int = 0) -> tuple[Record, ...]:
    """Records with consecutive ids."""
    return tuple(
        Record(one, ReqId((one + 1000 * salt).to_bytes(16)), one, bytes([one % 251 + 1]) * size, checksum_of(b""))
        for one in range(first, first + count)
    )


def desk(
    disk: SimDisk | None = None,
    *,
    partitions: int = 2,
    threshold: int = 500,
    kind: type[StorageNode] = StorageNode,
    assigned: tuple[int, ...] | None = None,
    **settings: Any,
) -> Desk:
    """A running node; a new one (no disk given) has partition 0 assigned."""
    made = Desk(disk or SimDisk(), KEY, partitions, threshold=threshold, kind=kind, **settings)
    if disk is None and assigned is None:
        assigned = (0,)
    if assigned:
        assert made.admin(admin.PartitionAssignmentRequest(1, assigned, True, False)) == admin.AdminSuccessResponse(1)
    return made


def reopen(old: Desk, **settings: Any) -> Desk:
    """The next process on the same disk."""
    return desk(old.disk, partitions=old.partition_count, **settings)


def replica(node: Desk, partition_id: int = 0) -> StorageReplica:
    """A partition of a node."""
    return node.node.replicas[partition_id]


def append(node: Desk, first: int, count: int, session: int = 5, size: int = 60, partition: int = 0) -> Any:
    """Append and return the answer."""
    return node.storage(wire.AppendRequest(session, 1, partition, some(first, count, size), False))


def filled(count: int = 12, **settings: Any) -> Desk:
    """A node whose partition 0 holds `count` records of 100 bytes each, four to a segment."""
    made = desk(**settings)
    assert append(made, 0, count) == wire.SuccessResponse(5, 1, 0)
    return made


def mark(node: Desk, value: int, session: int = 5) -> Any:
    """Set the low-water mark."""
    return node.storage(wire.SetLowWaterMarkRequest(session, 1, 0, value, False))


def flush_marks(node: Desk) -> None:
    """Let the lazily written mark be written."""
    node.now += 2000
    node.step()


def text_of(answer: Any) -> str:
    """The text of a failure."""
    assert isinstance(answer, wire.FailureResponse | admin.AdminFailureResponse), answer
    return str(answer.message)


def codec_1(node: Desk, port: Port) -> Wire:
    """A connection that speaks codec 1."""
    made = Wire(node, len(node.wires) + 1, port)
    protocol: Any = ADMIN_PROTOCOL if port is Port.ADMIN else STORAGE_PROTOCOL
    made.connection = Connection(protocol, "test", (0, 1))
    made.connection.receive(made.received, [])
    made.greet()
    if port is Port.ADMIN:
        assert made.ask(admin.AdminOpenRequest(-1, KEY, node.partition_count)) == admin.AdminSuccessResponse(-1)
    else:
        assert made.ask(wire.OpenRequest(-1, -1, -1, KEY, node.partition_count)) == wire.SuccessResponse(-1, -1, -1)
    return made


def fail(node: Desk, kind: FaultKind, when: Callable[[Any], bool], times: int = 1) -> None:
    """The next `times` batches of which `when` is true fail."""
    left = times

    def fault(effect: Any) -> FaultKind | None:
        nonlocal left
        if left and not isinstance(effect, DiskRead) and when(effect):
            left -= 1
            return kind
        return None

    node.disk.fault = fault


# ---- a slow disk ---------------------------------------------------------------------------------


class Slow:
    """A node whose disk answers when told to."""

    def __init__(self, made: Desk) -> None:
        self.made = made
        self.storage = made.dial(Port.STORAGE)
        self.admin = made.dial(Port.ADMIN)
        self.held: list[Any] = []
        self.out: list[Any] = []
        self.now = made.now

    def send(self, *messages: Any, to: Wire | None = None) -> None:
        wire_ = to or self.storage
        out = bytearray()
        for message in messages:
            wire_.connection.encode(message, out)
        self.step(Received(wire_.conn, bytes(out)))

    def step(self, *events: Any) -> None:
        out: list[Any] = []
        self.made.node.step(self.now, list(events), out)
        for effect in out:
            if isinstance(effect, Send):
                self.made.wires[effect.conn].eat(effect)
            elif isinstance(effect, DiskBatch | DiskRead):
                self.held.append(effect)
            else:
                self.out.append(effect)

    def batches(self) -> list[DiskBatch]:
        return [one for one in self.held if isinstance(one, DiskBatch)]

    def release(self, count: int | None = None) -> None:
        """Let the disk do what it was asked, and what follows from it."""
        while self.held and count != 0:
            effect = self.held.pop(0)
            self.step(self.made.disk.perform(effect))
            count = None if count is None else count - 1

    def answers(self) -> list[Any]:
        found, self.storage.messages = self.storage.messages, []
        return found


# ---- several nodes -------------------------------------------------------------------------------


class _Link:
    """One end, at the node dialed, of a connection between two nodes."""

    def __init__(self, nodes: Nodes, caller: Desk, caller_conn: int, conn: int) -> None:
        self.nodes, self.caller, self.caller_conn, self.conn = nodes, caller, caller_conn, conn
        self.closed = False
        self.connection = self  # `Desk` asks its wires for the protocol of their connection
        self.version = None

    def eat(self, effect: Any) -> None:
        self.nodes.to_do.append((self.caller, _answer(self.caller_conn, effect)))


class _CallerEnd(_Link):
    """The end at the node that dialed."""

    def eat(self, effect: Any) -> None:
        if self.nodes.links.get((id(self.caller), self.caller_conn)) is not None:
            target, conn = self.nodes.links[id(self.caller), self.caller_conn]
            self.nodes.to_do.append((target, _answer(conn, effect)))


def _answer(conn: int, effect: Any) -> Any:
    return Received(conn, bytes(effect.data)) if hasattr(effect, "data") else Closed(conn, effect.reason)


class Nodes:
    """Replicas of partition 0, level, in one session; `a`, `b`, … are endpoints of their admin ports."""

    def __init__(self, count: int = 3, records: int = 12, *, legacy: tuple[int, ...] = (), size: int = 60) -> None:
        self.to_do: list[tuple[Desk, Any]] = []
        self.links: dict[tuple[int, int], tuple[Desk, int]] = {}
        self.desks: list[Desk] = []
        self.unreachable: set[int] = set()
        self.silent: set[int] = set()  # reached, but says nothing
        self._conns = 1000
        for number in range(count):
            kind = StorageNode0132 if number in legacy else StorageNode
            self.desks.append(self.node(SimDisk(), kind))
            self.desks[-1].admin(admin.PartitionAssignmentRequest(1, (0,), True, False))
            self.desks[-1].storage(wire.SetLowWaterMarkRequest(5, 1, 0, -1, False))
            if records:
                answer = self.desks[-1].storage(wire.AppendRequest(5, 1, 0, some(0, records, size), False))
                assert answer == wire.SuccessResponse(5, 1, 0)
            self.settle()

    def node(self, disk: SimDisk, kind: type[StorageNode] = StorageNode) -> Desk:
        return Desk(disk, KEY, 2, threshold=500, kind=kind)

    def settle(self) -> None:
        """Let marks be written."""
        for desk in self.desks:
            desk.now += 2000
            desk.step()

    def restart(self, number: int) -> Desk:
        kind = type(self.desks[number].node)
        self.desks[number] = self.node(self.desks[number].disk, kind)
        return self.desks[number]

    def endpoint(self, number: int) -> Endpoint:
        return Endpoint(f"node{number}", 1)

    def repair(self, number: int, *sources: int, ranges: tuple[Any, ...] = ()) -> Any:
        """Ask a node for a repair and let everything happen; its answer."""
        desk = self.desks[number]
        port = codec_1(desk, Port.ADMIN)
        first = len(desk.emitted)
        request = admin.RepairRequest(1, 0, tuple(map(self.endpoint, sources)), ranges)
        answer = port.ask(request)
        while answer is None:
            self._deliver(desk, first)
            first = len(desk.emitted)
            if not self.to_do:
                if port.messages:
                    return port.messages.pop()
                desk.now = max(desk.now, desk.node.deadline() or 0)
                desk.step()
                continue
            to_do, self.to_do = self.to_do, []
            for target, event in to_do:
                target.step(event)
        return answer

    def _deliver(self, desk: Desk, first: int) -> None:
        for effect in desk.emitted[first:]:
            if isinstance(effect, Dial):
                number = int(effect.endpoint.host.removeprefix("node"))
                if number in self.unreachable:
                    self.to_do.append((desk, Closed(effect.conn, "connection refused")))
                    continue
                if number in self.silent:
                    self.to_do.append((desk, Dialed(effect.conn)))
                    continue
                target = self.desks[number]
                self._conns += 1
                self.links[id(desk), effect.conn] = target, self._conns
                target.wires[self._conns] = _Link(self, desk, effect.conn, self._conns)  # type: ignore[assignment]
                desk.wires[effect.conn] = _CallerEnd(self, desk, effect.conn, self._conns)  # type: ignore[assignment]
                self.to_do.append((target, Accepted(self._conns, Port.ADMIN, "node")))
                self.to_do.append((desk, Dialed(effect.conn)))
