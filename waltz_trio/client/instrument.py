"""Where a client tells what it does, for metrics of the application's choice."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from waltz_trio.client.shown import shown


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


@runtime_checkable
class TimedInstrument(Instrument, Protocol):
    """An instrument that also follows each append and each submit, for times and spans.

    What the first of two methods returns is given to the second.
    """

    def append_began(self, partition: int, submit: object | None) -> object:
        """An append is sent: in the task of its caller, or for `submit`, which is what `submit_began` returned."""

    def append_ended(self, append: object, transaction_id: int | None, reason: str) -> None:
        """It is in the log, synced by a quorum, under this id; or None and the reason why it is not known to be."""

    def submit_began(self, partition: int) -> object:
        """A submit begins, in the task of its caller."""

    def submit_ended(
        self, submit: object, outcome: str, transaction_id: int | None, attempts: int, conflicts: int
    ) -> None:
        """It ended: committed, declined, gave_up, key_reused, unknown, failed or cancelled."""


_METHODS = ("committed", "failed", "delivered", "applied", "conflict")


def check_instrument(instrument: Any) -> None:
    """Check that it has every method: a missing one would end the client at the first call.

    Raises:
        TypeError: it is a class, or lacks a method.
    """
    if isinstance(instrument, type):
        raise TypeError(f"expected an instrument, found the class {instrument.__name__}; write {instrument.__name__}()")
    for name in _METHODS:
        if not callable(getattr(instrument, name, None)):
            raise TypeError(
                f"expected an instrument, such as PrometheusInstrument(), found {shown(instrument)}, "
                f"which has no method {name}"
            )
