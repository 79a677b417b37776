"""Events from a thread to the Trio task that waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import trio

E = TypeVar("E")


class Mailbox(Generic[E]):
    """Hands events that threads post to `deliver`, in the thread of Trio, as many at a time as have come."""

    def __init__(self, deliver: Callable[[Sequence[E]], object], token: trio.lowlevel.TrioToken) -> None:
        self._deliver = deliver
        self._token = token
        self._arrived: deque[E] = deque()
        self.closed = False  # what is still posted is dropped

    def close(self) -> None:
        """Nobody waits any more."""
        self.closed = True

    def post(self, events: Sequence[E]) -> None:
        """From any thread."""
        if self.closed or not events:
            return
        self._arrived.extend(events)
        try:
            self._token.run_sync_soon(self._arrive, idempotent=True)
        except trio.RunFinishedError:
            self.closed = True

    def _arrive(self) -> None:
        events = []
        while self._arrived:
            events.append(self._arrived.popleft())
        if events and not self.closed:
            self._deliver(events)
