"""Ctrl-C, SIGTERM and SIGHUP while a command runs: it ends in order, and says what it leaves and how to go on.

A command that ends without a word leaves its operator to guess whether a change was made, and its session with
ZooKeeper, with the admin lock if it holds that, to time out. And a KeyboardInterrupt that is raised wherever the
process happens to be may be taken for something else there, such as a connection that broke.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

_advice: list[str] = []  # of the blocks that were interrupted, the innermost first
_signal = signal.SIGINT  # what interrupted the command


@contextmanager
def advising(advice: Callable[[], str]) -> Iterator[None]:
    """Say this if the block is interrupted."""
    try:
        yield
    except Exception:
        raise
    except BaseException:  # it may be the cancellation that follows from an interruption
        _advice.append(advice())
        raise


@asynccontextmanager
async def interruptible() -> AsyncIterator[None]:
    """Cancel the block at the first Ctrl-C, SIGTERM or SIGHUP; behind it they do what they did before.

    Raises:
        KeyboardInterrupt: the block was interrupted.
    """
    import trio

    from waltz_trio.base.background import background_nursery

    # A script that puts a command into the background has it ignore Ctrl-C, and `nohup` the end of the terminal.
    ends = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    heard = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    if not heard or threading.current_thread() is not threading.main_thread():
        yield
        return
    scope = trio.CancelScope()

    async def listen(*, task_status: trio.TaskStatus[None]) -> None:
        global _signal
        with trio.open_signal_receiver(*heard) as signals:
            task_status.started()
            _signal = signal.Signals(await anext(aiter(signals)))
        scope.cancel()

    async with background_nursery() as nursery:
        await nursery.start(listen)
        with scope:
            yield
    if scope.cancelled_caught:
        raise KeyboardInterrupt


@contextmanager
def blocking() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block, which keeps the event loop waiting, at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM interrupts the block as Ctrl-C does, by whatever answers that there: Trio, PySpark or Python itself."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        global _signal
        _signal = signal.Signals(number)
        answer = signal.getsignal(signal.SIGINT)
        # A script that puts a command into the background has it ignore Ctrl-C.
        (answer if callable(answer) else signal.default_int_handler)(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def begin() -> None:
    """A command begins."""
    global _signal
    _signal = signal.SIGINT
    _advice.clear()


def is_interruption(error: BaseException) -> bool:
    """Whether nothing else has ended a command."""
    if not isinstance(error, BaseExceptionGroup):
        return isinstance(error, KeyboardInterrupt)
    interrupted, rest = error.split(KeyboardInterrupt)
    return interrupted is not None and rest is None


def told() -> tuple[int, str]:
    """Exit status and last words of a command that was interrupted."""
    return 128 + _signal, "\n".join([f"Interrupted by {_signal.name}", *_advice])
