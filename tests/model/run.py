"""One run of a whole cluster: load and faults, then quiet, then the reckoning. A seed decides everything."""

from __future__ import annotations

import re
import time
import traceback
from collections import Counter
from collections.abc import Collection
from random import Random
from typing import Any

import attrs

from tests.model.app import App, Habits
from tests.model.application_world import ApplicationWorld
from tests.model.archived_run import POLICY, ArchivedRun
from tests.model.cluster import SimCluster
from tests.model.faults import ARCHIVE, ASTRAY, BEYOND_LEGACY, KINDS, LOSE_ID, LOSING, MEMBERSHIP, OUTAGE, Faults
from tests.model.gateway_world import SHARE as GATEWAY_SHARE
from tests.model.gateway_world import GatewayWorld
from tests.model.hostile import Hostile
from tests.model.limits import AS_SHIPPED, Limits, draw_limits
from tests.model.marks import HOSTILE, PREFIX, PROXY
from tests.model.observer import Observer
from tests.model.operator import Operator
from tests.model.proxied import Proxied
from tests.model.whole_application import play_seed
from waltz_core.base.record import record
from waltz_core.server.journal_format import Mode
from waltz_core.store.followers import SessionConfig

SAFETY_MS = 54_000
"""How long load and faults last."""

LIVENESS_MS = 150_000
"""Everything has settled this long after the last fault, or the run fails."""

RUN_MS = 66_000
"""A run is at least this long."""

COMMITS_MIN = 200

_READ_TOGETHER = (0, 0, 1, 8, 40)

_LOOKS_MAX = 12
_LOOK_EVERY_MS = 1_700

_EXPECTED_ERRORS = re.compile(
    r"stays out|cannot be read: input/output error|is damaged on this storage node|stopped: |is in limbo|does not start"
    r"|disk|[Nn]o space"
)


@record
class Plan:
    """What is drawn for a run before it starts."""

    partitions: int
    replicas: int
    storages: int
    spares: int  # of these, unknown to the cluster at first
    servers: int
    habits: tuple[Habits, ...]
    kinds: tuple[str, ...]
    legacy_storages: int
    segment_size: int
    server_options: dict[str, Any]
    preferred: tuple[tuple[int, ...], ...]
    drifting: bool
    high_mark: int


@record
class Result:
    """How a run ended."""

    seed: int
    failure: str
    simulated_ms: int
    wall_s: float
    commits: int
    recoveries: int
    faults: dict[str, int]
    counts: dict[str, int]
    kinds: tuple[str, ...]
    limits: tuple[str, ...]  # names of those that were small
    digest: str
    log: tuple[str, ...]


def draw_plan(seed: int) -> Plan:
    """Most runs have only some kinds of faults on."""
    rng = Random(f"{seed}/plan")
    partitions = rng.choice((1, 1, 1, 2, 3))
    legacy_storages = rng.choice((0,) * 8 + (1, 3))
    often = rng.choice((0.12, 0.25, 0.5))
    ordinary = [kind for kind in KINDS if kind not in (*MEMBERSHIP, ASTRAY, ARCHIVE, OUTAGE, LOSE_ID)]
    kinds = [kind for kind in ordinary if rng.random() < often]
    kinds += rng.sample(ordinary, 3)
    kinds = [kind for kind in KINDS if kind in kinds and not (legacy_storages and kind in BEYOND_LEGACY)]
    if "zk_rewind" in kinds:
        # With metadata that forgot a session, nobody can tell a replica that lost what it appended then.
        kinds = [kind for kind in kinds if kind not in (*LOSING, "change_replicas")]
    replicas = rng.choice((3,) * 10 + (1, 5))
    if replicas == 1:
        kinds = [kind for kind in kinds if kind not in (*LOSING, "change_replicas")]  # no other copy to fall back on
    storages = max(3, replicas + rng.choice((1, 2)) if "change_replicas" in kinds else replicas)
    clients = rng.choice((2, 2, 3))
    appends = rng.choice((250, 250, 250, 450))  # in all, about
    habits = tuple(_draw_habits(rng, appends // clients) for _ in range(clients))
    options = {
        "checkpoint_interval": rng.choice((15, 60, 250_000)),
        "feed_cache_bytes": rng.choice((200, 5_000, 16 << 20)),
        "data_cache_bytes": rng.choice((200, 5_000, 32 << 20)),
        "batch_count_max": rng.choice((1, 5, 1_000)),
        "lock_table_size": rng.choice((60, 30_000)),
        "min_fetch_size": rng.choice((2, 10, 100)),
        "retry_max_ms": rng.choice((2_000, 20_000)),
        "journal": Random(f"{seed}/journal").choice((Mode.OFF, Mode.OFF, Mode.SYNC, Mode.SYNC, Mode.ASYNC)),
        "answer_timeout_ms": rng.choice((1_500, 10_000)),
        "session": SessionConfig(
            link_flight_bytes_max=rng.choice((300, 8 << 20)), tail_bytes_max=rng.choice((400, 16 << 20))
        ),
    }
    servers = rng.choice((2, 2, 2, 3))
    spares, membership = _draw_membership(seed)
    if replicas > 1 and membership:
        # A move goes on for a while, and must not be overtaken by another hand.
        kinds = [kind for kind in kinds if kind not in ("change_replicas", "zk_rewind")] + membership
        storages, legacy_storages = replicas + spares, min(legacy_storages, replicas)
    else:
        spares = 0
    if Random(f"{seed}/astray").random() < 0.1:
        kinds.append(ASTRAY)
    elif not legacy_storages and Random(f"{seed}/archivist").random() < 0.2:
        kinds.append(ARCHIVE)
    if Random(f"{seed}/outage 31").random() < 0.15:
        kinds.append(OUTAGE)
    preferred = tuple((server % partitions,) for server in range(servers)) if rng.random() < 0.25 else ()
    return Plan(
        partitions,
        replicas,
        storages,
        spares,
        servers,
        habits,
        tuple(kinds),
        legacy_storages,
        rng.choice((700, 4_000, 1_000_000_000)),
        options,
        preferred,
        rng.random() < 0.3,
        rng.choice((600, 1 << 20, 1 << 20)),
    )


def _draw_membership(seed: int) -> tuple[int, list[str]]:
    """In a part of the runs the operator changes who holds what; from a stream of its own. Spare nodes and kinds."""
    rng = Random(f"{seed}/membership")
    if rng.random() >= 0.25:
        return 0, []
    chosen = [kind for kind in MEMBERSHIP if rng.random() < 0.6]
    return rng.choice((1, 2, 3)), chosen or ["add_node", "drain_node"]


def _draw_habits(rng: Random, appends: int) -> Habits:
    legacy = rng.random() < 0.15
    burst = rng.choice((1, 3, 6, 20))
    return Habits(
        by_server=not legacy and rng.random() < 0.4,
        legacy=legacy,
        locks=rng.choice((0, 3, 8, 50)),
        pause_ms=SAFETY_MS * (1 + burst) // (2 * appends),
        tail=not legacy and rng.random() < 0.1,
        burst=burst,
        size=rng.choice((20, 20, 100, 1000)),
        feed_buffer=rng.choice((8, 100, 100_000)),
        consume_ms=rng.choice((0, 0, 50, 500)),
        names=rng.random() < 0.5,
    )


class Run:
    """One cluster from its creation to the reckoning."""

    def __init__(
        self,
        seed: int,
        without: Collection[str] = (),
        *,
        verbose: bool = False,
        limits: bool = True,
        proxied: bool | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            without: kinds of faults, and names of limits, to leave out.
            limits: whether limits of the configuration are drawn too; seeds that were kept before they were, are
                what they were only without.
            proxied: whether applications go through a proxy; None: as drawn.
        """
        self.seed = seed
        self.limits: Limits = draw_limits(seed).without(frozenset(without)) if limits else AS_SHIPPED
        self.plan = plan = draw_plan(seed)
        kinds = (*plan.kinds, LOSE_ID) if limits and Random(f"{seed}/ids").random() < 0.2 else plan.kinds
        self.kinds = tuple(kind for kind in kinds if kind not in without)
        self.proxied = Proxied(self, proxied if proxied is not None or limits else False, without)
        self.archived = ArchivedRun(self, without, drawn=limits)
        self.may_lose = any(kind in LOSING for kind in self.kinds)
        self.cluster = SimCluster(
            seed,
            partitions=plan.partitions,
            storage_nodes=plan.storages,
            servers=plan.servers,
            segment_size=plan.segment_size,
            server_options=self._server_options(plan.server_options),
            storage_options=dict(self.limits.storage),
            preferred=plan.preferred,
        )
        for storage in self.cluster.storages[: plan.legacy_storages]:
            storage.is_0132 = True
            storage.disk.write_through = True  # 0.13.2 does not sync directories: its machines must not lose power
        for storage in self.cluster.storages[plan.legacy_storages :]:
            if "sync_in_place" in dict(self.limits.process):
                storage.disk.sync_in_place()
        self.world = self.cluster.world
        self.world.verbose = verbose
        self.world.network.high_mark = plan.high_mark
        self.world.tolerates = self._tolerates
        if plan.drifting:
            self._set_clocks()
        if "zk_behind" in self.kinds:
            self.world.zookeeper.with_follower()
        for journal in self.cluster.journals:
            journal.draw_outages(SAFETY_MS)
        self.archived.start(SAFETY_MS)
        self.observer = Observer(self.cluster, quorum=plan.replicas // 2 + 1)
        self.apps = [self._app(number, habits) for number, habits in enumerate(plan.habits)]
        if limits and not {ARCHIVE, ASTRAY}.intersection(self.kinds):  # else what is not read yet may be dropped
            for number, app in enumerate(self.apps):
                app.read_together = Random(f"{seed}/payloads/{number}").choice(_READ_TOGETHER)
        for node in self.world.nodes.values():
            node.zk_session_ms = dict(self.limits.process).get("zk_session_ms", node.zk_session_ms)
        if plan.drifting:
            for app in self.apps:
                self._set_clock(app.node)
        self.faults = Faults(self)
        self.hostile = Hostile(self)
        self.hostile.on = self.hostile.on and limits and HOSTILE not in without
        self.operator: Operator

    def _app(self, number: int, habits: Habits) -> App:
        return self.proxied.kind_of(number)(self.observer, number, habits, dict(self.limits.client))

    def _create(self) -> None:
        self.cluster.start(self.plan.replicas, self.plan.spares)
        self.proxied.start(SAFETY_MS)

    def _server_options(self, planned: dict[str, Any]) -> dict[str, Any]:
        options = planned | dict(self.limits.server)
        drawn = dict(self.limits.process)
        if "copy_count_max" in drawn:
            options["session"] = attrs.evolve(options["session"], copy_count_max=drawn["copy_count_max"])
        # A client of 0.13.2 sends what was too large again and again.
        if "payload_share" in drawn and not any(one.legacy for one in self.plan.habits):
            options["payload_size_max"] = int(drawn["payload_share"] * max(one.size for one in self.plan.habits)) + 20
        return self.archived.server_options(self.proxied.server_options(options))

    def _tolerates(self, text: str) -> bool:
        astray = ASTRAY in self.kinds and "ahead of the log" in text
        return astray or _EXPECTED_ERRORS.search(text) is not None

    def _set_clocks(self) -> None:
        for storage in self.cluster.storages:
            self._set_clock(storage.node)
        for server in self.cluster.servers:
            self._set_clock(server)

    def _set_clock(self, node: Any) -> None:
        rng = Random(f"{self.seed}/clock/{node.name}")
        node.offset = rng.randrange(10_000_000)
        node.drift_ppm = rng.choice((-20_000, -300, 0, 300, 20_000))

    def go(self) -> None:
        """Both phases and the reckoning.

        Raises:
            AssertionError: an invariant does not hold, or something does not settle.
        """
        self.begin()
        start = self.world.now + 500
        for kind in self.kinds:
            self.faults.schedule(kind, start, SAFETY_MS - 2_000)
        self.hostile.start(SAFETY_MS - 2_000)
        self.world.run(SAFETY_MS)
        self.settle()

    def begin(self) -> None:
        """Everything runs and is loaded."""
        self._create()
        for app in self.apps:
            app.start()
        self.cluster.until_open()
        self.operator = Operator(self)
        for app in self.apps:
            app.loading = True
            app.load()

    def settle(self) -> None:
        """The faults are over; everything comes to rest, and is judged."""
        self.faults.stop()
        self.hostile.stop()
        self.archived.heal()
        self.world.trace("the faults are over")
        world, observer = self.world, self.observer
        end = world.now + LIVENESS_MS
        before = observer.counts["commits"]
        assert world.run_while(lambda: not self.served(), LIVENESS_MS, every=20), self._complaint("is not served")

        def enough() -> bool:
            total = observer.counts["commits"]
            return total >= COMMITS_MIN and total >= before + 10 and world.now >= RUN_MS - 3_000

        assert world.run_while(lambda: not enough(), end - world.now, every=20), self._complaint("too few commits")
        for app in self.apps:
            app.loading = False

        def settled() -> bool:
            return not self.unsettled()

        while not settled():
            assert world.now < end, self._complaint(self.unsettled())
            for app in self.apps:
                app.resume()
            world.run(world.now + 200)
        world.run(max(RUN_MS, world.now + 100))
        self.archived.settle()
        observer.fetch_archived()
        observer.tell("at_end")
        self._rest()
        for name in self.proxied.marks():
            observer.marks.reach(name)
        observer.marks.end()

    def _rest(self) -> None:
        """Nothing is asked of anybody: look a few times what the machines hold all the same."""
        seen: list[set[str]] = []
        while len(seen) < _LOOKS_MAX and (not seen or set.intersection(*seen)):
            seen.append(self.observer.quiet.debts())
            self.world.run(self.world.now + _LOOK_EVERY_MS)
        self.observer.tell("on_quiet", seen)

    def served(self) -> bool:
        """Whether every partition is served by some server."""
        return len(self.healthy()) == self.plan.partitions

    def healthy(self) -> set[int]:
        """Partitions that some server serves."""
        return {
            partition_id
            for server in self.cluster.servers
            if server.alive
            for partition_id, partition in server.machine.partitions.items()
            if not partition.trouble(server.clock)
        }

    def unsettled(self) -> str:
        """What has not settled yet, empty if everything has."""
        self.proxied.check()
        if not self.served():
            return "not every partition is served"
        for token in self.observer.tokens.values():
            if not token.outcome:
                return f"{token} of partition {token.partition} has no outcome"
        for app in self.apps:
            text = app.unsettled()
            if text:
                return text
        if self.operator.moving.plan is not None:
            return "the operator has not come to the end of a move"
        for storage in self.cluster.replicas:
            name = storage.node.name
            for partition in storage.holds:
                log = self.observer.logs[partition]
                held = self.observer.durable[name].records[partition]
                if len(log) - 1 not in held and log and name not in self.observer.lossy:
                    return f"{name} does not hold {partition}/{len(log) - 1}"
                if name in self.observer.lossy and storage.ready:
                    replica = storage.node.machine.replicas[partition]
                    if replica.max_id < len(log) - 1:
                        return f"{name} holds partition {partition} up to {replica.max_id}"
        return ""

    def _complaint(self, what: str) -> str:
        served = [
            f"{server.name}/{partition.partition_id} {partition.phase} {partition.reason!r} links {partition.links} "
            f"awaits {dict(partition.awaited)}"
            for server in self.cluster.servers
            if server.alive
            for partition in server.machine.snapshot(server.clock).partitions
        ]
        held = [
            f"{storage.node.name}/{replica.partition_id} {replica.state.value} {replica.reason!r} "
            f"{replica.entry.current} max {replica.max_id} awaits {storage.node.machine.awaited()}"
            for storage in self.cluster.storages
            if storage.node.alive
            for replica in storage.node.machine.replicas
        ]
        return "\n  ".join([f"liveness: {what} after {LIVENESS_MS / 1000:.0f} s of quiet", *served, *held])


def run_seed(
    seed: int,
    without: Collection[str] = (),
    *,
    verbose: bool = False,
    limits: bool = True,
) -> Result:
    """Run a seed and report; never raises for what the run finds."""
    began = time.process_time()
    run = Run(seed, without, verbose=verbose, limits=limits)
    failure, hostile = "", run.hostile.on
    try:
        run.go()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        if verbose:
            failure += "\n" + traceback.format_exc()
    counts: Counter[str] = run.observer.counts
    layer = ApplicationWorld(seed)
    try:
        layer.run()
    except Exception as error:
        failure = failure or f"application layer: {type(error).__name__}: {error}"
    counts.update({f"application: {name}": count for name, count in layer.counts.items()})
    whole = play_seed(seed)
    if whole.failure is not None:
        failure = failure or f"whole application: {whole.failure.name}: {whole.failure.text}"
    counts.update({f"whole application: {name}": count for name, count in whole.counts.items()})
    if limits and Random(f"{seed}/gateways").random() < GATEWAY_SHARE:
        gateways = GatewayWorld(seed)
        try:
            gateways.run()
        except Exception as error:
            failure = failure or f"gateways: {type(error).__name__}: {error}"
        counts.update({f"gateways: {name}": count for name, count in gateways.counts.items()})
        counts.update({PREFIX + mark: 1 for mark in gateways.marks})
    if run.world.zookeeper.stale_reads:
        counts["stale ZooKeeper reads"] = run.world.zookeeper.stale_reads
    faults = {name[6:]: count for name, count in sorted(counts.items()) if name.startswith("fault ")}
    if not failure and faults and not counts["recoveries"]:
        failure = "no recovery took place"
    return Result(
        seed,
        failure,
        run.world.now,
        time.process_time() - began,
        counts["commits"],
        counts["recoveries"],
        faults,
        dict(sorted(counts.items())),
        (
            *run.kinds,
            *([HOSTILE] if hostile else ()),
            *([PROXY] if run.proxied.on else ()),
            *([POLICY] if run.archived.on else ()),
        ),
        run.limits.names,
        run.world.digest(),
        tuple(run.world.log[-400:]),
    )
