"""What tools that look at a running cluster share: configuration, ZooKeeper, TLS, connections to every port."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from waltz_core.base.errors import ConfigError, WaltzError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_trio.cli.help import UsageError
from waltz_trio.cli.options import Arguments, CommandError
from waltz_trio.cli.zookeeper import cluster_session, load_config
from waltz_trio.config.config import Config, net_limits, tls_settings
from waltz_trio.net.tls import ClientTls
from waltz_trio.ports.admin import AdminClient, PortError
from waltz_trio.ports.tool import Tool
from waltz_trio.zk.admin import read_cluster, read_store_params
from waltz_trio.zk.client import ZnodeClient
from waltz_trio.zk.proxy_root import proxy_of

ANSWER_MAX = 60.0  # seconds an administrative request may take


Work = Callable[[Tool, Arguments], Awaitable[int]]


def tls_of(config: Config, prefix: str) -> ClientTls:
    """The TLS group of a configuration, with its warnings on standard error."""
    return ClientTls(tls_settings(config, prefix), lambda text: print(f"Warning: {text}", file=sys.stderr))


async def tool_of(config: Config, zk: ZnodeClient, paths: ClusterPaths, tls: ClientTls | None = None) -> Tool:
    """What works on the cluster of a tools configuration, over `tls` or that of its group `ssl.`."""
    store = await read_store_params(zk, paths)
    gateways = tuple(map(str, config.items("tools.gateways")))
    return Tool(zk, paths, store, tls or tls_of(config, "ssl."), net_limits(config), gateways)


def in_session(work: Work, arguments: Arguments) -> int:
    """Run a sub-command with everything it needs; returns its exit status."""
    config = load_config(arguments)

    async def run() -> int:
        async with cluster_session(config) as (zk, paths):
            return await work(await tool_of(config, zk, paths), arguments)

    return trio.run(run)


@asynccontextmanager
async def explained(what: str, seconds: float = ANSWER_MAX, late: str = "") -> AsyncIterator[None]:
    """Put what was being done before the reason why it failed; that it took more than so many seconds is one.

    Args:
        late: what to do then, or what goes on.
    """
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError:
        raise CommandError(f"{what}\nno answer within {seconds:.0f} s{late and f'. {late}'}") from None
    except UsageError:  # what was wrong is the call, and its status says so
        raise
    except (WaltzError, OSError) as error:
        raise CommandError(f"{what}\n{error}") from error


async def no_storage_node(tool: Tool) -> CommandError:
    """The failure of a command on all storage nodes where ZooKeeper has none: it has looked at nothing."""
    if await proxy_of(tool.zk, tool.paths) is not None:
        text = "give the configuration of its cluster: a proxy has no storage nodes of its own"
        return CommandError(f"{tool.paths.root} is the root of a proxy: {text}")
    return CommandError(
        f"expected storage nodes below {tool.paths.store} in ZooKeeper, found none: check cluster.root, or add one "
        "with waltz zookeeper add-storage-node or waltz storage add-node"
    )


@asynccontextmanager
async def named_admin(tool: Tool, endpoint: Endpoint, tls: ClientTls | None = None) -> AsyncIterator[AdminClient]:
    """A connection to the admin port that an operator has named.

    Raises:
        PortError: it cannot be reached; says so where it is the other port of a node that ZooKeeper knows.
        RefusedError: the node belongs to another cluster.
    """
    try:
        async with tool.admin(endpoint, tls) as client:
            yield client
    except PortError as error:
        admin_ports: dict[str, int] = {}
        with contextlib.suppress(WaltzError):  # the error that is there is the one to tell
            admin_ports = dict((await read_cluster(tool.zk, tool.paths)).maps.connections.connections)
        right = admin_ports.get(str(endpoint))
        if right is None:
            raise
        port = f"{endpoint.port} is the port of this node for servers, its admin port is {right}"
        raise CommandError(f"{error}: {port}: write {endpoint.host}:{right}") from error


def endpoint_of(text: str, problem: str) -> Endpoint:
    """An endpoint as an option gives it.

    Raises:
        UsageError: it is malformed; the text is `problem`.
    """
    if len(text.split(":")) != 2:
        raise UsageError(problem)
    try:
        return parse_endpoint(text)
    except ConfigError as error:
        raise UsageError(f"{problem}: {error}") from None
