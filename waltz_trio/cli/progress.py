"""What is under way, on standard error where that is a terminal: a bar for what is counted, else what is waited for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_EVERY = 100  # counts between two looks of the bar
ASKING = "asking servers and storage nodes"
_SOON = 2.0  # seconds that nobody wonders about


class Counted:
    """How much is done of `total`."""

    def __init__(self, progress: Progress, task: TaskID, total: int) -> None:
        self._progress = progress
        self._task = task
        self.total = total
        self.done = 0

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        self.done += count
        if self.done % _EVERY == 0 or self.done >= self.total:
            self._progress.update(self._task, completed=self.done)


@contextmanager
def counted(what: str, total: int) -> Iterator[Counted]:
    """Show progress until the block is left."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Counted(progress, progress.add_task(what, total=total), total)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say what is waited for while the block runs, if it takes longer than two seconds."""
    if not sys.stderr.isatty():
        yield
        return
    status = Console(stderr=True).status(f"{what} ...")
    timer = Timer(_SOON, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
