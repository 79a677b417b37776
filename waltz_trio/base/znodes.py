"""What a process sees of ZooKeeper: requests in, events out, whichever store stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from waltz_core.base.edge import ZkEvent, ZkRequest

Deliver = Callable[[Sequence[ZkEvent]], None]
"""Called in the Trio thread, never from within `submit`; must neither await nor raise."""


class ZnodeStore(Protocol):
    """One session. The first event is ZkStateChanged(CONNECTED), as soon as the session is usable."""

    def submit(self, requests: Iterable[ZkRequest]) -> None:
        """Take requests, in order; each is answered by exactly one ZkDone or ZkFailed with its ticket."""
