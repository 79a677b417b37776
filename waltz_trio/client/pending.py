"""Appends that were sent, and their outcomes.

The machine has an append's `Pending` as its token, and hands it back with the outcome. Nobody need wait for it: an
event is made by whoever does. Appends that one call sent together have no `Pending` of their own: `many.py`.
"""

from __future__ import annotations

from typing import Any, Protocol

import trio

from waltz_core.client.calls import Failed
from waltz_core.client.columns import RowLocks
from waltz_trio.client.life import Life
from waltz_trio.client.values import Receipt


class Judge(Protocol):
    """Hears what became of the appends of submits."""

    def committed(self, outcomes: list[tuple[object, int]]) -> None:
        """Appends are in the log: (caller, transaction id) of each, in the order of the log."""

    def failed(self, caller: object, pending: Pending) -> None:
        """An append is not in the log, or nobody knows."""


class Pending:
    """An append that was sent; its outcome is kept whether or not anybody waits."""

    __slots__ = (
        "_caller",
        "_event",
        "_judge",
        "_life",
        "_locks",
        "_outcome",
        "_result",
        "_size",
        "_timing",
        "partition",
    )

    def __init__(self, life: Life, partition: int, size: int, locks: RowLocks, result: Any) -> None:
        self.partition = partition
        self._result = result  # for the receipt
        self._locks = locks
        self._life = life
        self._size = size
        self._outcome: int | Failed | None = None
        self._timing: object = None  # what the instrument knows it by
        self._event: trio.Event | None = None
        self._judge: Judge | None = None  # of a submit's append, until its outcome is known
        self._caller: object = None  # for the judge

    @property
    def done(self) -> bool:
        """The outcome is known; `outcome` returns or raises at once."""
        return self._outcome is not None

    async def outcome(self) -> Receipt:
        """A receipt: the transaction id, and more.

        Raises:
            LockConflictError: refused because of a lock.
            NotCommittedError: lost; it is safe to append again.
            ClientAheadError: the log is behind this client; the outcome is unknown.
            BeforeStartError: history was freed that this client has not seen; likewise.
            ClientClosedError: the client was closed before the outcome was known.
            ClientFailedError: the client broke before the outcome was known.
        """
        if self._outcome is None:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        return self._receipt()

    def _receipt(self) -> Receipt:
        """The outcome, once it is known; errors as `outcome`."""
        outcome = self._outcome
        assert outcome is not None
        if isinstance(outcome, Failed):
            raise self._life.error_of(outcome, self._locks)
        return Receipt(self.partition, outcome, value=self._result)

    def _committed(self, transaction_id: int) -> None:
        self._outcome = transaction_id
        if self._event is not None:
            self._event.set()

    def _failed(self, outcome: Failed) -> None:
        self._outcome = outcome
        if self._event is not None:
            self._event.set()
        judge, caller = self._judge, self._caller
        if judge is not None:
            self._judge = self._caller = None  # the caller knows it: a circle would be left to the garbage collector
            judge.failed(caller, self)
