"""What a part of a server is built with, in the hands of a test."""

from __future__ import annotations

from typing import Any

from waltz_core.base.alarms import Alarms
from waltz_core.base.contract import Tickets
from waltz_core.base.outbox import Outbox
from waltz_core.base.pending import Pending


class Desk:
    """An outbox, a table of what is awaited and a heap of alarms, all empty at first."""

    def __init__(self) -> None:
        self.outbox: Outbox[Any] = Outbox()
        self.pending: Pending[Any] = Pending(Tickets())
        self.alarms: Alarms[Any] = Alarms()

    def out(self) -> list[Any]:
        """The whole outbox, in order; it is empty afterwards."""
        return self.outbox.take()

    def only(self) -> Any:
        """The one effect that there is."""
        (effect,) = self.out()
        return effect
