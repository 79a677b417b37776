"""The ports of a client: calls, connections, the cluster, what servers say. The whole outbox of every step."""

from __future__ import annotations

import random
from typing import Any

from tests.fixed_membership import FixedMembership
from tests.unit.client.bench import NOW
from tests.unit.client.desk import EVERYTHING_AT_A, A, B, submit
from waltz_core.base.edge import CloseConn, Closed, Dial, Dialed, Level, Port, Received, Report, Send, Writable
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.client.calls import (
    CloseClient,
    ClusterLost,
    Committed,
    Deliver,
    Failed,
    Fetch,
    Fetched,
    Flush,
    Flushed,
    Joined,
    MarkRead,
    Open,
    Phase,
    ReadMark,
    Reason,
    StatusChanged,
    StopFeed,
)
from waltz_core.client.membership import MapChanged, NullMembership, Unusable
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.client_messages import (
    AppendRequest,
    ClientCapability,
    ClusterInfoRequest,
    FeedData,
    FeedRequest,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    MountRequest,
    MountResponse,
    PartitionState,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.primitives import checksum_of

STREAM, RPC = -1, -2  # the first two connections: of partition 0
HELLO = "hello"


def req(sequence: int) -> ReqId:
    return make_req_id(7, 1, 0, sequence)


class Told(NullMembership):
    """A view of the cluster whose notes the test puts."""

    def start(self, now: int, servers: Any, out: Any, notes: Any) -> None:
        self.servers, self.notes = servers, notes


class Process:
    """A client whose every effect is looked at; what it sends is decoded, in its place among the effects."""

    def __init__(self, membership: Any = None, **settings: Any) -> None:
        membership = membership or FixedMembership(7, 2, EVERYTHING_AT_A)
        self.node = ClientNode(membership, ClientSettings(**settings), random.Random(3))
        self.servers: dict[int, Connection[Any]] = {}

    def step(self, *events: Any, at: int = NOW) -> list[Any]:
        """All effects of one step; `(conn, messages)` stands for bytes."""
        out: list[Any] = []
        self.node.step(at, events, out)
        return [self._decoded(effect) if isinstance(effect, Send) else effect for effect in out]

    def _decoded(self, send: Send) -> tuple[int, list[Any]]:
        server = self.servers.get(send.conn)
        messages: list[Any] = []
        if server is None:
            server = self.servers[send.conn] = Connection(CLIENT_PROTOCOL, "server", VERSIONS)
            messages.append(HELLO)
        server.receive(bytes(send.data), messages)
        return send.conn, messages

    def said(self, conn: int, *messages: Any) -> Received:
        """The server says this in one piece."""
        data = bytearray()
        for message in messages:
            self.servers[conn].encode(message, data)
        return Received(conn, bytes(data))

    def connected(self, *calls: Any) -> None:
        """Calls, and both connections to the server of partition 0 greeted."""
        self.step(*calls)
        for conn in (STREAM, RPC):
            self.step(Dialed(conn))
            self.step(Received(conn, self.servers[conn].hello()))

    def mounted(self) -> None:
        """Partition 0 is mounted, its feed open at -1."""
        self.connected(Open(0, -1, True))
        self.step(self.said(STREAM, MountResponse(req(1), PartitionState.READY)))


# ---- the cluster and its connections ------------------------------------------------------------


def test_the_first_step_joins_and_carries_out_what_waited_for_that() -> None:
    process = Process()
    told = [
        Joined("fixed", 7, 2),
        StatusChanged(0, Phase.WAITING),
        Dial(STREAM, A, Port.CLIENT),
        Dial(RPC, A, Port.CLIENT),
    ]
    assert process.step(Open(0, -1, True)) == told


def test_a_connection_is_greeted_asked_what_it_can_do_and_mounted_over() -> None:
    process = Process()
    process.step(Open(0, -1, True))
    assert process.step(Dialed(STREAM)) == [(STREAM, [HELLO])]
    question = ClusterInfoRequest(make_req_id(7, 0, 0, -1), False, False, ClientCapability.FEED_WINDOWS)
    told = [StatusChanged(0, Phase.MOUNTING), (STREAM, [question, MountRequest(req(1), -1, 0)])]
    assert process.step(Received(STREAM, process.servers[STREAM].hello())) == told


def test_a_connection_for_reads_asks_too_before_there_is_anything_to_read() -> None:
    """Servers end connections that ask for nothing."""
    process = Process()
    process.step(Open(0, -1, True))
    assert process.step(Dialed(RPC)) == [(RPC, [HELLO])]
    question = ClusterInfoRequest(make_req_id(7, 0, 0, -1), False, False, ClientCapability.FEED_WINDOWS)
    assert process.step(Received(RPC, process.servers[RPC].hello())) == [(RPC, [question])]


def test_a_lost_connection_is_reported_before_its_partition_waits_and_is_dialed_again_after_a_pause() -> None:
    process = Process()
    process.mounted()
    told = [Report(Level.WARNING, "no connection to a:1: cut"), StatusChanged(0, Phase.WAITING)]
    assert process.step(Closed(STREAM, "cut")) == told
    assert process.step(Closed(STREAM, "cut")) == [], "that was a connection of before"
    due = process.node.deadline()
    assert due is not None
    assert due < NOW + 50
    assert process.step(at=due) == [Dial(-3, A, Port.CLIENT)]


def test_a_server_that_leaves_the_cluster_loses_its_connections_and_partitions() -> None:
    membership = FixedMembership(7, 2, EVERYTHING_AT_A)
    process = Process(membership)
    process.mounted()
    membership.change([(B, [(0, 2)])])
    gone = "the server left the cluster"
    told = [
        StatusChanged(0, Phase.WAITING),
        CloseConn(STREAM, gone),
        CloseConn(RPC, gone),
        Dial(-3, B, Port.CLIENT),
        Dial(-4, B, Port.CLIENT),
    ]
    assert process.step() == told


def test_a_server_that_does_not_greet_is_closed_without_waiting_for_the_end() -> None:
    process = Process(unmounted_warning_ms=60_000)
    process.step(Open(0, -1, True))
    process.step(Dialed(STREAM))
    assert process.step(at=NOW + 9_999) == []
    assert process.step(at=NOW + 10_000) == [CloseConn(STREAM, "the server does not greet")]
    assert process.node.link_kind(STREAM) is None
    assert process.step(Closed(STREAM, "late"), at=NOW + 10_001) == []


def test_a_message_that_no_server_sends_ends_the_connection_after_what_came_before_it() -> None:
    process = Process()
    process.connected(Open(0, -1, True))
    record = FeedData(make_req_id(9, 1, 0, 1), 0, 5)
    question = ClusterInfoRequest(make_req_id(7, 0, 0, -1), False, False, ClientCapability.FEED_WINDOWS)
    told = [
        Deliver(0, [record]),
        Report(Level.WARNING, "no connection to a:1: unknown partition state 9"),
        (STREAM, [question]),
        CloseConn(STREAM, "unknown partition state 9"),
        StatusChanged(0, Phase.WAITING),
    ]
    assert process.step(process.said(STREAM, record, MountResponse(req(1), 9))) == told


def test_a_cluster_that_never_answers_ends_the_client_in_time() -> None:
    told = Told()
    process = Process(told, connect_ms=2_000)
    assert process.step() == []
    assert process.node.deadline() == NOW + 2_000
    reason = "no cluster answered within 2 s (client.connectTimeout): "
    assert process.step(at=NOW + 2_000) == [ClusterLost(reason)]


def test_notes_of_the_membership_are_heard_in_their_order() -> None:
    view = Told()
    process = Process(view)
    assert process.step(Open(0, -1, False), submit("x")) == []
    view.notes.put(Joined("late", 9, 2))
    view.notes.put(MapChanged([(B, [(0, 3)])]))
    view.notes.put(Unusable("it is another one now"))
    told = [
        Joined("late", 9, 2),
        StatusChanged(0, Phase.WAITING),
        ClusterLost("it is another one now"),
        Dial(-1, B, Port.CLIENT),
        Dial(-2, B, Port.CLIENT),
    ]
    assert process.step() == told
    assert view.servers.doubted, "a partition that waits is a reason to ask others"


# ---- calls and messages --------------------------------------------------------------------------


def test_an_append_is_one_message_and_its_outcome_comes_before_what_is_delivered() -> None:
    process = Process()
    process.mounted()
    (sent,) = process.step(submit("x"))
    request = sent[1][0]
    assert sent == (STREAM, [request])
    assert (type(request), request.req_id) == (AppendRequest, req(2))
    record = FeedData(req(2), 0, 9)
    assert process.step(process.said(STREAM, record)) == [Committed(0, [("x", 0)]), Deliver(0, [record])]


def test_appends_wait_while_the_connection_is_full_and_leave_together() -> None:
    process = Process()
    process.mounted()
    assert process.step(Writable(STREAM, False), submit("x"), submit("y")) == []
    ((conn, messages),) = process.step(Writable(STREAM, True))
    assert conn == STREAM
    assert [message.data for message in messages] == [b"'x'", b"'y'"]


def test_payloads_and_marks_are_read_beside_the_mount() -> None:
    process = Process()
    process.mounted()
    asked = [HighWaterMarkRequest(req(1)), TransactionDataRequest(req(2), 4)]
    assert process.step(ReadMark(0, "m"), Fetch(0, (4,))) == [(RPC, asked)]
    payload = TransactionDataResponse(req(2), 4, True, b"p", checksum_of(b"p"))
    answers = process.said(RPC, payload, HighWaterMarkResponse(req(1), 8))
    assert process.step(answers) == [MarkRead(0, 8, ("m",)), Fetched(0, [(4, (b"p",))])]


def test_answers_over_another_connection_are_for_nobody() -> None:
    process = Process()
    process.mounted()
    process.step(ReadMark(0, "m"))
    assert process.step(process.said(STREAM, HighWaterMarkResponse(req(1), 8))) == []
    assert process.step(process.said(RPC, FeedData(req(9), 0, 1))) == []


def test_a_mount_is_answered_by_the_request_for_the_feed() -> None:
    process = Process()
    process.connected(Open(0, 3, True))
    told = process.step(process.said(STREAM, MountResponse(req(1), PartitionState.READY)))
    question = ClusterInfoRequest(make_req_id(7, 0, 0, -1), False, False, ClientCapability.FEED_WINDOWS)
    assert told == [StatusChanged(0, Phase.MOUNTED), (STREAM, [question, FeedRequest(req(1), 3)])]


def test_a_partition_that_nobody_uses_is_closed_with_its_feed() -> None:
    process = Process()
    process.mounted()
    assert process.step(StopFeed(0)) == [StatusChanged(0, Phase.CLOSED)]
    assert process.step(Flush(0, "f")) == [Flushed(0, "f")]


def test_a_closed_client_ends_its_appends_first_and_takes_no_others() -> None:
    process = Process()
    process.mounted()
    process.step(submit("x"))
    closed = "the client is closed"
    told = [
        Failed(0, "x", Reason.CLOSED),
        StatusChanged(0, Phase.CLOSED),
        CloseConn(STREAM, closed),
        CloseConn(RPC, closed),
    ]
    assert process.step(CloseClient()) == told
    assert process.step(submit("y"), ReadMark(0, "m"), Open(1, -1, True)) == [Failed(0, "y", Reason.CLOSED)]
    assert process.node.deadline() is None
