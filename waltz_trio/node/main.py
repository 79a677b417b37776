"""What a program of ours does around its process: signals, limits of the system, garbage collection."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
from collections.abc import Callable
from typing import Protocol

import trio

from waltz_core.base.edge import Level
from waltz_trio.base.background import background_nursery

_SHUTDOWN_MAX = 10.0  # seconds until a machine that does not end is ended


class Process(Protocol):
    """What can be run as a process of its own: a server, a storage node."""

    report: Callable[[Level, str], None]

    async def run(self) -> str:
        """Serve until the end; returns why it could not continue (empty after an orderly end)."""

    def shutdown(self) -> None:
        """Ask for an orderly end."""

    def cancel(self) -> None:
        """End without waiting."""


def raise_descriptors() -> None:
    """Allow this process as many files and connections as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tune_collector() -> None:
    """Make garbage collection rare; for processes that are ours alone, once they are built.

    Records hold no cycles, so the collector finds next to nothing, and each of its full passes walks every
    cached record: a sixth of the processor time of a loaded server and storage node with the defaults.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def ending_signals() -> tuple[signal.Signals, ...]:
    """What ends a process that serves: the end of its terminal, too, unless it is to outlive that (`nohup`)."""
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM) if outlives else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run_until_signal(process: Process) -> int:
    """Run a process until it or a signal ends it (SIGINT or SIGTERM twice: at once); returns its exit status."""
    async with background_nursery() as nursery:

        async def watch() -> None:
            with trio.open_signal_receiver(*ending_signals()) as signals:
                async for number in signals:
                    process.report(Level.INFO, f"{signal.Signals(number).name}: ending")
                    process.shutdown()
                    nursery.start_soon(give_up)
                    break
                async for number in signals:
                    if number != signal.SIGHUP:  # which both the shell and the terminal send
                        process.cancel()

        async def give_up() -> None:
            await trio.sleep(_SHUTDOWN_MAX)
            process.report(Level.WARNING, f"not ended in order after {_SHUTDOWN_MAX:.0f} s")
            process.cancel()

        nursery.start_soon(watch)
        tune_collector()
        raise_descriptors()
        reason = await process.run()
        if reason:
            process.report(Level.ERROR, f"the process cannot continue: {reason}")
    return 1 if reason else 0
