"""Who waits until the view of an application holds something: marks of its partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import PartitionUnavailableError
from waltz_core.client.submit_calls import MarkReached, MarkWanted, Withdrawn
from waltz_trio.base.background import Background
from waltz_trio.client.arguments import mark as mark_of
from waltz_trio.client.calls import Call
from waltz_trio.client.parts import Part, Parts, Tell, unavailable

_PROGRESS_EVERY = 10.0  # seconds between two lines of the log while a view catches up


class Marks:
    """Waiting for those of one application."""

    def __init__(self, parts: Parts, tell: Tell, report: Callable[[Level, str], None]) -> None:
        self._parts = parts
        self._tell = tell
        self._report = report

    async def caught_up(self, partition: int | None, to: int | None) -> None:
        """See `Application.caught_up`."""
        to = None if to is None else mark_of(to, "to")
        calls = []
        try:
            for each in self._parts if partition is None else (partition,):
                part, call = self._parts.running_one(each), Call()
                calls.append((part, call))
                self._tell(part, MarkWanted(call, to))
            for part, call in calls:
                await self._reached(part, call)
        finally:
            for part, call in calls:
                self._tell(part, Withdrawn(call))
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _reached(self, part: Part, call: Call) -> int:
        await call.wait()
        effect, call.effect = call.effect, None  # as `outcome_of` does
        if isinstance(effect, MarkReached):
            return effect.mark
        raise unavailable(part)

    async def reach(self, part: Part, mark: int | None) -> int:
        """Wait until the view has applied a mark, or what is committed by now; gives the mark."""
        call = Call()
        self._tell(part, MarkWanted(call, mark))
        try:
            return await self._reached(part, call)
        finally:
            self._tell(part, Withdrawn(call))

    async def reach_the_log(self, tasks: Background) -> None:
        """Catch up with the log as it is now; a partition that is paused on the way is left as it is."""
        entered = trio.Event()
        tasks.start_soon(self._tell_progress, entered)
        calls = [(part, Call()) for part in self._parts.values()]
        for part, call in calls:
            self._tell(part, MarkWanted(call, None))
        for part, call in calls:
            with contextlib.suppress(PartitionUnavailableError):
                await self._reached(part, call)
        entered.set()

    async def _tell_progress(self, entered: trio.Event) -> None:
        while True:
            with trio.move_on_after(_PROGRESS_EVERY):
                await entered.wait()
                return
            for part in self._parts.values():
                applied, committed = part.submitter.applied_mark, part.submitter.committed_mark
                if applied < committed:
                    text = f"partition {part.partition}: the view catches up, it has applied {applied} of {committed}"
                    self._report(Level.INFO, text)
