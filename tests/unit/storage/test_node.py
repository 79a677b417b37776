"""Connections, permissions, appends, reads and administration of a storage node."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest

from tests.storage_desk import (
    CLOSED,
    DATA,
    INDEX,
    KEY,
    Desk,
    Slow,
    Wire,
    append,
    codec_1,
    desk,
    fail,
    filled,
    flush_marks,
    mark,
    reopen,
    replica,
    some,
    text_of,
)
from tests.twin_0132.storage import StorageNode0132
from waltz_core.access.admission import Places
from waltz_core.access.roles import NO_ROLES
from waltz_core.base.contract import Tickets
from waltz_core.base.edge import (
    Accepted,
    CloseConn,
    Closed,
    Port,
    Reading,
    Received,
    Report,
    Send,
    Shutdown,
    WallClock,
    Writable,
)
from waltz_core.base.log import SessionInfo
from waltz_core.base.outbox import Outbox
from waltz_core.storage import control
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import (
    Create,
    DiskBatch,
    DiskDone,
    DiskEffect,
    DiskFailed,
    DiskRead,
    DiskSpace,
    FaultKind,
    StorageReady,
    StorageStopped,
    SyncDirectory,
    SyncFile,
    Unlink,
    WriteAt,
)
from waltz_core.storage.node import StorageNode
from waltz_core.storage.peers import Caller, Peer
from waltz_core.storage.procedure import DiskError, Runner
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, Connection
from waltz_core.wire.primitives import checksum_of
from waltz_core.wire.shared import STARTED, Condition, FailureCode, Statistic
from waltz_testing.simulation.disk import SimDisk, drive

# ---- appends -------------------------------------------------------------------------------------


def test_nothing_is_answered_before_it_is_durable() -> None:
    slow = Slow(filled(0))
    slow.send(wire.AppendRequest(6, 1, 0, some(0, 3), False))
    slow.release(1)  # the fence
    assert slow.answers() == []
    assert isinstance(slow.batches()[0].operations[-1], SyncFile)
    slow.release()
    assert slow.answers() == [wire.SuccessResponse(6, 1, 0)]


def test_what_waits_for_the_disk_can_be_listed() -> None:
    slow = Slow(filled(2))
    slow.send(wire.RecordRequest(5, 1, 0, 1), wire.AppendRequest(5, 2, 0, some(2, 1), False))
    slow.send(wire.SetLowWaterMarkRequest(5, 3, 0, 2, False))
    assert slow.made.node.awaited() == ["read of partition 0", "append of partition 0"]
    slow.release(2)
    assert slow.made.node.awaited() == ["SetLowWaterMarkRequest of partition 0"]
    slow.release()
    assert slow.made.node.awaited() == []


def test_a_partition_whose_change_waits_for_another_one_is_listed() -> None:
    slow = Slow(filled(1))
    slow.send(admin.PartitionAvailableRequest(1, (0, 1), False), to=slow.admin)
    asked = "its turn to forbid reads and writes of partitions 0, 1 of partition 1"
    assert slow.made.node.awaited() == ["SetAvailable of partition 0", asked]
    slow.release()
    assert slow.made.node.awaited() == []


def test_tools_are_shown_what_waits_for_the_disk() -> None:
    slow = Slow(filled(2))
    slow.send(wire.AppendRequest(5, 1, 0, some(2, 1), False), wire.AppendRequest(5, 2, 0, some(3, 1), False))
    tool = codec_1(slow.made, Port.ADMIN)
    asked = admin.StatisticsRequest(9, -1, ("awaited",))
    assert tool.ask(asked).statistics == (Statistic("awaited.append", 0, 1),), "both appends are one write"
    slow.release()
    assert tool.ask(asked).statistics == ()


def test_appends_that_wait_for_the_disk_are_written_together() -> None:
    slow = Slow(filled(1))
    slow.send(wire.AppendRequest(5, 1, 0, some(1, 1), False))
    slow.send(wire.AppendRequest(5, 2, 0, some(2, 1), False))
    slow.send(wire.AppendRequest(5, 3, 0, some(4, 1), False), wire.AppendRequest(5, 4, 0, some(3, 1), False))
    assert len(slow.batches()) == 1
    slow.release(1)
    assert [type(one).__name__ for one in slow.answers()] == ["SuccessResponse", "FailureResponse"]
    assert len(slow.batches()) == 1
    assert sum(isinstance(one, WriteAt) for one in slow.batches()[0].operations) == 2
    slow.release()
    assert [one.seq_num for one in slow.answers()] == [2, 4]


def test_an_append_out_of_order_stores_nothing() -> None:
    node = filled(3)
    answer = node.storage(wire.AppendRequest(5, 1, 0, (*some(3, 2), *some(6, 1)), False))
    assert text_of(answer).endswith("transaction out of order")
    assert replica(node).max_id == 2


def test_an_empty_append_behind_others_is_answered() -> None:
    node = filled(2)
    assert append(node, 0, 0) == wire.SuccessResponse(5, 1, 0)


def test_a_session_above_the_fence_in_the_middle_of_a_batch() -> None:
    slow = Slow(filled(1))
    slow.send(
        wire.AppendRequest(5, 1, 0, some(1, 1), False),
        wire.AppendRequest(6, 2, 0, some(2, 1), False),
        wire.AppendRequest(5, 3, 0, some(3, 1), False),
    )
    slow.release()
    found = slow.answers()
    assert [type(one).__name__ for one in found] == ["SuccessResponse", "FailureResponse", "SuccessResponse"] or [
        one.seq_num for one in found
    ] == [1, 2, 3]
    assert replica(slow.made).fence == 6
    assert replica(slow.made).max_id == 2


def test_a_new_segment_is_durable_before_a_record_goes_into_it() -> None:
    slow = Slow(filled(4))
    slow.send(wire.AppendRequest(5, 1, 0, some(4, 1), False))
    operations = slow.batches()[-1].operations
    made = [at for at, one in enumerate(operations) if isinstance(one, SyncDirectory)]
    old = [at for at, one in enumerate(operations) if isinstance(one, SyncFile) and one.path == DATA]
    created = [at for at, one in enumerate(operations) if isinstance(one, Create)]
    records = [at for at, one in enumerate(operations) if isinstance(one, WriteAt) and one.offset >= 128]
    assert old[0] < created[0] < made[0] < min(at for at in records if operations[at].path.endswith(".seg"))
    slow.release()
    assert replica(slow.made).max_id == 4


def test_the_window_of_offsets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_core.storage.log_files.WINDOW", 50)
    monkeypatch.setattr("waltz_core.storage.segment_opening.WINDOW", 50)
    node = desk(threshold=1 << 30)
    for first in range(0, 280, 40):
        assert append(node, first, 40, size=0) == wire.SuccessResponse(5, 1, 0)
    flush_marks(node)
    for one in (node, reopen(node, threshold=1 << 30)):
        log = replica(one).files.log
        assert log is not None
        assert len(log.last.window) <= 100
        assert one.read(0, 5) == some(5, 1, 0)[0]
        assert one.read(0, 279) == some(279, 1, 0)[0]
        assert len(one.admin(admin.RecordListRequest(1, 0, 100, 500)).records) == 180
    assert node.storage(wire.TruncateRequest(5, 1, 0, 99, False)).transaction_id == 99
    assert node.read(0, 99) == some(99, 1, 0)[0]
    assert append(node, 100, 2) == wire.SuccessResponse(5, 1, 0)
    assert replica(reopen(node, threshold=1 << 30)).max_id == 101


# ---- failing disks -------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [WriteAt, SyncFile, Create])
def test_a_full_disk_refuses_appends_and_goes_on(what: type) -> None:
    node = filled(4)
    before = {name: data for name, data in node.disk.files().items() if name.endswith((".seg", ".idx"))}
    fail(node, FaultKind.FULL, lambda effect: type(effect) is what)
    assert "no space left" in text_of(append(node, 4, 3))
    assert replica(node).state is State.OPEN
    assert {name: data for name, data in node.disk.files().items() if name.endswith((".seg", ".idx"))} == before
    assert node.read(0, 3) == some(3, 1)[0]
    assert append(node, 4, 3) == wire.SuccessResponse(5, 1, 0)
    assert replica(reopen(node)).max_id == 6


def test_a_failed_sync_stops_the_partition_and_nothing_unsynced_is_believed() -> None:
    node = filled(3)
    fail(node, FaultKind.IO, lambda effect: type(effect) is SyncFile)
    assert text_of(append(node, 3, 1)).startswith("java.io.IOException")
    assert replica(node).state is State.STOPPED
    assert len(node.disk.content(DATA)) == 428
    for message in (
        wire.AppendRequest(5, 1, 0, some(3, 1), False),
        wire.MaxTransactionIdRequest(5, 1, 0, False),
        wire.TruncateRequest(5, 1, 0, 1, False),
        wire.SetLowWaterMarkRequest(5, 1, 0, 9, False),
    ):
        assert "out of service" in text_of(node.storage(message))
    assert node.storage(wire.RecordRequest(5, 1, 0, 2)).record == some(2, 1)[0]
    assert node.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)) == admin.AdminSuccessResponse(1)
    assert append(node, 3, 1) == wire.SuccessResponse(5, 1, 0)


def test_a_partition_that_stops_tells_the_server_whose_session_it_is() -> None:
    """It may stop at work of its own, and the server would find out at its next append only."""
    node = filled(3)
    server = codec_1(node, Port.STORAGE)
    assert server.ask(wire.LastSessionInfoRequest(5, 1, 0, False)).condition == Condition.SOUND
    append(node, 3, 1)
    fail(node, FaultKind.IO, lambda effect: effect.path.endswith("mark"))
    flush_marks(node)
    (told,) = server.messages
    assert isinstance(told, wire.SuspectReport)
    assert (told.session_id, told.partition_id, told.condition) == (5, 0, Condition.STOPPED)
    assert "the disk failed" in (told.reason or "")


def test_a_retreat_that_fails_stops_the_partition() -> None:
    node = filled(3)
    fail(node, FaultKind.FULL, lambda effect: True, times=100)
    text_of(append(node, 3, 1))
    assert replica(node).state is State.STOPPED


def test_a_fence_that_cannot_be_written_is_no_fence() -> None:
    node = filled(3)
    fail(node, FaultKind.FULL, lambda effect: effect.path.endswith("fence"))
    text_of(append(node, 3, 1, session=9))
    assert (replica(node).state, replica(node).fence) == (State.OPEN, 5)
    fail(node, FaultKind.IO, lambda effect: effect.path.endswith("fence"))
    text_of(append(node, 3, 1, session=9))
    assert replica(node).state is State.STOPPED


def test_a_mark_that_cannot_be_written_does_no_harm() -> None:
    node = filled(3)
    fail(node, FaultKind.FULL, lambda effect: effect.path.endswith("mark"))
    flush_marks(node)
    assert replica(node).state is State.OPEN
    append(node, 3, 1)
    fail(node, FaultKind.IO, lambda effect: effect.path.endswith("mark"))
    flush_marks(node)
    assert replica(node).state is State.STOPPED


def test_an_administrative_change_that_fails_is_answered() -> None:
    node = desk(assigned=())
    fail(node, FaultKind.IO, lambda effect: True)
    assert text_of(node.admin(admin.PartitionAssignmentRequest(1, (0,), True, False))).startswith("java.io")
    assert replica(node).state is State.UNASSIGNED
    assert node.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)) == admin.AdminSuccessResponse(1)
    fail(node, FaultKind.IO, lambda effect: effect.path == control.NAME)
    text_of(node.admin(admin.PartitionAvailableRequest(1, (0,), False)))
    assert replica(node).state is State.STOPPED


def test_a_read_that_fails_is_a_failure_answer() -> None:
    node = filled(3)
    node.disk.fault = lambda effect: FaultKind.IO if isinstance(effect, DiskRead) else None
    assert text_of(node.storage(wire.RecordRequest(5, 1, 0, 1))).startswith("java.io.IOException")
    assert text_of(node.admin(admin.RecordListRequest(1, 0, 1, 1))).startswith("java.io.IOException")
    assert replica(node).state is State.OPEN


# ---- reads ---------------------------------------------------------------------------------------


def test_reads_of_durable_records_overtake_writes_and_others_wait() -> None:
    slow = Slow(filled(3))
    slow.send(
        wire.AppendRequest(5, 1, 0, some(3, 1), False),
        wire.RecordRequest(5, 2, 0, 1),
        wire.RecordRequest(5, 3, 0, 3),
        wire.MaxTransactionIdRequest(5, 4, 0, False),
    )
    reads = [one for one in slow.held if isinstance(one, DiskRead)]
    assert len(reads) == 1
    slow.held.remove(reads[0])
    slow.step(slow.made.disk.perform(reads[0]))
    assert [one.seq_num for one in slow.answers()] == [2]
    slow.release()
    found = slow.answers()
    assert [one.seq_num for one in found] == [1, 3, 4]
    assert found[1].record == some(3, 1)[0]
    assert found[2].transaction_id == 3


def test_a_truncation_waits_for_reads_and_reads_wait_for_it() -> None:
    slow = Slow(filled(3))
    slow.send(wire.RecordRequest(5, 1, 0, 1), wire.TruncateRequest(5, 2, 0, 0, False), wire.RecordRequest(5, 3, 0, 1))
    slow.send(admin.RecordListRequest(4, 0, 1, 1), to=slow.admin)
    assert [type(one) for one in slow.held] == [DiskRead]
    slow.release()
    assert [(one.seq_num, getattr(one, "record", 0)) for one in slow.answers()] == [
        (1, some(1, 1)[0]),
        (2, 0),
        (3, None),
    ]
    assert slow.admin.messages[-1].records == ()


def test_a_list_is_cut_by_bytes_but_never_empty() -> None:
    node = filled(9, read_size_max=250)
    for first, expected in ((0, [0, 1]), (3, [3, 4]), (8, [8])):
        listed = node.storage(wire.RecordListRequest(5, 1, 0, first, 100))
        assert [one.transaction_id for one in listed.records] == expected
    small = reopen(node, read_size_max=1)
    assert len(small.storage(wire.RecordListRequest(5, 1, 0, 3, 9)).records) == 1
    listed = small.storage(wire.RecordHeaderListRequest(5, 1, 0, 2, 100))
    assert [one.transaction_id for one in listed.record_headers] == [2]


def test_a_damaged_index_in_memory_is_corrected_by_the_data() -> None:
    node = filled(12)
    again = reopen(node)
    node.disk.put(INDEX, node.disk.content(INDEX)[:136] + bytes(8) + node.disk.content(INDEX)[144:])
    assert again.read(0, 1) == some(1, 1)[0]
    assert again.read(0, 0) == some(0, 1)[0]
    listed = again.storage(wire.RecordListRequest(5, 1, 0, 0, 12))
    assert len(listed.records) == 12


# ---- permission ----------------------------------------------------------------------------------


def test_an_older_session_is_shut_out_also_after_a_restart() -> None:
    node = filled(2)
    assert isinstance(node.storage(wire.LastSessionInfoRequest(8, 1, 0, False)), wire.LastSessionInfoResponse)
    for one in (node, reopen(node)):
        assert "session id has changed to 8" in text_of(append(one, 2, 1, session=7))
        assert one.storage(wire.LastSessionInfoRequest(8, 1, 0, False)).last_session_info.session_id == -1


LEAP = 1 << 32


@pytest.mark.parametrize("session", [5 + LEAP + 1, 2**63 - 1])
def test_a_session_far_above_every_known_one_is_refused_and_fences_nobody_off(session: int) -> None:
    node = filled(2)
    for request in (
        wire.MaxTransactionIdRequest(session, 1, 0, False),
        wire.LastSessionInfoRequest(session, 1, 0, False),
        wire.SetLowWaterMarkRequest(session, 1, 0, 1, False),
    ):
        assert "more than 4294967296 above the highest known, 5" in text_of(node.storage(request))
    assert "above the highest known" in text_of(append(node, 2, 1, session=session))
    assert replica(node).fence == 5
    assert append(node, 2, 1) == wire.SuccessResponse(5, 1, 0)


def test_a_session_as_far_as_may_be_is_taken() -> None:
    node = filled(2)
    answer = node.storage(wire.MaxTransactionIdRequest(5 + LEAP, 1, 0, False))
    assert isinstance(answer, wire.MaxTransactionIdResponse)
    assert replica(node).fence == 5 + LEAP


def test_in_0_13_2_the_highest_session_shuts_everybody_out() -> None:
    """What 0.13.2 does: no server can write to the partition ever again."""
    node = desk(kind=StorageNode0132)
    assert isinstance(node.storage(wire.MaxTransactionIdRequest(2**63 - 1, 1, 0, False)), wire.MaxTransactionIdResponse)
    assert "session id has changed" in text_of(append(node, 0, 1))


def test_a_refused_request_raises_no_fence() -> None:
    node = filled(2)
    text_of(node.storage(wire.MaxTransactionIdRequest(99, 1, 0, True)))
    node.admin(admin.PartitionAvailableRequest(1, (0,), False))
    text_of(node.storage(wire.MaxTransactionIdRequest(99, 1, 0, False)))
    node.admin(admin.PartitionAvailableRequest(1, (0,), True))
    assert append(node, 2, 1) == wire.SuccessResponse(5, 1, 0)


def test_a_connection_that_was_not_opened_is_refused() -> None:
    node = filled(2)
    for port, message in (
        (Port.STORAGE, wire.MaxTransactionIdRequest(9, 1, 0, False)),
        (Port.ADMIN, admin.PartitionAssignmentRequest(1, (0,), False, True)),
    ):
        one = Wire(node, len(node.wires) + 1, port)
        one.greet()
        assert "was not opened" in text_of(one.ask(message))
        wrong: Any = (
            admin.AdminOpenRequest(-1, UUID(int=1), 2)
            if port is Port.ADMIN
            else wire.OpenRequest(-1, -1, -1, UUID(int=1), 2)
        )
        assert "inconsistent with key" in text_of(one.ask(wrong))
        assert "was not opened" in text_of(one.ask(message))
    assert replica(node).fence == 5


def test_truncation_stops_at_the_low_water_mark() -> None:
    node = filled(6)
    mark(node, 5)
    append(node, 6, 3)
    assert "low-water mark, 5" in text_of(node.storage(wire.TruncateRequest(5, 1, 0, 4, False)))
    assert node.storage(wire.TruncateRequest(5, 1, 0, 5, False)).transaction_id == 5
    assert replica(reopen(node)).max_id == 5


def test_truncation_to_nothing_and_at_a_segment_border() -> None:
    node = filled(12)
    assert node.storage(wire.TruncateRequest(5, 1, 0, 7, False)).transaction_id == 7
    assert replica(reopen(node)).max_id == 7
    assert node.storage(wire.TruncateRequest(5, 1, 0, -1, False)).transaction_id == -1
    assert replica(reopen(node)).max_id == -1
    assert append(node, 0, 2) == wire.SuccessResponse(5, 1, 0)


def test_a_truncation_behind_a_damaged_record_is_refused() -> None:
    node = filled(12)
    node.disk.flip(DATA, 128 + 150)
    again = reopen(node)
    assert "is damaged here" in text_of(again.storage(wire.TruncateRequest(5, 1, 0, 1, False)))
    assert (replica(again).max_id, replica(again).faults) == (11, {1})


def test_a_damaged_record_that_was_cut_is_forgotten() -> None:
    node = filled(12)
    node.disk.flip("0/0000000000000000008.seg", 128 + 399)
    text_of(node.storage(wire.RecordRequest(5, 1, 0, 11)))
    assert replica(node).faults == {11}
    assert node.storage(wire.TruncateRequest(5, 1, 0, 10, False)).transaction_id == 10
    assert replica(node).faults == set()


def test_a_read_of_a_newer_session_fences_in_its_turn() -> None:
    """Beside the lane two sessions would raise the fence at once, and the older one might do so last."""
    slow = Slow(filled(3))
    slow.send(wire.RecordRequest(9, 1, 0, 1), wire.AppendRequest(8, 2, 0, some(3, 1), False))
    slow.release()
    first, second = slow.answers()
    assert first.record == some(1, 1)[0]
    assert "session id has changed to 9" in text_of(second)
    assert replica(slow.made).fence == 9


def test_bytes_of_unfinished_frames_are_counted_until_their_connection_ends() -> None:
    """Or their sum would reach its limit for good, and whoever sends half a frame would be dropped."""
    node = filled(3)
    peers = node.node._peers
    for number, ended in enumerate((True, False)):
        wire_ = node.dial(Port.STORAGE)
        out = bytearray()
        wire_.connection.encode(wire.AppendRequest(5, 1, 0, some(3, 1, 4_000), False), out)
        wire_.send(bytes(out[:-1]))
        assert peers._gathered > 4_000
        if ended:
            node.step(Closed(wire_.conn, "reset"))
        else:
            peers._drop(peers._peers[wire_.conn], "why")
        assert peers._gathered == 0, number


def test_too_many_requests_for_one_partition_are_refused() -> None:
    slow = Slow(filled(1, queue_count_max=2))
    slow.send(*(wire.MaxTransactionIdRequest(9, one, 0, False) for one in range(5)))
    slow.release()
    found = slow.answers()
    assert sum(isinstance(one, wire.FailureResponse) for one in found) == 3
    assert all("too many" in str(one.message) for one in found if isinstance(one, wire.FailureResponse))


def test_many_requests_that_need_no_disk_do_not_pile_up() -> None:
    slow = Slow(filled(1))
    slow.send(*(wire.MaxTransactionIdRequest(5, one, 0, False) for one in range(3000)))
    slow.release()
    assert len(slow.answers()) == 3000


# ---- administration ------------------------------------------------------------------------------


def test_requests_that_waited_while_a_partition_was_unassigned_are_answered() -> None:
    slow = Slow(filled(3))
    slow.send(admin.PartitionAssignmentRequest(1, (0,), False, False), to=slow.admin)
    slow.send(wire.AppendRequest(5, 1, 0, some(3, 1), False), wire.RecordRequest(5, 2, 0, 0))
    slow.send(admin.RecordListRequest(2, 0, 0, 1), admin.LastSessionInfoRequest(3, 0), to=slow.admin)
    slow.release()
    assert all("is not assigned" in text_of(one) for one in slow.answers())
    assert [type(one).__name__ for one in slow.admin.messages] == [
        "AdminSuccessResponse",
        "AdminFailureResponse",
        "AdminFailureResponse",
    ]


def test_unassigned_files_come_back_with_the_fence() -> None:
    node = filled(3)
    mark(node, 2)
    node.admin(admin.PartitionAssignmentRequest(1, (0,), False, False))
    assert DATA in node.disk.files()
    again = reopen(node)
    assert again.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)) == admin.AdminSuccessResponse(1)
    assert (replica(again).max_id, replica(again).fence) == (2, 5)
    assert replica(again).session_info() == SessionInfo(-1, -1, -1), "it has no say in where the log ends"


def test_what_was_sent_behind_a_change_that_fails_is_served() -> None:
    slow = Slow(filled(3))
    tool = codec_1(slow.made, Port.ADMIN)
    slow.send(admin.AcceptLimboRequest(1, 0, 2), admin.LastSessionInfoRequest(2, 0), to=tool)
    slow.release()
    assert [type(one).__name__ for one in tool.messages] == ["AdminFailureResponse", "LastSessionInfoResponse"]


def test_deleted_files_are_gone_with_the_fence() -> None:
    node = filled(12)
    node.disk.put("0/0000000000000000099.idx", b"stray")
    node.admin(admin.PartitionAssignmentRequest(1, (0,), False, True))
    assert [name for name in node.disk.files() if name.startswith("0/")] == []
    node.admin(admin.PartitionAssignmentRequest(1, (0,), True, False))
    assert (replica(node).max_id, replica(node).fence) == (-1, -1)


def test_an_impossible_change_changes_nothing_and_is_answered() -> None:
    node = desk(assigned=(0,))
    for message in (
        admin.PartitionAssignmentRequest(1, (1, 7), True, False),
        admin.PartitionAssignmentRequest(1, (0, 1), False, False),
        admin.PartitionAvailableRequest(1, (0, -1), False),
        admin.PartitionAvailableRequest(1, None, False),
    ):
        text_of(node.admin(message))
    status = node.admin(admin.AssignedPartitionStatusRequest(1))
    assert status.partition_status == ((0, True),)


def test_damaged_leftovers_are_not_taken_over() -> None:
    node = filled(12)
    node.admin(admin.PartitionAssignmentRequest(1, (0,), False, False))
    node.disk.flip(DATA, 128 + 399)
    again = reopen(node)
    assert "cannot be opened" in text_of(again.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)))
    assert replica(again).state is State.UNASSIGNED


def test_statistics_tell_clock_and_room() -> None:
    node = filled(3)
    node.step(WallClock(5_000_000), DiskSpace(1 << 40))
    (started,) = codec_1(node, Port.ADMIN).ask(admin.StatisticsRequest(9, -1, (STARTED,))).statistics
    assert started.value == node.node.config.wall_clock_offset_ms  # by the clock that it had then
    answer = codec_1(node, Port.ADMIN).ask(admin.StatisticsRequest(9, -1, ("disk", "max", "append")))
    assert answer.seq_num == 9
    assert answer.time_ms == node.now + 5_000_000
    figures = {(figure.name, figure.partition_id): figure.value for figure in answer.statistics}
    assert figures[("disk-free-bytes", -1)] == 1 << 40
    assert figures[("max-transaction-id", 0)] == 2
    assert figures[("append", 0)] == 1
    assert codec_1(node, Port.ADMIN).ask(admin.StatisticsRequest(1, 3, ())).statistics == ()
    same = codec_1(node, Port.STORAGE).ask(wire.StatisticsRequest(5, 9, -1, ("disk", "max", "append")))
    assert (same.seq_num, same.statistics) == (9, answer.statistics)


def test_metrics_have_the_names_that_the_tools_read() -> None:
    node = filled(3)
    mark(node, 2)
    found = json.loads(node.admin(admin.MetricsRequest(1)).metrics_json)
    gauges = {name: one["value"] for name, one in found["gauges"].items()}
    assert gauges["waltz-storage.waltz-storage-partition-ids"] == [0]
    assert gauges["waltz-storage.partition-0.session-id"] == 5
    assert gauges["waltz-storage.partition-0.low-water-mark"] == 2
    assert gauges["waltz-storage.partition-0.local-low-water-mark"] == 2
    assert gauges["waltz-storage.partition-0.flags"] == 5
    assert gauges["waltz-storage.partition-0.max-transaction-id"] == 2
    assert found["meters"]["waltz-storage.partition-0.append"] == {"count": 1}
    assert found["counters"]["waltz-storage.partition-0.set-low-water-mark-request"] == {"count": 1}
    assert node.node.gauges()["waltz-storage.waltz-storage-num-partitions"] == 1
    assert node.node.counters()["waltz-storage.partition-0.append"] == 1
    assert node.node.healthy


# ---- connections ---------------------------------------------------------------------------------


def test_bytes_that_no_peer_sends_close_the_connection_after_what_came_before() -> None:
    node = filled(1)
    one = node.dial(Port.STORAGE)
    out = bytearray()
    one.connection.encode(wire.OpenRequest(-1, -1, -1, KEY, 2), out)
    one.send(bytes(out) + b"rubbish, long enough")
    assert one.closed
    assert one.messages == [wire.SuccessResponse(-1, -1, -1)]
    one.closed = False
    one.send(bytes(out))
    assert not one.closed  # nothing happens on a connection that is being closed
    node.step(Received(99, b"x"), Writable(99, True))


def test_a_peer_that_does_not_read_is_not_served_and_then_not_read_from() -> None:
    slow = Slow(filled(1))
    parked_max = slow.made.node.config.parked_count_max
    slow.step(Writable(slow.storage.conn, False))
    for _ in range(2):
        slow.send(*(wire.MaxTransactionIdRequest(5, one, 0, False) for one in range(parked_max)))
    assert slow.answers() == []
    assert slow.out == [Reading(slow.storage.conn, False)]
    slow.step(Writable(slow.storage.conn, True))
    slow.release()
    assert len(slow.answers()) == 2 * parked_max
    assert slow.out[-1] == Reading(slow.storage.conn, True)


def test_a_few_large_requests_of_a_peer_that_does_not_read_are_enough_to_be_read_from_no_more() -> None:
    """Before, 600 of any size were kept: with frames of a gigabyte that is no bound."""
    slow = Slow(filled(1, parked_bytes_max=10_000))
    slow.step(Writable(slow.storage.conn, False))
    for seq_num in range(3):
        assert slow.out == []
        slow.send(wire.AppendRequest(5, seq_num, 0, some(1, 1, 4_000), False))
    assert slow.out == [Reading(slow.storage.conn, False)]
    slow.step(Writable(slow.storage.conn, True))
    slow.release()
    assert slow.out[-1] == Reading(slow.storage.conn, True)
    slow.step(Writable(slow.storage.conn, False))
    slow.send(wire.AppendRequest(5, 9, 0, some(1, 1, 4_000), False))
    assert slow.out[-1] == Reading(slow.storage.conn, True)  # what was parked before counts no more
    for seq_num in (10, 11):
        slow.send(wire.AppendRequest(5, seq_num, 0, some(1, 1, 4_000), False))
    assert slow.out[-1] == Reading(slow.storage.conn, False), "and it is held a second time"


def test_appends_of_too_many_bytes_for_one_partition_are_refused_and_one_is_always_taken() -> None:
    slow = Slow(filled(1, queue_bytes_max=10_000))
    for number in range(1, 5):
        slow.send(wire.AppendRequest(5, number, 0, some(number, 1, 20_000), False))
    slow.release()
    found = slow.answers()
    assert [type(one) for one in found].count(wire.SuccessResponse) == 2  # one on its way to the disk, one behind it
    assert all("storage.queueBytesMax" in str(one.message) for one in found if isinstance(one, wire.FailureResponse))
    slow.send(wire.AppendRequest(5, 9, 0, some(3, 1, 20_000), False))
    slow.release()
    assert slow.answers() == [wire.SuccessResponse(5, 9, 0)]


def test_answers_to_a_connection_that_is_gone_are_dropped() -> None:
    slow = Slow(filled(1))
    slow.send(wire.AppendRequest(5, 1, 0, some(1, 1), False))
    slow.made.wires.clear()
    from waltz_core.base.edge import Closed

    slow.step(Closed(slow.storage.conn, "gone"))
    slow.release()
    assert replica(slow.made).max_id == 1


def test_a_response_sent_to_the_admin_port_closes_the_connection() -> None:
    node = filled(1)
    assert node.admin(admin.AdminSuccessResponse(3)) == CLOSED


def test_stopping_writes_the_marks_first() -> None:
    node = filled(1)
    append(node, 1, 1)
    node.step(Shutdown())
    assert StorageStopped() in node.emitted
    assert replica(reopen(node)).max_id == 1
    assert node.node.deadline() is None


def test_a_node_that_is_to_end_begins_nothing_more_for_servers_and_answers_what_it_has_begun() -> None:
    """Under load it was never idle, and was ended by force after ten seconds."""
    slow = Slow(filled(4))
    slow.send(wire.AppendRequest(5, 1, 0, some(4, 1), False))
    slow.step(Shutdown())
    for at in range(5, 100):
        slow.send(wire.AppendRequest(5, at, 0, some(at, 1), False))
        slow.release(1)
    slow.send(admin.AssignedPartitionStatusRequest(2), to=slow.admin)
    slow.release()
    assert slow.answers() == [wire.SuccessResponse(5, 1, 0)]
    assert [type(answer) for answer in slow.admin.messages] == [admin.AssignedPartitionStatusResponse]
    assert slow.out.count(StorageStopped()) == 1
    assert replica(reopen(slow.made)).max_id == 4


def test_what_waits_for_a_server_to_take_its_answers_is_not_begun_once_the_node_is_to_end() -> None:
    slow = Slow(filled(4))
    slow.step(Writable(slow.storage.conn, False))
    slow.send(wire.AppendRequest(5, 1, 0, some(4, 1), False))
    slow.step(Shutdown())
    slow.step(Writable(slow.storage.conn, True))
    slow.release()
    assert slow.answers() == []
    assert slow.out.count(StorageStopped()) == 1


# ---- codec 1 -------------------------------------------------------------------------------------


def test_codec_1_tells_fence_condition_and_codes() -> None:
    node = filled(12)
    node.disk.flip(DATA, 128 + 150)
    again = reopen(node)
    again.read(0, 1)
    one = codec_1(again, Port.STORAGE)
    report = one.ask(wire.LastSessionInfoRequest(7, 1, 0, False))
    assert (report.fence, report.condition) == (7, Condition.SUSPECT)
    assert [(range_.first_id, range_.last_id) for range_ in report.suspects] == [(1, 1)]
    cases = [
        (wire.MaxTransactionIdRequest(6, 1, 0, False), FailureCode.FENCED, 7),
        (wire.AppendRequest(7, 1, 0, some(13, 1), False), FailureCode.OUT_OF_ORDER, 11),
        (wire.MaxTransactionIdRequest(7, 1, 1, False), FailureCode.NOT_ASSIGNED, -1),
        (wire.MaxTransactionIdRequest(7, 1, 0, True), FailureCode.UNAVAILABLE, -1),
        (wire.RecordRequest(7, 1, 0, 1), FailureCode.CORRUPT, 1),
        (wire.RecordRangeRequest(6, 1, 0, 2, 9, 0, 0), FailureCode.FENCED, 7),
        (wire.RecordRangeRequest(7, 1, 0, 1, 9, 0, 0), FailureCode.CORRUPT, 1),
        (wire.OpenRequest(-1, -1, -1, KEY, 9), FailureCode.WRONG_CLUSTER, -1),
    ]
    for message, code, detail in cases:
        answer = one.ask(message)
        assert (answer.code, answer.detail) == (code, detail), answer
    tool = codec_1(again, Port.ADMIN)
    state = tool.ask(admin.ReplicaStateRequest(1, 0))
    assert (state.fence, state.max_transaction_id, state.condition) == (7, 11, Condition.SUSPECT)
    assert tool.ask(admin.ReplicaStateRequest(1, 1)).code == FailureCode.NOT_ASSIGNED
    assert tool.ask(admin.NodeInfoRequest(1)).key == KEY
    assert tool.ask(admin.DigestRequest(1, 0, 1, 9)).code == FailureCode.CORRUPT


def test_limbo_is_told_to_codec_1_and_refused_to_codec_0() -> None:
    node = filled(12)
    node.disk.flip(DATA, 128 + 399)
    again = reopen(node)
    report = codec_1(again, Port.STORAGE).ask(wire.LastSessionInfoRequest(7, 1, 0, False))
    assert report.condition == Condition.LIMBO
    assert "damaged" in report.reason
    assert "out of service" in text_of(again.dial(Port.STORAGE).ask(wire.LastSessionInfoRequest(7, 1, 0, False)))
    answer = codec_1(again, Port.STORAGE).ask(wire.MaxTransactionIdRequest(7, 1, 0, False))
    assert answer.code == FailureCode.LIMBO


def test_files_are_listed_and_read_as_they_stand_up_to_the_durable_end() -> None:
    node = filled(12)
    tool = codec_1(node, Port.ADMIN)
    segments = tool.ask(admin.SegmentListRequest(1, 0)).segments
    assert [(one.first_id, one.last_id, one.size, one.sealed) for one in segments] == [
        (0, 3, 528, True),
        (4, 7, 528, True),
        (8, 11, 528, False),
    ]
    assert all(one.creation_ms >= 0 for one in segments)
    stored = node.disk.content("0/0000000000000000004.seg")

    def read(offset: int, size: int, first: int = 4) -> Any:
        return tool.ask(admin.SegmentReadRequest(1, 0, first, offset, size))

    answer = read(0, 9999)
    assert (answer.offset, answer.data, answer.checksum) == (0, stored, checksum_of(stored))
    assert read(500, 9999).data == stored[500:]
    assert read(500, 20).data == stored[500:520]
    assert [read(528, 10).data, read(999, 10).data, read(0, 0).data, read(0, -5).data] == [b""] * 4
    # A negative offset names a record.
    assert (read(-1 - 6, 50).offset, read(-1 - 6, 50).data) == (328, stored[328:378])
    assert (read(-1 - 8, 50).offset, read(-1 - 8, 50).data) == (528, b"")
    for offset, first in ((-1 - 3, 4), (-1 - 9, 4), (0, 5)):
        assert read(offset, 10, first).code == FailureCode.OTHER
    assert tool.ask(admin.SegmentReadRequest(1, 1, 0, 0, 10)).code == FailureCode.NOT_ASSIGNED


def test_bytes_that_are_not_durable_are_not_given_out() -> None:
    made = filled(2, threshold=5000)
    tool = codec_1(made, Port.ADMIN)
    slow = Slow(made)
    slow.send(wire.AppendRequest(5, 1, 0, some(2, 2), False))
    batch = slow.batches()[0]
    for operation in batch.operations:  # on the disk, but not yet known to be
        made.disk.apply(operation)
    slow.held.clear()
    slow.send(admin.SegmentReadRequest(1, 0, 0, 0, 9999), to=tool)
    slow.release()
    assert len(tool.messages.pop().data) == 328
    slow.step(DiskDone(batch.ticket))
    slow.send(admin.SegmentReadRequest(1, 0, 0, 0, 9999), to=tool)
    slow.release()
    assert len(tool.messages.pop().data) == 528


def test_a_place_is_found_though_the_index_lies_and_not_where_the_record_is_damaged() -> None:
    node = filled(12)
    node.disk.flip("0/0000000000000000004.idx", 128 + 2 * 8 + 7)
    tool = codec_1(reopen(node), Port.ADMIN)
    assert tool.ask(admin.SegmentReadRequest(1, 0, 4, -1 - 6, 50)).offset == 328
    node.disk.flip("0/0000000000000000004.seg", 128 + 250)
    again = codec_1(reopen(node), Port.ADMIN).ask(admin.SegmentReadRequest(1, 0, 4, -1 - 6, 50))
    assert (again.code, again.detail) == (FailureCode.CORRUPT, 6)


@pytest.mark.parametrize("port", [Port.ADMIN, Port.STORAGE])
def test_ranges_of_records_are_cut_by_number_and_by_bytes(port: Port) -> None:
    peer = codec_1(filled(12), port)

    def ids(*span: int) -> list[int]:
        request: Any = admin.RecordRangeRequest(1, 0, *span)
        if port is Port.STORAGE:
            request = wire.RecordRangeRequest(5, 1, 0, *span)
        return [one.transaction_id for one in peer.ask(request).records]

    assert ids(2, 10, 0, 0) == list(range(2, 11))
    assert ids(2, 10, 3, 0) == [2, 3, 4]
    assert ids(2, 10, 0, 250) == [2, 3]
    assert ids(2, 10, 0, 1) == [2]
    assert ids(5, 4, 0, 0) == ids(12, 20, 0, 0) == []


def test_a_range_that_has_to_wait_is_given_out_as_any_other() -> None:
    node = filled(12)
    newer = codec_1(node, Port.STORAGE).ask(wire.RecordRangeRequest(6, 1, 0, 2, 4, 0, 0))  # waits for its fence
    assert newer == wire.RecordListResponse(6, 1, 0, some(2, 3))
    slow = Slow(node)
    slow.storage = codec_1(node, Port.STORAGE)
    slow.send(wire.AppendRequest(6, 1, 0, some(12, 1), False), wire.RecordRangeRequest(6, 2, 0, 11, 12, 0, 0))
    slow.release()  # the append that it waits for
    assert slow.answers() == [wire.SuccessResponse(6, 1, 0), wire.RecordListResponse(6, 2, 0, some(11, 2))]


def test_a_digest_is_of_the_bytes_on_disk_whatever_the_borders_of_segments() -> None:
    node = filled(12)
    stored = b"".join(node.disk.content(f"0/{first:019d}.seg")[128:] for first in (0, 4, 8))
    tool = codec_1(node, Port.ADMIN)
    answer = tool.ask(admin.DigestRequest(1, 0, 0, 11))
    assert (answer.first_id, answer.last_id) == (0, 11)
    assert answer.digest == sha256(stored).digest()
    for first, last in ((0, 12), (-1, 3), (5, 4)):
        assert "holds 0 to 11" in text_of(tool.ask(admin.DigestRequest(1, 0, first, last)))


# ---- start ---------------------------------------------------------------------------------------


def start(disk: SimDisk, key: UUID = KEY, count: int = 2) -> Desk:
    return Desk(disk, key, count)


def test_a_new_directory_is_formatted_and_ready() -> None:
    node = start(SimDisk())
    assert StorageReady() in node.emitted
    assert len(node.disk.content(control.NAME)) == control.file_size(2)


@pytest.mark.parametrize("content", [b"", bytes(64), bytes(280), bytes(control.HEADER_SIZE) + control.fresh_body(2)])
def test_a_format_cut_short_is_done_again(content: bytes) -> None:
    disk = SimDisk()
    disk.put(control.NAME, content)
    assert start(disk).failure is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda disk: disk.put(control.NAME, disk.content(control.NAME)[:100]), "expected 280 bytes, found 100"),
        (lambda disk: disk.put(control.NAME, disk.content(control.NAME)[:200]), "expected 280 bytes, found 200"),
        (lambda disk: disk.put(control.NAME, b""), "directories of partitions (0)"),
        (lambda disk: disk.volume.remove(control.NAME), "directories of partitions (0)"),
    ],
)
def test_a_control_file_that_lost_its_end_is_an_error(change: Any, words: str) -> None:
    node = filled(3)
    change(node.disk)
    before = node.disk.files()
    again = reopen(node)
    assert again.failure is not None
    assert words in again.failure.reason
    assert node.disk.files() == before
    assert again.node.healthy is False


def test_a_directory_of_another_cluster_says_what_was_expected_and_found() -> None:
    node = filled(3)
    other = start(node.disk, UUID(int=77))
    assert other.failure is not None
    assert str(KEY) in other.failure.reason
    assert str(UUID(int=77)) in other.failure.reason
    more = start(node.disk, KEY, 3)
    assert more.failure is not None
    assert "expected 3" in more.failure.reason
    assert "found 2" in more.failure.reason


def test_in_0_13_2_lists_that_make_no_sense_drop_the_connection() -> None:
    node = desk(kind=StorageNode0132)
    assert node.admin(admin.PartitionAvailableRequest(1, None, True)) == CLOSED
    assert node.admin(admin.PartitionAssignmentRequest(1, (1, 9), True, False)) == CLOSED
    assert replica(node, 1).state is State.OPEN
    assert node.admin(admin.PartitionAssignmentRequest(1, (0, 1), False, True)) == admin.AdminSuccessResponse(1)
    assert [name for name in node.disk.files() if name.startswith("0/")] == []


# ---- procedures ----------------------------------------------------------------------------------


def test_an_answer_nobody_waits_for_is_counted() -> None:
    out: Outbox[DiskEffect] = Outbox()
    runner = Runner(Tickets(), out)
    runner.on_event(DiskDone(7))
    assert (out.take(), runner.stale, runner.idle) == ([], 1, True)


def test_a_procedure_sees_failures_where_it_asked() -> None:
    out: Outbox[DiskEffect] = Outbox()
    runner = Runner(Tickets(), out)
    seen: list[str] = []

    def work() -> Any:
        try:
            yield (Unlink("a"),)
        except DiskError as fault:
            seen.append(f"{fault.kind.name} {fault}")

    runner.start(work(), 3, "removal")
    assert out.take() == [DiskBatch(1, (Unlink("a"),))]
    assert [(one.partition_id, one.purpose) for one in runner.awaited()] == [(3, "removal")]
    runner.on_event(DiskFailed(1, FaultKind.IO, "broken"))
    assert seen == ["IO broken"]
    assert runner.idle


def test_a_node_is_due_at_once_and_then_when_a_mark_is() -> None:
    node = StorageNode(StorageConfig(KEY.bytes, 1))
    assert node.deadline() == 0
    drive(node, SimDisk())
    assert node.deadline() is None
    made = filled(1)
    append(made, 1, 1)
    assert made.node.deadline() == 1000
    made.step(Accepted(50, Port.STORAGE, "x"))
    assert not any(isinstance(one, CloseConn) for one in made.emitted)


def test_a_stranger_yields_its_place_to_a_newcomer_and_servers_keep_theirs() -> None:
    made = Desk(SimDisk(), KEY, 1, places=Places(count_max=2, unproven_ms=1_000))
    server = made.dial(Port.STORAGE)
    stranger = Wire(made, 2, Port.STORAGE)
    other = made.dial(Port.ADMIN)
    assert (server.closed, stranger.closed, other.closed) == (False, True, False)
    late = Wire(made, 4, Port.STORAGE)
    assert (server.closed, other.closed, late.closed) == (False, False, True)


def test_who_shows_no_key_loses_its_connection() -> None:
    made = Desk(SimDisk(), KEY, 1, places=Places(count_max=2, unproven_ms=1_000))
    server, stranger = made.dial(Port.STORAGE), Wire(made, 2, Port.STORAGE)
    made.now = 1_000
    made.step()
    assert (server.closed, stranger.closed) == (False, True)


def test_nothing_is_decoded_behind_the_message_of_a_stranger_that_is_refused() -> None:
    """A read of small messages takes as long to decode as hundreds of appends, and a stranger sends many."""

    class Refusing:
        def serve(self, caller: Caller, message: admin.AdminMessage) -> str | None:
            served.append(message)
            return "open it first"

    served: list[admin.AdminMessage] = []
    accepted = Accepted(1, Port.ADMIN, "10.0.0.1:1")
    theirs = Connection[admin.AdminMessage](ADMIN_PROTOCOL, "", {1})
    peer = Peer(accepted, NO_ROLES.access((), "10.0.0.1:1"), Connection(ADMIN_PROTOCOL, "", {1}), Refusing())
    peer.receive(theirs.hello())
    theirs.receive(peer.connection.hello(), [])
    data = bytearray()
    theirs.encode(admin.StatisticsRequest(1, -1, ()), data)
    assert peer.receive(bytes(data) * 1_000) == "open it first"
    assert (len(served), peer.connection.undecoded) == (1, 999 * len(data))


class Stranger:
    """A peer of the admin port that does not know the cluster key."""

    def __init__(self) -> None:
        self.desk = desk()
        self.connection = Connection[admin.AdminMessage](ADMIN_PROTOCOL, "", {1})
        self.out = self.step(Accepted(50, Port.ADMIN, "10.0.0.1:1"), Received(50, self.connection.hello()))
        for effect in self.out:
            if isinstance(effect, Send):
                self.connection.receive(bytes(effect.data), [])

    def step(self, *events: Any) -> list[Any]:
        out: list[Any] = []
        self.desk.node.step(self.desk.now, events, out)
        return out

    def data(self, message: admin.AdminMessage) -> bytes:
        data = bytearray()
        self.connection.encode(message, data)
        return bytes(data)


def test_a_stranger_that_asks_and_asks_is_dropped() -> None:
    stranger = Stranger()
    asked = stranger.data(admin.StatisticsRequest(1, -1, ()))
    assert not any(isinstance(effect, CloseConn) for effect in stranger.step(Received(50, asked * 100)))
    (end,) = [effect for effect in stranger.step(Received(50, asked * 5_000)) if isinstance(effect, CloseConn)]
    assert end.reason == "the cluster key was not shown within 100 requests"


def test_the_log_names_who_shows_the_key_of_another_cluster_once() -> None:
    stranger = Stranger()
    wrong = stranger.data(admin.AdminOpenRequest(-1, UUID(int=5), 1))
    lines = [one.text for _ in range(3) for one in stranger.step(Received(50, wrong)) if isinstance(one, Report)]
    text = "it showed a key, or a number of partitions, that is not of this cluster"
    assert lines == [f"connection of 10.0.0.1:1: {text}"]


def test_the_log_names_who_breaks_off_in_the_middle_of_a_frame() -> None:
    stranger = Stranger()
    stranger.step(Received(50, stranger.data(admin.StatisticsRequest(1, -1, ()))[:-1]))
    (line,) = [one.text for one in stranger.step(Closed(50, "reset")) if isinstance(one, Report)]
    assert line.startswith("connection of 10.0.0.1:1: it ended in the middle of a frame, of which ")
