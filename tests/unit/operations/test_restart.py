"""Order of a rolling restart, and what may follow when."""

from __future__ import annotations

import attrs
import pytest

from tests.unit.operations.views import NAMES, cluster, replica, server, storage, with_storage
from waltz_core.base.errors import ClusterError
from waltz_core.operations.restart import (
    Kind,
    Move,
    Progress,
    Step,
    marked,
    next_move,
    not_back,
    parse_steps,
    plan,
    process_of,
    steps_json,
)
from waltz_core.operations.view import ClusterView
from waltz_core.wire.client_messages import PartitionStatus, ServedState

MARKS = {0: 100, 1: 100}
ALL = plan(cluster())


def done(*names: str) -> tuple[Step, ...]:
    steps = ALL
    for name in names:
        steps = marked(steps, name, Progress.DONE)
    return steps


def test_storage_nodes_come_first_by_group_and_servers_by_what_they_own() -> None:
    view = cluster()
    busy = attrs.evolve(view, servers=(server(1, 0, 1), server(2)))

    assert [step.name for step in ALL] == [*NAMES, "v1:6000", "v2:6000"]
    assert [step.name for step in plan(busy)] == [*NAMES, "v2:6000", "v1:6000"]
    assert {step.progress for step in ALL} == {Progress.OPEN}
    assert (ALL[0].kind, ALL[0].host, ALL[-1].kind) == (Kind.STORAGE, "s0", Kind.SERVER)


def test_a_plan_may_be_of_some_nodes_and_names_those_that_are_unknown() -> None:
    assert [step.name for step in plan(cluster(), ["v2:6000", "s1"])] == ["s1:7000", "v2:6000"]
    with pytest.raises(ClusterError, match="'x:1' is no node of this cluster; its nodes are s0:7000"):
        plan(cluster(), ["x:1"])
    with pytest.raises(ClusterError, match="no nodes"):
        plan(cluster(servers=(), storages=()))
    with pytest.raises(ClusterError, match="no node of this plan"):
        marked(ALL, "x:1", Progress.DONE)


def test_in_a_whole_cluster_the_next_open_node_may_be_restarted() -> None:
    for number, expected in enumerate(step.name for step in ALL):
        move = next_move(cluster(), done(*(step.name for step in ALL[:number])), MARKS)
        assert (move.move, move.step and move.step.name) == (Move.RESTART, expected)
    assert next_move(cluster(), done(*(step.name for step in ALL)), MARKS).move is Move.FINISHED


def test_a_step_that_was_begun_is_done_again() -> None:
    move = next_move(cluster(), marked(ALL, NAMES[0], Progress.BEGUN), MARKS)

    assert (move.move, move.step and move.step.name) == (Move.RESTART, NAMES[0])


BEHIND = with_storage(replicas={0: replica(0, max_id=50), 1: replica(1)})
AWAY = with_storage(replicas=None, data_problem="refused", admin_problem="refused")
OPENING = cluster(
    servers=(server(1, 0, status=(PartitionStatus(0, 2, ServedState.RECOVERING, 5, 4, 100, "waits"),)), server(2, 1))
)


@pytest.mark.parametrize(
    ("view", "steps", "reason"),
    [
        (AWAY, done(NAMES[0]), "s0:7000 does not answer yet: refused"),
        (BEHIND, done(NAMES[0]), "partition 0 on s0:7000: 50 transactions behind"),
        (cluster(storages=tuple(map(storage, NAMES[1:]))), done(NAMES[0]), "not in ZooKeeper any more"),
        (OPENING, done(*NAMES, "v1:6000"), "v1:6000 is opening partition 0: waits"),
        (cluster(servers=(server(2, 1),)), done(*NAMES, "v1:6000"), "v1:6000 is not registered yet"),
        (
            cluster(servers=(server(1, problem="refused", partitions=None), server(2, 1))),
            done(*NAMES, "v1:6000"),
            "v1:6000 does not answer yet: refused",
        ),
    ],
)
def test_nothing_more_is_stopped_before_the_last_one_is_back_with_everything(
    view: ClusterView, steps: tuple[Step, ...], reason: str
) -> None:
    move = next_move(view, steps, MARKS)

    assert move.move is Move.WAIT
    assert any(reason in text for text in move.reasons), move.reasons
    # Also as the very last step: it is not finished before it is back.
    assert next_move(view, done(*(step.name for step in ALL)), MARKS).move is Move.WAIT


def test_a_cluster_that_could_not_do_without_the_next_one_is_waited_for() -> None:
    view = with_storage(replicas=None, data_problem="refused", admin_problem="refused")

    move = next_move(view, marked(ALL, NAMES[0], Progress.BEGUN), MARKS)
    assert (move.move, move.step and move.step.name) == (
        Move.RESTART,
        NAMES[0],
    )  # it is down
    only = plan(view, [NAMES[1]])
    move = next_move(view, only, MARKS)
    assert move.move is Move.WAIT or move.move is Move.UNKNOWN
    assert "1 of 3 replicas would be left, 2 are needed" in move.reasons[0]


@pytest.mark.parametrize("progress", Progress)
def test_a_storage_node_that_was_replaced_meanwhile_does_not_hold_the_walk_up(progress: Progress) -> None:
    """It was waited for, or not found, for ever."""
    gone = Step(Kind.STORAGE, "s9:7000", progress)

    move = next_move(cluster(), (gone, *done(*NAMES)), MARKS)
    assert (move.move, move.step and move.step.name) == (Move.RESTART, "v1:6000")
    assert next_move(cluster(), (gone,), MARKS).move is Move.FINISHED


def test_a_server_that_is_down_already_is_simply_started() -> None:
    view = cluster(servers=(server(2, 1),))

    move = next_move(view, marked(done(*NAMES), "v1:6000", Progress.BEGUN), MARKS)

    assert (move.move, move.step and move.step.name) == (Move.RESTART, "v1:6000")
    assert "down already" in move.reasons[0]


def test_whether_a_replica_is_level_is_judged_by_a_mark_of_before() -> None:
    step = ALL[0]
    assert list(not_back(cluster(), step, MARKS)) == []
    assert list(not_back(cluster(), step, {0: 100, 1: 101})) == ["partition 1 on s0:7000: 1 transactions behind"]
    assert next(not_back(cluster(), step, {})).endswith("how far it is, is not known")


def test_a_node_that_runs_on_as_the_same_process_was_not_restarted() -> None:
    first = cluster(storages=tuple(storage(name, process="1000") for name in NAMES))
    again = with_storage(process="2000")
    for name, before, after in ((NAMES[0], "1000", again), ("v1:6000", "1", cluster(servers=(server(2, 1),)))):
        steps = marked(ALL, name, Progress.BEGUN, before)
        begun = next(step for step in steps if step.name == name)
        assert process_of(first, begun) == before
        assert f"{name} is the same process as before" in next(not_back(first, begun, MARKS))
        assert not any("same process" in reason for reason in not_back(after, begun, MARKS))
        done_ = next(step for step in marked(steps, name, Progress.DONE) if step.name == name)
        assert list(not_back(first, done_, MARKS)) == []
    assert process_of(cluster(), ALL[0]) == ""  # a node of 0.13.2 does not say
    assert list(not_back(cluster(), marked(ALL, NAMES[0], Progress.BEGUN, "")[0], MARKS)) == []


def test_steps_survive_their_file_and_anything_else_is_refused() -> None:
    steps = marked(done(NAMES[1]), NAMES[0], Progress.BEGUN)
    assert parse_steps(steps_json(steps)) == steps
    wrongs: list[object] = [None, {}, [1], [{}], [{"kind": "x", "node": "a:1", "progress": "open"}]]
    for wrong in wrongs:
        with pytest.raises(ClusterError, match="no plan of restarts"):
            parse_steps(wrong)
