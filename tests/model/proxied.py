"""A run in which a proxy stands between some of the applications and the cluster, and dies now and then.

What every application is told is checked as in any run: a dense feed in the order of the log, outcomes that are the
truth, marks that are no older than the call. Applications of 0.13.2 find the proxy in its root in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Any

from tests.model.app import App, Habits
from tests.model.cluster import ROOT
from tests.model.run import SAFETY_MS, Run
from waltz_core.base.edge import Ended, Port, ZkCreate, ZkSet
from waltz_core.base.ids import Endpoint
from waltz_core.client.settings import ClientSettings
from waltz_core.operations.backup import ClusterBackup, cluster_znodes
from waltz_core.proxy.cache import CacheData, CacheDrop, CacheEffect, CacheFailed, CacheRead, CacheWrite
from waltz_core.proxy.node import FromUpstream, ProxyConfig, ProxyNode, ToUpstream
from waltz_core.proxy.state import ProxyState, block_behind, decode_proxy_state, encode_proxy_state
from waltz_core.server.config import ServerConfig
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.store_metadata import EMPTY_STORE
from waltz_core.zookeeper.znodes import (
    EMPTY_ASSIGNMENT,
    ClusterParams,
    StoreParams,
    decode_id_counter,
    encode_id_counter,
)
from waltz_testing.simulation.world import SimNode, World

OWN_ROOT = "/region"
ENDPOINT = Endpoint("proxy", 6000)
_ROT = 0.1  # share of reads of its disk that are not what was written
_FULL = 0.01  # share of writes that fail


class ProxiedApp(App):
    """An application that finds the proxy, in either way."""

    root = OWN_ROOT
    seed_server = ENDPOINT


class _Session:
    """The proxy's session with the ZooKeeper of the cluster: what comes is handed on, what is asked is sent."""

    def __init__(self, proxy: SimProxy) -> None:
        self._proxy = proxy
        self.requests: list[Any] = []

    def step(self, now: int, events: Sequence[Any], out: list[Any]) -> None:
        for event in events:
            if event is not None:
                self._proxy.node.post(FromUpstream(event))
        out += self.requests
        self.requests = []

    def deadline(self) -> int | None:
        return None


class SimProxy:
    """The process, and what it keeps in its root."""

    def __init__(self, world: World, partitions: int) -> None:
        self.world = world
        self.partitions = partitions
        self.node = SimNode(world, "proxy", self._machine)
        self.node.listening = {Port.CLIENT: ENDPOINT}
        self.node.plugins[ToUpstream] = self._to_upstream
        self.node.plugins |= dict.fromkeys((CacheWrite, CacheRead, CacheDrop), self._on_disk)
        self.rng = Random(f"{world.seed}/proxy/disk")
        self.files: dict[int, bytearray] = {}
        self.node.on_crash = lambda: self.session.crash()
        self.session = SimNode(world, "proxy-session", lambda: _Session(self))
        self._starts = 0

    def make_root(self) -> None:
        """As `waltz proxy run` does at its first start."""
        zookeeper, cluster, own = self.world.zookeeper, cluster_paths(ROOT), cluster_paths(OWN_ROOT)
        first, last = block_behind(decode_id_counter(zookeeper.read(cluster.client_ids) or b""))
        zookeeper.write([ZkSet(0, cluster.client_ids, encode_id_counter(last), -1)])
        state = ProxyState(first, 0, ((first, last),), "simulated", self.partitions, 0)
        params = ClusterParams("simulated", self.partitions)
        store = StoreParams(bytes(16), self.partitions)
        backup = ClusterBackup(params, store, EMPTY_STORE, EMPTY_ASSIGNMENT, (), first, 0)
        znodes = cluster_znodes(backup, own)
        zookeeper.write([ZkCreate(0, znode.path, znode.data) for znode in znodes])
        zookeeper.write([ZkCreate(0, f"{OWN_ROOT}/proxy", encode_proxy_state(state))])

    def start(self) -> None:
        """Start it, if it is down."""
        if not self.node.alive:
            self.session.start()
            self.node.start()

    def _machine(self) -> ProxyNode:
        self._starts += 1
        zookeeper, path = self.world.zookeeper, f"{OWN_ROOT}/proxy"
        state = decode_proxy_state(zookeeper.read(path) or b"").started()
        zookeeper.write([ZkSet(0, path, encode_proxy_state(state), -1)])
        given = decode_id_counter(zookeeper.read(cluster_paths(OWN_ROOT).client_ids) or b"")
        config = ProxyConfig(
            ServerConfig(OWN_ROOT, ENDPOINT, data_cache_bytes=20_000), ROOT, "", ClientSettings(), 50_000
        )
        self.files.clear()
        return ProxyNode(config, state, given, Random(f"{self.world.seed}/proxy/{self._starts}"))

    def _to_upstream(self, effect: ToUpstream) -> None:
        if self.session.alive:
            self.session.machine.requests.append(effect.request)
            self.session.post(None)

    def _on_disk(self, effect: CacheEffect) -> None:
        if isinstance(effect, CacheRead):
            place = effect.place
            data = bytearray(self.files.get(place.file, b"")[place.offset : place.offset + place.size])
            if data and self.rng.random() < _ROT:
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            answer = CacheData(effect.partition_id, effect.token, bytes(data) or None)
            self.node.post_later(self.rng.randrange(20), answer)
        elif isinstance(effect, CacheDrop):
            self.files.pop(effect.file, None)
        elif self.rng.random() < _FULL:
            self.node.post(CacheFailed("no space left"))
        else:
            self.files.setdefault(effect.file, bytearray()).extend(effect.data)

    @property
    def ended(self) -> Ended | None:
        """Why it could not go on."""
        return self.node.ended


class ProxyRun(Run):
    """Every second application goes through the proxy."""

    def __init__(self, seed: int, without: Collection[str] = (), **options: Any) -> None:
        super().__init__(seed, without, **options)
        self.proxy = SimProxy(self.world, self.plan.partitions)
        self.rng = Random(f"{seed}/proxy/faults")
        self.crashes = 0

    def _server_options(self, planned: dict[str, Any]) -> dict[str, Any]:
        options = {name: value for name, value in super()._server_options(planned).items() if name != "versions"}
        return {**options, "proxies_trusted": True}

    def _app(self, number: int, habits: Habits) -> App:
        kind = App if number % 2 else ProxiedApp
        return kind(self.observer, number, habits, dict(self.limits.client))

    def _create(self) -> None:
        self.cluster.start(self.plan.replicas, self.plan.spares)
        self.proxy.make_root()
        self.proxy.start()
        for at in range(self.rng.randrange(4)):
            moment = self.world.now + 500 + self.rng.randrange(SAFETY_MS - 3_000)
            self.world.at(moment + at, self._crash)

    def _crash(self) -> None:
        if self.proxy.node.alive:
            self.crashes += 1
            self.proxy.node.crash(self.rng.random() < 0.3)
            self.world.after(self.rng.randrange(1_000), self.proxy.start)

    def unsettled(self) -> str:
        """Its end is no part of any run."""
        assert self.proxy.ended is None, self.proxy.ended
        return super().unsettled()
