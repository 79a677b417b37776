"""Builders for tests of the storage node."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.model.disk import SimDisk
from tests.vectors.storage_desk import Desk
from waltz_core.base.edge import Port
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.storage.replica import StorageReplica
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.primitives import checksum_of

KEY = UUID(int=42)
DATA = "0/0000000000000000000.seg"
INDEX = "0/0000000000000000000.idx"


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
    rules: SafetyRules = SAFE,
    assigned: tuple[int, ...] | None = None,
    **settings: Any,
) -> Desk:
    """A running node; a new one (no disk given) has partition 0 assigned."""
    made = Desk(disk or SimDisk(), KEY, partitions, threshold=threshold, rules=rules, **settings)
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


def codec_1(node: Desk, port: Port) -> Any:
    """A connection that speaks codec 1."""
    from tests.vectors.storage_desk import Wire
    from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection

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
