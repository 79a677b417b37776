"""Plans of moves: every step leads to a view from which the same command goes on."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.unit.operations.views import NAMES, cluster, replica, storage
from waltz_core.base.errors import ClusterError
from waltz_core.base.ids import ReplicaId
from waltz_core.operations import moves
from waltz_core.operations.moves import Step
from waltz_core.operations.view import ClusterView
from waltz_core.zookeeper import store_metadata
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata, ReplicaAssignments, ReplicaState

NEW = "s9:7000"


def with_new(**change: object) -> ClusterView:
    """The healthy cluster and one more node, empty, in the group of the first."""
    view = cluster()
    maps = store_metadata.add_storage_node(view.maps, NEW, 0, 7001).after
    return attrs.evolve(view, maps=maps, storages=(*view.storages, storage(NEW, replicas={}, **change)))


def dead(view: ClusterView, name: str) -> ClusterView:
    storages = (attrs.evolve(node, replicas=None) if node.name == name else node for node in view.storages)
    return attrs.evolve(view, storages=tuple(storages))


def after(view: ClusterView, step: Step) -> ClusterView:
    """What the cluster looks like once a step is done."""
    match step:
        case moves.Take(name, partition_id):
            return holding(view, name, partition_id, True)
        case moves.Release(name, partition_id):
            return holding(view, name, partition_id, False)
        case moves.AwaitLevel() | moves.AwaitWithout():
            return served(view, step.partition_id)
        case moves.Assign(name, partition_id):
            change = store_metadata.assign_partitions(view.maps, 2, (partition_id,), name)
        case moves.Unassign(name, partition_id):
            change = store_metadata.unassign_partitions(view.maps, (partition_id,), name)
        case moves.Swap(source, target, partition_id):
            change = store_metadata.replace_replica(view.maps, 2, partition_id, source, target)
        case moves.AddNode(name, port, group):
            change = store_metadata.add_storage_node(view.maps, name, group, port)
            view = attrs.evolve(view, storages=(*view.storages, storage(name, replicas={})))
        case moves.RemoveNode(name):
            change = store_metadata.remove_storage_node(view.maps, name)
    return attrs.evolve(view, maps=change.after)


def holding(view: ClusterView, name: str, partition_id: int, held: bool) -> ClusterView:
    found = []
    for node in view.storages:
        if node.name == name:
            replicas = {number: one for number, one in (node.replicas or {}).items() if number != partition_id}
            node = attrs.evolve(node, replicas={**replicas, **({partition_id: replica(partition_id)} if held else {})})
        found.append(node)
    return attrs.evolve(view, storages=tuple(found))


def served(view: ClusterView, partition_id: int) -> ClusterView:
    """A session of exactly the replicas that are assigned."""
    replicas = [ReplicaState(ReplicaId(partition_id, name), 8, UNRESOLVED) for name in view.replicas_of(partition_id)]
    partitions = list(view.partitions)
    partitions[partition_id] = PartitionMetadata(2, 8, tuple(replicas))
    return attrs.evolve(view, partitions=tuple(partitions))


def kinds(steps: tuple[Step, ...]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_while_the_old_node_lives_the_new_one_is_level_before_it_goes() -> None:
    steps = moves.move(with_new(), [0], NAMES[0], NEW)
    assert kinds(steps) == ["Take", "Assign", "AwaitLevel", "Unassign", "AwaitWithout", "Release"]


@pytest.mark.parametrize(
    "change", [{"state": "limbo", "reason": "why"}, {"state": "stopped", "reason": "why"}, {"available": False}]
)
def test_a_replica_that_is_out_of_service_is_none_to_go_on_with(change: dict[str, Any]) -> None:
    """Its node answers, but it has no say in where the log ends: without the source no session could decide it."""
    view = with_new()
    broken = storage(NAMES[1], replicas={0: replica(0, **change), 1: replica(1)})
    view = attrs.evolve(view, storages=tuple(broken if node.name == NAMES[1] else node for node in view.storages))
    with pytest.raises(ClusterError, match=f"cannot do without {NAMES[0]} now.*not there: {NAMES[1]}"):
        moves.move(view, [0], NAMES[0], NEW)
    assert moves.move(view, [1], NAMES[0], NEW), "of another partition it has a sound one"


def test_a_second_dead_node_waits_until_the_first_replacement_takes_part() -> None:
    """Or two of the three would be gone that know where the log ends; simulator, seed 90001505."""
    view, other = dead(dead(with_new(), NAMES[0]), NAMES[1]), "s8:7000"
    maps = store_metadata.add_storage_node(view.maps, other, 1, 7001).after
    view = attrs.evolve(view, maps=maps, storages=(*view.storages, storage(other, replicas={})))
    view = after(after(view, moves.Take(NEW, 0)), moves.Swap(NAMES[0], NEW, 0))
    steps = moves.move(view, [0], NAMES[1], other)
    assert steps[:3] == (moves.Take(other, 0), moves.AwaitLevel(NEW, 0), moves.Swap(NAMES[1], other, 0))
    assert kinds(moves.move(served(view, 0), [0], NAMES[1], other)) == ["Take", "Swap", "AwaitLevel"]


def test_what_was_just_taken_away_is_forgotten_before_the_next_node_dies() -> None:
    """Of four that know where the log ends two would be left; simulator, seed 94001671."""
    view = with_new()
    for step in (moves.Take(NEW, 0), moves.Assign(NEW, 0), moves.AwaitLevel(NEW, 0), moves.Unassign(NAMES[0], 0)):
        view = after(view, step)
    other = "s8:7000"
    maps = store_metadata.add_storage_node(view.maps, other, 1, 7001).after
    view = attrs.evolve(view, maps=maps, storages=(*view.storages, storage(other, replicas={})))
    steps = moves.move(dead(view, NAMES[1]), [0], NAMES[1], other)
    assert steps[1:3] == (moves.AwaitWithout(NAMES[0], 0), moves.Swap(NAMES[1], other, 0))
    assert kinds(moves.move(served(dead(view, NAMES[1]), 0), [0], NAMES[1], other)) == ["Take", "Swap", "AwaitLevel"]


def test_a_node_stays_while_too_few_others_are_there() -> None:
    """The four of the session in between need three, of whom one is down and one is to go."""
    view = dead(with_new(), NAMES[1])
    with pytest.raises(ClusterError, match=rf"cannot do without {NAMES[0]} now.*not there: {NAMES[1]}; bring it back"):
        moves.drain(view, NAMES[0])
    with pytest.raises(ClusterError, match=f"not there: {NAMES[1]}"):
        moves.move(dead(view, NAMES[0]), [0], NAMES[0], NEW)
    assert kinds(moves.move(dead(with_new(), NAMES[0]), [0], NAMES[0], NEW)) == ["Take", "Swap", "AwaitLevel"]


def test_the_only_replica_stays_until_there_are_more() -> None:
    view = with_new()
    lone = attrs.evolve(view.maps, replicas=ReplicaAssignments(((NAMES[0], (0, 1)), (NEW, ()))))
    with pytest.raises(ClusterError, match="add a replica first"):
        moves.move(served(attrs.evolve(view, maps=lone), 0), [0], NAMES[0], NEW)


def test_a_dead_node_is_replaced_in_one_change() -> None:
    steps = moves.replace(dead(with_new(), NAMES[0]), NAMES[0], NEW, None)
    assert kinds(steps) == ["Take", "Swap", "AwaitLevel"] * 2 + ["RemoveNode"]


@pytest.mark.parametrize("gone", [False, True])
def test_whatever_was_done_the_rest_of_the_plan_is_the_plan_of_what_is_left(gone: bool) -> None:
    view = cluster()
    if gone:
        view = dead(view, NAMES[0])
    waits = moves.AwaitLevel, moves.AwaitWithout
    steps = moves.replace(view, NAMES[0], NEW, 7001)
    while steps:
        number = next(number for number, step in enumerate(steps) if not isinstance(step, waits))
        for step in steps[: number + 1]:
            view = after(view, step)
        # What is waited for may be told again; what is left behind comes last.
        left = {step for step in steps[number + 1 :] if not isinstance(step, waits)}
        steps = moves.replace(view, NAMES[0], NEW, 7001)
        assert left == {step for step in steps if not isinstance(step, waits)}
    assert view.replicas_of(0) == view.replicas_of(1) == tuple(sorted((*NAMES[1:], NEW)))
    assert NAMES[0] not in dict(view.maps.groups.groups)


def test_what_was_taken_away_is_released_once_the_session_that_is_served_does_without_it() -> None:
    view = with_new()
    for step in (moves.Take(NEW, 0), moves.Assign(NEW, 0), moves.AwaitLevel(NEW, 0), moves.Unassign(NAMES[0], 0)):
        view = after(view, step)
    steps = moves.drain(view, NAMES[0])
    assert steps[-2:] == (moves.AwaitWithout(NAMES[0], 0), moves.Release(NAMES[0], 0))
    assert not moves.is_without(view, 0, NAMES[0])
    view = served(view, 0)
    assert moves.is_without(view, 0, NAMES[0])
    unserved = tuple(attrs.evolve(server, health={0: False, 1: True}) for server in view.servers)
    assert not moves.is_without(attrs.evolve(view, servers=unserved), 0, NAMES[0])


def test_a_node_is_drained_to_the_least_loaded_of_its_group() -> None:
    steps = moves.drain(with_new(), NAMES[0])
    assert [step.storage for step in steps if isinstance(step, moves.Take)] == [NEW, NEW]
    with pytest.raises(ClusterError, match="has nowhere to go"):
        moves.drain(cluster(), NAMES[0])
    with pytest.raises(ClusterError, match="has nowhere to go"):
        moves.drain(dead(with_new(), NEW), NAMES[0])


def test_a_node_is_added_with_partitions() -> None:
    steps = moves.add(cluster(), NEW, 7001, 5, [1])
    assert kinds(steps) == ["AddNode", "Take", "Assign", "AwaitLevel"]
    view = cluster()
    for step in steps:
        view = after(view, step)
    assert moves.add(view, NEW, 7001, 5, [1]) == ()
    with pytest.raises(ClusterError, match="known with group 5"):
        moves.add(view, NEW, 7001, 6, [1])
    with pytest.raises(ClusterError, match="does not answer"):
        moves.add(dead(view, NEW), NEW, 7001, 5, [0])


def test_what_makes_no_sense_is_refused() -> None:
    view = with_new()
    for partitions, source, target, problem in (
        ([0], NAMES[0], NAMES[0], "both source and target"),
        ([0], "h:1", NEW, "h:1 is not known"),
        ([0], NAMES[0], NAMES[1], "of the same group"),
        ([2], NAMES[0], NEW, "partition 2 does not exist"),
    ):
        with pytest.raises(ClusterError, match=problem):
            moves.move(view, partitions, source, target)
    with pytest.raises(ClusterError, match="does not answer"):
        moves.move(dead(view, NEW), [0], NAMES[0], NEW)
    with pytest.raises(ClusterError, match="give its admin port"):
        moves.replace(view, NAMES[0], "h:1", None)
    with pytest.raises(ClusterError, match="is not known"):
        moves.replace(view, "h:2", "h:1", None)


def test_a_node_under_another_name_is_none_to_go_to() -> None:
    """It was told to give up what it had just taken under its other name, files and all."""
    here = frozenset(("10.0.0.1",))
    view = with_new(addresses=here)
    view = attrs.evolve(
        view, storages=tuple(attrs.evolve(n, addresses=here) if n.name == NAMES[0] else n for n in view.storages)
    )
    with pytest.raises(ClusterError, match="one storage node under two names"):
        moves.move(view, [0], NAMES[0], NEW)
    with pytest.raises(ClusterError, match="one storage node under two names"):
        moves.replace(view, NAMES[0], NEW, None)
    with pytest.raises(ClusterError, match="has nowhere to go"):
        moves.drain(view, NAMES[0])
    with pytest.raises(ClusterError, match="both source and target"):
        moves.replace(view, NAMES[0], NAMES[0], 7001)


def under_one(first: str, second: str, view: ClusterView) -> ClusterView:
    """Both names are of one node, which answers the same under both."""
    node = next(node for node in view.storages if node.name == first)
    node = attrs.evolve(node, addresses=frozenset(("10.0.0.1",)), process="7")
    names = {first, second}
    storages = (attrs.evolve(node, name=each.name) if each.name in names else each for each in view.storages)
    return attrs.evolve(view, storages=tuple(storages))


def test_a_node_gives_up_nothing_that_it_is_to_hold_under_its_other_name() -> None:
    """The name without partitions was emptied, and with it the node: its files were deleted under -x."""
    view = under_one(NAMES[0], NEW, with_new())
    assert moves.drain(view, NEW) == ()
    other = "other:7001"
    added = moves.AddNode(other, 7002, 0)
    assert moves.replace(view, NEW, other, 7002) == (added, moves.RemoveNode(NEW))

    # What both names are assigned leaves the surplus one in ZooKeeper alone.
    twice = attrs.evolve(view, maps=store_metadata.assign_partitions(view.maps, 2, (0, 1), NEW).after)
    steps = moves.replace(twice, NEW, other, 7002)
    assert kinds(steps) == ["AddNode", *["Take", "Assign", "AwaitLevel", "Unassign"] * 2, "RemoveNode"]

    # What neither is assigned is given up once no session knows the node, by whichever name.
    view = with_copies(view, "s3:7000")
    view = attrs.evolve(view, maps=store_metadata.unassign_partitions(view.maps, (0,), NAMES[0]).after)
    assert moves.drain(view, NEW) == (moves.AwaitWithout(NEW, 0), moves.Release(NEW, 0))
    assert not moves.is_without(view, 0, NEW)
    assert moves.is_without(served(view, 0), 0, NEW)
    assert moves.is_without(view, 1, NEW), "there it is assigned by its other name, and stays"


def with_copies(view: ClusterView, name: str) -> ClusterView:
    """One more node of the first group holds everything."""
    maps = store_metadata.add_storage_node(view.maps, name, 0, 7001).after
    maps = store_metadata.assign_partitions(maps, 2, (0, 1), name).after
    return attrs.evolve(view, maps=maps, storages=(*view.storages, storage(name)))


def test_no_partition_goes_to_a_node_that_has_it_under_another_name() -> None:
    """The second name of another replica was the least loaded: a real copy went, and the other one counted twice."""
    view = under_one(NAMES[1], NEW, with_new())
    with pytest.raises(ClusterError, match="has nowhere to go"):
        moves.drain(view, NAMES[0])
    same = f"{NAMES[1]} and {NEW} are one storage node under two names"
    with pytest.raises(ClusterError, match=same):
        moves.move(view, [0], NAMES[0], NEW)
    with pytest.raises(ClusterError, match=same):
        moves.replace(view, NAMES[0], NEW, None)
    with pytest.raises(ClusterError, match=same):
        moves.add(view, NEW, 7001, 0, [0])

    fewer = ReplicaAssignments(((NAMES[0], (0, 1)), (NAMES[1], (0,)), (NEW, ())))
    view = attrs.evolve(view, maps=attrs.evolve(view.maps, replicas=fewer))
    assert moves.Assign(NEW, 1) in moves.add(view, NEW, 7001, 0, [1]), "its other name is not assigned this one"


def test_every_step_is_described() -> None:
    alive = moves.replace(cluster(), NAMES[0], NEW, 7001)
    steps = (*alive, *moves.replace(dead(with_new(), NAMES[0]), NAMES[0], NEW, 1))
    assert len({moves.describe(step) for step in steps}) >= 10
