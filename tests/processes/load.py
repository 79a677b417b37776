"""Client processes that load a cluster, and the verdict on what they, the disks and the servers say afterwards."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from tests.processes.cluster import Child, Cluster, poll
from tests.processes.worker import OPENING_BALANCE, READY, Job
from tests.witness.cycles import ListTransaction, check_lists
from tests.witness.log import (
    Attempt,
    Entry,
    Payload,
    Verdict,
    check,
    join_archive,
    read_archive,
    read_journals,
    read_replica,
)

FIGURES_AGE_MAX = 2.5  # seconds: a server takes one snapshot a second, and the text of it is good for another


class Load:
    """Clients `client-0`…, each a process with a SQLite database of its own.

    Args:
        cluster: what they write to.
        clients: how many.
        archive: where the log is archived, if parts of it that are archived may be freed.
        options: fields of `Job` that differ from its defaults.
    """

    def __init__(self, cluster: Cluster, clients: int = 2, *, archive: Path | None = None, **options: Any) -> None:
        self.cluster = cluster
        self._archive = archive
        self.names = [f"client-{number}" for number in range(clients)]
        self._options = options
        self.journals: list[Path] = []
        for name in self.names:
            cluster.child(name)

    def start(self, *names: str, **options: Any) -> None:
        """Start clients (all by default); each goes on where its database ends."""
        for name in names or self.names:
            child = self.cluster.children[name]
            run = f"{name}-{child.starts + 1}"
            journal = self.cluster.directory / f"{run}.journal"
            journal.touch()  # it may be killed before it begins to write
            self.journals.append(journal)
            job = Job(
                name=run,
                client=str(self.client_file(name)),
                database=str(self.database(name)),
                journal=str(journal),
                partitions=self.cluster.partitions,
                seed=len(self.journals),
                **{**self._options, **options},
            )
            path = self.cluster.directory / f"{run}.json"
            job.write(path)
            child.command[1 + len(self.cluster.flags) :] = ["-m", "tests.processes.worker", str(path)]
            child.start()

    def client_file(self, name: str) -> Path:
        """The configuration of a client."""
        del name  # all have the same
        return self.cluster.client_file

    def database(self, name: str) -> Path:
        """The database of a client."""
        return self.cluster.directory / f"{name}.db"

    def finish(self) -> Verdict:
        """End the load in order, let every database catch up, and judge everything.

        Raises:
            AssertionError: what was seen cannot be explained by one serial history, or something did not end.
        """
        children = [self.cluster.children[name] for name in self.names]
        for child in children:
            poll(f"{child.name} heeds signals", partial(_heeds_signals, child))
            child.interrupt()
        for child in children:
            assert child.wait() == 0, f"{child.name} ended with status {child.status}"
        self.start(submitters=0, window=0)  # only catches up: nobody writes any more
        for child in children:
            assert child.wait() == 0, f"{child.name} ended with status {child.status}"
        return self.verify()

    def verify(self) -> Verdict:
        """Judge the logs on the disks, the journals and the databases; nothing may be written meanwhile."""
        everyone = range(self.cluster.partitions)
        begin = time.monotonic()
        marks = poll("every partition tells its mark", lambda: self._all_marks(begin))
        poll("every replica is level", lambda: all(self._level(partition, marks[partition]) for partition in everyone))
        replicas = {partition: self._replicas(partition) for partition in everyone}
        attempts = read_journals(self.journals)
        applied = {name: self._applied(name) for name in self.names}
        verdict = check(replicas, marks, attempts, applied)
        for name in self.names:
            for partition, length in verdict.log.items():
                found = len(applied[name].get(partition, ()))
                assert found == length, f"{name} applied {found} of {length} in partition {partition}"
            self._check_balances(name, _replay(replicas, marks))
        lists = [kept for name in self.names if (kept := self._lists(name)) is not None]
        if lists:
            assert all(one == lists[0] for one in lists), "the lists of two clients differ"
            verdict.in_cycle_check = check_lists(list_transactions(attempts), lists[0])
        return verdict

    def attempts(self) -> dict[str, Attempt]:
        """What all clients have asked and been told so far."""
        return read_journals(self.journals)

    def _all_marks(self, since: float) -> dict[int, int] | None:
        """What the servers' figures say, once they are no older than `since`."""
        marks = self.cluster.committed()
        fresh = time.monotonic() - since > FIGURES_AGE_MAX
        return marks if fresh and len(marks) == self.cluster.partitions else None

    def _level(self, partition: int, mark: int) -> bool:
        return all(len(copy) > mark for copy in self._replicas(partition))

    def _replicas(self, partition: int) -> list[list[Entry]]:
        archived = [] if self._archive is None else read_archive(self._archive, partition)
        return [join_archive(archived, copy) for copy in self._copies(partition)]

    def _copies(self, partition: int) -> list[list[Entry]]:
        return [read_replica(self.cluster.directory / name, partition) for name in self.cluster.storage_names]

    def _applied(self, name: str) -> dict[int, list[tuple[int, str]]]:
        found: dict[int, list[tuple[int, str]]] = {}
        with closing(sqlite3.connect(self.database(name))) as db:
            # In the order of insertion, which is what must equal the log.
            for partition, number, attempt in db.execute("SELECT partition_id, id, name FROM applied ORDER BY rowid"):
                found.setdefault(partition, []).append((number, attempt))
        return found

    def _lists(self, name: str) -> dict[tuple[int, int], list[str]] | None:
        """The lists as a client reads them in the end, None if it keeps none."""
        found: dict[tuple[int, int], list[str]] = {}
        with closing(sqlite3.connect(self.database(name))) as db:
            for partition, number, element in db.execute("SELECT partition_id, list, name FROM lists ORDER BY rowid"):
                found.setdefault((partition, number), []).append(element)
        return found

    def _check_balances(self, name: str, expected: dict[tuple[int, int], int]) -> None:
        assert self._balances(name) == expected, f"{name} holds other balances than the log gives"

    def _balances(self, name: str) -> dict[tuple[int, int], int]:
        with closing(sqlite3.connect(self.database(name))) as db:
            rows = db.execute("SELECT partition_id, account, balance FROM balances")
            return {(partition, account): balance for partition, account, balance in rows}


def list_transactions(attempts: Mapping[str, Attempt]) -> Iterator[ListTransaction[tuple[int, int]]]:
    """Attempts to append to a list, with what they had read."""
    for name, attempt in attempts.items():
        body = attempt.payload.body
        if isinstance(body, dict):
            partition = attempt.partition
            read: dict[tuple[int, int], list[str]] = {(partition, number): seen for number, seen in body["read"]}
            failed = bool(attempt.why)
            yield ListTransaction(
                name, attempt.invoked, attempt.returned, failed, [(partition, body["appended"])], read
            )


def _heeds_signals(child: Child) -> bool:
    return READY in child.says()


def _replay(replicas: dict[int, list[list[Entry]]], marks: dict[int, int]) -> dict[tuple[int, int], int]:
    """Balances as the log gives them; no account may ever be overdrawn."""
    balances: dict[tuple[int, int], int] = {}
    for partition, copies in replicas.items():
        for entry in copies[0][: marks[partition] + 1]:
            body = Payload.loads(entry.data).body
            if body is None or isinstance(body, dict):
                continue
            giver, taker, amount = body
            for account, change in ((giver, -amount), (taker, amount)):
                if account is not None:
                    key = partition, account
                    balances[key] = balances.get(key, OPENING_BALANCE) + change
                    assert balances[key] >= 0, f"transaction {entry.transaction_id} overdraws account {account}"
    return balances


def summary(verdict: Verdict) -> str:
    """One line for people."""
    return ", ".join(f"{name} {value}" for name, value in attrs.asdict(verdict).items())
