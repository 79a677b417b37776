"""What this process sees of ZooKeeper: requests in, events out, whichever store stands behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from waltz_core.base.edge import ZkEvent, ZkRequest
from waltz_trio.zk.bridge import open_zookeeper
from waltz_trio.zk.embedded import EmbeddedZnodes
from waltz_trio.zk.security import NO_ZK_SECURITY, ZkSecurity

Deliver = Callable[[Sequence[ZkEvent]], None]
"""Called in the Trio thread, never from within `submit`; must neither await nor raise."""


class ZnodeStore(Protocol):
    """One session. The first event is ZkStateChanged(CONNECTED), as soon as the session is usable."""

    def submit(self, requests: Iterable[ZkRequest]) -> None:
        """Take requests, in order; each is answered by exactly one ZkDone or ZkFailed with its ticket."""


@asynccontextmanager
async def open_znode_store(
    where: str | EmbeddedZnodes,
    deliver: Deliver,
    *,
    session_timeout_ms: int = 30_000,
    security: ZkSecurity = NO_ZK_SECURITY,
) -> AsyncIterator[ZnodeStore]:
    """A session with a real ZooKeeper (`host:port,…/chroot`) or with a store inside this process.

    Returns at once, connected or not. Leaving ends the session, and with it our ephemeral nodes.
    """
    if isinstance(where, EmbeddedZnodes):
        with where.session(deliver, session_timeout_ms=session_timeout_ms) as session:
            yield session
    else:
        async with open_zookeeper(where, deliver, session_timeout_ms=session_timeout_ms, security=security) as bridge:
            yield bridge
