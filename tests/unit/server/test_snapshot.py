"""Figures of a server, as tools and monitors ask for them."""

from __future__ import annotations

from waltz_core.base.ids import Endpoint
from waltz_core.server.snapshot import (
    RESPONSE_BOUNDS,
    ArchiveSnapshot,
    PartitionSnapshot,
    ServerSnapshot,
    statistics_of,
)
from waltz_core.wire.shared import Statistic


def partition(number: int, *response_times: tuple[int, int]) -> PartitionSnapshot:
    return PartitionSnapshot(
        number, "open", "", 0, True, 1, 0, 0, 0, 0, 0, 0, 0, response_times, (("successful-append", number),), ()
    )


def server(*partitions: PartitionSnapshot) -> ServerSnapshot:
    return ServerSnapshot("waltz", 1, Endpoint("host", 1), 3, partitions, (), (), 0, 0, "connected")


def response(figures: tuple[Statistic, ...]) -> dict[str, float]:
    return {each.name: each.value for each in figures if each.name.startswith("response")}


def test_appends_are_counted_up_to_each_bound_of_the_time_that_they_took() -> None:
    """A time that is a bound is within it; what took longer than all bounds is in the count alone."""
    figures = response(statistics_of(server(partition(0, (30, 4), (0, 1), (11_000, 2), (4, 3), (3, 5))), 0, ()))
    within = {name: value for name, value in figures.items() if "within" in name}
    below = dict.fromkeys((1, 2), 1) | {3: 6} | dict.fromkeys((5, 7, 10, 15, 20), 9)
    assert within == {f"response-within-ms.{bound}": below.get(bound, 13) for bound in RESPONSE_BOUNDS}
    assert figures["response-count"] == 15
    assert figures["response-latency-mean-ms"] == (30 * 4 + 11_000 * 2 + 4 * 3 + 3 * 5) / 15


def test_before_the_first_append_there_is_a_mean_and_no_count() -> None:
    assert response(statistics_of(server(partition(0)), 0, ())) == {"response-latency-mean-ms": 0}


def test_figures_are_those_of_a_partition_or_of_all_and_begin_with_a_prefix() -> None:
    of = server(partition(0), partition(1))
    assert {each.partition_id for each in statistics_of(of, -1, ())} == {-1, 0, 1}
    assert {each.partition_id for each in statistics_of(of, 1, ())} == {1}
    assert statistics_of(of, 2, ()) == ()
    assert statistics_of(of, 1, ("successful", "no")) == (Statistic("successful-append", 1, 1),)
    assert {each.name for each in statistics_of(of, -1, ("conn",))} == {"connections"}


def test_nothing_is_behind_in_the_archive_before_a_partition_knows_where_its_log_ends() -> None:
    archive = ArchiveSnapshot(0, 40, "", "", 40, 0)
    assert [archive.lag(mark) for mark in (-(2**63), 20, 39, 45)] == [0, 0, 0, 6]
