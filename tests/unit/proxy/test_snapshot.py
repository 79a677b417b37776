"""What a proxy tells of itself, under the names that a server uses."""

from __future__ import annotations

from tests.unit.proxy.desk import FRESH_ABOVE, Desk, append, peer
from waltz_core.base.ids import Endpoint
from waltz_core.proxy.snapshot import UPSTREAM, ProxySnapshot, snapshot_of, statistics_of
from waltz_core.wire.shared import AGE


def told(desk: Desk, *prefixes: str, partition_id: int = -1) -> dict[tuple[str, int], float]:
    partitions = (snapshot_of(desk.now, desk.partition),)
    snapshot = ProxySnapshot(Endpoint("proxy", 1), 3, 2, partitions, "connected", 5, 40, 900, 2, ((7, 10), (8, 30)))
    figures = statistics_of(snapshot, partition_id, prefixes)
    return {(figure.name, figure.partition_id): figure.value for figure in figures}


def test_it_tells_how_old_what_it_gives_out_is_and_what_waits() -> None:
    desk = Desk()
    who = peer(1, FRESH_ABOVE + 1)
    desk.mount(who, 9)
    desk.flushed(9)
    desk.now += 700
    desk.upstream.full = True
    desk.says(who, append(FRESH_ABOVE + 1, 1))
    figures = told(desk)
    assert figures["connections", -1] == 3
    assert figures[UPSTREAM, -1] == 2
    assert figures["transactions-fetched", -1] == 40
    assert figures[AGE, 0] == 700
    assert figures["append-queue-size", 0] == figures["pending-append", 0] == 1
    assert figures["real-time-feeds", 0] + figures["catchup-feeds", 0] == 0


def test_figures_are_chosen_by_name_and_partition_and_lags_come_the_largest_first() -> None:
    desk = Desk()
    assert told(desk, "connections", AGE) == {("connections", -1): 3, (AGE, 0): 0}
    assert {partition for _, partition in told(desk, partition_id=0)} == {0}
    assert list(told(desk, "client-lag.").items()) == [(("client-lag.8", -1), 30), (("client-lag.7", -1), 10)]


def test_before_the_server_was_heard_nothing_is_said_of_how_old_it_is() -> None:
    assert (AGE, 0) not in told(Desk(connected=False))
