"""What the audit says of what it compared and covered, and what the sink asks of rows: no log, no Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waltz_spark.audit.audit import Comparison, _compared, _coverage
from waltz_spark.base.errors import OptionError
from waltz_spark.read.sources import Part, Source, Sources
from waltz_spark.spark.sink import check_arranged
from waltz_spark.write.arranging import ARRANGED

KEY = bytes(16)


def copies(*parts: tuple[Part, ...], **known: Any) -> Sources:
    """One copy for each tuple of parts, of a log of one partition unless told otherwise."""
    sources = tuple(Source(f"copy {number}", held) for number, held in enumerate(parts))
    return Sources(sources, (), **{"key": KEY, "partition_count": 1, "partitions": (0,), **known})


def comparison(count: int, *, differing: tuple[int, ...] = (), problems: tuple[str, ...] = ()) -> Comparison:
    return Comparison(0, count, differing, problems, ())


WHOLE = (Part(0, 0, 100, ()),)


def test_equal_replicas_have_passed_only_if_each_id_was_in_two_of_them() -> None:
    sources = copies(WHOLE, WHOLE)
    assert _compared(sources, 0, [comparison(60), comparison(40)]).status == "passed"
    short = _compared(sources, 0, [comparison(60), comparison(39)])
    assert (short.status, short.looked_at, short.detail) == ("unproven", 99, "some ids are in one copy only")
    assert short.scope == "2 replicas, ids 0 to 99; 99 of 100 records in two or more"


def test_a_copy_that_did_not_answer_leaves_it_open_though_the_others_agree() -> None:
    unread = Comparison(0, 100, (), (), ("copy 2 did not answer",))
    finding = _compared(copies(WHOLE, WHOLE, WHOLE), 0, [unread, unread])
    assert (finding.status, finding.detail) == ("unproven", "copy 2 did not answer")


def test_a_difference_fails_whatever_could_not_be_read() -> None:
    mixed = Comparison(0, 50, (17,), ("copy 1: id 20 is damaged",), ("copy 2 did not answer",))
    finding = _compared(copies(WHOLE, WHOLE), 0, [mixed])
    assert finding.status == "failed"
    assert finding.detail == "differ from id 17 on; copy 1: id 20 is damaged; copy 2 did not answer"
    assert _compared(copies(WHOLE, WHOLE), 0, [comparison(100, differing=(3,))]).status == "failed"
    assert _compared(copies(WHOLE, WHOLE), 0, [comparison(100, problems=("bad",))]).status == "failed"


def test_a_partition_that_nobody_holds_has_nothing_to_compare() -> None:
    finding = _compared(copies(()), 0, [])
    assert (finding.status, finding.looked_at) == ("passed", 0)


def test_covered_is_what_was_read_between_the_first_id_and_the_last_that_are_known() -> None:
    sources = copies((Part(0, 5, 80, ()),), (Part(0, 10, 100, ()),))
    (finding,), coverage = _coverage(sources, None, [(0, 5, 40), (0, 30, 100), (1, 0, 999)])
    assert (finding.status, finding.looked_at, finding.detail) == ("passed", 95, "")
    assert (coverage.partitions, coverage.partition_count, coverage.records, coverage.known) == (1, 1, 95, 95)
    assert coverage.ranges == ((0, 5, 100),)


@pytest.mark.parametrize("seen", [[(0, 5, 99)], [(0, 6, 100)], [(0, 5, 50), (0, 51, 100)], []])
def test_one_id_that_nobody_read_leaves_it_unproven(seen: list[tuple[int, int, int]]) -> None:
    (finding,), coverage = _coverage(copies((Part(0, 5, 100, ()),)), None, seen)
    missing = 95 - coverage.records
    assert finding.status == "unproven"
    assert finding.detail == f"{missing:,} records were not looked at"
    assert coverage.partitions == 0


def test_a_partition_in_no_place_that_was_named_is_not_covered() -> None:
    sources = copies(WHOLE, partition_count=2, partitions=(0, 1))
    (first, second), coverage = _coverage(sources, None, [(0, 0, 100)])
    assert (first.status, second.status) == ("passed", "unproven")
    assert second.detail == "no place that was named holds this partition"
    assert (coverage.partitions, coverage.partition_count) == (1, 2)


def test_a_log_without_a_record_proves_nothing_unless_its_servers_say_that_it_is_empty() -> None:
    empty = (Part(0, 0, 0, ()),)
    findings, coverage = _coverage(copies(empty), None, [])
    assert [(one.partition, one.status) for one in findings] == [(0, "passed"), (-1, "unproven")]
    assert coverage.partitions == 0
    findings, coverage = _coverage(copies(empty, ends=(0,), starts=(0,)), None, [])
    assert [one.status for one in findings] == ["passed"]
    assert coverage.partitions == 1


# ---- the sink ------------------------------------------------------------------------------------


def schema(**metadata: dict[str, Any]) -> Any:
    return SimpleNamespace(fields=[SimpleNamespace(name=name, metadata=value) for name, value in metadata.items()])


def options(mode: str = "exactly-once", *, arranged: bool = False) -> Any:
    return SimpleNamespace(mode=mode, arranged=arranged)


def test_rows_that_nobody_arranged_are_refused() -> None:
    for rows in (schema(), schema(partition={}), schema(partition={ARRANGED: False}), schema(data={ARRANGED: True})):
        with pytest.raises(OptionError, match="must come from one task"):
            check_arranged(options(), rows)


def test_rows_that_are_arranged_said_to_be_or_may_come_twice_are_taken() -> None:
    check_arranged(options(), schema(data={}, partition={ARRANGED: True}))
    check_arranged(options(arranged=True), schema(partition={}))
    check_arranged(options("at-least-once"), schema(partition={}))
