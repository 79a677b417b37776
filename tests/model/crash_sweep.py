"""The crash sweep: every short life of a storage node, and every state in which a power failure may leave its disk.

A life is a sequence of up to six requests. Its last request is cut off after every single disk operation; there
every legal content of the disk is tried: of each sector any version since its file was synced, of each file any
length it had since and any border of a sector between, of each directory any choice of names that were not synced,
all combined. On each such disk the node is
started again. It must serve, without an operator: all that was acknowledged, nothing that was not sent, no older
session, no lower mark. What the start itself writes is cut off in the same way, once more.

Requests: a = append a record, b = append three, in two segments, m = a new session sets its mark, t = truncate
the last record, w = time passes and the durable mark is written, r = power fails between two requests; in lives
that are two requests shorter also s = the log start is raised as far as it may be, j = it is raised beyond the end.

`python -m tests.model.crash_sweep [--length N] [--json PATH]`: exit status 1 on any violation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any
from uuid import UUID

from tests.model.disk import SECTOR
from waltz_core.base.edge import Accepted, Port, Received, Send
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import (
    Create,
    Cut,
    DiskBatch,
    DiskBytes,
    DiskDone,
    DiskFailed,
    DiskList,
    DiskListing,
    DiskRead,
    FaultKind,
    FileEntry,
    MakeDirectory,
    Operation,
    SyncDirectory,
    SyncFile,
    Unlink,
    WriteAt,
)
from waltz_core.storage.node import StorageNode
from waltz_core.storage.procedure import ReadSpan
from waltz_core.storage.reading import read_range
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection

KEY = UUID(int=7)
LETTERS = "abmtwr"
MORE_LETTERS = LETTERS + "sj"
LENGTH = 6
THRESHOLD = 600  # bytes, after which a segment is followed by another
_DATA = 170  # bytes of a record: three of them cross the border of a sector
_CHOICES_MAX = 20_000  # contents of the disk at one point; more would be a mistake of the sweep

Files = tuple[tuple[str, bytes], ...]


class Violation(AssertionError):  # noqa: N818  what the sweep looks for
    """The node broke a promise."""


class _File:
    """One file: what is durable, and what it went through since."""

    __slots__ = ("versions",)

    def __init__(self, content: bytes = b"") -> None:
        self.versions = [content]  # the first is durable, the last is what the process sees

    @property
    def now(self) -> bytes:
        return self.versions[-1]

    def become(self, content: bytes) -> None:
        if content != self.versions[-1]:
            self.versions.append(content)

    def contents(self) -> list[bytes]:
        """Whatever a power failure may leave."""
        if len(self.versions) == 1:
            return self.versions
        lengths = {len(version) for version in self.versions}
        borders = range(-(-min(lengths) // SECTOR) * SECTOR, max(lengths), SECTOR)
        sizes = sorted({*lengths, *borders})
        count = -(-sizes[-1] // SECTOR)
        sectors = []
        for number in range(count):
            span = slice(number * SECTOR, (number + 1) * SECTOR)
            sectors.append(sorted({version[span].ljust(SECTOR, b"\0") for version in self.versions}))
        found = set()
        for choice in itertools.product(*sectors):
            whole = b"".join(choice)
            found.update(whole[:size] for size in sizes)
        return sorted(found)


class Disk:
    """The directory of a node, with everything that is not durable yet."""

    @staticmethod
    def deaf_to(operation: Operation) -> bool:
        """Whether this disk only pretends to have done it: replaced to see that the sweep notices."""
        return False

    def __init__(self, files: Files = (), directories: Sequence[str] = ()) -> None:
        self._files = {path: _File(content) for path, content in files}  # as the process sees it
        self._durable = dict(self._files)
        self._directories = {"", *directories}
        self._durable_directories = {"", *directories}

    def apply(self, operation: Operation) -> None:
        if self.deaf_to(operation):
            return
        match operation:
            case Create(path):
                if path in self._files:
                    self._files[path].become(b"")
                else:
                    self._files[path] = _File()
            case WriteAt(path, offset, data):
                old = self._files[path].now.ljust(offset, b"\0")
                self._files[path].become(old[:offset] + data + old[offset + len(data) :])
            case Cut(path, size):
                self._files[path].become(self._files[path].now[:size])
            case Unlink(path):
                self._files.pop(path, None)
            case MakeDirectory(path):
                self._directories.add(path)
            case SyncFile(path):
                del self._files[path].versions[:-1]
            case SyncDirectory(path):
                self._sync_names(path)

    def _sync_names(self, directory: str) -> None:
        for name in {*self._files, *self._durable}:
            if name.rpartition("/")[0] == directory:
                if name in self._files:
                    self._durable[name] = self._files[name]
                else:
                    self._durable.pop(name, None)
        self._durable_directories |= {one for one in self._directories if one.rpartition("/")[0] == directory}

    def look(self, effect: DiskRead | DiskList) -> DiskBytes | DiskListing | DiskFailed:
        if isinstance(effect, DiskRead):
            if effect.path not in self._files:
                return DiskFailed(effect.ticket, FaultKind.MISSING, "no such file")
            content = self._files[effect.path].now
            return DiskBytes(effect.ticket, content[effect.offset : effect.offset + effect.length])
        if effect.path not in self._directories:
            return DiskFailed(effect.ticket, FaultKind.MISSING, "no such directory")
        found = [
            FileEntry(path.rpartition("/")[2], len(file.now))
            for path, file in self._files.items()
            if path.rpartition("/")[0] == effect.path
        ]
        found += [FileEntry(one, 0, True) for one in self._directories if one and not effect.path]
        return DiskListing(effect.ticket, tuple(sorted(found, key=lambda one: one.name)))

    def choices(self) -> Iterator[tuple[Files, tuple[str, ...]]]:
        """Every content that a power failure may leave."""
        names = sorted({*self._files, *self._durable})
        loose = sorted(self._directories - self._durable_directories)
        for kept in itertools.product((False, True), repeat=len(loose)):
            directories = {*self._durable_directories, *itertools.compress(loose, kept)}
            options: list[list[tuple[str, bytes] | None]] = []
            for name in names:
                if name.rpartition("/")[0] not in directories:
                    continue
                files = [self._durable.get(name)]
                if self._files.get(name) is not files[0]:
                    files.append(self._files.get(name))
                found: list[tuple[str, bytes] | None] = []
                for file in files:
                    found += [None] if file is None else [(name, content) for content in file.contents()]
                options.append(found)
            for choice in itertools.product(*options):
                yield tuple(one for one in choice if one is not None), tuple(sorted(directories - {""}))

    def durable_only(self) -> tuple[Files, tuple[str, ...]]:
        """What a power failure leaves at least."""
        files = tuple(sorted((name, file.versions[0]) for name, file in self._durable.items()))
        return files, tuple(sorted(self._durable_directories - {""}))


class Promise:
    """What was acknowledged, and what may stand besides while a request is under way."""

    def __init__(self) -> None:
        self.acked: list[Record] = []
        self.sent: tuple[Record, ...] = ()
        self.kept = -1  # a truncation under way may leave records up to here only
        self.truncating = False
        self.floor = -1
        self.floor_asked = -1
        self.session = 0
        self.made = 0
        self.base = 0  # id of the first of `acked`
        self.start = 0  # below it nothing may be given out
        self.start_asked: int | None = None  # the same, while it is being raised

    def key(self) -> Any:
        records = (*self.acked, *self.sent)
        return (
            tuple(one.header for one in records),
            len(self.acked),
            self.kept if self.truncating else None,
            self.floor,
            self.session,
            (self.base, self.start, self.start_asked),
        )

    @property
    def next_id(self) -> int:
        """Behind what was acknowledged."""
        return self.base + len(self.acked)

    def judge(self, start: int, found: list[Record], fence: int, mark: int) -> None:
        if start not in (self.start, self.start_asked):
            raise Violation(f"the log starts at {start}, it was raised to {self.start}")
        acked = self.acked[max(0, start - self.base) :]
        lowest = min(len(acked), self.kept + 1 - start) if self.truncating else len(acked)
        if len(found) < lowest:
            raise Violation(f"{len(found)} records are left, {lowest} were acknowledged")
        if found[: len(acked)] != acked[: len(found)]:
            raise Violation("an acknowledged record was altered")
        beyond = found[len(acked) :]
        if tuple(beyond) != self.sent[: len(beyond)]:
            raise Violation("records that nobody sent")
        if fence < self.session:
            raise Violation(f"session {self.session} was answered, but sessions from {fence} on are let in")
        if mark < self.floor:
            raise Violation(f"the low-water mark fell from {self.floor} to {mark}")


class Process:
    """One run of the node on a disk."""

    def __init__(self, disk: Disk, now: int) -> None:
        self.disk = disk
        self.now = now
        self.operations = 0
        self.on_operation: Any = None
        self.node = StorageNode(StorageConfig(KEY.bytes, 1, THRESHOLD, wall_clock_offset_ms=1 << 40))
        self._conns: dict[int, Connection[Any]] = {}
        self._answers: list[Any] = []
        self.step([])

    def dial(self) -> None:
        openings = (
            (1, Port.ADMIN, ADMIN_PROTOCOL, admin.AdminOpenRequest(-1, KEY, 1)),
            (2, Port.STORAGE, STORAGE_PROTOCOL, wire.OpenRequest(-1, -1, -1, KEY, 1)),
        )
        for conn, port, protocol, opening in openings:
            made = self._conns[conn] = Connection[Any](protocol, "", (0, 1))
            self.step([Accepted(conn, port, ""), Received(conn, made.hello())])
            self.ask(conn, opening)

    def ask(self, conn: int, message: Any) -> Any:
        out = bytearray()
        self._conns[conn].encode(message, out)
        self._answers.clear()
        self.step([Received(conn, bytes(out))])
        assert len(self._answers) == 1, self._answers
        return self._answers[0]

    def step(self, events: Sequence[Any]) -> None:
        todo = list(events)
        while True:
            out: list[Any] = []
            self.node.step(self.now, todo, out)
            todo = []
            for effect in out:
                if isinstance(effect, DiskBatch):
                    for operation in effect.operations:
                        self.disk.apply(operation)
                        self.operations += 1
                        if self.on_operation is not None:
                            self.on_operation()
                    todo.append(DiskDone(effect.ticket))
                elif isinstance(effect, DiskRead | DiskList):
                    todo.append(self.disk.look(effect))
                elif isinstance(effect, Send):
                    self._conns[effect.conn].receive(effect.data, self._answers)
            if not todo:
                return


class Life:
    """A process, its disk and what it promised; requests are letters."""

    def __init__(self) -> None:
        self.promise = Promise()
        self.disk = Disk()
        self.process = Process(self.disk, 0)
        self.process.dial()
        self._assign()

    def _assign(self) -> None:
        answer = self.process.ask(1, admin.PartitionAssignmentRequest(1, (0,), True, False))
        assert isinstance(answer, admin.AdminSuccessResponse)
        self._greet(0)

    def _greet(self, session: int) -> None:
        answer = self.process.ask(2, wire.LastSessionInfoRequest(session, 1, 0, False))
        assert isinstance(answer, wire.LastSessionInfoResponse), answer
        self.promise.session = session

    def do(self, letter: str) -> bool:
        """One request; False if it asked nothing of the disk."""
        before = self.process.operations
        promise = self.promise
        ids = promise.session, 1, 0
        match letter:
            case "a":
                self._append(1)
            case "b":
                self._append(3)
            case "m":
                self._greet(promise.session + 1)
                mark = promise.next_id - 1
                answer = self.process.ask(2, wire.SetLowWaterMarkRequest(promise.session, 1, 0, mark, False))
                assert isinstance(answer, wire.SuccessResponse), answer
                promise.floor = mark
            case "t":
                target = max(promise.floor, promise.start - 1, promise.next_id - 2)
                if target >= promise.next_id - 1:
                    return False
                promise.kept, promise.truncating = target, True
                answer = self.process.ask(2, wire.TruncateRequest(*ids, target, False))
                assert isinstance(answer, wire.MaxTransactionIdResponse), answer
                del promise.acked[target + 1 - promise.base :]
                promise.truncating = False
            case "s" | "j":
                promise.start_asked = promise.floor + 1 if letter == "s" else promise.next_id + 2
                if promise.start_asked <= promise.start:
                    promise.start_asked = None
                    return False
                answer = self.process.ask(2, wire.SetLogStartRequest(*ids, promise.start_asked))
                assert isinstance(answer, wire.SuccessResponse), answer
                promise.start, promise.start_asked = promise.start_asked, None
                if letter == "j":
                    promise.acked, promise.base = [], promise.start
            case "w":
                self.process.now += 2000
                self.process.step([])
            case "r":
                files, directories = self.disk.durable_only()
                now, watched = self.process.now, self.process.on_operation
                self.disk = Disk(files, directories)
                process = Process.__new__(Process)
                self.process = process
                process.on_operation = watched
                _start(process, self.disk, now, watched)
                process.dial()
        return self.process.operations > before or letter == "r"

    def _append(self, count: int) -> None:
        promise = self.promise
        first = promise.next_id
        made = []
        for one in range(first, first + count):
            promise.made += 1
            data = bytes([promise.made]) * _DATA
            made.append(Record(one, ReqId(promise.made.to_bytes(16)), promise.made, data, 7))
        promise.sent = tuple(made)
        answer = self.process.ask(2, wire.AppendRequest(promise.session, 1, 0, tuple(made), False))
        assert isinstance(answer, wire.SuccessResponse), answer
        promise.acked += made
        promise.sent = ()


def _start(process: Process, disk: Disk, now: int, watched: Any) -> None:
    """Start a process whose disk operations are watched from the first on."""
    process.disk, process.now, process.operations, process.on_operation = disk, now, 0, watched
    process.node = StorageNode(StorageConfig(KEY.bytes, 1, THRESHOLD, wall_clock_offset_ms=1 << 40))
    process._conns, process._answers = {}, []
    process.step([])


class Sweep:
    """All lives up to a length."""

    def __init__(self, length: int, enough: float = inf) -> None:
        self.length = length
        self.enough = enough  # violations after which nothing more is looked at
        self.sequences = 0
        self.points = 0  # at which a life was cut off
        self.states = 0  # contents of the disk there, with repetitions
        self.starts = 0  # different ones, each judged
        self.violations: list[str] = []
        self._judged: dict[int, int] = {}  # and how deep its start was cut off as well
        self._idle: set[str] = set()  # sequences whose last request asked nothing of the disk

    def run(self, report: bool = False) -> None:
        for length in range(1, self.length + 1):
            alphabet = MORE_LETTERS if length <= max(2, self.length - 2) else LETTERS
            for letters in itertools.product(alphabet, repeat=length):
                word = "".join(letters)
                if any(word[:at] in self._idle for at in range(1, length)):
                    continue
                self.one(word)
            if report:
                print(
                    f"length {length}: {self.sequences} sequences, {self.points} points, {self.states} states, "
                    f"{self.starts} different",
                    file=sys.stderr,
                    flush=True,
                )

    def one(self, word: str) -> None:
        """Cut off the last request of a life everywhere."""
        self.sequences += 1
        life = Life()
        for letter in word[:-1]:
            life.do(letter)
        life.process.on_operation = lambda: self._point(word, life, 1)
        if not life.do(word[-1]):
            self._idle.add(word)
            return
        life.process.on_operation = None
        self._point(word, life, 1)

    def _point(self, word: str, life: Life, depth: int) -> None:
        self._cut(word, life.disk, life.promise, life.promise.key(), life.process.now, depth)

    def _cut(self, word: str, disk: Disk, promise: Promise, key: Any, now: int, depth: int) -> None:
        self.points += 1
        for count, (files, directories) in enumerate(disk.choices()):
            assert count < _CHOICES_MAX, f"{word}: too many states"
            if len(self.violations) >= self.enough:
                return
            self.states += 1
            seen = hash((files, directories, key))
            if self._judged.get(seen, -1) >= depth:
                continue
            self.starts += seen not in self._judged
            self._judged[seen] = depth
            self._judge(word, files, directories, promise, key, now, depth)

    def _judge(
        self, word: str, files: Files, directories: tuple[str, ...], promise: Promise, key: Any, now: int, depth: int
    ) -> None:
        """Start on one content of the disk; the start is cut off as well, once."""
        disk = Disk(files, directories)
        watched = (lambda: self._cut(f"{word}+start", disk, promise, key, now, depth - 1)) if depth else None
        try:
            judge(disk, promise, now, watched)
        except Violation as violation:
            self.violations.append(f"{word}: {violation}")


def judge(disk: Disk, promise: Promise, now: int, watched: Any = None) -> None:
    """Start a node on a disk and compare what it serves with what was promised.

    Raises:
        Violation: it breaks a promise.
    """
    process = Process.__new__(Process)
    _start(process, disk, now, watched)
    process.on_operation = None
    replica = process.node.replicas[0] if process.node.replicas else None
    if replica is None or replica.state is not State.OPEN:
        reason = "the node does not start" if replica is None else f"{replica.state.value}: {replica.reason}"
        raise Violation(f"after a mere power failure: {reason}")
    mark = replica.session_info().low_water_mark
    promise.judge(replica.log_start, _records(process), replica.fence, mark)


def _records(process: Process) -> list[Record]:
    """Everything the node would give out, read by its own procedure."""
    log, start = process.node.replicas[0].log, process.node.replicas[0].log_start
    assert log is not None
    work = read_range(log, start, 1000, 1 << 30)
    answer: Any = None
    while True:
        try:
            wanted = work.send(answer)
        except StopIteration as end:
            records, damaged = end.value
            if damaged is not None or start + len(records) <= log.max_id:
                raise Violation(f"transaction {damaged} of {log.max_id + 1} cannot be read") from None
            return list(records)
        answer = None
        if isinstance(wanted, ReadSpan):
            found = process.disk.look(DiskRead(0, wanted.path, wanted.offset, wanted.length))
            assert isinstance(found, DiskBytes)
            answer = found.data
        else:
            assert isinstance(wanted, tuple)
            for operation in wanted:
                process.disk.apply(operation)


def sweep(length: int, report: bool = False, enough: float = inf) -> dict[str, Any]:
    """Counts, and the first violations."""
    begin = time.monotonic()
    made = Sweep(length, enough)
    made.run(report)
    return {
        "length": length,
        "requests": len(MORE_LETTERS),
        "sequences": made.sequences,
        "points": made.points,
        "states": made.states,
        "starts": made.starts,
        "violations": len(made.violations),
        "first_violations": made.violations[:10],
        "wall_s": round(time.monotonic() - begin, 1),
        "passed": not made.violations,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.crash_sweep")
    parser.add_argument("--length", type=int, default=LENGTH, help="requests of the longest life")
    parser.add_argument("--json", help="write one object there")
    options = parser.parse_args()
    found = sweep(options.length, report=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=2)
    for name, value in found.items():
        print(f"{name:>16}: {value}")
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
