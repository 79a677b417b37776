"""Lock hashes and their slots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.vectors.reading import Fields, Unit, lines
from waltz_core.base.lock import Lock, id_hash, name_hash
from waltz_core.locks.table import LockTable


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        yield Unit(name, [line], lambda line=line: _check(line))


def _check(line: Fields) -> frozenset[str]:
    lock = Lock(line["lock_name"], line["lock_id"])
    assert name_hash(lock.name) == line["name_hash"]
    assert id_hash(lock.id) == line["id_hash"]
    assert lock.wire() == line["hash"]
    for size in (30000, 997):
        assert list(LockTable(size, 3, -1).slots(lock.wire())) == line[f"table_slots_{size}"]
    return frozenset()
