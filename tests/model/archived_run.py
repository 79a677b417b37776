"""Runs whose servers archive by policy: what is drawn, and what must be true when everything has settled."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import TYPE_CHECKING, Any

from tests.model.faults import ARCHIVE, ASTRAY
from tests.model.test_server import Client
from waltz_core.server.archive_calls import ArchivePolicy
from waltz_core.wire import client_messages as messages

if TYPE_CHECKING:
    from tests.model.run import Run

POLICY = "archive policy"
_SHARE = 0.15
_PATIENCE_MS = 60_000  # for something more to be archived
_RECORD_QUESTIONS = 3  # that a record may take, each answered as slowly as the archive does: the bound of the whole
_TRIES = 200


class ArchivedRun:
    """The policy of one run, if it has one."""

    def __init__(self, run: Run, without: Collection[str], *, drawn: bool) -> None:
        rng = Random(f"{run.seed}/policy")
        barred = {ARCHIVE, ASTRAY, "zk_rewind"} & set(run.kinds) or run.plan.legacy_storages or run.proxied.on
        self.on = drawn and POLICY not in without and rng.random() < _SHARE and not barred
        self._run = run
        self._policy = ArchivePolicy(
            "the vault",
            file_records=rng.choice((1, 7, 40)),
            file_bytes=rng.choice((100, 1 << 20)),
            after_ms=rng.choice((100, 2_000, 10_000)),
            keep=rng.choice((None, 0, 0, 10, 60)),
            retry_min_ms=rng.choice((20, 500)),
            retry_max_ms=2_000,
            answer_ms=rng.choice((2_000, 10_000)),
            reads_max=rng.choice((1, 2, 8)),
            files_max=rng.choice((1, 2)),
        )

    def server_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """With the policy, and sessions short enough that something can be freed."""
        if not self.on:
            return options
        return options | {"archiving": self._policy, "checkpoint_interval": min(60, options["checkpoint_interval"])}

    def start(self, before: int) -> None:
        """Draw what goes wrong with the archive."""
        for agent in self._run.cluster.agents:
            agent.draw_troubles(before)

    def heal(self) -> None:
        """The faults are over."""
        for agent in self._run.cluster.agents:
            agent.heal()

    def settle(self) -> None:
        """Everything that is old enough is archived; whoever begins at 0 is fed all of it, each once and in order."""
        if not self.on:
            return
        run, vault = self._run, self._run.cluster.vault

        def held() -> int:
            return sum(len(records) for records in vault.records)

        def archived() -> bool:
            return all(len(vault.records[at]) == len(log) for at, log in enumerate(run.observer.logs))

        def goes_on() -> bool:
            before = held()
            return run.world.run_while(lambda: held() == before, _PATIENCE_MS, every=50)

        # With small limits hundreds of records may be due, one after the other: it goes on, and at the archive's pace.
        missing = sum(map(len, run.observer.logs)) - held()
        slow_ms = max(agent.slow_ms for agent in run.cluster.agents)
        end = run.world.now + _PATIENCE_MS + missing * _RECORD_QUESTIONS * slow_ms
        while not archived():
            assert goes_on(), self._complaint()
            assert run.world.now < end, f"not within {_PATIENCE_MS} ms and {missing} records: {self._complaint()}"
        for partition, log in enumerate(run.observer.logs):
            self._read(partition, len(log))

    def _complaint(self) -> str:
        lengths = [
            (len(held), len(log))
            for held, log in zip(self._run.cluster.vault.records, self._run.observer.logs, strict=True)
        ]
        machines = [server.machine for server in self._run.cluster.servers if server.alive]
        states = [(p.partition_id, p.archive) for one in machines for p in one.snapshot(self._run.world.now).partitions]
        return f"archived and committed: {lengths}; {states}"

    def _read(self, partition: int, count: int) -> None:
        """Ranges from the server that owns it, from 0 to the end."""
        run, ids = self._run, list[int]()
        for _ in range(_TRIES):
            if len(ids) == count:
                break
            owner = next(
                (n for n, s in enumerate(run.cluster.servers) if s.alive and partition in s.machine.partitions)
            )
            reader = Client(run.cluster, server=owner, client_id=9_999)
            while len(ids) < count:
                answer = self._ask(reader, partition, len(ids))
                if not isinstance(answer, messages.RecordRangeResponse) or not answer.records:
                    run.world.run(run.world.now + 500)
                    break
                ids += [one.transaction_id for one in answer.records]
            reader.peer.close()
        assert ids == list(range(count)), (
            f"partition {partition} was read as {ids[:3]} … {ids[-3:]}, it has {count} records"
        )
        run.observer.counts["read through"] = run.cluster.vault.reads

    def _ask(self, reader: Client, partition: int, first: int) -> Any:
        req_id = reader.req_id(partition)
        reader.send(messages.RecordRangeRequest(req_id, first, 1 << 40, 0, 0, False))

        def answer() -> Any:
            reader.connection.receive(reader.peer.take_bytes(), reader.received)
            return next((one for one in reader.received if getattr(one, "req_id", None) == req_id), None)

        self._run.world.run_while(lambda: answer() is None and not reader.peer.closed, 30_000)
        return answer()
