"""Which transaction took which lock last, exactly, as far back as memory is granted: why an append was refused.

The table of hashed slots (`table.py`) decides about appends; it can only say that some lock of a slot was taken. Here
are the takings themselves, so that a refusal can name the transaction, and a needless one be known from a conflict.
Committed takings go in, blocks of them in the order of the log; the oldest block goes when memory is full, and `floor`
rises. Nothing is asked before a refusal, so an append that is accepted pays for one copy of its hashes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from struct import Struct

from waltz_core.base.lock import Conflict, LockKind
from waltz_core.base.record import record

_HASH = Struct("=i").pack
_HASH_SIZE = 4
_BLOCK = 4096  # takings


class _Block:
    """Takings in the order of the log; of a full one that was searched, `ordered` are its hashes by size."""

    __slots__ = ("full", "hashes", "ids", "ordered")

    def __init__(self) -> None:
        self.full = False
        self.hashes = array("i")
        self.ids = array("q")
        self.ordered: array[int] | None = None

    def newest(self, lock_hash: int, upper: int) -> int:
        """The newest transaction up to `upper` that took the lock, -1 if none did."""
        if self.full:
            ordered = self.ordered
            if ordered is None:
                ordered = self.ordered = array("i", sorted(self.hashes))
            at = bisect_left(ordered, lock_hash)
            if at == len(ordered) or ordered[at] != lock_hash:
                return -1
        # Searched as bytes, which is a hundred times faster than number by number; only whole numbers count.
        body, wanted = self.hashes.tobytes(), _HASH(lock_hash)
        end = bisect_right(self.ids, upper) * _HASH_SIZE
        at = body.rfind(wanted, 0, end)
        while at >= 0 and at % _HASH_SIZE:
            at = body.rfind(wanted, 0, at + _HASH_SIZE - 1)
        return self.ids[at // _HASH_SIZE] if at >= 0 else -1


class ExactLocks:
    """The newest takings of locks, 12 to 16 bytes each. To note one costs next to nothing; they are searched only when
    an append was refused, in time that grows with the blocks behind its client mark.

    Every taking behind `floor` is here: at least `capacity` of them, where there were as many, and a block more.
    """

    __slots__ = ("_blocks", "_blocks_max", "floor")

    def __init__(self, capacity: int, mark: int) -> None:
        self._blocks_max = -(-capacity // _BLOCK) + 1
        self.reset(mark)

    def reset(self, mark: int) -> None:
        """Forget everything: what was taken up to `mark` is not known."""
        self._blocks = deque([_Block()])
        self.floor = mark

    def took(self, hashes: Sequence[int], ids: Sequence[int]) -> None:
        """Committed transactions took these locks; ids never go down."""
        block = self._blocks[-1]
        block.hashes.extend(hashes)
        block.ids.extend(ids)
        if len(block.ids) >= _BLOCK:
            block.full = True
            self._blocks.append(_Block())
            if len(self._blocks) > self._blocks_max:
                self.floor = self._blocks.popleft().ids[-1]

    def newest(self, lock_hash: int, above: int, upper: int) -> int:
        """The newest transaction above `above`, up to `upper`, that took the lock; -1 if none is known."""
        for block in reversed(self._blocks):
            if not block.ids:
                continue
            if block.ids[-1] <= above:
                break
            found = block.newest(lock_hash, upper)
            if found >= 0:
                return found if found > above else -1
        return -1


@record
class Explanation:
    """Why the lock check refused an append: the lock with the highest bound, and what is known about it."""

    kind: LockKind
    index: int
    lock_hash: int
    conflict: Conflict
    blocking_id: int


UNEXPLAINED = Explanation(LockKind.NONE, -1, 0, Conflict.UNKNOWN, -1)
"""Of a refusal that has nothing to do with locks."""
