"""The server's table of what was last committed under which hash of a lock."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain

from waltz_core.base.lock import signed

# Java: Locks chains this linear congruential generator to get the slots of a hash.
_MULTIPLIER = 1103515245
_INCREMENT = 12345
_SLOT_MASK = 0x3FFFFFFF


def lcg_chain(lock_hash: int, probes: int) -> tuple[int, ...]:
    """The values whose low 30 bits, modulo the table size, are the slots of `lock_hash`."""
    values = []
    value = lock_hash
    for _ in range(probes):
        value = signed(value * _MULTIPLIER + _INCREMENT)
        values.append(value)
    return tuple(values)


class LockTable:
    """For every slot the id of the last commit under it, and whether an append in flight holds it.

    An estimate is never below the last commit under a lock, provided the table saw every commit
    since it was made; it may be above (slots are shared), which only causes false refusals.
    """

    __slots__ = ("_active", "_held", "_marks", "_probes", "_size")

    def __init__(self, size: int, probes: int, mark: int) -> None:
        assert size > 0
        assert probes > 0
        self._size = size
        self._probes = probes
        self.reset(mark)

    @property
    def active(self) -> int:
        """Appends that hold slots or wait for their end."""
        return self._active

    def reset(self, mark: int) -> None:
        """Forget everything: every slot was last committed at `mark`, nothing is held."""
        self._marks = array("q", [mark]) * self._size
        self._held = bytearray(self._size)
        self._active = 0

    def slots(self, lock_hash: int) -> tuple[int, ...]:
        """Slots of a hash; may coincide."""
        size = self._size
        return tuple([(value & _SLOT_MASK) % size for value in lcg_chain(lock_hash, self._probes)])

    def begin(self, write: Sequence[int], read: Sequence[int], append: Sequence[int]) -> bool:
        """Hold the slots of `write` and `append`; False, and nothing changed, if any slot is held.

        Only where `conflicts_in_flight_refused` is off: with it, the appender knows what is in flight by hash.
        """
        held, slots = self._held, self.slots
        for lock_hash in chain(write, read, append):
            for slot in slots(lock_hash):
                if held[slot]:
                    return False
        for lock_hash in chain(write, append):
            for slot in slots(lock_hash):
                held[slot] = 1
        self._active += 1
        return True

    def estimate(self, write: Sequence[int], read: Sequence[int]) -> int:
        """Upper bound of the last commit under any of the locks; -1 when there are none."""
        highest = -1
        marks, size = self._marks, self._size
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
        marks, size = self._marks, self._size
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

    def end(self, write: Sequence[int], append: Sequence[int]) -> None:
        """Let go of the slots that `begin` held."""
        held, slots = self._held, self.slots
        for lock_hash in chain(write, append):
            for slot in slots(lock_hash):
                held[slot] = 0
        self._active -= 1

    def marks(self) -> list[int]:
        """The whole table, for tests and diagnosis."""
        return list(self._marks)

    def held_slots(self) -> list[int]:
        """Slots held by appends in flight, ascending."""
        return [slot for slot, held in enumerate(self._held) if held]
