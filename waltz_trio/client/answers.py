"""Questions whose answer somebody waits for; the machine has an `Answer` as its token."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

import trio

from waltz_core.base.errors import ClientError

T = TypeVar("T")


class Answer(Generic[T]):
    """One answer for one waiter."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._value: T | None = None
        self._error: ClientError | None = None

    def give(self, value: T) -> None:
        """It is there."""
        self._value = value
        self._event.set()

    def fail(self, error: ClientError) -> None:
        """It will never be."""
        self._error = error
        self._event.set()

    async def wait(self) -> T:
        """The answer, or the error."""
        await self._event.wait()
        if self._error is not None:
            raise self._error
        return cast(T, self._value)


class Answers(Generic[T]):
    """The questions of one kind that have no answer yet."""

    def __init__(self) -> None:
        self._waiting: set[Answer[T]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self) -> Answer[T]:
        """A place for another answer."""
        answer: Answer[T] = Answer()
        self._waiting.add(answer)
        return answer

    def give(self, token: object, value: T) -> None:
        """The answer of the machine."""
        assert isinstance(token, Answer)
        self._waiting.discard(token)
        token.give(value)

    def refuse(self, token: object, error: ClientError) -> None:
        """The machine has none."""
        assert isinstance(token, Answer)
        self._waiting.discard(token)
        token.fail(error)

    def leave(self, answer: Answer[T]) -> bool:
        """Nobody waits for it any more; whether it was still to come."""
        if answer not in self._waiting:
            return False
        self._waiting.remove(answer)
        return True

    def fail(self, error: ClientError) -> None:
        """No answer comes any more."""
        for answer in self._waiting:
            answer.fail(error)
