"""Client ids for clients without ZooKeeper: each is given once, in the order in which they were asked for."""

from __future__ import annotations

import random

from tests.unit.server.desk import Desk
from waltz_core.base.edge import Level, Report, ZkDone, ZkError, ZkFailed, ZkGet, ZkSet, ZkStat
from waltz_core.base.ids import make_req_id
from waltz_core.server.client_ids import ClientIds
from waltz_core.server.context import ClusterAlarm, IdStep
from waltz_core.zookeeper.znodes import encode_id_counter

PATH = "/root/ids/client"
FIRST, SECOND = make_req_id(-1, 0, 0, 1), make_req_id(-1, 0, 0, 2)


class Bench(Desk):
    """The client ids of one server, and ZooKeeper in the hands of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = ClientIds("/root", self.outbox, self.pending, self.alarms, random.Random(1))

    def done(self, ticket: int, counter: int | None = None, version: int = 0) -> None:
        data = None if counter is None else encode_id_counter(counter)
        self._answer(0, ZkDone(ticket, ZkStat(version, 0), data))

    def failed(self, ticket: int, error: ZkError, now: int = 0) -> None:
        self._answer(now, ZkFailed(ticket, error))

    def _answer(self, now: int, event: ZkDone | ZkFailed) -> None:
        step = self.pending.take(event.ticket)
        assert isinstance(step, IdStep)
        self.ids.answered(now, event, step)


def test_one_at_a_time_is_read_written_and_given() -> None:
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.ids.ask(5, SECOND)
    assert bench.out() == [ZkGet(1, PATH)]
    bench.done(1, counter=6, version=3)
    assert bench.out() == [ZkSet(2, PATH, encode_id_counter(7), 3)]
    assert bench.ids.take() == []  # not before ZooKeeper has it
    bench.done(2, version=4)
    assert bench.ids.take() == [(4, FIRST, 7)]
    assert not bench.ids.waits(4)
    assert bench.ids.waits(5)
    assert bench.out() == [ZkGet(3, PATH)]
    bench.done(3, counter=7, version=4)
    bench.done(bench.only().ticket)
    assert bench.ids.take() == [(5, SECOND, 8)]
    assert bench.out() == []
    assert len(bench.pending) == len(bench.alarms) == 0


def test_ids_that_are_used_up_wrap_as_those_of_clients_with_zookeeper_do() -> None:
    """The server ended, and so did each one that was asked next."""
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.done(bench.only().ticket, counter=2**31 - 1, version=3)
    assert bench.out() == [ZkSet(2, PATH, encode_id_counter(-(2**31)), 3)]


def test_somebody_else_took_the_id_meanwhile() -> None:
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.done(bench.only().ticket, counter=6, version=3)
    bench.failed(bench.only().ticket, ZkError.BAD_VERSION)
    assert bench.out() == [ZkGet(3, PATH)]
    bench.done(3, counter=7, version=4)
    assert bench.out() == [ZkSet(4, PATH, encode_id_counter(8), 4)]


def test_a_lost_answer_skips_an_id_after_a_pause() -> None:
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.done(bench.only().ticket, counter=6, version=3)
    bench.failed(bench.only().ticket, ZkError.OUTCOME_UNKNOWN, now=50)
    bench.ids.ask(5, SECOND)
    assert bench.out() == []  # that ZooKeeper is away is said once for the whole process
    assert bench.alarms.due(150) == [ClusterAlarm.CLIENT_IDS]
    bench.ids.due()
    bench.done(bench.only().ticket, counter=7, version=4)
    assert bench.out() == [ZkSet(4, PATH, encode_id_counter(8), 4)]


def test_a_counter_that_is_none_is_looked_at_again() -> None:
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.pending.take(1)
    bench.ids.answered(9, ZkDone(1, ZkStat(0, 0), b"?"), IdStep.READ)
    due = bench.alarms.at(ClusterAlarm.CLIENT_IDS)
    assert due is not None
    assert 9 + 50 <= due <= 9 + 100


def test_a_counter_that_may_not_be_written_is_tried_ever_more_rarely_and_reported_once() -> None:
    """Before, it was read and written again every 100 ms for ever, and nobody heard of it."""
    bench = Bench()
    bench.ids.ask(4, FIRST)
    lines, now = [], 0
    for _ in range(8):
        bench.done(bench.only().ticket, counter=6, version=3)
        bench.failed(bench.only().ticket, ZkError.REFUSED, now=now)
        lines += bench.out()
        due = bench.alarms.at(ClusterAlarm.CLIENT_IDS)
        assert due is not None
        pause, now = due - now, due
        bench.alarms.due(now)
        bench.ids.due()
    assert 1_000 <= pause <= 2_000
    assert lines == [Report(Level.WARNING, f"ZooKeeper, {PATH}: clients get no ids: refused; tried again")]
    bench.done(bench.only().ticket, counter=6, version=3)
    bench.done(bench.only().ticket, version=4)
    assert bench.out() == [Report(Level.INFO, f"ZooKeeper, {PATH}: clients get ids again")]
    assert bench.ids.take() == [(4, FIRST, 7)]


def test_no_id_is_taken_for_a_connection_that_has_ended() -> None:
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.ids.ask(5, SECOND)
    bench.ids.gone(5)
    bench.done(bench.only().ticket, counter=6, version=3)
    bench.done(bench.only().ticket, version=4)
    assert bench.ids.take() == [(4, FIRST, 7)]
    assert bench.out() == []


def test_an_id_that_is_being_written_for_a_connection_that_ends_goes_to_the_next() -> None:
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.ids.ask(5, SECOND)
    bench.done(bench.only().ticket, counter=6, version=3)
    bench.ids.gone(4)
    bench.done(bench.only().ticket, version=4)
    assert bench.ids.take() == [(5, SECOND, 7)]
    assert bench.out() == []


def test_nothing_is_written_or_tried_again_when_nobody_waits_any_more() -> None:
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.ids.gone(4)
    bench.done(bench.only().ticket, counter=6, version=3)
    assert bench.out() == []
    bench.ids.ask(4, FIRST)
    bench.failed(bench.only().ticket, ZkError.OUTCOME_UNKNOWN)
    bench.ids.gone(4)
    (due,) = bench.alarms.due(10_000)
    assert due is ClusterAlarm.CLIENT_IDS
    bench.ids.due()
    assert bench.out() == []
    bench.ids.ask(5, SECOND)  # idle again: the next one is served at once
    assert isinstance(bench.only(), ZkGet)


def test_an_id_that_nobody_wants_any_more_is_skipped() -> None:
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.done(bench.only().ticket, counter=6, version=3)
    bench.ids.gone(4)
    bench.done(bench.only().ticket, version=4)
    assert bench.ids.take() == []
    assert bench.out() == []
    assert len(bench.pending) == len(bench.alarms) == 0
