"""Who may block a thread here, and for how long."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import trio


def check_plain_thread() -> None:
    """See that the caller may block its thread.

    Raises:
        RuntimeError: a task of Trio or asyncio runs here, and every other task would stand still meanwhile.
    """
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "waltz_sync blocks its thread, but Trio runs here: use waltz_trio (async with, await), or call from a "
            "thread: await trio.to_thread.run_sync(...)"
        )
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None or _in_notebook():
        return
    raise RuntimeError(
        "waltz_sync blocks its thread, but asyncio runs here, and its loop would stand still: call from a thread: "
        "await asyncio.to_thread(...)"
    )


def _in_notebook() -> bool:
    """A cell runs inside the kernel's loop, which waits for every cell anyway."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def check_timeout(timeout: float | None) -> float:
    """Seconds, without end for None.

    Raises:
        TypeError: not a number.
        ValueError: less than nothing.
    """
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is a number of seconds, or None to wait without end, found {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout is at least 0 seconds, found {timeout!r}")
    return float(timeout)


def after(timeout: float | None, late: str | Callable[[], str]) -> Callable[[], str]:
    """What a TimeoutError says, made when the time is over."""
    return lambda: f"after {timeout} s: {late if isinstance(late, str) else late()}"
