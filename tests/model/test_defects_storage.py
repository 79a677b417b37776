"""Defects of the original's storage node, each with its harm (its twin) and without it (ours)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage_desk import DATA, INDEX, KEY, Desk, Wire, append, desk, filled, flush_marks, mark, replica, some
from tests.twin_0132 import disk
from tests.twin_0132.storage import StorageNode0132
from waltz_core.base.edge import Port
from waltz_core.storage import control
from waltz_core.storage.effects import FaultKind, SyncFile
from waltz_core.storage.node import StorageNode
from waltz_core.storage.repair import verdict
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.admin_messages import RepairOutcome
from waltz_testing.simulation.disk import SimDisk

both = pytest.mark.parametrize("on", [False, True], ids=["0.13.2", "ours"])


def kind_of(ours: bool) -> type[StorageNode]:
    """Whose node runs."""
    return StorageNode if ours else StorageNode0132


def again(node: Desk) -> Desk:
    """The next process on the same disk, of the same kind."""
    return desk(node.disk, partitions=node.partition_count, kind=type(node.node))


def refused(answer: Any) -> bool:
    return isinstance(answer, wire.FailureResponse)


@both
def test_a_session_that_was_answered_shuts_older_ones_out_also_after_a_restart(on: bool) -> None:
    """storage-10.1."""
    node = filled(2, kind=kind_of(on))
    assert not refused(node.storage(wire.LastSessionInfoRequest(9, 1, 0, False)))
    assert refused(append(node, 2, 1, session=5))
    assert refused(append(again(node), 2, 1, session=5)) is on


@both
def test_a_connection_that_did_not_open_shuts_nobody_out(on: bool) -> None:
    """storage-10.2."""
    node = filled(2, kind=kind_of(on))
    stranger = Wire(node, 99, Port.STORAGE)
    stranger.greet()
    stranger.ask(wire.MaxTransactionIdRequest(9, 1, 0, False))
    assert refused(append(node, 2, 1, session=5)) is not on


def test_a_late_answer_to_an_older_session_does_not_bring_it_back() -> None:
    """server-D6, storage-10.2: session 6 was answered, then something of session 5 comes."""
    node = filled(2)
    node.storage(wire.LastSessionInfoRequest(6, 1, 0, False))
    assert refused(node.storage(wire.LastSessionInfoRequest(5, 1, 0, False)))
    assert refused(append(node, 2, 1, session=5))
    assert not refused(append(node, 2, 1, session=6))


@both
def test_a_batch_with_a_hole_stores_nothing(on: bool) -> None:
    """storage-10.4."""
    node = filled(0, kind=kind_of(on))
    assert refused(node.storage(wire.AppendRequest(5, 1, 0, (*some(0, 6), *some(7, 1)), False)))
    assert replica(node).max_id == (-1 if on else 5)


@pytest.mark.parametrize("first", [0, 5, 11, 13])
def test_an_append_that_begins_anywhere_but_at_the_end_is_refused(first: int) -> None:
    """storage-10.4: also one that repeats what is there, as peers of 0.13.2 expect."""
    node = filled(12)
    before = node.disk.files()
    assert refused(append(node, first, 2))
    assert replica(node).max_id == 11
    assert {name: data for name, data in node.disk.files().items() if name in before} == before


@both
@pytest.mark.parametrize("target", [-2, 2])
def test_what_lies_below_the_low_water_mark_is_never_cut(on: bool, target: int) -> None:
    """storage-10.5, recovery-D5."""
    node = filled(10, kind=kind_of(on))
    assert not refused(mark(node, 9))
    append(node, 10, 2)
    node.storage(wire.TruncateRequest(5, 1, 0, target, False))
    assert (replica(node).max_id >= 9) is on


def test_what_was_copied_by_a_catch_up_that_was_interrupted_may_be_cut() -> None:
    """storage-10.5: 0.13.2 marks a replica that lags before it copies, and cuts it before it tries again."""
    node = filled(10)
    assert not refused(mark(node, 19))
    append(node, 10, 5)
    assert refused(node.storage(wire.TruncateRequest(5, 1, 0, 8, False)))
    assert not refused(node.storage(wire.TruncateRequest(5, 1, 0, 9, False)))
    append(node, 10, 10)  # level, but ZooKeeper may not know yet
    assert not refused(node.storage(wire.TruncateRequest(5, 1, 0, 9, False)))
    append(node, 10, 11)  # it has voted
    assert refused(node.storage(wire.TruncateRequest(5, 1, 0, 9, False)))
    assert replica(node).max_id == 20


@both
def test_unassigning_what_is_not_assigned_is_answered_and_changes_nothing(on: bool) -> None:
    """storage-10.7, tools-T12."""
    node = filled(2, kind=kind_of(on))
    before = node.disk.content(control.NAME)
    answer = node.admin(admin.PartitionAssignmentRequest(1, (1,), False, False))
    assert isinstance(answer, admin.AdminFailureResponse) is on
    assert (node.disk.content(control.NAME) == before) is on


@both
def test_a_damaged_record_is_not_served(on: bool) -> None:
    """disk-8.11, storage-10.11."""
    node = filled(12, kind=kind_of(on))
    node.disk.flip(DATA, 128 + 60)
    answer = node.storage(wire.RecordRequest(5, 1, 0, 0))
    assert refused(answer) is on
    assert on or answer.record != some(0, 1)[0]


@both
def test_damage_in_one_partition_leaves_the_others_in_service(on: bool) -> None:
    """disk-8.5."""
    node = desk(kind=kind_of(on), assigned=(0, 1))
    for partition in (0, 1):
        append(node, 0, 12, partition=partition)
    node.disk.flip(DATA, 13)
    found = again(node)
    assert (found.failure is None) is on
    assert not on or append(found, 12, 1, partition=1) == wire.SuccessResponse(5, 1, 1)


@both
def test_damage_below_what_was_synced_is_not_taken_for_a_torn_write(on: bool) -> None:
    """disk-8.3: the newest segment is not cut; its replica does not vote with a shorter log."""
    node = filled(12, kind=kind_of(on))
    flush_marks(node)
    segment = "0/0000000000000000008.seg"
    before = len(node.disk.content(segment))
    node.disk.flip(segment, 128 + 150)
    found = again(node)
    assert (len(node.disk.content(segment)) == before) is on
    assert on or replica(found).max_id < 11


@both
@pytest.mark.parametrize("lost", ["entry", "file", "header"])
def test_an_index_is_made_again(on: bool, lost: str) -> None:
    """disk-8.1, disk-8.2."""
    node = desk(kind=kind_of(on), threshold=1 << 30)
    append(node, 0, 1_010, size=1)
    right = node.disk.content(INDEX)
    if lost == "file":
        node.disk.remove(INDEX)
    elif lost == "header":
        node.disk.flip(INDEX, 13)
    else:
        node.disk.put(INDEX, right[: 128 + 8_000] + bytes(80))
    found = desk(node.disk, kind=type(node.node), threshold=1 << 30)
    assert (found.failure is None) is on
    assert not on or replica(found).max_id == 1_009


@both
def test_a_segment_header_that_contradicts_its_name_is_noticed(on: bool) -> None:
    """disk-8.4."""
    node = filled(12, kind=kind_of(on))
    path = "0/0000000000000000004.seg"
    at = next(
        at for at in range(128) if int.from_bytes(node.disk.content(path)[at : at + 8]) == 4
    )  # where the first id stands
    node.disk.flip(path, at + 7, 4 ^ 3)
    found = again(node)
    assert (replica(found).state is State.LIMBO) is on


@both
def test_a_short_control_file_is_no_new_node(on: bool) -> None:
    """disk-8.6."""
    node = filled(12, kind=kind_of(on))
    node.disk.put(control.NAME, b"short")
    found = Desk(node.disk, KEY, 2, kind=type(node.node))
    assert (found.failure is not None) is on
    assert (node.disk.content(control.NAME) == b"short") is on


def test_a_reset_interrupted_anywhere_leaves_a_node_that_starts() -> None:
    """disk-8.7, storage-10.7: one struct is durable before the other is touched."""
    node = filled(2)
    steps: list[SimDisk] = []
    apply = node.disk.apply

    def watch(operation: Any) -> None:
        apply(operation)
        crashed = node.disk.clone()
        crashed.lose_unsynced()
        steps.append(crashed)

    node.disk.apply = watch  # type: ignore[method-assign]  # listens only
    assert node.admin(admin.PartitionAssignmentRequest(1, (0,), False, True)) == admin.AdminSuccessResponse(1)
    assert len(steps) > 2
    for crashed in steps:
        assert Desk(crashed, KEY, 2).failure is None


@both
def test_a_leftover_index_stops_nobody(on: bool) -> None:
    """disk-8.8, disk-8.9."""
    node = filled(4, kind=kind_of(on))
    node.disk.put("0/0000000000000000004.idx", b"x")
    assert refused(append(node, 4, 1)) is not on


@both
def test_sequence_numbers_of_the_control_file_wrap(on: bool) -> None:
    """disk-8.10."""
    last, first = 2**31 - 1, -(2**31)

    def struct(sequence: int, low: int) -> bytes:
        return control.encode_struct(control.ControlStruct(5, low, low, 0, sequence))

    decode = control.decode_entry if on else disk.decode_entry
    entry = decode(bytes(4) + struct(last, 10) + struct(first, 20), 0)
    assert isinstance(entry, control.ControlEntry)
    assert entry.current.low_water_mark == (20 if on else 10)


def test_nothing_is_believed_behind_a_failed_sync() -> None:
    """disk-8.12."""
    node = filled(2)
    node.disk.fault = lambda effect: FaultKind.IO if isinstance(effect, SyncFile) else None
    assert refused(append(node, 2, 1))
    node.disk.fault = None
    assert refused(append(node, 3, 1))
    assert replica(node).state is not State.OPEN


def test_opening_writes_nothing_where_nothing_is_torn() -> None:
    """disk-8.13, tools-T2: looking at a damaged directory removes no byte of it."""
    node = filled(12)
    flush_marks(node)
    node.disk.flip(DATA, 128 + 150)
    node.disk.flip("0/0000000000000000008.seg", 128 + 150)
    before = {name: content for name, content in node.disk.files().items() if name.endswith(".seg")}
    again(node)
    assert {name: content for name, content in node.disk.files().items() if name.endswith(".seg")} == before


def test_both_control_structs_lost_are_restored_from_a_third_copy() -> None:
    """disk-8.14: they share a sector; the side file does not."""
    node = filled(12)
    assert not refused(mark(node, 11))
    flush_marks(node)
    for which in (0, 1):
        node.disk.flip(control.NAME, control.struct_place(0, which))
    found = again(node)
    assert replica(found).state is State.OPEN
    assert replica(found).entry.current.low_water_mark == 11


def test_a_new_segment_has_its_name_on_the_disk_before_the_answer() -> None:
    """disk-8.8: the power fails right after the acknowledgement of its first record."""
    node = filled(4)
    assert append(node, 4, 1) == wire.SuccessResponse(5, 1, 0)
    node.disk.lose_unsynced()
    assert replica(again(node)).max_id == 4


@both
def test_a_message_with_surplus_bytes_is_not_carried_out(on: bool) -> None:
    """storage-10 (a message longer than its fields): 0.13.2 does what the beginning says."""
    node = filled(12, kind=kind_of(on))
    peer = node.dial(Port.STORAGE)
    data = bytearray()
    peer.connection.encode(wire.TruncateRequest(5, 1, 0, 4, False), data)
    data[3:7] = (int.from_bytes(data[3:7]) + 1).to_bytes(4)
    peer.send(bytes(data) + b"x")
    assert peer.closed is on or replica(node).max_id == 4
    assert (replica(node).max_id == 11) is on


def test_sources_that_vouch_for_different_records_are_not_believed() -> None:
    """disk-8.3: a repair from either might change what was acknowledged."""
    one, other = some(3, 1)[0], some(3, 1, salt=1)[0]
    assert verdict([one, one], [other]) == one
    assert verdict([one, other], []) is RepairOutcome.SOURCES_DISAGREE
    assert verdict([other, one], [one, one]) is RepairOutcome.SOURCES_DISAGREE
