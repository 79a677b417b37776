"""What looks at a running cluster needs: ZooKeeper, the cluster's key, TLS, connections to every port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from waltz_core.base.ids import Endpoint
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.znodes import StoreParams
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.tls import ClientTls
from waltz_trio.ports.admin import AdminClient, open_admin
from waltz_trio.ports.server import ServerPort, open_server_port
from waltz_trio.ports.storage import StoragePort, open_storage_port
from waltz_trio.zk.client import ZnodeClient


class Tool:
    """What every sub-command works with.

    Attributes:
        tls: shown to the cluster's nodes.
        gateways: addresses of the gateways whose health is part of a view of the cluster.
    """

    def __init__(
        self,
        zk: ZnodeClient,
        paths: ClusterPaths,
        store: StoreParams,
        tls: ClientTls,
        limits: NetLimits,
        gateways: Sequence[str] = (),
    ) -> None:
        self.zk = zk
        self.paths = paths
        self.store = store
        self.tls = tls
        self.limits = limits
        self.gateways = tuple(gateways)

    @asynccontextmanager
    async def admin(self, endpoint: Endpoint, tls: ClientTls | None = None) -> AsyncIterator[AdminClient]:
        """A connection to an admin port."""
        async with open_admin(
            endpoint,
            tls or self.tls,
            key=self.store.key,
            num_partitions=self.store.num_partitions,
            limits=self.limits,
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
            limits=self.limits,
        ) as port:
            yield port

    @asynccontextmanager
    async def server(self, endpoint: Endpoint) -> AsyncIterator[ServerPort]:
        """A connection to a server."""
        async with open_server_port(endpoint, self.tls, self.limits) as port:
            yield port
