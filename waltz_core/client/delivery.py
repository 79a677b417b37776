"""How far a partition's feed has come: seen, delivered, consumed.

- `seen`: every transaction up to it was received, and judged own appends. It never goes back, and is never set from
  outside while an append is unresolved: an own transaction that is skipped would be judged lost and be executed twice.
- `delivered`: what the application got. It lags behind `seen` when the application is slow (what does not fit is
  dropped, which leaves a *gap*, and is asked for again) or has opened its feed at an older mark. It is ahead of `seen`
  only if the application opened its feed there while an append was unresolved.
- `consumed`: what the application is done with. `delivered` - `consumed` never exceeds the buffer.

The feed is asked for from the `cursor` on. Nothing here is durable: the application's own mark is where it begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.client.calls import Deliver
from waltz_core.client.context import ClientContext
from waltz_core.wire.client_messages import FeedData


class Delivery:
    """The marks of one partition, and what the application gets."""

    __slots__ = (
        "_buffer_max",
        "_out",
        "_partition",
        "active",
        "at_tail",
        "consumed",
        "delivered",
        "feed",
        "gap",
        "seen",
    )

    def __init__(self, partition: int, context: ClientContext) -> None:
        self._partition = partition
        self._out = context.out
        self._buffer_max = context.settings.feed_buffer_max
        self.active = False  # the application has its feed open
        self.feed = 0  # the number of that feed, or of the last one
        self.seen = self.delivered = self.consumed = -1
        self.at_tail = False  # a feed waits for the mark of the tail
        self.gap = False  # a transaction after `delivered` was dropped: the buffer was full

    @property
    def room(self) -> int:
        """How many transactions the application can take."""
        return self._buffer_max - (self.delivered - self.consumed)

    @property
    def roomy(self) -> bool:
        """Half of the buffer is free: it pays to ask for more."""
        return self.room * 2 >= self._buffer_max

    @property
    def cursor(self) -> int:
        """The mark from which the feed must continue."""
        if self.active and not self.gap and not self.at_tail:
            return min(self.delivered, self.seen)
        return self.seen

    def begin(self, mark: int) -> None:
        """All three marks stand here."""
        self.seen = self.delivered = self.consumed = mark

    def begin_at_tail(self, mark: int) -> None:
        """The log ends here; a feed that was opened at a mark stays there."""
        self.seen = mark
        if self.at_tail or not self.active:
            self.delivered = self.consumed = mark
        self.at_tail = False

    def move(self, mark: int) -> None:
        """Deliver from another mark on; what was seen stays."""
        self.delivered = self.consumed = mark
        self.at_tail = False

    def stop(self) -> None:
        """Stop delivering."""
        self.active = self.gap = self.at_tail = False

    def hand_on(self, run: list[FeedData], before: int) -> None:
        """Deliver what follows of a run that has just been seen from `before` on; what does not fit is dropped."""
        if self.gap:
            return
        if before != self.delivered or self.seen - before != len(run):
            run = _following(run, self.delivered)
        room = self.room
        if len(run) > room:
            self.gap = True
            run = run[: max(room, 0)]
        if run:
            self.delivered = run[-1].transaction_id
            self._out.put(Deliver(self._partition, run, self.feed))

    def consume(self, mark: int) -> bool:
        """The application is done with what was delivered up to `mark`; False if that is nothing new."""
        if not self.consumed < mark <= self.delivered:
            return False
        self.consumed = mark
        return True


def _following(run: Sequence[FeedData], delivered: int) -> list[FeedData]:
    """What of a run continues `delivered`."""
    follows = []
    for record in run:
        if record.transaction_id == delivered + 1:
            follows.append(record)
            delivered += 1
    return follows
