"""Appends of one client: checked, sent, and settled with their outcomes.

    append, send ──► submit ──Submit──────► the machine ──Committed, Failed──► settled
    send_many ──► columns ──SubmitMany──────┘

`submit` is the hot path: it has an append turned into what travels (`encoding.py`), and posts one event. Appends of one
call (`send_many`) go into columns; most of them are plain, and cost no Python statement of their own. What is under way
is bounded by bytes (`client.sendWindow`): `send` and `send_many` wait at the bound, and let other tasks run now and
then below it. Appends of a call that are all there when it begins are encoded before the first of them is sent: the
call sends all of them or, where one cannot be sent, none.

A coroutine of `append`, `send` or `submit`, or of their `_many`, that nobody awaits appends nothing. Each is counted
from its making to its first step, so that a forgotten `await` is an error when the client ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import trio
from trio_util import RepeatedEvent

from waltz_core.base.errors import ClientError, LockConflictError, NotCommittedError
from waltz_core.base.log import PROBE_MARK
from waltz_core.client.calls import Committed, Failed, Flush, Flushed, Reason, Submit, SubmitMany
from waltz_core.client.columns import NO_LOCKS, Columns, signed_crc, take_alike, take_plain
from waltz_trio.client.answers import Answers
from waltz_trio.client.arguments import APPENDS, not_awaited, several
from waltz_trio.client.arguments import mark as mark_of
from waltz_trio.client.codecs import Raw
from waltz_trio.client.encoding import ClientLimits, Encoder
from waltz_trio.client.instrument import Instrument, TimedInstrument
from waltz_trio.client.life import Life
from waltz_trio.client.many import PendingMany, SentRows
from waltz_trio.client.pending import Judge, Pending
from waltz_trio.client.values import Append, Receipt

_CHECKPOINT_EVERY = 64  # sends; a task switch costs as much as handling one
_INT_63 = 1 << 63
_ROWS = 512  # appends of one call that are handed on together
_ROW_BYTES = 1 << 20  # and their payloads


class _Rows:
    """Appends that are sent together, encoded."""

    __slots__ = ("columns", "end", "mark", "size")

    def __init__(self, mark: int | ValueError) -> None:
        self.columns = Columns()
        self.mark = mark  # of the feed when they were handed over, for those with locks, or why there was none
        self.size = 0  # bytes of payloads
        self.end = 0  # place of the append behind the last of them


class Appends:
    """What one client appends, and what is under way of it."""

    def __init__(
        self, life: Life, limits: ClientLimits, instrument: Instrument | None, mark_for: Callable[[int], int]
    ) -> None:
        self.unjudged: set[Pending] = set()
        self.unjudged_size = 0
        self._rows = SentRows(life)
        self.unstarted = 0  # calls of `append`, `send` and `submit`, and of their `_many`, that nobody has awaited
        self._life = life
        self.encoder = Encoder(life, limits, mark_for)
        self._encode = self.encoder.row
        self._mark_for = mark_for
        self._send_window = limits.send_window
        self._payload_size_max = limits.payload_size_max
        self._instrument = instrument
        self._timed = instrument if isinstance(instrument, TimedInstrument) else None
        self._room = RepeatedEvent()
        self._settled: trio.Event | None = None
        self._sends = 0
        self._single = True  # the outcomes that came last were those of one append
        self._appended: set[int] = set()
        self._flushes: Answers[None] = Answers()

    @property
    def under_way(self) -> int:
        """Appends without an outcome."""
        return len(self.unjudged) + self._rows.left

    def append(self, partition: int, append: Append, based_on: int | None) -> Coroutine[Any, Any, Receipt]:
        """See `Client.append`."""
        self.unstarted += 1
        return self._append(partition, append, based_on)

    async def _append(self, partition: int, append: Append, based_on: int | None) -> Receipt:
        self.unstarted -= 1
        self._life.check_thread()
        return await self.submit(partition, append, based_on).outcome()

    def append_many(
        self, partition: int, appends: Iterable[Append | bytes], based_on: int | None
    ) -> Coroutine[Any, Any, list[Receipt | LockConflictError | NotCommittedError]]:
        """See `Client.append_many`."""
        self.unstarted += 1
        return self._append_many(partition, appends, based_on)

    async def _append_many(
        self, partition: int, appends: Iterable[Append | bytes], based_on: int | None
    ) -> list[Receipt | LockConflictError | NotCommittedError]:
        pending = await self._send_many(partition, appends, based_on)
        return list(await pending.outcomes())

    def send_many(
        self, partition: int, appends: Iterable[Append | bytes], based_on: int | None
    ) -> Coroutine[Any, Any, PendingMany]:
        """See `Client.send_many`."""
        self.unstarted += 1
        return self._send_many(partition, appends, based_on)

    async def _send_many(self, partition: int, appends: Iterable[Append | bytes], based_on: int | None) -> PendingMany:
        self.unstarted -= 1
        many = PendingMany(self._life.check_open(partition))
        if based_on is not None and based_on is not PROBE_MARK:
            based_on = mark_of(based_on, "based_on")
        if isinstance(several(appends, APPENDS), Collection):
            await self._send_all(many, list(appends), based_on)
        else:
            await self._send_each(many, iter(appends), based_on)
        return many

    async def _send_all(self, many: PendingMany, appends: list[Append | bytes], based_on: int | None) -> None:
        """Send appends that are all there: none of them where one cannot be sent, so that all may be sent again."""
        made: deque[_Rows] = deque()
        mark = self._mark_now(many.partition, based_on)
        for begin in range(0, len(appends), _ROWS):
            if made:
                await trio.lowlevel.checkpoint()
            chunk, at = appends[begin : begin + _ROWS], 0
            while at < len(chunk):
                made.append(_Rows(mark))
                try:
                    at = self._take(many, chunk, at, begin, based_on, made[-1])
                except Exception as error:
                    place = begin + made[-1].end
                    error.add_note(
                        f"append {place} of {len(appends)}, counted from 0, cannot be sent: none of them was"
                    )
                    raise
        while made:
            await self._may_send()
            self._post_rows(many, made.popleft(), based_on)

    async def _send_each(self, many: PendingMany, source: Iterator[Append | bytes], based_on: int | None) -> None:
        """Send appends as they are made, which may be more than memory holds."""
        trouble, ended, begin = None, False, 0
        while not ended:
            chunk: list[Append | bytes] = []
            mark = self._mark_now(many.partition, based_on)
            try:
                chunk.extend(islice(source, _ROWS))
            except Exception as error:  # of who makes them: those made before are sent
                trouble = error
            ended, at = len(chunk) < _ROWS, 0
            while at < len(chunk):
                await self._may_send()
                rows = _Rows(mark)
                try:
                    at = self._take(many, chunk, at, begin, based_on, rows)
                except Exception as error:
                    error.add_note(_before(begin + rows.end, "sent"))
                    raise
                finally:  # those before one that cannot be sent
                    if rows.columns.payloads:
                        self._post_rows(many, rows, based_on)
            begin += len(chunk)
        if trouble is not None:
            trouble.add_note(_before(begin, "made"))
            raise trouble

    def _take(
        self,
        many: PendingMany,
        appends: Sequence[Append | bytes],
        at: int,
        begin: int,
        based_on: int | None,
        rows: _Rows,
    ) -> int:
        """Encode appends from `appends[at]` on, as many as are good to send together; where they end.

        Args:
            begin: place of the first of `appends` among all of the call.
            rows: where they go; its `end` says which one cannot be sent, if one cannot.
        """
        columns, size, limit = rows.columns, 0, self._payload_size_max
        into = columns.headers, columns.payloads, columns.checksums
        try:
            while at < len(appends) and size < _ROW_BYTES:
                at, taken = take_plain(appends, at, Append, Raw, limit, _ROW_BYTES - size, *into)
                size += taken
                if at < len(appends) and size < _ROW_BYTES:
                    given = appends[at]
                    append = Append(given) if isinstance(given, bytes) else given
                    data, header, locks = self._encode(many.partition, append, based_on, rows.mark)
                    if append.result is not None:
                        many._results[begin + at] = append.result
                    columns.add(header, data, locks)
                    size += len(data)
                    at += 1
                    if locks is not NO_LOCKS and _gives_again(append):
                        first = len(columns)
                        at, taken = take_alike(appends, at, append, Append, Raw, limit, _ROW_BYTES - size, *into)
                        columns.locks.update(dict.fromkeys(range(first, len(columns)), locks))
                        size += taken
        finally:
            rows.end, rows.size = at, size
        return at

    def _post_rows(self, many: PendingMany, rows: _Rows, based_on: int | None) -> None:
        """Hand on what was encoded."""
        self._life.check_open(many.partition)
        self.unjudged_size += rows.size
        self._appended.add(many.partition)
        self._rows.post(many, rows.columns, rows.size, based_on, self._timed)

    def send(self, partition: int, append: Append, based_on: int | None) -> Coroutine[Any, Any, Pending]:
        """See `Client.send`."""
        self.unstarted += 1
        return self._send(partition, append, based_on)

    async def _send(self, partition: int, append: Append, based_on: int | None) -> Pending:
        self.unstarted -= 1
        self._life.check_thread()
        self._sends += 1
        if self.unjudged_size >= self._send_window or self._sends % _CHECKPOINT_EVERY == 0:
            partition = self._life.check_open(partition)
            if isinstance(append, Append) and (append.write or append.read):
                based_on = self._mark_for(partition) if based_on is None else based_on
            await self._may_send()
        return self.submit(partition, append, based_on)

    def _mark_now(self, partition: int, based_on: int | None) -> int | ValueError:
        """What appends with locks are based on by default, before anybody waits: the feed goes on meanwhile.

        Where no feed says so, the error that is raised once an append turns out to need it.
        """
        if based_on is not None:
            return based_on
        try:
            return self._mark_for(partition)
        except ValueError as error:
            return error

    async def _may_send(self) -> None:
        """Wait while too much is under way; let others run."""
        if self.unjudged_size < self._send_window:
            await trio.lowlevel.checkpoint()
        while self.unjudged_size >= self._send_window:
            await self._room.wait()

    async def flush(self, partition: int | None) -> None:
        """See `Client.flush`."""
        self._life.check_thread()
        self._life.raise_if_ended()
        if partition is not None:
            partition = self._life.check_open(partition)
        answers = []
        for each in sorted(self._appended) if partition is None else [partition]:
            answers.append(self._flushes.ask())
            self._life.post(Flush(each, answers[-1]))
        try:
            for answer in answers:
                await answer.wait()
        finally:
            for answer in answers:
                self._flushes.leave(answer)
        await trio.lowlevel.checkpoint_if_cancelled()

    # ---- the hot path ----------------------------------------------------------------------------------

    def submit(
        self,
        partition: int,
        append: Append,
        based_on: int | None,
    ) -> Pending:
        if type(partition) is not int or self._life.closing or not 0 <= partition < self._life.num_partitions:
            partition = self._life.check_open(partition)
        if (
            based_on is not None
            and based_on is not PROBE_MARK
            and (type(based_on) is not int or not -1 <= based_on < _INT_63)
        ):
            based_on = mark_of(based_on, "based_on")
        data, header, locks = self._encode(partition, append, based_on)
        if based_on is None:
            based_on = locks.client_mark
        pending = Pending(self._life, partition, len(data), locks, append.result)
        if self._timed is not None:
            pending._timing = self._timed.append_began(partition, None)
        # Who appends one at a time need not wait until others might append, too: nobody did so beside the last one.
        post = self._life.post_now if self._single and not self.unjudged else self._life.post
        self.unjudged.add(pending)
        self.unjudged_size += len(data)
        self._appended.add(partition)
        write, read, adds, names = locks.write, locks.read, locks.append, locks.names
        post(Submit(partition, pending, based_on, write, read, adds, header, data, signed_crc(data), names))
        return pending

    def launch(self, partition: int, pendings: list[Pending], columns: Columns, based_on: int) -> None:
        """Send what the encoder has made of appends that were decided on one state, a row for each."""
        self.unjudged.update(pendings)
        self.unjudged_size += sum(map(len, columns.payloads))
        self._appended.add(partition)
        self._life.post(SubmitMany(partition, pendings, based_on, columns))

    # ---- outcomes --------------------------------------------------------------------------------------

    def on_committed(self, effect: Committed) -> None:
        """Appends of a partition are in the log."""
        size = 0
        forget, timed = self.unjudged.discard, self._timed
        outcomes = effect.outcomes
        if self._rows.wait_in(effect.partition):
            outcomes, size = self._rows.committed(effect.partition, outcomes)
        judge: Judge | None = None
        heard: list[tuple[object, int]] = []  # of submits in a row of one application
        pending: Pending
        for pending, transaction_id in outcomes:  # type: ignore[assignment]  # a cast would cost as much as the rest
            if timed is not None:
                timed.append_ended(pending._timing, transaction_id, "")
            if pending._judge is not None:
                if pending._judge is not judge:
                    if judge is not None:
                        judge.committed(heard)
                    judge, heard = pending._judge, []
                heard.append((pending._caller, transaction_id))
                pending._judge = pending._caller = None  # the caller knows it: a circle, for the garbage collector
            if pending._event is None:
                pending._outcome = transaction_id
            else:
                pending._committed(transaction_id)
            size += pending._size
            forget(pending)
        if judge is not None:
            judge.committed(heard)
        self._single = len(effect.outcomes) == 1
        self._judged(size)
        if self._instrument is not None:
            self._instrument.committed(effect.partition, len(effect.outcomes))

    def on_failed(self, effect: Failed) -> None:
        """An append is not in the log, or nobody knows."""
        pending = effect.token
        if type(pending) is int:
            size = self._rows.failed(effect, pending)
        else:
            assert isinstance(pending, Pending)
            if self._timed is not None:
                self._timed.append_ended(pending._timing, None, effect.reason.name.lower())
            pending._failed(effect)
            self.unjudged.discard(pending)
            size = pending._size
        self._judged(size)
        if self._instrument is not None:
            self._instrument.failed(effect.partition, effect.reason.name.lower())

    def _judged(self, size: int) -> None:
        self.unjudged_size -= size
        if self.unjudged_size * 2 <= self._send_window:
            self._room.set()
        if self._settled is not None and not self.under_way:
            self._settled.set()

    def on_flushed(self, effect: Flushed) -> None:
        """Every earlier append of a partition has an outcome."""
        self._flushes.give(effect.token, None)

    # ---- the end ---------------------------------------------------------------------------------------

    async def settle(self, patience: float) -> None:
        """Wait until nothing is under way, at most `patience` seconds."""
        if self.under_way and patience > 0:
            self._settled = trio.Event()
            with trio.move_on_after(patience):
                await self._settled.wait()

    def check_awaited(self) -> None:
        """See that every call was awaited.

        Raises:
            RuntimeError: it appended nothing.
        """
        if self.unstarted:
            raise not_awaited(self.unstarted)

    def end(self, error: ClientError) -> None:
        """Fail every append and flush that waits: the client has ended, no outcome will come."""
        for pending in list(self.unjudged):
            self.on_failed(Failed(pending.partition, pending, Reason.CLOSED))
        for partition, token in self._rows.unjudged():
            self.on_failed(Failed(partition, token, Reason.CLOSED))
        self._flushes.fail(error)


def _before(place: int, what: str) -> str:
    before = f"the {place} before it are under way" if place else "none was sent"
    return f"append {place}, counted from 0, cannot be {what}: {before}"


def _gives_again(append: Append) -> bool:
    """Whether the same objects are the same locks in the next append, too: an iterator gives them out once."""
    return type(append.write) is type(append.read) is type(append.append) is tuple
