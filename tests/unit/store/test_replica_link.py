"""The tail of a session and the routes of its reads."""

from __future__ import annotations

from waltz_core.store.replica_link import Batch, LinkState, ReplicaLink, Tail
from waltz_core.store.routes import ReadRoutes


def test_committed_batches_beyond_the_limit_go_but_never_what_is_in_flight() -> None:
    tail = Tail(0, 10)
    for first in range(5):
        tail.add(Batch(first, 1, bytes(5)), committed=1)
    assert tail.at(1) is None
    found = tail.at(2)
    assert found is not None
    assert found.first == 2
    assert tail.end == 5


def test_a_place_inside_a_batch_has_no_batch() -> None:
    tail = Tail(0, 100)
    tail.add(Batch(0, 3, b""), committed=-1)
    assert tail.at(1) is None
    assert tail.at(0) is not None
    tail.release(3)
    assert tail.at(0) is None


def test_what_somebody_still_lacks_is_not_let_go() -> None:
    tail = Tail(0, 100)
    tail.add(Batch(0, 2, b""), committed=-1)
    tail.add(Batch(2, 1, b""), committed=1)
    tail.release(2)
    assert tail.at(0) is None
    assert tail.at(2) is not None


def test_a_link_counts_what_is_under_way() -> None:
    link = ReplicaLink("a:1")
    link.state = LinkState.RECOVERING
    link.follow(10)
    link.sent(12, 100, 3)
    link.sent(13, 50, 4)
    assert link.last_round == 4
    assert link.answered() == 3
    assert (link.acked, link.next, link.flight_bytes) == (12, 14, 50)
    assert link.answered() == 4
    assert link.last_round == 0


def test_reads_are_shared_in_proportion_to_speed() -> None:
    routes = ReadRoutes(["fast", "slow"])
    for _ in range(8):
        routes.measured("fast", 0)
        routes.measured("slow", 9000)
    chosen = [routes.choose(lambda name: True) for _ in range(300)]
    assert chosen.count("fast") > 290
    assert routes.choose(lambda name: name == "slow") == "slow"
    routes.remove("slow")
    routes.measured("slow", 1)
    assert routes.choose(lambda name: name == "slow") is None
