"""What a partition of a proxy says, and when: mounts behind barriers, appends in order, losses of the upstream."""

from __future__ import annotations

import pytest

from tests.unit.proxy.desk import FRESH_ABOVE, GENERATION, Desk, append, peer
from waltz_core.base.ids import make_req_id
from waltz_core.client.calls import Carried, RecordsCarried
from waltz_core.proxy.partition import FLOOR
from waltz_core.wire import client_messages as messages

OLD, NEW = FRESH_ABOVE, FRESH_ABOVE + 1
READY = messages.PartitionState.READY


def states(desk: Desk) -> list[int]:
    return [answer.partition_state for answer in desk.of(messages.MountResponse)]


def test_a_mount_is_answered_when_a_flush_behind_it_was_and_its_mark_is_reached() -> None:
    desk = Desk(mark=9)
    flushes = len(desk.upstream.barriers)
    desk.mount(peer(1, NEW), 9)
    assert len(desk.upstream.barriers) == flushes + 1
    desk.flushed(10)
    assert states(desk) == []
    desk.feed(make_req_id(7, 1, 0, 1))
    assert states(desk) == [READY]
    assert desk.fed(1) == 1, "what was committed since the client's mark comes before the answer"


def test_one_flush_answers_all_who_wait_when_it_leaves_and_nobody_later() -> None:
    desk = Desk()
    desk.upstream.up = False
    desk.mount(peer(1, NEW), 9)
    desk.mount(peer(2, NEW + 1), 9)
    desk.upstream.up = True
    desk.work()
    desk.mount(peer(3, NEW + 2), 9)
    assert len(desk.upstream.barriers) == 3, "of the beginning, of two, of one"
    desk.flushed(9, at=1)
    assert len(states(desk)) == 2
    desk.flushed(9, at=2)
    assert len(states(desk)) == 3


def test_appends_leave_in_order_and_a_barrier_behind_them() -> None:
    desk = Desk()
    one, two = peer(1, NEW), peer(2, NEW + 1)
    for who in (one, two):
        desk.mount(who, 9)
        desk.flushed(9)
    desk.upstream.up = False
    desk.says(one, append(NEW, 1), append(NEW, 2))
    desk.says(two, append(NEW + 1, 1, named=True))
    desk.says(one, messages.FlushRequest(make_req_id(NEW, GENERATION, 0, 2)))
    desk.upstream.up = True
    desk.work()
    assert [request.req_id[12:] for request in desk.upstream.carried] == [b"\0\0\0\1", b"\0\0\0\2", b"\0\0\0\1"]
    desk.flushed(12)
    assert desk.of(messages.FlushResponse) == []
    desk.feed(*(request.req_id for request in desk.upstream.carried))
    assert desk.of(messages.FlushResponse, 1) == [messages.FlushResponse(make_req_id(NEW, GENERATION, 0, 2), 12)]


def test_no_barrier_overtakes_appends_that_wait() -> None:
    desk = Desk()
    who = peer(1, NEW)
    desk.mount(who, 9)
    desk.flushed(9)
    flushes = len(desk.upstream.barriers)
    desk.upstream.full = True
    desk.says(who, append(NEW, 1), messages.FlushRequest(make_req_id(NEW, GENERATION, 0, 1)))
    assert len(desk.upstream.barriers) == flushes
    desk.upstream.full = False
    desk.work()
    assert len(desk.upstream.barriers) == flushes + 1


@pytest.mark.parametrize("pace", [1, 5])
def test_beside_a_client_that_waits_for_each_the_others_keep_the_pace_of_the_configuration(pace: int) -> None:
    turn = 10
    desk = Desk(append_turn=turn, append_window=25, append_pace=pace)
    flood, honest = peer(1, NEW), peer(2, NEW + 1)
    for who in (flood, honest):
        desk.mount(who, 9)
        desk.flushed(9)
    desk.says(flood, *(append(NEW, number) for number in range(100)))
    desk.flushed(9)
    begun, before = desk.now, len(desk.upstream.carried)
    for number in range(20):
        desk.upstream.up = False  # until both have said something
        desk.says(flood, *(append(NEW, number) for number in range(100)))
        desk.says(honest, append(NEW + 1, number))
        desk.upstream.up = True
        desk.work()
        desk.flushed(9)
        due = desk.partition.carriage.deadline(desk.now)
        assert due is not None
        desk.now = due
    others = len(desk.upstream.carried) - before - 20
    assert abs(others - pace * (desk.now - begun)) <= 2 * turn


def test_refusals_go_to_the_client_whose_append_it_was() -> None:
    desk = Desk()
    for conn in (1, 2):
        who = peer(conn, NEW + conn)
        desk.mount(who, 9)
        desk.flushed(9)
        desk.says(who, append(NEW + conn, 1))
    failure = messages.LockFailure(desk.upstream.carried[1].req_id, 4)
    desk.partition.carried(desk.now, Carried(0, failure))
    desk.partition.carried(desk.now, Carried(0, messages.LockFailure(make_req_id(5, 1, 0, 1), 4)))  # of nobody here
    desk.work()
    assert desk.of(messages.LockFailure) == desk.of(messages.LockFailure, 2) == [failure]


def test_who_sent_appends_over_a_lost_connection_is_disconnected_and_nobody_else() -> None:
    desk = Desk()
    writer, waiting, reader = peer(1, NEW), peer(2, NEW + 1), peer(3, NEW + 2)
    for who in (writer, waiting, reader):
        desk.mount(who, 9)
        desk.flushed(9)
    desk.says(writer, append(NEW, 1))
    desk.upstream.up = False
    desk.says(waiting, append(NEW + 1, 1))
    desk.lose()
    assert desk.closed() == [1]
    desk.upstream.up = True
    desk.connect()
    assert [req.req_id for req in desk.upstream.carried[1:]] == [append(NEW + 1, 1).req_id], "nothing is sent twice"


def test_a_flush_whose_answer_was_lost_is_asked_again() -> None:
    desk = Desk()
    desk.mount(peer(1, NEW), 9)
    lost = desk.upstream.barriers[-1]
    desk.lose()
    desk.partition.phase_changed(desk.partition.phase)
    desk.connect()
    assert states(desk) == [READY]
    desk.partition.carried(desk.now, Carried(0, messages.FlushResponse(lost, 9)))  # late, and nobody's any more
    assert len(states(desk)) == 1


def test_without_upstream_only_clients_without_appends_under_way_are_mounted() -> None:
    desk = Desk()
    writer = peer(1, NEW)
    desk.mount(writer, 9)
    desk.flushed(9)
    desk.says(writer, append(NEW, 1))
    desk.lose()
    before = len(states(desk))
    desk.mount(peer(2, NEW), 9, sequence=2)  # the writer again
    desk.mount(peer(3, OLD), 9)  # it may have sent appends over a process before
    desk.mount(peer(4, NEW + 1), 10)  # it has seen more than is here
    assert len(states(desk)) == before
    desk.mount(peer(5, NEW + 2), 9)
    assert len(states(desk)) == before + 1
    desk.mount(peer(6, NEW + 3), 4)
    assert desk.upstream.reads[-1][1:] == (5, 5), "headers that are not here are read first"
    desk.answer_read()
    assert len(states(desk)) == before + 2
    assert desk.fed(6) == 5
    desk.connect()
    assert states(desk)[before + 2 :] == [READY, READY]


@pytest.mark.parametrize("mark", [9, 10])
def test_who_is_ahead_of_what_has_come_is_told_so_once_the_cluster_has_confirmed_its_mark(mark: int) -> None:
    desk = Desk()
    desk.mount(peer(1, NEW), 10)
    desk.flushed(9)
    assert states(desk) == []
    desk.partition.marked(desk.upstream.marks[-1], mark)
    desk.work()
    if mark == 10:
        assert states(desk) == []
        desk.feed(make_req_id(7, 1, 0, 1))
    assert states(desk) == [READY if mark == 10 else messages.PartitionState.CLIENT_AHEAD]


def test_an_append_that_a_barrier_has_decided_is_under_way_no_more() -> None:
    desk = Desk()
    writer = peer(1, NEW)
    desk.mount(writer, 9)
    desk.flushed(9)
    desk.says(writer, append(NEW, 1))
    desk.says(writer, messages.FlushRequest(make_req_id(NEW, GENERATION, 0, 1)))
    desk.flushed(9)
    desk.lose()
    before = len(states(desk))
    desk.mount(peer(2, NEW), 9, sequence=2)
    assert len(states(desk)) == before + 1


def test_an_append_behind_a_flush_is_not_decided_by_it() -> None:
    desk = Desk()
    writer = peer(1, NEW)
    desk.mount(writer, 9)
    desk.flushed(9)
    desk.says(writer, append(NEW, 1), messages.FlushRequest(make_req_id(NEW, GENERATION, 0, 1)))
    desk.says(writer, append(NEW, 2))
    desk.flushed(9)
    desk.lose()
    before = len(states(desk))
    desk.mount(peer(2, NEW), 9, sequence=2)
    assert len(states(desk)) == before


def test_what_came_over_a_connection_that_ended_is_still_under_way() -> None:
    desk = Desk()
    writer = peer(1, NEW)
    desk.mount(writer, 9)
    desk.flushed(9)
    desk.says(writer, messages.FlushRequest(make_req_id(NEW, GENERATION, 0, 1)))
    desk.says(writer, append(NEW, 1))
    desk.partition.gone(writer)
    desk.flushed(9)
    desk.lose()
    before = len(states(desk))
    desk.mount(peer(2, NEW), 9, sequence=2)
    assert len(states(desk)) == before


def test_who_was_appended_for_is_forgotten_once_a_flush_has_decided_it() -> None:
    """A proxy of this proxy appends for others: as many in its life as the cluster has clients."""
    desk = Desk()
    other = peer(1, FRESH_ABOVE + 1, carries_others=True)
    desk.mount(other, 9)
    desk.flushed(9)
    remembered = []
    for beat in range(1, 5):
        clients = range(beat * 1_000, beat * 1_000 + 50)
        desk.says(other, *(append(client_id, 1) for client_id in clients))
        failure = messages.LockFailure(append(clients[0], 1).req_id, 4)
        desk.partition.carried(desk.now, Carried(0, failure))
        desk.work()
        assert desk.of(messages.LockFailure, 1)[-1] == failure, "the one before it knows whose it is"
        # Nobody asks for anything: the flush that tells how old our data is does it, or one for how much is under way.
        desk.flushed(9)
        desk.now += 2_000
        desk.work()
        desk.flushed(9)
        remembered.append(desk.partition.carriage.under_way)
    assert remembered == [0, 0, 0, 0]


def test_what_upstream_would_end_the_connection_for_is_refused_here() -> None:
    desk = Desk()
    who, other = peer(1, NEW), peer(2, NEW + 1)
    for each in (who, other):
        desk.mount(each, 9)
        desk.flushed(9)
    large = b"x" * ((16 << 20) + 1)
    desk.says(who, append(NEW, 1, data=large, named=True), append(NEW, 2, generation=2, named=True))
    desk.says(who, append(NEW + 1, 3, named=True))
    refused = [answer.refusal for answer in desk.of(messages.AppendRefused)]
    assert refused == [messages.Refusal.TOO_LARGE, messages.Refusal.GENERATION, messages.Refusal.NOT_ALLOWED]
    assert desk.closed() == []
    desk.says(who, append(NEW, 4, data=large))
    assert desk.closed() == [1]
    assert desk.upstream.carried == []


def test_a_connection_that_was_replaced_appends_nothing() -> None:
    desk = Desk()
    first, second = peer(1, NEW), peer(2, NEW)
    desk.mount(first, 9)
    desk.mount(second, 9, sequence=2)
    desk.says(first, append(NEW, 1), append(NEW, 2, named=True))
    assert desk.upstream.carried == []
    assert [answer.refusal for answer in desk.of(messages.AppendRefused)] == [messages.Refusal.NOT_MOUNTED]


def test_a_proxy_of_this_proxy_may_append_for_others() -> None:
    desk = Desk()
    other = peer(1, NEW, carries_others=True)
    desk.mount(other, 9)
    desk.flushed(9)
    desk.says(other, append(NEW + 7, 1))
    assert len(desk.upstream.carried) == 1


def test_the_committed_mark_is_asked_upstream_each_time() -> None:
    desk = Desk(mark=9)
    question = messages.HighWaterMarkRequest(make_req_id(NEW, GENERATION, 0, 3))
    desk.says(peer(1, NEW), question)
    assert desk.upstream.marks == [1]
    desk.partition.marked(1, 10)
    desk.work()
    assert desk.of(messages.HighWaterMarkResponse) == []
    desk.feed(make_req_id(7, 1, 0, 1))
    assert desk.of(messages.HighWaterMarkResponse) == [messages.HighWaterMarkResponse(question.req_id, 10)]
    desk.says(peer(1, NEW), question)
    assert desk.upstream.marks == [1, 2]


def test_one_fetch_serves_all_who_want_what_it_brings() -> None:
    desk = Desk(mark=9)
    for conn in (1, 2, 3):
        desk.says(peer(conn, NEW + conn), messages.TransactionDataRequest(make_req_id(NEW + conn, -1, 0, 1), 5))
        desk.partition.range_asked(
            peer(conn, NEW + conn), messages.RecordRangeRequest(make_req_id(NEW, -1, 0, 2), 5, 5, 0, 0, False)
        )
        desk.work()
    assert [read[1:] for read in desk.upstream.reads] == [(5, 1)]
    desk.answer_read()
    assert len(desk.of(messages.TransactionDataResponse)) == 3
    assert len(desk.of(messages.RecordRangeResponse)) == 3
    desk.says(peer(4, NEW), messages.TransactionDataRequest(make_req_id(NEW, -1, 0, 1), 5))
    assert len(desk.upstream.reads) == 1


def test_who_waits_for_what_an_answer_was_too_short_for_has_it_read_again() -> None:
    desk = Desk(mark=9)
    for conn, first in ((1, 2), (2, 3), (3, 7)):
        range_ = messages.RecordRangeRequest(make_req_id(NEW + conn, -1, 0, 2), first, 9, 0, 0, False)
        desk.partition.range_asked(peer(conn, NEW + conn), range_)
        desk.work()
    assert [read[1:] for read in desk.upstream.reads] == [(2, 8)]
    desk.answer_read(most=3)
    assert [read[1:] for read in desk.upstream.reads[1:]] == [(7, 3)]
    desk.answer_read()
    first_of = {conn: desk.of(messages.RecordRangeResponse, conn)[0].records[0].transaction_id for conn in (1, 2, 3)}
    assert first_of == {1: 2, 2: 3, 3: 7}


def test_while_an_append_awaits_its_verdict_whoever_is_behind_has_a_part_of_the_time() -> None:
    desk = Desk(mark=99_999)
    one = peer(1, NEW)
    for who, mark in ((one, 99_999), (peer(2, NEW + 1), -1)):
        desk.mount(who, mark)
        desk.flushed(99_999)

    def read(after: int = 0) -> int:
        """Reads that were asked for by then; the last one is answered before."""
        desk.answer_read()
        desk.now += after
        while desk.context.alarms.due(desk.now):
            desk.work()
        return len(desk.upstream.reads)

    assert [read(), read()] == [2, 3], "nobody else is there: one read follows the other"
    desk.says(one, append(NEW, 1))
    assert [read(), read(10), read(30)] == [4, 4, 5]
    desk.now += 2_000  # by itself it asks for the verdict
    desk.work()
    desk.flushed(99_999)
    desk.now += 60
    assert [read(), read()] == [6, 7]


def test_what_cannot_be_read_is_said_and_the_log_start_looked_up() -> None:
    desk = Desk(mark=9)
    desk.says(peer(1, NEW), messages.TransactionDataRequest(make_req_id(NEW, -1, 0, 1), 2))
    desk.answer_read(readable=False)
    assert [answer.success for answer in desk.of(messages.TransactionDataResponse)] == [False]
    assert desk.upstream.reads[-1] == (0, 10, 0)
    desk.answer_read(log_start=4)
    assert desk.partition.log_start == 4
    assert desk.upstream.reads[-1] == (FLOOR, 0, 0)  # the server may have the rest from an archive
    desk.answer_read(readable=False)
    reads = len(desk.upstream.reads)
    desk.partition.range_asked(peer(3, NEW), messages.RecordRangeRequest(make_req_id(NEW, -1, 0, 2), 2, 9, 0, 0, False))
    desk.work()
    assert desk.of(messages.ErrorResponse, 3)[0].code == messages.ErrorCode.BEFORE_START
    assert len(desk.upstream.reads) == reads
    desk.told.clear()
    desk.mount(peer(2, NEW + 1), 1)
    desk.flushed(9)
    assert [answer.code for answer in desk.of(messages.ErrorResponse)] == [messages.ErrorCode.BEFORE_START]


def test_what_the_server_has_from_an_archive_is_given_out_until_it_cannot_be_read() -> None:
    desk = Desk(mark=9)
    desk.says(peer(1, NEW), messages.TransactionDataRequest(make_req_id(NEW, -1, 0, 1), 2))
    desk.answer_read(log_start=4)  # it has risen meanwhile
    desk.mount(peer(2, NEW + 1), 1)
    desk.flushed(9)
    assert desk.of(messages.ErrorResponse) == []  # until it is known, nobody is turned away
    desk.answer_read(log_start=4)
    desk.mount(peer(3, NEW + 2), 1)
    desk.flushed(9)
    assert desk.of(messages.ErrorResponse) == []
    desk.says(peer(1, NEW), messages.TransactionDataRequest(make_req_id(NEW, -1, 0, 1), 1))
    desk.upstream.reads.clear()
    desk.partition.fetched(RecordsCarried(0, FLOOR, None, -1))  # the archive is there no more
    desk.work()
    desk.mount(peer(4, NEW + 3), 1)
    desk.flushed(9)
    assert [answer.code for answer in desk.of(messages.ErrorResponse)] == [messages.ErrorCode.BEFORE_START]


def test_how_old_its_data_is_counts_from_when_the_flush_left() -> None:
    desk = Desk()
    assert desk.partition.carriage.heard_at == 1_000
    desk.now += 2_000
    desk.work()
    desk.now += 500
    desk.flushed(9)
    assert desk.partition.carriage.heard_at == 3_000


def test_a_crowd_of_appends_holds_back_who_sent_it() -> None:
    desk = Desk()
    who = peer(1, NEW)
    desk.mount(who, 9)
    desk.flushed(9)
    desk.upstream.up = False
    desk.says(who, *(append(NEW, number) for number in range(20)))
    assert desk.partition.carriage.crowded(10, 1 << 20)
    assert desk.partition.carriage.greedy(NEW, 10, 1 << 20)
    assert desk.partition.carriage.queued == 20
    assert desk.partition.carriage.crowded(1_000, 0)
    desk.upstream.up = True
    desk.work()
    assert not desk.partition.carriage.crowded(0, 0)
    assert not desk.partition.carriage.greedy(NEW, 0, 0)
    assert len(desk.upstream.carried) == 20


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_that_no_client_sends_ends_its_connection(version: int) -> None:
    desk = Desk()
    desk.says(peer(1, NEW, version=version), messages.FeedSuspended(make_req_id(NEW, 0, 0, 1)))
    assert desk.closed() == [1]


def test_who_is_gone_before_the_upstream_connection_is_not_disconnected_again() -> None:
    desk = Desk()
    who = peer(1, NEW)
    desk.mount(who, 9)
    desk.flushed(9)
    desk.says(who, append(NEW, 1))
    desk.partition.gone(who)
    desk.lose()
    assert desk.closed() == []


def test_nothing_is_kept_of_who_has_mounted_and_is_gone() -> None:
    desk = Desk()
    for conn in (1, 2):
        who = peer(conn, NEW + conn)
        desk.mount(who, 9)
        desk.flushed(9)
        desk.partition.gone(who)
    assert desk.partition._members._members == {}
    assert desk.context.waiting.total == 0


def test_who_is_gone_is_told_nothing_and_his_appends_still_leave() -> None:
    desk = Desk()
    who = peer(1, NEW)
    desk.mount(who, 9)
    desk.flushed(9)
    desk.upstream.up = False
    desk.says(who, append(NEW, 1))
    desk.partition.gone(who)
    desk.upstream.up = True
    desk.work()
    assert len(desk.upstream.carried) == 1
    desk.partition.carried(desk.now, Carried(0, messages.LockFailure(append(NEW, 1).req_id, 4)))
    desk.work()
    assert desk.of(messages.LockFailure) == []


def test_reads_of_who_is_gone_are_answered_to_nobody() -> None:
    desk = Desk(mark=9)
    who, other = peer(1, NEW), peer(2, NEW + 1)
    for each, client_id in ((who, NEW), (other, NEW + 1)):
        desk.says(each, messages.TransactionDataRequest(make_req_id(client_id, -1, 0, 1), 5))
        desk.says(each, messages.HighWaterMarkRequest(make_req_id(client_id, -1, 0, 2)))
    assert desk.partition.reads.waiting == 2
    desk.partition.gone(who)
    assert desk.partition.reads.waiting == 1
    desk.answer_read()
    desk.partition.marked(2, 9)
    desk.work()
    for kind in (messages.TransactionDataResponse, messages.HighWaterMarkResponse):
        assert (len(desk.of(kind, 1)), len(desk.of(kind, 2))) == (0, 1)
