"""The checker finds what it is there for: each history here is wrong in one way."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from tests.witness.log import Attempt, Entry, Journal, Payload, check, check_disks, read_journals, read_replica

STOCK = ("stock", 1)


def entry(number: int, payload: Payload, generation: int = 0) -> Entry:
    return Entry(number, struct.pack(">iiii", 7, generation, 0, number), 0, payload.dumps())


@attrs.define
class Case:
    """A small history in which everything is right; each test breaks one thing."""

    payloads: list[Payload]
    replicas: list[list[Entry]]
    attempts: dict[str, Attempt]
    applied: list[tuple[int, str]]
    mark: int = 2


def right() -> Case:
    """Three commits by one client, one after the other; `b` was refused because `a` took its lock."""
    payloads = [
        Payload("a", -1, write=(STOCK,)),
        Payload("c", 0, read=(STOCK,)),
        Payload("d", 0, append=(STOCK,)),
    ]
    log = [entry(number, payload) for number, payload in enumerate(payloads)]
    attempts = {
        payload.name: Attempt(0, payload, invoked=10 * number, returned=10 * number + 5, transaction_id=number)
        for number, payload in enumerate(payloads)
    }
    refused = Payload("b", -1, write=(STOCK,))
    attempts["b"] = Attempt(0, refused, invoked=3, returned=7, why="LockConflictError", blocking_id=0)
    applied = [(number, payload.name) for number, payload in enumerate(payloads)]
    return Case(payloads, [list(log) for _ in range(3)], attempts, applied)


def judge(case: Case) -> object:
    return check({0: case.replicas}, {0: case.mark}, case.attempts, {"client": {0: case.applied}})


def test_a_right_history_is_accepted_and_counted() -> None:
    case = right()
    case.attempts["lost"] = Attempt(0, Payload("lost", 2), invoked=40)
    case.attempts["near"] = Attempt(
        0, Payload("near", 1, write=(("stock", 9),)), invoked=40, returned=50, why="LockConflictError", blocking_id=2
    )

    verdict = check({0: case.replicas}, {0: 2}, case.attempts, {"client": {0: case.applied[:2]}})

    assert (verdict.committed, verdict.unknown_lost, verdict.unknown_in_log) == (3, 1, 0)
    assert (verdict.conflicts_true, verdict.conflicts_false) == (1, 1)


def lose_an_acknowledged(case: Case) -> None:
    case.mark = 1
    del case.applied[2:]


def change_a_byte_of_a_replica(case: Case) -> None:
    case.replicas[2][1] = attrs.evolve(case.replicas[2][1], data=b"[]")


def cut_a_replica(case: Case) -> None:
    del case.replicas[1][2:]


def leave_a_hole(case: Case) -> None:
    for copy in case.replicas:
        copy[2] = attrs.evolve(copy[2], transaction_id=3)


def commit_twice(case: Case) -> None:
    for copy in case.replicas:
        copy.append(attrs.evolve(copy[0], transaction_id=3))
    case.mark = 3


def commit_what_failed(case: Case) -> None:
    case.attempts["b"].payload = Payload("b", -1)  # without locks, so that no other rule notices
    for copy in case.replicas:
        copy.append(entry(3, Payload("b", -1)))
    case.mark = 3


def commit_what_nobody_sent(case: Case) -> None:
    for copy in case.replicas:
        copy.append(entry(3, Payload("x", 2)))
    case.mark = 3


def acknowledge_another_place(case: Case) -> None:
    case.attempts["c"].transaction_id = 2
    case.attempts["d"].transaction_id = 1


def commit_in_spite_of_a_lock(case: Case) -> None:
    for copy in case.replicas:
        copy.append(entry(3, Payload("e", 1, write=(STOCK,))))  # `d` appended it, as number 2
    case.mark = 3


def decide_from_the_future(case: Case) -> None:
    payload = Payload("c", 5)
    for copy in case.replicas:
        copy[1] = entry(1, payload)


def overtake_an_acknowledged(case: Case) -> None:
    case.attempts["d"].invoked, case.attempts["d"].returned = 11, 12
    case.attempts["c"].invoked, case.attempts["c"].returned = 13, 14


def fall_back_a_generation(case: Case) -> None:
    for copy in case.replicas:
        copy[1] = entry(1, case.payloads[1], generation=2)
        copy[2] = entry(2, case.payloads[2], generation=1)


def apply_twice(case: Case) -> None:
    case.applied.insert(1, case.applied[0])


def skip_one(case: Case) -> None:
    del case.applied[1]


def apply_the_uncommitted(case: Case) -> None:
    case.applied.append((3, "e"))


def apply_something_else(case: Case) -> None:
    case.applied[1] = (1, "x")


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (lose_an_acknowledged, "d was acknowledged"),
        (change_a_byte_of_a_replica, "differ"),
        (cut_a_replica, "replica 1 ends at 1"),
        (leave_a_hole, "not dense"),
        (commit_twice, "a is in the log twice"),
        (commit_what_failed, "told to have failed"),
        (commit_what_nobody_sent, "nobody sent"),
        (acknowledge_another_place, "was acknowledged as"),
        (commit_in_spite_of_a_lock, "took"),
        (decide_from_the_future, "later mark"),
        (overtake_an_acknowledged, "was invoked after"),
        (fall_back_a_generation, "generation falls"),
        (apply_twice, "applied 0 as number 1"),
        (skip_one, "applied 2 as number 1"),
        (apply_the_uncommitted, "committed are 3"),
        (apply_something_else, "not x"),
    ],
)
def test_a_wrong_history_is_refused(break_it: Callable[[Case], None], complaint: str) -> None:
    case = right()
    judge(case)
    break_it(case)

    with pytest.raises(AssertionError, match=complaint):
        judge(case)


def test_a_journal_that_a_kill_cut_short_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.invoked(0, Payload("a", -1, write=(STOCK,)))
    journal.invoked(0, Payload("b", -1))
    journal.committed("a", 0)
    journal.failed("b", "LockConflictError", 0)
    journal.close()
    whole = read_journals([path])
    path.write_bytes(path.read_bytes()[:-9])

    attempts = read_journals([path])

    assert (whole["b"].why, whole["b"].blocking_id) == ("LockConflictError", 0)
    assert attempts["a"].transaction_id == 0
    assert attempts["a"].payload.write == (STOCK,)
    assert attempts["b"].returned is None


def test_a_replica_is_read_up_to_its_torn_end(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    folder.mkdir()
    records = []
    for number in range(3):
        body = struct.pack(">q16siii", number, bytes(16), number, 2, 0) + b"ab"
        records.append(body + struct.pack(">I", zlib.crc32(body)))
    (folder / "0000000000000000000.seg").write_bytes(bytes(128) + b"".join(records[:2]))
    (folder / "0000000000000000002.seg").write_bytes(bytes(128) + records[2] + records[2][:20])

    found = read_replica(tmp_path, 0)

    assert [(one.transaction_id, one.header, one.data) for one in found] == [(n, n, b"ab") for n in range(3)]


def test_disks_of_which_a_majority_holds_everything_are_accepted() -> None:
    log = right().replicas[0]
    check_disks({0: [log, log, log[:1]]}, {0: 2}, {(0, 1): log[1].data})


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda logs: logs[1].pop(), "0/2 is committed and on 1 disks"),
        (lambda logs: logs[1].pop(1), "ids of replica 1 are not dense"),
        (lambda logs: logs[1].__setitem__(2, attrs.evolve(logs[1][2], header=5)), "0/2 is committed and on 1 disks"),
        (lambda logs: logs[1].__setitem__(1, attrs.evolve(logs[1][1], data=b"?")), "0/1 was acknowledged, and is on 1"),
    ],
    ids=["shorter", "hole", "header", "payload"],
)
def test_disks_that_lack_something_are_not(spoil: Callable[[list[list[Entry]]], object], text: str) -> None:
    log = right().replicas[0]
    logs = [list(log), list(log), list(log[:1])]
    spoil(logs)
    with pytest.raises(AssertionError, match=text):
        check_disks({0: logs}, {0: 2}, {(0, 1): log[1].data})


def test_an_acknowledgement_above_the_mark_is_a_lie() -> None:
    log = right().replicas[0]
    with pytest.raises(AssertionError, match="0/2 was acknowledged and is not committed"):
        check_disks({0: [log, log, log]}, {0: 1}, {(0, 2): log[2].data})
