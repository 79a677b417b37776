"""Applying the feed of one partition to a view: batches, repeats, and transactions that cannot be applied.

    IDLE ──batch──► COMMITTING ──the view has it──► IDLE
                      │   ▲
                      │   └──────────── PAUSED ◄── the view cannot be reached, or a transaction failed
                      └──a transaction has failed too often──► GOOD (what comes before it) ──► POISONED

**All or nothing.** A view commits a batch and the mark behind it in one transaction, so a batch that did not come back
may be tried again whole: what was applied nevertheless, by this process or another one on the same database, the view
passes over by its mark. This machine therefore never splits a batch, save for poison.

**Failures are of two kinds.** A view that cannot be reached (locked, gone) is tried again for ever, after pauses that
grow. A transaction that `apply` cannot take is tried `attempts` times, for a bug may depend on something outside that
changes; then everything before it is kept, and the partition ends there: to pass over it would be to lose it.

The driver holds the batch and runs the view; one commit is under way at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

from waltz_core.base.record import record
from waltz_core.client.retry import Chance, Retry

# ---- events ----------------------------------------------------------------------------------------


@record
class BatchArrived:
    """The feed has transactions with consecutive ids."""

    first_id: int
    last_id: int


@record
class Applied:
    """The view holds everything up to a mark; another process may have taken it further than the batch."""

    mark: int


@record
class ViewDown:
    """The view cannot be reached; nothing was applied, or nobody knows."""


@record
class ApplyFailed:
    """A transaction of the batch cannot be applied; nothing of the batch was."""

    transaction_id: int


Event: TypeAlias = BatchArrived | Applied | ViewDown | ApplyFailed

# ---- effects ---------------------------------------------------------------------------------------


@record
class Commit:
    """Commit the transactions of the batch up to `last_id`; answered by Applied, ViewDown or ApplyFailed."""

    last_id: int


@record
class Advanced:
    """The view holds everything up to a mark."""

    mark: int


@record
class TakeNext:
    """The batch is done: the next one may come."""


@record
class Poisoned:
    """A transaction cannot be applied; everything before it is. The partition ends here."""

    transaction_id: int


Effect: TypeAlias = Commit | Advanced | TakeNext | Poisoned

# ---- the machine -----------------------------------------------------------------------------------


class _State(enum.Enum):
    IDLE = enum.auto()
    COMMITTING = enum.auto()
    PAUSED = enum.auto()
    POISONED = enum.auto()


class Applier:
    """What becomes of one batch after the other. States: see above; GOOD is COMMITTING with less of the batch."""

    __slots__ = (
        "_attempts",
        "_batch",
        "_failed",
        "_failures",
        "_last_id",
        "_poison",
        "_retry",
        "_rng",
        "_state",
        "_wakes_at",
    )

    def __init__(self, retry: Retry, attempts: int, rng: Chance) -> None:
        assert attempts >= 1
        self._retry = retry  # only its pauses count
        self._attempts = attempts
        self._rng = rng
        self._state = _State.IDLE
        self._batch: BatchArrived | None = None
        self._last_id = -1  # of what is to be committed next
        self._failures = 0  # in a row, of any kind
        self._failed = 0  # of `apply`
        self._poison: int | None = None
        self._wakes_at: int | None = None

    def step(self, now: int, events: Sequence[Event], out: list[Effect]) -> None:
        """See `waltz_core.base.contract.Machine`."""
        for event in events:
            match event:
                case BatchArrived():
                    self._on_batch(event, out)
                case Applied():
                    self._on_applied(event.mark, out)
                case ViewDown():
                    self._pause(now)
                case ApplyFailed():
                    self._on_failed(event.transaction_id, now, out)
        if self._wakes_at is not None and now >= self._wakes_at:
            self._commit(out)

    def deadline(self) -> int | None:
        """When the pause before the next attempt ends."""
        return self._wakes_at

    def _on_batch(self, batch: BatchArrived, out: list[Effect]) -> None:
        assert self._state is _State.IDLE, "one batch at a time"
        assert batch.first_id <= batch.last_id
        self._batch = batch
        self._begin(batch.last_id, out)

    def _begin(self, last_id: int, out: list[Effect]) -> None:
        self._last_id, self._poison = last_id, None
        self._failures = self._failed = 0
        self._commit(out)

    def _commit(self, out: list[Effect]) -> None:
        self._state, self._wakes_at = _State.COMMITTING, None
        out.append(Commit(self._last_id))

    def _on_applied(self, mark: int, out: list[Effect]) -> None:
        assert self._state is _State.COMMITTING
        assert self._batch is not None
        assert mark >= self._last_id, "a view returns the mark that it stored"
        out.append(Advanced(mark))
        if mark >= self._batch.last_id:
            self._state = _State.IDLE
            out.append(TakeNext())
        elif self._poison is not None and mark < self._poison:
            self._end(out)
        else:  # another process has taken what this one could not apply
            self._begin(self._batch.last_id, out)

    def _on_failed(self, transaction_id: int, now: int, out: list[Effect]) -> None:
        assert self._state is _State.COMMITTING
        self._failed += 1
        if self._failed < self._attempts:
            self._pause(now)
            return
        assert self._batch is not None
        self._poison, self._last_id = transaction_id, transaction_id - 1
        if self._last_id < self._batch.first_id:
            self._end(out)
        else:
            self._commit(out)

    def _end(self, out: list[Effect]) -> None:
        assert self._poison is not None
        self._state = _State.POISONED
        out.append(Poisoned(self._poison))

    def _pause(self, now: int) -> None:
        assert self._state is _State.COMMITTING
        self._state = _State.PAUSED
        self._failures += 1
        self._wakes_at = now + max(1, int(self._retry.delay(self._failures, self._rng) * 1000))
