"""Every broken promise is found; a kept one is not complained about."""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_trio.demo import journal, proof
from waltz_trio.demo.bank import ENTRIES, Account, Entry, Order
from waltz_trio.demo.journal import Event
from waltz_trio.demo.proof import Database, Kill


def record_of(transaction_id: int, data: bytes = b"x") -> Record:
    return Record(transaction_id, ReqId(bytes(16)), 0, data, 0)


def log_of(count: int) -> dict[int, list[Record]]:
    return {0: [record_of(number) for number in range(count)]}


def entry(request: int, order: Order, mark: int = -1, locks: Sequence[str] = (), read: Sequence[str] = ()) -> Entry:
    return Entry(order, 0, request, mark, tuple((name, 1) for name in locks), tuple((name, 1) for name in read))


DEPOSIT = Order("deposit", 1, 10)


def asked(request: int, time: int = 0) -> Event:
    return Event(time, journal.ASKED, 0, request, 0, -1)


def committed(request: int, transaction_id: int, time: int = 0) -> Event:
    return Event(time, journal.COMMITTED, 0, request, 0, transaction_id)


# ---- replicas ----------------------------------------------------------------------------------------


def test_replicas_may_differ_behind_the_mark() -> None:
    assert proof.check_replicas({"a": log_of(3), "b": log_of(5)}, {0: 2}).kept


def test_a_short_replica_is_found() -> None:
    finding = proof.check_replicas({"a": log_of(3), "b": log_of(2)}, {0: 2})
    assert finding.violations == ("b holds 2 records of partition 0, 3 are committed",)


def test_a_differing_record_is_found() -> None:
    other = {0: [record_of(0), record_of(1, b"y"), record_of(2)]}
    assert proof.check_replicas({"a": log_of(3), "b": other}, {0: 2}).violations == (
        "a and b differ at transaction 1 of partition 0",
    )


def test_a_hole_is_found() -> None:
    holed = {0: [record_of(0), record_of(2), record_of(3)]}
    assert not proof.check_replicas({"a": holed, "b": holed}, {0: 2}).kept


def test_entries_end_at_the_mark() -> None:
    data = ENTRIES.dumps(entry(1, DEPOSIT))
    assert proof.entries({0: [record_of(0, data), record_of(1, b"not committed")]}, {0: 0}) == {0: [entry(1, DEPOSIT)]}


# ---- outcomes ----------------------------------------------------------------------------------------


def kept(book: dict[int, list[Entry]], events: list[Event]) -> list[bool]:
    """Of acknowledged, unknown, and other transactions."""
    return [finding.kept for finding in proof.check_outcomes(book, events)]


def test_kept_outcomes_are_not_complained_about() -> None:
    events = [asked(1), committed(1, 0), asked(2), asked(3), Event(0, journal.DECLINED, 0, 3, 0, -1)]
    assert kept({0: [entry(1, DEPOSIT), entry(2, DEPOSIT)]}, events) == [True, True, True]


def test_an_acknowledged_transaction_that_is_lost_is_found() -> None:
    assert kept({0: []}, [asked(1), committed(1, 0)]) == [False, True, True]


def test_an_acknowledged_transaction_elsewhere_or_twice_is_found() -> None:
    for log in ([entry(2, DEPOSIT), entry(1, DEPOSIT)], [entry(1, DEPOSIT), entry(1, DEPOSIT)]):
        findings = proof.check_outcomes({0: log}, [asked(1), committed(1, 0), asked(2)])
        assert not findings[0].kept


def test_an_unknown_outcome_may_be_in_the_log_once_but_not_twice() -> None:
    unknown = [asked(1), Event(0, journal.UNKNOWN, 0, 1, 0, -1)]
    assert all(finding.kept for finding in proof.check_outcomes({0: [entry(1, DEPOSIT)]}, unknown))
    assert not proof.check_outcomes({0: [entry(1, DEPOSIT)] * 2}, unknown)[1].kept


def test_what_was_declined_or_never_asked_for_must_not_be_in_the_log() -> None:
    declined = [asked(1), Event(0, journal.DECLINED, 0, 1, 0, -1)]
    assert not proof.check_outcomes({0: [entry(1, DEPOSIT)]}, declined)[2].kept
    assert not proof.check_outcomes({0: [entry(1, DEPOSIT)]}, [])[2].kept


# ---- locks -------------------------------------------------------------------------------------------


def test_a_lock_that_was_taken_behind_the_mark_is_found() -> None:
    def locks(mark: int, *, write: Sequence[str] = (), read: Sequence[str] = ()) -> list[str]:
        first = entry(1, DEPOSIT, -1, ["a"])
        return list(proof.check_locks({0: [first, entry(2, DEPOSIT, mark, write, read)]}).violations)

    assert locks(0, write=["a"]) == []
    assert locks(-1, write=["b"]) == []
    assert len(locks(-1, write=["a"])) == 1
    assert len(locks(-1, read=["a"])) == 1


def test_a_read_lock_takes_nothing() -> None:
    log = [entry(1, DEPOSIT, -1, [], ["a"]), entry(2, DEPOSIT, -1, ["a"])]
    assert proof.check_locks({0: log}).kept


def test_a_decision_on_the_future_is_found() -> None:
    assert not proof.check_locks({0: [entry(1, DEPOSIT, 0)]}).kept


# ---- order -------------------------------------------------------------------------------------------


def test_the_log_must_not_contradict_the_order_of_time() -> None:
    in_order = [asked(1, 1), committed(1, 0, 2), asked(2, 3), committed(2, 1, 4)]
    overlapping = [asked(1, 1), asked(2, 2), committed(1, 1, 3), committed(2, 0, 4)]
    reversed_ = [asked(1, 1), committed(1, 1, 2), asked(2, 3), committed(2, 0, 4)]
    assert proof.check_order(in_order).kept
    assert proof.check_order(overlapping).kept
    assert not proof.check_order(reversed_).kept


# ---- money -------------------------------------------------------------------------------------------


def test_money_is_counted_along_the_log() -> None:
    book = {
        0: [
            entry(1, DEPOSIT),
            entry(2, Order("transfer", 1, 4, 3)),
            entry(3, Order("withdrawal", 3, 1)),
            entry(4, Order("deactivate", 3)),
        ]
    }
    ledger = proof.replay(book)
    assert ledger.accounts == {1: Account(6, True), 3: Account(3, False)}
    assert (ledger.paid_in, ledger.paid_out, ledger.violations) == (10, 1, ())
    good = Database(0, ledger.accounts, {0: 3})
    assert all(finding.kept for finding in proof.check_money(ledger, [good]))
    assert proof.check_databases(ledger, [good], {0: 3}).kept


def test_an_overdraft_is_found_though_it_is_made_good_later() -> None:
    ledger = proof.replay({0: [entry(1, Order("withdrawal", 1, 5)), entry(2, DEPOSIT)]})
    assert not proof.check_money(ledger, [])[0].kept


def test_use_of_an_inactive_account_is_found() -> None:
    ledger = proof.replay({0: [entry(1, DEPOSIT), entry(2, Order("deactivate", 1)), entry(3, DEPOSIT)]})
    assert not proof.check_money(ledger, [])[0].kept


def test_lost_money_and_differing_databases_are_found() -> None:
    ledger = proof.replay({0: [entry(1, DEPOSIT)]})
    poor = Database(1, {1: Account(9, True)}, {0: 0})
    late = Database(2, ledger.accounts, {0: -1})
    assert not proof.check_money(ledger, [poor])[1].kept
    assert len(proof.check_databases(ledger, [poor, late], {0: 0}).violations) == 2


# ---- kills -------------------------------------------------------------------------------------------


def test_a_recovery_is_the_commit_of_what_was_asked_for_after_the_kill_in_every_partition() -> None:
    second = 10**9
    events = [
        asked(1, 0),
        committed(1, 0, 4 * second),
        asked(2, 3 * second),
        committed(2, 1, 5 * second),
        Event(3 * second, journal.ASKED, 1, 1, 1, -1),
        Event(6 * second, journal.COMMITTED, 1, 1, 1, 0),
    ]
    kills = [Kill(2 * second, "server 0"), Kill(4 * second, "storage 0")]
    assert proof.recoveries(kills[:1], events, 2) == [4.0]
    assert proof.recoveries(kills, events, 2) == [4.0, None]


def test_too_few_kills_none_of_the_cluster_or_no_recovery_are_found() -> None:
    kills = [Kill(0, "server 0"), Kill(1, "cluster")]
    assert proof.check_kills(kills, [1.0, 1.0], 2).kept
    assert not proof.check_kills(kills, [1.0, 1.0], 3).kept
    assert not proof.check_kills(kills, [1.0, None], 2).kept
    assert not proof.check_kills(kills[:1], [1.0], 1).kept
