"""The log as its own witness: the judge of the real clusters looks at a simulated one, too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from tests.model.durable import split
from tests.model.invariants.base import Invariant
from tests.witness.cycles import ListTransaction, check_lists
from tests.witness.log import Attempt, Entry, Lock, Payload, check
from waltz_core.client.calls import Reason


class ReplicaReport(Invariant):
    """At the end, one serial history must explain what clients asked and were told, and what disks hold.

    Each lock stands for a list that a transaction which takes it appends to, and which one that reads it has read
    as far as its client had applied the log.
    """

    def __init__(self, observer: Any) -> None:
        super().__init__(observer)
        self._moments = count()
        self._attempts: dict[str, Attempt] = {}
        self._tokens: dict[int, Any] = {}
        self._reads: dict[str, dict[Lock, tuple[str, ...]]] = {}
        self._applied: dict[str, dict[int, list[tuple[int, str]]]] = {}
        self._lists: dict[str, dict[tuple[int, Lock], list[str]]] = {}
        self._told: dict[tuple[object, ...], list[int]] = {}

    # ---- what happens --------------------------------------------------------------------------

    def on_submit(self, token: Any) -> None:
        name = str(token.number)
        payload = _payload(token)
        self._tokens[token.number] = token
        self._attempts[name] = Attempt(token.partition, payload, next(self._moments))
        applied = self._applied.get(token.client, {}).get(token.partition)
        if applied and applied[-1][0] == token.client_mark:
            lists = self._lists[token.client]
            self._reads[name] = {
                lock: tuple(lists.get((token.partition, lock), ())) for lock in (*payload.read, *payload.write)
            }

    def on_deliver(self, client: Any, partition: int, run: Sequence[Any]) -> None:
        if client.habits.tail:
            return
        applied = self._applied.setdefault(client.name, {}).setdefault(partition, [])
        lists = self._lists.setdefault(client.name, {})
        for item in run:
            token = self._tokens[item.header]
            name = str(token.number)
            applied.append((item.transaction_id, name))
            for lock in _appended(_payload(token)):
                lists.setdefault((partition, lock), []).append(name)

    def on_committed(self, client: Any, token: Any, transaction_id: int) -> None:
        attempt = self._attempts[str(token.number)]
        attempt.returned = next(self._moments)
        attempt.transaction_id = transaction_id

    def on_failed(self, client: Any, token: Any, failed: Any) -> None:
        if failed.reason.certain:
            attempt = self._attempts[str(token.number)]
            attempt.returned = next(self._moments)
            attempt.why = "LockConflictError" if failed.reason is Reason.LOCK else failed.reason.value
            attempt.blocking_id = failed.blocking_id

    def on_mark(self, partition: int, mark: int, server: Any) -> None:
        self._told.setdefault((server.name, server.epoch, partition), []).append(mark)

    # ---- the judgement -------------------------------------------------------------------------

    def at_end(self) -> None:
        observer = self.observer
        replicas = {
            partition: [
                _entries(observer.durable[one.node.name].records[partition])
                for one in observer.cluster.replicas_of(partition)
                if one.node.name not in observer.lossy
            ]
            for partition in range(observer.cluster.partitions)
        }
        marks = {partition: len(log) - 1 for partition, log in enumerate(observer.logs)}
        rising = {who: [mark for mark in told if mark != -(2**63)] for who, told in self._told.items()}
        try:
            check(replicas, marks, self._attempts, self._applied, payload_of=self._payload_of, told=rising)
            for lists in self._lists.values():
                if all(len(self._applied_by(lists).get(p, ())) == mark + 1 for p, mark in marks.items()):
                    check_lists(self._transactions(), lists)
                    break
        except AssertionError as error:
            self.require(False, str(error))

    def _applied_by(self, lists: Any) -> dict[int, list[tuple[int, str]]]:
        return next(self._applied[client] for client, found in self._lists.items() if found is lists)

    def _payload_of(self, data: bytes) -> Payload:
        return _payload(self.observer.tokens[data])

    def _transactions(self) -> list[ListTransaction[tuple[int, Lock]]]:
        return [
            ListTransaction(
                name,
                attempt.invoked,
                attempt.returned,
                bool(attempt.why),
                [(attempt.partition, lock) for lock in _appended(attempt.payload)],
                {(attempt.partition, lock): seen for lock, seen in self._reads.get(name, {}).items()},
            )
            for name, attempt in self._attempts.items()
            if _appended(attempt.payload)
        ]


def _appended(payload: Payload) -> list[Lock]:
    return list(dict.fromkeys((*payload.write, *payload.append)))


def _payload(token: Any) -> Payload:
    write, read, append = (
        tuple(("lock", lock) for lock in locks) for locks in (token.write_locks, token.read_locks, token.append_locks)
    )
    mark = -1 if token.client_mark is None else token.client_mark
    return Payload(str(token.number), mark, write, read, append)


def _entries(records: dict[int, bytes]) -> list[Entry]:
    return [Entry(*split(records[number])) for number in sorted(records)]
