"""What reading a long log costs: headers that servers send, counted against the length of the log."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.fixed_membership import FixedMembership
from tests.model.small_server import SmallLog, SmallServer
from tests.unit.client.desk import A, Desk, foreign, own, submit
from tests.unit.client.test_partition import explain
from waltz_core.base.edge import Dial, Dialed, Received, Send
from waltz_core.base.ids import make_req_id
from waltz_core.client.calls import Committed, Consumed, Deliver, Open
from waltz_core.client.link import Kind
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import (
    AppendRequest,
    Capability,
    ClientCapability,
    FeedRequest,
    FeedSuspended,
    FeedWindowRequest,
    MountRequest,
    MountResponse,
    PartitionState,
)

READY = PartitionState.READY
BUFFER = 20
MOUNT = 8  # transactions that the small server sends before it answers a mount


class Reader:
    """A client that reads a log from its start, `pace` transactions at a time, and appends when it is asked to."""

    def __init__(self, length: int, *, codec: int = 5, pace: int = 7) -> None:
        self.log = SmallLog()
        for number in range(length):
            self.log.commit(AppendRequest(make_req_id(99, 1, 0, number), -1, (), (), (), 0, b"", 0))
        self.server = SmallServer(A, {0: self.log}, window=MOUNT, versions=range(codec + 1))
        self.server.view.names = True
        self.server.view.servers.append(self.server)
        self.server.own(0, 1)
        settings = ClientSettings(feed_buffer_max=BUFFER)
        self.node = ClientNode(FixedMembership(7, 1, ((A, ((0, 1),)),)), settings, random.Random(1))
        self.pace = pace
        self.now = 0
        self.conns: dict[int, Any] = {}
        self.got: list[int] = []
        self.consumed = -1
        self.peak = 0
        self.committed: list[object] = []
        self.step(Open(0, -1, True))

    def step(self, *events: Any) -> None:
        out: list[Any] = []
        self.node.step(self.now, events, out)
        for effect in out:
            match effect:
                case Dial(conn=conn):
                    self.conns[conn] = self.server.accept()
                    self.step(Dialed(conn))
                case Send(conn=conn, data=data):
                    self.server.receive(self.conns[conn], bytes(data))
                case Deliver(run=run):
                    self.got += [each.transaction_id for each in run]
                    self.peak = max(self.peak, self.got[-1] - self.consumed)
                case Committed(outcomes=outcomes):
                    self.committed += [token for token, _ in outcomes]

    def turn(self) -> None:
        """The server does all it can, what it sent arrives, then the application reads a little."""
        while self.server.work(0):
            pass
        for number, conn in list(self.conns.items()):
            for window in list(conn.windows):
                self.server.feed(conn, window, 1_000_000)
            data, conn.out = bytes(conn.out), bytearray()
            if data:
                self.step(Received(number, data))
        if self.got and self.consumed < self.got[-1]:
            self.consumed = min(self.consumed + self.pace, self.got[-1])
            self.step(Consumed(0, self.consumed))
        self.now += 60

    def read_all(self) -> None:
        for _ in range(20 * len(self.log.records) + 200):
            if self.consumed == self.log.mark:
                return
            self.turn()
        raise AssertionError(f"stands at {self.consumed} of {self.log.mark}")


@pytest.mark.parametrize("length", [5, 300, 1_200])
def test_a_log_of_any_length_is_sent_once(length: int) -> None:
    reader = Reader(length)
    reader.read_all()
    assert reader.got == list(range(length))
    assert reader.server.sent == length
    assert reader.peak <= BUFFER


def test_windows_go_on_with_what_is_committed_meanwhile() -> None:
    reader = Reader(100)
    for number in range(100, 400):
        reader.log.commit(AppendRequest(make_req_id(99, 1, 0, number), -1, (), (), (), 0, b"", 0))
        reader.turn()
    reader.read_all()
    assert reader.got == list(range(400))
    assert reader.server.sent == 400


@pytest.mark.parametrize("length", [300, 1_200])
def test_a_log_is_sent_at_most_twice_if_an_append_must_be_judged_before_it_was_read(length: int) -> None:
    reader = Reader(length, pace=1)
    for number in range(10):
        reader.step(submit(number))
        for _ in range(length // MOUNT + 10):
            if len(reader.committed) <= number:
                reader.turn()
    assert reader.committed == list(range(10)), "the application reads little, but its appends are judged"
    assert reader.consumed < length // 2
    reader.pace = 7
    reader.read_all()
    assert reader.got == list(range(length + 10))
    assert reader.server.sent <= 2 * (length + 10) + BUFFER


@pytest.mark.parametrize("length", [300, 1_200])
def test_appends_without_a_pause_are_judged_and_nothing_is_sent_a_third_time(length: int) -> None:
    reader = Reader(length, pace=3)
    for number in range(length):
        reader.step(submit(number))
        reader.turn()
    reader.read_all()
    total = len(reader.log.records)
    assert reader.committed == list(range(length))
    assert reader.got == list(range(total))
    assert reader.server.sent <= 2 * total + BUFFER


def test_a_server_of_codec_4_streams_to_its_mark_as_that_of_0_13_2_does() -> None:
    """Each request is answered by everything up to the mark: its protocol has no number to say less with."""
    reader = Reader(300, codec=4)
    reader.read_all()
    assert reader.got == list(range(300))
    assert reader.peak <= BUFFER
    assert reader.server.sent <= 300 * (1 + 300 // (BUFFER // 2))


def test_the_client_names_its_room_from_the_first_request_after_the_mount() -> None:
    desk = Desk(settings=ClientSettings(feed_buffer_max=10))
    desk.step(Open(0, -1, True))
    desk.connect()
    (mount,) = desk.take()
    assert desk.capability_requests[Kind.STREAM][0].capabilities == ClientCapability.FEED_WINDOWS
    explain(desk, Capability.FEED_WINDOWS)
    desk.send(foreign(0), foreign(1), FeedSuspended(mount.req_id), MountResponse(mount.req_id, READY))
    assert desk.take() == [FeedWindowRequest(mount.req_id, 1, 8)]
    desk.send(*(foreign(n) for n in range(2, 10)), FeedSuspended(mount.req_id))
    assert desk.take() == []
    desk.step(Consumed(0, 3))
    assert desk.take() == [], "less than half of the buffer is free"
    desk.step(Consumed(0, 5))
    assert desk.take() == [FeedWindowRequest(mount.req_id, 9, 6)]


def test_an_append_waits_for_a_mount_that_reaches_the_mark() -> None:
    """Sent behind a mount that was cut short, its locks would be refused for what it might have known."""
    desk = Desk()
    desk.step(Open(0, -1, True), submit("x", lock=5))
    desk.connect()
    (first,) = desk.take()
    explain(desk, Capability.FEED_WINDOWS)
    desk.send(foreign(0), FeedSuspended(first.req_id), MountResponse(first.req_id, READY))
    (second,) = desk.take()
    assert (type(second), second.client_mark) == (MountRequest, 0)
    desk.send(foreign(1), MountResponse(second.req_id, READY))
    feed, append = desk.take()
    assert feed == FeedWindowRequest(second.req_id, 1, 100_000 - 2)
    assert append.client_mark == 1
    assert Committed(0, [("x", 2)]) in desk.send(own(append, 2))


def test_an_append_after_a_mount_that_was_cut_short_begins_with_another_mount() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect()
    (first,) = desk.take()
    explain(desk, Capability.FEED_WINDOWS)
    desk.send(foreign(0), FeedSuspended(first.req_id), MountResponse(first.req_id, READY))
    assert [type(each) for each in desk.take()] == [FeedWindowRequest]
    desk.submit("x")
    (second,) = desk.take()
    assert (type(second), second.client_mark) == (MountRequest, 0)
    desk.send(MountResponse(second.req_id, READY))
    assert [type(each) for each in desk.take()] == [FeedWindowRequest, AppendRequest]
    desk.submit("y")
    assert [type(each) for each in desk.take()] == [AppendRequest]


def test_a_client_that_reads_nothing_mounts_on_to_the_mark() -> None:
    desk = Desk()
    desk.step(Open(0, -1, False))
    desk.connect()
    (first,) = desk.take()
    explain(desk, Capability.FEED_WINDOWS)
    desk.send(foreign(0), FeedSuspended(first.req_id), MountResponse(first.req_id, READY))
    (second,) = desk.take()
    assert (type(second), second.client_mark) == (MountRequest, 0)
    desk.send(foreign(1), MountResponse(second.req_id, READY))
    assert desk.take() == [FeedRequest(second.req_id, 1)]
