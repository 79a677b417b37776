"""A server process as a whole: events in, everything that leaves it."""

from __future__ import annotations

import gc
import random
import sys
from types import FrameType
from typing import Any

import pytest

from waltz_core.access.roles import Role, Roles, RolesChanged, Rule
from waltz_core.base.edge import (
    Accepted,
    CloseConn,
    Closed,
    Dial,
    Port,
    Reading,
    Received,
    Report,
    Send,
    Writable,
    ZkDone,
    ZkGet,
    ZkSet,
    ZkStat,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.cluster.notifications import Joined
from waltz_core.server.config import ServerConfig
from waltz_core.server.context import ClusterAlarm, ClusterState, PreferenceStep
from waltz_core.server.feed import SendFrames
from waltz_core.server.feed_cache import FRAME_SIZE
from waltz_core.server.node import ServerNode
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.directory import open_control
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.primitives import checksum_of
from waltz_core.zookeeper.znodes import ReplicaAssignments, encode_id_counter


class Bench:
    """A server that nobody has assigned anything, and clients by number."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0
        self.node = ServerNode(ServerConfig("/root", Endpoint("here", 1), **settings), random.Random(1))
        self.clients: dict[int, Connection[messages.ClientMessage]] = {}

    def step(self, *events: Any) -> list[Any]:
        out: list[Any] = []
        self.node.step(self.now, events, out)
        return out

    def accept(self, conn: int, *names: str) -> list[Any]:
        """Connects and greets; returns what the server does, its hello apart."""
        client = self.clients[conn] = Connection(CLIENT_PROTOCOL, "test", {5})
        (hello,) = self.step(Accepted(conn, Port.CLIENT, f"10.0.0.{conn % 200}:{conn}", names))
        client.receive(hello.data, [])
        return self.step(Received(conn, client.hello()))

    def ask(self, conn: int, *asked: messages.ClientMessage) -> list[Any]:
        data = bytearray()
        for message in asked:
            self.clients[conn].encode(message, data)
        return self.step(Received(conn, bytes(data)))

    def answers(self, out: list[Any], conn: int) -> list[messages.ClientMessage]:
        found: list[messages.ClientMessage] = []
        for effect in out:
            if isinstance(effect, Send) and effect.conn == conn:
                self.clients[conn].receive(bytes(effect.data), found)
        return found


def lines_of_an_empty_step(bench: Bench) -> int:
    """How many lines of the core run when a step has nothing to do."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "waltz_core" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    bench.step()
    # A collection that falls into the step closes the generators of the core that other tests left suspended, and
    # their lines would be counted here: so it is run before, and none may start meanwhile.
    gc.collect()
    gc.disable()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        bench.node.step(bench.now, (), [])
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def test_an_idle_connection_costs_a_step_nothing() -> None:
    bench = Bench()
    alone = lines_of_an_empty_step(bench)
    for conn in range(1, 301):
        bench.accept(conn)
    assert lines_of_an_empty_step(bench) == alone


class LitteringBench(Bench):
    """Leaves suspended generators of the core behind, for the next collection to close."""

    def step(self, *events: Any) -> list[Any]:
        out = super().step(*events)
        gc.set_threshold(0)
        for _ in range(50):
            generator = open_control(StorageConfig(key=bytes(16), partition_count=1), 0)
            next(generator)
            cycle: list[Any] = [generator]
            cycle.append(cycle)
        gc.set_threshold(1, 1, 1)
        return out


def test_generators_that_others_left_suspended_are_not_counted_as_lines_of_a_step() -> None:
    thresholds = gc.get_threshold()
    try:
        assert lines_of_an_empty_step(LitteringBench()) == lines_of_an_empty_step(Bench())
    finally:
        gc.set_threshold(*thresholds)


def test_answers_of_one_step_leave_as_one_piece_and_only_where_something_was_asked() -> None:
    bench = Bench()
    for conn in (1, 2, 3):
        bench.accept(conn)
    mounts = [messages.MountRequest(make_req_id(7, 1, partition, 1), -1, 0) for partition in (0, 1)]
    out = bench.ask(2, *mounts)
    assert [type(effect) for effect in out] == [Send]
    not_ready = messages.PartitionState.NOT_READY
    assert bench.answers(out, 2) == [messages.MountResponse(mount.req_id, not_ready) for mount in mounts]


def test_a_breach_of_the_protocol_is_answered_by_what_came_before_and_then_the_end() -> None:
    bench = Bench()
    bench.accept(1)
    mount = messages.MountRequest(make_req_id(7, 1, 0, 1), -1, 0)
    data = bytearray()
    bench.clients[1].encode(mount, data)
    out = bench.step(Received(1, bytes(data) + b"\x00\x00\x00\x0a" + b"\xff" * 10))
    assert [type(effect) for effect in out] == [Send, Report, CloseConn]
    assert bench.answers(out, 1) == [messages.MountResponse(mount.req_id, messages.PartitionState.NOT_READY)]
    assert bench.ask(1, mount) == []  # nothing of it is looked at any more
    assert bench.step(Closed(1, "closed")) == []
    assert bench.node.waiting == 0


def test_whoever_does_not_greet_is_dropped_when_it_is_time() -> None:
    bench = Bench(greeting_ms=5_000)
    bench.step(Accepted(1, Port.CLIENT, "10.0.0.1:1"))
    bench.now = 1_000
    bench.accept(2)
    assert bench.node.deadline() == 5_000
    bench.now = 5_000
    assert [(type(effect), getattr(effect, "conn", 0)) for effect in bench.step()] == [(Report, 0), (CloseConn, 1)]
    assert bench.node.deadline() is None


def test_many_requests_wait_for_their_turn_and_reading_stops_meanwhile() -> None:
    bench = Bench()
    bench.accept(1)
    mounts = [messages.MountRequest(make_req_id(7, 1, 0, number), -1, 0) for number in range(500)]
    out = bench.ask(1, *mounts)
    answered = len(bench.answers(out, 1))
    assert 0 < answered < 500
    assert [effect.wanted for effect in out if not isinstance(effect, Send)] == [False]
    while bench.node.deadline() == bench.now:
        out = bench.step()
        answered += len(bench.answers(out, 1))
    assert answered == 500
    assert [effect.wanted for effect in out if not isinstance(effect, Send)] == [True]


def test_no_step_decodes_more_of_a_connection_than_one_turn_takes() -> None:
    """What pours in costs time only when it is looked at, and nothing when its connection ends."""
    bench = Bench()
    bench.accept(1)
    asked = messages.ServerPartitionsAssignmentRequest(make_req_id(7, 1, 0, 1))
    data = bytearray()
    bench.clients[1].encode(asked, data)
    out = bench.step(Received(1, bytes(data) * 5_000))
    answered, before = len(bench.answers(out, 1)), 0
    assert answered <= 200
    assert [effect.wanted for effect in out if isinstance(effect, Reading)] == [False]
    while bench.node.deadline() == bench.now:
        assert bench.node.waiting <= 101
        before, answered = answered, answered + len(bench.answers(bench.step(), 1))
        assert answered - before <= 200
    assert answered == 5_000
    assert bench.node.waiting == 0

    bench.step(Received(1, bytes(data) * 5_000))
    bench.step(Closed(1, "gone"))
    assert (bench.node.waiting, bench.node.deadline()) == (0, None)


def test_keep_alives_in_a_row_do_not_keep_a_request_behind_them() -> None:
    bench = Bench()
    bench.accept(1)
    asked = messages.ServerPartitionsAssignmentRequest(make_req_id(7, 1, 0, 1))
    data = bytearray()
    bench.clients[1].encode(asked, data)
    answers = bench.answers(bench.step(Received(1, bench.clients[1].keep_alive() * 350 + bytes(data))), 1)
    while bench.node.deadline() == bench.now:
        answers += bench.answers(bench.step(), 1)
    assert len(answers) == 1


def test_a_breach_behind_many_requests_ends_the_connection() -> None:
    bench = Bench()
    bench.accept(1)
    asked = messages.ServerPartitionsAssignmentRequest(make_req_id(7, 1, 0, 1))
    data = bytearray()
    bench.clients[1].encode(asked, data)
    out = bench.step(Received(1, bytes(data) * 300 + b"\xff" * 20))
    while bench.node.deadline() == bench.now:
        out += bench.step()
    assert any(isinstance(effect, CloseConn) and "magic byte" in effect.reason for effect in out)
    assert len(bench.answers(out, 1)) >= 200
    assert bench.node.waiting == 0


def test_the_log_names_who_breaks_off_in_the_middle_of_a_frame() -> None:
    bench = Bench()
    bench.accept(1)
    bench.step(Received(1, bench.clients[1].keep_alive()[:-2]))
    [line] = [effect for effect in bench.step(Closed(1, "reset")) if isinstance(effect, Report)]
    assert line.text == "10.0.0.1:1 ended its connection in the middle of a frame, of which 5 bytes came"
    assert line.peer == "10.0.0.1:1", "so that lines of its kind are counted"


def test_a_connection_that_takes_no_data_is_read_from_again_when_it_does() -> None:
    bench = Bench()
    bench.accept(1)
    assert [effect.wanted for effect in bench.step(Writable(1, False))] == [False]
    assert [effect.wanted for effect in bench.step(Writable(1, True))] == [True]


def test_what_zookeeper_answers_finds_who_asked() -> None:
    bench = Bench()
    bench.accept(1)
    reads = bench.step(ZkStateChanged(ZkState.CONNECTED, 1))
    assert reads
    assert all(isinstance(effect, ZkGet) for effect in reads)
    # An answer that nobody waits for changes nothing.
    before = bench.node.deadline()
    assert bench.step(ZkDone(10_000)) == []
    assert bench.node.deadline() == before


def test_no_client_id_is_taken_for_a_connection_that_has_ended() -> None:
    bench = Bench()
    bench.node._context.cluster.joined = Joined("cluster", 4, bytes(16), 1, None)
    asked = []
    for conn in (1, 2):
        bench.accept(conn)
        asked += bench.ask(conn, messages.ClusterInfoRequest(make_req_id(-1, 0, 0, conn), True, False))
    (read,) = asked
    bench.step(Closed(2, "reset"))
    (write,) = bench.step(ZkDone(read.ticket, ZkStat(0, 0), encode_id_counter(6)))
    assert write == ZkSet(write.ticket, "/root/ids/client", encode_id_counter(7), 0)
    out = bench.step(ZkDone(write.ticket, ZkStat(1, 0)))
    (answer,) = bench.answers(out, 1)
    assert isinstance(answer, messages.ClusterInfoResponse)
    assert answer.client_id == 7
    assert not [effect for effect in out if isinstance(effect, ZkGet)]


def test_changed_roles_end_the_connections_that_they_concern() -> None:
    orders, audit = Rule("orders", Role.CLIENT, write=((0, 3),)), Rule("audit", Role.CLIENT, read=((0, 9),))
    bench = Bench(roles=Roles([orders, audit]))
    for conn, names in enumerate((("orders",), ("audit",), ("stranger",), ("by its alias", "audit")), start=1):
        bench.accept(conn, *names)

    out = bench.step(
        RolesChanged(Roles([audit, Rule("orders", Role.CLIENT, write=((0, 2),)), Rule("str*", Role.ADMIN)]))
    )

    assert [effect.conn for effect in out if isinstance(effect, CloseConn)] == [1, 3]
    lines = [effect.text for effect in out if isinstance(effect, Report)]
    assert lines[1] == (
        "connection of 10.0.0.3:3 closed: the roles have changed: certificate 'stranger' at 10.0.0.3:3 (no role) is "
        "certificate 'stranger' at 10.0.0.3:3 (admin) now"
    )
    bench.accept(5, "orders")
    refused = bench.ask(5, messages.AppendRequest(make_req_id(9, 0, 3, 1), -1, (), (), (), 0, b"", 0))
    assert any(isinstance(effect, Report) and "may not append to partition 3" in effect.text for effect in refused)
    assert not bench.step(
        RolesChanged(Roles([audit, Rule("orders", Role.CLIENT, write=((0, 2),)), Rule("str*", Role.ADMIN)]))
    )


def test_the_storage_nodes_of_a_partition_are_those_of_the_newest_assignment() -> None:
    cluster = ClusterState()
    assert cluster.storages_of(1) == ()
    cluster.replicas = ReplicaAssignments((("a:1", (0, 1)), ("b:1", (1,))))
    assert cluster.storages_of(1) == ("a:1", "b:1")
    assert cluster.storages_of(2) == ()
    cluster.replicas = ReplicaAssignments((("b:1", (1,)),))
    assert [cluster.storages_of(partition_id) for partition_id in (0, 1)] == [(), ("b:1",)]
    cluster.replicas = None
    assert cluster.storages_of(1) == ()


@pytest.mark.parametrize("ended", [True, False])
def test_bytes_of_unfinished_frames_count_until_their_connection_ends_or_is_dropped(ended: bool) -> None:
    """Or their sum would reach its limit for good, and everybody would be dropped for it, again and again."""
    bench = Bench()
    bench.accept(1)
    frame = bytearray()
    bench.clients[1].encode(messages.AppendRequest(make_req_id(7, 1, 0, 1), -1, (), (), (), 0, bytes(4_000), 0), frame)
    bench.step(Received(1, bytes(frame[:-1])))
    port = bench.node._clients
    assert port._gathered > 4_000
    if ended:
        bench.step(Closed(1, "reset"))
    else:
        port.close(1, "why")
    assert port._gathered == 0


def test_a_client_id_is_free_for_everybody_once_its_connections_are_gone() -> None:
    bench = Bench()
    for conn, name in enumerate(("one", "another"), start=1):
        bench.accept(conn, name)
        out = bench.ask(conn, messages.MountRequest(make_req_id(7, 1, 0, 1), -1, 0))
        not_ready = messages.MountResponse(make_req_id(7, 1, 0, 1), messages.PartitionState.NOT_READY)
        assert bench.answers(out, conn) == [not_ready]
        bench.step(Closed(conn, "reset"))


def test_who_mounts_often_and_never_at_once_is_let_be() -> None:
    bench = Bench()
    bench.accept(1)
    mounts = [messages.MountRequest(make_req_id(7, 1, 0, number), -1, 0) for number in range(60)]
    answered = 0
    for _ in range(50):
        out = bench.ask(1, *mounts)
        while bench.node._clients.in_turns:
            bench.now += 1
            out += bench.step()
        assert not [effect for effect in out if isinstance(effect, CloseConn)]
        answered += len(bench.answers(out, 1))
    assert answered == 50 * len(mounts)


def test_requests_whose_turns_are_over_are_forgotten_although_the_next_one_has_begun_to_come() -> None:
    bench = Bench()
    bench.accept(1)
    mount, data = messages.MountRequest(make_req_id(7, 1, 0, 1), -1, 0), bytearray()
    bench.clients[1].encode(mount, data)
    count, rest, answered = 100, b"", 0
    for _ in range(50):
        out = bench.step(Received(1, rest + bytes(data) * count + bytes(data[:9])))
        rest = bytes(data[9:])
        while bench.node._clients.in_turns:
            bench.now += 1
            out += bench.step()
        assert not [effect for effect in out if isinstance(effect, CloseConn)]
        answered += len(bench.answers(out, 1))
        assert [conn.queued for conn in bench.node._clients._conns.values()] == [0]
    assert answered == 50 * count + 49


def test_nothing_is_kept_of_a_subscriber_that_is_gone() -> None:
    bench = Bench()
    bench.accept(1)
    bench.ask(1, messages.ClusterInfoRequest(make_req_id(7, 0, 0, 1), client_id_wanted=False, subscribe=True))
    assert set(bench.node._cluster._subscribers) == {1}
    bench.step(Closed(1, "reset"))
    assert bench.node._cluster._subscribers == {}


def test_who_takes_his_payloads_late_is_not_closed_for_all_that_he_ever_took() -> None:
    bench = Bench(out_bytes_max=100, unsent_max=2_000)
    bench.accept(1)
    port, taken = bench.node._clients, 0
    for number in range(30):
        req_id = make_req_id(7, 1, 0, number)
        payload = messages.TransactionDataResponse(req_id, number, True, bytes(200), checksum_of(bytes(200)))
        for _ in range(3):
            port.reply(1, payload)
        out = bench.step()
        while port.backlogged:
            bench.now += 1
            out += bench.step()
        assert not [effect for effect in out if isinstance(effect, CloseConn)]
        taken += len(bench.answers(out, 1))
    assert taken == 90


def test_a_change_of_preferences_is_answered_once_it_is_kept() -> None:
    bench = Bench()
    bench.accept(1)
    cluster, done = bench.node._cluster, messages.AddPreferredPartitionResponse(make_req_id(7, 0, 0, 1), True)
    cluster._preferences.keep((0,))
    (write,) = [effect for effect in bench.step() if isinstance(effect, ZkSet)]
    cluster.answer_preference(1, done)
    assert bench.answers(bench.step(), 1) == []
    cluster.answered(0, ZkDone(write.ticket, ZkStat(1, 0)), PreferenceStep.WRITE)
    assert bench.answers(bench.step(), 1) == [done]


def test_another_server_whose_connection_has_ended_is_dialed_again() -> None:
    bench = Bench()
    cluster = bench.node._cluster
    cluster._watch((("s2", Endpoint("there", 2)),))
    (dial,) = [effect for effect in bench.step() if isinstance(effect, Dial)]
    bench.step(Closed(dial.conn, "reset"))
    due = bench.node._alarms.at(ClusterAlarm.NEIGHBORS)
    assert due is not None
    bench.now = due
    assert [effect.endpoint for effect in bench.step() if isinstance(effect, Dial)] == [dial.endpoint]


def test_feeds_of_a_connection_that_takes_nothing_do_not_go_on_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(out_bytes_max=100)
    told: list[bool] = []
    bench.accept(1)
    port = bench.node._clients
    monkeypatch.setattr(port._partitions, "writable", lambda conn, partitions, writable: told.append(writable))
    port._send_frames(SendFrames(1, bytes(10 * FRAME_SIZE)))
    assert told == [False], "it was sent enough for this step"
    bench.step(Writable(1, False))
    assert told == [False, False]
    bench.step(Writable(1, True))
    assert told == [False, False, True]
