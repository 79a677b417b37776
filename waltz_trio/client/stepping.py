"""Steps the machines of an application: when something happened to one, and when a pause or a limit of one ends."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from waltz_core.base.contract import earliest
from waltz_core.base.errors import PartitionUnavailableError
from waltz_core.client.applier import Commit, Poisoned, TakeNext
from waltz_core.client.materialized import Effect, Event
from waltz_core.client.submit_calls import AskMark, Decide, MarkAnswered, Send, SubmitDone
from waltz_trio.base.background import Background
from waltz_trio.base.pump import now_ms
from waltz_trio.client.calls import Call
from waltz_trio.client.deciding import PartJudge, Sending
from waltz_trio.client.engine import Engine
from waltz_trio.client.parts import Part


class Stepper:
    """Hands events to the machine of a partition, and what it says to those who wait for it."""

    def __init__(self, engine: Engine, parts: Iterable[Part]) -> None:
        self.tasks: Background | None = None  # while the block of the application runs
        self._reads = engine.reads
        self._sending = Sending(engine)
        self._parts = tuple(parts)
        for part in self._parts:
            part.judge = PartJudge(part, engine, self.post)
        self._armed: int | None = None  # when the task that keeps time wakes up
        self._rearm = trio.Event()
        self._has_posted = trio.Event()

    def post(self, part: Part, event: Event) -> None:
        """Tell it together with what else happens in this round of the event loop: a step costs more than an event."""
        if self.tasks is None:
            self.tell(part, event)  # nobody would take it along any more
            return
        part.posted.append(event)
        if len(part.posted) == 1:
            self._has_posted.set()

    async def take_along(self) -> None:
        """Tell what was posted."""
        while True:
            await self._has_posted.wait()
            self._has_posted = trio.Event()
            for part in self._parts:
                if part.posted:
                    self.tell(part)

    def tell(self, part: Part, *events: Event) -> None:
        """Step the machine, with what was posted before these events, and hand out what it says."""
        out: list[Effect] = []
        posted, part.posted = part.posted, []
        posted += events
        part.machine.step(now_ms(), posted, out)
        sends: list[object] = []
        for effect in out:  # those that every submit has come first
            if isinstance(effect, Send):
                sends.append(effect.token)
            elif isinstance(effect, Decide):
                self._decide(part, effect)
            elif isinstance(effect, SubmitDone):
                assert isinstance(effect.token, Call)
                effect.token.end(effect)
            elif isinstance(effect, AskMark):
                if self.tasks is not None:
                    self.tasks.start_soon(self._ask, part)
            elif isinstance(effect, (Commit, TakeNext, Poisoned)):
                part.for_view(effect)
            else:
                assert isinstance(effect.token, Call)
                effect.token.end(effect)
        if sends:
            self._sending.send(part, sends)
        at = part.machine.deadline()
        if at is not None and (self._armed is None or at < self._armed):
            self._rearm.set()

    def _decide(self, part: Part, effect: Decide) -> None:
        call = effect.token
        assert isinstance(call, Call)
        if call.awaits:
            call.effect = effect
            call.waiter.wake()
            return
        if part.woken is not None and not part.undecided:
            part.woken.set()
        part.undecided[call] = None

    async def keep_time(self) -> None:
        """Step the machines when a pause or a limit ends."""
        while True:
            self._rearm = trio.Event()
            self._armed = at = earliest(*(part.machine.deadline() for part in self._parts))
            with trio.CancelScope(deadline=float("inf") if at is None else at / 1000):
                await self._rearm.wait()
            now = now_ms()
            for part in self._parts:
                due = part.machine.deadline()
                if due is not None and due <= now:
                    self.tell(part)

    async def _ask(self, part: Part) -> None:
        mark: int | None = None
        try:
            mark = await self._reads.committed_mark(part.partition)
        except PartitionUnavailableError as error:  # it is for those who wait for the mark, not for the application
            part.no_mark = error.reason
        self.tell(part, MarkAnswered(mark))
