"""The lock table of 0.13.2: beside the marks, which slots are held by appends in flight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from waltz_core.locks.table import LockTable


class HeldLockTable(LockTable):
    """A slot is held from the check of an append until it is committed or given up."""

    __slots__ = ("_held", "active")

    def reset(self, mark: int) -> None:
        super().reset(mark)
        self._held = bytearray(self._size)
        self.active = 0  # appends that hold slots

    def begin(self, write: Sequence[int], read: Sequence[int], append: Sequence[int]) -> bool:
        """Hold the slots of `write` and `append`; False, and nothing changed, if any slot is held."""
        held, slots = self._held, self.slots
        for lock_hash in chain(write, read, append):
            for slot in slots(lock_hash):
                if held[slot]:
                    return False
        for lock_hash in chain(write, append):
            for slot in slots(lock_hash):
                held[slot] = 1
        self.active += 1
        return True

    def end(self, write: Sequence[int], append: Sequence[int]) -> None:
        """Let go of the slots that `begin` held."""
        held, slots = self._held, self.slots
        for lock_hash in chain(write, append):
            for slot in slots(lock_hash):
                held[slot] = 0
        self.active -= 1

    def held_slots(self) -> list[int]:
        """Slots held by appends in flight, ascending."""
        return [slot for slot, held in enumerate(self._held) if held]
