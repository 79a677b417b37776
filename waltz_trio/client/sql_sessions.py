"""Connections of a view to its database: one for each thread that needs one, kept for the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

CLOSED = "the cursor was closed, and the view still needs it: close none but your own (`connection.cursor()`)"
"""What an application has done wrong."""

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)


class Session(Protocol[C_co]):
    """One connection, on which only the view begins and ends transactions."""

    def transaction(self) -> AbstractContextManager[C_co]:
        """A transaction, and a cursor of ours: committed at the end of the block, rolled back by an exception."""

    def foreign(self, deferred: bool = False) -> AbstractContextManager[C_co]:
        """The application's code runs, with a cursor of its own: it may change data, not transactions.

        What it says of how rows look, on that cursor or on the connection, is forgotten at the end of the block.
        With `deferred` its statements may be sent without waiting for each one's answer.
        """

    @property
    def usable(self) -> bool:
        """It may serve another transaction."""

    def close(self) -> None:
        """Give the connection up."""


class TransactionLostError(Exception):
    """The database gave the transaction up, and `apply` went on as if nothing had happened."""


class TransactionEndedError(RuntimeError):
    """`apply` has ended the transaction, and may have committed a part of it: the mark then says so."""


class Sessions(Generic[C]):
    """The idle connections of one kind: those that write, or those that only read."""

    def __init__(self, connect: Callable[[], Session[C]], errors: tuple[type[Exception], ...]) -> None:
        """`errors` are what the driver raises: a connection that raised one is not used again."""
        self._connect = connect
        self._errors = errors
        self._idle: list[Session[C]] = []

    @contextlib.contextmanager
    def lend(self, failed: Callable[[Exception], None]) -> Iterator[Session[C]]:
        """A connection for this thread alone; `failed` looks at an error of the driver before it goes on."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = self._connect()
        try:
            yield session
        except self._errors as error:
            session.close()
            failed(error)
            raise
        except BaseException:
            self.put_back(session)
            raise
        else:
            self.put_back(session)

    def put_back(self, session: Session[C]) -> None:
        """Keep a connection for the next who needs one, if it is still good for that."""
        if session.usable:
            self._idle.append(session)
        else:
            session.close()

    def close(self) -> None:
        """Close those that nobody uses right now."""
        idle = self._idle[:]
        self._idle.clear()
        for session in idle:
            session.close()
