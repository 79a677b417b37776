"""Payloads that clients ask for: from the cache, else read from a replica in runs of ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from waltz_core.ids import ReqId
from waltz_core.machine import Tickets
from waltz_core.rules import SAFE, SafetyRules
from waltz_core.server.data_cache import DataCache
from waltz_core.store.session import ReadFailed, RecordsRead
from waltz_core.wire.client_messages import TransactionDataResponse

_RUN_MAX = 256  # payloads read from a replica at once
_READS_MAX = 16  # such reads under way; each brings some MiB

Answer: TypeAlias = tuple[int, TransactionDataResponse]
"""A connection and what it is told."""


class DataFetches:
    """Data requests of one partition. One read serves everybody who asks for an id while it is under way."""

    __slots__ = (
        "_asked",
        "_cache",
        "_partition_id",
        "_poisoned",
        "_reading",
        "_reads",
        "_rules",
        "_tickets",
        "_waiting",
    )

    def __init__(self, partition_id: int, cache: DataCache, tickets: Tickets, rules: SafetyRules = SAFE) -> None:
        self._partition_id = partition_id
        self._cache = cache
        self._tickets = tickets
        self._rules = rules
        self._asked: dict[int, list[tuple[int, ReqId]]] = {}  # transaction id → who asked
        self._waiting = 0  # requests in `_asked`
        self._reads: dict[int, range] = {}  # token → ids
        self._reading: set[int] = set()
        self._poisoned: dict[int, str] = {}  # failed ones, where failed_fetch_forgotten is off

    def ask(self, conn: int, req_id: ReqId, transaction_id: int) -> TransactionDataResponse | None:
        """A client asks; the answer if it is known, else it comes from `records` or `failed`."""
        if transaction_id in self._poisoned:
            return TransactionDataResponse(req_id, transaction_id, False, error=self._poisoned[transaction_id])
        found = self._cache.get(self._partition_id, transaction_id)
        if found is not None:
            return TransactionDataResponse(req_id, transaction_id, True, *found)
        self._asked.setdefault(transaction_id, []).append((conn, req_id))
        self._waiting += 1
        return None

    @property
    def waiting(self) -> int:
        """Requests for payloads that are not there yet."""
        return self._waiting

    def launch(self, mark: int, read: Callable[[int, int, int], None]) -> list[Answer]:
        """Start reads by `read(token, first, count)` for what is not under way; refuses ids outside 0…`mark`."""
        refused: list[Answer] = []
        if len(self._reads) >= _READS_MAX:
            return refused
        run: list[int] = []
        for transaction_id in sorted(tid for tid in self._asked if tid not in self._reading):
            if not 0 <= transaction_id <= mark:
                # Java: the text as it comes from the exception, without a blank in the middle.
                refused += self._refuse(
                    transaction_id,
                    "com.wepay.waltz.store.exception.TransactionNotFoundException: "
                    f"partition={self._partition_id}transactionId={transaction_id}",
                )
                continue
            if run and (transaction_id != run[-1] + 1 or len(run) == _RUN_MAX):
                self._read(run, read)
                run = []
                if len(self._reads) >= _READS_MAX:
                    break
            run.append(transaction_id)
        if run:
            self._read(run, read)
        return refused

    def records(self, note: RecordsRead) -> list[Answer]:
        """A read was answered, perhaps with fewer records than asked: the rest is asked for again."""
        self._reading.difference_update(self._reads.pop(note.token))
        self._cache.add(self._partition_id, note.records[0].transaction_id, note.records)
        return [
            (conn, TransactionDataResponse(req_id, item.transaction_id, True, item.data, item.checksum))
            for item in note.records
            for conn, req_id in self._take(item.transaction_id)
        ]

    def failed(self, note: ReadFailed, *, final: bool) -> list[Answer]:
        """No replica could answer; unless that is `final`, it is tried again in the next session."""
        ids = self._reads.pop(note.token)
        self._reading.difference_update(ids)
        if not final:
            return []
        return [answer for tid in ids if tid in self._asked for answer in self._refuse(tid, note.reason)]

    def _read(self, run: list[int], read: Callable[[int, int, int], None]) -> None:
        token = self._tickets.take()
        self._reads[token] = range(run[0], run[-1] + 1)
        self._reading.update(run)
        read(token, run[0], len(run))

    def _refuse(self, transaction_id: int, text: str) -> list[Answer]:
        if not self._rules.failed_fetch_forgotten:
            self._poisoned[transaction_id] = text  # Java: the failed future stays in its map (server-D13)
        return [
            (conn, TransactionDataResponse(req_id, transaction_id, False, error=text))
            for conn, req_id in self._take(transaction_id)
        ]

    def _take(self, transaction_id: int) -> list[tuple[int, ReqId]]:
        """Who asked for an id; they are answered now."""
        asked = self._asked.pop(transaction_id, [])
        self._waiting -= len(asked)
        return asked
