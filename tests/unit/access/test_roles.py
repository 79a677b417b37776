"""Who may do what, by the names in a certificate."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage_desk import CLOSED, KEY, Desk, Wire, codec_1, desk, filled, reopen
from waltz_core.access.roles import EVERY, NO_ROLES, Access, Role, Roles, RolesChanged, Rule
from waltz_core.base.edge import Level, Port, Received, Report
from waltz_core.base.ids import Endpoint, ReqId, make_req_id
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import client_messages as client
from waltz_core.wire import storage_messages as wire

ROLES = Roles(
    [
        Rule("server-?", Role.SERVER),
        Rule("node-*", Role.STORAGE),
        Rule("*.ops", Role.ADMIN),
        Rule("reader", Role.CLIENT, read=EVERY),
        Rule("writer", Role.CLIENT, read=((0, 9),), write=((2, 3), (7, 7))),
        Rule("both", Role.CLIENT, read=((5, 5),)),
        Rule("both.*", Role.ADMIN),
    ]
)


def of(*names: str) -> Access:
    return ROLES.access(names, "10.0.0.1:4000")


def ids(partition: int) -> ReqId:
    return make_req_id(1, 1, partition, 1)


def append(partition: int) -> client.AppendRequest:
    return client.AppendRequest(ids(partition), -1, (), (), (), 0, b"", 0)


READS: list[client.ClientMessage] = [
    client.MountRequest(ids(4), -1, 0),
    client.FeedRequest(ids(4), -1),
    client.TransactionDataRequest(ids(4), 0),
    client.FlushRequest(ids(4)),
    client.HighWaterMarkRequest(ids(4)),
    client.LogStartRequest(ids(4)),
    client.RecordRangeRequest(ids(4), 0, 1, 1, 1, False),
]
LOOKS: list[client.ClientMessage] = [
    client.ClusterInfoRequest(ids(0), False, False),
    client.CheckStorageConnectivityRequest(ids(0)),
    client.ServerPartitionsAssignmentRequest(ids(0)),
    client.ServerPartitionsHealthStatRequest(ids(0)),
    client.StatisticsRequest(ids(0), -1, ()),
    client.PartitionStatusRequest(ids(0)),
    client.StorageNodesRequest(ids(0)),
]
CHANGES: list[client.ClientMessage] = [
    client.AddPreferredPartitionRequest(ids(0), (0,)),
    client.RemovePreferredPartitionRequest(ids(0), (0,)),
    client.SetLogStartRequest(ids(0), 5),
]
ADMIN_CHANGES: list[admin.AdminMessage] = [
    admin.PartitionAvailableRequest(1, (0,), False),
    admin.PartitionAssignmentRequest(1, (0,), True, False),
    admin.SetLogStartRequest(1, 0, 5),
    admin.AcceptLimboRequest(1, 0, 5),
]
ADMIN_READS: list[admin.AdminMessage] = [
    admin.RecordListRequest(1, 0, 0, 1),
    admin.LastSessionInfoRequest(1, 0),
    admin.ReplicaStateRequest(1, 0),
    admin.NodeInfoRequest(1),
    admin.MetricsRequest(1),
    admin.AssignedPartitionStatusRequest(1),
]
REPAIR = admin.RepairRequest(1, 0, (), ())


def test_without_rules_everybody_may_do_everything() -> None:
    for access in (NO_ROLES.access((), "a"), NO_ROLES.access(("x",), "a")):
        assert access.unrestricted
        assert access.storage_problem() is None
        assert access.admin_port_problem() is None
        for message in (*ADMIN_CHANGES, *ADMIN_READS, REPAIR):
            assert access.admin_problem(message) is None
        for question in (*READS, *LOOKS, *CHANGES, append(1)):
            assert access.client_problem(question, 0) is None


@pytest.mark.parametrize("names", [(), ("stranger",), ("server-10",), ("xserver-1",)])
def test_who_matches_no_rule_may_do_nothing(names: tuple[str, ...]) -> None:
    access = of(*names)
    assert access.storage_problem() is not None
    assert access.admin_port_problem() is not None
    for message in (*ADMIN_CHANGES, *ADMIN_READS, REPAIR):
        assert access.admin_problem(message) is not None
    for question in (*READS, *LOOKS, *CHANGES, append(1)):
        assert access.client_problem(question, 4) is not None


def test_a_server_uses_data_ports_reads_on_admin_ports_and_starts_repairs() -> None:
    access = of("server-1")
    assert access.storage_problem() is None
    assert [access.admin_problem(one) for one in (*ADMIN_READS, REPAIR)] == [None] * 7
    assert None not in [access.admin_problem(one) for one in ADMIN_CHANGES]
    assert None not in [access.client_problem(one, 4) for one in (*READS, *CHANGES, append(4))]


def test_a_storage_node_only_reads_on_admin_ports() -> None:
    access = of("node-a.example")
    assert access.storage_problem() is not None
    assert [access.admin_problem(one) for one in ADMIN_READS] == [None] * 6
    assert None not in [access.admin_problem(one) for one in (*ADMIN_CHANGES, REPAIR)]


def test_who_answers_must_have_the_role_of_the_port() -> None:
    for names, roles in ((("server-1",), (Port.CLIENT,)), (("node-a.example",), (Port.STORAGE, Port.ADMIN)), ((), ())):
        assert [port for port in Port if of(*names).host_problem(port) is None] == list(roles)
    assert NO_ROLES.access((), "a").host_problem(Port.STORAGE) is None


def test_an_admin_looks_and_changes_everywhere_and_appends_nothing() -> None:
    access = of("alice", "ALICE.OPS")
    assert access.storage_problem() is None
    assert {access.admin_problem(one) for one in (*ADMIN_READS, *ADMIN_CHANGES, REPAIR)} == {None}
    assert {access.client_problem(one, 4) for one in (*READS, *LOOKS, *CHANGES)} == {None}
    assert access.client_problem(append(4), 4) is not None


def test_a_reader_reads_every_partition_and_changes_nothing() -> None:
    access = of("reader")
    assert {access.client_problem(one, 4) for one in (*READS, *LOOKS)} == {None}
    assert None not in {access.client_problem(one, 4) for one in (*CHANGES, append(4))}
    assert access.storage_problem() is not None
    assert access.admin_port_problem() is not None


def test_a_writer_appends_within_its_partitions_only() -> None:
    access = of("writer")
    assert [partition for partition in range(12) if access.writes(partition)] == [2, 3, 7]
    assert [partition for partition in range(12) if access.reads(partition)] == list(range(10))
    problem = access.client_problem(append(4), 4)
    assert problem == "certificate 'writer' at 10.0.0.1:4000 (client) may not append to partition 4"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("k8s-ops", "\u212a8s-ops"),  # the Kelvin sign folds to k by Unicode's rules
        ("ops", "op\u017f"),  # the long s to s
        ("admin-i", "admin-\u0130"),
        ("\u00e9tat", "\u00c9tat"),
    ],
)
def test_case_folds_within_ascii_only(pattern: str, name: str) -> None:
    roles = Roles([Rule(pattern, Role.ADMIN)])
    assert roles.access((name,), "a").admin_port_problem() is not None
    assert roles.access((pattern,), "a").admin_port_problem() is None
    assert Roles([Rule("OPS-\u00c9", Role.ADMIN)]).access(("ops-\u00c9",), "a").admin_port_problem() is None


def test_the_log_names_what_matched_where_it_is_not_the_first_name() -> None:
    assert of("alice", "ALICE.OPS").who == "certificate 'alice' (as 'ALICE.OPS') at 10.0.0.1:4000 (admin)"
    assert of("alice", "server-1", "b.ops", "x").who == (
        "certificate 'alice' (as 'server-1', 'b.ops') at 10.0.0.1:4000 (admin, server)"
    )
    assert of("alice.ops", "b.ops").who == "certificate 'alice.ops' (as 'alice.ops', 'b.ops') at 10.0.0.1:4000 (admin)"
    assert of("alice.ops", "x").who == "certificate 'alice.ops' at 10.0.0.1:4000 (admin)"
    assert of("alice", "x").who == "certificate 'alice' at 10.0.0.1:4000 (no role)"


def test_what_may_be_written_may_be_read() -> None:
    assert Roles([Rule("w", Role.CLIENT, write=((1, 1),))]).access(("w",), "a").reads(1)


def test_all_rules_that_match_count_together() -> None:
    access = of("both", "both.example")
    assert access.reads(5)
    assert access.client_problem(CHANGES[0], 0) is None
    assert "(admin, client)" in access.who


def test_a_pattern_is_no_regular_expression() -> None:
    roles = Roles([Rule("a.b", Role.ADMIN), Rule("[x]+", Role.SERVER)])
    assert roles.access(("axb",), "a").storage_problem() is not None
    assert roles.access(("x",), "a").storage_problem() is not None
    assert roles.access(("[x]+",), "a").storage_problem() is None


# ---- on a storage node -----------------------------------------------------------------------


class Named(Wire):
    """A connection whose certificate has names."""

    def __init__(self, made: Desk, port: Port, *names: str) -> None:
        super().__init__(made, len(made.wires) + 100, port, names)
        self.port = port
        self.greet()

    def open(self) -> Any:
        if self.port is Port.ADMIN:
            return self.ask(admin.AdminOpenRequest(-1, KEY, 2))
        return self.ask(wire.OpenRequest(-1, -1, -1, KEY, 2))


@pytest.fixture
def guarded() -> Desk:
    """A node with records and rules."""
    return reopen(filled(), roles=ROLES)


def reports(made: Desk) -> list[tuple[Level, str]]:
    found = [(one.level, one.text) for one in made.emitted if isinstance(one, Report)]
    made.emitted.clear()
    return found


@pytest.mark.parametrize(
    ("names", "data", "admin_port"),
    [
        (("server-1",), True, True),
        (("x.ops",), True, True),
        (("node-1",), False, True),
        (("reader",), False, False),
        ((), False, False),
    ],
)
def test_each_port_opens_to_its_roles_only(guarded: Desk, names: tuple[str, ...], data: bool, admin_port: bool) -> None:
    for port, allowed in ((Port.STORAGE, data), (Port.ADMIN, admin_port)):
        guarded.emitted.clear()
        made = Named(guarded, port, *names)
        made.messages.clear()
        answer = made.open()
        if allowed:
            assert isinstance(answer, wire.SuccessResponse | admin.AdminSuccessResponse)
            assert not made.closed
        else:
            assert isinstance(answer, wire.FailureResponse | admin.AdminFailureResponse)
            assert "may not use the" in str(answer.message)
            assert made.closed
            told = [text for level, text in reports(guarded) if level is Level.WARNING]
            assert len(told) == 1
            assert "may not use the" in told[0]


def test_a_server_that_asks_for_a_change_is_answered_and_stays_connected(guarded: Desk) -> None:
    made = Named(guarded, Port.ADMIN, "server-1")
    made.open()
    guarded.emitted.clear()
    answer = made.ask(admin.PartitionAssignmentRequest(7, (1,), True, False))
    assert isinstance(answer, admin.AdminFailureResponse)
    assert (answer.seq_num, made.closed) == (7, False)
    assert "'server-1'" in str(answer.message)
    assert "PartitionAssignmentRequest" in str(answer.message)
    [(level, text)] = reports(guarded)
    assert level is Level.WARNING
    assert text.startswith("audit: refused: certificate 'server-1'")
    assert isinstance(made.ask(admin.RecordListRequest(8, 0, 0, 1)), admin.RecordListResponse)


def test_nothing_can_be_asked_before_the_cluster_key_whatever_the_role(guarded: Desk) -> None:
    made = Named(guarded, Port.ADMIN, "x.ops")
    answer = made.ask(admin.PartitionAssignmentRequest(7, (1,), True, False))
    assert "was not opened" in str(answer.message)


def test_every_change_leaves_one_line_that_names_who_what_and_the_outcome(guarded: Desk) -> None:
    made = Named(guarded, Port.ADMIN, "alice.ops")
    made.open()
    for request, what in (
        (admin.PartitionAssignmentRequest(1, (1,), True, False), "assign partitions 1: done"),
        (admin.PartitionAvailableRequest(2, (0, 1), False), "forbid reads and writes of partitions 0, 1: done"),
        (admin.PartitionAvailableRequest(3, (0,), True), "allow reads and writes of partitions 0: done"),
        (
            admin.PartitionAssignmentRequest(4, (1,), False, True),
            "unassign partitions 1 and delete the files: done",
        ),
    ):
        guarded.emitted.clear()
        assert isinstance(made.ask(request), admin.AdminSuccessResponse)
        lines = [text for level, text in reports(guarded) if level is Level.INFO and text.startswith("audit")]
        assert lines == [f"audit: certificate 'alice.ops' at test (admin): {what}"]
    guarded.emitted.clear()
    made.ask(admin.PartitionAssignmentRequest(5, (9,), True, False))
    [(_, text)] = reports(guarded)
    assert "assign partitions 9: refused: " in text


def test_refused_changes_are_counted_by_who_asks_and_those_that_were_made_never() -> None:
    """Else who asks again and again for what cannot be fills the log."""
    made = desk()
    made.emitted.clear()
    made.admin(admin.PartitionAssignmentRequest(5, (9,), True, False))
    made.admin(admin.PartitionAvailableRequest(1, (0,), False))
    refused, done = [one for one in made.emitted if isinstance(one, Report)]
    assert (refused.level, refused.peer, refused.owner) == (Level.INFO, "test", "test")
    assert (done.level, done.peer, done.owner) == (Level.INFO, "", "")


def test_a_closed_connection_is_named_by_its_certificate_once() -> None:
    writer, address = of("writer"), "10.0.0.1:4000"
    assert writer.closed_line(address, "bad magic byte 7") == (
        "connection of certificate 'writer' at 10.0.0.1:4000 closed: bad magic byte 7"
    )
    refusal = f"{writer.who} may not use the data port"
    assert writer.closed_line(address, refusal) == f"connection of 10.0.0.1:4000 closed: {refusal}"
    assert NO_ROLES.access((), address).closed_line(address, "x") == "connection of 10.0.0.1:4000 closed: x"


def test_without_rules_the_audit_names_the_address() -> None:
    made = desk()
    made.emitted.clear()
    made.admin(admin.PartitionAvailableRequest(1, (0,), False))
    assert [text for _, text in reports(made)] == ["audit: test: forbid reads and writes of partitions 0: done"]


# ---- other rules while the process runs ------------------------------------------------------


def test_two_accesses_allow_the_same_whatever_the_order_of_their_rules() -> None:
    reads, writes = (
        Rule("a", Role.CLIENT, read=((0, 1), (4, 4))),
        Rule("a", Role.CLIENT, read=((4, 4),), write=((2, 2),)),
    )

    def allowed(*rules: Rule) -> Access:
        return Roles(rules).access(("a",), "10.0.0.1:1")

    assert allowed(reads, writes).allows_as(allowed(writes, reads))
    assert not allowed(reads).allows_as(allowed(reads, writes))
    assert not allowed(reads).allows_as(allowed(reads, Rule("a", Role.ADMIN)))
    assert not allowed().allows_as(NO_ROLES.access(("a",), "10.0.0.1:1"))
    # What may be written may be read, so only what may be written tells a writer that became a reader.
    assert not allowed(Rule("a", Role.CLIENT, write=EVERY)).allows_as(allowed(Rule("a", Role.CLIENT, read=EVERY)))


def test_changed_roles_end_the_connections_at_storage_ports_that_they_concern(guarded: Desk) -> None:
    server, node, operator = (
        Named(guarded, port, name)
        for port, name in ((Port.STORAGE, "server-1"), (Port.ADMIN, "node-1"), (Port.ADMIN, "x.ops"))
    )
    for peer in (server, node, operator):
        peer.open()
    guarded.emitted.clear()

    guarded.step(RolesChanged(Roles([Rule("node-*", Role.STORAGE), Rule("server-?", Role.ADMIN)])))

    assert (server.closed, node.closed, operator.closed) == (True, False, True)
    assert [text for _, text in reports(guarded)] == [
        "connection of test closed: the roles have changed: certificate 'server-1' at test (server) is "
        "certificate 'server-1' at test (admin) now",
        "connection of test closed: the roles have changed: certificate 'x.ops' at test (admin) is "
        "certificate 'x.ops' at test (no role) now",
    ]
    again = Named(guarded, Port.ADMIN, "server-1")
    again.open()
    assert isinstance(again.ask(admin.PartitionAvailableRequest(2, (0,), False)), admin.AdminSuccessResponse)
    assert "may not use the" in str(Named(guarded, Port.ADMIN, "x.ops").open().message)


# ---- strangers and unfinished frames ---------------------------------------------------------


def test_who_does_not_show_the_cluster_key_in_time_is_dropped() -> None:
    made = desk(greeting_ms=5000)
    silent, greeted, known = Wire(made, 50, Port.STORAGE), Wire(made, 51, Port.ADMIN), made.dial(Port.STORAGE)
    greeted.greet()
    assert made.node.deadline() is not None
    made.now += 5000
    made.step()
    assert (silent.closed, greeted.closed, known.closed) == (True, True, False)


def test_a_stranger_cannot_make_the_node_gather_a_large_frame() -> None:
    made = desk()
    stranger, known = Wire(made, 50, Port.STORAGE), made.dial(Port.STORAGE)
    stranger.greet()
    head = b"S\x00\x00" + (1 << 29).to_bytes(4, "big")
    for one in (stranger, known):
        one.send(head + bytes(40_000))
    assert not stranger.closed
    for one in (stranger, known):
        one.send(bytes(40_000))
    assert (stranger.closed, known.closed) == (True, False)


def test_unfinished_frames_together_are_bounded_and_the_largest_goes_first() -> None:
    made = desk(frame_size_max=1 << 20, gathered_max=1 << 20)
    head = b"S\x00\x00" + (1 << 20).to_bytes(4, "big")
    many = [made.dial(Port.STORAGE) for _ in range(3)]
    for one, size in zip(many, (500_000, 600_000, 100_000), strict=True):
        made.step(Received(one.conn, head + bytes(size)))
    assert [one.closed for one in many] == [False, True, False]
    assert many[0].ask(wire.OpenRequest(-1, -1, -1, KEY, 2)) != CLOSED


def test_the_sources_of_a_repair_do_not_matter_to_its_rights() -> None:
    request = admin.RepairRequest(1, 0, (Endpoint("h", 1),), ())
    assert of("server-1").admin_problem(request) is None
    assert of("node-1").admin_problem(request) is not None


def test_a_change_that_makes_no_sense_has_its_line_in_the_audit_too() -> None:
    made = desk()
    tool = codec_1(made, Port.ADMIN)
    for request, what in (
        (admin.AcceptLimboRequest(1, 1, 7), "accept the limbo of partition 1 up to 7"),
        (admin.SetLogStartRequest(2, 1, 3), "raise the log start of partition 1 to 3"),
        (admin.RepairRequest(3, 1, (), ()), "repair partition 1"),
    ):
        made.emitted.clear()
        tool.ask(request)
        [line] = [text for _, text in reports(made)]
        assert line.startswith(f"audit: test: {what}: refused: ")


def test_the_cluster_key_is_for_those_who_use_the_ports_of_storage_nodes() -> None:
    assert [name for name in ("reader", "writer", "nobody") if of(name).sees_cluster_key] == []
    assert all(of(name).sees_cluster_key for name in ("server-1", "node-1", "x.ops", "both.ops"))
    assert NO_ROLES.access((), "10.0.0.1:4000").sees_cluster_key
