"""Disk work of several steps, written as generators: each yields its next effect and is resumed with the answer.

A procedure touches nothing but what it is given, so the same one runs on a real disk, on a simulated one
that crashes between any two steps, and step by step in a test.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias, TypeVar

from waltz_core.base.contract import Tickets
from waltz_core.base.errors import StorageError
from waltz_core.base.outbox import Emits
from waltz_core.base.pending import Pending
from waltz_core.base.record import record
from waltz_core.storage.effects import (
    DiskBatch,
    DiskBytes,
    DiskDone,
    DiskEffect,
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
    """A disk operation failed."""

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


@record
class ReadSpans:
    """Ask for several spans at once, one at least: a disk reads them in any order, and nobody waits for each."""

    spans: tuple[ReadSpan, ...]


DiskWork: TypeAlias = tuple[Operation, ...] | ReadSpan | ReadSpans | ListNames
DiskAnswer: TypeAlias = bytes | list[bytes] | tuple[FileEntry, ...] | None
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


def read_all(spans: Sequence[ReadSpan]) -> Procedure[list[bytes]]:
    """What each span holds, in their order; errors as `read`, if any of them fails."""
    if not spans:
        return []
    answer = yield ReadSpans(tuple(spans))
    assert isinstance(answer, list)
    return answer


def foreseen(procedure: Procedure[T], known: dict[ReadSpan, bytes]) -> Procedure[T]:
    """Run a procedure whose reads are answered from `known`, where they are in there, until it first writes.

    What was read ahead is thereby only a matter of time: the procedure decides alone what it reads, and why.
    """
    answer: DiskAnswer = None
    fault: DiskError | None = None
    while True:
        try:
            work = procedure.send(answer) if fault is None else procedure.throw(fault)
        except StopIteration as end:
            result: T = end.value
            return result
        fault = None
        if type(work) is ReadSpan and (held := known.get(work)) is not None:
            answer = held
            continue
        if type(work) is tuple:
            known.clear()
        try:
            answer = yield work
        except DiskError as error:
            fault = error


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


@record
class Awaited:
    """A procedure that waits for the disk, and what it is for."""

    procedure: Procedure[None]
    partition_id: int  # -1 = the directory as a whole
    purpose: str  # for people


class _Gathering:
    """The spans of one request, while they come in."""

    __slots__ = ("awaited", "fault", "left", "pieces")

    def __init__(self, awaited: Awaited, count: int) -> None:
        self.awaited = awaited
        self.pieces = [b""] * count
        self.left = count
        self.fault: DiskError | None = None  # the first


@record
class _Piece:
    """One span that was asked for together with others."""

    of: _Gathering
    at: int


class Runner:
    """Runs procedures over disk effects; one table ties answers to the procedure that waits for them.

    A procedure's own last lines do what follows from it: there are no callbacks.
    """

    __slots__ = ("_out", "_pending", "stale")

    def __init__(self, tickets: Tickets, out: Emits[DiskEffect]) -> None:
        self._pending: Pending[Awaited | _Piece] = Pending(tickets)
        self._out = out
        self.stale = 0  # answers that nothing waits for

    @property
    def idle(self) -> bool:
        """No procedure waits for the disk."""
        return not self._pending

    def awaited(self) -> Iterator[Awaited]:
        """The procedures that wait for the disk, longest first."""
        whole = (each.of.awaited if isinstance(each, _Piece) else each for each in self._pending)
        return iter({id(each): each for each in whole}.values())

    def start(self, procedure: Procedure[None], partition_id: int, purpose: str) -> None:
        """Begin a procedure; it may have ended before this returns."""
        self._advance(Awaited(procedure, partition_id, purpose), None, None)

    def on_event(self, event: DiskEvent) -> None:
        """Resume the procedure that waits for `event`."""
        awaited = self._pending.take(event.ticket)
        if awaited is None:
            self.stale += 1  # an answer to a procedure of before a restart, which means nothing now
            return
        if isinstance(awaited, _Piece):
            self._gather(awaited, event)
            return
        match event:
            case DiskDone():
                self._advance(awaited, None, None)
            case DiskFailed(kind=kind, reason=reason):
                self._advance(awaited, None, DiskError(kind, reason))
            case DiskBytes(data=data):
                self._advance(awaited, data, None)
            case DiskListing(entries=entries):
                self._advance(awaited, entries, None)

    def _gather(self, piece: _Piece, event: DiskEvent) -> None:
        gathering = piece.of
        if isinstance(event, DiskFailed):
            gathering.fault = gathering.fault or DiskError(event.kind, event.reason)
        else:
            assert isinstance(event, DiskBytes)
            gathering.pieces[piece.at] = event.data
        gathering.left -= 1
        if not gathering.left:
            fault = gathering.fault
            self._advance(gathering.awaited, gathering.pieces if fault is None else None, fault)

    def _advance(self, awaited: Awaited, answer: DiskAnswer, fault: DiskError | None) -> None:
        procedure = awaited.procedure
        try:
            work = procedure.send(answer) if fault is None else procedure.throw(fault)
        except StopIteration:
            return
        match work:
            case tuple():
                self._out.put(DiskBatch(self._pending.ask(awaited), work))
            case ReadSpan(path, offset, length):
                self._out.put(DiskRead(self._pending.ask(awaited), path, offset, length))
            case ReadSpans(spans):
                gathering = _Gathering(awaited, len(spans))
                for at, span in enumerate(spans):
                    ticket = self._pending.ask(_Piece(gathering, at))
                    self._out.put(DiskRead(ticket, span.path, span.offset, span.length))
            case ListNames(path):
                self._out.put(DiskList(self._pending.ask(awaited), path))
