"""The conformance suite for views: what every view must do.

A suite needs a view to run on. A `ViewCase` opens it with an `apply` of the suite's own, and says how a transaction is
noted in its state, and how to read the notes back. Each check gets a case on an empty database. Those of idempotency
keys are in `view_keys.py`, those of transactions applied together in `view_together.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from waltz_core.base.log import MARKER_HEADER
from waltz_testing.view_case import (
    REQ_ID,
    Check,
    Checks,
    ViewCase,
    expect,
    fails_at_two,
    patiently,
    raises,
    transactions,
)
from waltz_testing.view_keys import KEY_CHECKS
from waltz_testing.view_together import TOGETHER_CHECKS
from waltz_trio import ApplyError, Batch, Transaction, ViewRegressedError
from waltz_trio.client.shown import shown

_checks = Checks()


def view_checks(case: ViewCase | None = None) -> tuple[Check, ...]:
    """Every check, or those that concern a case; to parametrize a test. Their `__name__` says what is wanted."""
    if case is not None and not isinstance(case, ViewCase):
        raise TypeError(f"expected a ViewCase, found {shown(case)}")
    return (*_checks.of(case), *KEY_CHECKS.of(case), *TOGETHER_CHECKS.of(case))


def check_view(fresh: Callable[[], ViewCase]) -> list[str]:
    """Run every check that concerns a view, each on a case of its own.

    Args:
        fresh: makes a case on an empty database.

    Returns:
        The names of the checks that passed: all that were run.

    Raises:
        AssertionError: some failed; the message names each with what it expected and found.
    """
    if not callable(fresh):
        raise TypeError(f"expected a function that makes a ViewCase, found {shown(fresh)}; write check_view(make_case)")
    failed: list[tuple[str, Exception]] = []
    names = []
    for check in view_checks(fresh()):
        names.append(check.__name__)
        try:
            check(fresh())
        except Exception as error:
            failed.append((check.__name__, error))
    if failed:
        lines = [f"{name}: {type(error).__name__}: {error}" for name, error in failed]
        raise AssertionError("\n".join([f"{len(failed)} of {len(names)} checks of the view failed:", *lines])) from (
            failed[0][1]
        )
    return names


# ---- every view ------------------------------------------------------------------------------------------------


@_checks.add()
def a_new_view_stands_before_the_first_transaction(case: ViewCase) -> None:
    """`load_mark` is -1 for each partition, however often it is asked."""
    view = case.open(case.note)
    try:
        expect([view.load_mark(0), view.load_mark(7), view.load_mark(0)], [-1, -1, -1], "load_mark of a new view")
        expect(case.ids(view), [], "noted")
    finally:
        view.close()


@_checks.add()
def a_batch_moves_data_and_mark_together(case: ViewCase) -> None:
    """`commit` returns the mark, and `read` and `load_mark` know it."""
    with case.opened() as view:
        expect(view.commit(transactions(0, 2)), 2, "commit(0 to 2)")
        expect(view.commit(transactions(3, 3)), 3, "commit(3)")
        expect(view.read(0, case.noted, (0,)), ([0, 1, 2, 3], 3), "read")
        expect(view.load_mark(0), 3, "load_mark")


@_checks.add()
def partitions_are_apart(case: ViewCase) -> None:
    """Each has its mark."""
    with case.opened(None, 0, 1) as view:
        view.commit(transactions(0, 4, 0))
        view.commit(transactions(0, 1, 1))
        expect((case.ids(view, 0), case.ids(view, 1)), ([0, 1, 2, 3, 4], [0, 1]), "noted by partition")
        expect((view.load_mark(0), view.load_mark(1)), (4, 1), "marks")


@_checks.add()
def what_is_applied_already_is_passed_over(case: ViewCase) -> None:
    """Of a batch that was applied in part only the rest is; of one that was applied nothing."""
    with case.opened() as view:
        view.commit(transactions(0, 2))
        expect(view.commit(transactions(1, 2)), 2, "commit of an applied batch")
        expect(view.commit(transactions(1, 4)), 4, "commit of a batch that overlaps")
        expect(case.ids(view), [0, 1, 2, 3, 4], "noted")


@_checks.add()
def a_gap_is_refused(case: ViewCase) -> None:
    """A transaction that is not the next one is not applied."""
    with case.opened() as view:
        view.commit(transactions(0, 1))
        with raises(ViewRegressedError, "commit(5 to 6) behind mark 1"):
            view.commit(transactions(5, 6))
        expect((case.ids(view), view.load_mark(0)), ([0, 1], 1), "afterwards")


@_checks.add()
def markers_only_move_the_mark(case: ViewCase) -> None:
    """Transactions with `MARKER_HEADER` are not the application's."""
    headers = (0, MARKER_HEADER, 0, MARKER_HEADER)
    batch = Batch(0, tuple(Transaction(0, n, header, REQ_ID, b"") for n, header in enumerate(headers)))
    with case.opened() as view:
        expect(view.commit(batch), 3, "commit")
        expect(case.ids(view), [0, 2], "noted")


@_checks.add()
def what_cannot_be_applied_is_named_and_leaves_nothing_behind(case: ViewCase) -> None:
    """`ApplyError` with the transaction and the cause; data and mark agree, and the view goes on."""
    picky = True

    def apply(txn: Transaction, state: Any) -> None:
        case.note(txn, state)
        if picky and txn.id == 2:
            raise ArithmeticError("not this one")

    with case.opened(apply) as view:
        mark = fails_at_two(case, view)
        picky = False
        expect(view.commit(transactions(mark + 1, 4)), 4, "commit once it can be applied")
        expect(case.ids(view), [0, 1, 2, 3, 4], "noted")


class _StopError(BaseException):
    """As a KeyboardInterrupt comes."""


@_checks.add()
def an_interruption_leaves_nothing_behind(case: ViewCase) -> None:
    """What is no `Exception` passes as it is; data and mark agree."""
    stop = True

    def apply(txn: Transaction, state: Any) -> None:
        case.note(txn, state)
        if stop and txn.id == 1:
            raise _StopError

    with case.opened(apply) as view:
        with raises(_StopError, "commit that is interrupted"):
            view.commit(transactions(0, 2))
        stop = False
        mark = view.load_mark(0)
        expect(view.commit(transactions(mark + 1, 2)), 2, "commit afterwards")
        expect(case.ids(view), [0, 1, 2], "noted")


@_checks.add()
def an_apply_that_would_change_nothing_is_refused(case: ViewCase) -> None:
    """An `async def`, when the view is made or when it is called."""

    async def apply(txn: Transaction, state: Any) -> None:
        raise AssertionError("never awaited")

    with raises((TypeError, ApplyError), "a view of `async def apply`"), case.opened(apply) as view:  # type: ignore[arg-type]
        view.commit(transactions(0, 0))


@_checks.add()
def reading_hands_over_arguments_results_and_errors(case: ViewCase) -> None:
    """`decide(state, *args)`: what it returns and raises is the caller's."""

    def fails(state: Any) -> None:
        raise LookupError("its own")

    with case.opened() as view:
        view.commit(transactions(0, 0))
        expect(view.read(0, lambda state, a, b: (b, a), (1, "x")), (("x", 1), 0), "read")
        with raises(LookupError, "an error of decide"):
            view.read(0, fails, ())
        expect(case.ids(view), [0], "afterwards")


@_checks.add()
def what_decides_cannot_change_the_state(case: ViewCase) -> None:
    """It is refused with an error, every time, and nothing is left."""
    txn = transactions(1, 1).transactions[0]
    with case.opened() as view:
        view.commit(transactions(0, 0))
        for _ in range(2):
            with raises(Exception, "a decide that writes"):
                view.read(0, lambda state: case.note(txn, state), ())
        expect((case.ids(view), view.load_mark(0)), ([0], 0), "afterwards")
        expect(view.commit(transactions(1, 1)), 1, "commit afterwards")
        expect(case.ids(view), [0, 1], "noted")


@_checks.add()
def errors_of_the_application_are_not_worth_another_try(case: ViewCase) -> None:
    """`is_transient` is for the database's own troubles."""
    with case.opened() as view:
        expect([view.is_transient(error) for error in (ValueError(), KeyError("x"))], [False, False], "is_transient")


@_checks.add()
def closing_twice_does_no_harm(case: ViewCase) -> None:
    """`close` may come before anything else, too."""
    view = case.open(case.note)
    view.close()
    view.close()


# ---- views that keep their state -------------------------------------------------------------------------------


@_checks.add(keeps=True)
def an_opened_view_goes_on_where_it_was(case: ViewCase) -> None:
    """Data and mark are there again."""
    with case.opened() as view:
        view.commit(transactions(0, 4))
    with case.opened() as view:
        expect((view.load_mark(0), case.ids(view)), (4, [0, 1, 2, 3, 4]), "mark and notes of the view opened again")
        expect(view.commit(transactions(5, 5)), 5, "commit")


@_checks.add(keeps=True)
def each_transaction_is_applied_by_one_of_two_members(case: ViewCase) -> None:
    """Each gets the whole feed, in batches of its own."""
    with case.opened() as first, case.opened() as other:
        expect(first.commit(transactions(0, 1)), 1, "commit(0 to 1) by one")
        expect(other.commit(transactions(0, 3)), 3, "commit(0 to 3) by the other")
        expect(first.commit(transactions(2, 2)), 3, "commit(2) by one, which is behind")
        expect(first.commit(transactions(3, 4)), 4, "commit(3 to 4) by one")
        expect(case.ids(other), [0, 1, 2, 3, 4], "noted")


@_checks.add(keeps=True)
def members_that_commit_at_the_same_time_apply_each_transaction_once(case: ViewCase) -> None:
    """Three threads, batches of different sizes, one log."""
    end = 59
    failures: list[BaseException] = []
    start = threading.Barrier(3)

    def follow(size: int) -> None:
        try:
            with case.opened() as view:
                start.wait()
                mark = -1
                while mark < end:
                    mark = patiently(view, view.commit, transactions(mark + 1, min(end, mark + size)))
        except BaseException as error:
            failures.append(error)
            start.abort()

    threads = [threading.Thread(target=follow, args=(size,)) for size in (1, 3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    with case.opened() as view:
        expect((view.load_mark(0), case.ids(view)), (end, list(range(end + 1))), "mark and notes")


@_checks.add(keeps=True)
def reading_sees_one_snapshot(case: ViewCase) -> None:
    """What is committed in the middle of a `read` is not seen by it, and its mark is that of what it saw."""
    with case.opened() as view, case.opened() as other:
        view.commit(transactions(0, 1))

        def decide(state: Any) -> tuple[list[int], list[int]]:
            before = list(case.noted(state, 0))
            committed = threading.Thread(target=other.commit, args=(transactions(0, 3),))
            committed.start()
            committed.join()
            return before, list(case.noted(state, 0))

        expect(view.read(0, decide, ()), (([0, 1], [0, 1]), 1), "read")
        expect(view.read(0, case.noted, (0,)), ([0, 1, 2, 3], 3), "the next read")


# ---- marks that others store -----------------------------------------------------------------------------------


@_checks.add(keeps=True, marks=True)
def what_another_program_applied_is_left_to_it(case: ViewCase) -> None:
    """A member that only shares the marks, as one of 0.13.2 does, has applied up to 3."""
    assert case.put_mark is not None
    with case.opened() as view:
        view.commit(transactions(0, 1))
        case.put_mark(0, 3)
        expect(view.commit(transactions(2, 5)), 5, "commit(2 to 5) with mark 3 stored")
        expect(case.ids(view), [0, 1, 4, 5], "noted")


@_checks.add(keeps=True, marks=True)
def a_mark_that_went_back_stops_the_view(case: ViewCase) -> None:
    """The database was restored: to skip what follows, or to apply it to other data, would be silent damage."""
    assert case.put_mark is not None
    with case.opened() as view:
        view.commit(transactions(0, 4))
        case.put_mark(0, 1)
        for what, use in (("commit", lambda: view.commit(transactions(5, 6))), ("read", lambda: case.ids(view))):
            with raises(ViewRegressedError, f"{what} with mark 1 stored instead of 4"):
                use()


@_checks.add(keeps=True, marks=True)
def a_mark_that_is_gone_stops_the_view(case: ViewCase) -> None:
    """The row was deleted."""
    assert case.put_mark is not None
    with case.opened() as view:
        view.commit(transactions(0, 4))
        case.put_mark(0, None)
        for what, use in (("commit", lambda: view.commit(transactions(5, 6))), ("read", lambda: case.ids(view))):
            with raises(ViewRegressedError, f"{what} without a stored mark"):
                use()
