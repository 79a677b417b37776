"""Which transaction took which lock last, exactly, as far back as memory is granted: why an append was refused.

The table of hashed slots (`table.py`) decides about appends; it can only say that some lock of a slot was taken. Here
are the takings themselves, so that a refusal can name the transaction, and a needless one be known from a conflict.
Committed takings go in, blocks of them in the order of the log; the oldest block goes when memory is full, and `floor`
rises. Nothing is asked before a refusal, so an append that is accepted pays for one copy of its hashes.

A search that finds nothing takes time that grows with what is remembered, a millisecond and more, and whoever likes can
have appends refused. So searches are paid for from an allowance: a sixth of the time is for them, and who would need
more is told that the server does not know.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import TypeAlias

from waltz_core.base.lock import Conflict, LockKind
from waltz_core.base.record import record
from waltz_core.base.turns import Allowance

_HASH = Struct("=i").pack
_HASH_SIZE = 4
_BLOCK = 4096  # takings
# The allowance for searches, in microseconds, about.
_SEARCHED_PER_MS = 160  # a sixth of the time
_SEARCHED_MAX = 2_000  # saved: one through everything that is remembered by default
_TAKINGS = 700  # that are searched per microsecond
_LOOKS = 4  # places in it with the same bytes, per microsecond

Suspect: TypeAlias = tuple[int, LockKind, int, int]
"""Bound, kind, index and hash of a lock that may have been taken behind a client mark."""


class _Block:
    """Takings in the order of the log; of a full one, the hashes are in `body`."""

    __slots__ = ("body", "hashes", "ids")

    def __init__(self) -> None:
        self.body = b""
        self.hashes = array("i")
        self.ids = array("q")

    def close(self) -> None:
        """It is full."""
        self.body = self.hashes.tobytes()
        self.hashes = array("i")

    def newest(self, lock_hash: int, upper: int) -> tuple[int, int]:
        """The newest transaction up to `upper` that took the lock, -1 if none did; and how much it cost to know."""
        # Searched as bytes, which is a hundred times faster than number by number; only whole numbers count.
        body, wanted, looks = self.body or self.hashes.tobytes(), _HASH(lock_hash), 0
        end = bisect_right(self.ids, upper) * _HASH_SIZE
        at = body.rfind(wanted, 0, end)
        while at >= 0 and at % _HASH_SIZE:
            at = body.rfind(wanted, 0, at + _HASH_SIZE - 1)
            looks += 1
        cost = 1 + len(self.ids) // _TAKINGS + looks // _LOOKS
        return self.ids[at // _HASH_SIZE] if at >= 0 else -1, cost


class ExactLocks:
    """The newest takings of locks, 12 bytes each. To note one costs next to nothing; they are searched only when
    an append was refused, in time that grows with the blocks behind its client mark, as far as `allowance` lasts.

    Every taking behind `floor` is here: at least `capacity` of them, where there were as many, and a block more, which
    holds what one batch took where that is much.
    """

    __slots__ = ("_blocks", "_capacity", "_size", "allowance", "floor")

    def __init__(self, capacity: int, mark: int) -> None:
        self._capacity = capacity
        self.allowance = Allowance(_SEARCHED_PER_MS, _SEARCHED_MAX)
        self.reset(mark)

    def reset(self, mark: int) -> None:
        """Forget everything: what was taken up to `mark` is not known."""
        self._blocks = deque([_Block()])
        self._size = 0
        self.floor = mark

    def took(self, hashes: Sequence[int], ids: Sequence[int]) -> None:
        """Committed transactions took these locks; ids never go down."""
        block = self._blocks[-1]
        block.hashes.extend(hashes)
        block.ids.extend(ids)
        self._size += len(ids)
        if len(block.ids) >= _BLOCK:
            block.close()
            self._blocks.append(_Block())
            # By their number, not by that of blocks: one is as large as what a batch took.
            while len(self._blocks) > 1 and self._size - len(self._blocks[0].ids) >= self._capacity:
                self._size -= len(self._blocks[0].ids)
                self.floor = self._blocks.popleft().ids[-1]

    def newest(self, lock_hash: int, above: int, upper: int) -> int | None:
        """The newest transaction above `above`, up to `upper`, that took the lock; -1 if none is known.

        None: to find it would cost more than is allowed now.
        """
        for block in reversed(self._blocks):
            if not block.ids:
                continue
            if block.ids[-1] <= above:
                break
            if self.allowance.left <= 0:
                return None
            taker, cost = block.newest(lock_hash, upper)
            self.allowance.left -= cost
            if taker >= 0:
                return taker if taker > above else -1
        return -1

    def explain(self, suspects: Sequence[Suspect], taken: Mapping[int, int], above: int) -> Explanation:
        """Which lock was taken behind `above`, and by whom: of several, the one with the highest bound.

        Where none was, or none is known, it is the lock with the highest bound of all.

        Args:
            suspects: locks with bounds above it.
            taken: lock hash → the last append in flight that takes it.
            above: a client mark.
        """
        suspects = sorted(suspects, key=lambda suspect: -suspect[0])
        conflict = Conflict.FALSE if above >= self.floor else Conflict.UNKNOWN
        for bound, kind, index, lock_hash in suspects:
            taker: int | None = taken.get(lock_hash, -1)
            if taker is not None and taker <= above:
                taker = self.newest(lock_hash, above, bound)
            if taker is None:
                conflict = Conflict.UNKNOWN
                break
            if taker > above:
                return Explanation(kind, index, lock_hash, Conflict.TRUE, taker)
        if not suspects:
            return UNEXPLAINED
        return Explanation(*suspects[0][1:], conflict, -1)


@record
class Explanation:
    """Why the lock check refused an append: one of its locks, and what is known about it."""

    kind: LockKind
    index: int
    lock_hash: int
    conflict: Conflict
    blocking_id: int


UNEXPLAINED = Explanation(LockKind.NONE, -1, 0, Conflict.UNKNOWN, -1)
"""Of a refusal that has nothing to do with locks."""
