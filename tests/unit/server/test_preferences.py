"""What a server is asked to prefer outlives it."""

from __future__ import annotations

import random

from tests.unit.server.desk import Desk
from waltz_core.base.edge import Level, Report, ZkCreate, ZkDone, ZkError, ZkFailed, ZkGet, ZkSet
from waltz_core.base.ids import Endpoint
from waltz_core.server.context import ClusterAlarm, PreferenceStep
from waltz_core.server.preferences import Preferences


class Late(random.Random):
    """Every pause is as long as it may be."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        assert stop is None
        return start - step


class Bench(Desk):
    """The preferences of one server, and ZooKeeper in the hands of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.preferences = Preferences("/root", Endpoint("h", 7), self.outbox, self.pending, self.alarms, Late())

    def done(self, ticket: int, data: bytes | None = None, now: int = 0) -> None:
        self._answer(now, ZkDone(ticket, data=data))

    def failed(self, ticket: int, error: ZkError, now: int = 0) -> None:
        self._answer(now, ZkFailed(ticket, error))

    def _answer(self, now: int, event: ZkDone | ZkFailed) -> None:
        step = self.pending.take(event.ticket)
        assert isinstance(step, PreferenceStep)
        self.preferences.answered(now, event, step)

    @property
    def due(self) -> int | None:
        return self.alarms.at(ClusterAlarm.PREFERENCES)


def test_what_was_kept_is_read_once() -> None:
    bench = Bench()
    bench.preferences.read()
    assert bench.out() == [ZkGet(1, "/root/preferred/h:7")]
    bench.done(1, b"3,1")
    assert bench.preferences.take() == (3, 1)
    assert bench.preferences.take() is None
    bench.preferences.read()
    assert bench.out() == []
    assert len(bench.pending) == 0


def test_nothing_kept_and_rubbish_are_nothing() -> None:
    for data in (None, b"\xff?"):
        bench = Bench()
        bench.preferences.read()
        if data is None:
            bench.failed(1, ZkError.NO_NODE)
        else:
            bench.done(1, data)
        assert not bench.preferences.take()
        assert bench.due is None


def test_a_change_is_set_or_created_and_the_newest_wins() -> None:
    bench = Bench()
    bench.preferences.keep((1,))
    assert bench.out() == [ZkSet(1, "/root/preferred/h:7", b"1", -1)]
    bench.preferences.keep((1, 2))
    bench.failed(1, ZkError.NO_NODE)
    assert bench.out() == [ZkCreate(2, "/root/preferred", None), ZkCreate(3, "/root/preferred/h:7", b"1")]
    bench.done(2)
    assert bench.out() == []
    bench.done(3)
    assert bench.out() == [ZkSet(4, "/root/preferred/h:7", b"1,2", -1)]
    assert not bench.preferences.kept
    bench.done(4)
    assert bench.out() == []
    assert bench.preferences.kept


def test_what_fails_is_tried_again_later_and_reported_unless_all_of_zookeeper_is_away() -> None:
    bench = Bench()
    bench.preferences.read()
    bench.failed(bench.only().ticket, ZkError.UNAVAILABLE, now=5)
    assert bench.due == 1_005
    bench.preferences.read()
    assert bench.out() == []
    assert bench.alarms.due(1_005) == [ClusterAlarm.PREFERENCES]
    bench.preferences.due()
    bench.done(bench.only().ticket, b"", now=1_005)
    assert bench.preferences.take() == ()

    bench.preferences.keep((9,))
    bench.failed(bench.only().ticket, ZkError.NO_NODE, now=1_010)
    parent, node = bench.out()
    bench.failed(parent.ticket, ZkError.NODE_EXISTS, now=1_010)
    bench.failed(node.ticket, ZkError.REFUSED, now=1_010)
    kept = "ZooKeeper, /root/preferred/h:7: the preferred partitions are"
    assert bench.out() == [Report(Level.WARNING, f"{kept} not kept: refused; tried again")]
    assert bench.alarms.due(2_010) == [ClusterAlarm.PREFERENCES]
    bench.preferences.due()
    bench.failed(bench.only().ticket, ZkError.REFUSED, now=2_010)
    assert (bench.out(), bench.due) == ([], 4_010)
    bench.preferences.keep((8,))  # a change does not wait for the pause
    write = bench.only()
    assert write == ZkSet(7, "/root/preferred/h:7", b"8", -1)
    assert bench.due is None
    bench.done(write.ticket)
    assert bench.out() == [Report(Level.INFO, f"{kept} kept again")]


def test_a_change_before_anything_was_read_counts_more_than_what_was_kept() -> None:
    bench = Bench()
    bench.preferences.read()
    ticket = bench.only().ticket
    bench.preferences.keep((4,))
    assert bench.out() == []  # one request at a time
    bench.done(ticket, b"1")
    assert bench.preferences.take() is None
    assert bench.only() == ZkSet(2, "/root/preferred/h:7", b"4", -1)
