"""Roles, and what peers that mean no good can cost; in the simulated world a certificate bears the node's name."""

from __future__ import annotations

from typing import Any

from tests.model.cluster import RawPeer, SimCluster
from tests.model.test_server import Client, opened
from waltz_core.access.admission import Places
from waltz_core.access.roles import EVERY, Role, Roles, Rule
from waltz_core.base.edge import Level
from waltz_core.base.ids import Endpoint
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.dialer import DialState


def guarded(*rules: Rule, **options: Any) -> SimCluster:
    """A cluster of two partitions in which the first three peers, which set it up, are admins."""
    roles = Roles(
        [
            Rule("server*", Role.SERVER),
            Rule("storage*", Role.STORAGE),
            *(Rule(f"peer{number}", Role.ADMIN) for number in (1, 2, 3)),
            *rules,
        ]
    )
    server_options = {"roles": roles, **options}
    return opened(partitions=2, server_options=server_options, storage_options={"roles": roles})


def told(cluster: SimCluster, text: str, level: Level = Level.WARNING) -> bool:
    found = [report for node in cluster.world.nodes.values() for _, report in node.reports]
    return any(report.level is level and text in report.text for report in found)


def ended(cluster: SimCluster, client: Client, limit: int = 20_000) -> bool:
    return bool(cluster.world.run_while(lambda: not client.peer.closed, limit))


def nodes(cluster: SimCluster) -> tuple[tuple[str, str, str], ...]:
    """Storage nodes as the server sees them: name, state, trouble."""
    server = cluster.servers[0]
    found: tuple[tuple[str, str, str], ...] = server.machine.snapshot(server.clock).storage_nodes
    return found


WRITER = Rule("peer4", Role.CLIENT, read=EVERY, write=((0, 0),))
READER = Rule("peer4", Role.CLIENT, read=((0, 0),))


def test_a_cluster_with_roles_for_all_commits_and_a_writer_is_refused_elsewhere() -> None:
    cluster = guarded(WRITER)
    client = Client(cluster)
    for partition in (0, 1):
        client.mount(partition=partition)
    client.append(b"a")
    client.wait(client.feed)
    refused = client.append(b"b", partition=1)
    client.wait(lambda: any(isinstance(one, messages.ErrorResponse) for one in client.received))
    answer = client.received[-1]
    assert (answer.req_id, answer.code) == (refused, messages.ErrorCode.NOT_ALLOWED)
    assert answer.message == "certificate 'peer4' at peer4 (client) may not append to partition 1"
    assert told(cluster, "refused: certificate 'peer4'")
    client.append(b"c")
    client.wait(lambda: len(client.feed()) == 2)
    assert not client.peer.closed


def test_an_older_client_that_is_refused_is_closed_with_a_report() -> None:
    cluster = guarded(WRITER)
    client = Client(cluster, version=4)
    client.mount(partition=1)
    client.append(b"b", partition=1)
    assert ended(cluster, client)
    assert told(cluster, "may not append to partition 1")


def test_a_named_append_is_refused_in_its_own_words() -> None:
    cluster = guarded(READER)
    client = Client(cluster)
    client.mount()
    answer = client.ask(messages.NamedAppendRequest(client.req_id(), -1, (), (), (), 0, b"", 0))
    assert isinstance(answer, messages.AppendRefused)
    assert answer.refusal == messages.Refusal.NOT_ALLOWED


def test_a_reader_gets_feed_payloads_and_marks_of_its_partition_only() -> None:
    cluster = guarded(READER)
    client = Client(cluster)
    client.mount()
    assert client.ask(messages.HighWaterMarkRequest(client.req_id())).high_water_mark == -1
    for request in (
        messages.MountRequest(client.req_id(1), -1, 0),
        messages.HighWaterMarkRequest(client.req_id(1)),
        messages.FlushRequest(client.req_id(1)),
        messages.LogStartRequest(client.req_id(1)),
    ):
        assert client.ask(request).code == messages.ErrorCode.NOT_ALLOWED
    answer = client.ask(messages.TransactionDataRequest(client.req_id(1), 0))
    assert (answer.success, "may not read partition 1" in answer.error) == (False, True)


def test_who_has_no_role_learns_nothing_about_the_cluster() -> None:
    cluster = guarded()
    client = Client(cluster)
    for request in (
        messages.ClusterInfoRequest(client.req_id(), False, True),
        messages.PartitionStatusRequest(client.req_id()),
        messages.CheckStorageConnectivityRequest(client.req_id()),
    ):
        assert client.ask(request).code == messages.ErrorCode.NOT_ALLOWED
    older = Client(cluster, version=4)
    older.send(messages.ServerPartitionsHealthStatRequest(older.req_id()))
    assert ended(cluster, older)


def test_preferences_are_changed_by_admins_who_leave_a_line() -> None:
    cluster = guarded(READER, Rule("peer5", Role.ADMIN))
    reader, admin = Client(cluster), Client(cluster)
    assert reader.ask(messages.AddPreferredPartitionRequest(reader.req_id(), (1,))).result is False
    assert reader.ask(messages.RemovePreferredPartitionRequest(reader.req_id(), (1,))).result is False
    assert not told(cluster, "prefer partitions", Level.INFO)
    assert admin.ask(messages.AddPreferredPartitionRequest(admin.req_id(), (1,))).result is True
    assert told(cluster, "audit: certificate 'peer5' at peer5 (admin): prefer partitions 1: done", Level.INFO)
    assert admin.ask(messages.RemovePreferredPartitionRequest(admin.req_id(), (1,))).result is True
    assert told(cluster, "(admin): do not prefer partitions 1: done", Level.INFO)


def test_a_server_that_a_storage_node_does_not_know_as_one_opens_nothing() -> None:
    roles = Roles([Rule("server*", Role.CLIENT, write=EVERY), Rule("peer*", Role.ADMIN)])
    cluster = SimCluster(1, storage_options={"roles": roles})
    cluster.start()
    assert cluster.world.run_while(lambda: not told(cluster, "'server0' at server0 (client) may not use"), 30_000)
    assert cluster.world.run_while(lambda: "may not use the data port" not in str(nodes(cluster)), 30_000)
    snapshot = cluster.servers[0].machine.snapshot(cluster.servers[0].clock)
    assert not any(partition.healthy for partition in snapshot.partitions)


def test_only_who_may_use_storage_nodes_is_shown_the_cluster_key() -> None:
    cluster = guarded(READER, Rule("peer5", Role.STORAGE))
    reader, storage = Client(cluster), Client(cluster)
    seen = [one.ask(messages.ClusterInfoRequest(one.req_id(), False, True)).key.int for one in (reader, storage)]
    assert seen[0] == 0 != seen[1]
    nobody = Client(opened(), certificate="")
    assert nobody.ask(messages.ClusterInfoRequest(nobody.req_id(), False, False)).key.int == seen[1]


def test_a_log_start_that_nobody_can_raise_here_leaves_a_line_without_roles() -> None:
    cluster = opened(partitions=1)
    client = Client(cluster, certificate="")
    answer = client.ask(messages.SetLogStartRequest(client.req_id(5), 3))
    assert answer.code == messages.ErrorCode.NOT_SERVED
    assert told(cluster, "audit: peer4: raise the log start of partition 5 to 3: refused", Level.INFO)


def test_changes_that_change_nothing_are_counted_by_who_asks_and_those_that_do_have_a_line_each() -> None:
    """Else a stranger, to whom a cluster without roles allows them, fills the log by asking again and again."""
    cluster = opened(partitions=2)
    client = Client(cluster, certificate="")
    for request in (
        messages.AddPreferredPartitionRequest(client.req_id(), (1,)),
        messages.AddPreferredPartitionRequest(client.req_id(), (1,)),
        messages.AddPreferredPartitionRequest(client.req_id(), (7,)),
        messages.AddPreferredPartitionRequest(client.req_id(), ()),
        messages.SetLogStartRequest(client.req_id(1), 0),
        messages.SetLogStartRequest(client.req_id(1), 99),
        messages.SetLogStartRequest(client.req_id(5), 3),
        messages.RemovePreferredPartitionRequest(client.req_id(), (1,)),
    ):
        client.ask(request)
    audits = [
        report
        for node in cluster.world.nodes.values()
        for _, report in node.reports
        if report.text.startswith("audit: peer4: ")
    ]
    assert [(report.text.removeprefix("audit: peer4: "), report.peer) for report in audits] == [
        ("prefer partitions 1: done", ""),
        ("prefer partitions 1: done", "peer4"),
        ("prefer partitions 7: refused", "peer4"),
        ("prefer partitions : refused", "peer4"),
        ("raise the log start of partition 1 to 0: nothing changes", "peer4"),
        ("raise the log start of partition 1 to 99: nothing changes", "peer4"),
        ("raise the log start of partition 5 to 3: refused: the partition is not on this server", "peer4"),
        ("do not prefer partitions 1: done", ""),
    ]


# ---- what others can cost --------------------------------------------------------------------


def test_who_does_not_greet_is_dropped_and_who_does_stays() -> None:
    cluster = opened(server_options={"greeting_ms": 5_000})
    client, silent = Client(cluster), cluster.raw_peer(Endpoint("server0", 6000))
    assert cluster.world.run_while(lambda: not silent.closed, 20_000)
    assert told(cluster, "no greeting within 5 s")
    client.mount()


def greet(cluster: SimCluster) -> RawPeer:
    """A peer that greets and says no more."""
    peer = cluster.raw_peer(Endpoint("server0", 6000))
    peer.send(Connection(CLIENT_PROTOCOL, "idle", range(6)).hello())
    return peer


def test_who_greets_and_asks_for_nothing_is_dropped_and_a_silent_client_is_not_before_its_time() -> None:
    places = Places(unproven_ms=30_000, idle_ms=1_800_000)
    cluster = opened(server_options={"places": places})
    client, idle = Client(cluster), greet(cluster)
    client.mount()
    assert cluster.world.run_while(lambda: not idle.closed, 60_000)
    assert told(cluster, "it has asked for nothing within 30 s")
    begin = cluster.world.now
    assert cluster.world.run_while(lambda: not client.peer.closed, 2_000_000)
    assert cluster.world.now - begin >= 1_700_000
    assert told(cluster, "not a byte from it for 1800 s")


def test_idle_connections_keep_nobody_out() -> None:
    cluster = opened(server_options={"places": Places(count_max=10, unproven_ms=30_000)})
    served = Client(cluster)
    served.mount()
    idle = [greet(cluster) for _ in range(20)]
    assert cluster.world.run_while(lambda: sum(peer.closed for peer in idle) < 11, 10_000)
    newcomer = Client(cluster, client_id=8)
    newcomer.mount()
    assert not served.peer.closed
    assert sum(not peer.closed for peer in idle) <= 8


def test_answers_beyond_what_is_sent_at_once_come_as_they_are_taken() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    client.append(bytes(1 << 20))
    client.wait(client.feed)
    client.send(*(messages.TransactionDataRequest(client.req_id(), 0) for _ in range(40)))
    client.wait(lambda: _payloads(client) == 40)


def test_ranges_beyond_what_is_sent_at_once_come_as_they_are_taken() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    client.append(bytes(9 << 20))
    client.wait(client.feed)
    client.send(*(messages.RecordRangeRequest(client.req_id(), 0, 0, 0, 0, False) for _ in range(24)))
    client.wait(lambda: sum(isinstance(one, messages.RecordRangeResponse) for one in client.received) == 24)


def test_answers_that_nobody_takes_end_the_connection() -> None:
    cluster = opened(server_options={"unsent_max": 16 << 20})
    client, other = Client(cluster), Client(cluster, client_id=8)
    client.mount()
    other.mount()
    client.append(bytes(1 << 20))
    client.wait(client.feed)
    client.send(*(messages.TransactionDataRequest(client.req_id(), 0) for _ in range(200)))
    assert ended(cluster, client)
    assert told(cluster, "takes data too slowly")
    other.append(b"x")
    other.wait(lambda: len(other.feed()) == 2)


def test_more_scattered_payloads_than_are_read_at_once_all_come() -> None:
    cluster = opened(server_options={"data_cache_bytes": 0})
    client = Client(cluster)
    client.mount()
    for number in range(100):
        client.append(b"%d" % number)
    client.wait(lambda: len(client.feed()) == 100)
    client.send(*(messages.TransactionDataRequest(client.req_id(), number) for number in range(0, 100, 2)))
    client.wait(lambda: _payloads(client) == 50)


def test_unfinished_frames_together_are_bounded() -> None:
    cluster = opened(server_options={"frame_size_max": 1 << 20, "gathered_max": 1 << 20})
    clients = [Client(cluster) for _ in range(3)]
    head = b"L\x00\x05" + (1 << 20).to_bytes(4, "big")
    for client, size in zip(clients, (400_000, 600_000, 100_000), strict=True):
        client.peer.send(head + bytes(size))
        cluster.world.run_while(lambda: True, 200)
    assert [client.peer.closed for client in clients] == [False, True, False]
    assert told(cluster, "unfinished frames hold")


def test_one_client_id_at_a_time() -> None:
    cluster = opened()
    client = Client(cluster)
    client.send(*(messages.ClusterInfoRequest(client.req_id(), True, False) for _ in range(20)))
    client.wait(lambda: len(client.received) == 20)
    kinds = [type(answer).__name__ for answer in client.received]
    assert kinds.count("ClusterInfoResponse") == 1
    assert {one.code for one in client.received if isinstance(one, messages.ErrorResponse)} == {
        messages.ErrorCode.OVERLOADED
    }


def test_too_many_checks_at_once_end_the_connection() -> None:
    cluster = opened()
    storage = cluster.storages[0].node
    storage.frozen = True
    cluster.world.network.reset_between("server0", storage.name)
    client = Client(cluster)
    assert cluster.world.run_while(lambda: DialState.DIALING.value not in str(nodes(cluster)), 10_000)
    client.send(*(messages.CheckStorageConnectivityRequest(client.req_id()) for _ in range(500)))
    assert ended(cluster, client, 2_000)
    assert told(cluster, "checks of storage nodes at once")


def _payloads(client: Client) -> int:
    return sum(isinstance(one, messages.TransactionDataResponse) and one.success for one in client.received)
