"""What must always hold, in SQL, as part of an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import ROOT
from tests.spark.logs import make_log, write_control
from tests.spark.test_views import entry
from waltz_spark.audit.invariants import Invariant, judge, read_invariant
from waltz_spark.base.errors import OptionError
from waltz_trio.cli.main import main as waltz

OVERDRAWN = ROOT / "examples" / "pipeline" / "overdrawn.sql"


def test_a_bank_is_judged_in_the_order_of_its_log(spark: Any, tmp_path: Path) -> None:
    sound = [entry("deposit", 1, 100), entry("transfer", 1, 100, to=2), entry("withdrawal", 2, 100)]
    make_log(tmp_path / "sound", [sound, sound])
    make_log(tmp_path / "broken", [sound, [sound[0], sound[2], sound[1]]])  # the same entries, in a wrong order
    overdrawn = read_invariant(OVERDRAWN)

    (found,) = judge(spark, {"directory": str(tmp_path / "sound")}, [overdrawn])
    assert (found.check, found.status, found.looked_at) == ("invariant overdrawn", "passed", 6)

    (found,) = judge(spark, {"directory": str(tmp_path / "broken")}, [overdrawn])
    assert (found.status, found.detail) == ("failed", "partition 1, transaction_id 1, account 2, balance -100")


def test_the_log_itself_can_be_asked(spark: Any, tmp_path: Path) -> None:
    make_log(tmp_path, [[b"x"] * 30])
    every = Invariant("every", "SELECT transaction_id FROM log")
    none = Invariant("none", "SELECT * FROM log WHERE length(data) <> 1")
    first, second = judge(spark, {"directory": str(tmp_path)}, [every, none])
    assert (first.status, first.detail.count("transaction_id"), first.detail[-8:]) == ("failed", 20, "and more")
    assert second.status == "passed"
    with pytest.raises(OptionError, match=r"invariant wrong: .*nothing_like_it"):
        judge(spark, {"directory": str(tmp_path)}, [Invariant("wrong", "SELECT nothing_like_it FROM log")])


EMPTY = Invariant("empty", "SELECT * FROM log WHERE 1 = 0")


@pytest.mark.parametrize(
    ("more", "status", "count", "scope"),
    [
        ({}, "passed", 35, "the whole log"),
        ({"cut": '{"0": 30, "1": 5}'}, "passed", 35, "the whole log"),
        ({"CUT": '{"0": 10}'}, "unproven", 15, "15 of 35 records: partition 0: ids 0 to 9, partition 1: ids 0 to 4"),
        ({"endingoffsets": '{"1": 0}'}, "unproven", 30, "30 of 35 records: partition 0: ids 0 to 29"),
        ({"startingOffsets": '{"0": 29, "1": 5}'}, "unproven", 1, "1 of 35 records: partition 0: ids 29 to 29"),
        ({"startingOffsets": "latest"}, "unproven", 0, "no record: there was nothing to look at"),
        ({"Partitions": "1"}, "unproven", 5, "5 of those of 1 of 2 partitions: partition 1: ids 0 to 4"),
    ],
)
def test_a_query_that_saw_a_part_of_the_log_proves_nothing_of_the_whole(
    spark: Any, tmp_path: Path, more: dict[str, str], status: str, count: int, scope: str
) -> None:
    make_log(tmp_path, [[b"x"] * 30, [b"y"] * 5])
    all_rows = Invariant("all", "SELECT count(*) AS n FROM log")
    first, second = judge(spark, {"directory": str(tmp_path), **more}, [EMPTY, all_rows])
    assert (first.status, first.looked_at, first.scope) == (status, count, scope)
    assert (second.status, second.detail) == ("failed", f"n {count}")


def test_what_is_not_known_to_be_committed_was_not_looked_at(spark: Any, tmp_path: Path) -> None:
    make_log(tmp_path, [[b"x"] * 30])
    write_control(tmp_path, [20])
    (found,) = judge(spark, {"directory": str(tmp_path)}, [EMPTY])
    assert (found.status, found.scope) == ("unproven", "20 of 30 records: partition 0: ids 0 to 19")
    make_log(tmp_path / "none", [[]])
    (found,) = judge(spark, {"directory": str(tmp_path / "none")}, [EMPTY])
    assert (found.status, found.looked_at) == ("unproven", 0)


def test_files_without_a_query_and_calls_without_spark_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.sql").write_text(" \n")
    with pytest.raises(OptionError, match="expected a query"):
        read_invariant(tmp_path / "empty.sql")
    with pytest.raises(OptionError, match="No such file"):
        read_invariant(tmp_path / "absent.sql")
    assert waltz(["spark", "audit", "--directory", str(tmp_path), "--invariant", str(OVERDRAWN)]) == 2
    assert "give --master" in capsys.readouterr().err
