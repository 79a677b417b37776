"""The log respects real time."""

from __future__ import annotations

from typing import Any

from tests.model.invariants.base import Invariant


class RealTime(Invariant):
    """What was submitted after the outcome of another append was known comes behind it."""

    def on_commit(self, partition: int, transaction_id: int, body: bytes, server: Any, session: Any) -> None:
        token = self.observer.token_of(body)
        if token is not None:
            self.require(
                transaction_id > token.floor,
                f"{token} was submitted when {token.floor} was known to be committed, and is at {transaction_id}",
            )
