"""What a view that remembers idempotency keys must do: the part of the conformance suite for a `KeyedView`.

Transactions of these checks carry `KEY=REQUEST` as their payload, or no key where it is empty.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from waltz_core.base.errors import ViewIdentityError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.keys import KeyEntry, KeyTable, request_hash
from waltz_testing.view_case import REQ_ID, Checks, ViewCase, expect, loaded, raises
from waltz_trio import ApplyError, Batch, Key, KeyedView, Keys, Transaction

KEY_CHECKS = Checks()

_ROUNDS = 40


def _key_of(txn: Transaction) -> Key | None:
    key, _, request = txn.load().decode().partition("=")
    return Key(key, request) if key else None


def _keys(window: int = 100) -> Keys:
    return Keys(_key_of, window=window)


def _batch(first: int, *payloads: str, partition: int = 0) -> Batch:
    numbered = enumerate(payloads, first)
    return Batch(partition, tuple(Transaction(partition, n, 0, REQ_ID, text.encode()) for n, text in numbered))


def _entry(transaction_id: int, request: str) -> KeyEntry:
    return KeyEntry(transaction_id, request_hash(request))


def _found(view: KeyedView, key: str, partition: int = 0) -> KeyEntry | None:
    entry: KeyEntry | None = view.read(partition, lambda state: view.find_key(state, partition, key), ())[0]
    return entry


# ---- every view with keys ----------------------------------------------------------------------------


@KEY_CHECKS.add(keys=True)
def a_key_is_found_with_its_transaction_and_the_hash_of_its_request(case: ViewCase) -> None:
    """A receipt is made of the first, and the second tells a repeat from another request."""
    with case.keyed(_keys()) as view:
        expect(_found(view, "a"), None, "find_key in a new view")
        view.commit(_batch(0, "a=30", "", "b=40"))
        view.commit(_batch(3, "c=50"))
        found = [_found(view, key) for key in "abc"]
        expect(found, [_entry(0, "30"), _entry(2, "40"), _entry(3, "50")], "find_key of 'a', 'b' and 'c'")
        expect(_found(view, "d"), None, "find_key of a key that no transaction carries")


@KEY_CHECKS.add(keys=True)
def keys_that_differ_in_a_byte_are_apart(case: ViewCase) -> None:
    """Capitals, accents, spaces at the end: what a database's collation may take for equal."""
    names = ("order", "Order", "\u00f6rder", "order ", "o\u0308rder", "x" * 254 + "y", "x" * 254 + "z")
    with case.keyed(_keys()) as view:
        view.commit(_batch(0, *(f"{name}=1" for name in names)))
        found = [_found(view, name) for name in names]
        expect(found, [_entry(at, "1") for at in range(len(names))], "find_key of each")


@KEY_CHECKS.add(keys=True)
def keys_of_partitions_are_apart(case: ViewCase) -> None:
    """As locks are."""
    with case.keyed(_keys(), None, 0, 1) as view:
        view.commit(_batch(0, "a=1"))
        expect(_found(view, "a", 1), None, "find_key of 'a' in partition 1")
        view.commit(_batch(0, "", "a=2", partition=1))
        expect((_found(view, "a", 0), _found(view, "a", 1)), (_entry(0, "1"), _entry(1, "2")), "find_key in each")


@KEY_CHECKS.add(keys=True)
def markers_carry_no_keys(case: ViewCase) -> None:
    """`Keys.of` is for transactions of the application."""
    markers = Batch(0, (Transaction(0, 0, MARKER_HEADER, REQ_ID, b"a=1"),))
    with case.keyed(_keys()) as view:
        view.commit(markers)
        expect(_found(view, "a"), None, "find_key of what a marker holds")


@KEY_CHECKS.add(keys=True)
def keys_are_stored_in_the_transaction_of_the_data(case: ViewCase) -> None:
    """A batch that fails leaves exactly the keys of what it leaves applied."""
    picky = True

    def apply(txn: Transaction, state: Any) -> None:
        case.note(txn, state)
        if picky and txn.id == 2:
            raise ArithmeticError("not this one")

    with case.keyed(_keys(), apply) as view:
        with raises(ApplyError, "commit(0 to 3), of which 2 fails"):
            view.commit(_batch(0, "k0=1", "k1=1", "k2=1", "k3=1"))
        mark = view.load_mark(0)
        expect(case.ids(view), list(range(mark + 1)), f"noted at mark {mark}")
        found = [n for n in range(4) if _found(view, f"k{n}") is not None]
        expect(found, list(range(mark + 1)), f"keys at mark {mark}")
        picky = False
        view.commit(_batch(mark + 1, *(f"k{n}=1" for n in range(mark + 1, 4))))
        expect([_found(view, f"k{n}") for n in range(4)], [_entry(n, "1") for n in range(4)], "keys afterwards")


@KEY_CHECKS.add(keys=True)
def a_transaction_whose_key_cannot_be_read_is_named(case: ViewCase) -> None:
    """It is not applied without its key."""

    def fails(txn: Transaction) -> Key | None:
        if txn.id == 1:
            raise ArithmeticError("no key here")
        return _key_of(txn)

    with case.keyed(Keys(fails)) as view:
        with raises(ApplyError, "commit(0 to 2), of which 1 has a key that cannot be read") as caught:
            view.commit(_batch(0, "a=1", "b=1", "c=1"))
        error = caught[0]
        assert isinstance(error, ApplyError)
        expect((error.transaction.id, repr(error.__cause__)), (1, repr(ArithmeticError("no key here"))), "ApplyError")
        expect(case.ids(view), list(range(view.load_mark(0) + 1)), "noted")


@KEY_CHECKS.add(keys=True)
def the_first_of_several_transactions_with_one_key_counts(case: ViewCase) -> None:
    """Those of one batch and those of several."""
    with case.keyed(_keys()) as view:
        view.commit(_batch(0, "a=1", "b=1", "a=2"))
        view.commit(_batch(3, "b=2", "a=3"))
        expect((_found(view, "a"), _found(view, "b")), (_entry(0, "1"), _entry(1, "1")), "find_key of 'a' and 'b'")


@KEY_CHECKS.add(keys=True)
def a_key_is_kept_until_its_window_has_passed(case: ViewCase) -> None:
    """With a window of 3, transaction 0 is remembered at mark 2 and forgotten at mark 3."""
    with case.keyed(_keys(3)) as view:
        view.commit(_batch(0, "a=1", "", ""))
        expect(_found(view, "a"), _entry(0, "1"), "find_key at the end of the window")
        view.commit(_batch(3, ""))
        expect(_found(view, "a"), None, "find_key behind the window")


@KEY_CHECKS.add(keys=True)
def a_key_may_be_used_again_behind_its_window(case: ViewCase) -> None:
    """And is remembered for the transaction that did."""
    with case.keyed(_keys(3)) as view:
        view.commit(_batch(0, "a=1", "", "", "", "a=2"))
        expect(_found(view, "a"), _entry(4, "2"), "find_key")


@KEY_CHECKS.add(keys=True)
def what_is_remembered_does_not_depend_on_batches(case: ViewCase) -> None:
    """Every member has the same keys, though each cuts the log in its own way: `KeyTable` is the rule."""
    rng, table, mark = random.Random(7), KeyTable(5), -1
    with case.keyed(_keys(5)) as view:
        for _ in range(_ROUNDS):
            payloads = [rng.choice(("", "a=1", "b=1", "c=1", "a=2")) for _ in range(rng.randint(1, 7))]
            batch = _batch(mark + 1, *payloads)
            for txn in batch:
                key = _key_of(txn)
                table.apply(txn.id, *((None,) if key is None else (key.key, request_hash(key.request))))
            mark = view.commit(batch)
            for name in "abc":
                expect(_found(view, name), table.find(name, mark), f"find_key of {name!r} at mark {mark}")


@KEY_CHECKS.add(keys=True)
def what_is_applied_already_keeps_its_keys(case: ViewCase) -> None:
    """Of a batch that was applied in part the rest adds its keys."""
    with case.keyed(_keys()) as view:
        view.commit(_batch(0, "a=1", "b=1"))
        view.commit(_batch(1, "b=1", "c=1"))
        found = [_found(view, key) for key in "abc"]
        expect(found, [_entry(0, "1"), _entry(1, "1"), _entry(2, "1")], "find_key of 'a', 'b' and 'c'")


# ---- views that keep their state ---------------------------------------------------------------------


@KEY_CHECKS.add(keys=True, keeps=True)
def an_opened_view_remembers_its_keys(case: ViewCase) -> None:
    """As it goes on where it was."""
    with case.keyed(_keys()) as view:
        view.commit(_batch(0, "a=1", "b=1"))
    with case.keyed(_keys()) as view:
        view.commit(_batch(2, "a=2"))
        expect((_found(view, "a"), _found(view, "b")), (_entry(0, "1"), _entry(1, "1")), "find_key of 'a' and 'b'")


@KEY_CHECKS.add(keys=True, keeps=True)
def members_share_their_keys(case: ViewCase) -> None:
    """Whoever applies a transaction stores its key for all."""
    with case.keyed(_keys()) as first, case.keyed(_keys()) as other:
        first.commit(_batch(0, "a=1"))
        other.commit(_batch(0, "a=1", "b=1"))
        first.commit(_batch(1, "b=1"))
        first.commit(_batch(2, "c=1"))
        for view in (first, other):
            found = [_found(view, key) for key in "abc"]
            expect(found, [_entry(0, "1"), _entry(1, "1"), _entry(2, "1")], "find_key of 'a', 'b' and 'c'")


@KEY_CHECKS.add(keys=True, keeps=True)
def a_key_is_looked_for_in_the_snapshot_that_decides(case: ViewCase) -> None:
    """A key that is newer than the state has effects that the state does not show."""
    with case.keyed(_keys()) as view, case.keyed(_keys()) as other:
        view.commit(_batch(0, "a=1"))

        def decide(state: Any) -> tuple[list[int], KeyEntry | None]:
            noted = list(case.noted(state, 0))
            committed = threading.Thread(target=other.commit, args=(_batch(1, "b=1"),))
            committed.start()
            committed.join()
            return noted, view.find_key(state, 0, "b")

        expect(view.read(0, decide, ()), (([0], None), 0), "notes and find_key of 'b' in one read")
        expect(_found(view, "b"), _entry(1, "1"), "find_key of 'b' in the next read")


@KEY_CHECKS.add(keys=True, keeps=True)
def a_member_without_keys_is_refused(case: ViewCase) -> None:
    """It would apply transactions and leave their keys out."""
    with case.keyed(_keys()) as view:
        view.commit(_batch(0, "a=1"))
        with raises(ViewIdentityError, "a member without keys"), case.opened() as other:
            other.commit(_batch(1, "b=1"))


@KEY_CHECKS.add(keys=True, keeps=True)
def keys_are_not_taken_up_in_the_middle_of_a_log(case: ViewCase) -> None:
    """Those of the transactions before are not there."""
    with case.opened() as view:
        view.commit(_batch(0, "a=1"))
    with raises(ViewIdentityError, "a view with keys, of a database without"), case.keyed(_keys()) as view:
        _found(view, "a")


@KEY_CHECKS.add(keys=True, keeps=True)
def a_member_with_another_window_is_refused(case: ViewCase) -> None:
    """It would forget keys that others rely on."""
    with case.keyed(_keys(10)) as view:
        view.commit(_batch(0, "a=1"))
        with raises(ViewIdentityError, "a member with another window"), case.keyed(_keys(11)) as other:
            other.commit(_batch(1, "b=1"))


@KEY_CHECKS.add(keys=True, keeps=True, marks=True)
def a_gap_that_another_program_left_stops_looking_for_keys(case: ViewCase) -> None:
    """A member of 0.13.2 moves the mark and stores no keys: not found would not mean not there."""
    assert case.put_mark is not None
    with case.keyed(_keys()) as view:
        view.commit(_batch(0, "a=1"))
        case.put_mark(0, 2)
        with raises(ViewIdentityError, "find_key behind a gap"):
            _found(view, "b")


@KEY_CHECKS.add(keys=True, keeps=True, marks=True)
def a_gap_that_another_program_left_stops_the_view(case: ViewCase) -> None:
    """To store the keys behind it would hide it."""
    assert case.put_mark is not None
    with case.keyed(_keys()) as view:
        view.commit(_batch(0, "a=1"))
        case.put_mark(0, 2)
        with raises(ViewIdentityError, "commit behind a gap"):
            view.commit(_batch(1, "b=1", "c=1", "d=1"))
    with raises(ViewIdentityError, "opening a view with a gap"), case.keyed(_keys()):
        pass


@KEY_CHECKS.add(keys=True, keeps=True, rebuilds=True)
def a_view_made_anew_remembers_what_the_log_says(case: ViewCase) -> None:
    """Nothing of its former keys and window, and in the end the same as before."""
    assert case.rebuild_keyed is not None
    with case.keyed(_keys(3)) as view:
        view.commit(_batch(0, "a=1", "", "", "", "b=1"))
    with loaded(case.rebuild_keyed(case.note, _keys(10))) as view:
        expect((view.load_mark(0), _found(view, "b")), (-1, None), "mark and find_key of a view made anew")
        view.commit(_batch(0, "a=1", "", "", "", "b=1"))
        expect((_found(view, "a"), _found(view, "b")), (_entry(0, "1"), _entry(4, "1")), "find_key of 'a' and 'b'")


@KEY_CHECKS.add(keys=True, keeps=True, rebuilds=True)
def a_view_made_anew_takes_up_keys(case: ViewCase) -> None:
    """One that remembered none."""
    assert case.rebuild_keyed is not None
    with case.opened() as view:
        view.commit(_batch(0, "a=1"))
    with loaded(case.rebuild_keyed(case.note, _keys())) as view:
        view.commit(_batch(0, "a=1"))
        expect(_found(view, "a"), _entry(0, "1"), "find_key")
