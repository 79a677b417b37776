"""The coordinator against an in-memory ZooKeeper: joining, leaving, faults, and what must never happen."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.twin_0132.cluster import Coordinator0132
from tests.unit.cluster.coordinators import KEY, PATHS, ROOT, Process, World
from waltz_core.base.contract import Tickets
from waltz_core.base.edge import (
    Level,
    Report,
    ZkChanged,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkDone,
    ZkError,
    ZkFailed,
    ZkGet,
    ZkSet,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.ids import Endpoint
from waltz_core.cluster.coordinator import LEAVE_TIMEOUT_MS, REFRESH_EVERY_MS, Coordinator
from waltz_core.cluster.notifications import (
    ClusterFailed,
    CoordinatorEffect,
    EndpointsChanged,
    Joined,
    Left,
    ManagedServer,
    NeighborsChanged,
    Owned,
    OwnershipConfirmed,
    OwnershipDoubtful,
    PreferencesRegistered,
    ReplicasChanged,
)
from waltz_core.cluster.published import REPORTED_MAX, Published
from waltz_core.cluster.questions import REQUEST_TIMEOUT_MS
from waltz_core.cluster.registration import OUR_MARK
from waltz_core.zookeeper.znodes import (
    ClusterParams,
    PartitionAssignment,
    ReplicaAssignments,
    ServerDescriptor,
    ServerPartitions,
    StoreParams,
    decode_id_counter,
    encode_cluster_params,
    encode_id_counter,
    encode_partition_assignment,
    encode_replica_assignments,
    encode_server_descriptor,
    encode_store_params,
)


def server_ids(world: World) -> list[int]:
    return sorted(found.server_id for found in world.descriptors().values())


# ---- joining ---------------------------------------------------------------------------------


def test_the_first_server_joins_and_owns_everything() -> None:
    world = World(num_partitions=3)
    server = world.server()
    assert server.all(Joined) == [Joined("test", 3, KEY, 1, None)]
    assert server.owned == ((0, 1), (1, 1), (2, 1))
    assert list(world.descriptors()) == ["s_0000000000"]
    assert server.machine.is_coordinator
    world.check_converged()


def test_what_is_told_first_is_the_cluster_then_the_replicas_then_the_ownership() -> None:
    server = World().server()
    kinds = [type(item) for item in server.told if not isinstance(item, EndpointsChanged)]
    assert kinds == [Joined, ReplicasChanged, Owned]


def test_a_second_server_takes_its_share_at_higher_generations() -> None:
    world = World(num_partitions=4)
    first, second = world.server(), world.server()
    assert len(first.owned) == len(second.owned) == 2
    assert {generation for _, generation in first.owned} == {1}
    assert {generation for _, generation in second.owned} == {2}
    assert not second.machine.is_coordinator
    world.check_converged()


def test_a_client_takes_an_id_and_writes_nothing_else() -> None:
    world = World()
    server = world.server()
    before = [node for node in world.tree.describe() if node.path != PATHS.client_ids]
    client = world.client()
    assert client.all(Joined) == [Joined("test", 4, b"", None, 1)]
    assert client.endpoints == {Endpoint("host", 6001): server.owned}
    assert [node for node in world.tree.describe() if node.path != PATHS.client_ids] == before
    assert not client.all(ReplicasChanged)
    assert not client.machine.is_coordinator


def test_an_observer_takes_no_id() -> None:
    world = World()
    before = world.tree.describe()
    observer = world.add().connect()
    world.settle()
    assert observer.all(Joined) == [Joined("test", 4, b"", None, None)]
    assert world.tree.describe() == before


def test_a_process_may_be_server_and_client() -> None:
    world = World()
    process = world.add(manages=ManagedServer(Endpoint("h", 1)), client=True).connect()
    world.settle()
    assert process.all(Joined) == [Joined("test", 4, KEY, 1, 1)]


def test_ids_are_taken_by_comparing_and_setting() -> None:
    world = World()
    first = world.add(client=True).connect()
    second = world.add(client=True).connect()
    for process in (first, second):
        process.step()
    for process in (first, second):  # both read 0
        while process.requests:
            process.serve()
        process.step()
    world.settle()
    assert sorted(process.machine.client_id or 0 for process in (first, second)) == [1, 2]


def test_an_id_whose_reply_got_lost_is_skipped() -> None:
    world = World()
    client = world.add(client=True).connect()
    client.step()
    while client.requests:
        client.serve()
    client.step()
    assert isinstance(client.requests[0], ZkSet)
    client.serve(reply=False)
    world.settle()
    assert client.machine.client_id == 2


def test_ids_wrap_as_in_the_original() -> None:
    world = World()
    world.put(PATHS.client_ids, encode_id_counter(2**31 - 1))
    assert world.client().machine.client_id == -(2**31)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda world: None, "there is no Waltz cluster at /waltz"),
        (lambda world: (world.create_cluster(4), world.put(ROOT, None)), "does not hold cluster parameters"),
        (lambda world: (world.create_cluster(4), world.put(PATHS.store, b"")), "does not hold store parameters"),
        (
            lambda world: (world.create_cluster(4), world.put(PATHS.store, encode_store_params(StoreParams(KEY, 5)))),
            "says 4 partitions, /waltz/store says 5",
        ),
        (lambda world: (world.create_cluster(4), world.put(PATHS.server_ids, b"x")), "not created completely"),
        (lambda world: (world.create_cluster(4), world.remove(PATHS.server_ids)), "/waltz/ids/server does not exist"),
        (lambda world: (world.create_cluster(4), world.put(PATHS.servers, None)), "does not hold a partition assig"),
    ],
)
def test_a_cluster_that_contradicts_itself_is_refused_with_a_reason(
    spoil: Callable[[World], object], expected: str
) -> None:
    world = World(create=False)
    spoil(world)
    server = world.server()
    assert expected in server.last(ClusterFailed).reason
    assert server.machine.deadline() is None
    assert not server.all(Owned)
    count = len(server.told)
    server.inbox.append(ZkChanged(ROOT))
    server.step()
    assert len(server.told) == count


def test_nothing_is_asked_before_there_is_a_session() -> None:
    world = World()
    server = world.add(manages=ManagedServer(Endpoint("h", 1)))
    server.step()
    assert not server.requests
    assert server.machine.deadline() is None


# ---- leaving and dying -----------------------------------------------------------------------


def test_a_server_that_leaves_gives_its_partitions_away_at_once() -> None:
    world = World()
    first, second = world.server(), world.server()
    first.call(first.machine.leave)
    world.settle()
    assert first.told[-1] == Left()
    assert first.machine.deadline() is None
    assert server_ids(world) == [2]
    assert len(second.owned) == 4


def test_leaving_without_a_connection_is_done_at_once() -> None:
    world = World()
    server = world.server()
    server.suspend()
    server.step()
    server.call(server.machine.leave)
    assert server.told[-1] == Left()
    server.call(server.machine.leave)
    assert len(server.all(Left)) == 1


def test_leaving_ends_when_the_connection_breaks_meanwhile() -> None:
    world = World()
    server = world.server()
    server.call(server.machine.leave)
    server.suspend()
    server.step()
    assert server.told[-1] == Left()


def test_leaving_ends_when_zookeeper_does_not_answer() -> None:
    world = World()
    server = world.server()
    server.call(server.machine.leave)
    assert server.machine.deadline() == world.now + LEAVE_TIMEOUT_MS
    world.now += LEAVE_TIMEOUT_MS
    server.step()
    assert server.told[-1] == Left()


def test_leaving_waits_for_a_registration_under_way() -> None:
    world = World()
    server = world.server(settle=False)
    while not any(isinstance(request, ZkCreate) for request in server.requests):
        while server.requests:
            server.serve()
        server.step()
    server.call(server.machine.leave)
    world.settle()
    assert server.told[-1] == Left()
    assert not world.descriptors()


def test_leaving_while_starting_takes_nothing_with_it() -> None:
    world = World()
    server = world.server(settle=False)
    server.step()
    server.call(server.machine.leave)
    world.settle()
    assert server.told == [Left()]


def test_a_client_leaves_without_a_word_to_zookeeper() -> None:
    world = World()
    client = world.client()
    client.call(client.machine.leave)
    assert client.told[-1] == Left()
    assert not client.requests


def test_partitions_of_a_dead_server_go_to_the_others_when_its_session_ends() -> None:
    world = World()
    first, second, client = world.server(), world.server(), world.client()
    second.die()
    world.settle()
    assert len(first.owned) == 2
    world.close(second.session)
    world.settle()
    assert len(first.owned) == 4
    assert client.endpoints == {Endpoint("host", 6001): first.owned}
    world.check_converged()


def test_the_next_smallest_id_coordinates_when_the_coordinator_dies() -> None:
    world = World()
    first, second, third = world.server(), world.server(), world.server()
    first.die()
    world.close(first.session)
    world.settle()
    assert second.machine.is_coordinator
    assert not third.machine.is_coordinator
    world.check_converged()


def test_when_the_last_server_goes_clients_drop_all_and_the_assignment_stays() -> None:
    world = World()
    server, client = world.server(), world.client()
    before, _ = world.assignment()
    server.die()
    world.close(server.session)
    world.settle()
    assert client.endpoints == {}
    assert world.assignment()[0] == before
    fresh = world.server()
    assert fresh.machine.server_id == 2
    assert fresh.owned == ((0, 2), (1, 2), (2, 2), (3, 2))
    world.check_converged()


# ---- sessions --------------------------------------------------------------------------------


def test_after_an_expiry_the_server_registers_again_with_the_same_id() -> None:
    world = World()
    first, second = world.server(), world.server(0)
    second.expire()
    world.settle()
    assert second.doubtful
    assert len(first.owned) == 4
    second.connect()
    world.settle()
    assert server_ids(world) == [1, 2]
    assert (0, 4) in second.owned  # 1 at first, 2 claimed, 3 given away, 4 back
    assert not second.doubtful
    world.check_converged()


def test_ownership_is_doubtful_from_presumed_lost_until_it_was_read_again() -> None:
    world = World()
    server = world.server()
    server.suspend()
    server.step()
    assert not server.doubtful
    server.presume_lost()
    server.step()
    assert server.all(OwnershipDoubtful) == [OwnershipDoubtful()]
    server.presume_lost()
    server.step()
    assert len(server.all(OwnershipDoubtful)) == 1
    server.connect()
    world.settle()
    assert server.told[-1] == OwnershipConfirmed()
    assert len(server.all(Owned)) == 1


def test_a_changed_session_makes_ownership_doubtful_even_if_no_expiry_was_told() -> None:
    world = World()
    server = world.server()
    server.suspend()
    server.step()
    world.close(server.session)
    server.connect()
    server.step()
    assert server.doubtful
    world.settle()
    world.check_converged()


def test_a_server_that_lost_everything_meanwhile_is_told_before_it_is_confirmed() -> None:
    world = World(num_partitions=2)
    first, second, third = world.server(), world.server(), world.server()
    assert third.owned == ()
    for process in (first, second):
        process.expire()
    world.settle()
    assert len(third.owned) == 2
    first.connect()
    world.settle()
    tail = first.told[[i for i, item in enumerate(first.told) if item == OwnershipDoubtful()][-1] :]
    assert [type(item) for item in tail if isinstance(item, (Owned, OwnershipConfirmed))][-1] is OwnershipConfirmed
    second.connect()
    world.settle()
    world.check_converged()


def test_watches_lost_with_a_connection_are_armed_again() -> None:
    world = World()
    server, client = world.server(), world.client()
    client.suspend()
    client.step()
    world.server()
    client.connect()
    world.settle()
    assert len(client.endpoints) == 2
    assert len(server.owned) == 2
    world.check_converged()


def test_a_lost_watch_is_made_good_by_the_next_look_around() -> None:
    """The one-shot watch is consumed and the news of it lost (zk-D7)."""
    world = World()
    server, client = world.server(), world.client()
    world.tree.forget_watches(client.session)
    world.server()
    assert len(client.endpoints) == 1
    world.now += 2 * REFRESH_EVERY_MS
    world.settle()
    assert len(client.endpoints) == 2
    assert server.machine.is_coordinator


def test_a_closed_session_is_final() -> None:
    world = World()
    server = world.server()
    server.inbox.append(ZkStateChanged(ZkState.CLOSED))
    server.step()
    assert server.doubtful
    assert server.machine.deadline() is None


# ---- lost requests and replies ---------------------------------------------------------------


def run_to_create(world: World) -> Process:
    server = world.server(settle=False)
    while not any(isinstance(request, ZkCreate) for request in server.requests):
        while server.requests:
            server.serve()
        server.step()
    return server


def test_a_descriptor_whose_reply_got_lost_is_found_not_made_again() -> None:
    world = World()
    server = run_to_create(world)
    server.serve(reply=False)
    server.step()  # the watch on the children has fired, the answer is missing
    world.settle()
    assert list(world.descriptors()) == ["s_0000000000"]
    assert len(server.owned) == 4
    world.check_converged()


def test_a_create_that_is_carried_out_late_leaves_one_descriptor() -> None:
    """Sent, given up, made again, and then both exist (zk-D5)."""
    world = World()
    server = run_to_create(world)
    late = server.requests.popleft()
    world.now += REQUEST_TIMEOUT_MS
    world.settle()
    assert isinstance(world.tree.apply(server.session, late), ZkDone)
    world.distribute()
    world.settle()
    assert list(world.descriptors()) == ["s_0000000000"]
    world.check_converged()


def test_a_request_that_is_never_answered_hangs_nothing() -> None:
    world = World()
    server = world.server(settle=False)
    server.step()
    server.requests.clear()
    assert server.machine.deadline() == REQUEST_TIMEOUT_MS
    world.settle()
    world.check_converged()


@pytest.mark.parametrize("error", [ZkError.UNAVAILABLE, ZkError.OUTCOME_UNKNOWN, ZkError.EXPIRED, ZkError.REFUSED])
def test_a_failed_request_is_tried_again_after_a_pause(error: ZkError) -> None:
    world = World()
    server = world.server(settle=False)
    for number in range(1, 200):
        server.step()
        if server.requests and number % 3:
            server.inbox.append(ZkFailed(server.requests.popleft().ticket, error))
        else:
            while server.requests:
                server.serve()
        due = server.machine.deadline()
        if not server.inbox and not server.requests and due is not None and due < world.now + 3_000:
            world.now = due
    world.settle()
    world.check_converged()


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        (ZkGet, PATHS.root),
        (ZkGet, PATHS.store),
        (ZkSet, PATHS.server_ids),
        (ZkChildren, PATHS.servers),
        (ZkGet, PATHS.server_prefix),
        (ZkCreate, PATHS.server_prefix),
        (ZkSet, PATHS.servers),
    ],
)
def test_what_zookeeper_refuses_is_told_once_and_tried_again(kind: type[ZkGet], begins: str) -> None:
    """A process without the right to read or write a znode waited in silence."""
    world = World()
    if begins != PATHS.servers:
        world.server()  # its descriptor is read by the next one
    server = world.server(settle=False)
    left, path = 3, ""
    for _ in range(300):
        server.step()
        while server.requests:
            request = server.requests[0]
            whole = begins != PATHS.server_prefix
            if left and isinstance(request, kind) and (request.path == begins if whole else begins in request.path):
                left -= 1
                path = request.path
                server.inbox.append(ZkFailed(server.requests.popleft().ticket, ZkError.REFUSED))
            else:
                server.serve()
        due = server.machine.deadline()
        if not server.inbox and not server.requests and due is not None and due < world.now + 3_000:
            world.now = due
    world.settle()
    world.check_converged()
    assert not left
    reports = [one.text for one in server.all(Report)]
    assert len([text for text in reports if f"the znode {path}: check zookeeper.acl.auth" in text]) == 1, reports


@pytest.mark.parametrize("error", [ZkError.UNAVAILABLE, ZkError.OUTCOME_UNKNOWN, ZkError.EXPIRED])
def test_that_zookeeper_is_away_is_told_by_the_process_alone(error: ZkError) -> None:
    world = World()
    server = world.server(settle=False)
    server.step()
    server.inbox.append(ZkFailed(server.requests.popleft().ticket, error))
    world.settle()
    assert server.all(Report) == []


@pytest.mark.parametrize("error", [ZkError.OUTCOME_UNKNOWN, ZkError.NO_NODE])
@pytest.mark.parametrize("which", range(6))
def test_each_request_of_a_reading_may_fail(which: int, error: ZkError) -> None:
    """All is read again, unless the root is gone: that ends it."""
    world = World()
    server = world.server()
    server.inbox.append(ZkChanged(PATHS.servers))
    server.step()
    while which:
        server.serve()
        server.step()
        which -= 1
    failed = server.requests.popleft()
    server.inbox.append(ZkFailed(failed.ticket, error))
    world.settle()
    if error is ZkError.NO_NODE and failed.__getattribute__("path") == ROOT:
        assert server.machine.deadline() is None
    else:
        world.check_converged()


def test_late_and_foreign_answers_are_ignored() -> None:
    world = World()
    server = world.server()
    told = list(server.told)
    server.inbox = [ZkDone(99_999), ZkFailed(99_998, ZkError.NO_NODE), ZkChanged("/elsewhere")]
    server.step()
    assert server.told == told
    assert not server.requests


# ---- membership changes in the middle of a reading -------------------------------------------


def test_a_joiner_between_the_two_reads_is_not_overlooked() -> None:
    """Children are read, somebody joins, then the data is read: not one view (zk-D8)."""
    world = World()
    server = world.server()
    server.inbox.append(ZkChanged(PATHS.servers))
    server.step()
    while not isinstance(server.requests[0], ZkGet) or server.requests[0].path != PATHS.servers:
        server.serve()
    stranger = world.tree.open_session()
    data = encode_server_descriptor(ServerDescriptor(9, Endpoint("x", 1), (), OUR_MARK))
    world.tree.apply(stranger, ZkCreate(0, PATHS.server_prefix, data, ephemeral=True, sequential=True))
    world.distribute()
    world.settle()
    assignment, cversion = world.assignment()
    assert assignment.cversion == cversion
    assert {found.server_id for found in assignment.servers} == {1, 9}


def test_a_child_that_goes_while_it_is_read_starts_the_reading_again() -> None:
    world = World()
    first, second = world.server(), world.server()
    first.inbox.append(ZkChanged(PATHS.servers))
    first.step()
    while not isinstance(first.requests[0], ZkGet) or first.requests[0].path != PATHS.servers:
        first.serve()
    first.serve()
    first.step()
    second.die()
    world.close(second.session)
    world.settle()
    assert len(first.owned) == 4
    world.check_converged()


def test_two_coordinators_at_once_are_settled_by_the_version() -> None:
    """Both have the same view and write; one write is refused, and the assignment is written once."""
    world = World()
    first, second, third = world.server(), world.server(), world.server()
    first.die()
    world.close(first.session)
    twin = world.add(manages=ManagedServer(Endpoint("host", 6002)))
    twin.machine._ids.server_id = 2  # believes to be the coordinator too
    version = {node.path: node.version for node in world.tree.describe()}[PATHS.servers]
    world.settle()
    after = {node.path: node.version for node in world.tree.describe()}[PATHS.servers]
    assert after == version + 1
    assert len(second.owned) + len(third.owned) == 4


def test_a_lost_compare_and_set_is_computed_again_from_fresh_state() -> None:
    world = World()
    server = world.server()
    second = world.server(settle=False)
    while not any(isinstance(request, ZkSet) and request.path == PATHS.servers for request in server.requests):
        for process in (server, second):
            if process.inbox:
                process.step()
            while process.requests and not (
                isinstance(process.requests[0], ZkSet) and process.requests[0].path == PATHS.servers
            ):
                process.serve()
    assignment, _ = world.assignment()
    world.put(PATHS.servers, encode_partition_assignment(assignment))  # somebody else writes first
    world.settle()
    world.check_converged()


# ---- preferences -----------------------------------------------------------------------------


def set_preferred(server: Process, *partitions: int) -> None:
    server.call(lambda now, out: server.machine.set_preferred(now, partitions, out))


def test_new_preferences_move_partitions_although_nobody_came_or_went() -> None:
    world = World()
    first, second = world.server(), world.server()
    wanted = first.owned[0][0]
    _, cversion = world.assignment()
    set_preferred(second, wanted)
    world.settle()
    assert wanted in dict(second.owned)
    assert world.assignment()[1] == cversion
    world.check_converged()


def test_preferences_that_change_nothing_write_the_descriptor_only() -> None:
    world = World()
    server = world.server()
    version = {node.path: node.version for node in world.tree.describe()}[PATHS.servers]
    set_preferred(server, 1, 2)
    world.settle()
    assert {node.path: node.version for node in world.tree.describe()}[PATHS.servers] == version
    assert next(iter(world.descriptors().values())).preferred_partitions == (1, 2)


def test_preferences_are_registered_when_the_assignment_heeds_them_and_not_before() -> None:
    world = World()
    first, second = world.server(), world.server()
    wanted = first.owned[0][0]
    set_preferred(second, wanted)
    server_id = second.machine.server_id
    assert server_id is not None
    while not second.all(PreferencesRegistered):
        if second.inbox:
            second.step()
        elif second.requests:
            second.serve()
        else:
            pytest.fail("neither asks nor is answered")
    assert wanted in dict(world.assignment()[0].of_server(server_id))


def test_two_servers_that_change_their_preferences_at_once_both_get_their_way() -> None:
    """0.13.2 repeats the same failing write forever (zk-D2)."""
    world = World()
    first, second = world.server(), world.server()
    theirs = second.owned[0][0], first.owned[0][0]
    set_preferred(first, theirs[0])
    set_preferred(second, theirs[1])
    world.settle()
    assert theirs[0] in dict(first.owned)
    assert theirs[1] in dict(second.owned)
    world.check_converged()


def test_preferences_survive_an_expired_session() -> None:
    world = World()
    world.server()
    second = world.server()
    set_preferred(second, 0, 1, 2)
    world.settle()
    second.expire()
    world.settle()
    second.connect()
    world.settle()
    assert {0, 1, 2} <= set(dict(second.owned))


def test_claims_that_freeze_the_original_do_not_freeze_us() -> None:
    """Two servers, three partitions, one claim (zk-D1)."""
    world = World(num_partitions=3)
    world.server()
    second = world.server()
    assert second.machine.preference_problem((2,)) is None
    set_preferred(second, 2)
    world.settle()
    world.check_converged()


def legacy_descriptor(world: World, server_id: int, *preferred: int) -> int:
    """A server of 0.13.2, present but doing nothing; returns its session."""
    session = world.tree.open_session()
    data = encode_server_descriptor(ServerDescriptor(server_id, Endpoint("java", server_id), preferred))
    world.tree.apply(session, ZkCreate(0, PATHS.server_prefix, data, ephemeral=True, sequential=True))
    world.distribute()
    world.settle()
    return session


def test_beside_a_server_of_the_original_such_claims_are_refused() -> None:
    world = World(num_partitions=3)
    server = world.server()
    assert server.machine.preference_problem((2,)) is None
    legacy_descriptor(world, 5)
    problem = server.machine.preference_problem((2,))
    assert problem is not None
    assert "0.13.2" in problem
    assert server.machine.preference_problem((1, 2)) is None
    assert server.machine.preference_problem(()) is None


def test_preferences_before_joining_are_refused() -> None:
    machine = Coordinator(ROOT, tickets=Tickets(), rng=random.Random(1), manages=ManagedServer(Endpoint("h", 1)))
    assert machine.preference_problem((1,)) == "this server has not joined the cluster yet"


def test_a_server_waits_to_join_while_a_coordinator_of_the_original_would_freeze() -> None:
    world = World(num_partitions=3)
    world.put(PATHS.server_ids, encode_id_counter(5))
    session = legacy_descriptor(world, 1, 2)
    server = world.server()
    assert server_ids(world) == [1]
    (report,) = [item for item in server.all(Report) if "waits to join" in item.text]
    assert report.level is Level.WARNING
    world.close(session)
    world.settle()
    assert server_ids(world) == [6]
    world.check_converged()


def test_a_server_joins_beside_a_coordinator_of_the_original_that_can_cope() -> None:
    world = World(num_partitions=4)
    world.put(PATHS.server_ids, encode_id_counter(5))
    legacy_descriptor(world, 1, 2)
    world.server()
    assert server_ids(world) == [1, 6]


# ---- what the original does ------------------------------------------------------------------


def test_a_server_that_behaves_as_the_original_carries_no_mark_and_gets_stuck_on_claims() -> None:
    world = World(num_partitions=3)
    first = world.server(kind=Coordinator0132)
    world.server(2, kind=Coordinator0132)
    assert [found.extension for found in world.descriptors().values()] == [b"", b""]
    assert "incomplete partition assignment" in first.last(Report).text
    assignment, cversion = world.assignment()
    assert assignment.cversion == cversion - 1


def test_a_child_that_cannot_be_read_is_skipped_and_told_once() -> None:
    """In 0.13.2 it stops every running server and client (zk-D4)."""
    world = World()
    server, client = world.server(), world.client()
    world.put(f"{PATHS.servers}/stray", b"")
    world.settle()
    second = world.server()
    assert len(second.owned) == 2
    assert len(client.endpoints) == 2
    (report,) = [item for item in server.all(Report) if "stray" in item.text]
    assert report.level is Level.ERROR


def test_the_original_stops_at_a_child_that_cannot_be_read() -> None:
    world = World()
    server = world.server(kind=Coordinator0132)
    world.put(f"{PATHS.servers}/stray", None)
    world.settle()
    world.server()
    assert len(server.owned) == 4
    assert world.assignment()[0].cversion == 1


# ---- other contents --------------------------------------------------------------------------


def test_changes_of_the_replica_assignment_are_told_to_servers() -> None:
    world = World()
    server = world.server()
    wanted = ReplicaAssignments((("s1:6000", (0, 1)),))
    world.put(PATHS.assignment, encode_replica_assignments(wanted))
    world.settle()
    assert server.all(ReplicasChanged) == [ReplicasChanged(ReplicaAssignments(())), ReplicasChanged(wanted)]
    world.put(PATHS.assignment, b"garbage")
    world.settle()
    assert server.last(Report).level is Level.ERROR
    assert len(server.all(ReplicasChanged)) == 2


def test_a_spoiled_assignment_leaves_everybody_on_the_last_one() -> None:
    world = World()
    server, client = world.server(), world.client()
    world.put(PATHS.servers, b"\x04")
    world.settle()
    assert len(server.owned) == 4
    assert len(client.endpoints) == 1
    assert "staying on the last one" in server.last(Report).text


def test_fewer_partitions_than_assigned_are_told_and_change_nothing() -> None:
    world = World(num_partitions=2)
    old = PartitionAssignment(0, 3, (ServerPartitions(9, ((0, 1), (1, 1), (2, 1))),))
    world.put(PATHS.servers, encode_partition_assignment(old))
    server = world.server()
    assert "decreasing the number of partitions" in server.last(Report).text
    assert world.assignment()[0] == old


def test_a_cluster_that_is_deleted_or_made_anew_stops_its_processes() -> None:
    world = World()
    server, client = world.server(), world.client()
    world.put(PATHS.store, encode_store_params(StoreParams(bytes(16), 4)))
    world.put(ROOT, encode_cluster_params(ClusterParams("other", 4)))
    world.now += 2 * REFRESH_EVERY_MS
    world.settle()
    for process in (server, client):
        assert "another one than at our start" in process.last(ClusterFailed).reason
    world = World()
    client = world.client()
    for path in (PATHS.servers, PATHS.client_ids, PATHS.server_ids, PATHS.ids, PATHS.assignment, PATHS.store, ROOT):
        world.remove(path)
    world.settle()
    assert "does not exist" in client.last(ClusterFailed).reason


@pytest.mark.parametrize(
    "spoil",
    [
        lambda world: world.put(ROOT, b"?"),
        lambda world: world.put(ROOT, None),
        lambda world: world.put(PATHS.store, b"?"),
        lambda world: world.put(PATHS.servers, None),
        lambda world: world.put(PATHS.assignment, None),
        lambda world: world.remove(PATHS.assignment),
    ],
)
def test_a_znode_that_is_spoilt_or_gone_stops_nobody_who_runs(spoil: Callable[[World], object]) -> None:
    world = World()
    server, client = world.server(), world.client()
    held = {}
    for path in (ROOT, PATHS.store, PATHS.servers, PATHS.assignment):
        answer = world.tree.apply(world.admin, ZkGet(0, path))
        assert isinstance(answer, ZkDone)
        held[path] = answer.data
    spoil(world)
    world.settle(until=world.now + 4 * REFRESH_EVERY_MS)
    assert len(server.owned) == 4
    assert len(client.endpoints) == 1
    (said,) = [report.text for report in server.all(Report) if report.level is Level.ERROR]  # told once
    assert "staying on" in said

    for path, data in held.items():
        world.put(path, data)
    second = world.server()
    world.now += 2 * REFRESH_EVERY_MS
    world.settle()
    world.check_converged()
    assert second.owned


def test_a_server_that_starts_again_takes_over_before_the_session_of_its_predecessor_ends() -> None:
    world = World()
    first, other = world.server(), world.server()
    first.die()
    again = world.add(manages=ManagedServer(Endpoint("host", 6001))).connect()
    world.settle()
    assert world.tree.has_session(first.session)
    assert [len(other.owned), len(again.owned)] == [2, 2]
    world.check_converged()


def test_a_server_that_starts_again_takes_over_although_the_reply_to_its_registration_got_lost() -> None:
    world = World()
    first = world.server()
    first.die()
    again = world.add(manages=ManagedServer(Endpoint("host", 6001))).connect()

    def registers() -> bool:
        while again.requests and not isinstance(again.requests[0], ZkDelete):
            again.serve()
        again.step()
        return bool(again.requests) and isinstance(again.requests[0], ZkDelete)

    while not registers():
        pass
    again.serve(reply=False)
    again.suspend()
    again.connect()
    world.settle()
    assert len(again.owned) == 4
    world.check_converged()


def test_two_servers_at_one_address_share_an_entry_and_do_not_drive_each_other_out() -> None:
    """Somebody gave two servers one address (zk-D9): each deletes what it finds when it starts, and nothing later."""
    world = World()
    first = world.server()
    second = world.add(manages=ManagedServer(Endpoint("host", 6001))).connect()
    world.settle()
    client = world.client()
    for _ in range(2):
        partitions = tuple(sorted((*first.owned, *second.owned)))
        assert first.owned
        assert second.owned
        assert len(partitions) == 4
        assert client.endpoints == {Endpoint("host", 6001): partitions}
        first.expire()
        first.connect()
        world.settle()


def neighbors(process: Process) -> dict[str, Endpoint]:
    return dict(process.last(NeighborsChanged).servers)


def test_a_server_that_is_known_to_have_ended_loses_its_partitions_while_its_session_lives_on() -> None:
    world = World()
    first, other = world.server(), world.server()
    (name,) = neighbors(other)
    assert neighbors(other) == {name: Endpoint("host", 6001)}
    first.die()
    other.call(lambda now, out: other.machine.gone(now, name, out))
    world.settle()
    assert world.tree.has_session(first.session)
    assert len(other.owned) == 4
    assert neighbors(other) == {}
    world.check_converged()


def test_it_does_so_although_the_reply_to_the_deletion_got_lost() -> None:
    world = World()
    first, other = world.server(), world.server()
    first.die()
    (name,) = neighbors(other)
    other.call(lambda now, out: other.machine.gone(now, name, out))
    while not isinstance(other.requests[0], ZkDelete):
        other.serve()
        if not other.requests:
            other.step()
    other.serve(apply=False)
    other.suspend()
    other.connect()
    world.settle()
    assert len(other.owned) == 4
    world.check_converged()


def test_a_server_that_is_wrongly_said_to_have_ended_is_back_at_once() -> None:
    """No safety rests on it, and no server stays out."""
    world = World()
    first, other, third = world.server(), world.server(), world.server()
    (name,) = (name for name, endpoint in neighbors(other).items() if endpoint == Endpoint("host", 6001))
    for process in (other, third):
        process.call(lambda now, out, process=process: process.machine.gone(now, name, out))  # type: ignore[misc]
    world.settle()
    assert name not in world.descriptors()
    assert first.owned
    assert Endpoint("host", 6001) in neighbors(other).values()
    world.check_converged()


def test_servers_of_0132_are_not_watched_and_watch_nobody() -> None:
    world = World()
    original, ours = world.server(kind=Coordinator0132), world.server()
    assert ours.all(NeighborsChanged) == []
    assert original.all(NeighborsChanged) == []
    world.server()
    assert neighbors(ours) == {"s_0000000002": Endpoint("host", 6003)}
    assert original.all(NeighborsChanged) == []


def test_a_new_client_gets_the_last_known_places_while_the_assignment_lags_behind() -> None:
    world = World()
    server = world.server()
    session = world.tree.open_session()
    server.die()  # the coordinator is silent, its session lives
    data = encode_server_descriptor(ServerDescriptor(9, Endpoint("x", 1), (), OUR_MARK))
    world.tree.apply(session, ZkCreate(0, PATHS.server_prefix, data, ephemeral=True, sequential=True))
    client = world.client()
    assert client.endpoints == {Endpoint("host", 6001): server.owned, Endpoint("x", 1): ()}


def test_only_so_many_reports_are_remembered() -> None:
    published = Published(PATHS)
    out: list[CoordinatorEffect] = []
    for number in range(2 * REPORTED_MAX):
        published.report_once(Level.INFO, str(number), out)
    published.report_once(Level.INFO, str(2 * REPORTED_MAX - 1), out)
    assert len(out) == 2 * REPORTED_MAX


# ---- everything at once ----------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_happens_the_cluster_converges_when_it_is_left_alone(data: st.DataObject) -> None:
    """Lost requests, lost replies, suspensions, expiries, deaths, joiners and claims in any order."""
    world = World(num_partitions=data.draw(st.integers(1, 7)))
    draw = data.draw
    generations: dict[int, int] = {}
    for _ in range(2):
        world.server(settle=False)
    world.add(client=True).connect()
    for _ in range(draw(st.integers(5, 60))):
        living = list(world.processes)
        process = living[draw(st.integers(0, len(living) - 1))]
        match draw(st.sampled_from(["step", "step", "serve", "serve", "serve", "drop", "mute", "fault", "time"])):
            case "step":
                process.step()
            case "serve":
                while process.requests:
                    process.serve()
            case "drop" if process.requests:
                process.serve(apply=False)
            case "mute" if process.requests:
                process.serve(reply=False)
            case "time":
                world.now += draw(st.integers(0, 20_000))
            case "fault":
                _fault(world, process, draw(st.integers(0, 7)), draw(st.integers(0, 6)))
            case _:
                pass
        _check_generations(world, generations)
    for process in world.processes:
        if not process.connected:
            process.connect()
    world.settle()
    world.now += 2 * REFRESH_EVERY_MS
    world.settle()
    world.check_converged()
    _check_generations(world, generations)


def _fault(world: World, process: Process, kind: int, partition: int) -> None:
    is_server = process.machine._registration is not None
    match kind:
        case 0:
            process.suspend()
        case 1:
            process.expire()
        case 2 if not process.connected:
            process.connect()
        case 3 if len(world.processes) < 6:
            world.server(partition, settle=False)
        case 4 if is_server and process.machine.server_id is not None:
            set_preferred(process, partition)
        case 5 if is_server and len(world.processes) > 2:
            process.die()
            world.close(process.session)
        case 6 if not process.connected:
            process.presume_lost()
        case 7 if is_server and process.all(NeighborsChanged):  # rightly or wrongly
            for name in neighbors(process):
                process.call(lambda now, out, name=name: process.machine.gone(now, name, out))  # type: ignore[misc]
        case _:
            pass


def _check_generations(world: World, generations: dict[int, int]) -> None:
    """No generation ever falls, and each partition has one owner in what is stored."""
    assignment, cversion = world.assignment()
    assert assignment.cversion <= cversion
    stored = {partition: generation for server in assignment.servers for partition, generation in server.partitions}
    assert len(stored) == sum(len(server.partitions) for server in assignment.servers)
    for partition, generation in stored.items():
        assert generation >= generations.get(partition, 0)
    generations.update(stored)


def test_ids_are_never_taken_twice() -> None:
    world = World()
    servers = [world.server(settle=False) for _ in range(5)]
    world.settle()
    ids = [server.machine.server_id for server in servers]
    assert sorted(ids, key=lambda found: found or 0) == [1, 2, 3, 4, 5]
    counter = world.tree.apply(world.admin, ZkGet(0, PATHS.server_ids))
    assert isinstance(counter, ZkDone)
    assert decode_id_counter(counter.data or b"") == 5
