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

# The port may be left out, with or without its colon: 2181 is meant.
_HOST = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.%]+\])(:\d{0,5})?")


def connect_string(text: str) -> str:
    """A connect string without what ZooKeeper's own client passes over: blanks around hosts, and empty entries.

    Java: ConnectStringParser splits at commas, trims, and drops what is empty then; kazoo refuses both.

    Raises:
        ConfigError: it is quoted, a list of another form, the address of something else, or names no host.
    """
    listed, slash, chroot = text.partition("/")
    hosts = [host for entry in listed.split(",") if (host := entry.strip())]
    if not hosts or not all(map(_HOST.fullmatch, hosts)) or chroot.startswith("/"):
        raise ConfigError(
            f"zookeeper.connectString: expected host:port,host:port or host:port/chroot, as it is and without "
            f"brackets, found {text!r}"
        )
    return ",".join(hosts) + slash + chroot


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
        hosts = connect_string(where)
        async with open_zookeeper(hosts, deliver, session_timeout_ms=session_timeout_ms, security=security) as bridge:
            yield bridge
