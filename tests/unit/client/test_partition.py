"""One partition of a client: mount, feed, appends; driven through the whole client machine."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs
import pytest

from tests.lock_names import pack_names
from tests.twin_0132.client import ClientNode0132
from tests.unit.client.desk import EVERYTHING_AT_A, A, B, Desk, failures, foreign, own, submit
from waltz_core.base.edge import Level, Report, Writable
from waltz_core.base.ids import make_req_id, req_generation, req_sequence
from waltz_core.client.calls import (
    Committed,
    Consumed,
    Deliver,
    Failed,
    Flush,
    Flushed,
    Open,
    Phase,
    Reason,
    StatusChanged,
    StopFeed,
)
from waltz_core.client.link import Kind
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import (
    AppendRefused,
    AppendRequest,
    Capability,
    ClusterInfoResponse,
    ErrorCode,
    ErrorResponse,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    NamedAppendRequest,
    PartitionState,
    Refusal,
)

READY, NOT_READY, CLIENT_AHEAD = PartitionState
STOCK = pack_names([("stock", 7)])
RPC = Kind.RPC


def phases(told: list[Any]) -> list[Phase]:
    return [effect.phase for effect in told if isinstance(effect, StatusChanged)]


def kinds(messages: list[Any]) -> list[str]:
    return [type(message).__name__ for message in messages]


# ---- mount -------------------------------------------------------------------------------------


def test_a_partition_is_mounted_at_the_mark_of_the_application() -> None:
    desk = Desk()
    desk.step(Open(0, 41, True))
    desk.connect()
    (mount,) = desk.take()
    assert mount == MountRequest(make_req_id(7, 1, 0, 1), 41, 0)
    desk.send(MountResponse(mount.req_id, READY))
    assert desk.take() == [FeedRequest(mount.req_id, 41)]
    assert desk.node.status(0, desk.now).phase is Phase.MOUNTED


def test_the_mounts_own_feed_comes_first_and_the_next_request_continues_behind_it() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    (mount,) = desk.take()
    told = desk.send(foreign(0), foreign(1), MountResponse(mount.req_id, READY))
    assert [effect for effect in told if isinstance(effect, Deliver)] == [Deliver(0, [foreign(0), foreign(1)])]
    assert desk.take() == [FeedRequest(mount.req_id, 1)]


def test_a_server_that_is_not_ready_is_asked_again_after_a_pause_with_a_fresh_id() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    (mount,) = desk.take()
    desk.send(MountResponse(mount.req_id, NOT_READY))
    desk.wait(499)
    assert desk.take() == []
    desk.wait(1)
    (again,) = desk.take()
    assert (req_sequence(again.req_id), again.seq_num) == (2, 0)
    desk.send(MountResponse(mount.req_id, READY))
    assert desk.take() == [], "the answer to the first mount is too old"


def test_a_pause_after_not_ready_ends_with_the_connection() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    (mount,) = desk.take()
    desk.send(MountResponse(mount.req_id, NOT_READY))
    desk.cut()
    desk.wait(3_000)
    desk.connect()
    assert [message.seq_num for message in desk.take()] == [1]


def test_a_client_ahead_of_the_log_is_told_so_and_nothing_is_retried() -> None:
    desk = Desk()
    desk.step(Open(0, 10, True))
    desk.submit("waits")
    desk.connect()
    (mount,) = desk.take()
    told = desk.send(MountResponse(mount.req_id, CLIENT_AHEAD))
    assert phases(told) == [Phase.CLIENT_AHEAD]
    assert failures(told) == [("waits", Reason.CLIENT_AHEAD)]
    assert any(isinstance(effect, Report) and effect.level is Level.ERROR for effect in told)
    assert failures(desk.submit("late")) == [("late", Reason.CLIENT_AHEAD)]
    desk.wait(60_000)
    assert desk.take() == []


def test_an_application_that_is_ahead_may_begin_again_lower() -> None:
    desk = Desk()
    desk.step(Open(0, 10, True))
    desk.connect()
    desk.send(MountResponse(desk.take()[0].req_id, CLIENT_AHEAD))
    desk.step(StopFeed(0))
    desk.step(Open(0, 3, True))
    (mount,) = desk.take()
    assert mount.client_mark == 3


def test_a_partition_state_that_does_not_exist_costs_the_connection() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    desk.send(MountResponse(desk.take()[0].req_id, 9))
    assert [close.reason for close in desk.closed] == ["unknown partition state 9"]
    desk.wait(100)
    assert desk.dials


def test_a_mount_that_is_never_answered_is_given_up_with_the_connection() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    desk.take()
    desk.wait(29_999)
    assert not desk.closed
    desk.wait(1)
    assert desk.closed
    desk.wait(50)
    assert desk.dials


def test_a_mount_that_a_living_server_ignores_is_sent_again() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True), Open(1, -1, True))
    desk.connect()
    first, second = desk.take()
    desk.wait(20_000)
    desk.send(MountResponse(second.req_id, READY))
    desk.take()
    desk.wait(10_000)
    assert not desk.closed
    assert [(type(m), m.req_id[8:12]) for m in desk.take()] == [(MountRequest, first.req_id[8:12])]


def test_0_13_2_waits_for_its_mount_for_ever() -> None:
    desk = Desk(node=ClientNode0132)
    desk.step(Open(0, -1, True))
    desk.connect(greet=False)
    desk.wait(100_000)
    assert not desk.closed
    desk = Desk(node=ClientNode0132)
    desk.step(Open(0, -1, True))
    desk.connect()
    desk.wait(500_000)
    assert not desk.closed


def test_a_long_time_without_a_mount_is_reported_once_with_the_reason() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    for _ in range(30):
        for mount in desk.take():
            desk.send(MountResponse(mount.req_id, NOT_READY))
        desk.wait(500)
    reports = [effect.text for effect in desk.told if isinstance(effect, Report)]
    assert reports == ["partition 0 has not been mounted for 10 s: the server is not ready (a:1)"]


def test_how_long_it_has_been_mounted_or_not_is_told() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    desk.wait(300)
    assert desk.node.status(0, desk.now).since_ms == 300
    (*_, mount) = desk.take()
    desk.send(MountResponse(mount.req_id, READY))
    desk.wait(200)
    status = desk.node.status(0, desk.now)
    assert (status.phase, status.since_ms) == (Phase.MOUNTED, 200)


def test_an_unreachable_server_is_named_with_the_reason() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    desk.cut()
    desk.wait(10_000)
    reports = [effect.text for effect in desk.told if isinstance(effect, Report)]
    assert reports == [
        "no connection to a:1: cut",
        "partition 0 has not been mounted for 10 s: no connection to its server (a:1: cut)",
    ]


def test_a_partition_without_a_server_waits_and_says_so() -> None:
    desk = Desk()
    desk.change([])
    desk.step(Open(0, -1, True))
    desk.wait(10_000)
    reports = [effect.text for effect in desk.told if isinstance(effect, Report)]
    assert reports == ["partition 0 has not been mounted for 10 s: no connection to its server (no server is known)"]
    assert desk.node.status(0, desk.now).server is None


# ---- reconnect and move --------------------------------------------------------------------------


def test_a_reconnect_mounts_at_the_mark_in_memory_with_the_next_number() -> None:
    desk = Desk()
    desk.mounted()
    desk.send(foreign(0), foreign(1))
    desk.cut()
    desk.wait(3_000)
    desk.connect()
    (mount,) = desk.take()
    assert (mount.client_mark, mount.seq_num) == (1, 1)


def test_after_a_remount_unresolved_appends_are_flushed_before_the_feed_goes_on() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    desk.cut()
    desk.wait(3_000)
    desk.connect()
    (mount,) = desk.take()
    desk.submit("y")
    assert desk.take() == [], "nothing leaves before the mount"
    desk.send(MountResponse(mount.req_id, READY))
    sent = desk.take()
    assert sent[:2] == [FlushRequest(append.req_id), FeedRequest(mount.req_id, -1)]
    assert kinds(sent[2:]) == ["AppendRequest"]
    assert failures(desk.send(FlushResponse(append.req_id, -1))) == [("x", Reason.FLUSHED)]


def test_an_append_that_was_committed_before_the_cut_is_found_in_the_feed_of_the_mount() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    desk.cut()
    desk.wait(3_000)
    desk.connect()
    (mount,) = desk.take()
    told = desk.send(own(append, 0), MountResponse(mount.req_id, READY))
    assert Committed(0, [("x", 0)]) in told
    assert desk.take() == [FeedRequest(mount.req_id, 0)]


def test_a_partition_that_moves_is_mounted_where_it_went() -> None:
    desk = Desk()
    desk.mounted()
    desk.send(foreign(0))
    desk.change([(A, [(1, 1)]), (B, [(0, 2)])])
    desk.step()
    desk.connect()
    (mount,) = desk.take(server=B)
    assert (mount.client_mark, mount.seq_num, req_generation(mount.req_id)) == (0, 0, 2)
    desk.send(foreign(1))
    assert desk.node.status(0, desk.now).seen_mark == 0, "what the old server still sends is not listened to"
    desk.change([(A, [(0, 3), (1, 1)]), (B, [])])
    desk.step()
    (mount,) = desk.take()
    assert (mount.seq_num, req_generation(mount.req_id)) == (0, 3), "the connection to the first server still stands"


def test_messages_of_the_old_feed_do_not_disturb_after_a_move_and_back() -> None:
    desk = Desk()
    session = desk.mounted()
    desk.change([(A, []), (B, [(0, 2), (1, 2)])])
    desk.step()
    desk.send(FeedSuspended(session), FlushResponse(session, 3), MountResponse(session, READY))
    assert desk.take() == []


def test_a_newer_generation_at_the_same_server_is_mounted_again() -> None:
    desk = Desk()
    desk.mounted()
    desk.change([(A, [(0, 4), (1, 1)])])
    desk.step()
    (mount,) = desk.take()
    assert req_generation(mount.req_id) == 4
    desk.change([(A, [(0, 4), (1, 1)])])
    desk.step()
    assert desk.take() == []


def test_0_13_2_only_uses_the_newer_generation_in_later_ids() -> None:
    desk = Desk(node=ClientNode0132)
    desk.mounted()
    desk.change([(A, [(0, 4), (1, 1)])])
    desk.step()
    assert desk.take() == []
    desk.submit("x")
    (append,) = desk.take()
    assert req_generation(append.req_id) == 4


def test_a_generation_never_goes_back() -> None:
    desk = Desk()
    desk.mounted()
    desk.change([(A, [(0, 0), (1, 1)])])
    assert desk.node.status(0, desk.now).generation == 1


# ---- feed ----------------------------------------------------------------------------------------


def test_a_suspended_feed_is_asked_for_again_at_once() -> None:
    desk = Desk()
    session = desk.mounted()
    desk.send(foreign(0), foreign(1), FeedSuspended(session))
    assert desk.take() == [FeedRequest(session, 1)]


def test_another_sessions_suspension_is_ignored() -> None:
    desk = Desk()
    desk.mounted()
    desk.send(FeedSuspended(make_req_id(7, 1, 0, 99)))
    assert desk.take() == []


def test_ids_other_than_the_next_one_are_not_delivered() -> None:
    desk = Desk()
    desk.mounted()
    told = desk.send(foreign(5), foreign(0), foreign(0), foreign(2), foreign(1))
    assert told == [Deliver(0, [foreign(0), foreign(1)])]


def test_feeds_of_two_partitions_in_one_piece_reach_their_own() -> None:
    desk = Desk()
    desk.mounted(0)
    desk.mounted(1)
    told = desk.send(foreign(0), foreign(1), foreign(0, 1), foreign(2))
    assert told == [Deliver(0, [foreign(0), foreign(1)]), Deliver(1, [foreign(0, 1)]), Deliver(0, [foreign(2)])]


def test_a_full_buffer_drops_what_does_not_fit_and_asks_for_it_when_there_is_room() -> None:
    desk = Desk(settings=ClientSettings(feed_buffer_max=2))
    session = desk.mounted()
    told = desk.send(*[foreign(n) for n in range(4)], FeedSuspended(session))
    assert told == [Deliver(0, [foreign(0), foreign(1)])]
    assert desk.take() == [], "nobody needs more"
    status = desk.node.status(0, desk.now)
    assert (status.seen_mark, status.delivered_mark) == (3, 1)
    desk.step(Consumed(0, 1))
    assert desk.take() == [FeedRequest(session, 1)]
    assert desk.send(foreign(2), foreign(3)) == [Deliver(0, [foreign(2), foreign(3)])]


def test_a_buffer_that_is_exactly_full_is_not_filled_further() -> None:
    desk = Desk(settings=ClientSettings(feed_buffer_max=2))
    session = desk.mounted()
    desk.send(foreign(0), foreign(1), FeedSuspended(session))
    assert desk.take() == []
    desk.step(Consumed(0, 0))
    assert desk.take() == [FeedRequest(session, 1)]


def test_room_in_the_middle_of_a_window_waits_until_the_feed_is_quiet() -> None:
    desk = Desk(settings=ClientSettings(feed_buffer_max=2))
    session = desk.mounted()
    desk.send(*[foreign(n) for n in range(3)])
    desk.step(Consumed(0, 1))
    desk.wait(60)
    desk.send(foreign(3))
    desk.wait(60)
    assert desk.take() == []
    desk.wait(40)
    assert desk.take() == [FeedRequest(session, 1)]
    assert desk.send(foreign(2), foreign(3)) == [Deliver(0, [foreign(2), foreign(3)])]
    desk.send(FeedSuspended(session))
    assert desk.take() == [], "two windows were open"
    desk.step(Consumed(0, 3))
    desk.send(FeedSuspended(session))
    assert desk.take() == [FeedRequest(session, 3)]


def test_room_that_comes_before_the_suspension_is_used_at_the_suspension() -> None:
    desk = Desk(settings=ClientSettings(feed_buffer_max=2))
    session = desk.mounted()
    desk.send(*[foreign(n) for n in range(3)])
    desk.step(Consumed(0, 1), Consumed(0, 1), Consumed(0, 9))
    desk.send(FeedSuspended(session))
    assert desk.take() == [FeedRequest(session, 1)]


def test_an_append_is_judged_although_the_application_does_not_read() -> None:
    desk = Desk(settings=ClientSettings(feed_buffer_max=1))
    session = desk.mounted()
    desk.send(foreign(0), foreign(1), FeedSuspended(session))
    assert desk.take() == []
    desk.submit("x")
    feed, append = desk.take()
    assert feed == FeedRequest(session, 1)
    assert desk.send(own(append, 2)) == [Committed(0, [("x", 2)])]
    desk.send(FeedSuspended(session))
    assert desk.take() == []


def test_a_window_that_ends_while_an_append_is_under_way_is_renewed() -> None:
    desk = Desk(settings=ClientSettings(feed_buffer_max=1))
    session = desk.mounted()
    desk.submit("x")
    desk.take()
    desk.send(foreign(0), foreign(1), FeedSuspended(session))
    assert desk.take() == [FeedRequest(session, 1)]


def test_stopping_a_feed_that_was_full_lets_the_mark_run_on() -> None:
    desk = Desk(settings=ClientSettings(feed_buffer_max=1))
    session = desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    desk.send(own(append, 0), foreign(1), FeedSuspended(session))
    assert desk.take() == []
    desk.step(StopFeed(0))
    assert desk.take() == [FeedRequest(session, 1)]
    assert desk.send(foreign(2)) == []


def test_a_feed_that_nobody_appended_to_is_given_up_and_can_be_opened_again() -> None:
    desk = Desk()
    session = desk.mounted()
    assert phases(desk.step(StopFeed(0))) == [Phase.CLOSED]
    desk.send(foreign(0), FeedSuspended(session))
    assert desk.take() == []
    desk.step(Open(0, -1, True))
    (mount,) = desk.take()
    assert mount.client_mark == -1
    desk.step(StopFeed(0), StopFeed(0), StopFeed(1))


def test_what_is_said_to_a_feed_carries_its_number() -> None:
    desk = Desk()
    desk.step(Open(0, 3, True, 1), submit("x"))
    desk.connect()
    (mount,) = desk.take()
    data = desk.encoded(foreign(4), MountResponse(mount.req_id, CLIENT_AHEAD))
    told = desk.step(data, StopFeed(0), Open(0, 2, True, 2))
    assert Deliver(0, [foreign(4)], 1) in told
    assert StatusChanged(0, Phase.CLIENT_AHEAD, "", 1) in told
    (mount,) = desk.take()
    assert desk.send(foreign(3), MountResponse(mount.req_id, READY)) == [
        Deliver(0, [foreign(3)], 2),
        StatusChanged(0, Phase.MOUNTED, "", 2),
    ]


@pytest.mark.parametrize("mark", [50, 49, 51, None])
def test_a_feed_entered_again_ahead_of_the_log_hears_it_again(mark: int | None) -> None:
    desk = Desk()
    desk.step(Open(0, 50, True, 1), submit("x"))
    desk.connect()
    (mount,) = desk.take()
    desk.send(MountResponse(mount.req_id, CLIENT_AHEAD))
    desk.step(StopFeed(0))
    desk.step(Open(0, mark, True, 2))
    (mount,) = desk.take()
    assert mount.client_mark == (50 if mark is None else mark)
    assert StatusChanged(0, Phase.CLIENT_AHEAD, "", 2) in desk.send(MountResponse(mount.req_id, CLIENT_AHEAD))


def tail(desk: Desk, mark: int) -> MountRequest:
    """The server tells its mark to a partition that is to begin there; its mount."""
    question = [each for each in desk.take(RPC) if isinstance(each, HighWaterMarkRequest)][-1]
    desk.send(HighWaterMarkResponse(question.req_id, mark), kind=RPC)
    (mount,) = [each for each in desk.take() if isinstance(each, MountRequest)]
    return mount


def begins_later(mount: MountRequest) -> ErrorResponse:
    return ErrorResponse(mount.req_id, ErrorCode.BEFORE_START, "the log begins at 500")


def test_who_only_appends_goes_on_behind_what_the_log_has_lost() -> None:
    desk = Desk()
    desk.submit("x")
    desk.connect()
    desk.send(MountResponse(tail(desk, 10).req_id, READY))
    append = desk.take()[-1]
    desk.send(own(append, 11))
    desk.submit("lost")
    desk.cut()
    desk.wait(3_000)
    desk.connect()
    mount = desk.take()[-1]
    assert mount.client_mark == 11
    assert Failed(0, "lost", Reason.BEFORE_START) in desk.send(begins_later(mount))
    desk.submit("y")
    mount = tail(desk, 600)
    assert mount.client_mark == 600
    desk.send(MountResponse(mount.req_id, READY))
    append = desk.take()[-1]
    assert desk.send(own(append, 601)) == [Committed(0, [("y", 601)])]


@pytest.mark.parametrize("together", [False, True])
def test_a_feed_entered_again_before_where_the_log_begins_hears_it_again(together: bool) -> None:
    desk = Desk()
    desk.step(Open(0, 10, True, 1), submit("x"))
    desk.connect()
    (mount,) = desk.take()
    desk.send(begins_later(mount))
    steps = (StopFeed(0), Open(0, 10, True, 2))
    if together:
        desk.step(*steps)
    else:
        for step in steps:
            desk.step(step)
    mount = tail(desk, 600)
    assert mount.client_mark == 10
    assert StatusChanged(0, Phase.BEFORE_START, "the log begins at 500", 2) in desk.send(begins_later(mount))


def test_appends_go_on_at_the_tail_once_a_feed_from_before_the_log_is_left() -> None:
    desk = Desk()
    desk.step(Open(0, 10, True, 1), submit("x"))
    desk.connect()
    (mount,) = desk.take()
    desk.send(begins_later(mount))
    assert failures(desk.submit("y")) == [("y", Reason.BEFORE_START)]
    desk.step(StopFeed(0))
    desk.submit("z")
    desk.send(MountResponse(tail(desk, 600).req_id, READY))
    assert desk.send(own(desk.take()[-1], 601)) == [Committed(0, [("z", 601)])]


def test_a_feed_opened_behind_a_producer_is_mounted_again_from_there() -> None:
    desk = Desk()
    desk.mounted(deliver=False, mark=10)
    desk.step(Open(0, 4, True))
    (mount,) = desk.take()
    assert mount.client_mark == 4
    told = desk.send(*[foreign(n) for n in range(5, 12)], MountResponse(mount.req_id, READY))
    assert Deliver(0, [foreign(n) for n in range(5, 12)]) in told
    assert desk.take() == [FeedRequest(mount.req_id, 11)]


def test_a_feed_opened_behind_while_an_append_is_under_way_judges_it_once() -> None:
    desk = Desk()
    desk.mounted(deliver=False, mark=1)
    desk.submit("x")
    (append,) = desk.take()
    desk.step(Open(0, -1, True))
    (mount,) = desk.take()
    assert mount.client_mark == -1
    told = desk.send(foreign(0), foreign(1), own(append, 2), MountResponse(mount.req_id, READY))
    assert Committed(0, [("x", 2)]) in told


def test_a_feed_opened_ahead_skips_only_when_no_append_is_under_way() -> None:
    desk = Desk()
    desk.mounted(deliver=False, mark=-1)
    desk.submit("x")
    (append,) = desk.take()
    desk.step(Open(0, 5, True))
    assert desk.take() == []
    told = desk.send(own(append, 0))
    assert told == [Committed(0, [("x", 0)]), StatusChanged(0, Phase.MOUNTING)]
    (mount,) = desk.take()
    assert mount.client_mark == 5


def test_a_feed_at_the_tail_of_a_running_producer_begins_where_that_is() -> None:
    desk = Desk()
    desk.mounted(deliver=False, mark=3)
    desk.step(Open(0, None, True))
    assert desk.take() == []
    assert desk.send(foreign(4)) == [Deliver(0, [foreign(4)])]


def test_a_feed_opened_at_the_mark_of_the_producer_needs_no_mount() -> None:
    desk = Desk()
    desk.mounted(deliver=False, mark=3)
    desk.step(Open(0, 3, True))
    assert desk.take() == []


# ---- tail ----------------------------------------------------------------------------------------


def test_the_first_append_mounts_at_the_servers_mark() -> None:
    desk = Desk()
    desk.submit("x")
    desk.connect()
    (ask,) = desk.take(RPC)
    assert isinstance(ask, HighWaterMarkRequest)
    desk.send(HighWaterMarkResponse(ask.req_id, 17), kind=RPC)
    (mount,) = desk.take()
    assert mount.client_mark == 17
    desk.send(MountResponse(mount.req_id, READY))
    feed, append = desk.take()
    assert (feed.client_mark, append.client_mark) == (17, 17)
    assert desk.send(own(append, 18)) == [Committed(0, [("x", 18)])]


@pytest.mark.parametrize("deliver_first", [True, False])
def test_a_feed_at_the_tail_delivers_only_what_is_new(deliver_first: bool) -> None:
    desk = Desk()
    desk.step(Open(0, None, deliver_first))
    desk.step(Open(0, None, True))
    desk.connect()
    desk.send(HighWaterMarkResponse(desk.take(RPC)[0].req_id, 2), kind=RPC)
    (mount,) = desk.take()
    told = desk.send(foreign(3), MountResponse(mount.req_id, READY))
    assert Deliver(0, [foreign(3)]) in told


def test_a_feed_from_a_mark_opened_while_the_tail_is_asked_for_begins_at_its_mark() -> None:
    desk = Desk()
    desk.submit("x")
    desk.step(Open(0, 5, True))
    desk.connect()
    (mount,) = desk.take()
    assert mount.client_mark == 5
    desk.send(HighWaterMarkResponse(desk.take(RPC)[0].req_id, 9), kind=RPC)
    desk.send(foreign(6), MountResponse(mount.req_id, READY))
    assert desk.node.status(0, desk.now).delivered_mark == 6


def test_an_append_while_a_feed_waits_for_the_tail_goes_out_after_the_mount() -> None:
    desk = Desk()
    desk.step(Open(0, None, True))
    desk.submit("x")
    desk.connect()
    assert desk.take() == []
    desk.cut()
    desk.wait(3_000)
    desk.connect()
    desk.send(HighWaterMarkResponse(desk.take(RPC)[-1].req_id, 0), kind=RPC)
    (mount,) = desk.take()
    desk.send(MountResponse(mount.req_id, READY))
    assert kinds(desk.take()) == ["FeedRequest", "AppendRequest"]


# ---- appends -------------------------------------------------------------------------------------


def test_appends_leave_in_order_with_their_own_marks() -> None:
    desk = Desk()
    desk.mounted()
    desk.send(foreign(0), foreign(1))
    desk.step(submit("a"), submit("b", mark=0, lock=5), submit("c"))
    a, b, c = desk.take()
    assert [m.client_mark for m in (a, b, c)] == [1, 0, 1]
    assert b.write_locks == (5,)
    assert [req_sequence(m.req_id) for m in (a, b, c)] == [2, 3, 4]
    assert (a.header, a.data) == (9, b"'a'")


def test_appends_wait_while_the_connection_takes_no_more() -> None:
    desk = Desk()
    desk.mounted()
    desk.step(Writable(desk.conn(), False), submit("a"), submit("b"))
    assert desk.take() == []
    assert desk.node.status(0, desk.now).queued == 2
    desk.step(submit("c"))
    desk.step(Writable(desk.conn(), True))
    assert [m.data for m in desk.take()] == [b"'a'", b"'b'", b"'c'"]


def test_a_queue_of_an_unmounted_partition_does_not_move_when_the_connection_drains() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True), submit("a"))
    desk.connect()
    desk.take()
    desk.step(Writable(desk.conn(), True))
    assert desk.take() == []


def test_locks_that_the_peers_version_cannot_carry_are_refused_with_a_reason() -> None:
    desk = Desk(versions=(0, 1))
    desk.mounted()
    told = desk.step(
        submit("plain"),
        type(submit("x"))(0, "x", 0, (), (), (4,), 0, b"", 0),
    )
    assert [(f.token, f.reason) for f in told if isinstance(f, Failed)] == [("x", Reason.REFUSED)]
    assert "codec 2" in told[0].text
    assert kinds(desk.take()) == ["AppendRequest"]


def test_a_lock_failure_is_told_when_the_blocking_transaction_was_seen() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x", lock=1, mark=-1)
    (append,) = desk.take()
    assert desk.send(LockFailure(append.req_id, 1)) == []
    told = desk.send(foreign(0), foreign(1))
    assert told == [Failed(0, "x", Reason.LOCK, 1), Deliver(0, [foreign(0), foreign(1)])]


def test_an_old_append_is_asked_about() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    desk.wait(4_999)
    assert desk.take() == []
    desk.wait(1)
    assert desk.take() == [FlushRequest(append.req_id)]
    desk.wait(5_000)
    assert desk.take() == [FlushRequest(append.req_id)]


def test_an_append_that_vanished_leads_to_a_new_mount() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    desk.wait(5_000)
    told = desk.send(FlushResponse(append.req_id, -1))
    assert failures(told) == [("x", Reason.FLUSHED)]
    assert kinds(desk.take()) == ["FlushRequest", "MountRequest"]


def test_0_13_2_stays_mounted_after_a_loss() -> None:
    desk = Desk(node=ClientNode0132)
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    desk.wait(5_000)
    desk.send(FlushResponse(append.req_id, -1))
    assert kinds(desk.take()) == ["FlushRequest"]


def test_a_flush_that_is_never_answered_costs_a_silent_servers_connection() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    desk.wait(34_999)
    assert not desk.closed
    desk.wait(1)
    assert len(desk.closed) == 1


def test_an_answer_that_the_feed_never_reaches_leads_to_a_new_mount() -> None:
    desk = Desk()
    desk.mounted()
    desk.mounted(1)
    desk.submit("x")
    (append,) = desk.take()
    desk.wait(5_000)
    desk.send(FlushResponse(append.req_id, 7))
    desk.take()
    for number in range(6):
        desk.wait(5_000)
        desk.send(foreign(number, 1), FlushResponse(append.req_id, 7))
    assert "MountRequest" in kinds(desk.take())
    assert not desk.closed


def test_a_released_answer_is_no_longer_waited_for() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x", lock=1, mark=-1)
    (append,) = desk.take()
    desk.submit("y")
    desk.send(LockFailure(append.req_id, 0))
    desk.send(foreign(0))
    for _ in range(4):
        desk.wait(9_000)
        flushes = [m for m in desk.take() if isinstance(m, FlushRequest)]
        desk.send(*[FlushResponse(flush.req_id, -(2**63)) for flush in flushes])
    assert not desk.closed


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (Refusal.TOO_LARGE, Reason.REFUSED),
        (Refusal.NOT_ALLOWED, Reason.REFUSED),
        (Refusal.GENERATION, Reason.NOT_NOW),
        (Refusal.NOT_MOUNTED, Reason.NOT_NOW),
        (Refusal.NOT_SERVED, Reason.NOT_NOW),
        (Refusal.NOT_READY, Reason.NOT_NOW),
        (Refusal.OVERLOADED, Reason.NOT_NOW),
        (Refusal.OTHER, Reason.OTHER),
        (99, Reason.OTHER),
    ],
)
def test_a_refusal_is_told_with_its_text_and_whether_it_is_for_good(refusal: int, reason: Reason) -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    told = desk.send(AppendRefused(append.req_id, refusal, -1, 0, -1, -1, -1, 0, "so"))
    assert Failed(0, "x", reason, text="so") in told
    assert kinds(desk.take()) == (["MountRequest"] if refusal == Refusal.NOT_MOUNTED else [])


def test_a_refusal_because_of_a_lock_waits_as_a_lock_failure_does() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x", lock=1, mark=-1)
    (append,) = desk.take()
    refused = AppendRefused(append.req_id, Refusal.LOCK, 0, 1, 0, 0, 0, 1, None)
    assert desk.send(refused) == []
    assert Failed(0, "x", Reason.LOCK, 0, refusal=refused) in desk.send(foreign(0))


def test_a_refusal_without_a_text_has_one() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    (told,) = desk.send(AppendRefused(append.req_id, 0, -1, 0, -1, -1, -1, 0, None))
    assert told.text == "no reason given"


# ---- flush ---------------------------------------------------------------------------------------


def test_a_flush_with_nothing_under_way_is_answered_at_once() -> None:
    desk = Desk()
    desk.mounted()
    assert desk.step(Flush(0, "f")) == [Flushed(0, "f")]
    assert desk.take() == []


def test_a_flush_is_answered_when_everything_before_it_has_an_outcome() -> None:
    desk = Desk()
    desk.mounted()
    assert desk.step(submit("a"), submit("b"), Flush(0, "f"), submit("c")) == []
    a, b, flush, _ = desk.take()
    assert flush == FlushRequest(b.req_id)
    assert desk.send(own(a, 0))[0] == Committed(0, [("a", 0)])
    told = desk.send(FlushResponse(b.req_id, 0))
    assert told == [Failed(0, "b", Reason.FLUSHED), Flushed(0, "f")]


def test_a_second_flush_behind_the_same_append_sends_nothing() -> None:
    desk = Desk()
    desk.mounted()
    desk.step(submit("a"), Flush(0, "f"), Flush(0, "g"))
    a, _ = desk.take()
    told = desk.send(own(a, 0))
    assert told[1:] == [Deliver(0, [own(a, 0)]), Flushed(0, "f"), Flushed(0, "g")]


def test_a_flush_of_a_queue_is_sent_when_the_queue_has_left() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True), submit("a"), Flush(0, "f"))
    desk.connect()
    (mount,) = desk.take()
    desk.send(MountResponse(mount.req_id, READY))
    assert kinds(desk.take()) == ["FeedRequest", "AppendRequest", "FlushRequest"]


def test_a_flush_is_repeated_on_the_next_connection() -> None:
    desk = Desk()
    desk.mounted()
    desk.step(submit("a"), Flush(0, "f"))
    a, _ = desk.take()
    desk.cut()
    desk.wait(3_000)
    desk.connect()
    (mount,) = desk.take()
    desk.send(MountResponse(mount.req_id, READY))
    assert desk.take() == [FlushRequest(a.req_id), FeedRequest(mount.req_id, -1)]
    assert desk.send(FlushResponse(a.req_id, -1)) == [Failed(0, "a", Reason.FLUSHED), Flushed(0, "f")]


def test_sequence_numbers_wrap_as_signed_32_bit_integers() -> None:
    desk = Desk()
    desk.mounted()
    desk.node.partitions[0]._standing.sequence = (1 << 31) - 1
    desk.step(submit("a"), submit("b"))
    assert [req_sequence(m.req_id) for m in desk.take() if isinstance(m, AppendRequest)] == [-(1 << 31), -(1 << 31) + 1]


def test_everything_is_known_from_the_start_of_a_fixed_cluster() -> None:
    desk = Desk()
    assert desk.node.status(1, desk.now).server == EVERYTHING_AT_A[0][0]
    assert desk.node.status(5, desk.now).phase is Phase.CLOSED


def test_a_feed_from_the_start_opened_while_the_tail_is_asked_for_begins_at_the_start() -> None:
    desk = Desk()
    desk.submit("x")
    desk.step(Open(0, -1, True))
    desk.connect()
    desk.send(HighWaterMarkResponse(desk.take(RPC)[0].req_id, 9), kind=RPC)
    (mount,) = desk.take()
    assert mount.client_mark == -1


def test_a_feed_of_an_earlier_mount_is_not_listened_to_before_the_next() -> None:
    desk = Desk()
    desk.mounted()
    desk.step(StopFeed(0))
    desk.wait(1_000)
    desk.step(Open(0, None, True))
    desk.send(foreign(0))
    assert desk.node.status(0, desk.now).seen_mark == -1


def test_more_room_does_not_put_off_the_next_request() -> None:
    desk = Desk(settings=ClientSettings(feed_buffer_max=4))
    session = desk.mounted()
    desk.send(*[foreign(n) for n in range(5)])
    desk.step(Consumed(0, 1))
    desk.wait(60)
    desk.step(Consumed(0, 2))
    desk.wait(40)
    assert desk.take() == [FeedRequest(session, 3)]


# ---- servers that explain themselves -------------------------------------------------------------


def explain(desk: Desk, capabilities: int = Capability.NAMED_APPENDS) -> None:
    """The server tells what it can."""
    request = desk.capability_requests[Kind.STREAM].pop()
    desk.send(ClusterInfoResponse(request.req_id, 0, "c", UUID(int=1), 2, -1, capabilities, ()))


def test_appends_carry_names_once_the_server_says_that_it_takes_them() -> None:
    desk = Desk()
    desk.mounted()
    plain, first, second = attrs.evolve(submit("a", lock=5), names=STOCK), submit("b"), submit("c", lock=5)
    desk.step(plain)
    explain(desk)
    desk.step(attrs.evolve(first), attrs.evolve(second, names=STOCK))
    sent = desk.take()
    assert kinds(sent) == ["AppendRequest", "NamedAppendRequest", "NamedAppendRequest"]
    assert [one.names for one in sent[1:]] == [b"", STOCK]
    assert (sent[2].write_locks, sent[2].client_mark, sent[2].data) == ((5,), -1, second.data)


def test_names_stay_here_if_the_application_wants_that() -> None:
    desk = Desk(settings=ClientSettings(lock_names=False))
    desk.mounted()
    explain(desk)
    desk.step(attrs.evolve(submit("a", lock=5), names=STOCK))
    (append,) = desk.take()
    assert isinstance(append, NamedAppendRequest)
    assert append.names == b""


def test_a_server_that_does_not_take_names_gets_none_also_after_one_that_does() -> None:
    desk = Desk()
    desk.mounted()
    explain(desk)
    desk.capability_requests[Kind.STREAM].clear()
    desk.cut()
    desk.wait(200)
    desk.connect()
    (mount,) = desk.take()
    explain(desk, 0)
    desk.send(MountResponse(mount.req_id, READY))
    desk.take()
    desk.submit("a", lock=5)
    assert kinds(desk.take()) == ["AppendRequest"]
    assert desk.capability_requests[Kind.STREAM] == []  # an answer is asked for once per connection


def test_a_server_that_could_not_say_what_it_takes_is_asked_again_with_the_mount() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    (mount,) = desk.take()
    request = desk.capability_requests[Kind.STREAM].pop()
    desk.send(ErrorResponse(request.req_id, ErrorCode.NOT_READY, "not joined"), MountResponse(mount.req_id, READY))
    explain(desk)
    desk.take()
    desk.submit("a", lock=5)
    assert kinds(desk.take()) == ["NamedAppendRequest"]
