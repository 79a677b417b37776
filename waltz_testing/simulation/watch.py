"""The view of a simulated member: the user's own, with a look at its state behind every commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from waltz_trio import Batch, View


class ViewLockedError(Exception):
    """A fault of the plan: the database of the view cannot be reached."""


class WatchedView:
    """Runs a view in the task that uses it: threads would take turns by chance.

    Each transaction is committed by itself, so that what breaks an invariant has a name. A view with an `apply_many`
    gets batches, for its function would never be called.
    """

    threaded = False

    def __init__(self, view: View[Any], applied: Callable[[int, int], None]) -> None:
        self.inner = view
        self.keys = getattr(view, "keys", None)
        self.locked = False
        self._applied = applied  # called with the partition and the id of what was applied

    def load_mark(self, partition: int) -> int:
        """As `View.load_mark`."""
        self._check()
        return self.inner.load_mark(partition)

    def commit(self, batch: Batch) -> int:
        """As `View.commit`."""
        mark = batch.first_id - 1
        together = getattr(self.inner, "apply_many", None) is not None
        for part in [batch.transactions] if together else [(each,) for each in batch]:
            self._check()
            mark = self.inner.commit(Batch(batch.partition, part))
            self._applied(batch.partition, part[-1].id)
        return mark

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        """As `View.read`."""
        self._check()
        return self.inner.read(partition, decide, args)

    def find_key(self, state: Any, partition: int, key: str) -> Any:
        """As `KeyedView.find_key`."""
        return self.inner.find_key(state, partition, key)  # type: ignore[attr-defined]  # it has keys

    def is_transient(self, error: Exception) -> bool:
        """As `View.is_transient`."""
        return isinstance(error, ViewLockedError) or self.inner.is_transient(error)

    def close(self) -> None:
        """As `View.close`."""
        self.inner.close()

    def _check(self) -> None:
        if self.locked:
            raise ViewLockedError("the database of the view is locked")


def watched(view: View[Any], applied: Callable[[int, int], None]) -> WatchedView:
    """The view, watched, under the name of its own class: errors tell that name."""
    return cast(WatchedView, type(type(view).__name__, (WatchedView,), {})(view, applied))
