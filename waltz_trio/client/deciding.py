"""Deciding what waits to be decided, and sending what was decided once the submitter says so."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import trio

from waltz_core.client.calls import Failed, Reason
from waltz_core.client.columns import Columns
from waltz_core.client.keys import KeyEntry
from waltz_core.client.submit_calls import (
    AppendsCommitted,
    Decided,
    DecisionDeclined,
    Event,
    KeyFound,
    StateUnreadable,
    judge,
)
from waltz_trio.client.calls import Call, Together
from waltz_trio.client.engine import Engine
from waltz_trio.client.parts import Part, Post, Tell
from waltz_trio.client.pending import Pending
from waltz_trio.client.shown import shown
from waltz_trio.client.values import Append
from waltz_trio.client.view_access import ViewAccess
from waltz_trio.client.views import View

_DECIDE_AT_ONCE = 256  # in one snapshot, which must not grow old


class Decisions:
    """Runs `decide` of every call that waits for it, on the state of its partition."""

    def __init__(self, engine: Engine, view: View[Any], access: ViewAccess, tell: Tell) -> None:
        self._engine = engine
        self._view = view
        self._access = access
        self._tell = tell

    async def run(self, part: Part) -> None:
        """Decide what waits to be decided, all of it in one snapshot and one hop to the view's thread."""
        while True:
            if not part.undecided:
                part.woken = trio.Event()
                await part.woken.wait()
            part.deciding = calls = list(itertools.islice(part.undecided, _DECIDE_AT_ONCE))
            part.decided = trio.Event()
            try:
                if len(calls) == 1:
                    await self.alone(part, calls[0])
                else:
                    await self._together(part, calls)
            finally:
                part.deciding = []
                part.decided.set()

    async def _together(self, part: Part, calls: list[Call]) -> None:
        try:
            results, mark = await self._access.read(part, Together(calls).run, ())
        except Exception as error:
            if self._view.is_transient(error):
                self.unreadable(part, calls, error)
                return
            results, mark = [], -1
        events: list[Event] = []
        for call, result in zip(calls, results, strict=False):
            self._decided(part, call, result, mark, events)
        self._tell(part, *events)
        if len(results) < len(calls):
            await self.alone(part, calls[len(results)])

    async def alone(self, part: Part, call: Call) -> None:
        try:
            if call.awaits:
                result, mark = await self._access.read_async(part, call)
            else:
                result, mark = await self._access.read(part, call.run, ())
        except Exception as error:
            if self._view.is_transient(error):
                self.unreadable(part, [call], error)
            else:
                part.undecided.pop(call, None)
                call.waiter.failed(error)
            return
        events: list[Event] = []
        self._decided(part, call, result, mark, events)
        self._tell(part, *events)

    def unreadable(self, part: Part, calls: Iterable[Call], error: Exception) -> None:
        for call in calls:
            part.undecided.pop(call, None)
            call.failure = error
        self._tell(part, *map(StateUnreadable, calls))

    def _decided(self, part: Part, call: Call, result: Any, mark: int, events: list[Event]) -> None:
        """`events` gets what the submitter must know."""
        part.undecided.pop(call, None)
        if result is None:
            events.append(DecisionDeclined(call, mark))
        elif call.key is not None and isinstance(result, KeyEntry):
            call.result = None  # it lived with whoever appended it
            events.append(KeyFound(call, result))
        else:
            try:
                events.append(self._appending(part, call, result, mark))
            except Exception as error:
                call.waiter.failed(error)

    def _appending(self, part: Part, call: Call, append: Any, mark: int) -> Decided:
        """Make an append ready to be sent."""
        if type(append) is not Append and not isinstance(append, Append):
            raise _no_decision(append)
        if call.key is not None:
            append = call.key.carried_by(append, self._engine.appends.encoder.payload(append))
        if self._engine.life.closing:
            self._engine.life.check_open(part.partition)
        call.row = self._engine.appends.encoder.row(part.partition, append, mark)
        call.based_on, call.result = mark, append.result
        locks = call.row[2]
        return Decided(call, mark, locks.write, locks.read, locks.append)


def _no_decision(result: object) -> TypeError:
    """What to raise where `decide` returned something else."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        return TypeError(
            f"decide returned {result!r}, which nobody awaits: hand in the `async def` function itself, not one that "
            "calls it"
        )
    return TypeError(f"decide must return an Append or None, not {shown(result)}")


class Sending:
    """Sends what was decided, and hears what became of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def send(self, part: Part, calls: Sequence[object]) -> None:
        """The appends that calls have made ready last, all of one state, as columns: see `SubmitMany`."""
        life, timed, partition, judge = self._engine.life, self._engine.timed, part.partition, part.judge
        first = calls[0]
        assert isinstance(first, Call)
        based_on = first.based_on
        columns, pendings = Columns(), []
        for call in calls:
            assert isinstance(call, Call)
            assert call.based_on == based_on, "decided in another snapshot"
            row, call.row = call.row, None
            assert row is not None
            data, header, locks = row
            call.pending = pending = Pending(life, partition, len(data), locks, call.result)
            pending._judge, pending._caller = judge, call
            if timed is not None:
                pending._timing = timed.append_began(partition, call.timing)
            columns.add(header, data, locks)
            pendings.append(pending)
        self._engine.appends.launch(partition, pendings, columns, based_on)


class PartJudge:
    """Hears what became of the appends of one partition, and lets the submitter know."""

    def __init__(self, part: Part, engine: Engine, post: Post) -> None:
        self._part = part
        self._engine = engine
        self._post = post

    def committed(self, outcomes: list[tuple[object, int]]) -> None:
        """See `Judge`."""
        self._post(self._part, AppendsCommitted(outcomes))

    def failed(self, caller: object, pending: Pending) -> None:
        """See `Judge`."""
        call, outcome = caller, pending._outcome
        assert isinstance(call, Call)
        assert isinstance(outcome, Failed)
        call.failure = self._engine.life.error_of(outcome, pending._locks)
        if outcome.reason is Reason.LOCK and self._engine.instrument is not None:
            self._engine.instrument.conflict(self._part.partition, outcome.blocking_id)
        self._post(self._part, judge(call, outcome))
