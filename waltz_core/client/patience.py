"""How long a server is believed that owes a partition something and is silent.

After `suspect_ms` others are asked who serves the partition: the server may be cut off, and replaced. After
`silence_ms` something must be wrong with it, or with its idea of us. A server that sent nothing at all for so long is
given up, connection and all; one that lives, and only owes us an answer, is mounted again: if it does not know our
mount, it says so then.
"""

from __future__ import annotations

from waltz_core.client.appends import Appends
from waltz_core.client.calls import Phase
from waltz_core.client.context import ClientContext
from waltz_core.client.standing import Standing

_TROUBLED = (Phase.WAITING, Phase.NOT_READY)


class Patience:
    """With the server of one partition."""

    __slots__ = ("_appends", "_settings", "_standing")

    def __init__(self, context: ClientContext, standing: Standing, appends: Appends) -> None:
        self._settings = context.settings
        self._standing = standing
        self._appends = appends

    def hurry_at(self) -> int | None:
        """When to ask others who serves what: at once, while no server takes the partition."""
        return 0 if self._standing.phase in _TROUBLED else self._suspect_at()

    def ends_at(self) -> int | None:
        """When an answer is so late that something must be wrong."""
        phase = self._standing.phase
        if phase is Phase.MOUNTING:
            return self._standing.progress_at + self._settings.silence_ms
        since = self._appends.unanswered_since() if phase is Phase.MOUNTED else None
        return None if since is None else since + self._settings.silence_ms

    def ended(self, now: int) -> bool:
        """An answer is that late."""
        at = self.ends_at()
        return at is not None and now >= at

    def is_silent(self, now: int) -> bool:
        """The server has sent nothing at all for that long."""
        link = self._standing.link
        assert link is not None
        return now - link.last_read >= self._settings.silence_ms

    def _suspect_at(self) -> int | None:
        """When a server that owes an answer has been silent for so long that another may serve this partition."""
        standing = self._standing
        if standing.link is None:
            return None
        owed_since = standing.progress_at if standing.phase is Phase.MOUNTING else None
        if standing.phase is Phase.MOUNTED and (oldest := self._appends.monitor.oldest()) is not None:
            owed_since = oldest[3]
        return None if owed_since is None else max(owed_since, standing.link.last_read) + self._settings.suspect_ms
