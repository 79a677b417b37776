"""What the doctor and `cluster verify` make of a view: each case is one change of a healthy cluster."""

from __future__ import annotations

import re

import attrs
import pytest

from tests.unit.operations.views import (
    DAY,
    NAMES,
    assigned,
    cluster,
    owned,
    replica,
    server,
    states,
    storage,
    with_replica,
    with_server,
    with_storage,
)
from waltz_core.base.errors import ClusterError
from waltz_core.base.ids import Endpoint
from waltz_core.operations.diagnosis import LAST_RESORT_AFTER_MS, SETTLE_MS, diagnose, notices
from waltz_core.operations.findings import Finding, ranges_text
from waltz_core.operations.replicas import LAG_MAX
from waltz_core.operations.verify import verify
from waltz_core.operations.view import CertificateView, ClusterView
from waltz_core.wire.client_messages import PartitionStatus, ServedState
from waltz_core.wire.shared import LOST_DATA, Trouble
from waltz_core.zookeeper import store_metadata
from waltz_core.zookeeper.znodes import (
    ConnectionMetadata,
    GroupDescriptor,
    PartitionAssignment,
    PartitionMetadata,
    ReplicaAssignments,
    ServerDescriptor,
    ServerPartitions,
)
from waltz_trio.cli.main import parser_of_noun
from waltz_trio.cli.options import parse_partitions


def causes(view: ClusterView) -> list[str]:
    return [finding.cause for root in diagnose(view) for finding in root.rows()]


def stuck(since_ms: int = 9000) -> PartitionStatus:
    return PartitionStatus(0, 2, ServedState.STUCK, since_ms, 4, -(2**63), "waits for s0:7000 (not connected)")


def quorum_lost(since_ms: int = 9000) -> ClusterView:
    """Two of three storage nodes are down; the server waits in the recovery of its partition."""
    down = (storage(name, data_problem="refused", admin_problem="refused", replicas=None) for name in NAMES[:2])
    waiting = server(
        1,
        0,
        status=(stuck(since_ms),),
        health={0: False},
        connectivity={NAMES[0]: False, NAMES[1]: False, NAMES[2]: True},
    )
    return cluster(storages=(*down, storage(NAMES[2])), servers=(waiting, server(2, 1, status=None, health={1: False})))


CASES: dict[str, tuple[ClusterView, list[str]]] = {
    "storage-down": (
        with_storage(data_problem="refused", admin_problem="refused", replicas=None),
        ["storage-down", "no-spare-replica"],
    ),
    "not trusted": (
        with_storage(data_problem="its certificate", admin_problem="its certificate", untrusted=True, replicas=None),
        ["untrusted-storage-node", "no-spare-replica"],
    ),
    "port": (with_storage(data_problem="refused"), ["port-unreachable"]),
    "admin port": (with_storage(admin_problem="refused", replicas=None), ["port-unreachable"]),
    "admin port of one that is not level": (
        attrs.evolve(
            with_storage(admin_problem="refused", replicas=None), partitions=(states(0, late=NAMES[0]), states(1))
        ),
        ["port-unreachable", "no-spare-replica"],
    ),
    "data port of one that does not say what it holds": (
        with_storage(data_problem="refused", replicas=None),
        ["port-unreachable", "no-spare-replica"],
    ),
    "half added": (
        with_storage(admin="", admin_problem="unknown", replicas=None),
        ["half-added-storage-node"],
    ),
    "wrong key": (
        with_storage(foreign_key=True, admin_problem="key", replicas=None),
        ["wrong-key", "no-spare-replica"],
    ),
    "quorum lost": (quorum_lost(), ["storage-down", "no-quorum", "recovery-stuck", "unhealthy", "storage-down"]),
    "all keys wrong": (
        cluster(storages=tuple(storage(name, foreign_key=True, replicas=None) for name in NAMES)),
        ["two-clusters", "no-quorum", "two-clusters", "two-clusters"],
    ),
    "server down": (with_server(problem="refused", partitions=None, health=None, status=None), ["server-down"]),
    "server silent": (with_server(problem="no answer within 10 s", health=None, connectivity=None), ["server-silent"]),
    "server of another cluster": (with_server(key=b"x" * 16), ["two-clusters"]),
    "two servers at one place": (
        cluster(
            servers=(server(1, 0), attrs.evolve(server(2, 1), descriptor=ServerDescriptor(2, Endpoint("v1", 6000))))
        ),
        ["two-clusters"],
    ),
    "undecodable": (cluster(undecodable=("x",)), ["undecodable-server"]),
    "no server": (
        cluster(servers=(), assignment=PartitionAssignment(1, 2, ())),
        ["no-server"],
    ),
    "owner gone": (cluster(servers=(server(1, 0),)), ["owner-gone"]),
    "no owner": (owned(ServerPartitions(1, ((0, 2),))), ["no-owner", "mismatched-assignment"]),
    "two owners": (
        owned(ServerPartitions(1, ((0, 2),)), ServerPartitions(2, ((0, 2), (1, 2)))),
        ["two-owners"],
    ),
    "server that is not the owner": (cluster(servers=(server(1, 0), server(2, 0, 1))), ["mismatched-assignment"]),
    "all owners gone": (cluster(servers=()), ["no-server", "owner-gone", "owner-gone"]),
    "certificate": (cluster(certificates=(CertificateView("p", "CN=p", 99 * DAY),)), ["certificate-expired"]),
    "certificate soon": (cluster(certificates=(CertificateView("p", "CN=p", 103 * DAY),)), ["certificate-ends-soon"]),
    "clock of a node": (with_storage(clock_ms=-60_000), ["clock-off"]),
    "clock of a server": (with_server(clock_ms=3_600_000), ["clock-off"]),
    "disk": (with_storage(disk_free=1 << 20), ["disk-full"]),
    "disk at its reserve": (with_storage(disk_free=1 << 30), ["disk-full"]),
    "limbo": (with_replica(state="limbo", reason="record 7 is damaged"), ["limbo", "no-spare-replica"]),
    "disk error": (with_replica(state="stopped", reason="input/output error"), ["disk-error", "no-spare-replica"]),
    "limbo without files": (
        with_replica(state="limbo", available=False, max_id=-1, reason="its data files are gone: expected 0.seg"),
        ["limbo", "no-spare-replica"],
    ),
    "damaged": (with_replica(suspects=((4, 6),)), ["damaged-records"]),
    "damaged everywhere": (
        cluster(
            storages=tuple(storage(name, replicas={0: replica(0, suspects=((4, 6),)), 1: replica(1)}) for name in NAMES)
        ),
        ["damaged-records"] * 3,
    ),
    "offline": (with_replica(available=False), ["offline", "no-spare-replica"]),
    "replica not told": (
        with_storage(replicas={1: replica(1)}),
        ["mismatched-assignment", "no-spare-replica"],
    ),
    "replica not known": (
        assigned((NAMES[0], (1,)), (NAMES[1], (0, 1)), (NAMES[2], (0, 1))),
        ["mismatched-assignment"],
    ),
    "no replica": (
        assigned(*((name, (1,)) for name in NAMES)),
        ["no-replica"] + ["mismatched-assignment"] * 3,
    ),
    "metadata gone": (cluster(partitions=(None, states(1))), ["missing-metadata"]),
    "metadata set back": (with_replica(session_id=9), ["metadata-set-back"]),
    "metadata unreadable": (
        attrs.evolve(cluster(partitions=(None, states(1))), unreadable={"/root/store/partition/0": "too short"}),
        ["unreadable-metadata"],
    ),
    "assignment unreadable": (cluster(unreadable={"/root/serverDescriptors": "too short"}), ["damaged-cluster"]),
    "metadata emptied": (cluster(partitions=(states(0, session_id=-1), states(1))), ["missing-metadata"]),
    "stuck": (with_server(status=(stuck(),), health={0: False}), ["recovery-stuck"]),
    "unhealthy": (with_server(status=None, health={0: False}), ["unhealthy"]),
    "network": (with_server(connectivity={**dict.fromkeys(NAMES, True), NAMES[2]: False}), ["partitioned-network"]),
    "left behind": (
        attrs.evolve(with_replica(max_id=60), partitions=(states(0, late=NAMES[0]), states(1))),
        ["lagging-replica"],
    ),
    "far behind": (
        cluster(
            storages=(
                storage(NAMES[0]),
                *(storage(name, replicas={0: replica(0, max_id=101 + LAG_MAX), 1: replica(1)}) for name in NAMES[1:]),
            )
        ),
        ["lagging-replica"],
    ),
    "no quorum": (
        cluster(storages=(*(storage(name, replicas={}) for name in NAMES[:2]), storage(NAMES[2]))),
        ["mismatched-assignment", "no-quorum"] + ["mismatched-assignment"] * 3,
    ),
}


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert diagnose(cluster()) == ()
    assert verify(cluster(), 0) == verify(cluster(), 1) == ()


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named_and_nothing_else(name: str) -> None:
    view, expected = CASES[name]
    assert causes(view) == expected


def test_every_finding_names_where_and_what_to_do() -> None:
    for view, _ in CASES.values():
        for root in diagnose(view):
            for finding in root.rows():
                assert isinstance(finding, Finding)
                assert finding.evidence
                assert finding.command


def test_a_lost_quorum_is_its_down_nodes_with_the_consequences_below_them() -> None:
    roots = diagnose(quorum_lost())
    assert [root.cause for root in roots] == ["storage-down", "storage-down"]
    assert [finding.cause for finding in roots[0].follows] == ["no-quorum", "recovery-stuck", "unhealthy"]
    assert "partitions 0-1 have 1 of 3 replicas, needed are 2: missing are s0:7000, s1:7000" in (
        roots[0].follows[0].evidence
    )


def test_a_partition_without_a_replica_is_given_back_to_those_that_hold_it_and_taken_from_none() -> None:
    (root,) = diagnose(CASES["no replica"][0])
    assert all(f"assign-partition -c CONFIG -p 0 -s {name}" in root.command for name in NAMES)
    assert not any("remove-partition" in finding.command for finding in root.rows())


def test_one_node_down_is_said_to_leave_no_spare() -> None:
    (root,) = diagnose(CASES["storage-down"][0])
    assert "partitions 0-1 have 2 of 3 replicas: the next loss stops commits" in root.follows[0].evidence


def test_giving_data_up_is_advised_only_after_minutes_and_with_what_is_lost() -> None:
    def advice(since_ms: int) -> str:
        rows = (finding for root in diagnose(quorum_lost(since_ms)) for finding in root.rows())
        (command,) = (finding.command for finding in rows if finding.cause == "recovery-stuck")
        return command

    assert "unsafe-recover" not in advice(LAST_RESORT_AFTER_MS - 1)
    assert "bring back" in advice(LAST_RESORT_AFTER_MS - 1)
    command = advice(LAST_RESORT_AFTER_MS)
    assert "unsafe-recover -c CONFIG -p 0 --accept-data-loss" in command
    assert "s2:7000 ends at 100" in command
    assert "is lost" in command


@pytest.mark.parametrize(
    ("name", "settles"),
    [
        ("network", True),  # the server may not have redialled yet
        ("owner gone", True),
        ("server silent", True),  # it may be ending
        ("two owners", True),
        ("two servers at one place", True),  # until the session of one that was killed ends
        ("unhealthy", True),
        ("server that is not the owner", True),
        ("left behind", True),
        ("all owners gone", False),  # no server is there that would assign its partitions anew
        ("no owner", True),
        ("metadata set back", True),  # a session may have opened between two looks
        ("storage-down", False),
        ("metadata gone", False),
        ("limbo", False),
    ],
)
def test_what_a_running_cluster_ends_by_itself_is_looked_at_again(name: str, settles: bool) -> None:
    roots = diagnose(CASES[name][0])
    assert [root.settles for root in roots] == [settles]


def test_a_data_port_that_does_not_answer_explains_what_lacks_its_replicas_and_an_admin_port_does_not() -> None:
    (root,) = diagnose(CASES["data port of one that does not say what it holds"][0])
    assert [finding.cause for finding in root.follows] == ["no-spare-replica"]
    roots = diagnose(CASES["admin port of one that is not level"][0])
    assert [(root.cause, root.follows) for root in roots] == [("port-unreachable", ()), ("no-spare-replica", ())]


def test_a_certificate_explains_a_port_that_does_not_answer_once_it_has_ended() -> None:
    down = with_storage(data_problem="its certificate", admin_problem="its certificate", untrusted=True, replicas=None)

    def found(days: int) -> list[tuple[str, list[str]]]:
        view = attrs.evolve(down, certificates=(CertificateView(NAMES[0], "CN=s0", days * DAY),))
        return [(root.cause, [finding.cause for finding in root.rows()[1:]]) for root in diagnose(view)]

    assert found(99) == [("certificate-expired", ["untrusted-storage-node", "no-spare-replica"])]
    assert found(100) == found(99), "it ends now"
    assert found(114) == [("certificate-ends-soon", []), ("untrusted-storage-node", ["no-spare-replica"])]
    assert found(115) == [("untrusted-storage-node", ["no-spare-replica"])]


@pytest.mark.parametrize("reason", ["ctl: neither state of partition 0, at offset 64, counts", "record 7 is damaged"])
def test_the_best_copy_that_is_left_is_not_given_up(reason: str) -> None:
    view = with_replica(state="limbo", reason=reason)
    for name in NAMES[1:]:
        view = attrs.evolve(
            view,
            storages=tuple(
                attrs.evolve(node, replicas=None, admin_problem="down", data_problem="down")
                if node.name == name
                else node
                for node in view.storages
            ),
        )
    commands = [row.command for root in diagnose(view) for row in root.rows() if row.cause == "limbo"]
    assert len(commands) == 1
    assert "delete-storage-files" not in commands[0]
    assert "accept-limbo" not in commands[0]
    assert "bring the partition's other storage nodes back" in commands[0]


def test_a_limbo_of_which_nothing_is_left_is_ended_by_assigning_the_partition_anew() -> None:
    """To accept it would be refused."""
    for reason in (
        "its data files are gone: expected 0.seg",
        "ctl: neither state of partition 0, at offset 64, counts",
    ):
        command = diagnose(with_replica(state="limbo", reason=reason))[0].command
        assert "remove-partition" in command
        assert "accept-limbo" not in command
    command = diagnose(with_replica(state="limbo", reason="record 7 is damaged"))[0].command
    assert "remove-partition" not in command
    assert "accept-limbo" in command


@pytest.mark.parametrize("holds", [True, False])
def test_a_half_added_node_is_removed_first_unless_it_is_assigned_partitions(holds: bool) -> None:
    """A node that is assigned some cannot be removed."""
    view = with_storage(admin="", admin_problem="unknown", replicas=None)
    if not holds:
        view = attrs.evolve(view, maps=assigned(*((name, (0, 1)) for name in NAMES[1:])).maps)
    (command,) = (root.command for root in diagnose(view) if root.cause == "half-added-storage-node")
    assert ("remove-storage-node" in command) == (not holds)
    assert command.endswith(f"add-storage-node -c CONFIG -s {NAMES[0]} -a ADMIN_PORT -g 0")


@pytest.mark.parametrize("holds", [True, False])
def test_a_name_that_cannot_be_read_is_a_finding_with_the_command_that_removes_it(holds: bool) -> None:
    """It was advised to add it again, which changed nothing."""
    name = "s0:7000 "
    bad = storage(name, admin="", admin_problem="unknown", data_problem="no host:port", replicas=None)
    view = cluster(storages=(bad, *map(storage, NAMES[1:])))
    if holds:
        view = attrs.evolve(view, maps=assigned((name, (0, 1)), *((name, (0, 1)) for name in NAMES[1:])).maps)
    (finding,) = (
        each for each in diagnose(view) if each.cause in ("unreadable-storage-node", "half-added-storage-node")
    )
    assert finding.evidence.endswith("expected host:port, found 's0:7000 '")
    remove = "waltz zookeeper remove-storage-node -c CONFIG -s 's0:7000 '"
    unassign = "waltz zookeeper unassign-partition -c CONFIG -s 's0:7000 ' -p 0-1; "
    assert (finding.cause, finding.command) == ("unreadable-storage-node", unassign + remove if holds else remove)


def test_a_storage_node_under_two_names_is_a_finding_with_the_command_that_takes_one_out() -> None:
    """What it holds under both would count as two copies: a majority of one node."""
    here = frozenset(("10.0.0.1",))
    first, second = (storage(name, addresses=here, process="7") for name in ("s0:7000", "alias:7000"))
    view = attrs.evolve(cluster(), storages=(first, second, *map(storage, NAMES[1:])))
    (finding,) = (each for each in diagnose(view) if each.cause == "same-node")
    assert finding.command == "waltz zookeeper remove-storage-node -c CONFIG -s alias:7000"

    for other in ({"process": "8"}, {"addresses": frozenset(("10.0.0.2",))}, {"name": "alias:7001"}):
        view = attrs.evolve(view, storages=(first, attrs.evolve(second, **other), *map(storage, NAMES[1:])))
        assert "same-node" not in {each.cause for each in diagnose(view)}


Nodes = dict[str, tuple[int, tuple[int, ...]]]  # by name: group and partitions


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        # The ordinary layout, one copy in each group: the last one of a group is not taken away.
        (
            {"s0:7000": (0, (0, 1)), "s1:7000": (1, (0, 1)), "alias:7000": (2, (0, 1))},
            {"s0:7000": {0, 1}, "s1:7000": {0, 1}, "new:7000": {0, 1}},
        ),
        # What the surplus name alone has is a copy like any other.
        (
            {"s0:7000": (0, (0, 1)), "s1:7000": (0, (0, 1, 2)), "alias:7000": (0, (2,)), "s2:7000": (1, (2,))},
            {"s0:7000": {0, 1, 2}, "s1:7000": {0, 1, 2}, "s2:7000": {2}},
        ),
        (
            {"s0:7000": (0, (0, 1)), "s1:7000": (1, (0, 1, 2)), "alias:7000": (1, (2,))},
            {"s0:7000": {0, 1, 2}, "s1:7000": {0, 1, 2}},
        ),
        # Some of each.
        (
            {"s0:7000": (0, (0, 1)), "s1:7000": (2, (1,)), "alias:7000": (2, (1, 2))},
            {"s0:7000": {0, 1}, "s1:7000": {1}, "new:7000": {2}},
        ),
        (
            {"s0:7000": (0, (0, 1)), "s1:7000": (0, (1,)), "alias:7000": (0, (2,))},
            {"s0:7000": {0, 1, 2}, "s1:7000": {1}},
        ),
    ],
)
def test_the_commands_that_take_a_second_name_out_are_not_refused_and_keep_each_copy(
    nodes: Nodes, expected: dict[str, set[int]]
) -> None:
    """They were: `unassign-partition` by the last copy of a group, and so `remove-storage-node`; or a copy was lost."""
    maps = store_metadata.StoreMaps(
        GroupDescriptor(tuple((name, group) for name, (group, _) in nodes.items())),
        ReplicaAssignments(tuple((name, partitions) for name, (_, partitions) in nodes.items())),
        ConnectionMetadata(tuple((name, 7001) for name in nodes)),
    )
    here = {"addresses": frozenset(("10.0.0.1",)), "process": "7"}
    storages = (storage(name, **(here if name in ("s0:7000", "alias:7000") else {})) for name in nodes)
    view = attrs.evolve(cluster(), maps=maps, num_partitions=3, partitions=(None,) * 3, storages=tuple(storages))
    (finding,) = (root for each in diagnose(view) for root in each.rows() if root.cause == "same-node")
    for text in re.findall(r"waltz [^;]+", finding.command):
        maps = carried_out(maps, text.replace("HOST:PORT", "new:7000").replace("ADMIN_PORT", "7001"))
    assert {name: set(held) for name, held in maps.replicas.replicas} == expected
    assert "alias:7000" not in (*dict(maps.groups.groups), *dict(maps.connections.connections))


def carried_out(maps: store_metadata.StoreMaps, command: str) -> store_metadata.StoreMaps:
    """What a command does to the maps in ZooKeeper."""
    _, _, name, *words = command.split()
    options = dict(zip(words[::2], words[1::2], strict=True))
    storage_name, partitions = options["-s"], parse_partitions(options.get("-p", ","))
    match name:
        case "assign-partition":
            return store_metadata.assign_partitions(maps, 3, partitions, storage_name).after
        case "unassign-partition":
            return store_metadata.unassign_partitions(maps, partitions, storage_name).after
        case "remove-storage-node":
            return store_metadata.remove_storage_node(maps, storage_name).after
        case "add-node":
            maps = store_metadata.add_storage_node(maps, storage_name, int(options["-g"]), int(options["-a"])).after
            return store_metadata.assign_partitions(maps, 3, partitions, storage_name).after
    raise AssertionError(command)


def test_a_recovery_that_waits_for_long_does_not_settle() -> None:
    for since_ms, settles in ((SETTLE_MS - 1, True), (SETTLE_MS, False)):
        (root,) = diagnose(with_server(status=(stuck(since_ms),), health={0: False}))
        assert (root.cause, root.settles) == ("recovery-stuck", settles)


_PLACES = {
    "CONFIG.yml": "node.yml",
    "CONFIG": "tools.yml",
    "HOST:PORT": "s9:7000",
    "ADMIN_PORT": "7001",
    "GROUP": "1",
    "FILE": "backup.json",
}


def test_every_advised_command_is_taken_by_the_command_line() -> None:
    """Words that people fill in are filled in; nothing that is advised may be refused for its options."""
    tried: dict[str, int] = {}
    for view, _ in (*CASES.values(), (quorum_lost(LAST_RESORT_AFTER_MS), [])):
        for root in diagnose(view):
            for finding in root.rows():
                for text in re.findall(r"waltz [a-z]+ [a-z-]+(?: [-\w:./]+)*", finding.command):
                    _, noun, name, *words = (_PLACES.get(word, word) for word in text.rstrip(".").split())
                    if (noun, name) == ("zookeeper", "list"):
                        continue  # named in prose, as what writes the backup
                    words = words[: words.index("on")] if "on" in words else words
                    parser_of_noun(noun).parse_args([name, *words])
                    tried[f"{noun} {name}"] = tried.get(f"{noun} {name}", 0) + 1
    assert tried.keys() >= {"storage replace-node", "storage unsafe-recover", "zookeeper add-storage-node"}
    assert len(tried) >= 14, tried


def test_what_no_node_has_whole_is_not_called_repairable() -> None:
    def advice(*suspects: tuple[tuple[int, int], ...]) -> str:
        copies = [replica(0, suspects=spans) for spans in suspects]
        nodes = (storage(name, replicas={0: copy}) for name, copy in zip(NAMES, copies, strict=True))
        root = diagnose(cluster(storages=tuple(nodes)))[0]
        assert root.cause == "damaged-records"
        return root.command

    assert advice(((4, 6),), (), ()).startswith("waltz storage repair ")
    assert advice(((4, 6),), ((7, 7),), ((6, 6),)).startswith("waltz storage repair ")
    told = advice(((1, 1), (4, 6)), ((5, 5),), ((6, 6),))
    assert "no storage node that answers has transactions 4-6 whole" in told
    assert "then waltz storage repair -c CONFIG" in told
    assert "transactions 1, 4-6 whole" in advice(*[((1, 1), (4, 6))] * 3)


def test_a_journal_that_cannot_be_written_is_named_where_it_is_configured() -> None:
    reason = "the decision journal cannot be written: /journal: No space left on device"
    status = PartitionStatus(0, 2, ServedState.READY, 9000, 4, 100, reason)
    (root,) = diagnose(with_server(status=(status,), health={0: False}))
    assert (root.cause, reason in root.evidence) == ("unhealthy", True)
    assert "server.journal.directory of v1:6000" in root.command


def test_numbers_are_written_as_ranges() -> None:
    assert ranges_text([7, 3, 1, 2, 3]) == "1-3,7"
    assert ranges_text([]) == ""


def test_what_waits_for_metadata_is_not_told_to_give_anything_up() -> None:
    """Session 5 was forgotten, and its number given out again."""
    storages = tuple(storage(name, replicas={0: replica(0, session_id=5, max_id=101)}) for name in NAMES)
    waiting = attrs.evolve(with_server(status=(stuck(LAST_RESORT_AFTER_MS),), health={0: False}), storages=storages)
    for partitions in ((states(0), states(1)), (None, states(1))):
        roots = diagnose(attrs.evolve(waiting, partitions=partitions))
        rows = [finding for root in roots for finding in root.rows()]
        (command,) = (finding.command for finding in rows if finding.cause == "recovery-stuck")
        assert command == "waltz storage confirm-metadata -c CONFIG -p 0"


def test_nodes_of_0_13_2_do_not_tell_enough_to_be_called_lagging() -> None:
    assert diagnose(with_replica(max_id=None, state=None)) == ()


# ---- verify --------------------------------------------------------------------------------------


def checks(view: ClusterView, partition_id: int = 0) -> list[str]:
    return [failure.check for failure in verify(view, partition_id)]


VERIFIED: dict[str, tuple[ClusterView, str, str]] = {
    "no owner": (
        owned(ServerPartitions(2, ((1, 2),))),
        "PARTITION_ASSIGNMENT_ZK_VALIDITY",
        "Error: Partition 0 not handled by any server",
    ),
    "two owners": (
        owned(ServerPartitions(1, ((0, 2),)), ServerPartitions(2, ((0, 2),))),
        "PARTITION_ASSIGNMENT_ZK_VALIDITY",
        "Error: Partition handled by more than one server: v1:6000 and v2:6000",
    ),
    "owner not registered": (
        owned(ServerPartitions(9, ((0, 2),))),
        "PARTITION_ASSIGNMENT_ZK_VALIDITY",
        "Error: Partition 0 is assigned to server 9, which is not registered",
    ),
    "not served": (
        with_server(partitions=()),
        "PARTITION_ASSIGNMENT_ZK_SERVER_CONSISTENCY",
        "Partition 0 not matching in zk and server: ONLY_IN_ZOOKEEPER",
    ),
    "served by another": (
        cluster(servers=(server(1, 0), server(2, 0, 1))),
        "PARTITION_ASSIGNMENT_ZK_SERVER_CONSISTENCY",
        "Partition 0 not matching in zk and server: ONLY_IN_SERVER, v2:6000",
    ),
    "replica not reached": (
        with_server(connectivity={NAMES[0]: False, NAMES[1]: True}),
        "SERVER_STORAGE_CONNECTIVITY",
        "Server v1:6000, storage connectivity check for storage replica s0:7000 failed\n"
        "Server v1:6000, storage replica s2:7000 missing in connectivity statuses",
    ),
    "no answer": (
        with_server(connectivity=None),
        "SERVER_STORAGE_CONNECTIVITY",
        "Server v1:6000, no connectivity statuses response",
    ),
    "mismatch": (
        with_storage(replicas={1: replica(1)}),
        "PARTITION_ASSIGNMENT_ZK_STORAGE_CONSISTENCY",
        "Error: ZooKeeper and StorageNode Partition Assignment mismatch\n"
        "s0:7000 does not hold it: it was never asked to",
    ),
    "quorum": (
        cluster(storages=tuple(storage(name, replicas={0: replica(0, available=name == NAMES[0])}) for name in NAMES)),
        "PARTITION_QUORUM_STATUS",
        "Error: Quorum is not achieved\n1 of 3 replicas are available",
    ),
    "recovering": (
        cluster(partitions=(states(0, late=NAMES[1]), states(1))),
        "REPLICA_RECOVERY_STATUS",
        "Storage s1:7000 recovery not completed",
    ),
    "no states": (cluster(partitions=(None, states(1))), "REPLICA_RECOVERY_STATUS", "Cannot obtain replica states"),
    "other states": (
        assigned((NAMES[0], (0, 1)), (NAMES[1], (0, 1))),
        "REPLICA_RECOVERY_STATUS",
        "Storage s2:7000 replica info missing in replica assignments",
    ),
    "no state": (
        cluster(partitions=(PartitionMetadata(2, 4, states(0).replica_states[:2]), states(1))),
        "REPLICA_RECOVERY_STATUS",
        "Storage s2:7000 replica info missing in replica states",
    ),
    "unhealthy": (
        with_server(health={0: False}),
        "SERVER_PARTITION_HEALTH_CHECK",
        "Partition 0 belonging to server v1:6000 is not healthy",
    ),
}


@pytest.mark.parametrize("name", VERIFIED)
def test_verify_words_a_failure_as_the_original(name: str) -> None:
    view, check, text = VERIFIED[name]
    assert {failure.check: failure.text for failure in verify(view, 0)}[check] == text


def test_a_quorum_counts_the_replicas_of_the_partition_and_not_all_nodes() -> None:
    view = assigned((NAMES[0], (0, 1)), (NAMES[1], (1,)), (NAMES[2], (1,)))
    assert "PARTITION_QUORUM_STATUS" not in checks(view)


def test_an_unreachable_owner_is_named_in_every_check_that_needs_it() -> None:
    view = with_server(problem="v1:6000: refused", partitions=None, health=None, connectivity=None, status=None)
    texts = {failure.check: failure.text for failure in verify(view, 0)}
    assert texts["PARTITION_ASSIGNMENT_ZK_SERVER_CONSISTENCY"] == "v1:6000: refused"
    assert texts["SERVER_PARTITION_HEALTH_CHECK"] == "v1:6000: refused"
    assert checks(cluster(servers=(), assignment=PartitionAssignment(1, 2, ())))[:3] == [
        "PARTITION_ASSIGNMENT_ZK_VALIDITY",
        "PARTITION_ASSIGNMENT_ZK_SERVER_CONSISTENCY",
        "SERVER_STORAGE_CONNECTIVITY",
    ]


def test_a_partition_that_does_not_exist_is_refused() -> None:
    for partition_id in (-1, 2):
        with pytest.raises(ClusterError, match=f"Partition {partition_id} is not valid"):
            verify(cluster(), partition_id)


@pytest.mark.parametrize(
    ("trouble", "advice"),
    [
        (Trouble.TRUST, "server.ssl.trustStore"),
        (Trouble.REFUSAL, "another cluster's key"),
        (Trouble.VERSION, "a common codec"),
        (Trouble.NETWORK, "check network, firewall"),
        (None, "check network, firewall"),
    ],
)
def test_the_reason_that_a_server_gives_is_named_and_its_kind_decides_the_advice(
    trouble: Trouble | None, advice: str
) -> None:
    reached = {**dict.fromkeys(NAMES, True), NAMES[2]: False}
    reason, troubles = "the certificate says TLS", {} if trouble is None else {NAMES[2]: trouble}
    (finding,) = diagnose(with_server(connectivity=reached, unusable={NAMES[2]: reason}, troubles=troubles))
    assert finding.evidence.endswith(f"this machine does: {reason}")
    assert advice in finding.command


def test_what_lags_or_waits_because_a_server_misses_storage_nodes_stands_below_that() -> None:
    missed = with_server(connectivity={name: name == NAMES[2] for name in NAMES}, status=(stuck(),), health={0: False})
    first, second = diagnose(missed)
    assert (first.cause, second.cause) == ("partitioned-network",) * 2
    assert [finding.cause for finding in first.follows] == ["recovery-stuck"]
    late = attrs.evolve(with_replica(max_id=60), partitions=(states(0, late=NAMES[0]), states(1)))
    one = server(1, 0, connectivity={**dict.fromkeys(NAMES, True), NAMES[0]: False}, health={0: False})
    first, second = diagnose(attrs.evolve(late, servers=(one, *late.servers[1:])))
    assert (first.cause, [finding.cause for finding in first.follows]) == ("partitioned-network", ["lagging-replica"])
    assert second.cause == "unhealthy", "a quorum is reached: something else is the cause"


def test_a_server_that_answers_half_of_what_it_is_asked_is_named_below_the_storage_node_that_does_not_answer() -> None:
    """It may be that one for which it waits."""
    silent = server(1, 0, problem="no answer within 10 s", connectivity=None)
    down = with_storage(data_problem="refused", admin_problem="refused", replicas=None)
    (root,) = diagnose(attrs.evolve(down, servers=(silent, server(2, 1))))
    assert root.cause == "storage-down"
    assert "server-silent" in [finding.cause for finding in root.follows]


def test_a_server_that_waits_for_a_silent_node_is_believed_by_what_it_said_before() -> None:
    reason = "did not finish the TLS handshake in 10 s"
    problem = "no answer within 3 s"
    (root,) = diagnose(with_server(connectivity=None, unusable={NAMES[1]: reason}, problem=problem))
    assert root.cause == "partitioned-network"
    assert NAMES[1] in root.evidence
    assert root.evidence.endswith(reason)


def test_what_a_server_waits_for_in_a_partition_stands_in_the_finding() -> None:
    figures = {
        ("awaited.ZooKeeper: the metadata is read", 0): 1.0,
        ("awaited.storage node s1:7000: an append is durable", 0): 4.0,
        ("awaited.ZooKeeper: the metadata is read", 1): 1.0,
        ("append-queue-size", 0): 7.0,
    }
    (finding,) = diagnose(with_server(status=(), health={0: False}, figures=figures))
    assert finding.evidence.endswith(
        "partition 0 (it waits for ZooKeeper: the metadata is read; storage node s1:7000: an append is durable (4))"
    )


def test_a_server_that_knows_more_than_the_log_is_to_be_restarted_once_that_was_given_up() -> None:
    """After unsafe-recover it never served the partition again, and the advice was to look at its log."""
    reason = f"the replicas resolved the log at 4, but transactions up to 7 were committed: {LOST_DATA}; restore"
    status = PartitionStatus(0, 2, ServedState.OPENING, 5_000, -1, -(2**63), reason)
    (finding,) = diagnose(with_server(status=(status,), health={0: False}))
    assert finding.cause == "unhealthy"
    assert "if unsafe-recover has given those transactions up: restart v1:6000" in finding.command


def test_what_its_storage_nodes_have_under_way_stands_there_too() -> None:
    view = with_server(status=(), health={0: False})
    slow = attrs.evolve(view.storages[1], figures={("awaited.append", 0): 1.0, ("awaited.read", 1): 3.0})
    (finding,) = diagnose(attrs.evolve(view, storages=(view.storages[0], slow, *view.storages[2:])))
    assert finding.evidence.endswith(f"partition 0 (storage node {slow.name} has under way: append)")


def test_who_serves_everybody_is_noted_without_being_wrong() -> None:
    view = cluster(
        servers=(server(1, 0, access_level=0), server(2, 1, access_level=1)),
        storages=(storage("a:1", access_level=0), storage("b:1", access_level=2), storage("c:1")),
    )
    everybody, no_roles = notices(view)
    assert (everybody.cause, no_roles.cause) == ("open-to-everybody", "no-roles")
    assert "storage node a:1" in everybody.evidence
    assert "b:1" not in everybody.evidence + no_roles.evidence
    assert "c:1" not in everybody.evidence + no_roles.evidence
    assert not any(one.cause in ("open-to-everybody", "no-roles") for one in diagnose(view))
