"""May these nodes be stopped: every state of every replica against every set of nodes, and each answer left out."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import attrs
import pytest

from tests.unit.operations.views import NAMES, cluster, owned, replica, server, states, storage, with_server
from waltz_core.base.errors import ClusterError
from waltz_core.base.ids import ReplicaId
from waltz_core.operations.stopping import Verdict, committed_marks, may_stop
from waltz_core.operations.view import ClusterView
from waltz_core.wire.client_messages import PartitionStatus, ServedState
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionAssignment, ReplicaState, ServerPartitions

MARKS = {0: 100, 1: 100}
DOWN: dict[str, Any] = {"data_problem": "refused", "admin_problem": "refused", "replicas": None}


def both(**change: Any) -> dict[str, Any]:
    return {"replicas": {0: replica(0, **change), 1: replica(1, **change)}}


# What a storage node says, and whether its replicas count: yes, no, or nobody knows.
STATES: dict[str, tuple[dict[str, Any], Verdict]] = {
    "well": ({}, Verdict.YES),
    "ahead": (both(max_id=107), Verdict.YES),
    "behind": (both(max_id=99), Verdict.NO),
    "limbo": (both(state="limbo", reason="record 7"), Verdict.NO),
    "offline": (both(available=False), Verdict.NO),
    "damaged": (both(suspects=((4, 5),)), Verdict.NO),
    "empty": ({"replicas": {}}, Verdict.NO),
    "full": ({"disk_free": 1}, Verdict.NO),
    "foreign": ({"foreign_key": True}, Verdict.NO),
    "silent": (DOWN, Verdict.UNKNOWN),  # the servers say that they reach it
    "no admin": ({"admin_problem": "refused", "replicas": None}, Verdict.UNKNOWN),
    "no data": ({"data_problem": "refused"}, Verdict.UNKNOWN),
    "0.13.2": (both(max_id=None), Verdict.UNKNOWN),
}


def storages(*named: str) -> ClusterView:
    return cluster(storages=tuple(storage(name, **STATES[state][0]) for name, state in zip(NAMES, named, strict=True)))


def verdict(view: ClusterView, *nodes: str) -> Verdict:
    return may_stop(view, nodes, MARKS).verdict


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_majority_of_replicas_that_hold_everything_must_be_left(count: int) -> None:
    for named in product(STATES, repeat=3):
        view = storages(*named)
        for stopped in combinations(range(3), count):
            left = [STATES[state][1] for number, state in enumerate(named) if number not in stopped]
            sure, doubtful = left.count(Verdict.YES), left.count(Verdict.UNKNOWN)
            expected = Verdict.YES if sure >= 2 else Verdict.UNKNOWN if sure + doubtful >= 2 else Verdict.NO
            assert verdict(view, *(NAMES[number] for number in stopped)) == expected, (named, stopped)


def test_a_node_may_be_named_by_its_admin_port_or_its_host() -> None:
    view = cluster()
    for node in ("s1:7000", "s1:7001", "s1"):
        assert may_stop(view, [node], MARKS).storages == ("s1:7000",)
    assert may_stop(view, ["v1"], MARKS).servers == ("v1:6000",)
    with pytest.raises(ClusterError, match=r"'s9:7000' is no node of this cluster; its nodes are s0:7000, .*v2:6000"):
        may_stop(view, ["s1:7000", "s9:7000"], MARKS)


def test_a_node_under_two_names_stops_under_both_and_counts_once() -> None:
    """Two of three names were of one node: with it the partition stopped, and the answer had been yes."""
    here = {"addresses": frozenset(("10.0.0.1",)), "process": "7"}
    view = cluster(storages=tuple(storage(name, **({} if name == NAMES[1] else here)) for name in NAMES))
    answer = may_stop(view, [NAMES[0]], MARKS)
    assert (answer.verdict, answer.storages) == (Verdict.NO, (NAMES[0], NAMES[2]))
    answer = may_stop(view, [NAMES[1]], MARKS)
    assert (answer.verdict, answer.partitions[0].left) == (Verdict.NO, (NAMES[0],))
    assert f"{NAMES[2]}: is {NAMES[0]} under another name, which counts once" in next(answer.reasons())
    two = (attrs.evolve(node, process=node.name) for node in view.storages)
    assert verdict(attrs.evolve(view, storages=tuple(two)), NAMES[0]) == Verdict.YES, "two processes are two nodes"


def test_no_answer_that_is_missing_is_taken_for_a_good_one() -> None:
    """With one of three stopped, both others are needed: each answer of theirs that is left out takes the yes away."""
    assert verdict(cluster(), NAMES[2]) == Verdict.YES
    for gap in (
        with_server(connectivity=None),
        with_server(connectivity={NAMES[0]: True}),
        with_server(health=None, status=None),
        with_server(problem="no answer within 10 s", health=None),
        cluster(partitions=(None, states(1))),
        cluster(storages=tuple(map(storage, NAMES[1:]))),
    ):
        assert verdict(gap, NAMES[2]) == Verdict.UNKNOWN
    assert may_stop(cluster(), [NAMES[2]], {0: 100}).verdict == Verdict.UNKNOWN  # no mark of partition 1


def test_the_replicas_of_the_last_session_have_a_say_also_where_they_are_not_assigned_any_more() -> None:
    """Where the log ends is decided among them: no session could be opened without a majority of those."""
    view = storages("well", "well", "well")
    more = [ReplicaState(ReplicaId(0, f"old{number}:7000"), 4, UNRESOLVED) for number in range(2)]
    partitions = list(view.partitions)
    assert partitions[0] is not None
    partitions[0] = attrs.evolve(partitions[0], replica_states=(*partitions[0].replica_states, *more))
    view = attrs.evolve(view, partitions=tuple(partitions))

    answer = may_stop(view, NAMES[:1], MARKS)
    assert answer.verdict is Verdict.NO
    assert "2 of 3 replicas would be left, 3 are needed" in answer.partitions[0].reasons[0]
    assert answer.partitions[1].verdict is Verdict.YES
    # Nor is one that ZooKeeper assigns nothing stopped unseen while its word counts.
    view = attrs.evolve(view, storages=(*view.storages, storage("old0:7000", replicas={})))
    assert [after.partition_id for after in may_stop(view, ["old0:7000"], MARKS).partitions] == [0]


def test_what_is_not_served_now_is_left_alone() -> None:
    recovering = PartitionStatus(0, 2, ServedState.RECOVERING, 5, 4, -(2**63), "waits for s1:7000")
    for view in (
        with_server(status=(recovering,), health={0: False}),
        with_server(status=()),
        with_server(health={0: False}),
        with_server(partitions=(0, 1)),  # partition 1 is to go to the other server
        owned(ServerPartitions(1, ((0, 2),))),
        owned(ServerPartitions(1, ((0, 2),)), ServerPartitions(2, ((0, 2), (1, 2)))),
        owned(ServerPartitions(1, ((0, 2),)), ServerPartitions(3, ((1, 2),))),
        cluster(assignment_cversion=2),
        with_server(connectivity={**dict.fromkeys(NAMES, True), NAMES[0]: False}),
        cluster(partitions=(states(0, late=NAMES[0]), states(1))),
    ):
        answer = may_stop(view, [NAMES[2]], MARKS)
        assert answer.verdict == Verdict.NO
        assert list(answer.reasons())


def test_a_server_may_go_while_another_one_can_take_over() -> None:
    answer = may_stop(cluster(), ["v1:6000"], MARKS)
    assert (answer.verdict, answer.losing_owner, answer.servers_left) == (Verdict.YES, (0,), 1)
    assert "one server is left" in list(answer.quorums())[-1]

    answer = may_stop(cluster(), ["v1:6000", "v2:6000"], MARKS)
    assert (answer.verdict, answer.losing_owner) == (Verdict.NO, (0, 1))
    assert list(answer.reasons()) == ["partitions 0-1: no server is left that could take it over"]

    def other(**change: Any) -> ClusterView:
        return cluster(servers=(server(1, 0), server(2, 1, **change)))

    for gap in ({"problem": "refused"}, {"connectivity": None}, {"key": b"x" * 16}):
        assert verdict(other(**gap), "v1:6000") == Verdict.UNKNOWN
        assert verdict(other(**gap), NAMES[0]) == Verdict.UNKNOWN  # partition 1 is its own
    cut_off = {NAMES[0]: True, NAMES[1]: False, NAMES[2]: False}
    assert verdict(other(connectivity=cut_off), "v1:6000") == Verdict.NO
    assert verdict(other(connectivity={**cut_off, NAMES[1]: True}), "v1:6000") == Verdict.YES
    assert verdict(other(connectivity={**cut_off, NAMES[1]: True}), "v1:6000", NAMES[0]) == Verdict.NO


def test_partitions_that_it_does_not_concern_do_not_matter() -> None:
    view = owned(ServerPartitions(1, ((0, 2),)))  # partition 1 is without owner
    assert verdict(attrs.evolve(view, servers=(server(1, 0), server(2))), "v1:6000") == Verdict.YES


def test_the_next_failure_is_told() -> None:
    answer = may_stop(cluster(), [NAMES[0]], MARKS)
    assert [after.left for after in answer.partitions] == [NAMES[1:], NAMES[1:]]
    (text,) = answer.quorums()
    assert text.startswith("partitions 0-1: 2 of 3 replicas left, 2 needed: one more failure stops commits")
    answer = may_stop(storages("well", "behind", "well"), [NAMES[0]], MARKS)
    (text,) = answer.reasons()
    assert "1 of 3 replicas would be left, 2 are needed (s0:7000: stopped; s1:7000: 1 transactions behind)" in text


def test_marks_are_what_servers_tell_or_the_end_of_the_longest_replica() -> None:
    assert committed_marks(cluster()) == MARKS
    old = [server(number, number - 1, status=None) for number in (1, 2)]
    longest = (storage(NAMES[0], **both(max_id=140)), *map(storage, NAMES[1:]))
    assert committed_marks(cluster(servers=tuple(old), storages=longest)) == {0: 140, 1: 140}
    assert committed_marks(cluster(servers=tuple(old), storages=(storage(NAMES[0], **DOWN), *longest[1:]))) == {}
    assert committed_marks(cluster(assignment=PartitionAssignment(1, 2, ()), servers=())) == MARKS
