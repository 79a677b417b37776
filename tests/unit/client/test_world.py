"""Clients under cuts, losses, moves and every order of messages: the invariants of the outcome rules."""

from __future__ import annotations

import pytest

from tests.model.client_world import World
from waltz_core.client.settings import ClientSettings


@pytest.mark.parametrize("block", range(6))
def test_outcomes_are_honest_under_random_faults(block: int) -> None:
    """No double commit, no lost verdict, dense feeds, and everything ends once the faults stop."""
    read = own_read = 0
    for seed in range(block * 10, block * 10 + 10):
        world = World(seed)
        world.run(600)
        read += sum(client.records_read for client in world.clients)
        own_read += sum(client.own_read for client in world.clients)
        for client in world.clients:
            for partition, feed in client.feeds.items():
                if feed.open:
                    client.stop_feed(partition)
            room = client.node._context.own.room.left
            assert room == ClientSettings().own_payloads_size_max, "payloads are kept whose feeds have ended"
    assert read, "no records were read by their ids"
    assert own_read, "no payload came from the memory of its client"


def test_closing_ends_every_append() -> None:
    """Whatever is under way when a client is closed gets an outcome at once."""
    for seed in range(20):
        world = World(1000 + seed)
        for _ in range(200):
            world.choose(load=True)
        world.close()
