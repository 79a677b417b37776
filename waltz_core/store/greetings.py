"""How replicas come into a store session: connection, greeting, the place where their log begins.

```
            link up               greeted                    start known (codec 1), or codec 0
DIALING ──────────────► GREETING ─────────► RECOVERING ───────────────────────────────────────► Recovery
   ▲                       │                     │
   └── refused, in limbo ──┘     link down, failed: LOST, for as long as the session lasts
```

A greeting fences every older session on the replica, so it is also the first act of this one there. A replica
that refuses it is asked again each second: its partition may not be open yet, or it may be under repair.

A replica that was lost never rejoins its session: nothing would say which of its answers belong to which life.
So once it is back for a while, a new session is worth its price; that is what `rejoin_at` says.
"""

from __future__ import annotations

from waltz_core.base.alarms import SetsAlarms
from waltz_core.base.outbox import Emits
from waltz_core.base.record import record
from waltz_core.store import recovery_events as rec
from waltz_core.store.replica_link import LinkState, ReplicaLink
from waltz_core.store.requests import Refusal, Requests
from waltz_core.store.session_notes import ReplicaRefused, ReplicaSuspect
from waltz_core.wire import storage_messages as messages
from waltz_core.wire.shared import Condition

_GREET_AGAIN_MS = 1000
_REJOIN_MS = 10_000  # a replica that lost its chance in this session is back for so long before a new one begins
_FAILED_MS = 60_000  # the same for one that failed and stayed connected


@record
class GreetAgain:
    """A replica that refused to greet is asked again."""

    replica: str


class Greetings:
    """Greets replicas as they connect, and hands those that answer to recovery."""

    __slots__ = ("_alarms", "_events", "_notes", "_out_of_service", "_requests", "back")

    def __init__(
        self,
        requests: Requests,
        events: Emits[rec.Event],
        notes: Emits[ReplicaRefused | ReplicaSuspect],
        alarms: SetsAlarms[GreetAgain],
    ) -> None:
        self._requests = requests
        self._events = events
        self._notes = notes
        self._alarms = alarms
        self._out_of_service: dict[str, str] = {}  # replicas that are in limbo or have stopped, and what they say
        self.back: dict[str, int] = {}  # replicas that are back, and when a new session is worth it

    @property
    def rejoin_at(self) -> int | None:
        """When a new session is worth it, for the sake of those that were lost."""
        return min(self.back.values()) if self.back else None

    @property
    def lost(self) -> list[str]:
        """Replicas that only a new session can take in again, sorted."""
        return sorted(self.back)

    def link_up(self, now: int, link: ReplicaLink, codec: int) -> None:
        """A connection stands."""
        if link.state is LinkState.LOST:
            # It never rejoins its session (docs/recovery.md, I2); without another one it would stay out for ever.
            self.back[link.replica] = now + _REJOIN_MS
        if link.state is LinkState.DIALING:
            link.codec = codec
            link.movable = codec >= 1
            self.greet(link)

    def link_down(self, link: ReplicaLink) -> None:
        """A connection ended."""
        self._alarms.set(GreetAgain(link.replica), None)
        self.back.pop(link.replica, None)

    def failed(self, now: int, link: ReplicaLink) -> None:
        """A replica was lost before it followed the log."""
        self.back[link.replica] = now + _FAILED_MS

    def greet(self, link: ReplicaLink) -> None:
        """Ask a replica what it remembers."""
        link.state = LinkState.GREETING
        self._alarms.set(GreetAgain(link.replica), None)
        self._requests.greet(link.replica)

    def refused(self, now: int, link: ReplicaLink, refusal: Refusal) -> None:
        """Fenced by a later session, or the partition is not available there (yet)."""
        if link.state is not LinkState.GREETING:
            return  # its connection has ended meanwhile, and with it its part in this session
        link.state = LinkState.DIALING
        if refusal.fence is not None and refusal.fence > self._requests.session_id:
            self._events.put(rec.ReplicaFenced(link.replica, refusal.fence))
        else:
            self._alarms.set(GreetAgain(link.replica), now + _GREET_AGAIN_MS)

    def answered(self, now: int, link: ReplicaLink, report: messages.LastSessionInfoResponse) -> None:
        """Older sessions are fenced there."""
        if report.condition != Condition.SOUND:
            self._notes.put(ReplicaSuspect(link.replica))
        if report.condition in (Condition.LIMBO, Condition.STOPPED):
            self._is_out_of_service(now, link, report)
            return
        self._out_of_service.pop(link.replica, None)  # its next trouble is news
        link.state = LinkState.RECOVERING
        if link.movable:
            self._requests.ask_log_start(link.replica, report)
        else:
            self._events.put(rec.ReplicaUp(link.replica, report.last_session_info, _fence(report)))

    def log_start_known(self, link: ReplicaLink, report: messages.LastSessionInfoResponse, start: int) -> None:
        """Where its log begins is part of what a replica is."""
        link.start = start
        self._arrived(link, report)

    def log_start_unknown(self, link: ReplicaLink, report: messages.LastSessionInfoResponse) -> None:
        """One that does not tell keeps all of its log."""
        if link.state is LinkState.RECOVERING:
            link.movable = False
            self._arrived(link, report)

    def _arrived(self, link: ReplicaLink, report: messages.LastSessionInfoResponse) -> None:
        up = rec.ReplicaUp(link.replica, report.last_session_info, _fence(report), False, link.start, link.movable)
        self._events.put(up)

    def _is_out_of_service(self, now: int, link: ReplicaLink, report: messages.LastSessionInfoResponse) -> None:
        """Absent, as one that does not answer; it comes in as soon as it is repaired."""
        link.state = LinkState.DIALING
        self._alarms.set(GreetAgain(link.replica), now + _GREET_AGAIN_MS)
        reason = report.reason or "its log may end too early"
        if self._out_of_service.get(link.replica) != reason:
            self._out_of_service[link.replica] = reason
            self._notes.put(ReplicaRefused(link.replica, reason))
        fence = _fence(report)
        if fence is not None and fence > self._requests.session_id:
            self._events.put(rec.ReplicaFenced(link.replica, fence))


def _fence(report: messages.LastSessionInfoResponse) -> int | None:
    """The highest session that the replica ever answered; only codec 1 tells."""
    return report.fence if report.fence >= 0 else None
