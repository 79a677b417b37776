"""What looks at a running cluster needs: configuration, ZooKeeper, TLS, connections to every port."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waltz_core.base.ids import Endpoint
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.znodes import StoreParams
from waltz_trio.config.config import Config, net_limits, tls_settings
from waltz_trio.net.tls import ClientTls
from waltz_trio.ports.admin import AdminClient, open_admin
from waltz_trio.ports.server import ServerPort, open_server_port
from waltz_trio.ports.storage import StoragePort, open_storage_port
from waltz_trio.zk.client import ZnodeClient


def tls_of(config: Config, prefix: str) -> ClientTls:
    """The TLS group of a configuration, with its warnings on standard error."""
    return ClientTls(tls_settings(config, prefix), lambda text: print(f"Warning: {text}", file=sys.stderr))


class Tool:
    """What every sub-command works with: the configuration, ZooKeeper, the cluster's key."""

    def __init__(
        self,
        config: Config,
        zk: ZnodeClient,
        paths: ClusterPaths,
        store: StoreParams,
        prefix: str = "ssl.",
        tls: ClientTls | None = None,
    ) -> None:
        """Take these; `prefix` is of the TLS group of the configuration that is shown to the cluster's nodes."""
        self.config = config
        self.prefix = prefix
        self.zk = zk
        self.paths = paths
        self.store = store
        self.tls = tls or tls_of(config, prefix)

    def tls_from(self, path: str | None) -> ClientTls:
        """The TLS group `server.ssl.` of another file; without one that of all other commands."""
        return self.tls if path is None else tls_of(Config.load(path), "server.ssl.")

    @asynccontextmanager
    async def admin(self, endpoint: Endpoint, tls: ClientTls | None = None) -> AsyncIterator[AdminClient]:
        """A connection to an admin port."""
        async with open_admin(
            endpoint,
            tls or self.tls,
            key=self.store.key,
            num_partitions=self.store.num_partitions,
            limits=net_limits(self.config),
        ) as client:
            yield client

    @asynccontextmanager
    async def data(
        self, endpoint: Endpoint, tls: ClientTls | None = None, *, offline: bool = False
    ) -> AsyncIterator[StoragePort]:
        """A connection to a data port."""
        async with open_storage_port(
            endpoint,
            tls or self.tls,
            key=self.store.key,
            num_partitions=self.store.num_partitions,
            offline=offline,
            limits=net_limits(self.config),
        ) as port:
            yield port

    @asynccontextmanager
    async def server(self, endpoint: Endpoint) -> AsyncIterator[ServerPort]:
        """A connection to a server."""
        async with open_server_port(endpoint, self.tls, net_limits(self.config)) as port:
            yield port
