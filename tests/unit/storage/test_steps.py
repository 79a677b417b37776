"""What a storage node wants done in each step, the whole of it."""

from __future__ import annotations

from typing import Any

from tests.storage_desk import DATA, INDEX, KEY, filled, some
from waltz_core.base.edge import Accepted, CloseConn, Closed, Level, Port, Received, Report, Send
from waltz_core.storage.effects import DiskBatch, DiskDone, Stop, StorageEffect, StorageStopped, SyncFile, WriteAt
from waltz_core.storage.index import encode_entries, entry_place
from waltz_core.storage.node import StorageNode
from waltz_core.storage.peers import ADMIN_HELLO, STORAGE_HELLO
from waltz_core.storage.record_codec import encode_record
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection


class Steps:
    """One node with two records of 100 bytes in partition 0, and one connection to it."""

    def __init__(self, port: Port = Port.STORAGE) -> None:
        self.node: StorageNode = filled(2, threshold=1 << 20).node
        protocol: Any = ADMIN_PROTOCOL if port is Port.ADMIN else STORAGE_PROTOCOL
        self.connection: Connection[Any] = Connection(protocol, "test", (0,))
        self.now = 0
        hello = ADMIN_HELLO if port is Port.ADMIN else STORAGE_HELLO
        greeting = Connection(protocol, hello, (0, 1)).hello()
        assert self.step(Accepted(9, port, "peer:1")) == [Send(9, greeting)]
        self.connection.receive(greeting, [])
        assert self.step(Received(9, self.connection.hello())) == []

    def step(self, *events: Any) -> list[StorageEffect]:
        out: list[StorageEffect] = []
        self.node.step(self.now, events, out)
        return out

    def ask(self, *messages: Any) -> list[StorageEffect]:
        data = bytearray()
        for message in messages:
            self.connection.encode(message, data)
        return self.step(Received(9, bytes(data)))

    def said(self, effect: StorageEffect) -> list[Any]:
        assert isinstance(effect, Send)
        assert effect.conn == 9
        messages: list[Any] = []
        self.connection.receive(bytes(effect.data), messages)
        return messages


def opened(port: Port = Port.STORAGE) -> Steps:
    steps = Steps(port)
    if port is Port.ADMIN:
        [answer] = steps.ask(admin.AdminOpenRequest(-1, KEY, 2))
        assert steps.said(answer) == [admin.AdminSuccessResponse(-1)]
    else:
        [answer] = steps.ask(wire.OpenRequest(-1, -1, -1, KEY, 2))
        assert steps.said(answer) == [wire.SuccessResponse(-1, -1, -1)]
    return steps


def test_an_append_is_one_batch_and_then_one_answer() -> None:
    steps = opened()
    [batch] = steps.ask(wire.AppendRequest(5, 1, 0, some(2, 1), False), wire.AppendRequest(5, 2, 0, some(3, 1), False))
    assert isinstance(batch, DiskBatch)
    assert batch.operations == (
        WriteAt(DATA, 128 + 200, b"".join(map(encode_record, some(2, 2)))),
        WriteAt(INDEX, entry_place(2), encode_entries([128 + 200, 128 + 300])),
        SyncFile(DATA),
    )
    [answer] = steps.step(DiskDone(batch.ticket))
    assert steps.said(answer) == [wire.SuccessResponse(5, 1, 0), wire.SuccessResponse(5, 2, 0)]
    assert steps.node.deadline() == 1000  # the durable mark


def test_a_newer_session_is_answered_once_its_fence_is_durable() -> None:
    steps = opened()
    [fence] = steps.ask(wire.MaxTransactionIdRequest(6, 1, 0, False))
    assert isinstance(fence, DiskBatch)
    paths = {operation.path for operation in fence.operations if isinstance(operation, WriteAt | SyncFile)}
    assert paths == {"0/waltz.fence"}
    assert isinstance(fence.operations[-1], SyncFile)
    stranger, refused = steps.ask(wire.OpenRequest(-1, -1, -1, KEY, 3), wire.RecordRequest(4, 2, 0, 1))
    assert isinstance(stranger, Report)
    assert [type(message).__name__ for message in steps.said(refused)] == ["FailureResponse", "FailureResponse"]
    [answer] = steps.step(DiskDone(fence.ticket))
    assert steps.said(answer) == [wire.MaxTransactionIdResponse(6, 1, 0, 1)]


def test_a_change_is_audited_and_answered_and_what_came_behind_it_is_served_then() -> None:
    steps = opened(Port.ADMIN)
    [control] = steps.ask(admin.PartitionAvailableRequest(1, (0,), False), admin.AssignedPartitionStatusRequest(2))
    assert isinstance(control, DiskBatch)
    [sides] = steps.step(DiskDone(control.ticket))
    assert isinstance(sides, DiskBatch)
    audit, answers = steps.step(DiskDone(sides.ticket))
    assert audit == Report(Level.INFO, "audit: peer:1: forbid reads and writes of partitions 0: done")
    status = admin.AssignedPartitionStatusResponse(2, ((0, False),))
    assert steps.said(answers) == [admin.AdminSuccessResponse(1), status]


def test_what_no_peer_sends_ends_its_connection_after_the_answers_before_it() -> None:
    steps = opened()
    data = bytearray()
    steps.connection.encode(wire.OpenRequest(-1, -1, -1, KEY, 2), data)
    answer, end, report = steps.step(Received(9, bytes(data) + b"X" * 20))
    assert steps.said(answer) == [wire.SuccessResponse(-1, -1, -1)]
    assert isinstance(end, CloseConn)
    assert report == Report(Level.WARNING, f"connection of peer:1 closed: {end.reason}", "peer:1", "peer")
    assert steps.step(Received(9, bytes(data)), Closed(9, end.reason)) == []


def test_at_the_end_the_mark_is_written_and_then_nothing_is_left() -> None:
    steps = opened()
    [batch] = steps.ask(wire.AppendRequest(5, 1, 0, some(2, 1), False))
    assert isinstance(batch, DiskBatch)
    steps.step(DiskDone(batch.ticket))
    [mark] = steps.step(Stop())
    assert isinstance(mark, DiskBatch)
    assert {operation.path for operation in mark.operations} == {"0/waltz.mark"}
    assert steps.step(DiskDone(mark.ticket)) == [StorageStopped()]
    assert steps.node.deadline() is None
