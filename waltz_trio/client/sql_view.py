"""What views in SQL databases have in common: marks and data in one transaction, and whose the database is.

A database of views holds two tables of ours beside the application's:

| table | holds | known to 0.13.2 |
|---|---|---|
| CLIENT_HIGH_WATER_MARK | partition → the last transaction that is applied | yes: members of both may share it |
| WALTZ_VIEWS | mark table → name, version and tables of the view that it belongs to | no |

Two more are for idempotency keys, see `key_tables.py`.

A batch is one SQL transaction. It moves the mark under the condition that it is where this process left it, which also
locks the row: of several members, the one that comes second waits, and then sees what the first has done. Whose the
database is, is looked at behind that lock, so that a version that is being replaced cannot slip in a last batch.
Before the transaction is committed the mark is read once more: where a database gives up a transaction by itself (a
deadlock), an `apply` that swallowed the error must not go on in the next one.

A batch is first applied together: by `apply_many`, where the application has one, or with statements that are sent
without waiting for each answer, where the driver can do that. Where that fails, it is rolled back, and the batch is
applied one transaction at a time, with an answer to each statement: `apply` sees its own errors, and the transaction
that fails is known. An `apply` that needs its answers, as one that catches errors does, gets them at once from then on,
for many batches; so does one batch after a lost connection, which may have broken by what was sent ahead.

What differs by database is in the sessions: how a transaction begins, how the application's code is kept from ending
it, which errors are worth another try.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Concatenate, TypeVar

from waltz_core.base.errors import ConfigError, StateReadOnlyError, ViewIdentityError, ViewRegressedError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.keys import KeyEntry
from waltz_trio.client.arguments import flag, whole
from waltz_trio.client.arguments import mark as mark_of
from waltz_trio.client.key_tables import KeyRow, KeyTables
from waltz_trio.client.shown import shown
from waltz_trio.client.sql_database import SqlDatabase
from waltz_trio.client.sql_identity import Identity
from waltz_trio.client.sql_sessions import Session, TransactionEndedError, TransactionLostError
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
    name_of,
    to_apply,
    warn_together,
)

TABLE = "CLIENT_HIGH_WATER_MARK"
"""Where marks are kept, as the original's JDBC callbacks lay it out: both can share a database."""

HALF = -2
"""The mark of a partition where a part of a transaction is committed; 0.13.2 applies nothing there either."""

C = TypeVar("C")  # what the application's SQL runs on
T = TypeVar("T")

_PATIENCE_MAX = 86_400  # seconds: drivers count in milliseconds, of 32 bits
_AT_ONCE = 1000  # transactions, while a view catches up from an archive
_DIRECT = 1000  # batches with an answer to each statement, after one that needed them

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?\Z")


def _check_patience(busy_timeout: object) -> float:
    """Seconds to wait for a lock of the database.

    Raises:
        TypeError: no number.
        ValueError: less than 0, or no number of seconds.
    """
    if isinstance(busy_timeout, bool) or not isinstance(busy_timeout, int | float):
        raise TypeError(f"busy_timeout is a number of seconds, found {shown(busy_timeout)}")
    if not 0 <= busy_timeout < _PATIENCE_MAX:
        raise ValueError(f"busy_timeout is from 0 to {_PATIENCE_MAX} seconds, not {busy_timeout}")
    return busy_timeout


def _check_names(schema: str, table: str, name: str | None) -> None:
    for what, text in (("schema", schema), ("table", table), ("name", "a name" if name is None else name)):
        if not isinstance(text, str):
            raise TypeError(f"{what} is a text, found {shown(text)}")
    if name is not None and not name.strip():
        raise ConfigError(f"name={name!r} tells a view from no other: give it one, or leave it out")
    if not _NAME.match(table):
        raise ConfigError(f"{table!r} cannot be the name of a table")


class _CommitRefusedError(Exception):
    """The database takes all statements of a batch, and does not commit them; `__cause__` says why."""


class SqlView(SqlDatabase[C]):
    """A view in an SQL database."""

    threaded = True

    def __init__(
        self,
        where: str,
        apply: Callable[[Transaction, C], None],
        errors: tuple[type[Exception], ...],
        *,
        schema: str,
        table: str,
        busy_timeout: float,
        name: str | None,
        version: int,
        rebuild: bool,
        keys: Keys | None = None,
        apply_many: Callable[[Sequence[Transaction], C], None] | None = None,
    ) -> None:
        """`where` names the database in messages; `errors` are what its driver raises."""
        check_keys(keys)
        _check_names(schema, table, name)
        if flag(rebuild, "rebuild") and not schema.strip():
            raise ConfigError("rebuild=True needs schema=...: it says which tables are made anew")
        if whole(version, "version") < 0:
            raise ConfigError(f"version is at least 0, not {version}")
        check_apply(apply, apply_many)
        super().__init__(where, errors, schema, table, _check_patience(busy_timeout))
        self.name = name_of(apply) if name is None else name
        self.version = version
        self.keys = keys
        self._identity = Identity(self)
        self._key_tables = KeyTables(self, 0 if keys is None else keys.window, self._put_key)
        self._rebuild = rebuild
        self._apply = apply
        self.apply_many = apply_many
        self._marks: dict[int, int] = {}  # what this process has seen stored
        self._direct = 0  # batches from here on, each of whose statements gets its answer at once

    def seed(self, partition: int, mark: int, load: Callable[[C], None]) -> None:
        """Set data and mark together, so that a new view need not begin at the start of the log."""
        self.seed_all({partition: mark}, load)

    def seed_all(self, marks: Mapping[int, int], load: Callable[[C], None]) -> None:
        """Set data and the marks of several partitions in one SQL transaction."""
        check_seed(self.keys)
        if not callable(load):
            raise TypeError(f"load: expected a function of the cursor that loads the data, found {shown(load)}")
        if not isinstance(marks, Mapping):
            raise TypeError(f"marks: expected a mark by partition, such as {{0: 41}}, found {shown(marks)}")
        marks = {whole(partition, "a partition"): mark_of(mark, "mark") for partition, mark in marks.items()}
        with self._session() as session, session.transaction() as cursor:
            self._set_marks(cursor, marks)
            self._identity.check(cursor)
            with self._guarded(session, marks) as theirs:
                load(theirs)
                self._check_open(theirs)
            self._check_marks(cursor, marks)

    def catch_up(self, cut: Mapping[int, int], read: Callable[[int, int], Iterable[Transaction]]) -> dict[int, int]:
        """Apply everything up to the marks of `cut` that is not applied yet, in one SQL transaction.

        Args:
            cut: a mark by partition.
            read: given a partition and a mark, every transaction behind it up to the cut, in order. Called again
                where `apply_many` fails.

        Returns:
            The marks that were stored before, -1 where there was none.

        Raises:
            ApplyError: a transaction cannot be applied; nothing is changed.
            ViewRegressedError: `read` leaves a transaction out.
            ValueError: a partition is already beyond its cut.
        """
        if not isinstance(cut, Mapping):
            raise TypeError(f"cut: expected a mark by partition, such as {{0: 41}}, found {shown(cut)}")
        if not callable(read):
            raise TypeError(f"read: expected a function of a partition and a mark, found {shown(read)}")
        ends = {whole(partition, "a partition"): mark_of(mark, "mark") for partition, mark in cut.items()}
        return self._together_first(lambda together: self._catch_up(ends, read, together))

    def _catch_up(
        self, cut: Mapping[int, int], read: Callable[[int, int], Iterable[Transaction]], together: bool
    ) -> dict[int, int]:
        before = {}
        with self._session() as session, session.transaction() as cursor:
            for partition in cut:
                self._run(cursor, self._add_mark, partition)
                stored = self._mark(cursor, partition, lock=True)
                before[partition] = -1 if stored is None else stored
            self._identity.check(cursor)
            self._set_marks(cursor, cut)  # before anything is applied, or the last look at them would say nothing
            for partition, end in cut.items():
                mark = before[partition]
                if mark > end:
                    raise ValueError(
                        f"partition {partition} of {self._where} is at {mark} already, beyond the cut {end}"
                    )
                rows: list[KeyRow] = []
                with self._guarded(session, cut, together) as theirs:
                    transactions = iter(read(partition, mark) if mark < end else ())
                    while run := list(itertools.islice(transactions, _AT_ONCE)):
                        for transaction in run:
                            if transaction.id != mark + 1:
                                raise ViewRegressedError(partition, mark, transaction.id - 1)
                            mark = transaction.id
                        run = [each for each in run if each.header != MARKER_HEADER]
                        self._apply_run(run, theirs, rows, together)
                        self._key_tables.write(cursor, rows)
                if mark != end:
                    raise ViewRegressedError(partition, mark, end)
                self._store_keys(cursor, partition, before[partition], end, rows)
            self._check_marks(cursor, cut)
        return before

    def load_mark(self, partition: int) -> int:
        """The stored mark; a missing row is created with -1, in a transaction of its own."""
        with self._session() as session, session.transaction() as cursor:
            self._run(cursor, self._add_mark, partition)
            self._identity.check(cursor)
            mark = self._mark(cursor, partition, lock=self.keys is not None)
            assert mark is not None
            if self.keys is not None and not self._key_tables.begin(cursor, partition, mark):
                raise self._without_keys(partition, mark)
        self._marks[partition] = mark
        return mark

    def commit(self, batch: Batch) -> int:
        """One SQL transaction: move the mark under the condition that it is where we think, then apply.

        Where the condition fails, another process has applied some or all of the batch, or the database was
        put back: then nothing is applied (0.13.2 would skip every later transaction without a word).

        A constraint that is looked at with COMMIT alone does not say which transaction breaks it: then each is
        committed by itself, and those before it stay.
        """
        try:
            if len(batch) == 1:
                return self._commit(batch, together=False)
            return self._together_first(lambda together: self._commit(batch, together))
        except _CommitRefusedError as refused:
            if len(batch) == 1:
                raise ApplyError(batch.transactions[0]) from refused.__cause__
        mark = batch.first_id - 1
        for transaction in batch:
            mark = self.commit(Batch(batch.partition, (transaction,)))
        return mark

    def read(
        self, partition: int, decide: Callable[Concatenate[C, ...], Any] | Callable[[C], Any], args: tuple[Any, ...]
    ) -> tuple[Any, int]:
        """`decide(cursor, *args)` and the mark, from one snapshot of the database, which it cannot change.

        Raises:
            StateReadOnlyError: it tried to.
            ViewIdentityError: another version has rebuilt the database.
            ViewRegressedError: the mark went back, or the database is gone.
        """
        expected = self._marks.get(partition, -1)
        with self._session(partition, expected, reads=True) as session, session.transaction() as cursor:
            mark = self._identity.mark(cursor, partition, expected)
            if mark == HALF:
                raise self._half(partition)
            if mark is None or mark < expected:
                raise ViewRegressedError(partition, mark, expected)
            try:
                with session.foreign() as theirs:
                    return decide(theirs, *args), mark
            except self._errors as error:
                if not self._refuses_change(error):
                    raise
                raise StateReadOnlyError(
                    f"SQL given to `decide` or `read` cannot change the view ({error}): return an Append, and change "
                    "the view in `apply`"
                ) from error

    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        """As `KeyedView.find_key`.

        Raises:
            ViewIdentityError: a program that remembers no keys has moved the mark.
        """
        with self._own(state) as cursor:
            mark, key_mark, entry = self._key_tables.find(cursor, partition, key)
        if mark != key_mark:
            raise self._without_keys(partition, mark)
        return entry

    # ---- a batch -------------------------------------------------------------------------------------

    def _together_first(self, work: Callable[[bool], T]) -> T:
        """Do it together, and one transaction at a time if that fails."""
        failed: Exception | None = None
        if self.apply_many is not None or (self._defers and not self._direct):
            try:
                return work(True)
            except Exception as error:
                if isinstance(error.__cause__, TransactionEndedError):
                    raise
                if not isinstance(error, (TogetherError, ApplyError, *self._errors)) or self.is_transient(error):
                    self._direct = max(self._direct, 1)  # what lost the connection may be what was sent ahead
                    raise
                failed = error
        try:
            result = work(False)
        except ViewIdentityError as error:
            raise error from failed  # which has committed a part of a transaction
        self._direct = max(self._direct - 1, 0)
        if isinstance(failed, TogetherError):
            warn_together(failed)
        elif failed is not None:
            self._direct = _DIRECT
        return result

    def _commit(self, batch: Batch, together: bool) -> int:
        applied = False

        def done() -> None:
            nonlocal applied
            applied = True

        try:
            return self._apply_batch(batch, together, done)
        except self._errors as error:
            if not applied or self.is_transient(error):
                raise
            raise _CommitRefusedError from error

    def _apply_batch(self, batch: Batch, together: bool, done: Callable[[], None]) -> int:
        """Calls `done` before it commits."""
        partition, expected = batch.partition, batch.first_id - 1
        with self._session(partition, expected) as session, session.transaction() as cursor:
            move = "UPDATE {table} SET HIGH_WATER_MARK = ? WHERE PARTITION_ID = ? AND HIGH_WATER_MARK = ?"
            moved = self._run(cursor, move, batch.last_id, partition, expected).rowcount == 1
            # A row that did not match is not locked: another version may rebuild the database until it is.
            stored = expected if moved else self._mark(cursor, partition, lock=True)
            self._identity.check(cursor, partition, expected)
            if not moved:
                if stored is None or stored < expected:
                    raise ViewRegressedError(partition, stored, expected)
                if stored >= batch.last_id:
                    self._marks[partition] = stored
                    return stored
                expected = stored
                self._set_marks(cursor, {partition: batch.last_id})
            rows: list[KeyRow] = []
            with self._guarded(session, {partition: batch.last_id}, together) as theirs:
                self._apply_run(to_apply(batch, expected), theirs, rows, together)
            self._store_keys(cursor, partition, expected, batch.last_id, rows)
            self._check_marks(cursor, {partition: batch.last_id})
            done()
        self._marks[partition] = batch.last_id
        return batch.last_id

    def _guarded(
        self, session: Session[C], marks: Mapping[int, int], together: bool = False
    ) -> AbstractContextManager[C]:
        """The application's code runs in a transaction that has moved `marks`.

        That of `apply_many` chooses for itself how it sends its statements.
        """
        return session.foreign(deferred=together and self.apply_many is None)

    def _apply_run(self, run: Sequence[Transaction], cursor: C, rows: list[KeyRow], together: bool) -> None:
        """Apply them, and add their keys to `rows`."""
        if not together or self.apply_many is None or len(run) < 2:
            for transaction in run:
                self._apply_one(transaction, cursor, rows)
            return
        if self.keys is not None:
            for transaction in run:
                self._add_key(self.keys, transaction, rows)
        try:
            call_apply(self.apply_many, run, cursor)
            self._check_open(cursor)
        except Exception as error:
            if self.is_transient(error):
                raise
            raise TogetherError(run) from error

    def _apply_one(self, transaction: Transaction, cursor: C, rows: list[KeyRow]) -> None:
        """Apply it, and add its key to `rows`."""
        if self.keys is not None:
            self._add_key(self.keys, transaction, rows)
        try:
            call_apply(self._apply, transaction, cursor)
            self._check_open(cursor)
        except Exception as error:
            if self.is_transient(error):
                raise
            raise ApplyError(transaction) from error

    @staticmethod
    def _add_key(keys: Keys, transaction: Transaction, rows: list[KeyRow]) -> None:
        key = checked_key(keys, transaction)
        if key is not None:
            rows.append((transaction.partition, key[0], transaction.id, key[1].hex()))

    def _check_open(self, cursor: C) -> None:
        """See that the transaction can still be committed, where the driver knows."""

    # ---- marks ---------------------------------------------------------------------------------------

    def _set_marks(self, cursor: C, marks: Mapping[int, int]) -> None:
        for partition, mark in marks.items():
            self._run(cursor, self._put_mark, partition, mark)

    def _mark(self, cursor: C, partition: int, *, lock: bool = False) -> int | None:
        statement = f"SELECT HIGH_WATER_MARK FROM {self._table} WHERE PARTITION_ID = ?"
        row = self._run(cursor, statement + (self._locked if lock else ""), partition).fetchone()
        if row is not None and row[0] == HALF:
            raise self._half(partition)
        return None if row is None else int(row[0])

    def _check_marks(self, cursor: C, marks: Mapping[int, int]) -> None:
        """See that this is still the transaction that has moved them."""
        for partition, mark in marks.items():
            stored = self._mark(cursor, partition)
            if stored != mark:
                raise TransactionLostError(
                    f"partition {partition}: the database gave up the transaction in the middle, and `apply` or `load` "
                    "caught the error; nothing was committed. Let errors of the database pass"
                )

    def _half(self, partition: int) -> ViewIdentityError:
        return ViewIdentityError(
            self._where,
            f"a part of a transaction of partition {partition}, which a procedure has committed by itself",
            self._identity.text,
            "leave COMMIT and what else ends a transaction out of the procedures that `apply` calls, and build the "
            "view anew: a higher version, and rebuild=True",
        )

    # ---- keys ----------------------------------------------------------------------------------------

    def _store_keys(self, cursor: C, partition: int, expected: int, mark: int, rows: list[KeyRow]) -> None:
        if self.keys is not None and not self._key_tables.store(cursor, partition, expected, mark, rows):
            raise self._without_keys(partition, expected)

    def _without_keys(self, partition: int, mark: int) -> ViewIdentityError:
        assert self.keys is not None
        return ViewIdentityError(
            self._where,
            f"mark {mark} of partition {partition}, but not the keys of the last {self.keys.window} transactions",
            f"{self._identity.text}, which needs them",
            "a program that remembers no keys, or other ones, has applied transactions: stop it, and give this view a "
            "higher version and rebuild=True",
        )
