"""A cluster's znodes as JSON and back."""

from __future__ import annotations

import json
import random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.errors import ClusterError
from waltz_core.base.ids import ReplicaId
from waltz_core.cluster.assignment import Member, assign
from waltz_core.operations.backup import (
    GENERATIONS_GAP,
    IDS_GAP,
    ClusterBackup,
    Json,
    Restoration,
    backup_json,
    cluster_znodes,
    parse_backup,
    restoration,
)
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.store_metadata import StoreMaps
from waltz_core.zookeeper.znodes import (
    UNRESOLVED,
    ClusterParams,
    ConnectionMetadata,
    GroupDescriptor,
    PartitionAssignment,
    PartitionMetadata,
    ReplicaAssignments,
    ReplicaState,
    ServerPartitions,
    StoreParams,
)

NAMES = ("a:1", "b:1", "c:1")
BACKUP = ClusterBackup(
    ClusterParams("bank", 3),
    StoreParams(bytes(range(16)), 3),
    StoreMaps(
        GroupDescriptor((("a:1", 0), ("b:1", 1))),
        ReplicaAssignments((("a:1", (0, 1)), ("b:1", (2,)), ("c:1", ()))),
        ConnectionMetadata((("a:1", 2), ("c:1", 2))),
    ),
    PartitionAssignment(7, 3, (ServerPartitions(4, ((0, 5), (2, 1))),)),
    (
        PartitionMetadata(4, 11, (ReplicaState(ReplicaId(0, "a:1"), 11, UNRESOLVED),)),
        PartitionMetadata(9, 2, (ReplicaState(ReplicaId(1, "a:1"), 1, 77),)),
        None,
    ),
    12,
    4,
)


@st.composite
def backups(draw: st.DrawFn) -> ClusterBackup:
    count = draw(st.integers(0, 4))
    ids = st.integers(0, max(count - 1, 0))
    owned = draw(st.permutations(range(count)))
    generations = st.integers(-1, 2**31 - 1 - GENERATIONS_GAP)
    at = draw(st.integers(0, count))
    owners = {number: owned[part] for number, part in ((3, slice(at)), (-8, slice(at, None))) if owned[part]}
    names = sorted(draw(st.sets(st.text(min_size=1, max_size=5))))
    some = st.lists(st.sampled_from(names), unique=True).map(sorted) if names else st.just([])
    partitions = st.lists(ids, max_size=3) if count else st.just([])
    longs = st.integers(-1, 2**63 - 1)

    def metadata(number: int) -> PartitionMetadata | None:
        if draw(st.booleans()):
            return None
        marks = longs | st.just(UNRESOLVED)
        states = tuple(ReplicaState(ReplicaId(number, name), draw(longs), draw(marks)) for name in draw(some))
        return PartitionMetadata(draw(generations), draw(longs), states)

    return ClusterBackup(
        ClusterParams(draw(st.text(max_size=5)), count),
        StoreParams(draw(st.binary(min_size=16, max_size=16)), count),
        StoreMaps(
            GroupDescriptor(tuple((name, draw(st.integers(-(2**31), 2**31 - 1))) for name in draw(some))),
            ReplicaAssignments(tuple((name, tuple(draw(partitions))) for name in names)),
            ConnectionMetadata(tuple((name, draw(st.integers(1, 65535))) for name in draw(some))),
        ),
        PartitionAssignment(
            draw(st.integers(-(2**31), 2**31 - 1)),
            count,
            tuple(
                ServerPartitions(server, tuple((number, draw(generations)) for number in numbers))
                for server, numbers in owners.items()
            ),
        ),
        tuple(metadata(number) for number in range(count)),
        draw(st.none() | st.integers(-1, 2**31 - 1 - IDS_GAP)),
        draw(st.none() | st.integers(-1, 2**31 - 1 - IDS_GAP)),
    )


@given(backups())
def test_what_is_listed_is_what_is_read(backup: ClusterBackup) -> None:
    assert parse_backup(json.loads(json.dumps(backup_json(backup)))) == backup
    for znode in cluster_znodes(backup.raised(), ClusterPaths("/r")):
        if znode.check is not None and znode.data is not None:
            znode.check(znode.data)


def test_a_few_lines_by_hand_are_enough() -> None:
    key = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    node: dict[str, Json] = {"storage": "a:1", "group": 0, "admin_port": 2, "partitions": [0, 1]}
    found = parse_backup({"name": "bank", "num_partitions": 2, "key": key, "storage": [node]})
    assert found == ClusterBackup(
        ClusterParams("bank", 2),
        StoreParams(bytes(range(16)), 2),
        StoreMaps(
            GroupDescriptor((("a:1", 0),)), ReplicaAssignments((("a:1", (0, 1)),)), ConnectionMetadata((("a:1", 2),))
        ),
        PartitionAssignment(-1, 2, ()),
        (),
        -1,
        -1,
    )
    assert found.raised().assignment == znodes.EMPTY_ASSIGNMENT  # as of a new cluster


def test_nothing_is_given_out_twice() -> None:
    later = BACKUP.raised()
    assert (later.last_client_id, later.last_server_id) == (12 + IDS_GAP, 4 + IDS_GAP)
    assert attrs.evolve(later, assignment=BACKUP.assignment, last_client_id=12, last_server_id=4) == BACKUP
    wanted = assign(later.assignment, 3, [Member(4, ()), Member(5, ())], 1, random.Random(1))
    generations = dict(pair for server in wanted.servers for pair in server.partitions)
    # Partition 1 is not in the assignment: its metadata tell.
    assert generations == {0: 5 + GENERATIONS_GAP + 1, 1: 9 + GENERATIONS_GAP + 1, 2: 1 + GENERATIONS_GAP + 1}


PATHS = ClusterPaths("/r")
HELD = {znode.path: znode.data for znode in cluster_znodes(BACKUP, PATHS)}


def test_what_is_good_stays_and_what_is_not_is_written_anew() -> None:
    assert restoration(BACKUP, PATHS, HELD) == Restoration((), (), ())
    wanted = {znode.path: znode for znode in cluster_znodes(BACKUP.raised(), PATHS)}
    for path in HELD:
        found = restoration(BACKUP, PATHS, {other: data for other, data in HELD.items() if other != path})
        assert (found.created, found.written) == ((wanted[path],), ())
        assert found.lines == (f"{path} does not exist: it is created",)
        assert found.stop is (path not in (PATHS.groups, PATHS.assignment, PATHS.connections))
        if wanted[path].check is not None:
            found = restoration(BACKUP, PATHS, {**HELD, path: b"?"})
            assert (found.created, found.written) == ((), (wanted[path],))
    assert restoration(BACKUP, PATHS, {}).created == tuple(wanted.values())


def test_what_contradicts_the_backup_is_written_anew_or_is_another_cluster() -> None:
    other = attrs.evolve(BACKUP, params=ClusterParams("bank", 4))
    found = restoration(BACKUP, PATHS, {**HELD, "/r": cluster_znodes(other, PATHS)[0].data})
    assert found.lines == ("/r cannot be used (it says 4 partitions, the backup 3): it is written anew",)
    with pytest.raises(ClusterError, match="find the backup of this cluster"):
        restoration(attrs.evolve(BACKUP, store=StoreParams(bytes(16), 3)), PATHS, HELD)


def test_an_id_that_nobody_knew_is_not_made_up() -> None:
    lost = attrs.evolve(BACKUP, last_client_id=None)
    assert restoration(lost, PATHS, HELD) == Restoration((), (), ())
    with pytest.raises(ClusterError, match="the backup does not tell what /r/ids/client held"):
        restoration(lost, PATHS, {**HELD, PATHS.client_ids: b"?"})


def changed(path: str, value: object) -> Any:
    """The object of BACKUP with something else in one place; `...` takes it out."""
    whole = backup_json(BACKUP)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    inner: Any = whole
    for step in way:
        inner = inner[step]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("key", ..., "key is missing"),
        ("key", "x", "key: expected a UUID as `show-cluster-key` prints it, found 'x'"),
        ("key", 5, "key: expected a text, found 5"),
        ("num_partitions", -1, "num_partitions: expected 0..2147483647, found -1"),
        ("num_partitions", True, "num_partitions: expected a whole number, found True"),
        ("num_partitions", 2, "storage[1].partitions[0]: expected 0..1, found 2"),
        ("name", None, "name: expected a text, found None"),
        ("storage", {}, "storage: expected a list, found {}"),
        ("storage.1", 7, "storage[1]: expected an object, found 7"),
        ("storage.0.admin_port", 0, "storage[0].admin_port: expected 1..65535, found 0"),
        ("storage.0.group", "x", "storage[0].group: expected a whole number or null, found 'x'"),
        ("ids", 1, "ids: expected an object, found 1"),
        ("ids.client", 2**31, f"ids.client: expected -1..{2**31 - 1 - IDS_GAP}, found {2**31}"),
        ("assignment.partitions.0.server", ..., "assignment.partitions[0].server is missing"),
        ("assignment.partitions.1.partition", 3, "assignment.partitions[1].partition: expected 0..2, found 3"),
        ("partitions", [None] * 4, "partitions: expected at most num_partitions = 3, found 4"),
        ("partitions.1", "x", "partitions[1]: expected an object, found 'x'"),
        (
            "partitions.0.replica_states.0.closing_mark",
            -2,
            f"partitions[0].replica_states[0].closing_mark: expected -1..{2**63 - 1}, found -2",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(path: str, value: object, said: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_backup(changed(path, value))
    assert str(caught.value) == said


def test_something_else_is_refused() -> None:
    with pytest.raises(ClusterError, match="the whole: expected an object, found"):
        parse_backup(list(range(100)))
