"""The console on a server's own HTTP port: it looks at the cluster with the server's configuration and certificate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from waltz_core.access.roles import Roles
from waltz_core.access.web import Door
from waltz_core.base.edge import Level
from waltz_core.base.errors import ConfigError
from waltz_core.operations.page import Console
from waltz_core.zookeeper.paths import cluster_paths
from waltz_trio.base.log import surprises
from waltz_trio.config.config import Config, net_limits, tls_settings
from waltz_trio.config.roles import certificates_asked
from waltz_trio.console.pages import Pages
from waltz_trio.console.watch import LOOK, Watch
from waltz_trio.net.tls import ClientTls
from waltz_trio.ports.tool import Tool
from waltz_trio.zk.admin import read_store_params
from waltz_trio.zk.client import open_znode_client
from waltz_trio.zk.embedded import EmbeddedZnodes
from waltz_trio.zk.security import zookeeper_security

KEY = "server.console"
PORT_KEY = "server.console.port"
_TLS = "server.ssl."


def door_of(config: Config) -> Door:
    """Who is let in.

    Raises:
        ConfigError: certificates are wanted, and nothing says which, or where.
    """
    door = Door(config.text(KEY))
    if door is Door.CERTIFICATE:
        if config.number_or_none(PORT_KEY) is None:
            raise ConfigError(f"{KEY} is certificate, but {PORT_KEY} is not set: the pages need a port that speaks TLS")
        if not certificates_asked(tls_settings(config, _TLS)):
            raise ConfigError(f"{KEY} is certificate, but peers are not asked for certificates: set {_TLS}ca")
    return door


def server_console(
    config: Config,
    znodes: EmbeddedZnodes | None,
    roles: Callable[[], Roles],
    journal: Path | None,
    report: Callable[[Level, str], None],
) -> tuple[Watch, Pages]:
    """What looks, and what answers."""
    root = config.text("cluster.root").rstrip("/")

    @asynccontextmanager
    async def open_tool() -> AsyncIterator[Tool]:
        where = znodes or config.text("zookeeper.connectString")
        async with open_znode_client(where, security=zookeeper_security(config)) as zk:
            paths, tls = cluster_paths(root), ClientTls(tls_settings(config, _TLS))
            gateways = tuple(map(str, config.items("tools.gateways")))
            yield Tool(zk, paths, await read_store_params(zk, paths), tls, net_limits(config), gateways)

    watch = Watch(open_tool, Console(root), surprises(report, LOOK))
    asked = certificates_asked(tls_settings(config, _TLS))
    return watch, Pages(watch, door_of(config), roles=roles, certificates_asked=asked, journal=journal)
