"""The log start of a storage node: what is below it goes, whole files at a time, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage_desk import Desk, append, codec_1, desk, filled, mark, reopen, replica, some
from waltz_core.base.edge import Port
from waltz_core.storage import side
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import FailureCode

START = f"0/{side.START}"


def marked(count: int = 12, **settings: Any) -> Desk:
    """A node with `count` records, four to a file, all of them below the session's mark."""
    node = filled(count, **settings)
    assert mark(node, count - 1, session=6) == wire.SuccessResponse(6, 1, 0)
    return node


def raise_to(node: Desk, first_id: int, session: int = 6) -> Any:
    return codec_1(node, Port.STORAGE).ask(wire.SetLogStartRequest(session, 1, 0, first_id))


def begin_at(node: Desk, first_id: int, session: int = 6) -> Any:
    return codec_1(node, Port.STORAGE).ask(wire.BeginAnewRequest(session, 1, 0, first_id))


def start_of(node: Desk, session: int = 6) -> tuple[int, int]:
    answer = codec_1(node, Port.STORAGE).ask(wire.LogStartRequest(session, 1, 0))
    return answer.log_start, answer.max_transaction_id


def files(node: Desk) -> list[str]:
    return [name for name in node.disk.files() if name.endswith((".seg", ".idx"))]


def test_whole_files_below_the_log_start_go_and_what_is_below_it_is_refused() -> None:
    node = marked()
    assert start_of(node) == (0, 11)
    assert raise_to(node, 6) == wire.SuccessResponse(6, 1, 0)
    for made in (node, reopen(node)):
        assert start_of(made) == (6, 11)
        assert sorted(files(made)) == [f"0/{first:019d}.{end}" for first in (4, 8) for end in ("idx", "seg")]
        port = codec_1(made, Port.STORAGE)
        answer = port.ask(wire.RecordListRequest(6, 1, 0, 5, 10))
        assert (answer.code, answer.detail) == (FailureCode.BEFORE_START, 6)
        assert [one.transaction_id for one in port.ask(wire.RecordListRequest(6, 1, 0, 6, 10)).records] == [
            *range(6, 12)
        ]
        tool = codec_1(made, Port.ADMIN)
        assert tool.ask(admin.ReplicaStateRequest(1, 0)).log_start == 6
        answer = tool.ask(admin.LogStartRequest(1, 0))
        assert (answer.log_start, answer.max_transaction_id) == (6, 11)
    assert append(reopen(node), 12, 1, session=6) == wire.SuccessResponse(6, 1, 0)


def test_the_log_start_never_falls_and_never_passes_what_the_session_began_with() -> None:
    node = marked()
    assert append(node, 12, 4, session=6) == wire.SuccessResponse(6, 1, 0)
    assert raise_to(node, 12) == wire.SuccessResponse(6, 1, 0)
    assert raise_to(node, 3) == wire.SuccessResponse(6, 1, 0)
    assert start_of(node) == (12, 15)
    answer = raise_to(node, 13)
    assert (answer.code, answer.detail) == (FailureCode.BELOW_MARK, 12)
    assert start_of(reopen(node)) == (12, 15)
    answer = raise_to(node, 9, session=5)
    assert (answer.code, answer.detail) == (FailureCode.FENCED, 6)


def test_a_replica_that_ends_below_the_log_start_of_the_others_begins_there_anew() -> None:
    for node in (marked(3), filled(0), filled(9)):
        assert begin_at(node, 20) == wire.SuccessResponse(6, 1, 0)
        assert begin_at(node, 20) == wire.SuccessResponse(6, 1, 0)  # again, as its first answer may be lost
        for made in (node, reopen(node)):
            assert start_of(made) == (20, 19)
            assert sorted(files(made)) == [f"0/{20:019d}.idx", f"0/{20:019d}.seg"]
        again = reopen(node)
        assert append(again, 20, 9, session=6) == wire.SuccessResponse(6, 1, 0)
        assert start_of(reopen(again)) == (20, 28)


def test_raising_the_log_start_never_empties_a_log() -> None:
    """A replica that lags would lose what it holds, and with it perhaps the only copies."""
    for node, end in ((marked(3), 2), (filled(0), -1), (filled(9), 8)):
        before = files(node)
        answer = raise_to(node, 20)
        assert answer.code == FailureCode.BELOW_MARK
        assert (start_of(node), files(node)) == ((0, end), before)


def test_a_log_that_can_be_continued_does_not_begin_anew() -> None:
    node = marked(9)
    for first_id in (5, 8, 9):
        answer = begin_at(node, first_id)
        assert (answer.code, answer.detail) == (FailureCode.OUT_OF_ORDER, 8)
    answer = begin_at(node, 20, session=5)
    assert (answer.code, answer.detail) == (FailureCode.FENCED, 6)
    assert start_of(reopen(node)) == (0, 8)


def test_a_node_announces_that_a_log_can_begin_anew() -> None:
    answer = codec_1(filled(0), Port.STORAGE).ask(wire.StatisticsRequest(-1, 1, -1, (wire.CAPABILITIES,)))
    assert wire.capabilities_of(answer) == wire.StorageCapability.BEGIN_ANEW


def test_a_truncation_does_not_reach_below_the_log_start() -> None:
    node = marked(3)
    begin_at(node, 20)
    append(node, 20, 4, session=6)
    port = codec_1(node, Port.STORAGE)
    answer = port.ask(wire.TruncateRequest(6, 1, 0, 18, False))
    assert (answer.code, answer.detail) == (FailureCode.BELOW_MARK, 19)
    assert port.ask(wire.TruncateRequest(6, 1, 0, 19, False)).transaction_id == 19
    assert start_of(reopen(node)) == (20, 19)


def test_an_operator_raises_it_but_does_not_jump() -> None:
    tool = codec_1(node := marked(), Port.ADMIN)
    assert tool.ask(admin.SetLogStartRequest(1, 0, 5)) == admin.AdminSuccessResponse(1)
    assert "not to 13; a later session allows more" in tool.ask(admin.SetLogStartRequest(1, 0, 13)).message
    assert tool.ask(admin.SetLogStartRequest(1, 1, 5)).code == FailureCode.NOT_ASSIGNED
    assert start_of(node) == (5, 11)
    assert any("raise the log start of partition 0 to 5: done" in str(one) for one in node.emitted)


def test_a_lost_file_behind_the_log_start_is_a_loss_and_one_that_is_left_over_is_not() -> None:
    node = marked()
    kept = {name: node.disk.content(name) for name in files(node)}
    raise_to(node, 8)
    first = f"0/{0:019d}"
    node.disk.put(f"{first}.seg", kept[f"{first}.seg"])  # as if its removal had not been durable
    node.disk.put(f"{first}.idx", kept[f"{first}.idx"])
    again = reopen(node)
    assert (start_of(again), len(files(again))) == ((8, 11), 2)
    again.disk.remove(f"0/{8:019d}.seg")
    assert replica(reopen(again)).state is State.LIMBO


def test_damage_below_the_log_start_is_forgotten_and_found_above_it() -> None:
    node = marked()
    node.disk.flip(f"0/{0:019d}.seg", 128 + 150)
    node.disk.flip(f"0/{8:019d}.seg", 128 + 250)
    again = reopen(node)
    port = codec_1(again, Port.STORAGE)
    for first in (1, 10):
        port.ask(wire.RecordListRequest(6, 1, 0, first, 9))
    assert replica(again).faults == {1, 10}
    raise_to(again, 6)
    assert replica(again).faults == {10}
    assert replica(reopen(again)).faults == {10}


def test_a_damaged_record_below_the_log_start_keeps_nobody_out_of_service() -> None:
    """No other replica could mend it: they have given it up, too (seed 95301948)."""
    node = marked()
    raise_to(node, 10)
    node.disk.flip(f"0/{8:019d}.seg", 128 + 50)
    node.disk.remove(f"0/{8:019d}.idx")  # the file is read from its beginning
    again = reopen(node)
    assert (replica(again).state, start_of(again)) == (State.OPEN, (10, 11))
    assert any("it is below the log start, 10, so it is left as it is" in str(one) for one in again.emitted)
    assert append(again, 12, 2, session=6) == wire.SuccessResponse(6, 1, 0)
    assert start_of(reopen(again)) == (10, 13)


def test_the_index_leads_beyond_a_damaged_record_that_is_given_up() -> None:
    """It was cut there. Once the length of the record had rotted too, the log ended at it."""
    node = marked()
    raise_to(node, 10)
    node.disk.flip(f"0/{8:019d}.seg", 128 + 50)
    node.disk.remove(f"0/{8:019d}.idx")
    again = reopen(node)
    for at in range(4):  # of its length
        again.disk.flip(f"0/{8:019d}.seg", 128 + 28 + at)
    third = reopen(again)
    assert (replica(third).state, start_of(third)) == (State.OPEN, (10, 11))


def test_a_log_whose_newest_record_is_damaged_and_given_up_goes_on_in_a_new_file() -> None:
    node = marked()
    node.disk.flip(f"0/{8:019d}.seg", len(node.disk.content(f"0/{8:019d}.seg")) - 20)
    assert codec_1(node, Port.STORAGE).ask(wire.RecordRequest(6, 1, 0, 11)).code == FailureCode.CORRUPT
    assert raise_to(node, 12) == wire.SuccessResponse(6, 1, 0)
    again = reopen(node)
    assert (replica(again).state, start_of(again)) == (State.OPEN, (12, 11))
    assert append(again, 12, 2, session=6) == wire.SuccessResponse(6, 1, 0)
    assert start_of(reopen(again)) == (12, 13)


def test_an_accepted_loss_never_ends_below_the_log_start() -> None:
    node = marked()
    raise_to(node, 10)
    content = bytearray(node.disk.content(f"0/{8:019d}.seg"))
    for record in (0, 2):
        content[128 + record * (len(content) - 128) // 4 + 40] ^= 1
    node.disk.put(f"0/{8:019d}.seg", bytes(content))
    node.disk.remove(f"0/{8:019d}.idx")
    again = reopen(node)
    assert (replica(again).state, replica(again).faults) == (State.LIMBO, {8, 10})
    assert codec_1(again, Port.ADMIN).ask(admin.AcceptLimboRequest(1, 0, 9)) == admin.AdminSuccessResponse(1)
    assert (replica(again).state, start_of(again)) == (State.OPEN, (10, 9))
    assert append(again, 10, 2, session=6) == wire.SuccessResponse(6, 1, 0)


def test_a_partition_assigned_anew_begins_at_0() -> None:
    node = marked()
    raise_to(node, 8)
    assert node.admin(admin.PartitionAssignmentRequest(1, (0,), False, True)) == admin.AdminSuccessResponse(1)
    assert START not in node.disk.files()
    node.disk.put(START, bytes(8192))
    again = reopen(node, assigned=(0,))
    assert start_of(again, session=7) == (0, -1)
    assert again.storage(wire.AppendRequest(7, 1, 0, some(0, 2), False)) == wire.SuccessResponse(7, 1, 0)


def test_a_log_whose_files_were_deleted_by_hand_beside_its_start_begins_at_0_and_may_begin_later_again() -> None:
    node = marked()
    raise_to(node, 8)
    kept = node.disk.files()[START]
    assert node.admin(admin.PartitionAssignmentRequest(1, (0,), False, True)) == admin.AdminSuccessResponse(1)
    node.disk.put(START, kept)
    again = reopen(node, assigned=())
    assert again.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)) == admin.AdminSuccessResponse(1)
    assert START not in again.disk.files()
    assert again.storage(wire.AppendRequest(7, 1, 0, some(0, 12), False)) == wire.SuccessResponse(7, 1, 0)
    assert mark(again, 11, session=8) == wire.SuccessResponse(8, 1, 0)
    assert raise_to(again, 6, session=8) == wire.SuccessResponse(8, 1, 0)
    assert start_of(reopen(again), session=8) == (6, 11)


@pytest.mark.parametrize("slot", [0, 4096])
def test_one_bad_sector_does_not_bring_an_older_log_start_back(slot: int) -> None:
    node = marked()
    raise_to(node, 4)
    raise_to(node, 8)
    node.disk.flip(START, slot + 20)
    assert start_of(reopen(node)) == (8, 11)


def test_without_a_raised_log_start_there_is_no_file_for_it() -> None:
    assert START not in marked().disk.files()
    assert desk().disk.files().keys() >= {f"0/{side.MARK}"}
