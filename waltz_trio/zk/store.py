"""A session with ZooKeeper, or with a store of znodes inside this process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waltz_core.base.errors import ConfigError
from waltz_trio.base.znodes import Deliver, ZnodeStore
from waltz_trio.zk.bridge import open_zookeeper
from waltz_trio.zk.embedded import EmbeddedZnodes
from waltz_trio.zk.security import NO_ZK_SECURITY, ZkSecurity

_HOSTS = re.compile(r"\s*([\w.-]+|\[[0-9A-Fa-f:.%]+\])(:\d{1,5})?\s*")


def check_hosts(hosts: str) -> None:
    """See that a connect string is one.

    Raises:
        ConfigError: it is quoted, a list of another form, or the address of something else.
    """
    if not all(map(_HOSTS.fullmatch, hosts.partition("/")[0].split(","))):
        raise ConfigError(
            f"zookeeper.connectString: expected host:port,host:port or host:port/chroot, as it is and without "
            f"brackets, found {hosts!r}"
        )


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

    Raises:
        ConfigError: `where` cannot be read.
    """
    if isinstance(where, EmbeddedZnodes):
        with where.session(deliver, session_timeout_ms=session_timeout_ms) as session:
            yield session
    else:
        check_hosts(where)
        async with open_zookeeper(where, deliver, session_timeout_ms=session_timeout_ms, security=security) as bridge:
            yield bridge
