"""Clients that asked which storage nodes this server reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz_core.base.ids import ReqId
from waltz_core.wire.client_messages import CheckStorageConnectivityResponse

CHECK: Final = -1
"""Stands for a partition id where a check wants a storage node."""


class _Check:
    __slots__ = ("conn", "req_id", "results", "waiting")

    def __init__(self, conn: int, req_id: ReqId, waiting: set[str]) -> None:
        self.conn = conn
        self.req_id = req_id
        self.waiting = waiting
        self.results: dict[str, bool] = {}


class ConnectivityChecks:
    """Each is answered when every node was reached, or failed to be."""

    __slots__ = ("_checks",)

    def __init__(self) -> None:
        self._checks: list[_Check] = []

    def ask(self, conn: int, req_id: ReqId, storages: Sequence[str]) -> None:
        """A client asks about `storages`."""
        self._checks.append(_Check(conn, req_id, set(storages)))

    def waiting(self, conn: int) -> int:
        """Unanswered requests of a connection."""
        return sum(check.conn == conn for check in self._checks)

    def tried(self, storage: str, reached: bool) -> list[tuple[int, CheckStorageConnectivityResponse]]:
        """Whether a node was reached is known; returns the answers that are complete now, and their connections."""
        for check in self._checks:
            if storage in check.waiting:
                check.waiting.discard(storage)
                check.results[storage] = reached
        complete = [check for check in self._checks if not check.waiting]
        self._checks = [check for check in self._checks if check.waiting]
        return [
            (check.conn, CheckStorageConnectivityResponse(check.req_id, tuple(sorted(check.results.items()))))
            for check in complete
        ]
