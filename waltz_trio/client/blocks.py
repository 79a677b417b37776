"""What `async with` enters: every other use of it is an error that shows the right line."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import trio

T = TypeVar("T")

ENTERED_BEFORE = "a block is entered once: call `open_client`, `client.feed` or `client.materialize` again"


def check_trio() -> None:
    """See that Trio runs the caller.

    Raises:
        RuntimeError: something else does.
    """
    if trio.lowlevel.in_trio_task():
        return
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        raise RuntimeError(
            "waltz_trio runs on Trio, found asyncio: start the program with trio.run(main), not asyncio.run(main()), "
            "and wait with trio.sleep and nurseries"
        )
    raise RuntimeError("waltz_trio runs on Trio, which does not run here: start the program with trio.run(main)")


class AsyncOnly:
    """What is entered with `async with`; any other use is an error that shows `_line`."""

    __slots__ = ()
    _line: str

    def __enter__(self) -> NoReturn:
        raise TypeError(f"`async` is missing before `with`; write: {self._line}")

    def __exit__(self, *_: object) -> None:
        """Never reached; `with` looks for it before it enters."""

    def __await__(self) -> NoReturn:
        raise TypeError(f"this is entered, not awaited; write: {self._line}")


class NotEntered:
    """A block that nobody has entered: every use of what it gives is an error that shows `_line`."""

    __slots__ = ()
    _line: str

    def __iter__(self) -> NoReturn:
        raise TypeError(f"this is entered first; write: {self._line}")

    def __aiter__(self) -> NoReturn:
        raise TypeError(f"this is entered first; write: {self._line}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by copy, inspect and the like
            raise AttributeError(name)
        raise AttributeError(f"this has no {name!r} before it is entered; write: {self._line}")


class AsyncForOnly:
    """What is gone through with `async for`; `for` is an error that shows the right line."""

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "`async` is missing before `for`; write: async for txn in feed: or async for batch in feed.batches(100):"
        )


class Block(AsyncOnly, NotEntered, AbstractAsyncContextManager[T]):
    """An asynchronous context manager around another one.

    Args:
        line: how it is written, such as "async with open_client(...) as client:".
        manager: what is entered.
    """

    __slots__ = ("_entered", "_line", "_manager")

    def __init__(self, line: str, manager: AbstractAsyncContextManager[T]) -> None:
        self._line = line
        self._manager = manager
        self._entered = False

    async def __aenter__(self) -> T:
        check_trio()
        if self._entered:
            raise RuntimeError(ENTERED_BEFORE)
        self._entered = True
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, trace)
