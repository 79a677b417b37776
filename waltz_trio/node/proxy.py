"""The proxy process: the port for clients, the machine, two sessions with ZooKeeper, HTTP, metrics."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import chain, repeat
from socket import socket
from typing import Any

import attrs
import trio

from waltz_core.base.edge import Level, Port, ZkEvent
from waltz_core.base.errors import ClusterError, ConfigError, ProtocolError
from waltz_core.base.ids import Endpoint
from waltz_core.client.settings import ClientSettings
from waltz_core.proxy.cache import CacheDrop, CacheRead, CacheWrite
from waltz_core.proxy.node import BlocksTaken, FromUpstream, IdsRead, ProxyConfig, ProxyNode, ToUpstream
from waltz_core.proxy.snapshot import ProxySnapshot
from waltz_core.proxy.state import ProxyState
from waltz_core.zookeeper.paths import ClusterPaths, cluster_paths
from waltz_trio.base.pump import now_ms
from waltz_trio.base.znodes import ZnodeStore
from waltz_trio.config.config import Config
from waltz_trio.net.driver import NodeDriver
from waltz_trio.net.listener import bind, canonical_host
from waltz_trio.net.tls import ClientTls, ServerTls
from waltz_trio.node.process import Kind, NodeProcess
from waltz_trio.node.proxy_cache import CacheEvent, ProxyCache
from waltz_trio.node.server_settings import ProxySettings, proxy_settings
from waltz_trio.node.settings import NodeSettings
from waltz_trio.zk.client import UnavailableError, ZnodeClient, open_znode_client
from waltz_trio.zk.embedded import EmbeddedSession, EmbeddedZnodes
from waltz_trio.zk.proxy_root import check_upstream, ids_given, keep_ids, make_root, read_state, start_in_root
from waltz_trio.zk.store import open_znode_store

GROUP = "waltz-proxy"
_IDS_EVERY = 30.0  # seconds between looks at how many client ids are left
_IDS_FIRST = (0.5, 0.5)  # before the first two: with the second one it is known who is new (`Fresh`)


class ProxyProcess(NodeProcess):
    """One proxy: a server to its clients, a client to the cluster."""

    KIND = Kind("server.", GROUP)

    def __init__(self, config: Config, znodes: EmbeddedZnodes | None = None, *, name: str = "proxy") -> None:
        """As of every process; a store inside this process holds the proxy's root and the cluster's."""
        super().__init__(config, znodes, name=name)
        self.endpoint: Endpoint | None = None  # as registered, once bound
        self._settings: ProxySettings | None = None
        self._socket: socket | None = None  # bound, and not served yet
        self._own: ZnodeStore | None = None
        self._upstream: ZnodeStore | None = None
        self._machine: ProxyNode | None = None
        self._state: ProxyState | None = None
        self._cache: ProxyCache | None = None
        self._seen: ProxySnapshot | None = None

    def snapshot(self) -> ProxySnapshot | None:
        """The machine's state; None before it runs."""
        return None if self._machine is None else self._machine.snapshot(now_ms())

    # ---- start -----------------------------------------------------------------------------------

    def _parse(self, local: str) -> NodeSettings:
        self._settings = proxy_settings(self.config, self._warn, local)
        return self._settings.server.node

    @property
    def _parsed(self) -> ProxySettings:
        assert self._settings is not None
        return self._settings

    def _client_tls(self, node: NodeSettings) -> ClientTls:
        return ClientTls(self._parsed.upstream_tls, self._warn)

    def _cluster(self) -> EmbeddedZnodes | str:
        """The ZooKeeper of the cluster upstream."""
        return self._znodes or self._parsed.upstream

    def _znode_client(self, where: EmbeddedZnodes | str) -> AbstractAsyncContextManager[ZnodeClient]:
        node = self._parsed.server.node
        return open_znode_client(where, session_timeout_ms=node.session_timeout_ms, security=node.security)

    async def _make_machine(self) -> ProxyNode:
        settings = self._parsed
        self._socket = bind(settings.server.node.host, settings.server.port, "server.port")
        port = self._socket.getsockname()[1]
        self.endpoint = settings.server.advertised or Endpoint(await canonical_host(), port)
        try:
            self._state = await self._start_in_root(settings)
        except (ClusterError, ProtocolError) as error:
            raise ConfigError(f"the proxy cannot start in its root {settings.server.node.root}: {error}") from error
        client = ClientSettings(frame_size_max=settings.server.machine.storage_frame_size_max)
        server = attrs.evolve(settings.server.machine, endpoint=self.endpoint)
        if settings.cache_directory is not None:
            self._cache = ProxyCache(settings.cache_directory, self._on_cache_events)
        size = 0 if self._cache is None else settings.cache_size
        config = ProxyConfig(server, settings.upstream_root, settings.upstream, client, size)
        self._machine = ProxyNode(config, self._state, random.Random())
        return self._machine

    async def _start_in_root(self, settings: ProxySettings) -> ProxyState:
        """Make the root at the first start, and check that it is for this cluster where that answers."""
        paths, cluster = cluster_paths(settings.server.node.root), cluster_paths(settings.upstream_root)
        async with self._znode_client(self._zookeeper()) as own:
            known = await read_state(own, paths)
            try:
                async with self._znode_client(self._cluster()) as upstream:
                    if known is None:
                        await make_root(own, paths, upstream, cluster)
                    else:
                        await check_upstream(upstream, cluster, known[0])
            except UnavailableError as error:
                if known is None:
                    raise
                self.report(Level.WARNING, f"upstream: {error}; what is here is served meanwhile")
            return await start_in_root(own, paths)

    def _plugins(self) -> Mapping[type, Callable[[Any], None]]:
        plugins: dict[type, Callable[[Any], None]] = {ToUpstream: self._on_to_upstream}
        if self._cache is not None:
            plugins |= dict.fromkeys((CacheWrite, CacheRead, CacheDrop), self._cache.perform)
        return plugins

    def _on_to_upstream(self, effect: ToUpstream) -> None:
        assert self._upstream is not None
        self._upstream.submit([effect.request])

    def _background(self) -> Iterable[Callable[[], Awaitable[object]]]:
        return (self._keep_ids,) if self._cache is None else (self._keep_ids, self._cache.run)

    @asynccontextmanager
    async def _serving(self, driver: NodeDriver, tls: ServerTls, nursery: trio.Nursery) -> AsyncIterator[None]:
        node = self._parsed.server.node
        assert self._socket is not None
        sock, self._socket = self._socket, None
        driver.serve(Port.CLIENT, sock, tls)
        where = f"{node.host}:{sock.getsockname()[1]}"
        self.report(Level.INFO, f"serving clients on {where} as {self.endpoint}, for {self._parsed.upstream_root}")
        self._start_http(nursery, node)
        async with (
            open_znode_store(
                self._zookeeper(), driver.post_all, session_timeout_ms=node.session_timeout_ms, security=node.security
            ) as own,
            open_znode_store(
                self._cluster(),
                self._on_upstream_events,
                session_timeout_ms=node.session_timeout_ms,
                security=node.security,
            ) as upstream,
        ):
            driver.znodes = self._own = own
            self._upstream = upstream
            yield

    def _on_cache_events(self, events: Sequence[CacheEvent]) -> None:
        assert self._driver is not None
        self._driver.post_all(events)

    def _on_upstream_events(self, events: Sequence[ZkEvent]) -> None:
        assert self._driver is not None
        self._driver.post_all([FromUpstream(event) for event in events])

    async def _keep_ids(self) -> None:
        """See that clients find ids, and that this is the only process in its root."""
        settings = self._parsed
        paths, cluster = cluster_paths(settings.server.node.root), cluster_paths(settings.upstream_root)
        for pause in chain(_IDS_FIRST, repeat(_IDS_EVERY)):
            await trio.sleep(pause)
            assert self._state is not None
            try:
                state = await self._look_at_ids(paths, cluster, self._state)
            except ClusterError as error:
                self.report(Level.DEBUG, f"client ids: {error}; looked at again in {_IDS_EVERY:.0f} s at the latest")
                continue
            if state is None:
                self._end(f"another proxy was started in {paths.root}, or that was deleted or set back: one at a time")
                return
            if state.blocks != self._state.blocks:
                assert self._driver is not None
                self._driver.post(BlocksTaken(state.blocks))
            self._state = state

    async def _look_at_ids(self, paths: ClusterPaths, cluster: ClusterPaths, state: ProxyState) -> ProxyState | None:
        """The state behind it; None if the root is not that of this process any more.

        Upstream is opened last, and only for another block: it may be out of reach, and just then it counts who is new.
        """
        async with self._znode_client(self._zookeeper()) as own:
            assert self._driver is not None
            self._driver.post(IdsRead(await ids_given(own, paths)))
            return await keep_ids(own, paths, lambda: self._znode_client(self._cluster()), cluster, state)

    def _instance(self) -> str:
        return str(self.endpoint)

    def _abandon(self) -> None:
        for session in (self._own, self._upstream):
            if isinstance(session, EmbeddedSession):
                session.abandon()

    async def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._cache is not None and (stay := self._cache.close()):
            text = f"files of {self._parsed.cache_directory} cannot be deleted: {stay}; delete them by hand"
            self.report(Level.WARNING, text)

    # ---- health and metrics ----------------------------------------------------------------------

    def health(self) -> tuple[bool, dict[str, object]]:
        """Healthy while every partition has its upstream connection; with how old what is served is."""
        snapshot = self.snapshot()
        partitions = snapshot.partitions if snapshot is not None else ()
        healthy = bool(partitions) and not any(partition.trouble for partition in partitions)
        state = {
            "healthy": healthy,
            "partitions": {str(p.partition_id): not p.trouble for p in partitions},
            "reasons": {str(p.partition_id): p.trouble for p in partitions if p.trouble},
            "ageMs": {str(p.partition_id): p.age_ms for p in partitions},
            "highWaterMarks": {str(p.partition_id): p.high_water_mark for p in partitions},
        }
        return healthy, {"proxy-health-check": state}

    def _register(self) -> None:
        def gauge(name: str, read: Callable[[ProxySnapshot], object], label: str = "") -> None:
            def value() -> object:
                return None if self._seen is None else read(self._seen)

            self.registry.gauge(f"{GROUP}.{name}", value, label=label)

        gauge("connections", lambda seen: seen.connections)
        gauge("upstream-connections", lambda seen: seen.upstream_connections)
        gauge("transactions-fetched", lambda seen: seen.fetched)
        gauge("cache-bytes", lambda seen: seen.cache_bytes)
        gauge("healthy", lambda seen: {str(p.partition_id): int(not p.trouble) for p in seen.partitions}, "partition")
        gauge("age-ms", lambda seen: {str(p.partition_id): p.age_ms for p in seen.partitions}, "partition")
        gauge("high-water-mark", _marks, "partition")
        gauge("append-queue-size", lambda seen: {str(p.partition_id): p.queued for p in seen.partitions}, "partition")
        gauge("real-time-feeds", lambda seen: sum(p.live_feeds for p in seen.partitions))
        gauge("catchup-feeds", lambda seen: sum(p.lagging_feeds for p in seen.partitions))
        self.registry.on_read(self._look)

    def _look(self) -> None:
        self._seen = self.snapshot()


def _marks(snapshot: ProxySnapshot) -> dict[str, int | None]:
    return {str(partition.partition_id): partition.high_water_mark for partition in snapshot.partitions}
