"""Outcomes are honest."""

from __future__ import annotations

from typing import Any

from tests.model.invariants.base import Invariant


class Outcomes(Invariant):
    """Committed ⇒ in the log exactly once, there; failed ⇒ never; unknown ⇒ at most once. Each has one outcome."""

    def on_commit(self, partition: int, transaction_id: int, body: bytes, server: Any, session: Any) -> None:
        token = self.observer.token_of(body)
        self.require(token is not None, f"nobody appended {partition}/{transaction_id}")
        assert token is not None
        self.require(
            token.transaction_id is None,
            f"{token} is in the log twice, at {token.transaction_id} and {transaction_id}",
        )
        self.require(token.partition == partition, f"{token} is in the log of partition {partition}")
        self.require(token.outcome != "failed", f"{token} failed, and is in the log at {partition}/{transaction_id}")
        token.transaction_id = transaction_id

    def on_committed(self, client: Any, token: Any, transaction_id: int) -> None:
        self.require(not token.outcome, f"{token} is committed after it was {token.outcome}")
        self.require(
            token.transaction_id == transaction_id,
            f"{token} was said to be at {transaction_id}, the log holds it at {token.transaction_id}",
        )

    def on_failed(self, client: Any, token: Any, failed: Any) -> None:
        self.require(not token.outcome, f"{token} failed after it was {token.outcome}")
        if failed.reason.certain:
            self.require(
                token.transaction_id is None,
                f"{token} failed ({failed.reason.value}) and is in the log at {token.transaction_id}",
            )

    def at_end(self) -> None:
        waiting = [token for token in self.observer.tokens.values() if not token.outcome and token.client]
        self.require(not waiting, f"no outcome of {waiting[:5]}")
