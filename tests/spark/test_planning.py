"""Splits, packing, offsets and limits: pure, so they are tested on anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.spark.logs import KEY
from waltz_spark.base import planning
from waltz_spark.base.errors import OptionError, WentBackError, WrongClusterError
from waltz_spark.base.planning import FilePlace, Range
from waltz_spark.read.options import parse_options

PLACE = FilePlace("f", KEY)
ranges = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1000), st.integers(1, 500), st.integers(1, 10**6)), max_size=12
).map(lambda found: [Range(p, start, start + count, size, (PLACE,)) for p, start, count, size in found])


@given(ranges, st.integers(1, 10**6), st.none() | st.integers(1, 300), st.integers(1, 20), st.booleans())
def test_tasks_hold_every_id_once_in_order_and_within_the_limits(
    found: list[Range], target: int, count_max: int | None, tasks_min: int, pack_small: bool
) -> None:
    def make() -> list[tuple[Range, ...]]:
        return planning.plan(found, target_size=target, count_max=count_max, tasks_min=tasks_min, pack_small=pack_small)

    tasks = make()
    assert tasks == make()
    ids = [(one.partition, at) for task in tasks for one in task for at in range(one.start, one.end)]
    assert ids == [(one.partition, at) for one in found for at in range(one.start, one.end)]
    assert all(tasks)
    for task in tasks:
        assert count_max is None or sum(one.count for one in task) <= count_max
        assert all(one.size <= target + one.size // one.count + 1 or one.count == 1 for one in task)


def test_small_ranges_share_a_task_and_large_ones_are_cut() -> None:
    found = [Range(p, 0, 100, 1000, (PLACE,)) for p in range(50)] + [Range(9, 0, 1000, 100_000, (PLACE,))]
    tasks = planning.plan(found, target_size=50_000)
    assert [sum(one.size for one in task) for task in tasks] == [50_000, 50_000, 50_000]


# ---- offsets


@given(st.lists(st.integers(0, 2**60), min_size=1, max_size=30))
def test_an_offset_comes_back_with_the_same_text(ends: list[int]) -> None:
    offset = planning.offset_of(KEY, tuple(ends))
    text = json.dumps(offset)
    again = json.loads(text)
    assert planning.ends_of(again, KEY, len(ends)) == tuple(ends)
    assert json.dumps(planning.offset_of(KEY, planning.ends_of(again, KEY, len(ends)))) == text
    assert list(again["next"]) == [str(at) for at in range(len(ends))]


def test_an_offset_of_another_cluster_or_of_other_partitions_is_refused() -> None:
    other = bytes(15) + b"\1"
    offset = planning.offset_of(other, (1, 2))
    with pytest.raises(WrongClusterError):
        planning.ends_of(offset, KEY, 2)
    with pytest.raises(OptionError, match="holds 2 partitions, the log has 3"):
        planning.ends_of(offset, other, 3)
    with pytest.raises(OptionError, match="cannot read"):
        planning.ends_of({"offset": 3}, KEY, 1)


def test_a_reader_that_is_not_shown_the_cluster_key_goes_on_and_so_does_one_that_is() -> None:
    for made, read in ((bytes(16), KEY), (KEY, bytes(16))):
        assert planning.ends_of(planning.offset_of(made, (1, 2)), read, 2) == (1, 2)


@pytest.mark.parametrize("text", ["earliest", "latest", '{"0": 3, "1": -1}'])
def test_the_first_offset_says_what_the_user_said(text: str) -> None:
    offset = planning.symbolic_offset(text)
    assert planning.is_symbolic(offset)
    assert json.dumps(offset) == json.dumps(planning.symbolic_offset(text))
    wanted = {"earliest": (1, 2), "latest": (8, 9)}.get(text, (3, 9))
    assert planning.resolve(planning.symbol_of(offset), (1, 2), (8, 9), planning.EARLIEST) == wanted


@pytest.mark.parametrize("text", ["sometimes", "[1]", '{"0": 1.5}', '{"a": 1}', '{"0": -3}', '{"0": true}'])
def test_offsets_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets: expected earliest, latest or JSON"):
        planning.resolve(text, (0,), (1,), planning.EARLIEST)


def test_offsets_of_a_partition_that_is_not_there_are_refused() -> None:
    with pytest.raises(OptionError, match="there is no partition 2, the log has 2"):
        planning.resolve('{"2": 1}', (0, 0), (1, 1), planning.EARLIEST)


# ---- limits

vectors = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=10)


@given(vectors, st.integers(1, 3000))
def test_a_limit_is_kept_and_every_lagging_partition_moves_if_it_can(lags: list[tuple[int, int]], limit: int) -> None:
    start = tuple(read for read, _ in lags)
    ends = tuple(read + lag for read, lag in lags)
    found = planning.advance(start, ends, limit)
    assert all(read <= at <= end for read, at, end in zip(start, found, ends, strict=True))
    moved = sum(found) - sum(start)
    lagging = [at for at in range(len(lags)) if lags[at][1]]
    assert moved == min(limit, sum(ends) - sum(start))
    if limit >= len(lagging):
        assert all(found[at] > start[at] for at in lagging)


@given(vectors, st.integers(1, 50))
def test_repeated_limits_reach_the_end_of_every_partition(lags: list[tuple[int, int]], limit: int) -> None:
    start = tuple(read for read, _ in lags)
    ends = tuple(read + lag for read, lag in lags)
    assume(sum(ends) - sum(start) < 2000)
    rounds = 0
    while start != ends:
        start = planning.advance(start, ends, limit)
        rounds += 1
        assert rounds <= 2000


def test_a_log_that_went_back_is_an_error_with_both_ends() -> None:
    with pytest.raises(WentBackError, match="partition 1: was read up to id 9, but the log now ends at 6"):
        planning.check_not_back((1, 10), (5, 7))


# ---- options


def test_an_unknown_option_names_the_nearest_known_one() -> None:
    with pytest.raises(OptionError, match=r"unknown option startingoffset; did you mean startingOffsets\?"):
        parse_options({"directory": "/d", "startingoffset": "earliest"})


def test_names_of_options_may_come_in_any_case_and_spark_adds_its_own() -> None:
    options = parse_options({"DIRECTORY": "/a, /b", "batchrows": "5", "checkpointLocation": "c", "partitions": "0-2,5"})
    assert (options.directory, options.batch_rows, options.partitions) == (("/a", "/b"), 5, (0, 1, 2, 5))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "say what to read"),
        ({"url": "waltz://a:1", "zookeeper": "b"}, "both name a cluster"),
        ({"zookeeper": "b"}, "clusterRoot"),
        ({"directory": "/d", "verify": "payloads"}, "verify: expected one of none, payload, record, quorum"),
        ({"directory": "/d", "batchRows": "0"}, "batchRows: expected a whole number"),
        ({"directory": "/d", "targetSplitBytes": "lots"}, "such as 128m"),
        ({"directory": "/d", "cut": "latest", "endingOffsets": "latest"}, "give one of them"),
        ({"directory": "/d", "via": "server"}, "needs url or zookeeper"),
        ({"directory": "/d", "partitions": "1-"}, "partitions: expected"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(values)


def test_columns_are_those_asked_for() -> None:
    options = parse_options({"directory": "/d", "columns": "data,header", "origin": "true", "includeData": "false"})
    assert options.shape().columns == ("header", "_origin", "_verified")
    with pytest.raises(OptionError, match=r"there is no headers; did you mean header\?"):
        parse_options({"directory": "/d", "columns": "headers"}).shape()


def test_sizes_have_units() -> None:
    assert parse_options({"directory": "/d", "targetSplitBytes": "2 MiB"}).target_split_bytes == 2 << 20
