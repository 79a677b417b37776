"""One round of a server's archive, killed at every step: a simulated cluster, and real files of the real archive.

A round begins when a server that has just opened a partition looks at its archive, and ends when a quorum of storage
nodes has freed what the policy lets go; one that was away then keeps more than it must until the log start rises again.
Its steps are

* each question to the archive, before it is begun and before it is answered, and each call of the durable port that the
  archive makes in between, of a write also the middle; there the archive dies alone, or its server with it;
* each effect of the server, and each effect of each storage node, before it is performed; there this process dies, a
  storage node together with what it had not synced.

All of it happens in simulated time, so a round takes some milliseconds. Whatever a storage node gives up must be in the
archive at that moment, as it can be read from there, and must have been compared.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from tests.model.cluster import SimCluster
from tests.model.test_server import Client, session_of
from tests.model.vault import Agent
from waltz_core.base.log import Record
from waltz_core.server import archive_calls as calls
from waltz_core.wire import client_messages as messages
from waltz_spark.archive.agent import ArchiveReader, ArchiveWriter, Manifest
from waltz_spark.archive.archive import plan_verification, run_verification
from waltz_spark.base.errors import ArchiveError
from waltz_spark.base.objects import open_store
from waltz_spark.base.runners import Here
from waltz_testing.simulation.world import SimNode
from waltz_trio.base import durable

COUNT = 10
KEEP = 3
FILE_RECORDS = 6
STORAGES = 3
_PORT = ("open_file", "write", "sync_data", "sync_directory", "make_directory", "link", "unlink")
_SYNCS = ("sync_data", "sync_directory")
_BACK_MS = 40  # after which a process that was killed is there again
_LIMIT_MS = 120_000


class Killed(BaseException):
    """The process is gone."""


@attrs.frozen
class Kill:
    """Who dies, and before which of its steps of the round."""

    who: str  # archive; host: the archive with its server; server; storage0, storage1, ...
    step: int


@attrs.define
class Steps:
    """The steps of the archive's process: counted from the beginning of the round on, and one of them its last."""

    names: list[str] = attrs.field(factory=list)
    last: int | None = None  # it dies before this one
    counting: bool = False
    dead: bool = False

    def step(self, name: str, halfway: Callable[[], object] = lambda: None) -> None:
        """One is about to happen; `halfway` is what has happened of it where it is the last."""
        if self.dead:
            raise Killed
        if not self.counting:
            return
        self.names.append(name)
        if len(self.names) - 1 == self.last:
            self.dead = True
            halfway()
            raise Killed

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Calls of the durable port are steps."""
        real = {name: getattr(durable, name) for name in _PORT}

        def stepping(name: str) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                if name == "write":
                    fd, data = arguments
                    self.step("write, cut in the middle", lambda: os.write(fd, data[: len(data) // 2]))
                self.step(name)
                return None if name in _SYNCS else real[name](*arguments)  # no power fails here

            return call

        for name in _PORT:
            setattr(durable, name, stepping(name))
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(durable, name, function)


class FileAgent(Agent):
    """The process beside a server, on real files."""

    def __init__(self, cluster: SimCluster, root: Path, steps: Steps) -> None:
        super().__init__(cluster.world, cluster.servers[0], cluster.vault)
        self.root = root
        self.steps = steps
        self.on_killed: Callable[[], None] = self.kill
        self.equal = 0  # so far, from the first id on, the archive was found equal to the log
        self._begin()

    def _begin(self) -> None:
        store = open_store(str(self.root))
        known = Manifest(store)
        self._writer, self._reader = ArchiveWriter(store, known), ArchiveReader(known, store.root)

    def _forget(self) -> None:
        super()._forget()
        self.steps.dead = False
        for scratch in self.root.rglob(".*.parquet.*"):
            if scratch.stat().st_nlink == 1:  # it was being written: as much of it as happened to be
                os.truncate(scratch, scratch.stat().st_size // 2)
        self._begin()

    def _answer(self, question: Any) -> None:
        name = type(question).__name__
        try:
            self.steps.step(f"{name} is asked")
            answer = self._done(question)
            self.steps.step(f"{name} is answered")
        except Killed:
            self.on_killed()
            return
        del self._asked[question.ticket]
        self.node.post(answer)

    def _done(self, question: Any) -> calls.ArchiveEvent:
        desk = self._reader if isinstance(question, calls.ArchiveRead) else self._writer
        try:
            answer = desk.answer(question)
        except ArchiveError as error:
            return calls.ArchiveFailed(question.ticket, str(error))
        if isinstance(answer, calls.ArchiveEqual) and question.first <= self.equal:
            self.equal = max(self.equal, question.first + len(question.records))
        return answer


class Round:
    """One round, with at most one kill."""

    def __init__(self, root: Path, kill: Kill | None = None) -> None:
        self._root = root
        self._kill = kill
        self.steps = Steps()
        self.freed = 0  # up to there some storage node has given up records
        self.kills = 0
        policy = calls.ArchivePolicy(
            "the files",
            file_records=FILE_RECORDS,
            after_ms=50,
            keep=KEEP,
            retry_min_ms=20,
            retry_max_ms=100,
            answer_ms=5_000,
        )
        caches = {"data_cache_bytes": 200, "feed_cache_bytes": 200}  # or they would answer
        options = {"archiving": policy, "checkpoint_interval": 10_000, **caches}
        self.cluster = cluster = SimCluster(1, segment_size=200, server_options=options, storage_nodes=STORAGES)
        self._server = cluster.servers[0]
        cluster.start()
        self.agent = FileAgent(cluster, root, self.steps)
        cluster.agents = [self.agent]
        self.agent.silent = True
        cluster.until_open()
        self._data = [b"%d" % at * 9 for at in range(COUNT)]
        self._fill()
        self._reopen()
        self._begun = {node.name: node.effect_count for node in self._processes()}
        self.effects: dict[str, int] = {}  # of the round, by process

    def _processes(self) -> list[SimNode]:
        return [self._server, *(storage.node for storage in self.cluster.storages)]

    def _fill(self) -> None:
        client = Client(self.cluster)
        client.generation = session_of(self.cluster).generation
        client.mount()
        for data in self._data:
            client.append(data)
        client.wait(lambda: len(client.feed()) == COUNT)
        self._feed = client.feed()
        client.peer.close()

    def _reopen(self) -> None:
        """With a store session that began behind all records, everything but the newest may be freed."""
        self._server.crash()
        self._server.start()
        self.cluster.until_open()

    def run(self) -> None:
        """From the first look to its end, through the kill.

        Raises:
            AssertionError: something was freed that must not be, or the round does not end.
        """
        world, steps = self.cluster.world, self.steps
        world.after_step = self._check_disk
        steps.counting = True
        self._arm()
        with steps.watching():
            self.agent.silent = False
            self.agent.kill()  # which answers what it has kept silent about: it is asked anew
            done = world.run_while(lambda: not self._through(), _LIMIT_MS)
            steps.counting = False
        self.effects = {node.name: node.effect_count - self._begun[node.name] for node in self._processes()}
        assert done, f"the round does not end: {self._state()}"
        self._check_whole()

    # ---- the kill ----------------------------------------------------------------------------

    def _arm(self) -> None:
        kill = self._kill
        self.agent.on_killed = self._host_dies if kill is not None and kill.who == "host" else self._archive_dies
        if kill is None:
            return
        if kill.who in ("archive", "host"):
            self.steps.last = kill.step
            return
        node = next(node for node in self._processes() if node.name == kill.who)
        node.crash_at_effect = node.effect_count + 1 + kill.step
        crashed = node.on_crash
        assert crashed is not None
        for storage in self.cluster.storages:
            storage.power_fails = storage.node is node

        def on_crash() -> None:
            crashed()
            self._comes_back(node)

        node.on_crash = on_crash

    def _archive_dies(self) -> None:
        self.kills += 1
        self.agent.kill()

    def _host_dies(self) -> None:
        self._server.crash()
        self._comes_back(self._server)

    def _comes_back(self, node: SimNode) -> None:
        self.kills += 1
        storage = next((each for each in self.cluster.storages if each.node is node), None)
        if storage is not None:
            storage.power_fails = False
        self.cluster.world.after(_BACK_MS, node.start if storage is None else storage.start)

    # ---- what must be true -------------------------------------------------------------------

    def _through(self) -> bool:
        alive = all(node.alive for node in self._processes()) and all(each.ready for each in self.cluster.storages)
        freed = [start for start in self._starts() if start == COUNT - KEEP]
        return alive and len(freed) > STORAGES // 2 and self._server_archive() == (COUNT, "")

    def _starts(self) -> list[int]:
        """Where the log begins on each storage node."""
        replicas = [each.node.machine.replicas[0] for each in self.cluster.storages if each.node.alive and each.ready]
        return [replica.log_start for replica in replicas if replica is not None]

    def _server_archive(self) -> tuple[int, str] | None:
        served = self._server.machine.partitions.get(0)
        return (served.archiving.end, served.archiving.trouble) if served is not None else None

    def _state(self) -> Any:
        machine = self._server.machine
        return (machine and machine.snapshot(self.cluster.world.now).partitions, self._starts())

    def _check_disk(self, node: SimNode) -> None:
        """Nothing leaves a storage node that is not archived, readable there, and compared."""
        start = max(self._starts(), default=0)
        if start > self.freed:
            self.freed = start
            assert start <= self.agent.equal, f"{node.name} freed up to {start}, compared: {self.agent.equal}"
            held = self.archived()
            assert start <= len(held), f"{node.name} freed up to {start}, archived: {len(held)}"

    def archived(self) -> list[Record]:
        """What somebody reads from the archive who knows nothing of what happened; all of it must be sound."""
        verdicts = run_verification(plan_verification(str(self._root)), Here())
        assert [(verdict.problems, verdict.unread) for verdict in verdicts] == [((), ())] * len(verdicts)
        store = open_store(str(self._root))
        reader = ArchiveReader(Manifest(store), store.root)
        held: list[Record] = []
        for file in (verdict.file for verdict in verdicts):
            assert file.first_id == len(held), f"{file.path} does not go on at {len(held)}"
            while len(held) < file.end_id:
                answer = reader.answer(calls.ArchiveRead(0, 0, len(held), COUNT))
                assert isinstance(answer, calls.ArchiveData)
                held += answer.records
        assert [record.data for record in held] == self._data[: len(held)]
        assert [record.req_id for record in held] == [each.req_id for each in self._feed[: len(held)]]
        return held

    def _check_whole(self) -> None:
        """All of the log is archived, once, and whoever begins at 0 is fed all of it."""
        assert len(self.archived()) == COUNT
        client = Client(self.cluster, client_id=8)
        client.generation = session_of(self.cluster).generation
        client.send(messages.MountRequest(client.req_id(), -1, 0))
        client.wait(lambda: [each.transaction_id for each in client.feed()] == list(range(COUNT)), 60_000)


def kills(plain: Round) -> list[Kill]:
    """Every kill of a round, from one that ran without any."""
    own = [Kill(who, step) for who in ("archive", "host") for step in range(len(plain.steps.names))]
    return own + [Kill(name, step) for name, count in plain.effects.items() for step in range(count)]
