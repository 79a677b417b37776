"""A progress bar on standard error, where that is a terminal; counts in any case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_EVERY = 100  # counts between two looks of the bar


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
