"""`waltz performance`, as far as it needs no cluster."""

from __future__ import annotations

import trio

from waltz_trio.cli.performance import append_all
from waltz_trio.cli.progress import counted


def test_a_large_number_of_transactions_is_no_large_number_of_tasks() -> None:
    tasks, appended = [], 0

    async def append() -> None:
        nonlocal appended
        await trio.lowlevel.checkpoint()
        tasks.append(trio.lowlevel.current_statistics().tasks_living)
        appended += 1

    async def run() -> None:
        with counted("appending", 2_000) as progress:
            await append_all(append, 2_000, progress)
            assert progress.done == 2_000

    trio.run(run)
    assert appended == 2_000
    assert max(tasks) < 150
