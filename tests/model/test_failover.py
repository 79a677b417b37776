"""How long nothing is committed after a fault, in virtual time: the fault itself bounds it, not a pause of ours.

Each row has its twin with real processes in `python -m tests.processes.failover`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import attrs
import pytest

from tests.model.faults import KINDS
from tests.model.run import Run
from waltz_testing.simulation.world import SimNode

SESSION_MS = 4_000  # ZooKeeper's time-out, of all servers here
REACTION_MS = 700  # hearing of it, a new assignment, a store session, and the client's way to it
PAUSE_MS = 40  # between two appends of each client
TURN_MS = 2_000

seeds = pytest.mark.parametrize("first", [1, *(pytest.param(first, marks=pytest.mark.slow) for first in (40, 80))])


class Outage:
    """A loaded cluster of two servers and three storage nodes, and the times at which something was committed."""

    def __init__(self, first: int, *, by_server: bool = False) -> None:
        self.run = next(_steady(first))
        if by_server:
            for app in self.run.apps:
                app.habits = attrs.evolve(app.habits, by_server=True)
                app.node.uses_zookeeper = False
        self.world = self.run.world
        self.run.begin()
        self.run.operator.pause()
        self.commits: list[int] = []
        self._seen = 0
        self.watch_until_load()
        begin = self.world.now
        self.watch(1_000)
        assert self.longest(begin) < REACTION_MS, "the load is not steady"

    @property
    def servers(self) -> list[SimNode]:
        return self.run.cluster.servers

    def owner(self) -> SimNode:
        return next(server for server in self.servers if server.alive and server.machine.partitions)

    def watch(self, milliseconds: int) -> None:
        """Let time pass."""
        end = self.world.now + milliseconds
        while self.world.now < end:
            self.world.run(self.world.now + 10)
            count = self.run.observer.counts["commits"]
            if count != self._seen:
                self.commits.append(self.world.now)
                self._seen = count

    def watch_until_load(self) -> None:
        """Every client has begun."""
        counts = self.run.observer.counts
        assert self.world.run_while(lambda: counts["commits"] < 20, 60_000, every=10)

    def longest(self, since: int) -> int:
        """The longest time without a commit that ends after `since`, and the present one."""
        times = [*self.commits, self.world.now]
        return max(later - earlier for earlier, later in itertools.pairwise(times) if later > since)

    def after(self, fault: Callable[[], None], milliseconds: int) -> int:
        """The longest time without a commit from a fault on."""
        begin = self.world.now
        fault()
        self.watch(milliseconds)
        return self.longest(begin)


def _steady(first: int) -> Iterator[Run]:
    """Clusters whose clients append all the time."""
    for seed in itertools.count(first):
        run = Run(seed, KINDS, limits=False)
        plan = run.plan
        if plan.partitions != 1 or plan.replicas != 3 or plan.servers != 2 or plan.legacy_storages or plan.preferred:
            continue
        if plan.drifting or any(habits.legacy for habits in plan.habits):
            continue
        for app in run.apps:
            app.habits = attrs.evolve(app.habits, pause_ms=PAUSE_MS, burst=1, consume_ms=0, locks=0, tail=False)
        yield run


@seeds
def test_a_server_that_is_killed_for_good_costs_no_time_out(first: int) -> None:
    """Its kernel ends its connections, and refuses those who dial it again: the other server need not wait."""
    outage = Outage(first)
    assert outage.after(lambda: outage.owner().crash(), 2 * SESSION_MS) < REACTION_MS


@seeds
def test_a_server_whose_host_is_gone_costs_its_session_time_out(first: int) -> None:
    """Nothing is ended and nothing refused: only the silence is left, which proves nothing sooner."""
    outage = Outage(first)
    outage_ms = outage.after(lambda: outage.owner().crash(silent=True), 2 * SESSION_MS)
    assert SESSION_MS - 1_000 < outage_ms < SESSION_MS + REACTION_MS


@seeds
@pytest.mark.parametrize("silence", ["paused", "its host is gone"])
@pytest.mark.parametrize("owner", [True, False])
def test_the_server_that_clients_know_the_cluster_by_costs_no_more_than_another_when_it_goes_silent(
    first: int, silence: str, owner: bool
) -> None:
    """No end of a connection is seen, and nobody but servers tells these clients where the partition is."""
    outage = Outage(first, by_server=True)
    known = outage.servers[0]
    if (outage.owner() is known) is not owner:
        outage.owner().crash()
        outage.watch(2 * SESSION_MS)
        next(server for server in outage.servers if not server.alive).start()
        outage.watch(2_000)
    assert (outage.owner() is known) is owner
    silent = known.freeze if silence == "paused" else lambda: known.crash(silent=True)
    assert outage.after(silent, 3 * SESSION_MS) < (SESSION_MS if owner else 0) + REACTION_MS


@seeds
def test_a_server_that_is_killed_and_comes_back_costs_the_time_it_was_away(first: int) -> None:
    outage = Outage(first)
    owner = outage.owner()
    away = 300

    def restart() -> None:
        owner.crash()
        outage.watch(away)
        owner.start()

    assert outage.after(restart, 2 * SESSION_MS) < away + REACTION_MS


@seeds
@pytest.mark.parametrize("away", [100, 1_000])
def test_two_servers_that_are_killed_in_turn_cost_the_time_that_each_is_away(first: int, away: int) -> None:
    outage = Outage(first)

    def kill_in_turn() -> None:
        for server in outage.servers * 4:
            server.crash()
            outage.watch(away)
            server.start()
            outage.watch(TURN_MS - away)

    assert outage.after(kill_in_turn, 2 * SESSION_MS) < away + REACTION_MS


@seeds
def test_a_storage_node_that_is_killed_costs_next_to_nothing(first: int) -> None:
    outage = Outage(first)
    for storage in outage.run.cluster.storages:
        assert outage.after(lambda storage=storage: storage.crash(power=False), 2_000) <= 300  # type: ignore[misc]
        storage.start()
        outage.watch(5_000)


@seeds
def test_without_any_storage_node_for_a_while_commits_go_on_soon_after_they_are_back(first: int) -> None:
    outage = Outage(first)
    away = 3_000

    def outage_of_all() -> None:
        for storage in outage.run.cluster.storages:
            storage.crash(power=False)
        outage.watch(away)
        for storage in outage.run.cluster.storages:
            storage.start()

    back = 1_000  # the longest pause between two dials
    assert outage.after(outage_of_all, 10_000) < away + back + REACTION_MS
