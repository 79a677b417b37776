"""Lock hashes and their slots."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.vectors.reading import Fields, Unit, lines
from waltz_core.base.lock import Lock, id_hash, name_hash
from waltz_core.locks.table import LockTable

_SLOTS = "table_slots_"  # and the size of the table


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        yield Unit(name, [line], partial(_check, line))


def _check(line: Fields) -> frozenset[str]:
    lock = Lock(line["lock_name"], line["lock_id"])
    assert name_hash(lock.name) == line["name_hash"]
    assert id_hash(lock.id) == line["id_hash"]
    assert lock.wire() == line["hash"]
    sizes = [int(name.removeprefix(_SLOTS)) for name in line if name.startswith(_SLOTS)]
    for size in sizes:
        slots = line[f"{_SLOTS}{size}"]
        assert list(LockTable(size, len(slots), -1).slots(lock.wire())) == slots
    return frozenset()
