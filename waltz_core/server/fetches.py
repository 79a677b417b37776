"""Payloads that clients ask for: from the cache, else read from a replica in runs of ids.

    ask ──▶ in the cache ──▶ answered at once
     └────▶ queue, in turns ──▶ admitted ──▶ a read of adjacent ids ──▶ records ──▶ cache, and all who asked
                                   ▲             ├── fewer than asked for, or the session ended
                                   └─────────────┘
                                                 └── no replica has a sound copy, or given up ──▶ refused

It owns what is asked and which ids are being read; the cache is the process's. Requests wait here across store
sessions, so a fail-over costs a client time and no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from waltz_core.base.contract import Tickets
from waltz_core.base.ids import ReqId
from waltz_core.base.turns import Shares, Turns
from waltz_core.server.data_cache import DataCache
from waltz_core.server.refusals import payload_not_here
from waltz_core.store.session_notes import ReadFailed, RecordsRead
from waltz_core.wire.client_messages import TransactionDataResponse

_RUN_MAX = 256  # payloads read from a replica at once
_READS_MAX = 16  # such reads under way; each brings some MiB
_ASKED_MAX = _RUN_MAX * _READS_MAX  # requests from which the reads are made; others wait for their turn

Answer: TypeAlias = tuple[int, TransactionDataResponse]
"""A connection and the messages for it."""


class DataFetches:
    """Data requests of one partition. One read serves everybody who asks for an id while it is under way.

    `held` counts what waits for each connection, in all partitions together.
    """

    __slots__ = (
        "_asked",
        "_cache",
        "_held",
        "_partition_id",
        "_queue",
        "_reading",
        "_reads",
        "_tickets",
        "_waiting",
    )

    def __init__(self, partition_id: int, cache: DataCache, tickets: Tickets, held: Shares) -> None:
        self._partition_id = partition_id
        self._cache = cache
        self._tickets = tickets
        self._held = held
        self._queue: Turns[tuple[ReqId, int]] = Turns(_RUN_MAX)  # requests with the ids they are for
        self._asked: dict[int, list[tuple[int, ReqId]]] = {}  # transaction id → who asked and had his turn
        self._waiting = 0  # requests in `_asked`
        self._reads: dict[int, range] = {}  # token → ids
        self._reading: set[int] = set()

    def ask(self, conn: int, owner: str, req_id: ReqId, transaction_id: int) -> TransactionDataResponse | None:
        """A client asks; the answer if it is known, else it comes from `records` or `failed`."""
        found = self._cache.get(self._partition_id, transaction_id)
        if found is not None:
            return TransactionDataResponse(req_id, transaction_id, True, *found)
        self._queue.put(conn, owner, 1, (req_id, transaction_id))
        self._held.add(conn, owner, 1)
        return None

    @property
    def waiting(self) -> int:
        """Requests for payloads that are not there yet."""
        return self._queue.size + self._waiting

    def writable(self, conn: int, writable: bool) -> None:
        """Nothing more is read for a connection that does not take what it was sent."""
        self._queue.block(conn, not writable)

    def close(self) -> list[Answer]:
        """The partition goes: whoever waits hears so, as one that asks later does. It may come back to this server."""
        answers: list[Answer] = []
        for conn, (req_id, transaction_id) in self._queue.clear():
            self._held.free(conn, 1)
            answers.append((conn, payload_not_here(req_id, transaction_id)))
        for transaction_id in list(self._asked):
            answers += [(conn, payload_not_here(req_id, transaction_id)) for conn, req_id in self._take(transaction_id)]
        return answers

    def gone(self, conn: int) -> None:
        """A connection ended: nobody waits for its answers."""
        self._queue.drop(conn)
        for transaction_id, asked in list(self._asked.items()):
            kept = [one for one in asked if one[0] != conn]
            self._waiting -= len(asked) - len(kept)
            if kept:
                self._asked[transaction_id] = kept
            else:
                del self._asked[transaction_id]

    def launch(self, mark: int, read: Callable[[int, int, int], None]) -> list[Answer]:
        """Start reads by `read(token, first, count)` for what is not under way; refuses ids outside 0…`mark`.

        Returns the answers that need no read.
        """
        answers: list[Answer] = []
        if len(self._reads) >= _READS_MAX:
            return answers
        self._admit(answers)
        run: list[int] = []
        for transaction_id in sorted(tid for tid in self._asked if tid not in self._reading):
            if not 0 <= transaction_id <= mark:
                # Java: the text as it comes from the exception, without a blank in the middle.
                answers += self._refuse(
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
        return answers

    def _admit(self, answers: list[Answer]) -> None:
        """Those whose turn it is: few enough that whoever comes next does not wait long."""
        while self._waiting < _ASKED_MAX and (taken := self._queue.take()) is not None:
            conn, (req_id, transaction_id) = taken
            cached = self._cache.peek(self._partition_id, transaction_id)  # somebody else's read may have brought it
            if cached is not None:
                self._held.free(conn, 1)
                answers.append((conn, TransactionDataResponse(req_id, transaction_id, True, *cached)))
                continue
            self._asked.setdefault(transaction_id, []).append((conn, req_id))
            self._waiting += 1

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
        """No replica could answer; unless that is `final`, it is tried again in the next session.

        A read gives what stands before a record that cannot be given out, so of a run only the first is to blame: the
        others are asked for again. An archive that is away is so for all of them: one refusal after the other would
        keep the last one waiting for as many reads as there are.
        """
        ids = self._reads.pop(note.token)
        self._reading.difference_update(ids)
        if not final:
            return []
        refused = ids if note.whole else ids[:1]
        return [answer for tid in refused for answer in self._refuse(tid, note.reason)]

    def _read(self, run: list[int], read: Callable[[int, int, int], None]) -> None:
        token = self._tickets.take()
        self._reads[token] = range(run[0], run[-1] + 1)
        self._reading.update(run)
        read(token, run[0], len(run))

    def _refuse(self, transaction_id: int, text: str) -> list[Answer]:
        return [
            (conn, TransactionDataResponse(req_id, transaction_id, False, error=text))
            for conn, req_id in self._take(transaction_id)
        ]

    def _take(self, transaction_id: int) -> list[tuple[int, ReqId]]:
        """Who asked for an id; they are answered now."""
        asked = self._asked.pop(transaction_id, [])
        self._waiting -= len(asked)
        for conn, _ in asked:
            self._held.free(conn, 1)
        return asked
