"""How a partition asks for its feed: one window after the other, and none while nobody has room.

A server of codec 5 with feed windows sends as many transactions as were asked for, then FeedSuspended. One of 0.13.2
sends as many as it likes. Either way the next request goes when the last is used up, unless the application has no
room and no append waits for its outcome: then the feed is *parked*, until half of the buffer is free again or an
append is submitted.

So a transaction comes once to be delivered, and at most once before that to judge an append. A server with windows cuts
mounts short too (*cut*): such a mount ends before the server's mark, and leaves us *behind*. No append may be
sent then, since it would be refused for locks that its client could have known. A client that has one to send repeats
the mount until it reaches the mark; any other client continues with windows.
"""

from __future__ import annotations

from waltz_core.client.appends import Appends
from waltz_core.client.calls import Phase
from waltz_core.client.delivery import Delivery
from waltz_core.client.standing import Standing
from waltz_core.wire.client_messages import FeedRequest, FeedWindowRequest

_COUNT_MAX = (1 << 31) - 1
_RESUME_MS = 100  # a feed that has been quiet for this long is not what fills the buffer


class FeedWindow:
    """What is asked of the server's feed under one mount."""

    __slots__ = ("_appends", "_delivery", "_standing", "_windows", "behind", "cut", "parked", "resume_at")

    def __init__(self, standing: Standing, delivery: Delivery, appends: Appends) -> None:
        self._standing = standing
        self._delivery = delivery
        self._appends = appends
        self._windows = 0  # requests that FeedSuspended has not answered yet
        self.cut = False  # the mount under way ends before the server's mark
        self.behind = False  # no mount has brought us to the mark since we asked for less than there is
        self.parked = False  # used up, and not asked for more
        self.resume_at: int | None = None  # when what was dropped is asked for again

    def remount(self, *, onward: bool) -> None:
        """A mount takes the place of every window; `onward`, whether or not the application has room again."""
        self._delivery.gap = self._delivery.gap and (onward or not self._delivery.roomy)
        self.parked = self.cut = False
        self._windows = 0
        self.resume_at = None

    def mounted(self) -> bool:
        """The mount is answered; False if it was cut short, and another one must follow before anything else."""
        self.behind = self.cut
        return not self.behind or (self._delivery.active and self._appends.judged)

    def link_lost(self) -> None:
        """Nothing comes any more, so nothing is resumed."""
        self.resume_at = None

    def stop(self) -> None:
        """No feed is delivered any more: what comes is wanted for verdicts alone, and always fits."""
        self._delivery.stop()
        self.resume_at = None
        if self.parked and self._standing.phase is Phase.MOUNTED:
            self.ask()

    def suspended(self) -> None:
        """The window is used up; in a mount: it ends before the mark."""
        phase = self._standing.phase
        self.cut = phase is Phase.MOUNTING
        if phase is Phase.MOUNTED:
            self._windows = max(0, self._windows - 1)
            if self._windows == 0:
                self.ask()

    def moved(self, now: int) -> None:
        """Something of the feed came: what was dropped waits until it is quiet."""
        if self.resume_at is not None:
            self.resume_at = now + _RESUME_MS

    def consumed(self, now: int, mark: int) -> None:
        """The application is done with what was delivered up to `mark`."""
        delivery = self._delivery
        if not delivery.consume(mark) or self._standing.phase is not Phase.MOUNTED or not delivery.roomy:
            return
        if self.parked:
            self.ask()
        elif delivery.gap and self.resume_at is None:
            self.resume_at = now + _RESUME_MS

    def due(self, now: int) -> None:
        """Ask for what was dropped, if it is time."""
        if self.resume_at is not None and now >= self.resume_at:
            self.resume_at = None
            self.ask()

    def ask(self) -> None:
        """Open the next window, unless nobody has room for it and no append waits for its outcome."""
        standing, delivery = self._standing, self._delivery
        link, session = standing.link, standing.session
        assert link is not None
        assert session is not None
        self.resume_at = None
        windows = delivery.active and link.windows
        if delivery.gap and delivery.roomy:
            delivery.gap = False
        elif delivery.active and (delivery.gap or delivery.room <= 0 or (windows and not delivery.roomy)):
            if self._appends.judged:
                self.parked = True
                self.behind = self.behind or windows
                return
            # Nothing of what was seen is sent again for the sake of a verdict.
            delivery.gap = delivery.gap or windows
        self.parked = False
        self._windows += 1
        cursor = delivery.cursor
        if windows and not delivery.gap:
            # What the application got before it was seen needs no room.
            count = min(delivery.room + max(delivery.delivered - cursor, 0), _COUNT_MAX)
            link.send(FeedWindowRequest(session, cursor, count))
        else:
            link.send(FeedRequest(session, cursor))
