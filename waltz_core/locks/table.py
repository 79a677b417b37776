"""The table of hashed locks: for every slot, the id of the last commit under it.

    lock hash ──▶ three slots ──▶ the smallest of their marks ──▶ above the client's mark: refused

Each lock has several slots, and its estimate is the smallest of their marks, so a stranger's commit refuses an append
only if strangers share all of its slots. An estimate is never too low. A table that begins at a mark takes every lock
as taken there, which refuses clients that are behind the mark and nobody else. Locks of appends in flight are not in
here: they belong to the `Appender`, in `taken`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

from waltz_core.base.lock import signed
from waltz_core.base.log import RECORD_OVERHEAD
from waltz_core.base.twins import twin

# Java: Locks chains this linear congruential generator to get the slots of a hash.
_MULTIPLIER = 1103515245
_INCREMENT = 12345
_SLOT_MASK = 0x3FFFFFFF
_PROBES = 3  # of the tables that are written to by runs


def lcg_chain(lock_hash: int, probes: int) -> tuple[int, ...]:
    """The values whose low 30 bits, modulo the table size, are the slots of `lock_hash`."""
    values = []
    value = lock_hash
    for _ in range(probes):
        value = signed(value * _MULTIPLIER + _INCREMENT)
        values.append(value)
    return tuple(values)


class TakesLocks(Protocol):
    """What the lock check must know of an append."""

    @property
    def client_mark(self) -> int: ...

    @property
    def write_locks(self) -> tuple[int, ...] | None: ...

    @property
    def read_locks(self) -> tuple[int, ...] | None: ...

    @property
    def append_locks(self) -> tuple[int, ...] | None: ...

    @property
    def data(self) -> bytes: ...


@twin
def take_run(
    marks: array[int],
    taken: dict[int, int],
    requests: Sequence[TakesLocks],
    at: int,
    end: int,
    known: int,
    room: int,
    transaction_id: int,
) -> tuple[int, int, bool]:
    """Take appends from `at` on, with their locks, up to one that must be refused, or looked at more closely.

    Args:
        marks: of a table with three probes.
        taken: lock hash → the last append in flight that takes it; those of these appends are added.
        known: an append with a mark above it ends the run.
        room: bytes of records that may begin.
        transaction_id: of the append at `at`.

    Returns:
        Where the run ends, the bytes of its records, and whether any append of it has locks.
    """
    used, locked, size = 0, False, len(marks)
    while at < end and used < room:
        request = requests[at]
        client_mark = request.client_mark
        if client_mark > known or client_mark < -1:
            break
        write, read, append = request.write_locks or (), request.read_locks or (), request.append_locks or ()
        if write or read or append:
            mark = -1
            for lock_hash in (*write, *read) if read else write:
                # As `LockTable.slots`, unrolled: no step of the chain carries anything into its low 30 bits.
                value = (lock_hash * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
                bound = marks[value % size]
                value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
                bound = min(bound, marks[value % size])
                value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
                mark = max(mark, min(bound, marks[value % size]), taken.get(lock_hash, -1))
            if mark > client_mark:
                break
            for lock_hash in (*write, *append) if append else write:
                taken[lock_hash] = transaction_id
            locked = True
        used += len(request.data) + RECORD_OVERHEAD
        at += 1
        transaction_id += 1
    return at, used, locked


@twin
def release_run(
    marks: array[int],
    taken: dict[int, int],
    requests: Iterable[TakesLocks],
    first: int,
    hashes: list[int],
    ids: list[int],
) -> None:
    """Record the commits `first`, `first + 1`, … in a table with three probes, and let go of their locks.

    What each took is appended to `hashes` and `ids`.
    """
    size = len(marks)
    for transaction_id, request in enumerate(requests, start=first):
        write, append = request.write_locks or (), request.append_locks or ()
        if not write and not append:
            continue
        for lock_hash in (*write, *append) if append else write:
            value = (lock_hash * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
            marks[value % size] = transaction_id
            value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
            marks[value % size] = transaction_id
            value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
            marks[value % size] = transaction_id
            hashes.append(lock_hash)
            ids.append(transaction_id)
            if taken.get(lock_hash) == transaction_id:
                del taken[lock_hash]


class LockTable:
    """For every slot the id of the last commit under it.

    An estimate is never below the last commit under a lock, provided the table saw every commit
    since it was made; it may be above (slots are shared), which only causes false refusals.
    """

    __slots__ = ("_mark", "_marks", "_probes", "_size")

    def __init__(self, size: int, probes: int, mark: int) -> None:
        assert size > 0
        assert probes > 0
        self._size = size
        self._probes = probes
        self.reset(mark)

    def take_run(
        self,
        taken: dict[int, int],
        requests: Sequence[TakesLocks],
        at: int,
        end: int,
        known: int,
        room: int,
        transaction_id: int,
    ) -> tuple[int, int, bool]:
        """See the function."""
        assert self._probes == _PROBES
        return take_run(self._table(), taken, requests, at, end, known, room, transaction_id)

    def commit_run(
        self, taken: dict[int, int], requests: Sequence[TakesLocks], first: int, hashes: list[int], ids: list[int]
    ) -> None:
        """See `release_run`."""
        assert self._probes == _PROBES
        release_run(self._table(), taken, requests, first, hashes, ids)

    def reset(self, mark: int) -> None:
        """Forget everything: every slot was last committed at `mark`."""
        self._mark = mark
        self._marks: array[int] | None = None

    def _table(self) -> array[int]:
        """Made when it is first needed: of the partitions of a server most may be idle, and a table takes 240 KB."""
        marks = self._marks
        if marks is None:
            marks = self._marks = array("q", [self._mark]) * self._size
        return marks

    def slots(self, lock_hash: int) -> tuple[int, ...]:
        """Slots of a hash; may coincide."""
        size = self._size
        return tuple([(value & _SLOT_MASK) % size for value in lcg_chain(lock_hash, self._probes)])

    def estimate(self, write: Sequence[int], read: Sequence[int]) -> int:
        """Upper bound of the last commit under any of the locks; -1 when there are none."""
        highest = -1
        marks, size = self._table(), self._size
        if self._probes != 3:
            for lock_hash in chain(write, read):
                highest = max(highest, min([marks[slot] for slot in self.slots(lock_hash)]))
            return highest
        for lock_hash in (*write, *read) if read else write:
            # `slots`, unrolled: no step of the chain carries anything into its low 30 bits from above them.
            value = (lock_hash * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
            mark = marks[value % size]
            if mark > highest:
                value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
                other = marks[value % size]
                if other < mark:
                    mark = other
                value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
                other = marks[value % size]
                if other < mark:
                    mark = other
                if mark > highest:
                    highest = mark
        return highest

    def commit(self, write: Sequence[int], append: Sequence[int], transaction_id: int) -> None:
        """Record a commit under `write` and `append`."""
        marks, size = self._table(), self._size
        if self._probes != 3:
            for lock_hash in chain(write, append):
                for slot in self.slots(lock_hash):
                    marks[slot] = transaction_id
            return
        for lock_hash in (*write, *append) if append else write:
            value = (lock_hash * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
            marks[value % size] = transaction_id
            value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
            marks[value % size] = transaction_id
            value = (value * _MULTIPLIER + _INCREMENT) & _SLOT_MASK
            marks[value % size] = transaction_id

    def marks(self) -> list[int]:
        """The whole table, for tests and diagnosis."""
        return list(self._table())
