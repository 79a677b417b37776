"""Appends of a gateway: carries out what `AppendMachine` decides, and counts what is under way."""

from __future__ import annotations

from collections.abc import Callable

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import LockConflictError, NotCommittedError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.gateway import calls, replies
from waltz_core.gateway.keyed import (
    AppendMachine,
    AskMark,
    Begun,
    Carrier,
    Committed,
    Done,
    Event,
    LookUp,
    Lost,
    MarkAnswered,
    Refused,
    Searched,
    Send,
    carrier,
)
from waltz_core.gateway.problems import Outcome, Problem
from waltz_core.gateway.quotas import Quotas
from waltz_trio.client.values import Append
from waltz_trio.gateway.clusters import Cluster


class _Run:
    """One append under way."""

    def __init__(self, call: calls.Append, cluster: Cluster) -> None:
        self.call = call
        self.cluster = cluster
        self.sent = False  # something has left whose outcome was not heard
        self.searching = False  # for an earlier attempt of its key, which may be in the log
        self.given_up = False  # nobody waits any more
        self.result: Done | Problem | None = None
        self.ended = trio.Event()
        self.scope = trio.CancelScope()

    @property
    def outcome(self) -> Outcome:
        """What is known where it ends without a result."""
        return Outcome.UNKNOWN if self.sent or self.searching else Outcome.REFUSED


class Appends:
    """All appends of a gateway."""

    def __init__(
        self,
        nursery: trio.Nursery,
        quotas: Quotas,
        report: Callable[[Level, str], None],
        *,
        timeout: float,
        window: int,
    ) -> None:
        self._nursery = nursery
        self._quotas = quotas
        self._report = report
        self._timeout = timeout
        self._window = window

    async def append(self, who: str, call: calls.Append, cluster: Cluster) -> Done | Problem:
        """Append, and say what became of it. Who is cancelled while he waits does not know."""
        size = len(call.payload)
        problem = self._quotas.take(who, size)
        if problem is not None:
            return problem
        run = _Run(call, cluster)
        self._nursery.start_soon(self._carry, run, who, size)
        try:
            with trio.move_on_after(self._timeout):
                await run.ended.wait()
        finally:
            run.given_up = True
            if not run.sent:
                run.scope.cancel()  # so that it never leaves
        if run.result is not None:
            return run.result
        return replies.too_slow(run.outcome, self._timeout)

    async def _carry(self, run: _Run, who: str, size: int) -> None:
        try:
            with run.scope:
                run.result = await self._result(run)
        except Exception as error:
            run.result = replies.problem_of(error, run.outcome)
            if run.result.status == 500:
                self._report(Level.ERROR, f"an append to {run.call.place.topic.name} failed: {error!r}")
        finally:
            self._quotas.give_back(who, size)
            run.ended.set()

    async def _result(self, run: _Run) -> Done | Problem | None:
        call, cluster = run.call, run.cluster
        machine = AppendMachine(call.key, call.mark, locked=bool(call.write or call.read), window=self._window)
        partition = call.place.partition
        event: Event = Begun(cluster.known_mark(partition))
        while True:
            match machine.step(event):
                case AskMark():
                    run.searching = call.key is not None  # until it is sent: the log is not searched before it is heard
                    event = MarkAnswered(await cluster.committed_mark(partition))
                case LookUp(first, last):
                    run.searching = True
                    event = Searched(await self._search(run, first, last))
                case Send(based_on):
                    if run.given_up:
                        return None
                    run.searching = False
                    event = await self._send(run, based_on)
                case Done() | Problem() as result:
                    if isinstance(result, Done):
                        cluster.learn(partition, result.transaction_id)
                    return result

    async def _send(self, run: _Run, based_on: int | None) -> Event:
        call = run.call
        client = await run.cluster.client()
        write = call.write if call.key is None else (*call.write, call.key.lock)
        append = Append(call.payload, header=call.header, write=write, read=call.read, append=call.append)
        pending = await client.send(call.place.partition, append, based_on=based_on)
        run.sent = True
        try:
            event: Event = Committed(int(await pending.outcome()))
        except LockConflictError as error:
            event = Refused(error.blocking_id, error.lock)
        except NotCommittedError as error:
            event = Lost(error.reason, error.refused)
        run.sent = False
        return event

    async def _search(self, run: _Run, first: int, last: int) -> Carrier | None:
        call = run.call
        assert call.key is not None
        while first <= last:
            for each in await run.cluster.records(call.place.partition, first, last):
                first = each.id + 1
                if each.header == MARKER_HEADER:
                    continue
                field, data = call.place.topic.key_field, each.load()
                its = carrier(call.key, field, call.payload, call.header, each.id, data, each.header)
                if its is not None:
                    return its
        return None
