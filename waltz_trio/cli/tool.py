"""What tools that look at a running cluster share: configuration, ZooKeeper, TLS, connections to every port."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from waltz_core.base.errors import WaltzError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.znodes import StoreParams
from waltz_trio.admin import AdminClient, open_admin
from waltz_trio.cli.options import Arguments, CommandError
from waltz_trio.cli.zookeeper import load_config, open_cluster
from waltz_trio.cluster_admin import read_store_params
from waltz_trio.config import Config, net_limits, tls_settings
from waltz_trio.net.tls import ClientTls
from waltz_trio.server_port import ServerPort, open_server_port
from waltz_trio.storage_port import StoragePort, open_storage_port
from waltz_trio.zk.client import ZnodeClient

ANSWER_MAX = 60.0  # seconds an administrative request may take


def tls_of(config: Config, prefix: str) -> ClientTls:
    """The TLS group of a configuration, with its warnings on standard error."""
    return ClientTls(tls_settings(config, prefix), lambda text: print(f"Warning: {text}", file=sys.stderr))


class Tool:
    """What every sub-command works with: the configuration, ZooKeeper, the cluster's key."""

    def __init__(self, config: Config, zk: ZnodeClient, paths: ClusterPaths, store: StoreParams) -> None:
        self.config = config
        self.zk = zk
        self.paths = paths
        self.store = store
        self.tls = tls_of(config, "ssl.")

    def tls_from(self, path: str | None) -> ClientTls:
        """The TLS group `server.ssl.` of another file; none verifies nothing, as the original."""
        return tls_of(Config({}) if path is None else Config.load(path), "server.ssl.")

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


Work = Callable[[Tool, Arguments], Awaitable[int]]


def in_session(work: Work, arguments: Arguments) -> int:
    """Run a sub-command with everything it needs; returns its exit status."""
    config = load_config(arguments)

    async def run() -> int:
        async with open_cluster(config) as (zk, paths):
            return await work(Tool(config, zk, paths, await read_store_params(zk, paths)), arguments)

    return trio.run(run)


@asynccontextmanager
async def explained(what: str) -> AsyncIterator[None]:
    """Put what was being done before the reason why it failed."""
    try:
        with trio.fail_after(ANSWER_MAX):
            yield
    except trio.TooSlowError:
        raise CommandError(f"{what}\nno answer within {ANSWER_MAX:.0f} s") from None
    except (WaltzError, OSError) as error:
        raise CommandError(f"{what}\n{error}") from error


def endpoint_of(text: str, problem: str) -> Endpoint:
    """An endpoint as an option gives it.

    Raises:
        CommandError: it is none; the text is `problem`.
    """
    if len(text.split(":")) != 2:
        raise CommandError(problem)
    return parse_endpoint(text)
