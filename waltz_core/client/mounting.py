"""How a partition gets mounted, and when that must be done anew.

A mount names the mark that the feed goes on from, and the number of the connection: a server honours only the newest
connection of a client. It is asked for

- when the partition comes to a connection that can be used, or its connection comes to stand;
- again after a pause, when the server says NOT_READY, or that the role of this client does not allow it;
- under a newer generation: the server may have lost and regained the partition unseen, and forgotten the mount;
- when appends were lost without a word, or the server owes an answer for long: it may not know this client;
- onward, if it was cut short and an append waits for the mark (`FeedWindow`).

CLIENT_AHEAD and BEFORE_START end it: no mount would change them, and appends get that as their reason. Who only appends
needs nothing of what the log has lost: it begins anew, at the tail.
"""

from __future__ import annotations

from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId
from waltz_core.client.appends import Appends
from waltz_core.client.calls import Phase, Reason
from waltz_core.client.context import ClientContext
from waltz_core.client.delivery import Delivery
from waltz_core.client.link import Link
from waltz_core.client.standing import Standing
from waltz_core.client.window import FeedWindow
from waltz_core.wire.client_messages import MountRequest, MountResponse, PartitionState

_UNPLACED = (Phase.CLOSED, Phase.TAIL)  # the mark to mount at is not known
_UNDER_WAY = (Phase.MOUNTING, Phase.MOUNTED)


class Mounting:
    """The mounts of one partition."""

    __slots__ = ("_appends", "_delivery", "_not_ready_ms", "_standing", "_window", "retry_at")

    def __init__(
        self, context: ClientContext, standing: Standing, delivery: Delivery, appends: Appends, window: FeedWindow
    ) -> None:
        self._not_ready_ms = context.settings.not_ready_ms
        self._standing = standing
        self._delivery = delivery
        self._appends = appends
        self._window = window
        self.retry_at: int | None = None  # the end of a pause

    # ---- the connection ----------------------------------------------------------------------

    def place(self, now: int, link: Link | None, generation: int) -> None:
        """The partition lives on this connection from now on, or on none, under this generation."""
        standing = self._standing
        raised = generation > standing.generation
        if raised:
            standing.generation = generation
        if link is not standing.link:
            self.link_lost(now)
            standing.link = link
            self.mount(now)
        elif raised:
            self.newer_generation(now)

    def newer_generation(self, now: int) -> None:
        """It is known on the connection that the partition lives on."""
        if self._standing.phase in _UNDER_WAY:
            self.mount(now)

    def link_lost(self, now: int) -> None:
        """The connection it lives on is gone; a successor may follow."""
        self._forget_mount()
        if self._standing.phase not in _UNPLACED:
            self._standing.enter(now, Phase.WAITING)

    def close(self, now: int) -> None:
        """Live on no connection any more."""
        self._forget_mount()
        self._appends.give_up(Reason.CLOSED)
        self._delivery.stop()
        self._standing.link = None
        self._standing.enter(now, Phase.CLOSED)

    def _forget_mount(self) -> None:
        self._appends.link_lost()
        self._window.link_lost()
        self._standing.session = None
        self.retry_at = None

    # ---- mounts ------------------------------------------------------------------------------

    def mount(self, now: int, *, onward: bool = False) -> None:
        """Mount, if that is possible; `onward`, towards the mark, whether or not the application has room again."""
        standing = self._standing
        link = standing.link
        if standing.phase in _UNPLACED or link is None or not link.ready:
            return
        standing.enter(now, Phase.MOUNTING)
        standing.session = session = standing.next_req_id()
        standing.progress_at = now
        self._window.remount(onward=onward)
        self._appends.remounted()
        self.retry_at = None
        link.send(MountRequest(session, self._delivery.cursor, link.net_seq))

    def lost_unnoticed(self, now: int) -> None:
        """Appends got lost without a word."""
        self.mount(now)

    def answered(self, now: int, response: MountResponse) -> bool:
        """The server has brought us up to its mark, or cannot; True if the partition is mounted now.

        Raises:
            ProtocolError: a state that does not exist; 0.13.2 drops the connection too.
        """
        standing = self._standing
        if response.req_id != standing.session or standing.phase is not Phase.MOUNTING:
            return False
        match response.partition_state:
            case PartitionState.READY:
                return self._on_ready(now)
            case PartitionState.NOT_READY:
                self._pause(now)
            case PartitionState.CLIENT_AHEAD:
                standing.enter(now, Phase.CLIENT_AHEAD)
                standing.report(
                    f"this client is at {self._delivery.cursor}, ahead of the log at {standing.server}; "
                    "is this the right cluster, or was the log restored?"
                )
                self._appends.give_up(Reason.CLIENT_AHEAD)
            case other:
                raise ProtocolError(f"unknown partition state {other}")
        return False

    def _on_ready(self, now: int) -> bool:
        if not self._window.mounted():
            self.mount(now, onward=True)
            return False
        self._standing.enter(now, Phase.MOUNTED)
        self._appends.mounted(now)
        self._window.ask()
        return True

    def before_start(self, now: int, req_id: ReqId, text: str) -> None:
        """The log does not go back to where we are: what lies between was given up by the storage nodes.

        Nobody can tell any more what became of the appends under way.
        """
        standing = self._standing
        if req_id == standing.session and standing.phase in _UNDER_WAY:
            standing.enter(now, Phase.BEFORE_START, text)
            standing.report(text)
            self._appends.give_up(Reason.BEFORE_START)
            if not self._delivery.active:
                standing.enter(now, Phase.TAIL)

    def not_allowed(self, now: int, req_id: ReqId) -> bool:
        """The role of this client does not include a request; False if that is not the mount."""
        if req_id != self._standing.session or self._standing.phase is not Phase.MOUNTING:
            return False
        self._pause(now)
        return True

    def due(self, now: int) -> None:
        """End a pause, if it is time."""
        if self.retry_at is not None and now >= self.retry_at:
            self.retry_at = None
            self.mount(now)

    def _pause(self, now: int) -> None:
        self._standing.enter(now, Phase.NOT_READY)
        self.retry_at = now + self._not_ready_ms
