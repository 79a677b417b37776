"""Random lives of a storage node on a disk that fails: nothing acknowledged may be lost or altered.

`python -m tests.unit.storage.fuzz FIRST LAST` runs seeds; a failure names its seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from waltz_core.base.edge import Accepted, Port, Received, Send
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import DiskBatch, DiskList, DiskRead, FaultKind, SyncFile
from waltz_core.storage.node import StorageNode
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_testing.simulation.disk import SimDisk
from waltz_testing.simulation.mount import PowerCut

KEY = UUID(int=99)


class Crash(BaseException):
    """The process dies in the middle of its disk work."""


class Life:
    """One node, crashed and restarted, against a list of what was acknowledged."""

    def __init__(self, seed: int, *, faults: bool = False, rot: bool = False) -> None:
        self.rng = random.Random(seed)
        self.reader = random.Random(seed)  # of its own, so that looking changes nothing
        self.faults = faults
        self.rot = rot
        self.disk = SimDisk(self.rng)
        self.threshold = self.rng.choice([300, 700, 5000])
        self.now = 0
        self.session = 0
        self.content = 0
        self.acked: list[Record] = []  # the log as far as it was acknowledged
        self.sent: list[Record] = []  # and what may stand behind it
        self.floor = -1  # low-water mark acknowledged
        self.kept_at_least: int | None = None  # a truncation under way may have cut down to here, no further
        self.crash_in = -1
        self.crashes = self.appends = self.limbos = self.stops = 0
        self.start(assign=True)

    # ---- process ---------------------------------------------------------------------------------

    def start(self, assign: bool = False) -> None:
        config = StorageConfig(KEY.bytes, 1, self.threshold, wall_clock_offset_ms=1 << 40)
        self.node = StorageNode(config)
        self.conns: dict[int, Connection[Any]] = {}
        self.answers: list[Any] = []
        self.step([])
        self.dial(1, Port.ADMIN, ADMIN_PROTOCOL, admin.AdminOpenRequest(-1, KEY, 1))
        self.dial(2, Port.STORAGE, STORAGE_PROTOCOL, wire.OpenRequest(-1, -1, -1, KEY, 1))
        if assign:
            answer = self.ask(1, admin.PartitionAssignmentRequest(1, (0,), True, False))
            assert isinstance(answer, admin.AdminSuccessResponse)
            answer = self.ask(2, wire.LastSessionInfoRequest(0, 1, 0, False))
            assert isinstance(answer, wire.LastSessionInfoResponse)

    def dial(self, conn: int, port: Port, protocol: Any, opening: Any) -> None:
        connection = self.conns[conn] = Connection[Any](protocol, "", (0,))
        self.step([Accepted(conn, port, ""), Received(conn, connection.hello())])
        self.ask(conn, opening)

    def ask(self, conn: int, *messages: Any) -> Any:
        out = bytearray()
        for message in messages:
            self.conns[conn].encode(message, out)
        self.answers.clear()
        self.step([Received(conn, bytes(out))])
        assert len(self.answers) == len(messages), self.answers
        return self.answers[0] if len(messages) == 1 else list(self.answers)

    def step(self, events: Sequence[Any]) -> None:
        todo = list(events)
        while True:
            out: list[Any] = []
            self.node.step(self.now, todo, out)
            todo = []
            for effect in out:
                if isinstance(effect, DiskBatch):
                    todo.append(self.batch(effect))
                elif isinstance(effect, DiskRead | DiskList):
                    todo.append(self.disk.perform(effect))
                elif isinstance(effect, Send):
                    self.conns[effect.conn].receive(effect.data, self.answers)
            if not todo:
                return

    def batch(self, batch: DiskBatch) -> Any:
        mount = self.disk.mount
        mount.calls_left = self.crash_in if self.crash_in >= 0 else None
        try:
            return self.disk.perform(batch)
        except PowerCut as cut:
            raise Crash from cut
        finally:
            self.crash_in = -1 if mount.calls_left is None else mount.calls_left
            mount.calls_left = None

    # ---- life ------------------------------------------------------------------------------------

    def live(self, steps: int = 60) -> None:
        for _ in range(steps):
            if self.rng.random() < 0.25:
                self.crash_in = self.rng.randrange(25)
            fault = self.faults and self.rng.random() < 0.2
            if fault:
                self.inject()
            try:
                self.act()
            except Crash:
                self.after_crash()
            self.crash_in = -1
            self.disk.fault = None
            self.disk.capacity = None
            if fault and self.node.replicas[0].state is not State.OPEN:
                self.stops += 1
                self.disk.lose_unsynced()
                self.restart()
        self.check_all()

    def inject(self) -> None:
        countdown = self.rng.randrange(12)
        kind = self.rng.choice([FaultKind.IO, FaultKind.FULL])
        only_syncs = self.rng.random() < 0.5

        def fault(operation: Any) -> FaultKind | None:
            nonlocal countdown
            if isinstance(operation, DiskRead | DiskList) or (only_syncs and not isinstance(operation, SyncFile)):
                return None
            countdown -= 1
            return kind if countdown == 0 else None

        self.disk.fault = fault

    def act(self) -> None:
        match self.rng.choices(
            ["append", "mark", "truncate", "session", "time", "restart", "check", "flags"], [10, 2, 3, 3, 2, 1, 2, 1]
        )[0]:
            case "append":
                self.append()
            case "mark":
                self.mark()
            case "truncate":
                self.truncate()
            case "session":
                self.new_session()
            case "time":
                self.now += 1500
                self.step([])
            case "restart":
                self.after_crash(power=False)
            case "check":
                self.check_all()
            case "flags":
                for on in (False, True):
                    self.ask(1, admin.PartitionAvailableRequest(1, (0,), on))

    def records(self, first: int, count: int) -> tuple[Record, ...]:
        made = []
        for one in range(first, first + count):
            self.content += 1
            size = self.rng.choice([0, 1, 30, 200, 200, 700])
            data = bytes(size) if self.rng.random() < 0.1 else self.rng.randbytes(size)
            made.append(Record(one, ReqId(self.content.to_bytes(16)), self.content, data, 7))
        return tuple(made)

    def ids(self) -> tuple[int, int, int]:
        return self.session, 1, 0

    def append(self) -> None:
        batches = []
        following = len(self.acked)
        for _ in range(self.rng.choice([1, 1, 2, 4])):
            batch = self.records(following, self.rng.choice([0, 1, 2, 5, 12]))
            following += len(batch)
            batches.append(batch)
        self.sent = [one for batch in batches for one in batch]
        answers = self.ask(2, *(wire.AppendRequest(*self.ids(), batch, False) for batch in batches))
        for batch, answer in zip(batches, answers if isinstance(answers, list) else [answers], strict=True):
            if isinstance(answer, wire.SuccessResponse):
                self.acked += batch
                self.appends += 1
            elif not self.faults:
                raise AssertionError(answer)
        self.settle()

    def settle(self) -> None:
        """What was refused must not be there."""
        self.sent = []

    def mark(self) -> None:
        mark = max(self.floor, len(self.acked) - 1)
        answer = self.ask(2, wire.SetLowWaterMarkRequest(*self.ids(), mark, False))
        if isinstance(answer, wire.SuccessResponse):
            self.floor = mark
        elif not self.faults:
            raise AssertionError(answer)

    def truncate(self) -> None:
        target = self.rng.randint(self.floor, max(self.floor, len(self.acked)))
        self.kept_at_least = target
        answer = self.ask(2, wire.TruncateRequest(*self.ids(), target, False))
        if isinstance(answer, wire.MaxTransactionIdResponse):
            del self.acked[target + 1 :]
            assert answer.transaction_id == len(self.acked) - 1
            self.kept_at_least = None
        elif not self.faults:
            raise AssertionError(answer)

    def new_session(self) -> None:
        session = self.session + self.rng.choice([1, 1, 3])
        answer = self.ask(2, wire.LastSessionInfoRequest(session, 1, 0, False))
        if isinstance(answer, wire.LastSessionInfoResponse):
            self.session = session
            assert answer.last_session_info.low_water_mark >= self.floor
            old = self.ask(2, wire.MaxTransactionIdRequest(session - 1, 1, 0, False))
            assert isinstance(old, wire.FailureResponse)
        elif not self.faults:
            raise AssertionError(answer)

    # ---- crashes ---------------------------------------------------------------------------------

    def after_crash(self, power: bool | None = None) -> None:
        self.crashes += 1
        self.crash_in = -1
        self.disk.fault = None
        self.disk.capacity = None
        kind = self.rng.choice(["power", "power", "exact", "process"]) if power is None else "process"
        if kind == "power":
            self.disk.crash(self.rng)
        elif kind == "exact":
            self.disk.lose_unsynced()
        self.restart()

    def restart(self) -> None:
        again = self.rng.random() < 0.3
        if again:
            self.crash_in = self.rng.randrange(20)
        try:
            self.start()
            self.crash_in = -1
            self.resume()
        except Crash:
            self.crash_in = -1
            self.disk.crash(self.rng)
            self.start()
            self.resume()

    def resume(self) -> None:
        """Compare with what was acknowledged, then go on with what is there."""
        replica = self.node.replicas[0]
        assert replica.state is State.OPEN, f"{replica.state}: {replica.reason}"
        found = self.read_all()
        lowest = len(self.acked) if self.kept_at_least is None else min(len(self.acked), self.kept_at_least + 1)
        assert len(found) >= lowest, f"{len(found)} records found, {lowest} were acknowledged"
        assert found[: len(self.acked)] == self.acked[: len(found)], "an acknowledged record was altered"
        beyond = found[len(self.acked) :]
        assert beyond == self.sent[: len(beyond)], "records that nobody sent"
        self.acked = found
        self.sent = []
        self.kept_at_least = None
        for older in {self.session - 1, 0} - {self.session}:
            answer = self.ask(2, wire.MaxTransactionIdRequest(older, 1, 0, False))
            assert isinstance(answer, wire.FailureResponse), "a session that was shut out came in again"
        if replica.fence > self.session:
            self.session = replica.fence  # raised just before the crash, not answered
        if not replica.entry.current.available:
            self.ask(1, admin.PartitionAvailableRequest(1, (0,), True))
        info = replica.session_info()
        assert info.low_water_mark >= self.floor
        self.floor = info.low_water_mark

    def read_all(self) -> list[Record]:
        found: list[Record] = []
        while True:
            answer = self.ask(1, admin.RecordListRequest(1, 0, len(found), self.reader.choice([1, 7, 1000])))
            assert isinstance(answer, admin.RecordListResponse), answer
            if not answer.records:
                return found
            found += answer.records

    def check_all(self) -> None:
        if self.node.replicas[0].state is State.OPEN:
            assert self.read_all() == self.acked

    # ---- rot -------------------------------------------------------------------------------------

    def decay(self) -> str:
        """One byte changes while the node is down; what it then serves must be right, what it lost, known."""
        self.now += 2000
        self.step([])
        name = self.rng.choice([name for name, data in self.disk.files().items() if data])
        # The header of the control file is not guarded by a copy: damaged, it is another cluster's.
        first = 132 if name.endswith(".ctl") else 0
        self.disk.flip(name, self.rng.randrange(first, len(self.disk.content(name))), 1 << self.rng.randrange(8))
        files = {path: data for path, data in self.disk.files().items() if path.endswith(".seg")}
        self.start()
        replica = self.node.replicas[0]
        served = [self.ask(1, admin.RecordListRequest(1, 0, one, 1)) for one in range(len(self.acked))]
        for one, answer in enumerate(served):
            if isinstance(answer, admin.RecordListResponse) and answer.records:
                assert answer.records == (self.acked[one],), f"{name}: transaction {one} was served altered"
        if replica.state is State.OPEN:
            assert replica.max_id == len(self.acked) - 1, f"{name}: the log was cut"
        else:
            self.limbos += 1
            answer = self.ask(2, wire.MaxTransactionIdRequest(self.session, 1, 0, False))
            assert isinstance(answer, wire.FailureResponse)
        for path, data in files.items():
            assert self.disk.content(path) == data, f"{path} was altered"
        return f"{name.rpartition('/')[2]} -> {replica.state.value}"


def run(seed: int, *, faults: bool = False, rot: bool = False) -> Life:
    """One seed."""
    life = Life(seed, faults=faults, rot=rot)
    life.live()
    if rot:
        life.decay()
    return life


def main(arguments: list[str]) -> None:
    first, last = (int(one) for one in arguments[:2])
    total = [0, 0, 0, 0]
    for seed in range(first, last + 1):
        for faults, rot in ((False, False), (True, False), (False, True)):
            try:
                life = run(seed, faults=faults, rot=rot)
            except BaseException:
                print(f"seed {seed} faults={faults} rot={rot}")
                raise
            for at, count in enumerate((life.crashes, life.appends, life.limbos, life.stops)):
                total[at] += count
    print("crashes {}, appends {}, in limbo after rot {}, stopped {}".format(*total))


if __name__ == "__main__":
    main(sys.argv[1:])
