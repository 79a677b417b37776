"""Gateways on the whole simulated cluster, by seed: their own appends and clients in virtual time, and they are killed.

Callers do as the how-to says: a key is made once, and repeated through any gateway until its outcome is known, now and
then through two at once. What each is told is compared with the log at the end, and so is what locks promise. Others
follow a feed (`gateway_feeds.py`): each gets every transaction from where he began, in order, once, whatever dies.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TypeVar

import attrs
import trio

from tests.model.gateway_feeds import Follower
from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Level
from waltz_core.base.errors import WaltzError
from waltz_core.client.membership import ZkMembership
from waltz_core.client.settings import ClientSettings
from waltz_core.gateway.calls import read_append
from waltz_core.gateway.keyed import Done
from waltz_core.gateway.problems import Outcome, Problem
from waltz_core.gateway.quotas import Limits
from waltz_core.gateway.topics import KEY_FIELD, Place, Topic, Topics
from waltz_testing.simulation.cluster import ROOT, SimCluster
from waltz_testing.simulation.virtual import VirtualDriver, run_virtually
from waltz_testing.simulation.world import SimNode
from waltz_trio.client.client import Client
from waltz_trio.client.connect import client_on
from waltz_trio.client.encoding import ClientLimits
from waltz_trio.config.gateway import GatewaySettings
from waltz_trio.gateway.service import Gateway
from waltz_trio.net.http import Request, Response, Send, Stream

SHARE = 0.1  # of the seeds
_GATEWAYS = 2
_CALLERS = 4
_APPENDS = 5  # of each caller
_ACCOUNTS = 2
_FAULTS_S = 6.0
_PATIENCE_S = 300.0  # simulated, after the last fault
_TIMEOUT_S = 2.0  # of an append at a gateway
_WINDOW = 10_000
_FOLLOWERS: tuple[int | str, ...] = (-1, -1, -1, "tail")  # the marks from which they follow
_TOPIC = Topic("payments", "simulated", (0,))
_PLACE = Place(_TOPIC, 0, 0)
_SETTINGS = GatewaySettings(
    topics=Topics([_TOPIC]),
    rules=None,
    origins=(),
    host="localhost",
    port=0,
    tls=None,
    health_host="localhost",
    health_port=None,
    quotas=Limits(),
    body_max=1 << 20,
    feeds_max=100,
    feeds_per_caller=100,
    connections_max=100,
    rate=100,
    prefetch=4,
    window_bytes=600,  # a few records: who is slow falls out of it
    request_timeout=_TIMEOUT_S,
    key_window=_WINDOW,
)
T = TypeVar("T")


async def _paid(cost: int) -> None:
    """Turns of a port are no part of the simulation."""
    await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Call:
    """One append of a caller, and what he was told."""

    name: str
    mark: int  # that it is based on, where it takes a lock
    account: int | None  # the lock
    keyed: bool
    ids: list[int] = attrs.field(factory=list)  # that he was told
    unknown: bool = False  # some attempt ended without an outcome

    @property
    def key(self) -> str:
        """The same for every attempt."""
        return f"{self.mark}:{self.name}"

    def body(self) -> bytes:
        """Of the request."""
        body: dict[str, object] = {"json": {"name": self.name}}
        if self.keyed:
            body["key"] = self.key
        if self.account is not None:
            body |= {"locks": {"write": [["account", self.account]]}, "mark": self.mark}
        return json.dumps(body).encode()


class SimGateway:
    """A gateway process, through all its lives."""

    def __init__(self, world: GatewayWorld, name: str) -> None:
        self.name = name
        self._world = world
        self._clients = 0
        self._nodes: list[SimNode] = []
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._gateway: Gateway | None = None

    async def live(self) -> None:
        """One life after the other, until cancelled."""
        while True:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    self._gateway = Gateway(_SETTINGS, nursery, self._world.report, self._open)
                    self._nursery = nursery
                    await trio.sleep_forever()
            await trio.sleep(0.2)

    def kill(self) -> None:
        """End the process as a crash would."""
        if self._nursery is not None:
            self._nursery = None
            for node in self._nodes:
                node.crash()
            self._scope.cancel()

    @property
    def nodes(self) -> list[SimNode]:
        """Its clients, as the network sees them."""
        return [node for node in self._nodes if node.alive]

    @asynccontextmanager
    async def _open(self, source: str) -> AsyncIterator[Client]:
        self._clients += 1
        name = f"{self.name}.{self._clients}"
        rng = Random(f"{self._world.seed}/{name}")
        client = Client(ZkMembership(ROOT, Tickets(), rng), ClientSettings(), ClientLimits(max_in_flight=20), None, rng)
        client._life.report = lambda level, text: None
        node = SimNode(self._world.cluster.world, name, lambda: client._node)
        self._nodes.append(node)
        async with client_on(VirtualDriver(node, client), client, 0.0):
            yield client

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """An answer; None where the process died, or could only say that the cluster does not answer."""
        if self._nursery is None:
            await trio.sleep(0.1)
            return None
        answers: list[T] = []
        over = trio.Event()

        async def work() -> None:
            try:
                answers.append(await call())
            except WaltzError:
                pass
            finally:
                over.set()

        self._nursery.start_soon(work)
        await over.wait()
        return answers[0] if answers else None

    async def mark(self) -> int | None:
        """As `GET .../mark`."""
        assert self._gateway is not None
        return await self._ask(partial(self._gateway._clusters["simulated"].committed_mark, 0))

    async def append(self, call: Call) -> Done | Problem | None:
        """As `POST .../append`."""
        gateway = self._gateway
        assert gateway is not None
        request = read_append(_PLACE, "application/json", call.body())
        return await self._ask(partial(gateway._appends.append, "caller", request, gateway._clusters["simulated"]))

    async def follow(self, request: Request, send: Send) -> Response | None:
        """As `GET .../feed`: sends until the feed ends, or the gateway dies; or answers something else."""
        gateway = self._gateway
        assert gateway is not None

        async def work() -> Response | None:
            answer = await gateway.handle(request)
            if isinstance(answer, Response):
                return answer
            assert isinstance(answer, Stream)
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the caller is gone
                await answer.feed(send, _paid)
            return None

        return await self._ask(work)

    def has_left_behind(self, mark: int) -> bool:
        """Whether its window begins behind a reader."""
        fanouts = self._gateway._fanouts.values() if self._gateway is not None else ()
        return any(each._lead is not None and not each._lead.window.holds(mark) for each in fanouts)


class GatewayWorld:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.marks: set[str] = set()  # coverage marks that were reached
        self.cluster = SimCluster(seed, partitions=1, servers=2)
        self.cluster.world.tolerates = lambda text: True
        self._rng = Random(f"{seed}/gateways")
        self._gateways = [SimGateway(self, f"gateway{number}") for number in range(_GATEWAYS)]
        self._calls: list[Call] = []
        self._followers = [
            Follower(f"follower{number}", after, seed, self._gateways) for number, after in enumerate(_FOLLOWERS)
        ]
        self._storage_down = False

    def run(self) -> None:
        """Set up, run, judge.

        Raises:
            AssertionError: somebody was told what is not so, or nothing.
        """
        self.cluster.start()
        self.cluster.until_open()
        run_virtually(self.cluster.world, self._main)

    def report(self, level: Level, text: str) -> None:
        """A gateway complains."""
        assert level < Level.ERROR, text

    async def _main(self) -> None:
        async with trio.open_nursery() as processes:
            for gateway in self._gateways:
                processes.start_soon(gateway.live)
            for follower in self._followers:
                processes.start_soon(follower.follow)
            with trio.move_on_after(_PATIENCE_S) as patience:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._strike)
                    for number in range(_CALLERS):
                        nursery.start_soon(self._caller, number)
                log = await self._log()
                self._judge(log)
                await self._until_followed(log)
            assert not patience.cancelled_caught, (
                f"{len(self._calls)} appends, and not all of them ended; "
                f"followers at {[follower.mark for follower in self._followers]}"
            )
            processes.cancel_scope.cancel()

    # ---- callers ---------------------------------------------------------------------------------

    async def _caller(self, number: int) -> None:
        rng = Random(f"{self.seed}/caller/{number}")
        for at in range(_APPENDS):
            await trio.sleep(rng.random() * _FAULTS_S / _APPENDS)
            mark = await self._mark(rng)
            await trio.sleep(rng.choice((0.0, 0.1, 1.0)) * rng.random())  # he decides
            account = rng.randrange(_ACCOUNTS) if rng.random() < 0.6 else None
            call = Call(f"order-{number}-{at}", mark, account, keyed=rng.random() < 0.8)
            self._calls.append(call)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_known, call, rng)
                if call.keyed and rng.random() < 0.3:
                    nursery.start_soon(self._until_known, call, rng)
            if call.keyed and call.ids and rng.random() < 0.3:
                await self._until_known(call, rng)

    async def _mark(self, rng: Random) -> int:
        while True:
            mark = await rng.choice(self._gateways).mark()
            if mark is not None:
                return mark

    async def _until_known(self, call: Call, rng: Random) -> None:
        while True:
            answer = await rng.choice(self._gateways).append(call)
            if isinstance(answer, Done):
                call.ids.append(answer.transaction_id)
                self.counts["repeated" if answer.repeated else "committed"] += 1
                return
            if isinstance(answer, Problem):
                self.counts[answer.code] += 1
                assert answer.status != 500, answer
            if answer is None or answer.outcome is Outcome.UNKNOWN:
                call.unknown = True
                self.counts["unknown"] += 1
                if not call.keyed:
                    return
            elif not answer.retry_after:
                assert answer.code == "lock-conflict", answer
                return
            await trio.sleep(rng.random())

    async def _until_followed(self, log: list[dict[str, str] | None]) -> None:
        """Every follower comes to the end of the log, and got all of it."""
        end = max((at for at, written in enumerate(log) if written is not None), default=-1)
        for follower in self._followers:
            while follower.mark is None or follower.mark < end:  # noqa: ASYNC110 - it is virtual time
                await trio.sleep(0.1)
            follower.judge(log)
            self.marks |= follower.marks
            self.counts["fed"] += len(follower.records)

    # ---- what goes wrong -------------------------------------------------------------------------

    async def _strike(self) -> None:
        processes = (self._kill_gateway, self._kill_gateway, self._kill_server, self._kill_storage_node)
        kinds = (*processes, self._break, self._cut_off, self._slow)
        for _ in range(self._rng.choice((0, 5, 15))):
            await trio.sleep(self._rng.random() * _FAULTS_S / 8)
            self._rng.choice(kinds)(self._rng.choice((20, 300, 2_000, 6_000)))
            self.counts["faults"] += 1

    def _kill_gateway(self, for_ms: int) -> None:
        self._rng.choice(self._gateways).kill()

    def _kill_server(self, for_ms: int) -> None:
        server = self._rng.choice(self.cluster.servers)
        if server.alive:
            server.crash()
            self.cluster.world.after(for_ms, server.start)

    def _kill_storage_node(self, for_ms: int) -> None:
        if self._storage_down:
            return
        storage = self._rng.choice(self.cluster.storages)
        self._storage_down = True

        def restart() -> None:
            self._storage_down = False
            storage.start()

        storage.crash(power=self._rng.random() < 0.5)
        self.cluster.world.after(for_ms, restart)

    def _any_node(self) -> SimNode:
        return self._rng.choice([*self.cluster.servers, *(node for each in self._gateways for node in each.nodes)])

    def _break(self, for_ms: int) -> None:
        node = self._any_node()
        for peer in sorted({way.target.name for way in node.conns.values()}):
            self.cluster.world.network.reset_between(node.name, peer)

    def _cut_off(self, for_ms: int) -> None:
        node, network = self._any_node(), self.cluster.world.network
        others = [name for name in self.cluster.world.nodes if name != node.name]
        pairs = {(node.name, other) for other in others} | {(other, node.name) for other in others}
        network.cut |= pairs
        self.cluster.world.after(for_ms, lambda: network.heal(pairs))

    def _slow(self, for_ms: int) -> None:
        network = self.cluster.world.network
        network.latency = (0, 300)
        self.cluster.world.after(for_ms, lambda: setattr(network, "latency", (0, 2)))

    # ---- the reckoning ---------------------------------------------------------------------------

    async def _log(self) -> list[dict[str, str] | None]:
        """Every record, read by a client that knows nothing; None for one that no caller wrote."""
        reader = SimGateway(self, "reader")
        records: list[dict[str, str] | None] = []
        async with reader._open("simulated") as client:
            end = await client.committed_mark(0)
            if end < 0:
                return records
            async with client.feed(0, after=-1) as feed:
                feed.markers = True
                async for transaction in feed:
                    data = transaction.load()
                    records.append(json.loads(data) if data else None)
                    if transaction.id >= end:
                        return records
        raise AssertionError("a feed has no end")

    def _judge(self, log: list[dict[str, str] | None]) -> None:
        by_name: dict[str, list[int]] = {}
        for at, written in enumerate(log):
            if written is not None:
                by_name.setdefault(written["name"], []).append(at)
        calls = {call.name: call for call in self._calls}
        assert by_name.keys() <= calls.keys()
        for call in self._calls:
            places = by_name.get(call.name, [])
            assert len(places) <= 1, f"{call} was committed as {places}"
            assert set(call.ids) <= set(places), f"{call} was told of {call.ids}, it stands at {places}"
            if not call.ids and not call.unknown:
                assert not places, f"{call} was refused, and stands at {places}"
            for at in places:
                written = log[at]
                assert written is not None
                assert written.get(KEY_FIELD) == (call.key if call.keyed else None)
        taken: dict[int, int] = {}  # account → who took it last
        for at, written in enumerate(log):
            call_of = calls[written["name"]] if written is not None else None
            if call_of is not None and call_of.account is not None:
                assert taken.get(call_of.account, -1) <= call_of.mark, f"{call_of} did not see {taken}"
                taken[call_of.account] = at
