"""Reads through the archive: what is asked where, which answer counts, and that every read gets one."""

from __future__ import annotations

from random import Random
from typing import Any, cast
from zlib import crc32

import pytest

from waltz_core.base.contract import Tickets
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.base.log import Record
from waltz_core.base.outbox import Outbox
from waltz_core.base.pending import Pending
from waltz_core.server.archive import Archive, ReadAsked
from waltz_core.server.archive_calls import ArchiveData, ArchiveEvent, ArchiveFailed, ArchivePolicy, ArchiveRead
from waltz_core.server.archived_reads import ArchivedReads, ReadNote
from waltz_core.server.config import ServerConfig
from waltz_core.server.context import NodeContext, ReadFor
from waltz_core.server.feeds import Feeds
from waltz_core.server.log_start import LogBeginning
from waltz_core.server.peer import Peer
from waltz_core.server.source import Source
from waltz_core.store.session_notes import HeadersRead, ReadFailed, RecordsRead
from waltz_core.wire.client_messages import FeedWindowRequest


def record_at(transaction_id: int, data: bytes = b"x") -> Record:
    return Record(transaction_id, make_req_id(1, 0, 3, transaction_id), 0, data, crc32(data))


class Session:
    """What replicas are asked: token, first id, count, whether headers suffice."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int, bool]] = []

    def read_headers(self, now: int, token: int, first: int, count: int) -> None:
        self.asked.append((token, first, count, True))

    def read_records(self, now: int, token: int, first: int, count: int) -> None:
        self.asked.append((token, first, count, False))


class Below:
    """A partition whose store session is open."""

    partition_id = 3
    open = known = True
    reason = ""

    def __init__(self) -> None:
        self.session = Session()


class Context:
    """What the beginning of a log needs of its server."""

    def __init__(self) -> None:
        self.out: Outbox[Any] = Outbox()
        self.clients: Outbox[Any] = Outbox()


class Desk:
    """Reads of a partition whose log begins at 10."""

    def __init__(self, **policy: Any) -> None:
        self.asks: Outbox[Any] = Outbox()
        self.archive = Archive(ArchivePolicy("the vault", **policy), self.asks, Tickets())
        self.log_start = LogBeginning("", cast(NodeContext, Context()), 3)
        self.log_start.rises(10)
        self.below = Below()
        reads = ArchivedReads(cast(Source, self.below), self.log_start, self.archive, Outbox(), Random(1))
        self.reads = reads

    def answer(self, now: int, event: ArchiveEvent) -> list[ReadNote]:
        partition_id, read = self.archive.answered(now, event) or (-1, None)
        assert (partition_id, type(read)) == (3, ReadAsked)
        assert read is not None
        self.reads.answered(now, read, event)
        return self.reads.notes.take()


def test_what_is_below_the_log_start_is_read_from_the_archive_and_the_rest_from_replicas() -> None:
    desk = Desk()
    desk.reads.read_records(0, 1, 8, 5)
    assert desk.asks.take() == [ArchiveRead(1, 3, 8, 2)]
    desk.reads.read_headers(0, 2, 10, 5)
    assert desk.below.session.asked == [(2, 10, 5, True)]
    records = record_at(8), record_at(9)
    assert desk.answer(0, ArchiveData(1, records)) == [RecordsRead(1, records)]
    note = ReadFailed(2, "no replica has it")
    assert desk.reads.from_session(0, note) == note


@pytest.mark.parametrize("headers_only", [False, True])
def test_a_read_under_way_while_the_log_start_rises_is_answered_from_the_archive(headers_only: bool) -> None:
    desk = Desk()
    read = desk.reads.read_headers if headers_only else desk.reads.read_records
    read(0, 1, 12, 2)
    desk.log_start.rises(20)
    assert desk.reads.from_session(0, ReadFailed(1, "below the log start")) is None
    assert desk.asks.take() == [ArchiveRead(1, 3, 12, 2)]
    (note,) = desk.answer(0, ArchiveData(1, (record_at(12), record_at(13))))
    assert (type(note), note.token) == (HeadersRead if headers_only else RecordsRead, 1)


def test_headers_are_asked_for_until_they_come_and_records_once() -> None:
    desk = Desk()
    desk.reads.read_headers(0, 1, 4, 2)
    desk.reads.read_records(0, 2, 4, 2)
    assert len(desk.asks.take()) == 2
    assert desk.answer(0, ArchiveFailed(1, "away")) == []
    (note,) = desk.answer(0, ArchiveFailed(2, "away"))
    assert isinstance(note, ReadFailed)
    assert (note.token, note.for_now, note.whole) == (2, True, True)
    for ticket in (3, 4):
        due = desk.reads.deadline()
        assert due is not None
        desk.reads.due(due)
        assert desk.asks.take() == [ArchiveRead(ticket, 3, 4, 2)]
        notes = desk.answer(due, ArchiveFailed(3, "away") if ticket == 3 else ArchiveData(4, (record_at(4),)))
    assert [(type(note), note.token) for note in notes] == [(HeadersRead, 1)]
    assert desk.reads.deadline() is None
    assert desk.reads.trouble == ""


def test_headers_that_nobody_waits_for_any_more_are_not_asked_for_again() -> None:
    desk = Desk()
    for token in (1, 2, 3, 4):
        desk.reads.read_headers(0, token, token, 1)
    assert desk.answer(0, ArchiveFailed(1, "away")) == []
    assert desk.reads.call_off(1), "it waits for the end of the pause"
    assert not desk.reads.call_off(2), "it is under way"
    (note,) = desk.answer(0, ArchiveFailed(2, "away"))
    assert isinstance(note, ReadFailed)
    assert (note.token, note.for_now) == (2, True)
    assert not desk.reads.call_off(3)
    (answered,) = desk.answer(0, ArchiveData(3, (record_at(3),)))
    assert (type(answered), answered.token) == (HeadersRead, 3)
    assert not desk.reads.call_off(3), "its answer is on the way"
    desk.asks.take()
    due = desk.reads.deadline()
    assert due is not None
    desk.reads.due(due)
    assert desk.asks.take() == []
    assert list(desk.reads._reads) == [4]


def test_headers_that_nobody_waits_for_are_not_asked_of_the_archive_as_well() -> None:
    desk = Desk()
    desk.reads.read_headers(0, 1, 12, 2)
    assert not desk.reads.call_off(1)
    desk.log_start.rises(20)
    note = ReadFailed(1, "below the log start")
    assert desk.reads.from_session(0, note) == note
    assert desk.asks.take() == []


def test_feeds_elsewhere_and_elsewhere_read_so_much_at_once_and_nothing_once_they_have_ended() -> None:
    """Each asked for a read of the archive, which outlived the feed and its connection."""
    desk = Desk(reads_max=4)
    desk.log_start.rises(1_000_000)
    context = NodeContext(ServerConfig("/root", Endpoint("here", 1)), Random(1))
    reading: Pending[ReadFor] = Pending(context.tickets)
    feeds = Feeds(3, context.config.partition(3), context, desk.reads, desk.log_start, reading)
    desk.log_start.archived = 0
    feeds.feed.restart(2_000_000)
    peer = Peer(9, "owner")
    peer.version = 5
    for step in range(1_000):
        request = FeedWindowRequest(make_req_id(7, 1, 3, step), 900 * step, 100)
        feeds.asked(peer, request, 2_000_000)
        feeds.serve(step, busy=False)
        assert len(desk.reads._reads) == len(reading) <= 8
        assert len(desk.archive._waiting) <= 1
        assert feeds.feed.lag() == (0, 1)
    feeds.gone(peer)
    begun = len(desk.asks.take())
    assert begun == 4
    assert (len(desk.archive._waiting), len(reading)) == (0, begun)
    for ticket in range(1, 1 + begun):
        for note in desk.answer(2_000, ArchiveFailed(ticket, "away")):
            assert reading.take(note.token) is not None
    assert desk.asks.take() == []
    assert (desk.reads._reads, desk.reads.deadline()) == ({}, None)


@pytest.mark.parametrize("records", [(), (record_at(5),), (Record(4, record_at(4).req_id, 0, b"y", crc32(b"x")),)])
def test_records_in_the_wrong_place_or_damaged_are_given_to_nobody(records: tuple[Record, ...]) -> None:
    desk = Desk()
    desk.reads.read_records(0, 1, 4, 2)
    (note,) = desk.answer(0, ArchiveData(1, records))
    assert isinstance(note, ReadFailed)
    assert (note.for_now, note.whole) == (True, False)


def test_what_stands_before_a_damaged_record_of_the_archive_is_given_out() -> None:
    desk = Desk()
    desk.reads.read_records(0, 1, 4, 3)
    records = record_at(4), record_at(5), Record(6, record_at(6).req_id, 0, b"y", crc32(b"x"))
    assert desk.answer(0, ArchiveData(1, records)) == [RecordsRead(1, records[:2])]
