"""What a view with an `apply_many` must do: the part of the conformance suite for transactions applied together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.keys import KeyEntry, request_hash
from waltz_testing.view_case import (
    REQ_ID,
    ApplyMany,
    Checks,
    ViewCase,
    expect,
    fails_at_two,
    loaded,
    raises,
    transactions,
)
from waltz_trio import ApplyError, Batch, Key, Keys, Transaction

TOGETHER_CHECKS = Checks()


class _Calls:
    """An `apply_many` that notes what it is given, and fails when it is to."""

    def __init__(self, case: ViewCase) -> None:
        self.runs: list[list[int]] = []
        self.fails_with: BaseException | None = None
        self._case = case

    def __call__(self, txns: Sequence[Transaction], state: Any) -> None:
        self.runs.append([txn.id for txn in txns])
        for txn in txns[: len(txns) // 2] if self.fails_with is not None else txns:
            self._case.note(txn, state)
        if self.fails_with is not None:
            raise self.fails_with

    def ids(self) -> list[int]:
        return [each for run in self.runs for each in run]


@contextmanager
def _opened(case: ViewCase, apply_many: ApplyMany, apply: Any = None, keys: Keys | None = None) -> Iterator[Any]:
    assert case.open_many is not None
    with loaded(case.open_many(case.note if apply is None else apply, apply_many, keys)) as view:
        yield view


@TOGETHER_CHECKS.add(many=True)
def what_is_applied_together_is_new_and_in_order(case: ViewCase) -> None:
    """`apply_many` gets no marker, and nothing that the state holds already."""
    calls = _Calls(case)
    headers = (0, MARKER_HEADER, 0, 0)
    batch = Batch(0, tuple(Transaction(0, n, header, REQ_ID, b"") for n, header in enumerate(headers, 5)))
    with _opened(case, calls) as view:
        expect(view.commit(transactions(0, 3)), 3, "commit(0 to 3)")
        expect(calls.runs, [[0, 1, 2, 3]], "what apply_many got")
        expect(view.commit(transactions(2, 4)), 4, "commit of a batch that overlaps")
        expect(view.commit(batch), 8, "commit of a batch with a marker")
        expect(case.ids(view), [0, 1, 2, 3, 4, 5, 7, 8], "noted")
        expect(set(calls.ids()) <= {0, 1, 2, 3, 4, 5, 7, 8}, True, "apply_many got no marker")
        expect(view.commit(transactions(4, 8)), 8, "commit of an applied batch")
        expect((case.ids(view), view.load_mark(0)), ([0, 1, 2, 3, 4, 5, 7, 8], 8), "noted, and the mark")


@TOGETHER_CHECKS.add(many=True)
def what_cannot_be_applied_together_is_applied_one_at_a_time(case: ViewCase) -> None:
    """Nothing is left of the attempt, and whoever fails alone is named."""
    picky = True

    def apply(txn: Transaction, state: Any) -> None:
        case.note(txn, state)
        if picky and txn.id == 2:
            raise ArithmeticError("not this one")

    calls = _Calls(case)
    calls.fails_with = LookupError("not together")
    with warnings.catch_warnings(), _opened(case, calls, apply) as view:
        warnings.simplefilter("ignore")
        mark = fails_at_two(case, view)
        picky = False
        expect(view.commit(transactions(mark + 1, 4)), 4, "commit, where each can be applied")
        expect(case.ids(view), [0, 1, 2, 3, 4], "noted")


@TOGETHER_CHECKS.add(many=True)
def an_interruption_of_what_is_applied_together_leaves_nothing_behind(case: ViewCase) -> None:
    """What is no `Exception` passes as it is; data and mark agree."""
    calls = _Calls(case)
    calls.fails_with = KeyboardInterrupt()
    with _opened(case, calls) as view:
        with raises(KeyboardInterrupt, "commit that is interrupted"):
            view.commit(transactions(0, 3))
        calls.fails_with = None
        mark = view.load_mark(0)
        expect(case.ids(view), list(range(mark + 1)), f"noted at mark {mark}")
        expect(view.commit(transactions(mark + 1, 3)), 3, "commit afterwards")
        expect(case.ids(view), [0, 1, 2, 3], "noted")


@TOGETHER_CHECKS.add(many=True)
def an_apply_many_that_would_change_nothing_is_refused(case: ViewCase) -> None:
    """An `async def`, when the view is made or when it is called."""

    async def apply_many(txns: Sequence[Transaction], state: Any) -> None:
        raise AssertionError("never awaited")

    with (
        raises((TypeError, ApplyError), "a view of `async def apply_many`"),
        _opened(case, apply_many) as view,  # type: ignore[arg-type]
    ):
        view.commit(transactions(0, 1))


@TOGETHER_CHECKS.add(many=True, keys=True)
def keys_of_what_is_applied_together_are_remembered(case: ViewCase) -> None:
    """Each with its own transaction, whether they were applied together or, after that failed, one at a time."""
    calls = _Calls(case)

    def key_of(txn: Transaction) -> Key | None:
        return Key(f"k{txn.id}", txn.id) if txn.id % 2 else None

    with warnings.catch_warnings(), _opened(case, calls, keys=Keys(key_of, window=100)) as view:
        warnings.simplefilter("ignore")
        view.commit(transactions(0, 3))
        calls.fails_with = LookupError("not together")
        view.commit(transactions(4, 7))
        found = [view.read(0, lambda state, n=n: view.find_key(state, 0, f"k{n}"), ())[0] for n in range(8)]
        expected = [KeyEntry(n, request_hash(n)) if n % 2 else None for n in range(8)]
        expect(found, expected, "find_key of 'k0' to 'k7'")
        expect(case.ids(view), list(range(8)), "noted")
