"""Disk work of several steps, written as generators: each yields what it wants done and is resumed with the answer.

A procedure touches nothing but what it is given, so the same one runs on a real disk, on a simulated one
that crashes between any two steps, and step by step in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from waltz_core.base.contract import Tickets
from waltz_core.base.errors import StorageError
from waltz_core.base.record import record
from waltz_core.storage.effects import (
    DiskBatch,
    DiskBytes,
    DiskDone,
    DiskEvent,
    DiskFailed,
    DiskList,
    DiskListing,
    DiskRead,
    FaultKind,
    FileEntry,
    Operation,
)

T = TypeVar("T")


class DiskError(StorageError):
    """The disk did not do what was asked."""

    def __init__(self, kind: FaultKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@record
class ReadSpan:
    """Ask for up to `length` bytes of a file."""

    path: str
    offset: int
    length: int


@record
class ListNames:
    """Ask for the content of a directory."""

    path: str


DiskWork: TypeAlias = tuple[Operation, ...] | ReadSpan | ListNames
DiskAnswer: TypeAlias = bytes | tuple[FileEntry, ...] | None
Procedure: TypeAlias = Generator[DiskWork, DiskAnswer, T]


def write(*operations: Operation) -> Procedure[None]:
    """Carry out operations in order.

    Raises:
        DiskError: any part of them may have happened.
    """
    yield operations


def read(path: str, offset: int, length: int) -> Procedure[bytes]:
    """Bytes of a file, fewer at its end.

    Raises:
        DiskError: the file is missing or cannot be read.
    """
    answer = yield ReadSpan(path, offset, length)
    assert isinstance(answer, bytes)
    return answer


def list_names(path: str) -> Procedure[tuple[FileEntry, ...]]:
    """Content of a directory; an absent one counts as empty.

    Raises:
        DiskError: it cannot be read.
    """
    try:
        answer = yield ListNames(path)
    except DiskError as fault:
        if fault.kind is not FaultKind.MISSING:
            raise
        return ()
    assert isinstance(answer, tuple)
    return answer


Done: TypeAlias = Callable[[list[object]], None]


class Runner:
    """Runs procedures over disk effects; the tickets tie answers to the procedure that waits for them."""

    __slots__ = ("_tickets", "_waiting", "stale")

    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets
        self._waiting: dict[int, tuple[Procedure[None], Done]] = {}
        self.stale = 0  # answers nobody waits for

    @property
    def idle(self) -> bool:
        """No procedure waits for the disk."""
        return not self._waiting

    def start(self, procedure: Procedure[None], done: Done, out: list[object]) -> None:
        """Begin a procedure; `done(out)` is called when it has ended, which may be before this returns."""
        self._advance(procedure, done, None, None, out)

    def on_event(self, event: DiskEvent, out: list[object]) -> None:
        """Resume whoever waits for `event`."""
        waiting = self._waiting.pop(event.ticket, None)
        if waiting is None:
            self.stale += 1  # an answer to a procedure of before a restart: nothing may be concluded from it
            return
        procedure, done = waiting
        match event:
            case DiskFailed(kind=kind, reason=reason):
                self._advance(procedure, done, None, DiskError(kind, reason), out)
            case DiskBytes(data=data):
                self._advance(procedure, done, data, None, out)
            case DiskListing(entries=entries):
                self._advance(procedure, done, entries, None, out)
            case DiskDone():
                self._advance(procedure, done, None, None, out)

    def _advance(
        self, procedure: Procedure[None], done: Done, answer: DiskAnswer, fault: DiskError | None, out: list[object]
    ) -> None:
        try:
            work = procedure.send(answer) if fault is None else procedure.throw(fault)
        except StopIteration:
            done(out)
            return
        ticket = self._tickets.take()
        self._waiting[ticket] = procedure, done
        match work:
            case ReadSpan(path, offset, length):
                out.append(DiskRead(ticket, path, offset, length))
            case ListNames(path):
                out.append(DiskList(ticket, path))
            case _:
                out.append(DiskBatch(ticket, work))
