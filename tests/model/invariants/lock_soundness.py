"""No committed transaction missed a change of what it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model.invariants.base import Invariant
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.client.calls import Reason
from waltz_core.wire.client_messages import AppendRefused


class LockSoundness(Invariant):
    """With exact sets of locks: nothing between a transaction's mark and itself wrote or appended a lock of its own.

    False refusals are allowed, and counted; where the server says whether one was false, that must be so.
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
        if failed.refusal is not None:
            self._check_explanation(token, failed.refusal)

    def _check_explanation(self, token: Any, told: AppendRefused) -> None:
        """What the server says about a conflict is what the log says."""
        self.observer.counts[f"conflict {Conflict(told.conflict).name}"] += 1
        if told.lock_kind == LockKind.NONE:
            return
        locks = token.write_locks if told.lock_kind == LockKind.WRITE else token.read_locks
        self.require(locks[told.lock_index] == told.lock_hash, f"{token}: not its lock: {told}")
        takers = self._history[token.partition].get(told.lock_hash, ())
        if told.conflict == Conflict.FALSE:
            for lock in (*token.write_locks, *token.read_locks):
                newest = self._last_up_to(self._history[token.partition].get(lock, ()), told.transaction_id)
                self.require(
                    newest <= token.client_mark, f"{token}: a false conflict, but {newest} took {lock}: {told}"
                )
        elif told.conflict == Conflict.TRUE and told.blocking_id not in takers:
            # It was in flight when it was blamed, and came to nothing with its session.
            sessions = {metadata.session_id for metadata in self.observer.history[token.partition]}
            self.require(len(sessions) > 1, f"{token}: {told.blocking_id} never took its lock: {told}")
            self.observer.counts["blamed and lost"] += 1

    @staticmethod
    def _last_up_to(ids: Sequence[int], limit: int) -> int:
        return max((one for one in ids if one <= limit), default=-1)
