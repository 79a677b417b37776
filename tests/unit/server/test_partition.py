"""A partition of a server, driven by hand with one replica: from its assignment to a commit, and its end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from waltz_core.base.edge import CloseConn, Level, Report, ZkDone, ZkError, ZkFailed, ZkGet, ZkRequest, ZkSet, ZkStat
from waltz_core.base.ids import Endpoint, ReqId, make_req_id
from waltz_core.base.log import SessionInfo
from waltz_core.server.config import ServerConfig
from waltz_core.server.context import MetadataAsked, NodeContext, PartitionAlarm, PartitionDue, Reply
from waltz_core.server.feed import SendFrames, SendReply
from waltz_core.server.feed_cache import FRAME_SIZE
from waltz_core.server.marks import PATIENCE_MS
from waltz_core.server.ownership import OwnershipPhase
from waltz_core.server.partition import NOT_OPEN_MARK, PartitionServer
from waltz_core.server.peer import Peer
from waltz_core.store.calls import LinkUnwanted, LinkUp, LinkWanted, StorageAnswer, StorageAppend, StorageCall
from waltz_core.store.session import TakeIn
from waltz_core.store.session_notes import LogStartRaised
from waltz_core.wire import client_messages as messages
from waltz_core.wire import storage_messages as storage
from waltz_core.zookeeper.znodes import EMPTY_METADATA, encode_partition_metadata

PATH = "/root/store/partition/0"
NODE = "s0:1"


class Bench:
    """One partition in a context of its own; ZooKeeper and one storage node of 0.13.2 in the hands of the test."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0
        self.context = NodeContext(ServerConfig("/root", Endpoint("here", 1), **settings), random.Random(1))
        self.partition = PartitionServer(0, self.context)
        self.version = 0  # of the metadata
        self.out: list[Any] = []  # of the last work, for the driver

    def work(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Let it work; everything for the driver, for clients, and for storage nodes."""
        self.partition.flush(self.now)
        self.out = self.context.out.take()
        return self.out, self.context.clients.take(), self.partition.storage.take()

    def ring(self, at: int) -> None:
        """Time passes; alarms ring that are due by then."""
        self.now = at
        for key in self.context.alarms.due(at):
            assert isinstance(key, PartitionAlarm)
            self.partition.due(at, key.due)

    def assign(self) -> ZkRequest:
        self.partition.set_replicas(self.now, (NODE,))
        self.partition.set_generation(self.now, 3)
        (read,), clients, nodes = self.work()
        assert (clients, nodes) == ([], [])
        assert isinstance(read, ZkGet)
        return read

    def answer_zk(self, event: ZkDone | ZkFailed) -> None:
        asked = self.context.pending.take(event.ticket)
        assert isinstance(asked, MetadataAsked)
        self.partition.zk_answered(self.now, event, asked.step)

    def answer_node(self, ticket: int, message: storage.StorageMessage) -> None:
        assert self.context.pending.take(ticket) is not None
        self.partition.storage_answered(self.now, StorageAnswer(ticket, message))

    def announce(self) -> list[Any]:
        """Up to the session, which wants its storage node."""
        read = self.assign()
        self.answer_zk(ZkDone(read.ticket, ZkStat(0, 0), encode_partition_metadata(EMPTY_METADATA)))
        (announced,), _, _ = self.work()
        assert isinstance(announced, ZkSet)
        assert (announced.path, announced.version) == (PATH, 0)
        self.answer_zk(ZkDone(announced.ticket, ZkStat(1, 0)))
        out, clients, nodes = self.work()
        assert (out, clients) == ([], [])
        return nodes

    def open(self, codec: int = 0) -> None:
        """Recovery, as an empty replica goes through it."""
        assert self.announce() == [LinkWanted(NODE)]
        self.recover(codec)
        assert self._is_open()

    def recover(self, codec: int = 0) -> None:
        """The same, from the session on until there is nothing left to do."""
        self.partition.link_up(self.now, LinkUp(NODE, codec))
        version = 1
        while not self._is_open():
            out, _, nodes = self.work()
            if self.partition.session is None:
                return
            for request in out:
                if isinstance(request, ZkSet):
                    version += 1
                    self.answer_zk(ZkDone(request.ticket, ZkStat(version, 0)))
            for call in nodes:
                assert isinstance(call, StorageCall)
                self.answer_node(call.ticket, self._answer(call.message))
            assert out or nodes or self._is_open()

    def _is_open(self) -> bool:
        return self.partition.phase is OwnershipPhase.OPEN

    def _answer(self, message: storage.StorageMessage) -> storage.StorageMessage:
        ids = message.session_id, 0, message.partition_id
        match message:
            case storage.LastSessionInfoRequest():
                return storage.LastSessionInfoResponse(*ids, SessionInfo(-1, -1, -1))
            case storage.LogStartRequest():
                return storage.LogStartResponse(*ids, 0, -1)
            case storage.MaxTransactionIdRequest() | storage.TruncateRequest():
                return storage.MaxTransactionIdResponse(*ids, -1)
            case _:
                return storage.SuccessResponse(*ids)

    def commit(self, peer: Peer, sequence: int) -> None:
        """An append is sent, and in the log, before this returns."""
        mark = self.partition.high_water_mark
        self.partition.received(self.now, peer, [append(sequence)])
        (sent,) = [effect for effect in self.work()[2] if isinstance(effect, StorageAppend)]
        self.answer_node(sent.ticket, storage.SuccessResponse(0, 0, 0))
        self.work()
        assert self.partition.high_water_mark == mark + 1

    def mount(self, version: int = 5, mark: int = -1) -> Peer:
        peer = Peer(9, "owner")
        peer.client_id, peer.net_sequence, peer.version = 7, 0, version
        self.partition.received(self.now, peer, [messages.MountRequest(req_id(1), mark, 0)])
        return peer

    def mount_from_ahead(self) -> tuple[Peer, StorageCall]:
        """A client mounts that has seen more than is here; with the question that the storage node is asked."""
        peer = self.mount(mark=0)
        out, clients, (asked,) = self.work()
        assert (out, clients) == ([], [])
        assert isinstance(asked, StorageCall)
        assert isinstance(asked.message, storage.RecordHeaderRequest)
        return peer, asked


def req_id(sequence: int, client: int = 7) -> ReqId:
    return make_req_id(client, 3, 0, sequence)


def mounted(state: messages.PartitionState) -> Reply:
    return Reply(9, messages.MountResponse(req_id(1), state))


def append(sequence: int, client: int = 7, lock: int = 0) -> messages.AppendRequest:
    return messages.AppendRequest(req_id(sequence, client), -1, (lock,) if lock else (), (), (), 0, b"data", 0)


def test_nothing_happens_before_generation_and_replicas_are_known() -> None:
    bench = Bench()
    assert bench.work() == ([], [], [])
    bench.partition.set_generation(0, 3)
    assert bench.work() == ([], [], [])
    assert bench.partition.trouble(0) == "no storage node is assigned"
    assert bench.partition.high_water_mark == NOT_OPEN_MARK
    assert bench.context.alarms.next() is None


def test_an_append_is_committed_by_its_replica_and_fed_to_who_mounted() -> None:
    bench = Bench()
    bench.open()
    peer = bench.mount()
    ready = messages.MountResponse(req_id(1), messages.PartitionState.READY)
    bench.work()
    bench.partition.received(0, peer, [messages.FeedRequest(req_id(2), -1), append(3), append(4, lock=5)])
    out, clients, nodes = bench.work()
    assert (out, clients) == ([], [])
    (sent,) = nodes
    assert isinstance(sent, StorageAppend)
    assert (sent.replica, sent.batch.first, sent.batch.count) == (NODE, 0, 2)
    assert bench.partition.high_water_mark == -1
    bench.answer_node(sent.ticket, storage.SuccessResponse(0, 0, 0))
    out, clients, nodes = bench.work()
    assert (out, nodes) == ([], [])
    (frames,) = clients
    assert isinstance(frames, SendFrames)
    assert (frames.conn, len(frames.frames)) == (9, 2 * FRAME_SIZE)
    assert bench.partition.high_water_mark == 1
    assert len(bench.context.pending) == 0
    bench.partition.received(0, peer, [append(5, lock=5), messages.FlushRequest(req_id(6))])
    assert bench.work() == (
        [],
        [Reply(9, messages.LockFailure(req_id(5), 1)), Reply(9, messages.FlushResponse(req_id(6), 1))],
        [],
    )
    assert ready not in [effect.message for effect in clients if isinstance(effect, (Reply, SendReply))]


def test_appends_under_another_clients_request_id_never_meet_the_lock_table() -> None:
    bench = Bench()
    bench.open()
    peer = bench.mount()
    bench.work()
    bench.partition.received(0, peer, [append(3, client=8)])
    (report,), (reply,), nodes = bench.work()
    assert "under request ids of client 8" in report.text
    assert reply.message.code == messages.ErrorCode.NOT_ALLOWED
    assert nodes == []


def test_forgery_in_the_codec_of_0132_is_dropped_as_its_codec_has_no_error() -> None:
    bench = Bench()
    bench.open()
    peer = bench.mount(version=4)
    bench.work()
    bench.partition.received(0, peer, [append(3, client=8)])
    (_,), replies, nodes = bench.work()
    assert (replies, nodes) == ([], [])


def test_clients_of_0132_are_answered_every_feed_and_others_have_one() -> None:
    for version, ended in ((4, []), (5, [req_id(2)])):
        bench = Bench()
        bench.open()
        peer = bench.mount(version)
        bench.work()
        bench.partition.received(0, peer, [messages.FeedRequest(req_id(2), -1), messages.FeedRequest(req_id(3), -1)])
        _, clients, _ = bench.work()
        replaced = [one.message for one in clients if isinstance(one, (Reply, SendReply))]
        assert replaced == [messages.FeedSuspended(request) for request in ended]


def test_forgery_is_reported_once_for_each_connection() -> None:
    bench = Bench()
    bench.open()
    peer = bench.mount()
    bench.work()
    bench.partition.received(0, peer, [append(3, client=8), append(4, client=9)])
    (_,), replies, _ = bench.work()
    assert len(replies) == 2
    bench.partition.gone(peer)
    peer = bench.mount()
    bench.work()
    bench.partition.received(0, peer, [append(5, client=8)])
    (report,), _, _ = bench.work()  # what was known of the connection that is gone is forgotten
    assert "under request ids of client 8" in report.text


def test_what_cannot_be_done_without_a_session_waits_for_one_in_order() -> None:
    bench = Bench()
    assert bench.announce() == [LinkWanted(NODE)]
    peer = bench.mount()
    bench.partition.received(0, peer, [append(3), messages.FeedRequest(req_id(2), -1)])
    assert bench.work() == ([], [], [])
    assert bench.context.waiting.total == 2  # the mount and the feed
    bench.partition.close(0)
    bench.work()
    assert bench.context.waiting.total == 0


def test_what_waits_for_a_session_is_done_for_nobody_once_its_connection_is_gone() -> None:
    bench = Bench()
    peer = bench.mount()
    bench.partition.received(0, peer, [messages.FeedRequest(req_id(2), -1), messages.FlushRequest(req_id(3))])
    bench.partition.gone(peer)
    assert not any(bench.partition.feeds._barriers.values())
    bench.open()
    assert bench.partition.feeds.feed.lag() == (0, 0)


def test_a_partition_that_is_closed_answers_mounts_and_asks_for_nothing_more() -> None:
    bench = Bench()
    bench.open()
    bench.mount()
    bench.partition.close(0)
    out, clients, nodes = bench.work()
    assert clients == [Reply(9, messages.MountResponse(req_id(1), messages.PartitionState.NOT_READY))]
    assert (out, nodes) == ([], [LinkUnwanted(NODE)])
    assert bench.context.alarms.next() is None
    assert bench.context.waiting.total == 0


def test_a_partition_that_is_closed_answers_the_reads_that_wait() -> None:
    """As it answers those that come later: it may come back to this server, over the same connections."""
    bench = Bench()
    bench.announce()
    peer = bench.mount()
    payload = messages.TransactionDataRequest(req_id(2), 4)
    bench.partition.received(0, peer, [payload])
    bench.partition.reads.range_asked(peer, messages.RecordRangeRequest(req_id(3), 0, 9, 0, 0, False), 20)
    bench.work()
    bench.partition.close(0)
    _, clients, _ = bench.work()
    assert clients[1:] == [
        Reply(9, messages.TransactionDataResponse(req_id(2), 4, False, error="partition not ready")),
        Reply(
            9, messages.ErrorResponse(req_id(3), messages.ErrorCode.NOT_SERVED, "the partition is not on this server")
        ),
    ]
    assert bench.context.waiting.total == 0


def test_no_checkpoint_begins_while_zookeeper_is_away() -> None:
    """The session is sound, and the next one could not begin: commits would wait for ZooKeeper, and for a pause."""
    bench = Bench(checkpoint_interval=1)
    bench.open()
    peer = bench.mount()
    bench.context.cluster.zookeeper = "suspended"
    for sequence in (2, 3):
        bench.commit(peer, sequence)
        assert bench.partition.session is not None
    bench.context.cluster.zookeeper = "connected"
    bench.work()
    assert bench.partition.session is None


def test_a_step_that_has_refused_what_it_may_is_followed_by_the_next_at_once() -> None:
    """Other partitions have their turns between them."""
    bench = Bench()
    bench.open()
    peer = bench.mount()
    bench.commit(peer, 2)
    bench.partition.received(0, peer, [append(each, lock=4) for each in range(3, 5)])
    bench.work()  # one goes, and both would from here on be refused
    refused = [append(each, lock=4) for each in range(5, 1_005)]
    bench.partition.received(0, peer, refused)
    told = steps = 0
    while told < len(refused):
        told, steps = told + len(bench.work()[1]), steps + 1
        due = [key for key in bench.context.alarms.due(bench.now) if key == PartitionAlarm(0, PartitionDue.WORK)]
        assert bool(due) is (told < len(refused))
        bench.partition.due(bench.now, PartitionDue.WORK)
    assert steps == 3


def test_no_session_ends_for_a_log_start_while_zookeeper_is_away() -> None:
    bench = Bench()
    bench.open(codec=1)
    peer = bench.mount()
    bench.commit(peer, 2)
    bench.context.cluster.zookeeper = "suspended"
    bench.partition.log_start_asked(9, req_id(3), 1)
    (refused,) = bench.work()[1]
    assert refused.message.code == messages.ErrorCode.NOT_READY
    session = bench.partition.session
    bench.commit(peer, 4)
    assert bench.partition.session is session is not None
    bench.context.cluster.zookeeper = "connected"
    bench.work()
    assert bench.partition.session is None


def test_no_session_ends_for_a_replica_that_is_back_while_zookeeper_is_away() -> None:
    bench = Bench()
    bench.open()
    peer = bench.mount()
    session = bench.partition.session
    bench.context.cluster.zookeeper = "suspended"
    bench.context.alarms.set(PartitionAlarm(0, TakeIn()), 10)
    for at in (10, 1_010):
        bench.ring(at)
        bench.commit(peer, at)
        assert bench.partition.session is session is not None
    bench.context.cluster.zookeeper = "connected"
    bench.ring(2_009)
    bench.work()
    assert bench.partition.session is session
    bench.ring(2_010)
    bench.work()
    assert bench.partition.session is None


def test_a_log_that_ends_too_early_behind_a_checkpoint_is_tried_again_after_a_pause_with_a_warning() -> None:
    """The checkpoint counted as the reason of that end, too: it was tried in a loop, and said as nothing special."""
    bench = Bench(checkpoint_interval=1)
    bench.open()
    bench.commit(bench.mount(), 2)
    reported, (read,) = _parted(bench.out)
    assert [(each.level, "checkpoint after 1" in each.text) for each in reported] == [(Level.INFO, True)]
    bench.answer_zk(ZkDone(read.ticket, ZkStat(0, 0), encode_partition_metadata(EMPTY_METADATA)))
    (announced,), _, _ = bench.work()
    bench.answer_zk(ZkDone(announced.ticket, ZkStat(1, 0)))
    bench.work()
    bench.recover()
    assert bench.partition.phase is OwnershipPhase.WAITING
    reported, asked = _parted(bench.out)
    assert [(each.level, "replicas lost data" in each.text) for each in reported] == [(Level.WARNING, True)]
    assert asked == []


def _parted(out: list[Any]) -> tuple[list[Report], list[Any]]:
    return [each for each in out if isinstance(each, Report)], [each for each in out if not isinstance(each, Report)]


def test_a_partition_that_waits_begins_as_soon_as_zookeeper_is_back() -> None:
    bench = Bench()
    read = bench.assign()
    bench.answer_zk(ZkFailed(read.ticket, ZkError.UNAVAILABLE))
    assert bench.work()[0] == []
    assert bench.partition.phase is OwnershipPhase.WAITING
    bench.partition.zookeeper_back(bench.now)
    assert [type(effect) for effect in bench.work()[0]] == [ZkGet]


def test_a_question_for_the_mark_outlives_a_checkpoint_in_the_same_step() -> None:
    bench = Bench()
    bench.open()
    peer = bench.mount()
    bench.work()
    bench.partition.received(0, peer, [messages.HighWaterMarkRequest(req_id(2))])
    bench.partition.commits.draining = True
    _, clients, _ = bench.work()
    assert (bench.partition.session, clients) == (None, [])
    assert bench.context.waiting.total == 1


def test_who_mounts_from_ahead_of_the_log_is_told_so_once_a_storage_node_has_confirmed_that_it_is_the_log() -> None:
    bench = Bench()
    bench.open()
    _, asked = bench.mount_from_ahead()
    bench.answer_node(asked.ticket, storage.RecordHeaderResponse(0, 0, 0, None))
    assert bench.work() == ([], [mounted(messages.PartitionState.CLIENT_AHEAD)], [])
    assert bench.context.waiting.total == 0


def test_a_mount_from_ahead_whose_turn_comes_late_in_a_step_is_asked_about_in_the_next_one_at_once() -> None:
    bench = Bench()
    bench.open()
    peer = bench.mount(mark=0)
    (token,) = bench.partition.feeds._barriers
    bench.partition.feeds.passed(token, -1)
    assert bench.partition.reads.deadline(5) == 5
    bench.partition.gone(peer)
    assert bench.partition.reads.deadline(5) is None


def test_who_was_ahead_of_what_the_log_has_reached_since_is_mounted() -> None:
    bench = Bench()
    bench.open()
    peer, _ = bench.mount_from_ahead()
    bench.partition.received(0, peer, [append(3), append(4)])
    _, _, (sent,) = bench.work()
    assert isinstance(sent, StorageAppend)
    bench.answer_node(sent.ticket, storage.SuccessResponse(0, 0, 0))
    _, clients, _ = bench.work()
    frames, ready = clients
    assert isinstance(frames, SendFrames)
    assert len(frames.frames) == FRAME_SIZE, "the second one, as the first was seen elsewhere"
    assert ready.message == mounted(messages.PartitionState.READY).message


def test_who_mounts_from_ahead_is_told_to_come_again_if_nobody_confirms_that_this_is_the_log() -> None:
    bench = Bench()
    bench.open()
    bench.mount_from_ahead()
    bench.ring(PATIENCE_MS - 1)
    assert bench.work()[1] == []
    bench.ring(PATIENCE_MS)
    assert bench.work()[1] == [mounted(messages.PartitionState.NOT_READY)]
    assert bench.context.waiting.total == 0


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_a_partition_that_is_closed_answers_who_mounted_from_ahead(asked: bool, gone: bool) -> None:
    bench = Bench()
    bench.open()
    if asked:
        peer, _ = bench.mount_from_ahead()
    else:
        peer = bench.mount(mark=0)
        bench.partition.commits.draining = True  # the session ends in the step in which the mount's turn comes
        assert bench.work()[1] == []
    if gone:
        bench.partition.gone(peer)
        bench.context.waiting.drop(peer.conn)
    bench.partition.close(0)
    _, clients, _ = bench.work()
    assert clients == ([] if gone else [mounted(messages.PartitionState.NOT_READY)])
    assert bench.context.waiting.total == 0


def test_a_feed_that_waits_for_what_was_given_up_ends_with_its_connection() -> None:
    bench = Bench()
    bench.open()
    peer = bench.mount()
    bench.partition.received(0, peer, [messages.FeedRequest(req_id(2), -1)])
    bench.work()
    bench.partition._on_note(0, LogStartRaised(1))
    (closed,) = bench.context.clients.take()
    assert closed == CloseConn(9, "partition 0: its feed is below the log start, 1")
