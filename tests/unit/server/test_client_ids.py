"""Client ids for clients without ZooKeeper: each is given once, in the order in which they were asked for."""

from __future__ import annotations

from tests.unit.server.desk import Desk
from waltz_core.base.edge import ZkDone, ZkError, ZkFailed, ZkGet, ZkSet, ZkStat
from waltz_core.base.ids import make_req_id
from waltz_core.server.client_ids import ClientIds
from waltz_core.server.context import Alarm, IdStep
from waltz_core.zookeeper.znodes import encode_id_counter

PATH = "/root/ids/client"
FIRST, SECOND = make_req_id(-1, 0, 0, 1), make_req_id(-1, 0, 0, 2)


class Bench(Desk):
    """The client ids of one server, and ZooKeeper in the hands of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = ClientIds("/root", self.outbox, self.pending, self.alarms)

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
    assert bench.out() == []
    assert bench.alarms.due(150) == [Alarm.CLIENT_IDS]
    bench.ids.due()
    bench.done(bench.only().ticket, counter=7, version=4)
    assert bench.out() == [ZkSet(4, PATH, encode_id_counter(8), 4)]


def test_a_counter_that_is_none_is_looked_at_again() -> None:
    bench = Bench()
    bench.ids.ask(4, FIRST)
    bench.pending.take(1)
    bench.ids.answered(9, ZkDone(1, ZkStat(0, 0), b"?"), IdStep.READ)
    assert bench.alarms.at(Alarm.CLIENT_IDS) == 109
