"""Many appends that were sent by one call: one waiter for all of them, and outcomes by runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import trio

from waltz_core.base.errors import ClientError, LockConflictError, NotCommittedError
from waltz_core.client.calls import Failed, SubmitMany
from waltz_core.client.columns import NO_LOCKS, Columns, RowLocks, take_rows
from waltz_trio.client.instrument import TimedInstrument
from waltz_trio.client.values import Receipt

if TYPE_CHECKING:
    from waltz_trio.client.life import Life

Refusal = LockConflictError | NotCommittedError
Outcome = Receipt | Refusal


class Outcomes(Sequence[Outcome]):
    """What became of many appends, in their order; a receipt or error is made when it is asked for.

    `runs` says the same without an object for each append.
    """

    __slots__ = ("_partition", "_results", "_verdicts", "errors")

    def __init__(
        self,
        partition: int,
        verdicts: list[Any],
        results: dict[int, Any],
        errors: dict[int, Refusal],
    ) -> None:
        self._partition = partition
        self._verdicts = verdicts
        self._results = results
        self.errors = errors  # place of the append → why it is not in the log

    def __len__(self) -> int:
        return len(self._verdicts)

    @overload
    def __getitem__(self, at: int) -> Outcome: ...

    @overload
    def __getitem__(self, at: slice) -> list[Outcome]: ...

    def __getitem__(self, at: int | slice) -> Outcome | list[Outcome]:
        if isinstance(at, slice):
            return [self._at(place) for place in range(*at.indices(len(self)))]
        return self._at(range(len(self))[at])

    def __iter__(self) -> Iterator[Outcome]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Outcomes | list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(list(self))

    def _at(self, place: int) -> Outcome:
        error = self.errors.get(place)
        return error or Receipt(self._partition, self._verdicts[place], value=self._results.get(place))

    @property
    def committed(self) -> int:
        """How many are in the log."""
        return len(self._verdicts) - len(self.errors)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Those in the log, by runs whose ids follow one another: place of the first, its transaction id, how many."""
        verdicts, at, end = self._verdicts, 0, len(self._verdicts)
        while at < end:
            if at in self.errors:
                at += 1
                continue
            first, transaction_id = at, verdicts[at]
            if not self.errors and verdicts[-1] - transaction_id == end - 1 - at:
                at = end  # ids grow with the places, so all that follow do so one by one
            while at < end and at not in self.errors and verdicts[at] - transaction_id == at - first:
                at += 1
            yield first, transaction_id, at - first


class PendingMany:
    """Appends that were sent by one call; their outcomes are kept whether or not anybody waits."""

    __slots__ = ("_event", "_failed", "_left", "_results", "_verdicts", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._verdicts: list[Any] = []  # id, or Failed, of each; None: it is not known
        self._left = 0  # how many have no outcome
        self._failed: dict[int, ClientError] = {}  # place → why it is not in the log, or not known to be
        self._results: dict[int, Any] = {}  # place → for the receipt
        self._event: trio.Event | None = None

    def __len__(self) -> int:
        return len(self._verdicts)

    @property
    def done(self) -> bool:
        """All outcomes are known; `outcomes` returns or raises at once."""
        return self._left == 0

    async def outcomes(self) -> Outcomes:
        """For each, in their order: a receipt, or the error that says why it is not in the log.

        Raises:
            ClientAheadError: the log is behind this client; the outcome of some is unknown.
            BeforeStartError: history was freed that this client has not seen; likewise.
            ClientClosedError: the client was closed before all outcomes were known.
            ClientFailedError: the client broke before all outcomes were known.
        """
        if self._left:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        return self._outcomes()

    def _outcomes(self) -> Outcomes:
        errors: dict[int, Refusal] = {}
        for place in sorted(self._failed):
            error = self._failed[place]
            if not isinstance(error, LockConflictError | NotCommittedError):
                raise error
            errors[place] = error
        return Outcomes(self.partition, self._verdicts, self._results, errors)

    def _settled(self, count: int) -> None:
        """So many more outcomes are known."""
        self._left -= count
        if not self._left and self._event is not None:
            self._event.set()
            self._event = None


class Rows:
    """Appends of a `PendingMany` that were handed to the machine together: their tokens are `first`, `first` + 1, …"""

    __slots__ = ("_place", "_timed", "_timings", "columns", "first", "left", "many", "size")

    def __init__(
        self, many: PendingMany, first: int, columns: Columns, size: int, timed: TimedInstrument | None
    ) -> None:
        self.many = many
        self.first = first
        self.columns = columns
        self.left = len(columns)  # how many have no outcome
        self.size = size  # bytes of all payloads
        self._place = len(many._verdicts)  # of the first, in `many`
        many._verdicts += [None] * len(columns)
        many._left += len(columns)
        self._timed = timed
        self._timings = [] if timed is None else [timed.append_began(many.partition, None) for _ in range(len(columns))]

    @property
    def tokens(self) -> range:
        """One for each."""
        return range(self.first, self.first + len(self.columns))

    def committed(self, outcomes: list[tuple[object, int]], at: int) -> int:
        """Take the outcomes of these rows from `outcomes[at]` on; where they end."""
        many, first = self.many, self.first
        stop = take_rows(outcomes, at, first, first + len(self.columns), many._verdicts, self._place)
        if self._timed is not None:
            for token, transaction_id in outcomes[at:stop]:
                self._timed.append_ended(self._timings[token - first], transaction_id, "")  # type: ignore[operator]
        self.left -= stop - at
        many._settled(stop - at)
        return stop

    def failed(self, token: int, error: ClientError, reason: str) -> None:
        """A row did not commit."""
        self.many._failed[self._place + token - self.first] = error
        if self._timed is not None:
            self._timed.append_ended(self._timings[token - self.first], None, reason)
        self.left -= 1
        self.many._settled(1)

    def unjudged(self) -> list[int]:
        """Tokens of those without an outcome."""
        many, place = self.many, self._place
        return [
            token
            for at, token in enumerate(self.tokens, start=place)
            if many._verdicts[at] is None and at not in many._failed
        ]

    def locks_of(self, token: int) -> RowLocks:
        """The locks of a row."""
        return self.columns.locks.get(token - self.first, NO_LOCKS)


class SentRows:
    """The rows of all calls whose outcomes are not all known, by partition, in the order of their sending."""

    def __init__(self, life: Life) -> None:
        self.left = 0  # appends without an outcome
        self._life = life
        self._waiting: dict[int, deque[Rows]] = {}
        self._last = 0  # token

    def post(
        self, many: PendingMany, columns: Columns, size: int, based_on: int | None, timed: TimedInstrument | None
    ) -> None:
        """Hand appends to the machine."""
        rows = Rows(many, self._last + 1, columns, size, timed)
        self._last += len(columns)
        self.left += rows.left
        self._waiting.setdefault(many.partition, deque()).append(rows)
        self._life.post(SubmitMany(many.partition, rows.tokens, based_on, columns))

    def wait_in(self, partition: int) -> bool:
        """Some of a partition have no outcome."""
        return partition in self._waiting

    def committed(self, partition: int, outcomes: list[tuple[object, int]]) -> tuple[list[tuple[object, int]], int]:
        """Take the outcomes of rows; the others, and the bytes of those that are done with."""
        others: list[tuple[object, int]] = []
        at = size = 0
        while at < len(outcomes):
            token = outcomes[at][0]
            if type(token) is not int:
                others.append(outcomes[at])
                at += 1
                continue
            rows, before = self._of(partition, token), at
            at = rows.committed(outcomes, at)
            self.left -= at - before
            size += self._freed(rows)
        return others, size

    def failed(self, effect: Failed, token: int) -> int:
        """A row did not commit; the bytes of those that are done with."""
        rows = self._of(effect.partition, token)
        locks = rows.locks_of(token)
        rows.failed(token, self._life.error_of(effect, locks), effect.reason.name.lower())
        self.left -= 1
        return self._freed(rows)

    def unjudged(self) -> list[tuple[int, int]]:
        """Partition and token of each without an outcome."""
        waiting = [rows for each in self._waiting.values() for rows in each]
        return [(rows.many.partition, token) for rows in waiting for token in rows.unjudged()]

    def _of(self, partition: int, token: int) -> Rows:
        """To which a token belongs; nearly always the oldest."""
        return next(rows for rows in self._waiting[partition] if token in rows.tokens)

    def _freed(self, rows: Rows) -> int:
        """The bytes of rows that all have an outcome, which are then forgotten."""
        if rows.left:
            return 0
        waiting = self._waiting[rows.many.partition]
        waiting.remove(rows)
        if not waiting:
            del self._waiting[rows.many.partition]
        return rows.size
