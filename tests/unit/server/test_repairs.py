"""A server sends a damaged replica to the others for good records: once, again while it helps, never too often."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.unit.server.desk import Desk
from waltz_core.base.edge import (
    CloseConn,
    Closed,
    Dial,
    Dialed,
    Received,
    Report,
    Send,
    ZkDone,
    ZkError,
    ZkFailed,
    ZkGet,
)
from waltz_core.base.ids import Endpoint
from waltz_core.cluster.notifications import Joined
from waltz_core.server.context import ClusterState, Dials, PortsRead, StorageAlarm
from waltz_core.server.repairs import AGAIN_MS, ANSWER_MS, Repairs
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_messages import RepairedRange, RepairOutcome
from waltz_core.wire.connection import ADMIN_PROTOCOL, Connection
from waltz_core.zookeeper.znodes import ConnectionMetadata, ReplicaAssignments, encode_connection_metadata

REPLICAS = ("a:1", "b:1", "c:1")
JOINED = Joined("test", 1, UUID(int=5).bytes, 1, None)
PORTS = ConnectionMetadata((("a:1", 11), ("b:1", 12), ("c:1", 13)))


class Bench(Desk):
    """The repairs of one server, a node that answers, and time."""

    def __init__(self, codecs: tuple[int, ...] = (0, 1)) -> None:
        super().__init__()
        self.now = 0
        self.conn = 0
        self.kept: list[Any] = []
        cluster = ClusterState()
        cluster.joined = JOINED
        cluster.replicas = ReplicaAssignments(tuple((replica, (0,)) for replica in REPLICAS))
        self.repairs = Repairs("/root", cluster, self.outbox, self.pending, self.alarms, self._take)
        self.node: Connection[admin.AdminMessage] = Connection(ADMIN_PROTOCOL, "node", codecs)
        self.asked: list[admin.AdminMessage] = []

    def _take(self, owner: Dials) -> int:
        assert owner is self.repairs
        self.conn -= 1
        return self.conn

    def take(self, kind: type) -> list[Any]:
        self.kept += self.out()
        taken = [one for one in self.kept if isinstance(one, kind)]
        self.kept = [one for one in self.kept if not isinstance(one, kind)]
        return taken

    def want(self) -> None:
        self.repairs.wanted(self.now, 0, "a:1")

    def ports(self, metadata: bytes | None = encode_connection_metadata(PORTS)) -> None:
        (request,) = self.take(ZkGet)
        assert request.path == "/root/store/connection"
        self.answered(ZkDone(request.ticket, data=metadata))

    def answered(self, event: ZkDone | ZkFailed) -> None:
        asked = self.pending.take(event.ticket)
        assert asked == PortsRead(0, "a:1")
        self.repairs.ports_read(event, asked)

    @property
    def due(self) -> int | None:
        return self.alarms.at(StorageAlarm.REPAIRS)

    def ring(self, *, ours: bool) -> None:
        assert self.alarms.due(self.now) == [StorageAlarm.REPAIRS]
        self.repairs.due(self.now, lambda partition, replica: ours)

    def connect(self) -> None:
        (dial,) = self.take(Dial)
        assert dial.endpoint == Endpoint("a", 11)
        self.repairs.dialed(self.now, Dialed(dial.conn))
        self.say(self.node.hello())
        self.hear()

    def say(self, data: bytes) -> None:
        self.repairs.received(self.now, Received(self.conn, data))

    def answer(self, message: admin.AdminMessage) -> None:
        data = bytearray()
        self.node.encode(message, data)
        self.say(bytes(data))
        self.hear()

    def hear(self) -> None:
        for sent in self.take(Send):
            self.node.receive(bytes(sent.data), self.asked)

    def until_asked(self) -> admin.RepairRequest:
        self.want()
        self.ports()
        self.connect()
        self.answer(admin.AdminSuccessResponse(-1))
        request = self.asked[-1]
        assert isinstance(request, admin.RepairRequest)
        return request

    def texts(self) -> list[str]:
        return [one.text for one in self.take(Report)]


def test_a_damaged_replica_is_told_the_admin_ports_of_all_others() -> None:
    bench = Bench()
    request = bench.until_asked()
    assert (request.partition_id, request.ranges) == (0, ())
    assert request.sources == (Endpoint("b", 12), Endpoint("c", 13))
    assert list(bench.repairs.asked()) == [(0, "a:1")]
    bench.answer(admin.RepairResponse(request.seq_num, 0, (RepairedRange(3, 5, RepairOutcome.REPAIRED),), None))
    assert bench.texts() == ["partition 0: repair of replica a:1: 3 transactions repaired"]
    assert [one.conn for one in bench.take(CloseConn)] == [-1]
    assert bench.due is None
    bench.repairs.closed(bench.now, Closed(-1, "the repair has ended"))
    assert bench.texts() == []
    assert list(bench.repairs.asked()) == []


def test_what_stays_damaged_is_said_once_and_tried_again_less_and_less_often() -> None:
    bench = Bench()
    times: list[int] = []
    for _ in range(4):
        request = bench.until_asked() if not times else None
        if request is None:
            due = bench.due
            assert due is not None
            bench.now = due
            bench.node = Connection(ADMIN_PROTOCOL, "node", (0, 1))
            bench.ring(ours=True)
            bench.ports()
            bench.connect()
            bench.answer(admin.AdminSuccessResponse(-1))
            found = bench.asked[-1]
            assert isinstance(found, admin.RepairRequest)
            request = found
        times.append(bench.now)
        left = RepairedRange(7, 7, RepairOutcome.NO_SOURCE)
        bench.answer(admin.RepairResponse(request.seq_num, 0, (left,), "b:12 does not answer"))
        bench.take(CloseConn)
    assert times == [0, AGAIN_MS, 3 * AGAIN_MS, 7 * AGAIN_MS]
    assert bench.texts() == [
        "partition 0: repair of replica a:1: 0 transactions repaired; waiting for an operator: "
        "7..7 no source (b:12 does not answer)"
    ]


def test_a_replica_that_is_no_longer_ours_is_not_tried_again() -> None:
    bench = Bench()
    request = bench.until_asked()
    left = RepairedRange(7, 7, RepairOutcome.SOURCES_DISAGREE)
    bench.answer(admin.RepairResponse(request.seq_num, 0, (left,), None))
    bench.now = AGAIN_MS
    bench.ring(ours=False)
    assert bench.take(ZkGet) == []
    assert bench.due is None


def test_one_repair_at_a_time_and_not_two_in_a_row() -> None:
    bench = Bench()
    request = bench.until_asked()
    bench.want()
    assert bench.take(ZkGet) == []
    bench.answer(admin.RepairResponse(request.seq_num, 0, (), None))
    bench.want()
    assert bench.take(ZkGet) == []
    bench.now = AGAIN_MS
    bench.want()
    assert len(bench.take(ZkGet)) == 1


@pytest.mark.parametrize("data", [None, b"\0\0", encode_connection_metadata(ConnectionMetadata(()))])
def test_without_an_admin_port_nothing_is_dialed(data: bytes | None) -> None:
    bench = Bench()
    bench.want()
    bench.ports(data)
    assert bench.take(Dial) == []
    assert "the admin port of a:1 is not known" in bench.texts()[-1]


def test_a_zookeeper_that_does_not_answer_is_no_end() -> None:
    bench = Bench()
    bench.want()
    (request,) = bench.take(ZkGet)
    bench.answered(ZkFailed(request.ticket, ZkError.UNAVAILABLE))
    assert bench.due == AGAIN_MS
    assert len(bench.pending) == 0


def test_a_node_of_0_13_2_is_not_asked() -> None:
    bench = Bench(codecs=(0,))
    bench.want()
    bench.ports()
    bench.connect()
    bench.answer(admin.AdminSuccessResponse(-1))
    assert not isinstance(bench.asked[-1], admin.RepairRequest)
    assert "it runs 0.13.2" in bench.texts()[-1]
    assert len(bench.take(CloseConn)) == 1


def test_a_node_that_refuses_is_named() -> None:
    bench = Bench()
    request = bench.until_asked()
    bench.answer(admin.AdminFailureResponse(request.seq_num, "is being repaired already"))
    assert "refused: is being repaired already" in bench.texts()[-1]


def test_a_node_that_answers_nonsense_is_given_up() -> None:
    bench = Bench()
    bench.until_asked()
    bench.answer(admin.AdminSuccessResponse(1))
    assert "unexpected answer AdminSuccessResponse" in bench.texts()[-1]


def test_a_node_of_another_cluster_is_given_up() -> None:
    bench = Bench()
    bench.want()
    bench.ports()
    bench.connect()
    bench.answer(admin.AdminFailureResponse(-1, "wrong cluster key"))
    assert len(bench.take(CloseConn)) == 1
    bench.repairs.closed(bench.now, Closed(bench.conn, "closed"))
    assert "refused to open: wrong cluster key" in bench.texts()[-1]


def test_bytes_that_are_no_admin_port_end_the_repair() -> None:
    bench = Bench()
    bench.until_asked()
    bench.say(b"\xff" * 40)
    assert len(bench.take(CloseConn)) == 1
    bench.repairs.closed(bench.now, Closed(bench.conn, "closed"))
    assert "it sent what an admin port never sends" in bench.texts()[-1]


def test_a_silent_node_is_given_up() -> None:
    bench = Bench()
    bench.until_asked()
    bench.now = ANSWER_MS
    bench.ring(ours=False)
    assert len(bench.take(CloseConn)) == 1
    assert "no answer within 600 s" in bench.texts()[-1]


def test_a_replica_whose_repair_outlasts_the_pause_is_tried_again_after_it() -> None:
    """A node that hangs must not keep its replica damaged until somebody reads the damage once more."""
    bench = Bench()
    bench.until_asked()
    while bench.now < ANSWER_MS:
        assert bench.due is not None
        assert bench.due > bench.now, "it wakes for nothing"
        bench.now = bench.due
        assert bench.take(ZkGet) == []
        bench.ring(ours=True)
    assert "no answer within 600 s" in bench.texts()[-1]
    assert len(bench.take(ZkGet)) == 1, "another repair begins"


def test_what_comes_of_a_connection_that_was_given_up_says_nothing_of_the_next_repair() -> None:
    bench = Bench()
    bench.until_asked()
    bench.now = ANSWER_MS
    bench.ring(ours=False)
    bench.want()
    bench.ports()
    assert [one.conn for one in bench.take(Dial)] == [-2]
    bench.texts()
    bench.repairs.received(bench.now, Received(-1, b"late"))
    bench.repairs.closed(bench.now, Closed(-1, "no answer"))
    assert bench.texts() == []
    assert list(bench.repairs.asked()) == [(0, "a:1")]
    bench.repairs.closed(bench.now, Closed(-2, "cannot connect"))
    assert bench.texts() == ["partition 0: repair of replica a:1: its admin port: a:11: cannot connect"]
