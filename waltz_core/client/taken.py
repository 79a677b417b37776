"""Which locks this process knows to be taken by transactions that the states of its decisions do not hold yet.

An append whose decision depends on such a lock, and was made on an older state, is refused for certain: the server
knows of the transaction, too. So it need not be sent. What is not known here is the server's to find; to forget
something costs a refusal and nothing else. So a transaction is forgotten once a decision has seen it (states of
decisions hardly ever go back), and what is kept is bounded, for a view that lags far behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from waltz_core.client.gate import DEPENDS, TAKES

_KEPT = 65_536  # transactions


class TakenLocks:
    """Lock hash → the last transaction known to have taken it, until a decision has seen that."""

    __slots__ = ("_by", "_order")

    def __init__(self) -> None:
        self._by: dict[int, int] = {}
        self._order: deque[tuple[int, Mapping[int, int]]] = deque()  # as they became known

    def add(self, transaction_id: int, modes: Mapping[int, int]) -> None:
        """A transaction is committed, and has used locks so."""
        takes = False
        for value, mode in modes.items():
            if mode & TAKES:
                takes = True
                if self._by.get(value, -1) < transaction_id:
                    self._by[value] = transaction_id
        if not takes:
            return
        self._order.append((transaction_id, modes))
        if len(self._order) > _KEPT:
            self._forget_first()

    def seen(self, mark: int) -> None:
        """A state of this mark was decided on."""
        order = self._order
        while order and order[0][0] <= mark:
            self._forget_first()

    def last(self, modes: Mapping[int, int]) -> int:
        """The last transaction known to have taken a lock that these depend on; -1: none."""
        last = -1
        if self._by:
            for value, mode in modes.items():
                if mode & DEPENDS:
                    last = max(last, self._by.get(value, -1))
        return last

    def _forget_first(self) -> None:
        transaction_id, modes = self._order.popleft()
        for value in modes:
            if self._by.get(value) == transaction_id:
                del self._by[value]

    def __len__(self) -> int:
        """How many locks are known."""
        return len(self._by)
