"""Defects of the original's client, each with its harm (its twin) and without it (ours)."""

from __future__ import annotations

import pytest

from tests.twin_0132.client import ClientNode0132
from tests.unit.client.desk import A, B, Desk, failures, foreign, own
from waltz_core.base.edge import Closed, Dialed
from waltz_core.base.ids import req_generation
from waltz_core.client.calls import CloseClient, Open, ReadMark, Reason
from waltz_core.client.link import Kind
from waltz_core.client.node import ClientNode
from waltz_core.wire.client_messages import (
    AppendRequest,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    MountRequest,
    MountResponse,
    PartitionState,
    ServerPartitionsAssignmentRequest,
)

both = pytest.mark.parametrize("on", [False, True], ids=["0.13.2", "ours"])


def desk_of(ours: bool) -> Desk:
    """With our client, or with one of 0.13.2."""
    return Desk(node=ClientNode if ours else ClientNode0132)


@both
def test_a_peer_that_breaks_off_at_once_is_not_dialed_in_a_loop(on: bool) -> None:
    """client-C15: 0.13.2 dials again without a pause."""
    desk = desk_of(on)
    desk.step(Open(0, -1, True))
    dials = 0
    while desk.now < 3_000 and dials < 200:
        for dial in [desk.dials.pop(0) for _ in range(len(desk.dials))]:
            dials += 1
            desk.step(Dialed(dial.conn), Closed(dial.conn, "no common version"))
        if not desk.dials:
            desk.wait(10)
    assert (dials < 60) is on


@both
def test_a_server_that_never_answers_a_mount_is_given_up(on: bool) -> None:
    """client-C7, protocol-16.5."""
    desk = desk_of(on)
    desk.step(Open(0, -1, True))
    desk.connect()
    desk.wait(300_000)
    assert bool(desk.closed) is on


@both
def test_an_unanswered_question_for_the_mark_is_asked_again(on: bool) -> None:
    """client-C7, server-D16: the server says nothing about a partition that is elsewhere."""
    desk = desk_of(on)
    desk.step(ReadMark(0, "m"))
    desk.connect()
    desk.wait(5_000)
    asked = [one for one in desk.take(Kind.RPC) if isinstance(one, HighWaterMarkRequest)]
    assert (len(asked) > 1) is on


@both
def test_a_partition_that_was_away_and_is_back_is_mounted_again(on: bool) -> None:
    """The fix of 2020-03-13 (never mounted), and server-D14: the server made the partition anew, unseen by us."""
    desk = desk_of(on)
    desk.mounted()
    desk.change([(A, [(0, 4), (1, 1)])])
    desk.step()
    mounts = [one for one in desk.take() if isinstance(one, MountRequest)]
    assert [req_generation(one.req_id) for one in mounts] == ([4] if on else [])


@both
def test_a_server_that_forgot_us_is_told_again(on: bool) -> None:
    """protocol-16.5: appends that vanish are the only sign."""
    desk = desk_of(on)
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    desk.wait(5_000)
    told = desk.send(FlushResponse(append.req_id, -1))
    assert failures(told) == [("x", Reason.FLUSHED)]
    assert any(isinstance(one, MountRequest) for one in desk.take()) is on


def test_old_appends_are_asked_about_for_ever_also_after_an_outage() -> None:
    """client-C5, client-C13: an outage of a minute ends neither the questions nor the appends."""
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    desk.take()
    desk.cut()
    desk.wait(60_000)
    assert failures(desk.told) == []
    desk.connect()
    (mount,) = [one for one in desk.take() if isinstance(one, MountRequest)]
    desk.send(MountResponse(mount.req_id, PartitionState.READY))
    flushes = [one for one in desk.take() if isinstance(one, FlushRequest)]
    assert flushes
    desk.send(FlushResponse(flushes[-1].req_id, -1))
    assert failures(desk.told) == [("x", Reason.FLUSHED)]
    desk.submit("y")
    desk.wait(6_000)
    assert any(isinstance(one, FlushRequest) for one in desk.take())


def test_one_transaction_that_costs_time_disturbs_no_other_partition() -> None:
    """client-C3, client-C9, client-C10: nothing but a broken connection remounts a partition."""
    desk = Desk()
    desk.mounted(0)
    desk.step(Open(1, -1, True))
    (mount,) = [one for one in desk.take() if isinstance(one, MountRequest)]
    desk.send(MountResponse(mount.req_id, PartitionState.READY))
    desk.take()
    desk.send(*(foreign(n) for n in range(3)))
    desk.wait(20_000)
    assert not any(isinstance(one, MountRequest) for one in desk.take())
    assert not desk.closed


def test_a_feed_of_a_partition_that_nobody_reads_any_more_is_not_kept_up() -> None:
    """client-C17: what comes for a partition that we do not have is ignored and moves no mark."""
    desk = Desk()
    desk.mounted(0)
    desk.send(foreign(0, partition=1), foreign(1, partition=1))
    assert desk.node.status(0, desk.now).seen_mark == -1


def test_nothing_of_a_closed_client_is_acted_upon() -> None:
    """client-C16, client-C7: closing answers everybody who waits, and late messages change nothing."""
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    told = desk.step(CloseClient())
    assert [token for token, _ in failures(told)] == ["x"]
    conn = desk.conn()
    data = bytearray()
    desk.codecs[conn].encode(own(append, 0), data)
    assert desk.wait(60_000) == []


def test_an_append_whose_server_went_is_sent_nowhere_twice() -> None:
    """Invariant 3 of the client page: what was judged lost is never sent again by the machine itself."""
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    (append,) = desk.take()
    desk.change([(B, [(0, 2), (1, 1)])])
    desk.step()
    desk.connect()
    sent = desk.take(server=B)
    assert not any(isinstance(one, AppendRequest) for one in sent)
    (mount,) = [one for one in sent if isinstance(one, MountRequest)]
    desk.send(MountResponse(mount.req_id, PartitionState.READY), server=B)
    after = desk.take(server=B)
    assert not any(isinstance(one, AppendRequest) and one.req_id == append.req_id for one in after)
    assert any(isinstance(one, FlushRequest) for one in after)


def test_requests_of_one_type_are_answered_each_by_its_own_number() -> None:
    """client-C8: an answer belongs to its request id, not to its kind."""
    from tests.model.test_server import Client, opened

    client = Client(opened(servers=2, partitions=4))
    asked = [client.req_id() for _ in range(3)]
    client.send(*(ServerPartitionsAssignmentRequest(one) for one in asked))
    client.wait(lambda: len(client.received) >= 3)
    assert [one.req_id for one in client.received] == asked
