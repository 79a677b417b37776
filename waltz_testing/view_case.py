"""What the conformance suite for views runs on, and how its checks are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from waltz_core.base.ids import ReqId
from waltz_trio import ApplyError, Batch, KeyedView, Keys, Transaction, View

Apply = Callable[[Transaction, Any], None]
ApplyMany = Callable[[Sequence[Transaction], Any], None]

_ATTEMPTS = 1000
REQ_ID = ReqId(bytes(16))


@attrs.frozen
class ViewCase:
    """A view on a database of its own, empty at first.

    Args:
        open: makes the view with an `apply`; called several times, on the same database.
        note: writes the partition and the id of a transaction into the state, as an `apply` would.
        noted: reads the ids that were noted for a partition, in the order in which they were written.
        put_mark: stores a mark from outside, as a member of another program or a restored backup does; None removes
            it. Without it the checks of such marks are left out.
        keeps: the state outlives the view, and several members may share it.
        open_keyed: makes the view with an `apply` and `Keys`, on the same database. Without it the checks of
            idempotency keys are left out.
        rebuild_keyed: the same, for the next version of a view whose database is made anew. Without it the checks of
            such views are left out.
        open_many: makes the view with an `apply`, an `apply_many`, and `Keys` or None, on the same database. Without it
            the checks of transactions applied together are left out.
    """

    open: Callable[[Apply], View]
    note: Apply
    noted: Callable[[Any, int], list[int]]
    put_mark: Callable[[int, int | None], None] | None = None
    keeps: bool = True
    open_keyed: Callable[[Apply, Keys], KeyedView] | None = None
    rebuild_keyed: Callable[[Apply, Keys], KeyedView] | None = None
    open_many: Callable[[Apply, ApplyMany, Keys | None], View] | None = None

    @contextmanager
    def opened(self, apply: Apply | None = None, *partitions: int) -> Iterator[View]:
        """The view, with its marks of some partitions (0) loaded."""
        with loaded(self.open(self.note if apply is None else apply), partitions or (0,)) as view:
            yield view

    @contextmanager
    def keyed(self, keys: Keys, apply: Apply | None = None, *partitions: int) -> Iterator[KeyedView]:
        """The view that remembers keys, with its marks of some partitions (0) loaded."""
        assert self.open_keyed is not None
        with loaded(self.open_keyed(self.note if apply is None else apply, keys), partitions or (0,)) as view:
            yield view

    def ids(self, view: View, partition: int = 0) -> list[int]:
        """What was noted, as this view reads it."""
        found: list[int] = view.read(partition, self.noted, (partition,))[0]
        return list(found)


Check = Callable[[ViewCase], None]


class Checks:
    """Checks, and which cases they concern."""

    def __init__(self) -> None:
        self._checks: dict[Check, Callable[[ViewCase], bool]] = {}

    def add(
        self,
        *,
        keeps: bool = False,
        marks: bool = False,
        keys: bool = False,
        rebuilds: bool = False,
        many: bool = False,
    ) -> Callable[[Check], Check]:
        """Of views that keep their state, of marks set from outside, of keys, of views made anew, of `apply_many`."""

        def concerns(case: ViewCase) -> bool:
            return (
                (case.keeps or not keeps)
                and (case.put_mark is not None or not marks)
                and (case.open_keyed is not None or not keys)
                and (case.rebuild_keyed is not None or not rebuilds)
                and (case.open_many is not None or not many)
            )

        def add(check: Check) -> Check:
            self._checks[check] = concerns
            return check

        return add

    def of(self, case: ViewCase | None) -> tuple[Check, ...]:
        """Those that concern a case, or all."""
        return tuple(check for check, concerns in self._checks.items() if case is None or concerns(case))


@contextmanager
def loaded(view: Any, partitions: tuple[int, ...] = (0,)) -> Iterator[Any]:
    """A view with its marks loaded, closed at the end."""
    try:
        for partition in partitions:
            patiently(view, view.load_mark, partition)
        yield view
    finally:
        view.close()


def transactions(first: int, last: int, partition: int = 0) -> Batch:
    """A batch to apply; payloads are the ids in decimal."""
    ids = range(first, last + 1)
    return Batch(partition, tuple(Transaction(partition, n, 0, REQ_ID, b"%d" % n) for n in ids))


def patiently(view: View, method: Callable[..., int], argument: object) -> int:
    """Call again while the view says that this may help, as an application does."""
    for attempt in range(_ATTEMPTS):
        try:
            return method(argument)
        except Exception as error:
            if not view.is_transient(error) or attempt == _ATTEMPTS - 1:
                raise
        time.sleep(0.01)
    raise AssertionError  # never reached


def expect(actual: object, expected: object, what: str) -> None:
    """See that something is as it should be."""
    if actual != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {actual!r}")


@contextmanager
def raises(kind: type[BaseException] | tuple[type[BaseException], ...], what: str) -> Iterator[list[BaseException]]:
    """See that the block raises; gives what it raised."""
    caught: list[BaseException] = []
    names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
    try:
        yield caught
    except kind as error:
        caught.append(error)
    except BaseException as error:
        raise AssertionError(f"{what}: expected {names}, found {error!r}") from error
    else:
        raise AssertionError(f"{what}: expected {names}, and nothing was raised")


def fails_at_two(case: ViewCase, view: Any) -> int:
    """Commit 0 to 4, of which 2 raises `ArithmeticError("not this one")`, to an empty view; the mark then.

    2 is named, and data and mark agree.
    """
    with raises(ApplyError, "commit(0 to 4), of which 2 fails") as caught:
        view.commit(transactions(0, 4))
    error = caught[0]
    assert isinstance(error, ApplyError)
    expect((error.transaction.id, repr(error.__cause__)), (2, repr(ArithmeticError("not this one"))), "ApplyError")
    mark: int = view.load_mark(0)
    expect(case.ids(view), list(range(mark + 1)), f"noted at mark {mark}")
    return mark
