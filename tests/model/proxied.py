"""A proxy that stands between some of the applications and the cluster, in a share of the runs, and dies now and then.

In some of them another one is started in its root, whoever did that: then the one before ends, until it is started
again and ends the other. And in some a proxy stands behind it, through which the first application goes.

It comes from a stream of its own, so that other seeds mean what they meant. What every application is told is checked
as in any run: a dense feed in the order of the log, outcomes that are the truth, marks that are no older than the call.
Applications of 0.13.2 find the proxy in its root in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from tests.model.app import App
from tests.model.cluster import ROOT
from tests.model.durable import split
from tests.model.marks import PROXY
from waltz_core.base.edge import Ended, Port, ZkCreate, ZkSet
from waltz_core.base.ids import Endpoint, ReqId, req_client
from waltz_core.client.settings import ClientSettings
from waltz_core.operations.backup import ClusterBackup, cluster_znodes
from waltz_core.proxy.cache import CacheData, CacheDrop, CacheEffect, CacheFailed, CacheRead, CacheWrite, CacheWritten
from waltz_core.proxy.node import FromUpstream, IdsRead, ProxyConfig, ProxyNode, ToUpstream
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

if TYPE_CHECKING:
    from tests.model.run import Run

SHARE = 0.15  # of the seeds
_STREAM = "proxied 29"
OWN_ROOT = "/region"
ENDPOINT = Endpoint("proxy", 6000)
_OTHER = Endpoint("other-proxy", 6000)
_SECOND = 0.3  # share of the runs with a proxy in which a second one is started
_FAR_ROOT = "/town"
_FAR = Endpoint("far-proxy", 6000)
_BEHIND = 0.3  # share of them in which a proxy stands behind it
_DISPLACED = "another proxy was started in"
_IDS_EVERY_MS = 200
_ROT = 0.1  # share of reads of its disk that are not what was written
_FULL = 0.001  # share of writes that fail
_HANGING = 0.01  # share of answers behind which the disk gives no more


class ProxiedApp(App):
    """An application that finds the proxy, in either way."""

    root = OWN_ROOT
    seed_server = ENDPOINT


class FarApp(App):
    """An application that finds the proxy behind that."""

    root = _FAR_ROOT
    seed_server = _FAR


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

    def __init__(
        self,
        world: World,
        partitions: int,
        *,
        name: str = PROXY,
        endpoint: Endpoint = ENDPOINT,
        root: str = OWN_ROOT,
        upstream: str = ROOT,
    ) -> None:
        self.world = world
        self.partitions = partitions
        self.endpoint = endpoint
        self.root = root
        self.upstream = upstream
        self.node = SimNode(world, name, self._machine)
        self.node.listening = {Port.CLIENT: endpoint}
        self.node.plugins[ToUpstream] = self._to_upstream
        self.node.plugins[Ended] = self._on_ended
        self.node.plugins |= dict.fromkeys((CacheWrite, CacheRead, CacheDrop), self._on_disk)
        self.rng = Random(f"{world.seed}/{name}/disk")
        self.files: dict[int, bytearray] = {}
        self.reached: dict[str, None] = {}  # coverage marks that only the disk knows of
        self.session = SimNode(world, f"{name}-session", lambda: _Session(self))
        self.node.on_crash = self.session.crash
        self._starts = 0
        self._memory = self.rng.choice((500, 5_000, 32 << 20))  # bytes, of payloads
        self._disk = self.rng.choice((0, 20_000, 1 << 20))
        self._disk_free = 0  # when it has done all that it was asked to
        self._hangs = False

    def make_root(self) -> None:
        """As `waltz proxy run` does at its first start."""
        zookeeper, cluster, own = self.world.zookeeper, cluster_paths(self.upstream), cluster_paths(self.root)
        there = zookeeper.read(f"{self.upstream}/proxy")
        proxy = None if there is None else decode_proxy_state(there)
        first, last = block_behind(decode_id_counter(zookeeper.read(cluster.client_ids) or b""), proxy)
        zookeeper.write([ZkSet(0, cluster.client_ids, encode_id_counter(last), -1)])
        state = ProxyState(first, 0, ((first, last),), "simulated", self.partitions, 0)
        params = ClusterParams("simulated", self.partitions)
        store = StoreParams(bytes(16), self.partitions)
        backup = ClusterBackup(params, store, EMPTY_STORE, EMPTY_ASSIGNMENT, (), first, 0)
        znodes = cluster_znodes(backup, own)
        zookeeper.write([ZkCreate(0, znode.path, znode.data) for znode in znodes])
        zookeeper.write([ZkCreate(0, f"{self.root}/proxy", encode_proxy_state(state))])

    def start(self) -> None:
        """Start it, if it is down."""
        if not self.node.alive:
            self.session.start()
            self.node.start()
            self._read_ids(self.node.epoch)

    def _read_ids(self, life: int) -> None:
        """As the process does now and then: what is read is handled before the next reading begins."""
        if self.node.alive and life == self.node.epoch:
            given = decode_id_counter(self.world.zookeeper.read(cluster_paths(self.root).client_ids) or b"")
            self.node.post(IdsRead(given))
            self.world.after(_IDS_EVERY_MS, lambda: self._read_ids(life))

    def _machine(self) -> ProxyNode:
        self._starts += 1
        zookeeper, path = self.world.zookeeper, f"{self.root}/proxy"
        state = decode_proxy_state(zookeeper.read(path) or b"").started()
        zookeeper.write([ZkSet(0, path, encode_proxy_state(state), -1)])
        server = ServerConfig(self.root, self.endpoint, data_cache_bytes=self._memory, proxies_trusted=True)
        config = ProxyConfig(server, self.upstream, "", ClientSettings(), self._disk)
        self.files.clear()
        self._hangs = False
        return ProxyNode(config, state, Random(f"{self.world.seed}/{self.node.name}/{self._starts}"))

    def _to_upstream(self, effect: ToUpstream) -> None:
        if self.session.alive:
            self.session.machine.requests.append(effect.request)
            self.session.post(None)

    def _on_disk(self, effect: CacheEffect) -> None:
        if isinstance(effect, CacheRead):
            place = effect.place
            data = bytearray(self.files.get(place.file, b"")[place.offset : place.offset + place.size])
            if data and self.rng.random() < _ROT:
                self.reached["a proxy read damage from its disk"] = None
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            elif data:
                self.reached["a proxy read from its disk"] = None
            answer = CacheData(effect.partition_id, effect.token, bytes(data) or None)
            self._answer(answer)
        elif isinstance(effect, CacheDrop):
            self.files.pop(effect.file, None)
        elif self.rng.random() < _FULL:
            self.node.post(CacheFailed("no space left"))
        else:
            self.files.setdefault(effect.file, bytearray()).extend(effect.data)
            self._answer(CacheWritten(len(effect.data)))

    def _answer(self, answer: CacheData | CacheWritten) -> None:
        """In the order of the requests, unless the disk hangs: then never again in the life of this process."""
        self._hangs = self._hangs or self.rng.random() < _HANGING
        if not self._hangs:
            self._disk_free = max(self._disk_free, self.world.now + self.rng.randrange(20))
            self.node.post_later(self._disk_free - self.world.now, answer)

    def _on_ended(self, ended: Ended) -> None:
        """The process is gone when the rest of this step is done."""
        self.world.trace(f"{self.node.name} ended {ended.reason}")
        self.node.ended = ended
        self.world.after(0, self.node.crash)

    @property
    def failed(self) -> str | None:
        """Why it could not go on, unless another one took its place."""
        ended = self.node.ended
        return None if ended is None or ended.reason.startswith(_DISPLACED) else ended.reason


class Proxied:
    """The part of a run that is about its proxy: whether there is one, and when it dies."""

    def __init__(self, run: Run, on: bool | None, without: Collection[str]) -> None:
        self._run = run
        self._rng = Random(f"{run.seed}/proxy/faults")
        self.on = Random(f"{run.seed}/{_STREAM}").random() < SHARE and PROXY not in without if on is None else on
        self._proxy: SimProxy | None = None
        self._second: SimProxy | None = None
        self._far: SimProxy | None = None
        self._has_far = self.on and Random(f"{run.seed}/proxy/far").random() < _BEHIND

    @property
    def proxy(self) -> SimProxy:
        """The process, of a run that has one."""
        assert self._proxy is not None
        return self._proxy

    def server_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """What servers must be able to do, and whom they are told to believe."""
        if not self.on:
            return options
        return {name: value for name, value in options.items() if name != "versions"} | {"proxies_trusted": True}

    def kind_of(self, number: int) -> type[App]:
        """Every second application goes through the proxy, the first of them through the one behind it, if there is."""
        if number % 2 or not self.on:
            return App
        return FarApp if number == 0 and self._has_far else ProxiedApp

    def start(self, safety_ms: int) -> None:
        """Make its root, start it, and plan its deaths."""
        if not self.on:
            return
        self._proxy = SimProxy(self._run.world, self._run.plan.partitions)
        self.proxy.make_root()
        self.proxy.start()
        for at in range(self._rng.randrange(4)):
            moment = self._run.world.now + 500 + self._rng.randrange(safety_ms - 3_000)
            self._run.world.at(moment + at, self._crash)
        if self._has_far:
            world, partitions = self._run.world, self._run.plan.partitions
            self._far = SimProxy(world, partitions, name="far-proxy", endpoint=_FAR, root=_FAR_ROOT, upstream=OWN_ROOT)
            self._far.make_root()
            self._far.start()
            world.after(500 + Random(f"{world.seed}/proxy/far/death").randrange(safety_ms - 3_000), self._crash_far)
        second = Random(f"{self._run.seed}/proxy/second")
        if second.random() < _SECOND:
            world, partitions = self._run.world, self._run.plan.partitions
            self._second = SimProxy(world, partitions, name="other-proxy", endpoint=_OTHER)
            moment = self._run.world.now + 500 + second.randrange(safety_ms - 3_000)
            self._run.world.at(moment, self._second.start)
            self._run.world.at(moment + second.randrange(2_500), self._take_back)

    def _take_back(self) -> None:
        """Whoever started the second one has noticed, and starts the first one again once that has ended."""
        assert self._second is not None
        if self._second.node.ended is not None:
            return  # the first one died, and was started again
        if self.proxy.node.ended is not None:
            self.proxy.reached["a proxy ended because another one was started in its root"] = None
        if self.proxy.node.alive:
            self._run.world.after(200, self._take_back)
        else:
            self.proxy.start()

    def _crash(self) -> None:
        self._kill(self.proxy, self._rng)

    def _crash_far(self) -> None:
        assert self._far is not None
        self._kill(self._far, Random(f"{self._run.seed}/proxy/far/fault"))

    def _kill(self, proxy: SimProxy, rng: Random) -> None:
        if proxy.node.alive:
            self._run.observer.counts["fault proxy dies"] += 1
            if any(partition.carriage.under_way for partition in proxy.node.machine.partitions.values()):
                proxy.reached["a proxy died with appends under way"] = None
            proxy.node.crash(rng.random() < 0.3)
            self._run.world.after(rng.randrange(1_000), proxy.start)

    def check(self) -> None:
        """Its end is no part of any run."""
        for proxy in self._all:
            assert proxy.failed is None, proxy.failed
        if self._second is not None:
            assert self.proxy.node.alive, "the one that was started last has ended"
            assert not self._second.node.alive, "two proxies share a root"

    def marks(self) -> list[str]:
        """Coverage marks that were reached at the proxy."""
        reached = [mark for proxy in self._all for mark in proxy.reached]
        if self._far is not None:
            behind = decode_proxy_state(self._run.world.zookeeper.read(f"{_FAR_ROOT}/proxy") or b"")
            appended_by = (req_client(ReqId(split(body)[1])) for log in self._run.observer.logs for body in log)
            if any(behind.includes(client) for client in appended_by):
                reached.append("an append went through two proxies")
        return reached

    @property
    def _all(self) -> list[SimProxy]:
        return [proxy for proxy in (self._proxy, self._second, self._far) if proxy is not None]
