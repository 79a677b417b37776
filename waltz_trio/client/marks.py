"""Who waits until the view of an application holds something: marks of its partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import PartitionUnavailableError
from waltz_core.client.submit_calls import MarkReached, MarkWanted, NoMark, Withdrawn
from waltz_trio.base.background import Background
from waltz_trio.client.arguments import mark as mark_of
from waltz_trio.client.calls import Call
from waltz_trio.client.parts import Part, Parts, Tell, unavailable, untold

_PROGRESS_EVERY = 10.0  # seconds between two lines of the log while a view catches up


class Marks:
    """Waiting for those of one application."""

    def __init__(self, parts: Parts, tell: Tell, report: Callable[[Level, str], None]) -> None:
        self._parts = parts
        self._tell = tell
        self._report = report

    async def caught_up(self, partition: int | None, to: int | None) -> None:
        """See `Application.caught_up`."""
        mark = None if to is None else mark_of(to, "to")
        partitions = self._parts if partition is None else (partition,)
        with self._asked(map(self._parts.running_one, partitions), mark) as calls:
            for part, call in calls:
                await self._reached(part, call)
        await trio.lowlevel.checkpoint_if_cancelled()

    @contextlib.contextmanager
    def _asked(self, parts: Iterable[Part], mark: int | None) -> Iterator[list[tuple[Part, Call]]]:
        """Ask all of them at once for a mark, or for what is committed by now; nobody is left asked."""
        calls: list[tuple[Part, Call]] = []
        try:
            for part in parts:
                call = Call()
                calls.append((part, call))
                self._tell(part, MarkWanted(call, mark))
            yield calls
        finally:
            for part, call in calls:
                self._tell(part, Withdrawn(call))

    async def _reached(self, part: Part, call: Call) -> int:
        await call.wait()
        effect, call.effect = call.effect, None  # as `outcome_of` does
        if isinstance(effect, MarkReached):
            return effect.mark
        raise untold(part) if isinstance(effect, NoMark) else unavailable(part)

    async def reach(self, part: Part, mark: int | None) -> int:
        """Wait until the view has applied a mark, or what is committed by now; gives the mark."""
        with self._asked((part,), mark) as [(_, call)]:
            return await self._reached(part, call)

    async def reach_the_log(self, tasks: Background) -> None:
        """Catch up with the log as it is now; a partition that is paused on the way is left as it is."""
        entered = trio.Event()
        tasks.start_soon(self._tell_progress, entered)
        with self._asked(self._parts.values(), None) as calls:
            for part, call in calls:
                try:
                    await self._reached(part, call)
                except PartitionUnavailableError:
                    if part.paused is None:
                        raise
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
