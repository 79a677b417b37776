"""What `with` enters here, and errors for every other use of it."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, NoReturn, TypeVar

from waltz_trio.client.blocks import NotEntered

T = TypeVar("T")


class Block(NotEntered, Generic[T]):
    """What `with` enters: every other use of it is an error that shows the right line."""

    _line = "with open_client(...) as client:"

    def __enter__(self) -> T:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> NoReturn:
        raise TypeError(f"waltz_sync is for plain threads, without `async`; write: {self._line}")

    async def __aexit__(self, *_: object) -> None:
        """Never reached; `async with` looks for it before it enters."""
