"""The simulated network does what TCP does."""

from __future__ import annotations

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
