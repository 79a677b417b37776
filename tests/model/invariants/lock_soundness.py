"""No committed transaction missed a change of what it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model.invariants.base import Invariant
from waltz_core.client.calls import Reason


class LockSoundness(Invariant):
    """With exact sets of locks: nothing between a transaction's mark and itself wrote or appended a lock of its own.

    False refusals are allowed, and counted.
    """

    def __init__(self, observer: Any) -> None:
        super().__init__(observer)
        self._history: list[dict[int, list[int]]] = [{} for _ in range(observer.cluster.partitions)]

    def on_commit(self, partition: int, transaction_id: int, body: bytes, server: Any, session: Any) -> None:
        token = self.observer.token_of(body)
        if token is None:
            return
        history = self._history[partition]
        if token.client_mark is not None:
            for lock in (*token.write_locks, *token.read_locks):
                ids = history.get(lock)
                self.require(
                    not ids or ids[-1] <= token.client_mark,
                    f"{token}, based on mark {token.client_mark}, committed as {partition}/{transaction_id} "
                    f"although {ids and ids[-1]} had taken its lock {lock}",
                )
        for lock in (*token.write_locks, *token.append_locks):
            history.setdefault(lock, []).append(transaction_id)

    def on_failed(self, client: Any, token: Any, failed: Any) -> None:
        if failed.reason is not Reason.LOCK or token.client_mark is None:
            return
        history = self._history[token.partition]
        blocked = any(
            self._last_up_to(history.get(lock, ()), failed.blocking_id) > token.client_mark
            for lock in (*token.write_locks, *token.read_locks)
        )
        self.observer.counts["true refusals" if blocked else "false refusals"] += 1

    @staticmethod
    def _last_up_to(ids: Sequence[int], limit: int) -> int:
        return max((one for one in ids if one <= limit), default=-1)
