"""The view in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, TypeVar

from waltz_core.base.errors import ViewRegressedError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.keys import KeyEntry, KeyTable
from waltz_trio.client.arguments import mark as mark_of
from waltz_trio.client.arguments import whole
from waltz_trio.client.states import Journal, can_be_wrapped, wrapped
from waltz_trio.client.values import Batch, Transaction
from waltz_trio.client.views import (
    ApplyError,
    Keys,
    TogetherError,
    call_apply,
    check_apply,
    check_keys,
    check_seed,
    checked_key,
    to_apply,
    warn_together,
)

S = TypeVar("S")


class DictView(Generic[S]):
    """State in memory: `apply(txn, state)` changes `state`, a dict unless given.

    Nothing is kept across restarts, so every partition is read from its start. `decide` functions get the state
    read-only. Where the state is a dict, a list or a set, a transaction that cannot be applied changes nothing of it.
    With `keys` it remembers idempotency keys. `apply_many(txns, state)` does the same as `apply` with each of several.

    Raises:
        TypeError: the state is a class, or of a class whose own methods would be passed over; or an argument is no
            function.
    """

    threaded = False

    def __init__(
        self,
        apply: Callable[[Transaction, S], None],
        state: S | None = None,
        *,
        apply_many: Callable[[Sequence[Transaction], S], None] | None = None,
        keys: Keys | None = None,
    ) -> None:
        check_apply(apply, apply_many)
        check_keys(keys)
        if isinstance(state, type):
            raise TypeError(f"state: expected a state, found the class {state.__name__}; write {state.__name__}()")
        self.keys = keys
        self._tables: dict[int, KeyTable] = {}
        self.state: Any = {} if state is None else state
        if not can_be_wrapped(self.state) and apply_many is not None:
            raise TypeError(
                f"apply_many needs a state that can be put back when it fails: a dict, a list or a set, not "
                f"{type(self.state).__name__}"
            )
        self.marks: dict[int, int] = {}
        self._apply = apply
        self.apply_many = apply_many
        self._torn: ApplyError | None = None  # what left the state half changed

    def seed(self, partition: int, mark: int) -> None:
        """Begin behind `mark`; the state must be that of this mark."""
        check_seed(self.keys)
        self.marks[whole(partition, "a partition")] = mark_of(mark, "mark")

    def load_mark(self, partition: int) -> int:
        """-1, or the seeded mark."""
        return self.marks.setdefault(partition, -1)

    def commit(self, batch: Batch) -> int:
        """Apply one transaction after the other, each as a whole or not at all; errors as `View.commit`."""
        journal = Journal()
        state = wrapped(self.state, journal)
        failed = None if self.apply_many is None else self._commit_together(batch, state, journal)
        mark = self.marks[batch.partition]
        for transaction in batch:
            if transaction.id <= mark:
                continue
            if transaction.id != mark + 1:
                raise ViewRegressedError(batch.partition, mark, transaction.id - 1)
            self._check_whole()
            key = self._apply_one(transaction, state, journal) if transaction.header != MARKER_HEADER else None
            self._applied(transaction, key)
            mark = transaction.id
        if failed is not None:
            warn_together(failed)
        return mark

    def read(
        self,
        partition: int,
        decide: Callable[[S], Any] | Callable[Concatenate[S, ...], Any],
        args: tuple[Any, ...],
    ) -> tuple[Any, int]:
        """`decide(state, *args)`; a dict, a list or a set cannot be changed by it."""
        self._check_whole()
        return decide(wrapped(self.state, None), *args), self.marks[partition]

    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        """As `KeyedView.find_key`."""
        return self._table(partition).find(key, self.marks[partition])

    def is_transient(self, error: Exception) -> bool:
        """Never: there is nothing to wait for."""
        return False

    def close(self) -> None:
        """Nothing to give up."""

    def _table(self, partition: int) -> KeyTable:
        assert self.keys is not None
        table = self._tables.get(partition)
        if table is None:
            table = self._tables[partition] = KeyTable(self.keys.window)
        return table

    def _applied(self, transaction: Transaction, key: tuple[str, bytes] | None) -> None:
        if self.keys is not None:
            self._table(transaction.partition).apply(transaction.id, *(key or (None,)))
        self.marks[transaction.partition] = transaction.id

    def _commit_together(self, batch: Batch, state: Any, journal: Journal) -> TogetherError | None:
        """Apply what is new by `apply_many`, or nothing; gives why not, where it failed."""
        assert self.apply_many is not None
        mark = self.marks[batch.partition]
        run = to_apply(batch, mark)
        if len(run) < 2 or batch.first_id > mark + 1 or self._torn is not None:
            return None
        try:
            keys = {} if self.keys is None else {each.id: checked_key(self.keys, each) for each in run}
        except ApplyError:
            return None  # one at a time, what comes before it is kept
        try:
            call_apply(self.apply_many, run, state)
        except BaseException as error:
            self._take_back(journal, run[0], error)
            if not isinstance(error, Exception):
                raise
            failed = TogetherError(run)
            failed.__cause__ = error
            return failed
        journal.forget()
        for transaction in batch:
            if transaction.id > mark:
                self._applied(transaction, keys.get(transaction.id))
        return None

    def _apply_one(self, transaction: Transaction, state: Any, journal: Journal) -> tuple[str, bytes] | None:
        """Apply it; gives its key."""
        key = None if self.keys is None else checked_key(self.keys, transaction)
        try:
            call_apply(self._apply, transaction, state)
        except BaseException as error:
            failed = self._take_back(journal, transaction, error)
            if isinstance(error, Exception):
                raise failed from error
            raise
        journal.forget()
        return key

    def _take_back(self, journal: Journal, transaction: Transaction, error: BaseException) -> ApplyError:
        """Undo what it has changed; the state is never used again where that cannot be done."""
        failed = ApplyError(transaction)
        failed.__cause__ = error
        if not journal.take_back() or not can_be_wrapped(self.state):
            self._torn = failed
        return failed

    def _check_whole(self) -> None:
        if self._torn is not None:
            error = ApplyError(self._torn.transaction)
            error.add_note(
                f"the state is half changed, and cannot be put back: {type(self.state).__name__} is no dict, list or "
                "set, or holds what cannot be copied"
            )
            raise error from self._torn.__cause__
