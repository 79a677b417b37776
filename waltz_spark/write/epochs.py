"""Exactly once into one partition of a log: what a writer appends, and what it concludes. No I/O here.

A write lock is the *epoch*, read locks on it are the *fence*. Every attempt to write the rows of a batch
begins with a marker, a transaction under a write lock on the sink; each row is appended under a read lock on
it, at the mark of the marker. So a later marker makes every row of an earlier attempt fail, even if it is
still on its way: the log up to the marker holds all that those attempts will ever append. It is
read, and only missing rows are appended.

Steps: marker → read up to it → rows → done. Whenever an append of a row is refused, lost or of unknown fate,
nothing more is sent, and once all the others are decided the log is read up to now: a marker of another attempt
means that this one is fenced and gives up; otherwise the lock table was too coarse, a server has forgotten its
locks or a connection broke, and it continues behind a new marker.

Client ids say which records belong to the batch: the one of a marker is that of the rows behind it, and no
two processes share one. Which row a record is, by its header and data: equal rows are counted.

Rows may have locks of their own, which were free at some *cut* in the past. A record does not contain its locks, so
whether they were taken between cut and marker is asked of the lock table, by a *probe*: an append that is always
refused, because its mark is below everything; the refusal names the last transaction that took one of them.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from waltz_core.base.log import MARKER_HEADER, PROBE_MARK
from waltz_core.base.record import record

LockName: TypeAlias = tuple[str, int]
Locks: TypeAlias = tuple[LockName, ...]

LOCK_NAME = "waltz.sink"
WINDOW = 4096  # rows of a partition without a verdict
_RUN_BYTES = 1 << 20  # payloads of rows that are appended together


@record
class Attempt:
    """The writer: one attempt of one task at one batch of a sink."""

    sink: str  # of all batches of a query, over restarts
    batch: int
    attempt: str  # differs in every attempt
    task: int  # place of the task among those of the batch

    @property
    def lock(self) -> LockName:
        """The lock of the sink."""
        return LOCK_NAME, int.from_bytes(hashlib.sha256(self.sink.encode()).digest()[:8], "big", signed=True)


def encode_marker(attempt: Attempt, base: int) -> bytes:
    """The data of a marker; `base` is where its attempt began to read."""
    found = {"waltz": "sink", "version": 1, "sink": attempt.sink, "batch": attempt.batch, "base": base}
    return json.dumps(found | {"attempt": attempt.attempt, "task": attempt.task}).encode()


def decode_marker(data: bytes) -> Attempt | None:
    """None: this is no marker of a sink."""
    try:
        marker = json.loads(data)
        if marker["waltz"] != "sink" or marker["version"] != 1:
            return None
        return Attempt(str(marker["sink"]), int(marker["batch"]), str(marker["attempt"]), int(marker["task"]))
    except (ValueError, KeyError, TypeError):
        return None


@record
class Row:
    """A transaction to append."""

    header: int
    data: bytes
    write: Locks = ()
    read: Locks = ()
    add: Locks = ()  # taken, not checked
    cut: int = -1  # the mark of the state that it was computed from; matters with `write` or `read`
    number: int = 0  # for the caller

    @property
    def conditional(self) -> bool:
        """Whether it may be refused."""
        return bool(self.write or self.read)

    @property
    def plain(self) -> bool:
        """Whether it has no locks of its own, so that it is appended together with its like."""
        return not (self.write or self.read or self.add)


@record
class Seen:
    """A record of the log."""

    transaction_id: int
    client_id: int
    header: int
    data: bytes


@record
class Append:
    """Append this; the answer is `committed`, `refused` or `lost` with the token."""

    token: int
    header: int
    data: bytes
    write: Locks
    read: Locks
    add: Locks
    mark: int | None  # None: no lock is checked


@record
class AppendRun:
    """Append plain rows, each for itself, in this order.

    The answers are those to an `Append` of each, in order, or `committed_run` for some whose ids follow one another.
    """

    first: int  # token of the first row; those of the others follow
    rows: Sequence[Row]
    read: Locks
    mark: int | None  # None: no lock is checked


@record
class Scan:
    """Read what is behind `after` up to `upto`, None = up to what is committed now.

    Answered by `saw`, in order, with everything of which `wants` is true, and then by `scanned`.
    """

    after: int
    upto: int | None


@record
class Done:
    """Every row is in the log or rejected; nothing of this batch is behind `last_id`."""

    last_id: int


@record
class Fenced:
    """Another attempt has taken over: nothing more of this one will be committed."""

    by: Attempt


@record
class Different:
    """The log has rows of an earlier attempt that this one lacks: the source is not repeatable."""

    count: int


Effect: TypeAlias = Append | AppendRun | Scan | Done | Fenced | Different


class _Phase(enum.Enum):
    MARKING = "a marker is under way"
    CATCHING_UP = "reading up to the marker"
    WRITING = "rows are under way"
    LOOKING = "something failed: reading up to now"
    OVER = "done or fenced"


class _Kind(enum.Enum):
    MARKER = 0
    PROBE = 1  # of the locks of a row
    ROW = 2
    FENCE_PROBE = 3  # a row was refused: by its own locks or by the fence?


class EpochWriter:
    """Writes the rows of one batch to one partition, as one attempt.

    Call `start`; `offer` rows while `wants_rows`, the last ones with `last`; report the verdicts of what `out`
    asked for. `rejected` collects rows whose locks were taken, with the transaction that took one of them or
    an upper bound of it; the caller may empty it.

    Args:
        attempt: who writes.
        base: a transaction of the past: every earlier batch is up to it, nothing of this one.
        window: rows without a verdict at a time.
    """

    def __init__(self, attempt: Attempt, base: int, window: int = WINDOW) -> None:
        self.attempt = attempt
        self.rejected: list[tuple[Row, int]] = []
        self.appended = 0  # rows this attempt put into the log
        self.found_before = 0  # rows that were there
        self.markers = 0
        self._base = base
        self._window = window
        self._phase = _Phase.MARKING
        self._mark = base  # of the next marker
        self._epoch = -1  # id of the last marker
        self._first_epoch: int | None = None
        self._read_to = base  # everything up to here is accounted for
        self._ahead: set[int] = set()  # own commits behind it
        self._clients: set[int] = set()  # that wrote for this batch
        self._there: Counter[bytes] = Counter()  # rows of the batch in the log that no offered row has claimed
        self._flying: dict[int, tuple[_Kind, Row | None]] = {}  # by token, in the order they were sent
        self._again: deque[Row] = deque()  # to be judged after the next scan
        self._token = 0
        self._trouble = False
        self._last = False  # no more rows are offered
        self._fenced_by: Attempt | None = None

    # ---- what the caller does --------------------------------------------------------------------

    @property
    def wants_rows(self) -> bool:
        """Whether `offer` may be called."""
        return (
            self._phase is _Phase.WRITING and not self._trouble and not self._last and len(self._flying) < self._window
        )

    def start(self, out: list[Effect]) -> None:
        """Begin with a marker."""
        self._send_marker(out)

    def offer(self, rows: Iterable[Row], out: list[Effect], *, last: bool = False) -> None:
        """Rows to write."""
        assert self.wants_rows
        self._write(rows, out)
        self._last = last
        self._go_on(out)

    def wants(self, header: int, client_id: int) -> bool:
        """Whether a record matters; ask in the order of the log, and pass markers on at once."""
        return header == MARKER_HEADER or client_id in self._clients

    def row_of(self, token: int) -> Row | None:
        """The row that an append without a verdict is for; None: a marker."""
        return self._flying[token][1]

    # ---- verdicts --------------------------------------------------------------------------------

    def committed(self, token: int, transaction_id: int, out: list[Effect]) -> None:
        """An append is in the log."""
        kind, _ = self._flying[token]
        if kind is _Kind.MARKER:
            del self._flying[token]
            self.markers += 1
            self._epoch = transaction_id
            if self._first_epoch is None:
                self._first_epoch = transaction_id
            self._phase = _Phase.CATCHING_UP
            out.append(Scan(self._read_to, transaction_id))
            return
        self.committed_run(token, transaction_id, 1, out)

    def committed_run(self, first: int, transaction_id: int, count: int, out: list[Effect]) -> None:
        """Rows are in the log: those of so many tokens from `first` on, with ids from `transaction_id` on."""
        flying, oldest = self._flying, next(iter(self._flying))
        for token in range(first, first + count):
            kind, _ = flying.pop(token)
            assert kind is _Kind.ROW, "a probe was committed"
        self.appended += count
        if first == oldest and not self._trouble:
            self._read_to = transaction_id + count - 1  # an earlier one of unknown fate would be behind it
        else:
            self._ahead.update(range(transaction_id, transaction_id + count))
        self._go_on(out)

    def refused(self, token: int, blocking_id: int, out: list[Effect]) -> None:
        """An append was refused for its locks; `blocking_id` is the last one that took one of them, or above it."""
        kind, row = self._flying.pop(token)
        if kind is _Kind.MARKER:
            self._mark = max(self._mark, blocking_id)
            self._send_marker(out)
            return
        assert row is not None
        if kind is _Kind.PROBE and not self._trouble:
            if blocking_id > row.cut:
                self.rejected.append((row, blocking_id))
            else:
                self._send_row(row, out)
        elif kind is _Kind.ROW and row.conditional and not self._trouble:
            self._send(_Kind.FENCE_PROBE, row, Append(self._next(), 0, b"", (), self._fence(), (), PROBE_MARK), out)
        elif kind is _Kind.FENCE_PROBE and not self._trouble and blocking_id <= self._epoch:
            # The fence stands, so it was one of the row's own locks, and it was taken behind the epoch.
            self.rejected.append((row, blocking_id))
        else:
            self._again.append(row)
            self._trouble = True
        self._go_on(out)

    def lost(self, token: int, out: list[Effect]) -> None:
        """The append is not in the log, or its fate is unknown."""
        kind, row = self._flying.pop(token)
        if kind is _Kind.MARKER:
            self._send_marker(out)
            return
        assert row is not None
        self._again.append(row)
        self._trouble = True
        self._go_on(out)

    # ---- reading ---------------------------------------------------------------------------------

    def saw(self, records: Iterable[Seen]) -> None:
        """Records of a scan."""
        for seen in records:
            if seen.transaction_id <= self._read_to or seen.transaction_id in self._ahead:
                continue
            if seen.header == MARKER_HEADER:
                self._saw_marker(seen)
            elif seen.client_id in self._clients:
                self._there[_digest(seen.header, seen.data)] += 1

    def scanned(self, upto: int, out: list[Effect]) -> None:
        """A scan has come to its end."""
        self._read_to = max(self._read_to, upto)
        self._ahead.clear()
        if self._fenced_by is not None:
            self._phase = _Phase.OVER
            out.append(Fenced(self._fenced_by))
        elif self._phase is _Phase.LOOKING:
            self._phase = _Phase.MARKING
            self._send_marker(out)
        else:
            self._phase = _Phase.WRITING
            self._trouble = False
            again, self._again = self._again, deque()
            self._write(again, out)
            self._go_on(out)

    def _saw_marker(self, seen: Seen) -> None:
        marker = decode_marker(seen.data)
        if marker is None or marker.sink != self.attempt.sink:
            return
        if marker.batch == self.attempt.batch:
            self._clients.add(seen.client_id)
        if marker.attempt == self.attempt.attempt:
            return
        # Markers of the batch that are older than ours are those of dead attempts, or of ones that do not know yet.
        newer = self._first_epoch is not None and seen.transaction_id > self._first_epoch
        if marker.batch > self.attempt.batch or (marker.batch == self.attempt.batch and newer):
            self._fenced_by = marker

    # ---- inside ----------------------------------------------------------------------------------

    def _fence(self) -> Locks:
        return (self.attempt.lock,)

    def _next(self) -> int:
        self._token += 1
        return self._token

    def _send(self, kind: _Kind, row: Row | None, append: Append, out: list[Effect]) -> None:
        self._flying[append.token] = kind, row
        out.append(append)

    def _send_marker(self, out: list[Effect]) -> None:
        data = encode_marker(self.attempt, self._base)
        lock = (self.attempt.lock,)
        self._send(_Kind.MARKER, None, Append(self._next(), MARKER_HEADER, data, lock, (), (), self._mark), out)

    def _write(self, rows: Iterable[Row], out: list[Effect]) -> None:
        """Rows to be judged, in order; plain ones that follow one another leave together."""
        plain: list[Row] = []
        for row in rows:
            if self._there and self._claim(row):
                self.found_before += 1
            elif row.plain:
                plain.append(row)
            else:
                self._send_plain(plain, out)
                plain = []
                if row.conditional:
                    probe = Append(self._next(), 0, b"", (), (*row.write, *row.read), (), PROBE_MARK)
                    self._send(_Kind.PROBE, row, probe, out)
                else:
                    self._send_row(row, out)
        self._send_plain(plain, out)

    def _send_plain(self, rows: Sequence[Row], out: list[Effect]) -> None:
        for run in _runs(rows):
            first = self._token + 1
            self._token += len(run)
            self._flying.update((token, (_Kind.ROW, row)) for token, row in enumerate(run, start=first))
            out.append(AppendRun(first, run, self._fence(), self._epoch))

    def _send_row(self, row: Row, out: list[Effect]) -> None:
        # Its own locks were free at the cut, and untouched from there to now: the epoch will do for them as well.
        read = (*row.read, *self._fence())
        append = Append(self._next(), row.header, row.data, row.write, read, row.add, self._epoch)
        self._send(_Kind.ROW, row, append, out)

    def _claim(self, row: Row) -> bool:
        digest = _digest(row.header, row.data)
        count = self._there.get(digest, 0)
        if count > 1:
            self._there[digest] = count - 1
        elif count:
            del self._there[digest]
        return count > 0

    def _go_on(self, out: list[Effect]) -> None:
        if self._phase is not _Phase.WRITING or self._flying:
            return
        if self._trouble:
            self._phase = _Phase.LOOKING
            out.append(Scan(self._read_to, None))
        elif self._last:
            self._phase = _Phase.OVER
            if self._there:
                out.append(Different(self._there.total()))
            else:
                out.append(Done(max(self._read_to, *self._ahead) if self._ahead else self._read_to))


class ResendingWriter:
    """Writes rows of one partition at least once: no marker, no fence, what is lost is sent again.

    The calls are those of `EpochWriter`.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self.rejected: list[tuple[Row, int]] = []
        self.appended = self.found_before = self.markers = 0
        self._window = window
        self._flying: dict[int, Row] = {}
        self._token = 0
        self._last = self.over = False
        self._last_id = -1

    @property
    def wants_rows(self) -> bool:
        """Whether `offer` may be called."""
        return not self._last and len(self._flying) < self._window

    def start(self, out: list[Effect]) -> None:
        """Nothing is needed to begin."""

    def offer(self, rows: Iterable[Row], out: list[Effect], *, last: bool = False) -> None:
        """Rows to write."""
        plain: list[Row] = []
        for row in rows:
            if row.plain:
                plain.append(row)
                continue
            self._send_plain(plain, out)
            plain = []
            self._send(row, out)
        self._send_plain(plain, out)
        self._last = last
        self._go_on(out)

    def row_of(self, token: int) -> Row | None:
        """The row that an append without a verdict is for."""
        return self._flying[token]

    def committed(self, token: int, transaction_id: int, out: list[Effect]) -> None:
        """An append is in the log."""
        self.committed_run(token, transaction_id, 1, out)

    def committed_run(self, first: int, transaction_id: int, count: int, out: list[Effect]) -> None:
        """Rows are in the log: those of so many tokens from `first` on, with ids from `transaction_id` on."""
        for token in range(first, first + count):
            del self._flying[token]
        self.appended += count
        self._last_id = max(self._last_id, transaction_id + count - 1)
        self._go_on(out)

    def refused(self, token: int, blocking_id: int, out: list[Effect]) -> None:
        """Does not happen: nothing is checked."""
        self.lost(token, out)

    def lost(self, token: int, out: list[Effect]) -> None:
        """The append is not in the log, or its fate is unknown."""
        self._send(self._flying.pop(token), out)

    def wants(self, header: int, client_id: int) -> bool:
        """Nothing is read."""
        return False

    def saw(self, records: Iterable[Seen]) -> None:
        """Nothing is read."""

    def scanned(self, upto: int, out: list[Effect]) -> None:
        """Nothing is read."""

    def _send(self, row: Row, out: list[Effect]) -> None:
        self._token += 1
        self._flying[self._token] = row
        out.append(Append(self._token, row.header, row.data, (), (), row.add, None))

    def _send_plain(self, rows: Sequence[Row], out: list[Effect]) -> None:
        for run in _runs(rows):
            first = self._token + 1
            self._token += len(run)
            self._flying.update(enumerate(run, start=first))
            out.append(AppendRun(first, run, (), None))

    def _go_on(self, out: list[Effect]) -> None:
        if self._last and not self._flying and not self.over:
            self.over = True
            out.append(Done(self._last_id))


def _runs(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows that leave together: a run ends with the row that makes it large."""
    begin = size = 0
    for at, row in enumerate(rows, start=1):
        size += len(row.data)
        if size >= _RUN_BYTES or at == len(rows):
            yield rows[begin:at]
            begin, size = at, 0


def _digest(header: int, data: bytes) -> bytes:
    return hashlib.sha256(header.to_bytes(4, "big", signed=True) + data).digest()[:16]
