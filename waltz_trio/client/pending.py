"""Appends that were sent, and their outcomes.

The machine has an append's `Pending` as its token, and hands it back with the outcome. Nobody need wait for it: an
event is made by whoever does. Appends that one call sent together have no `Pending` of their own: `many.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from waltz_core.client.calls import Failed
from waltz_trio.client.life import Life
from waltz_trio.client.values import Receipt


class Pending:
    """An append that was sent; its outcome is kept whether or not anybody waits."""

    __slots__ = (
        "_caller",
        "_event",
        "_life",
        "_names",
        "_on_done",
        "_outcome",
        "_result",
        "_size",
        "_timing",
        "_writes",
        "partition",
    )

    def __init__(self, life: Life, partition: int, size: int, names: bytes, writes: int, result: Any) -> None:
        self.partition = partition
        self._result = result  # for the receipt
        self._names = names  # of its locks, the write locks first
        self._writes = writes  # how many those are
        self._life = life
        self._size = size
        self._outcome: int | Failed | None = None
        self._timing: object = None  # what the instrument knows it by
        self._event: trio.Event | None = None
        self._on_done: Callable[[Pending], object] | None = None
        self._caller: object = None  # for `_on_done`

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
            raise self._life.error_of(outcome, self._names, self._writes)
        return Receipt(self.partition, outcome, value=self._result)

    def _when_done(self, then: Callable[[Pending], object], caller: object) -> None:
        """Call `then` once, when the outcome is known; it finds `caller` here."""
        assert self._outcome is None
        self._on_done, self._caller = then, caller

    def _settle(self, outcome: int | Failed) -> None:
        self._outcome = outcome
        if self._event is not None:
            self._event.set()
        then = self._on_done
        if then is not None:
            self._on_done = None
            then(self)
