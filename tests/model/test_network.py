"""The simulated network does what TCP does."""

from __future__ import annotations

import pytest

from tests.model.test_server import opened


def test_the_end_of_a_connection_is_seen_once_its_way_is_free_though_nobody_reads() -> None:
    cluster = opened()
    (server,) = cluster.servers[:1]
    peer = cluster.raw_peer()
    assert cluster.world.run_while(lambda: not peer.connected, 1_000)
    way = next(way for way in server.conns.values() if way.target.name.startswith("peer"))
    inward = way.other
    inward.take(False)  # the server reads nothing more
    inward.stalled = True
    peer.close()
    cluster.world.run(cluster.world.now + 100)
    assert way in server.conns.values()
    inward.stalled = False
    inward.unblock()
    cluster.world.run(cluster.world.now + 100)
    assert way not in server.conns.values()


@pytest.mark.parametrize(("back_after_s", "heard_after_s"), [(30, 60), (65, 70), (1_000, 90)])
def test_who_only_listens_to_a_host_that_lost_its_power_hears_of_it_by_tcp_keep_alive(
    back_after_s: int, heard_after_s: int
) -> None:
    cluster = opened()
    (server,) = cluster.servers[:1]
    peer = cluster.raw_peer()
    assert cluster.world.run_while(lambda: not peer.connected, 1_000)
    crashed = cluster.world.now
    server.crash(silent=True)
    cluster.world.at(crashed + back_after_s * 1_000, server.start)
    assert cluster.world.run_while(lambda: not peer.closed, 200_000)
    assert (cluster.world.now - crashed) // 1_000 == heard_after_s


def test_who_cannot_write_to_a_host_that_lost_its_power_hears_of_it_once_the_host_is_back() -> None:
    """TCP probes a peer that takes nothing; whoever waits to be writable sends nothing himself."""
    cluster = opened()
    (server,) = cluster.servers[:1]
    peer = cluster.raw_peer()
    assert cluster.world.run_while(lambda: not peer.connected, 1_000)
    way = next(way for way in server.conns.values() if way.target.name.startswith("peer"))
    host = cluster.world.nodes[way.target.name]
    way.take(False)  # the peer reads nothing
    way.send(bytes(2 << 20))
    host.crash(silent=True)
    cluster.world.run(cluster.world.now + 5_000)
    assert way in server.conns.values()
    way.stalled = True
    host.start()
    cluster.world.run(cluster.world.now + 5_000)
    assert way in server.conns.values()
    cluster.world.network.heal()
    cluster.world.run(cluster.world.now + 2_000)
    assert way not in server.conns.values()
