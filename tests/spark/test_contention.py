"""What the journal tells of conflicts: counts, the locks to blame, and what other lock tables would have done."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lock_names import pack_names
from tests.spark.logs import make_log
from tests.spark.test_journal import write_journal
from waltz_core.base.ids import make_req_id
from waltz_core.base.lock import Conflict, Lock, LockKind
from waltz_core.base.log import PROBE_MARK
from waltz_core.locks.table import LockTable
from waltz_core.server.journal_format import APPENDED, Decision, Gap
from waltz_core.wire.client_messages import Refusal
from waltz_spark.audit.contention import BINS, count_decisions, table_sizes, together
from waltz_spark.audit.report import contention_sections
from waltz_trio.cli.main import main as waltz

HOT, COLD = Lock("account", 7), Lock("account", 8)


def decision(number: int, *, refused: bool = False, conflict: int = 0, lock: Lock = HOT, at: int = 0) -> Decision:
    return Decision(
        session_id=3,
        transaction_id=-1 if refused else number,
        req_id=make_req_id(1, 1, 0, number),
        header=0,
        client_mark=number - 1,
        lock_mark=number,
        verdict=Refusal.LOCK if refused else APPENDED,
        conflict=conflict,
        blocking_id=-1,
        lock_kind=LockKind.WRITE if refused else -1,
        lock_index=0 if refused else -1,
        received_us=at,
        decided_us=at + 1000,
        size=10,
        write_locks=(lock.wire(),),
        names=pack_names([(lock.name, lock.id)]),
    )


def test_refusals_are_counted_by_kind_and_lock() -> None:
    decisions = [decision(number, at=number) for number in range(10)]
    decisions += [decision(10, refused=True, conflict=Conflict.TRUE) for _ in range(3)]
    decisions += [decision(10, refused=True, conflict=Conflict.FALSE, lock=COLD)]
    decisions.append(attrs.evolve(decision(10, refused=True), client_mark=PROBE_MARK))  # a question of a sink
    found = together([count_decisions(0, decisions, missing=5)])

    assert (found.decided, found.appended, found.refused) == (14, 10, (("lock", 4),))
    assert (found.true_conflicts, found.false_conflicts, found.unknown_conflicts, found.missing) == (3, 1, 0, 5)
    assert [(one.name, one.taken, one.refused) for one in found.locks] == [("account/7", 10, 3), ("account/8", 0, 1)]
    assert found.wait_us[0] == (0.5, 1000)


def test_a_lock_without_a_name_is_shown_by_its_hash() -> None:

    found = together([count_decisions(0, [attrs.evolve(decision(0), names=b"")])])
    assert found.locks[0].name == f"hash {HOT.wire()}"


def test_moments_cover_all_decisions() -> None:
    found = together([count_decisions(0, [decision(number, at=number * 12_345) for number in range(500)])])
    assert len(found.moments) <= BINS
    assert sum(one.appended for one in found.moments) == 500
    starts = [one.at_us for one in found.moments]
    assert starts == sorted(set(starts))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=60), st.integers(1, 64))
def test_a_replay_refuses_what_the_servers_table_would(drawn: list[tuple[int, int]], size: int) -> None:
    """Compared with a table driven by hand, and a dictionary that never errs."""
    decisions, table, takers, false, fine = [], LockTable(size, 3, -1), dict[int, int](), 0, 0
    for number, (lock_id, lag) in enumerate(drawn):
        lock, mark = Lock("x", lock_id).wire(), max(-1, number - 1 - lag)
        refused = takers.get(lock, -1) > mark
        if not refused:
            fine += 1
            false += table.estimate((lock,), ()) > mark
            table.commit((lock,), (), number)
            takers[lock] = number

        made = decision(number, refused=refused, lock=Lock("x", lock_id))
        decisions.append(attrs.evolve(made, client_mark=mark, write_locks=(lock,)))
    (found,) = table_sizes(decisions, (size,))
    assert (found.false, found.decided) == (false, fine)


def test_larger_tables_refuse_less() -> None:

    decisions = [
        attrs.evolve(decision(number, lock=Lock("row", number)), client_mark=number - 200)
        for number in range(200, 3000)
    ]
    found = table_sizes(decisions)
    assert found[0].false > 0
    assert found[-1].false == 0
    assert [one.false for one in found] == sorted((one.false for one in found), reverse=True)


def test_the_sections_say_what_was_found() -> None:
    decisions = [decision(number, at=number) for number in range(10)] + [decision(10, refused=True, conflict=1)]
    text = "".join(contention_sections(together([count_decisions(0, decisions)])))
    assert "11 appends were decided, 1 of them refused" in text
    assert "account/7" in text
    assert text.count("<svg") == 2
    assert "Size of the lock table" in text


def test_the_command_reads_journals_of_several_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_log(tmp_path / "log", [[b"x"] * 6])
    journals = [str(tmp_path / "a"), str(tmp_path / "b")]
    # The partition moved from one server to the other: a replay must take the decisions in the order of time.
    write_journal(tmp_path / "a", [[decision(number, at=number) for number in range(3)], [Gap(2, 0, 0, "full")]])
    later = [decision(number, at=number) for number in range(3, 6)]
    late = attrs.evolve(decision(6, refused=True, conflict=Conflict.TRUE, at=9), client_mark=3)
    write_journal(tmp_path / "b", [[*later, late]])
    page = tmp_path / "report.html"

    command = ["report", "--directory", str(tmp_path / "log"), "--html", str(page), "--jobs", "1"]
    assert waltz(["spark", *command, "--journal", journals[1], "--journal", journals[0]]) == 0
    shown = capsys.readouterr().out
    assert "7 appends were decided, 1 refused" in shown
    assert "account/7" in shown
    assert "they lack 2 decisions" in shown
    assert "Contention" in page.read_text()

    assert waltz(["spark", *command, "--json", "--journal", journals[0], "--journal", journals[1]]) == 0
    found = json.loads(capsys.readouterr().out)["contention"]
    assert (found["decided"], found["missing"], found["true_conflicts"]) == (7, 2, 1)
    assert found["tables"][-1] == {"size": 1_000_000, "false": 0, "decided": 6}
    assert waltz(["spark", *command, "--journal", str(tmp_path / "absent")]) == 1
