"""What a server waits for, in words."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from waltz_core.base.contract import Tickets
from waltz_core.base.pending import Pending
from waltz_core.server.awaited import awaited_by, awaited_of
from waltz_core.server.context import (
    Awaited,
    IdStep,
    JournalAsked,
    MetadataAsked,
    MetadataStep,
    PortsRead,
    PreferenceStep,
    ReplicaAsked,
)
from waltz_core.store import requests
from waltz_core.store.requests import CatchUpRead, Greeting, PartitionRead, RecoveryWrite, Replication, described


def test_what_is_awaited_is_counted_by_partition_and_in_words() -> None:
    pending: Pending[Awaited] = Pending(Tickets())
    for what in (
        IdStep.WRITE,
        PreferenceStep.READ,
        MetadataAsked(1, MetadataStep.ANNOUNCE),
        MetadataAsked(0, MetadataStep.LOOK),
        PortsRead(0, "a:1"),
        JournalAsked(1),
        JournalAsked(1),
        ReplicaAsked(0),
    ):
        pending.ask(what)

    assert awaited_by(pending) == {
        -1: {"ZooKeeper: the counter is raised": 1, "ZooKeeper: what was kept is read": 1},
        0: {
            "ZooKeeper: the metadata is looked at, as recovery is stuck": 1,
            "ZooKeeper: the admin port of a:1 is read": 1,
        },
        1: {"ZooKeeper: a store session is announced": 1, "the disk: the decision journal is written": 2},
    }
    pending.forget(lambda what: True)
    assert awaited_by(pending) == {}


def test_a_repair_that_a_storage_node_has_not_answered_is_awaited_by_its_partition() -> None:
    pending: Pending[Awaited] = Pending(Tickets())
    pending.ask(MetadataAsked(2, MetadataStep.LOOK))
    assert awaited_by(pending, [(2, "a:1")])[2] == {
        "ZooKeeper: the metadata is looked at, as recovery is stuck": 1,
        "storage node a:1: the repair of its copy": 1,
    }


def test_a_store_session_says_which_storage_node_owes_what() -> None:
    asked: list[requests.Awaited] = [Replication("a:1"), Replication("a:1"), Greeting("b:1")]
    assert awaited_of(Counter({"ZooKeeper: the metadata is read": 1}), asked) == (
        ("ZooKeeper: the metadata is read", 1),
        ("storage node a:1: an append is durable", 2),
        ("storage node b:1: its greeting", 1),
    )


@pytest.mark.parametrize(
    ("request_of", "node"),
    [
        (CatchUpRead("a:1", "b:1", 3), "a:1"),
        (RecoveryWrite("b:1", 5), "b:1"),
        (PartitionRead(1, 0, 10, True, ("a:1", "c:1")), "c:1"),
    ],
)
def test_a_request_is_owed_by_the_node_that_it_went_to(request_of: requests.Awaited, node: str) -> None:
    assert described(request_of).startswith(f"storage node {node}: ")


def test_every_request_has_its_words() -> None:
    assert set(requests._IN_WORDS) == set(get_args(requests.Awaited))
    assert len(set(requests._IN_WORDS.values())) == len(requests._IN_WORDS)


def test_nothing_asked_of_replicas_adds_nothing_to_what_a_partition_awaits() -> None:
    own = Counter({"the disk": 2})
    assert awaited_of(own, ()) == (("the disk", 2),)
    assert awaited_of(Counter(), ()) == ()
    assert own == {"the disk": 2}
