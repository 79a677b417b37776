"""What is wrong with peers, in the log: `waltz_core.access.complaints` says which lines, here is the clock."""

from __future__ import annotations

from collections.abc import Callable

import trio

from waltz_core.access import complaints
from waltz_core.base.edge import Level, Report
from waltz_trio.base.pump import now_ms


class Complaints:
    """A scanner must not fill the log, nor hide what is wrong with somebody else.

    Lifetime: `put` at any time; `run` in a nursery, for the counts at the end of a minute.
    """

    def __init__(self, report: Callable[[Level, str], None]) -> None:
        self._report = report
        self._rule = complaints.Complaints()
        self._begun = trio.Event()

    def put(self, peer: str, text: str) -> None:
        """Something is wrong with `peer`, or with no particular one."""
        self.take(Report(Level.WARNING, f"{peer}: {text}" if peer else text, peer))

    def take(self, report: Report) -> None:
        """The same, where a machine says it."""
        self._write(self._rule.put(now_ms(), report))
        self._begun.set()

    async def run(self) -> None:
        """Write what was counted, until cancelled."""
        while True:
            await self._begun.wait()
            due = self._rule.deadline()
            if due is None:
                self._begun = trio.Event()
                continue
            await trio.sleep_until(due / 1000)
            self._write(self._rule.due(now_ms()))

    def _write(self, lines: list[Report]) -> None:
        for line in lines:
            self._report(line.level, line.text)
