"""Each check of idempotency keys finds a view that is wrong in just that; `test_conformance` runs them on ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import waltz_trio as waltz
from tests.views.cases import dict_case, sqlite_case
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.keys import KeyEntry, KeyTable, is_kept
from waltz_testing import ViewCase, view_checks
from waltz_testing.view_keys import KEY_CHECKS
from waltz_trio.client.key_tables import PUT_KEY, KeyRow, KeyTables
from waltz_trio.client.sql_identity import Identity

DictView = waltz.DictView[Any]

# ---- views in memory ---------------------------------------------------------------------------------


class HashForgotten(DictView):
    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        entry = super().find_key(state, partition, key)
        return entry and KeyEntry(entry.transaction_id, b"")


class CapitalsEqual(DictView):
    def _table(self, partition: int) -> KeyTable:
        class Folded(KeyTable):
            def apply(self, transaction_id: int, key: str | None, request_hash: bytes = b"") -> None:
                super().apply(transaction_id, key and key.casefold(), request_hash)

            def find(self, key: str, mark: int) -> KeyEntry | None:
                return super().find(key.casefold(), mark)

        assert self.keys is not None
        return self._tables.setdefault(partition, Folded(self.keys.window))


class PartitionsTogether(DictView):
    def _table(self, partition: int) -> KeyTable:
        return super()._table(0)


class MarkersLoaded(DictView):
    def commit(self, batch: waltz.Batch) -> int:
        mark = super().commit(batch)
        assert self.keys is not None
        for txn in batch:
            key = self.keys.of(txn) if txn.header == MARKER_HEADER else None
            if key is not None:
                self._table(batch.partition).apply(txn.id, *key)
        return mark


class KeysFirst(DictView):
    def commit(self, batch: waltz.Batch) -> int:
        assert self.keys is not None
        for txn in batch:
            self._table(batch.partition).apply(txn.id, *(self.keys.of(txn) or (None,)))
        return super().commit(batch)


class UnreadableIgnored(DictView):
    def __init__(self, apply: Any, *, keys: waltz.Keys) -> None:
        class Lenient(waltz.Keys):
            def of(self, transaction: waltz.Transaction) -> tuple[str, bytes] | None:
                try:
                    return super().of(transaction)
                except Exception:
                    return None

        super().__init__(apply, keys=Lenient(keys._key_of, window=keys.window))


def with_table(table: type[KeyTable]) -> type[DictView]:
    class WithTable(DictView):
        def _table(self, partition: int) -> KeyTable:
            assert self.keys is not None
            return self._tables.setdefault(partition, table(self.keys.window))

    return WithTable


class LastCounts(KeyTable):
    def apply(self, transaction_id: int, key: str | None, request_hash: bytes = b"") -> None:
        if key is not None:
            self._entries.pop(key, None)
        super().apply(transaction_id, key, request_hash)


class OneTooLong(KeyTable):
    def find(self, key: str, mark: int) -> KeyEntry | None:
        return super().find(key, mark - 1)


class NeverAgain(KeyTable):
    def apply(self, transaction_id: int, key: str | None, request_hash: bytes = b"") -> None:
        if key is not None:
            self._entries.setdefault(key, KeyEntry(transaction_id, request_hash))


class WindowOfTheBatch(DictView):
    def commit(self, batch: waltz.Batch) -> int:
        table = self._table(batch.partition)
        for key, entry in list(table._entries.items()):
            if not is_kept(entry.transaction_id, batch.last_id, table.window):
                del table._entries[key]
        return super().commit(batch)


class KeysOfWholeBatches(DictView):
    def commit(self, batch: waltz.Batch) -> int:
        keys = self.keys
        if batch.first_id <= self.marks[batch.partition]:
            self.keys = None
        try:
            return super().commit(batch)
        finally:
            self.keys = keys


# ---- views in a database -----------------------------------------------------------------------------


class InMemory(waltz.SqliteView):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.found: dict[str, KeyEntry] = {}

    def _store_keys(self, cursor: Any, partition: int, expected: int, mark: int, rows: list[KeyRow]) -> None:
        for _, key, transaction_id, hashed in rows:
            self.found.setdefault(key, KeyEntry(transaction_id, bytes.fromhex(hashed)))
        super()._store_keys(cursor, partition, expected, mark, [])

    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        return self.found.get(key)


class SnapshotOfItsOwn(waltz.SqliteView):
    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        with self._session(reads=True) as session, session.transaction() as cursor:
            return super().find_key(cursor, partition, key)


class IdentityOfAnybody(Identity):
    def _check_keyless(self, cursor: Any) -> None:
        pass


class KeylessWelcome(waltz.SqliteView):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._identity = IdentityOfAnybody(self)


def with_tables(tables: type[KeyTables]) -> type[waltz.SqliteView]:
    class WithTables(waltz.SqliteView):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            if self.keys is not None:
                self._key_tables = tables(self, self.keys.window, PUT_KEY)

    return WithTables


class TakenUp(KeyTables):
    def begin(self, cursor: Any, partition: int, mark: int) -> bool:
        self._run(
            cursor,
            "INSERT INTO {table}_KEY_MARKS VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            partition,
            mark,
            self._window,
        )
        return super().begin(cursor, partition, mark)


class AnyWindow(KeyTables):
    def begin(self, cursor: Any, partition: int, mark: int) -> bool:
        self._run(cursor, "UPDATE {table}_KEY_MARKS SET KEY_WINDOW = ?", self._window)
        return super().begin(cursor, partition, mark)


class GapOverlooked(waltz.SqliteView):
    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        return self._key_tables.find(state, partition, key)[2]


class GapClosed(KeyTables):
    def begin(self, cursor: Any, partition: int, mark: int) -> bool:
        self._run(cursor, "UPDATE {table}_KEY_MARKS SET HIGH_WATER_MARK = ? WHERE PARTITION_ID = ?", mark, partition)
        return super().begin(cursor, partition, mark)


class KeysLeft(waltz.SqliteView):
    def _run(self, cursor: Any, statement: str, *values: object) -> Any:
        if statement.startswith("DELETE FROM {table}_KEYS") and self.version == 2:
            return cursor
        return super()._run(cursor, statement, *values)


class KeysOfTheFirstVersion(waltz.SqliteView):
    def _store_keys(self, cursor: Any, partition: int, expected: int, mark: int, rows: list[KeyRow]) -> None:
        super()._store_keys(cursor, partition, expected, mark, rows if self.version == 1 else [])


MEMORY: dict[str, type[DictView]] = {
    "a_key_is_found_with_its_transaction_and_the_hash_of_its_request": HashForgotten,
    "keys_that_differ_in_a_byte_are_apart": CapitalsEqual,
    "keys_of_partitions_are_apart": PartitionsTogether,
    "markers_carry_no_keys": MarkersLoaded,
    "keys_are_stored_in_the_transaction_of_the_data": KeysFirst,
    "a_transaction_whose_key_cannot_be_read_is_named": UnreadableIgnored,
    "the_first_of_several_transactions_with_one_key_counts": with_table(LastCounts),
    "a_key_is_kept_until_its_window_has_passed": with_table(OneTooLong),
    "a_key_may_be_used_again_behind_its_window": with_table(NeverAgain),
    "what_is_remembered_does_not_depend_on_batches": WindowOfTheBatch,
    "what_is_applied_already_keeps_its_keys": KeysOfWholeBatches,
}
DATABASE: dict[str, type[waltz.SqliteView]] = {
    "an_opened_view_remembers_its_keys": InMemory,
    "members_share_their_keys": InMemory,
    "a_key_is_looked_for_in_the_snapshot_that_decides": SnapshotOfItsOwn,
    "a_member_without_keys_is_refused": KeylessWelcome,
    "keys_are_not_taken_up_in_the_middle_of_a_log": with_tables(TakenUp),
    "a_member_with_another_window_is_refused": with_tables(AnyWindow),
    "a_gap_that_another_program_left_stops_looking_for_keys": GapOverlooked,
    "a_gap_that_another_program_left_stops_the_view": with_tables(GapClosed),
    "a_view_made_anew_remembers_what_the_log_says": KeysLeft,
    "a_view_made_anew_takes_up_keys": KeysOfTheFirstVersion,
}
CHECKS: dict[str, Callable[[ViewCase], None]] = {check.__name__: check for check in KEY_CHECKS.of(None)}


def of_class(case: ViewCase, cls: Any) -> ViewCase:
    """The case with views of another class, on the database of the first."""

    def of(maker: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any) -> Any:
            view = maker(*args)
            if isinstance(view, waltz.DictView):
                return cls(view._apply, keys=view.keys)
            options = {"schema": view._schema, "name": view.name, "keys": view.keys, "version": view.version}
            return cls(view.path, view._apply, **options, rebuild=view._rebuild)

        return make

    assert case.open_keyed is not None
    rebuild = case.rebuild_keyed and of(case.rebuild_keyed)
    return attrs.evolve(case, open=of(case.open), open_keyed=of(case.open_keyed), rebuild_keyed=rebuild)


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[str], ViewCase]:
    """Makes the case of a planted view, by the check that must find it."""
    count = 0

    def make(name: str) -> ViewCase:
        nonlocal count
        if name in MEMORY:
            return of_class(dict_case(), MEMORY[name])
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        return of_class(sqlite_case(folder), DATABASE[name])

    return make


@pytest.mark.parametrize("name", [*MEMORY, *DATABASE])
def test_a_planted_wrong_view_is_found(name: str, fresh: Callable[[str], ViewCase]) -> None:
    with pytest.raises(AssertionError):
        CHECKS[name](fresh(name))
    others = [check for check in KEY_CHECKS.of(fresh(name)) if check.__name__ != name]
    assert any(passes(check, fresh(name)) for check in others), "what is wrong with it is more than planted"


def passes(check: Callable[[ViewCase], None], case: ViewCase) -> bool:
    try:
        check(case)
    except Exception:
        return False
    return True


def test_every_check_of_keys_has_a_planted_view() -> None:
    assert CHECKS.keys() == MEMORY.keys() | DATABASE.keys()


def test_checks_of_keys_are_left_out_for_a_view_without_them() -> None:
    case = attrs.evolve(dict_case(), open_keyed=None)
    assert not set(KEY_CHECKS.of(None)) & set(view_checks(case))
    assert set(MEMORY) == {check.__name__ for check in view_checks(dict_case())} & CHECKS.keys()
