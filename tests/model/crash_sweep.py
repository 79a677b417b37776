"""The crash sweep: every short life of a storage node, and every state in which a power failure may leave its disk.

A life is a sequence of up to six requests. Its last request is cut off after every single disk operation; there
every legal content of the disk is tried: of each sector any version since its file was synced, of each file any
length it had since and any border of a sector between, of each directory any choice of names that were not synced,
all combined. On each such disk the node is started again. It must serve,
without an operator: all that was acknowledged, nothing that was not sent, no older
session, no lower mark. What the start itself writes is cut off in the same way, once more.

Requests: a = append a record, b = append three, in two segments, m = a new session sets its mark, t = truncate
the last record, w = time passes and the durable mark is written, r = power fails between two requests; in lives
that are two requests shorter also s = the log start is raised as far as it may be, which deletes segments, j = it is
raised beyond the end, c = everything above the mark is truncated, over as many segments as that takes. In lives of
three requests fewer, and behind several segments that a session has marked (`PRELUDE`), also u = the partition is
given up and its files stay, d = it is given up and deleted, n = it is taken on again, x = the newest decided record
rots on the disk, y = the oldest one does, f = the partition is repaired from another node. The empty life is the
making of the directory and the first adoption.

A partition that was given up is taken on again behind the power failure: once it is deleted nothing of its records may
come back, and files that were to stay are what they were; of those that were being deleted, the beginning of the log.
A record that rots may be refused or right, never anything else, and a repair brings it back wherever the one before was
cut off.

`python -m tests.model.crash_sweep [--length N] [--json PATH]`: exit status 1 on any violation.
"""

from __future__ import annotations

import argparse
import enum
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any
from uuid import UUID

from tests.disks.remainders import Tree, remainders, synced, volume_of
from tests.disks.versions import Versions
from waltz_core.base.edge import Accepted, Dial, Dialed, Port, Received, Send
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint, ReqId
from waltz_core.base.log import Record, SessionInfo
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import DiskBatch, DiskBytes, DiskEvent, DiskList, DiskRead, StorageFailed
from waltz_core.storage.node import StorageNode
from waltz_core.storage.procedure import Procedure, ReadSpan
from waltz_core.storage.reading import read_range
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.records import RecordRun
from waltz_testing.simulation.mount import ROOT, Mount
from waltz_testing.simulation.volume import Volume
from waltz_trio.storage.files import Files
from waltz_trio.storage.group import Failures, SyncEach, SyncWhole, carry_out, look

KEY = UUID(int=7)
LETTERS = "abmtwr"
MORE_LETTERS = LETTERS + "sjc"
OWNERSHIP = "udn"
ROT = "xyf"
ALL_LETTERS = MORE_LETTERS + OWNERSHIP + ROT
PRELUDE = "bbm"
LENGTH = 6
THRESHOLD = 600  # bytes, after which a segment is followed by another
_DATA = 170  # bytes of a record: three of them cross the border of a sector
_FOR_OPEN = frozenset("abmtcsj")  # requests of servers
_CHOICES_MAX = 20_000  # contents of the disk at one point; more would be a mistake of the sweep
_NO_CHANCE = random.Random(0)  # everything is tried


class Violation(AssertionError):  # noqa: N818  what the sweep looks for
    """The node broke a promise."""


class Change(enum.Enum):
    """What is under way with the ownership of the partition."""

    NONE = "nothing"
    ADOPTION = "it is taken on"
    UNASSIGNMENT = "it is given up"
    REMOVAL = "it is given up and deleted"


class Promise:
    """What was acknowledged, and what may stand besides while a request is under way."""

    def __init__(self) -> None:
        self.acked: list[Record] = []
        self.sent: tuple[Record, ...] = ()
        self.kept = -1  # a truncation under way may leave records up to here only
        self.truncating = False
        self.floor = -1
        self.session = -1
        self.made = 0
        self.base = 0  # id of the first of `acked`
        self.start = 0  # below it nothing may be given out
        self.start_asked: int | None = None  # the same, while it is being raised
        self.held = False  # the partition is this node's
        self.change = Change.NONE
        self.rotten: set[int] = set()  # records that rotted on the disk and were not repaired since

    def key(self) -> Any:
        records = (*self.acked, *self.sent)
        return (
            tuple(one.header for one in records),
            len(self.acked),
            self.kept if self.truncating else None,
            self.floor,
            self.session,
            (self.base, self.start, self.start_asked),
            (self.held, self.change, *sorted(self.rotten)),
        )

    @property
    def next_id(self) -> int:
        """Behind what was acknowledged."""
        return self.base + len(self.acked)

    def begin_at(self, first_id: int) -> None:
        """Nothing is kept, and the log goes on at an id."""
        self.acked, self.base, self.start = [], first_id, first_id
        self.rotten.clear()

    def judge(self, start: int, records: list[Record | None], fence: int, mark: int) -> None:
        """The partition is this node's; None stands for a record that is refused as damaged."""
        if start not in (self.start, self.start_asked):
            raise Violation(f"the log starts at {start}, it was raised to {self.start}")
        acked = self.acked[max(0, start - self.base) :]
        lowest = min(len(acked), self.kept + 1 - start) if self.truncating else len(acked)
        if len(records) < lowest:
            raise Violation(f"{len(records)} records are left, {lowest} were acknowledged")
        self._compare(start, acked, records)
        beyond = records[len(acked) :]
        if tuple(beyond) != self.sent[: len(beyond)]:
            raise Violation("records that nobody sent")
        if fence < self.session:
            raise Violation(f"session {self.session} was answered, but sessions from {fence} on are let in")
        if mark < self.floor:
            raise Violation(f"the low-water mark fell from {self.floor} to {mark}")

    def judge_again(self, start: int, records: list[Record | None], fence: int) -> None:
        """The partition was not this node's and has been taken on again."""
        deleting = self.change is Change.REMOVAL
        if start != self.start and not (deleting and start == 0 and not records):
            raise Violation(f"the log starts at {start} after a removal, it was raised to {self.start}")
        acked = self.acked[max(0, start - self.base) :]
        if len(records) < len(acked) and not deleting:
            raise Violation(f"{len(records)} records are left of {len(acked)} whose files were to stay")
        if len(records) > len(acked):
            raise Violation(f"{len(records) - len(acked)} records came to life in a partition that was taken on again")
        self._compare(start, acked, records)
        if fence < self.session and not (deleting and not records):
            raise Violation(
                f"session {self.session} was answered, after a removal {fence} is let in beside its records"
            )

    def _compare(self, start: int, acked: list[Record], records: list[Record | None]) -> None:
        for at, (wanted, record) in enumerate(zip(acked, records, strict=False), start=start):
            if record != wanted and not (record is None and at in self.rotten):
                raise Violation(f"acknowledged record {at} is {'refused' if record is None else 'altered'}")


class Process:
    """One run of the node, and of the driver's own files, on a disk.

    Args:
        watched: called behind every call that changes something on the disk, from the first on.
    """

    def __init__(self, volume: Volume[Versions], now: int, watched: Callable[[], None] | None = None) -> None:
        self.now = now
        self.calls = 0
        self.watched = watched
        mount = Mount(volume)
        mount.on_call = self._called
        self.files = Files(ROOT, system=mount)
        self.node = StorageNode(StorageConfig(KEY.bytes, 1, THRESHOLD, wall_clock_offset_ms=1 << 40))
        self._conns: dict[int, Connection[Any]] = {}
        self._answers: list[Any] = []
        self.peer: Process | None = None
        self._to_dialer: list[bytes] = []
        self.failed = ""
        self.step([])

    def _called(self, call: str, path: str, offset: int) -> None:
        self.calls += 1
        if self.watched is not None:
            self.watched()

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
        answers = [one for one in self._answers if not isinstance(one, wire.SuspectReport)]
        assert len(answers) == 1, answers
        return answers[0]

    def assign(self) -> Any:
        """Take the partition on."""
        return self.ask(1, admin.PartitionAssignmentRequest(1, (0,), True, False))

    def ask_for_rotten(self, promise: Promise) -> None:
        """Somebody reads what rotted; so it is noticed, and it must be refused unless it was mended.

        Raises:
            Violation: it is given out as it is.
        """
        for at in sorted(promise.rotten):
            answer = self.ask(1, admin.RecordListRequest(1, 0, at, 1))
            refused = isinstance(answer, admin.AdminFailureResponse)
            if not refused and answer.records != (promise.acked[at - promise.base],):
                raise Violation(f"record {at} is damaged, and given out")

    def repair(self, peer: Process) -> Any:
        """Mend what is damaged with the records of another node."""
        self.peer = peer
        return self.ask(1, admin.RepairRequest(1, 0, (Endpoint("peer", 1),), ()))

    def step(self, events: Sequence[Any]) -> None:
        todo = list(events)
        while True:
            out: list[Any] = []
            self.node.step(self.now, todo, out)
            todo = []
            for effect in out:
                if isinstance(effect, DiskBatch):
                    todo += self._carry_out(effect)
                elif isinstance(effect, DiskRead | DiskList):
                    todo.append(look(self.files, effect))
                elif isinstance(effect, Send):
                    todo += self._send(effect)
                elif isinstance(effect, StorageFailed):
                    self.failed = effect.reason
                elif isinstance(effect, Dial):
                    assert self.peer is not None
                    self.peer.step([Accepted(effect.conn, effect.port, "")])
                    todo.append(Dialed(effect.conn))
            if not todo:
                return

    def _send(self, effect: Send) -> list[Received]:
        """To whoever is at the other end: the tools and servers of a life, or the node that a repair asks."""
        if effect.conn in self._conns:
            self._conns[effect.conn].receive(effect.data, self._answers)
            return []
        if self.peer is None:
            self._to_dialer.append(bytes(effect.data))  # this is the node that is asked
            return []
        self.peer.step([Received(effect.conn, bytes(effect.data))])
        answers, self.peer._to_dialer = self.peer._to_dialer, []
        return [Received(effect.conn, data) for data in answers]

    def _carry_out(self, batch: DiskBatch) -> list[DiskEvent]:
        steps = carry_out([batch], lambda files: False)
        answer: Failures | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                events: list[DiskEvent] = end.value
                return events
            assert not isinstance(step, SyncWhole)
            for operation in step.files if isinstance(step, SyncEach) else (step,):
                self.files.apply(operation)
            answer = {} if isinstance(step, SyncEach) else None


class Life:
    """A process, its disk and what it promised; requests are letters."""

    session = 0  # the last one that was begun
    now = 0

    def __init__(self, watched: Callable[[Life], None] | None = None) -> None:
        self.promise = Promise()
        self.volume = Volume(Versions)
        self.process = Process(self.volume, 0, None if watched is None else lambda: watched(self))
        self.process.dial()
        self._assign()
        self.process.watched = None

    def _assign(self) -> None:
        self.promise.change = Change.ADOPTION
        answer = self.process.assign()
        assert isinstance(answer, admin.AdminSuccessResponse), answer
        self.promise.held, self.promise.change = True, Change.NONE
        self._greet(self.session)

    def _greet(self, session: int) -> None:
        self.session = session
        answer = self.process.ask(2, wire.LastSessionInfoRequest(session, 1, 0, False))
        assert isinstance(answer, wire.LastSessionInfoResponse), answer
        self.promise.session = session

    def do(self, letter: str) -> bool:
        """One request; False if it asked nothing of the disk."""
        before = self.process.calls
        act = self._requests()[letter]
        if letter in _FOR_OPEN and not self.serves:
            return False
        if act() is False:
            return False
        return self.process.calls > before or letter in "rxy"

    @property
    def serves(self) -> bool:
        """Servers may use the partition: it is this node's, and not out of service for what rotted."""
        return self.process.node.replicas[0].state is State.OPEN

    def _requests(self) -> dict[str, Callable[[], bool | None]]:
        return {
            "a": lambda: self._append(1),
            "b": lambda: self._append(3),
            "m": self._begin_session,
            "t": lambda: self._truncate(self.promise.next_id - 2),
            "c": lambda: self._truncate(-1),
            "s": lambda: self._raise_start(wire.SetLogStartRequest, self.promise.floor + 1),
            "j": lambda: self._raise_start(wire.BeginAnewRequest, self.promise.next_id + 2),
            "w": self._pass_time,
            "r": self._lose_power,
            "u": lambda: self._give_up(delete=False),
            "d": lambda: self._give_up(delete=True),
            "n": self._take_on,
            "x": lambda: self._rot(self.promise.floor),
            "y": lambda: self._rot(self.promise.start),
            "f": self._repair,
        }

    def _begin_session(self) -> None:
        self._greet(self.session + 1)
        mark = self.promise.next_id - 1
        answer = self.process.ask(2, wire.SetLowWaterMarkRequest(self.session, 1, 0, mark, False))
        assert isinstance(answer, wire.SuccessResponse), answer
        self.promise.floor = mark

    def _truncate(self, last: int) -> bool | None:
        promise = self.promise
        target = max(promise.floor, promise.start - 1, last)
        if target >= promise.next_id - 1:
            return False
        promise.kept, promise.truncating = target, True
        answer = self.process.ask(2, wire.TruncateRequest(self.session, 1, 0, target, False))
        assert isinstance(answer, wire.MaxTransactionIdResponse), answer
        del promise.acked[target + 1 - promise.base :]
        promise.truncating = False
        return None

    def _raise_start(self, kind: Any, start: int) -> bool | None:
        promise = self.promise
        if start <= promise.start:
            return False
        promise.start_asked = start
        answer = self.process.ask(2, kind(self.session, 1, 0, start))
        assert isinstance(answer, wire.SuccessResponse), answer
        promise.start, promise.start_asked = start, None
        promise.rotten = {one for one in promise.rotten if one >= start}
        if start > promise.next_id:
            promise.begin_at(start)
        return None

    def _pass_time(self) -> None:
        self.now += 2000
        self.process.now = self.now
        self.process.step([])

    def _lose_power(self) -> None:
        self.volume = volume_of(synced(self.volume))
        self.process = Process(self.volume, self.process.now, self.process.watched)
        self.process.dial()

    # ---- whose the partition is --------------------------------------------------------------------

    def _give_up(self, *, delete: bool) -> bool | None:
        promise = self.promise
        # What rots in a log that no session vouches for any more cannot be told from a write that was cut short.
        if not promise.held or promise.rotten:
            return False
        promise.change = Change.REMOVAL if delete else Change.UNASSIGNMENT
        answer = self.process.ask(1, admin.PartitionAssignmentRequest(1, (0,), False, delete))
        assert isinstance(answer, admin.AdminSuccessResponse), answer
        promise.held, promise.change, promise.floor = False, Change.NONE, -1
        if delete:
            promise.begin_at(0)
            promise.session = -1
        return None

    def _take_on(self) -> bool | None:
        if self.promise.held:
            return False
        self._assign()
        return None

    # ---- rot and repair ----------------------------------------------------------------------------

    def _rot(self, transaction_id: int) -> bool | None:
        """A bit of a decided record flips on the disk; then a server asks for the record."""
        promise = self.promise
        if not promise.start <= transaction_id <= promise.floor or transaction_id in promise.rotten:
            return False
        record = promise.acked[transaction_id - promise.base]
        for name, file in self.volume.files.items():
            if name.endswith(".seg"):
                file.versions[:] = [_flipped(version, record.data) for version in file.versions]
        promise.rotten.add(transaction_id)
        self.process.ask_for_rotten(promise)
        return None

    def _repair(self) -> bool | None:
        if not self.promise.held or not self.promise.rotten:
            return False
        self.process.ask_for_rotten(self.promise)
        answer = self.process.repair(_peer_of(self.promise, self.process.node.replicas[0].session_info()))
        if not isinstance(answer, admin.RepairResponse) or answer.message is not None or not self.serves:
            raise Violation(f"a repair has not mended the partition: {answer}")
        self.promise.rotten.clear()
        return None

    def _append(self, count: int) -> None:
        promise = self.promise
        first = promise.next_id
        made = []
        for one in range(first, first + count):
            promise.made += 1
            data = bytes([promise.made]) * _DATA
            made.append(Record(one, ReqId(promise.made.to_bytes(16)), promise.made, data, 7))
        promise.sent = tuple(made)
        answer = self.process.ask(2, wire.AppendRequest(self.session, 1, 0, tuple(made), False))
        assert isinstance(answer, wire.SuccessResponse), answer
        promise.acked += made
        promise.sent = ()


def _flipped(content: bytes, data: bytes) -> bytes:
    """A file in which one bit of a record's data has changed."""
    at = content.find(data)
    return content if at < 0 else content[:at] + bytes([data[0] ^ 1]) + content[at + 1 :]


def _peer_of(promise: Promise, info: SessionInfo) -> Process:
    """Another node with everything that was acknowledged, marked by the same store session."""
    peer, session = Process(Volume(Versions), 0), info.session_id
    peer.dial()
    count = promise.floor + 1 - promise.base
    requests = [
        wire.LastSessionInfoRequest(session, 1, 0, False),
        *([wire.BeginAnewRequest(session, 1, 0, promise.base)] if promise.base else []),
        wire.AppendRequest(session, 1, 0, tuple(promise.acked[:count]), False),
        wire.SetLowWaterMarkRequest(session, 1, 0, promise.floor, False),
        *([wire.AppendRequest(session, 1, 0, tuple(promise.acked[count:]), False)] if promise.acked[count:] else []),
    ]
    peer.assign()
    for request in requests:
        answer = peer.ask(2, request)
        assert not isinstance(answer, wire.FailureResponse), answer
    return peer


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
        self._looked_at: set[str] = set()
        self._idle: set[str] = set()  # sequences whose last request asked nothing of the disk

    def run(self, report: bool = False) -> None:
        self.one("")
        for length in range(1, self.length + 1):
            for word in self._words(length):
                if len(self.violations) >= self.enough:
                    return
                if not any(word[:at] in self._idle for at in range(1, len(word))):
                    self.one(word)
            if report:
                print(
                    f"length {length}: {self.sequences} sequences, {self.points} points, {self.states} states, "
                    f"{self.starts} different",
                    file=sys.stderr,
                    flush=True,
                )

    def _words(self, length: int) -> list[str]:
        """Lives of a length, and those behind the prelude that are as long with it, or short."""
        short = max(2, self.length - len(PRELUDE))
        alphabet = ALL_LETTERS if length <= short else MORE_LETTERS if length <= max(2, self.length - 2) else LETTERS
        words = ["".join(letters) for letters in itertools.product(alphabet, repeat=length)]
        if length <= short:
            words += [PRELUDE + "".join(letters) for letters in itertools.product(ALL_LETTERS, repeat=length)]
        return [word for word in words if word not in self._looked_at]

    def one(self, word: str) -> None:
        """Cut off the last request of a life everywhere; the empty one is the making of the node."""
        self.sequences += 1
        self._looked_at.add(word)
        try:
            self._one(word)
        except Violation as violation:
            self.violations.append(f"{word}: {violation}")

    def _one(self, word: str) -> None:
        life = Life(None if word else lambda life: self._point("", life, 1))
        for letter in word[:-1]:
            life.do(letter)
        life.process.watched = lambda: self._point(word, life, 1)
        if word and not life.do(word[-1]):
            self._idle.add(word)
            return
        life.process.watched = None
        self._point(word, life, 1)

    def _point(self, word: str, life: Life, depth: int) -> None:
        self._cut(word, life.volume, life.promise, life.promise.key(), life.now, depth)

    def _cut(self, word: str, volume: Volume[Versions], promise: Promise, key: Any, now: int, depth: int) -> None:
        self.points += 1
        for count, tree in enumerate(remainders(volume, inf, _NO_CHANCE)):
            assert count < _CHOICES_MAX, f"{word}: too many states"
            if len(self.violations) >= self.enough:
                return
            self.states += 1
            seen = hash((tuple(tree.items()), key))
            if self._judged.get(seen, -1) >= depth:
                continue
            self.starts += seen not in self._judged
            self._judged[seen] = depth
            self._judge(word, tree, promise, key, now, depth)

    def _judge(self, word: str, tree: Tree, promise: Promise, key: Any, now: int, depth: int) -> None:
        """Start on one content of the disk; the start is cut off as well, once."""
        volume = volume_of(tree)
        watched = (lambda: self._cut(f"{word}+start", volume, promise, key, now, depth - 1)) if depth else None
        try:
            judge(volume, promise, now, watched)
        except Violation as violation:
            self.violations.append(f"{word}: {violation}")


def judge(volume: Volume[Versions], promise: Promise, now: int, watched: Callable[[], None] | None = None) -> None:
    """Start a node on a disk and compare what it serves with what was promised.

    Raises:
        Violation: it breaks a promise.
    """
    try:
        process = Process(volume, now, watched)
    except ConfigError as error:
        raise Violation(f"after a mere power failure: {error}") from error
    process.watched = None
    if not process.node.replicas:
        raise Violation(f"after a mere power failure: the node does not start: {process.failed}")
    if process.node.replicas[0].state is State.UNASSIGNED:
        _judge_removed(process, promise)
    elif not promise.held and promise.change is not Change.ADOPTION:
        raise Violation("a partition that was given up is this node's again")
    else:
        _judge_held(process, promise)


def _judge_held(process: Process, promise: Promise) -> None:
    replica = process.node.replicas[0]
    if replica.state is not State.OPEN and not (promise.rotten and replica.state is State.LIMBO):
        raise Violation(f"after a mere power failure: {replica.state.value}: {replica.reason}")
    promise.judge(replica.log_start, _records(process), replica.fence, replica.session_info().low_water_mark)
    _judge_leftovers(process)
    if promise.rotten:
        process.dial()
        process.ask_for_rotten(promise)
        answer = process.repair(_peer_of(promise, replica.session_info()))
        if replica.state is not State.OPEN:
            raise Violation(f"after a repair: {replica.state.value}: {replica.reason}; {answer}")
        records = _records(process)
        if None in records:
            raise Violation(f"after a repair, record {replica.log_start + records.index(None)} is damaged: {answer}")
        promise.judge(replica.log_start, records, replica.fence, replica.session_info().low_water_mark)


def _judge_removed(process: Process, promise: Promise) -> None:
    """The partition is taken on again, by an operator."""
    if promise.held and promise.change is Change.NONE:
        raise Violation("after a mere power failure: the partition is not this node's")
    process.dial()
    answer = process.assign()
    if not isinstance(answer, admin.AdminSuccessResponse):
        raise Violation(f"the partition cannot be taken on again: {answer.message}")
    replica = process.node.replicas[0]
    promise.judge_again(replica.log_start, _records(process), replica.fence)
    _judge_leftovers(process)


def _judge_leftovers(process: Process) -> None:
    """Segments that end below the log start are deleted, at the latest by the next start."""
    firsts = sorted(int(one.name[:-4]) for one in process.files.entries("0") if one.name.endswith(".seg"))
    start = process.node.replicas[0].log_start
    if any(following <= start for following in firsts[1:]):
        raise Violation(f"segments below the log start {start} are left: {firsts}")


def _records(process: Process) -> list[Record | None]:
    """Everything the node would give out, read by its own procedure; None for a record that it refuses as damaged."""
    replica = process.node.replicas[0]
    log, at = replica.files.log, replica.log_start
    if log is None:
        return []
    given: list[Record | None] = []
    while at <= log.max_id:
        records, damaged = _read(process, read_range(log, at, 1000, 1 << 30))
        given += records
        at += len(records)
        if damaged is None and at <= log.max_id:
            raise Violation(f"transaction {at} of {log.max_id + 1} cannot be read")
        if damaged is not None:
            given.append(None)
            at += 1
    while at in replica.files.faults:  # behind the end of what is left
        given.append(None)
        at += 1
    return given


def _read(process: Process, work: Procedure[tuple[RecordRun, int | None]]) -> tuple[RecordRun, int | None]:
    answer: Any = None
    while True:
        try:
            wanted = work.send(answer)
        except StopIteration as end:
            records, damaged = end.value
            return records, damaged
        answer = None
        if isinstance(wanted, ReadSpan):
            span = look(process.files, DiskRead(0, wanted.path, wanted.offset, wanted.length))
            assert isinstance(span, DiskBytes)
            answer = span.data
        else:
            assert isinstance(wanted, tuple)
            for operation in wanted:
                process.files.apply(operation)


def sweep(length: int, report: bool = False, enough: float = inf) -> dict[str, Any]:
    """Counts, and the first violations."""
    begin = time.monotonic()
    made = Sweep(length, enough)
    made.run(report)
    return {
        "length": length,
        "requests": len(ALL_LETTERS),
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
