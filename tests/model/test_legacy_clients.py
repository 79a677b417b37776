"""Clients of 0.13.2's kind whose mount gets no answer: what our servers owe them, and what only people can do."""

from __future__ import annotations

import attrs
import pytest

from tests.model import run as runs
from tests.model.operator import PATIENCE_MS
from tests.model.run import Run, draw_plan
from tests.model.test_defects_server import both, owner_of
from tests.model.test_phases import HABITS
from tests.model.test_server import Client, opened
from waltz_core.client.calls import Phase
from waltz_core.wire import client_messages as messages

LEGACY = attrs.evolve(HABITS, legacy=True, names=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """One partition, no faults but those of the scenario, a client of ours and one of 0.13.2's kind."""
    plan = attrs.evolve(
        draw_plan(1),
        partitions=1,
        replicas=3,
        storages=3,
        spares=0,
        servers=1,
        habits=(HABITS, LEGACY),
        kinds=(),
        legacy_storages=0,
        preferred=(),
        drifting=False,
    )
    monkeypatch.setattr(runs, "draw_plan", lambda seed: plan)
    run = Run(1, limits=False)
    run.begin()
    run.world.run(run.world.now + 2_000)
    return run


def test_a_client_whose_mount_went_down_with_a_host_is_restarted_though_payloads_still_reach_it(run: Run) -> None:
    """Its connection for mounts has nothing to send and so learns nothing; the other one goes on serving reads."""
    world, app, (server,) = run.world, run.apps[1], run.cluster.servers
    for storage in run.cluster.storages[:2]:
        storage.crash(power=False)  # until they are back, a mount waits in the server
    world.network.reset_between(app.name, server.name)
    world.run(world.now + 20)
    assert app.node.machine.status(0, app.node.clock).phase is Phase.MOUNTING
    server.crash(silent=True)
    run.faults.stop()
    assert world.run_while(lambda: not run.served(), 30_000, every=20)
    counts = run.observer.counts
    assert world.run_while(lambda: not counts["legacy clients restarted"], PATIENCE_MS, every=20), run.unsettled()
    for one in run.apps:
        one.loading = False

    def settled() -> bool:
        for one in run.apps:
            one.resume()
        return not run.unsettled()

    assert world.run_while(lambda: not settled(), 10_000, every=200), run.unsettled()


@both
def test_a_mount_that_waits_when_its_partition_moves_away_is_answered(on: bool) -> None:
    """0.13.2 mounts again after NOT_READY, a cut or a new server, and after nothing else: it may miss that move."""
    cluster = opened(servers=2, seed=3, servers_0132=() if on else (0, 1))
    owner = owner_of(cluster)
    for storage in cluster.storages[:2]:
        storage.crash(power=False)
    client = Client(cluster, server=owner, version=4)
    req_id = client.req_id()
    client.send(messages.MountRequest(req_id, -1, 0))
    cluster.world.run(cluster.world.now + 500)
    assert not client.received
    cluster.world.zookeeper.suspend(cluster.servers[owner], 12_000)
    partitions = cluster.servers[owner].machine.partitions
    assert cluster.world.run_while(lambda: bool(partitions), 60_000)
    cluster.world.run(cluster.world.now + 1_000)
    client.wait(lambda: True)
    answer = messages.MountResponse(req_id, messages.PartitionState.NOT_READY)
    assert client.received == ([answer] if on else [])
    assert not client.peer.closed
