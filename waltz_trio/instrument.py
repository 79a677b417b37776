"""Where a client tells what it does, for metrics of the application's choice."""

from __future__ import annotations

from typing import Protocol


class Instrument(Protocol):
    """Called in the Trio thread, once per batch; must neither await nor raise."""

    def committed(self, partition: int, count: int) -> None:
        """Appends of this client were seen in the feed."""

    def failed(self, partition: int, reason: str) -> None:
        """An append did not commit."""

    def delivered(self, partition: int, count: int) -> None:
        """Transactions were handed to a feed."""

    def applied(self, partition: int, count: int, seconds: float) -> None:
        """A view committed a batch."""

    def conflict(self, partition: int, blocking_id: int) -> None:
        """A submit met a lock and is decided again."""
