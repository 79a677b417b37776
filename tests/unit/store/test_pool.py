"""The connection to a storage node: dial, greet, open, match answers, give up."""

from __future__ import annotations

import random
from itertools import count

import pytest

from waltz_core.base.edge import CloseConn, Dial, Report, Send
from waltz_core.base.errors import ConfigError
from waltz_core.base.outbox import Outbox
from waltz_core.store.calls import LinkDown, LinkUp, StorageAnswer, StorageAppend, StorageCall, StorageFailed
from waltz_core.store.pool import PoolNote, StoragePool
from waltz_core.store.replica_link import Batch
from waltz_core.wire import storage_messages as messages
from waltz_core.wire.connection import STORAGE_PROTOCOL, Connection
from waltz_core.wire.dialer import DialerEffect, DialState
from waltz_core.wire.hello import Hello, encode_hello

MAX = messages.MaxTransactionIdRequest(3, 0, 1, False)


class Bench:
    """A pool, and the storage node's end of its connection."""

    def __init__(self, retry_max_ms: int = 400) -> None:
        numbers = count(1)
        self.outbox: Outbox[DialerEffect] = Outbox()
        self.told: Outbox[PoolNote] = Outbox()
        self.heard: list[PoolNote] = []
        self.pool = StoragePool(
            "node:7",
            self.outbox,
            self.told,
            key=bytes(16),
            num_partitions=4,
            new_conn=lambda: -next(numbers),
            rng=random.Random(1),
            frame_size_max=1 << 20,
            answer_timeout_ms=1000,
            retry_min_ms=100,
            retry_max_ms=retry_max_ms,
        )
        self.now = 0
        self.node = Connection(STORAGE_PROTOCOL, "node", {0})

    def take(self) -> list[DialerEffect]:
        self.pool.flush()
        return self.outbox.take()

    @property
    def notes(self) -> list[PoolNote]:
        """Everything that it has told so far, unless a test has taken it out."""
        self.told.drain(self.heard)
        return self.heard

    def requests(self) -> list[messages.StorageMessage]:
        found: list[messages.StorageMessage] = []
        for effect in self.take():
            if isinstance(effect, Send):
                self.node.receive(effect.data, found)
        return found

    def answer(self, *answers: messages.StorageMessage) -> None:
        data = bytearray()
        for answer in answers:
            self.node.encode(answer, data)
        self.receive(bytes(data))

    def receive(self, data: bytes) -> None:
        self.pool.received(self.now, data)

    def ready(self) -> Bench:
        assert not self.pool.want(1)
        self.pool.dialed(self.now)
        self.receive(self.node.hello())
        (request,) = self.requests()
        assert isinstance(request, messages.OpenRequest)
        assert request.num_partitions == 4
        self.answer(messages.SuccessResponse(-1, -1, -1))
        assert self.notes.pop() == LinkUp("node:7")
        return self


def test_it_dials_only_when_somebody_wants_it_and_tells_when_it_stands() -> None:
    bench = Bench().ready()
    assert bench.pool.state is DialState.READY
    assert bench.pool.want(2)
    assert bench.pool.wanted_by() == [1, 2]
    bench.pool.unwant(2)
    assert bench.pool.wanted_by() == [1]


def test_answers_find_their_tickets_in_any_order() -> None:
    bench = Bench().ready()
    bench.pool.call(0, StorageCall("node:7", 11, MAX))
    bench.pool.append(0, StorageAppend("node:7", 12, 3, 1, Batch(0, 0, b"")))
    first, second = bench.requests()
    assert isinstance(second, messages.AppendRequest)
    done = messages.SuccessResponse(3, second.seq_num, 1)
    known = messages.MaxTransactionIdResponse(3, first.seq_num, 1, 9)

    bench.answer(done, known)

    assert bench.notes == [StorageAnswer(12, done), StorageAnswer(11, known)]


def test_an_answer_nobody_asked_for_ends_the_connection() -> None:
    bench = Bench().ready()
    bench.answer(messages.SuccessResponse(3, 99, 1), messages.SuccessResponse(3, 98, 1))
    assert [type(e) for e in bench.take()] == [Report, CloseConn]
    assert bench.pool.state is DialState.CLOSING
    assert bench.notes == []


def test_garbage_ends_the_connection_and_fails_what_is_under_way_once() -> None:
    bench = Bench().ready()
    bench.pool.call(0, StorageCall("node:7", 11, MAX))
    bench.receive(b"GET / HTTP/1.1\r\n\r\n")
    bench.pool.call(0, StorageCall("node:7", 12, MAX))
    bench.receive(b"more")
    assert bench.pool.deadline() is None

    bench.pool.closed(0, "closed")

    assert [type(note) for note in bench.notes] == [StorageFailed, StorageFailed, LinkDown]
    assert "sent what a storage node never sends" in bench.pool.trouble


def test_a_request_without_a_connection_fails_at_once() -> None:
    bench = Bench()
    bench.pool.call(0, StorageCall("node:7", 1, MAX))
    assert bench.notes == [StorageFailed(1, "not connected")]


def test_a_silent_node_is_given_up() -> None:
    bench = Bench().ready()
    bench.pool.call(0, StorageCall("node:7", 11, MAX))
    assert bench.pool.deadline() == 1000
    bench.pool.step(999)
    before = bench.pool.state
    bench.pool.step(1000)
    assert (before, bench.pool.state) == (DialState.READY, DialState.CLOSING)


def test_a_node_that_works_off_a_long_queue_is_waited_for_but_not_without_end() -> None:
    bench = Bench().ready()
    for ticket in (1, 2):
        bench.pool.call(0, StorageCall("node:7", ticket, MAX))
    first, _ = bench.requests()
    bench.now = 900
    bench.answer(messages.MaxTransactionIdResponse(3, first.seq_num, 1, 9))
    assert bench.pool.deadline() == 1900
    for bench.now in range(1800, 5000, 900):
        bench.receive(b"")
        bench.pool.call(bench.now, StorageCall("node:7", 3, MAX))
        *_, last = bench.requests()
        bench.answer(messages.MaxTransactionIdResponse(3, last.seq_num, 1, 9))
    assert bench.pool.deadline() == 4000


def test_a_node_that_does_not_greet_is_given_up() -> None:
    bench = Bench()
    bench.pool.want(1)
    bench.pool.dialed(0)
    bench.pool.step(1000)
    assert "did not greet" in bench.pool.trouble


def test_a_refused_open_says_why_and_is_tried_again_later() -> None:
    bench = Bench()
    bench.pool.want(1)
    bench.pool.dialed(0)
    bench.receive(bench.node.hello())
    bench.requests()
    bench.answer(messages.FailureResponse(-1, -1, -1, "wrong key"))
    assert "wrong key" in bench.pool.trouble
    bench.pool.closed(0, "closed")
    assert bench.notes == []
    assert bench.pool.waiting


def test_dials_back_off_and_stop_when_nobody_wants_it() -> None:
    bench = Bench()
    bench.pool.want(1)
    pauses = []
    for _ in range(6):
        assert sum(isinstance(e, Dial) for e in bench.take()) == 1
        bench.pool.closed(bench.now, "refused")
        due = bench.pool.deadline()
        assert due is not None
        pauses.append(due - bench.now)
        bench.now = due
        bench.pool.step(bench.now)
    assert pauses[0] <= 100
    assert 200 <= pauses[-1] <= 400
    bench.take()
    bench.pool.closed(bench.now, "refused")
    bench.pool.unwant(1)
    bench.pool.step(bench.now + 400)
    assert bench.take() == []
    assert bench.pool.state is DialState.IDLE


def test_a_connect_string_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        StoragePool(
            "node",
            Outbox(),
            Outbox(),
            key=bytes(16),
            num_partitions=1,
            new_conn=lambda: -1,
            rng=random.Random(1),
            frame_size_max=1,
            answer_timeout_ms=1,
            retry_min_ms=1,
            retry_max_ms=1,
        )


# ---- why a node cannot be used ---------------------------------------------------------------------


def reports(bench: Bench) -> list[str]:
    return [effect.text for effect in bench.take() if isinstance(effect, Report)]


def redial(bench: Bench) -> None:
    due = bench.pool.deadline()
    assert due is not None
    bench.now = due
    bench.pool.step(bench.now)


def test_each_change_of_the_reason_is_one_report_and_the_last_one_counts() -> None:
    """Before, the first dial error stood for ever, and nobody was told of any."""
    bench = Bench()
    bench.pool.want(1)
    refused = "cannot connect to node:7: Connection refused"
    for reason, told in (
        (refused, [refused]),
        (refused, []),
        ("the certificate of node:7 is refused: self-signed certificate", ["the certificate of node:7 is refused"]),
        (refused, [refused]),
    ):
        bench.take()
        bench.pool.closed(bench.now, reason)
        assert bench.pool.trouble == reason
        found = reports(bench)
        assert len(found) == len(told)
        assert all(
            part in text and "storage node node:7 cannot be used" in text
            for part, text in zip(told, found, strict=True)
        )
        redial(bench)
    bench.take()
    bench.pool.dialed(bench.now)
    bench.receive(bench.node.hello())
    bench.requests()
    bench.answer(messages.SuccessResponse(-1, -1, -1))
    assert reports(bench) == ["storage node node:7 can be used again"]
    assert bench.pool.trouble == ""


@pytest.mark.parametrize(
    ("versions", "answer", "reason"),
    [
        ({0}, messages.FailureResponse(-1, -1, -1, "cluster key does not match"), "refused to open: cluster key does"),
        ({7}, None, "it does not greet as a storage node does: no version in common"),
    ],
)
def test_a_node_of_another_cluster_or_version_is_named_so_and_the_end_of_its_connection_hides_nothing(
    versions: set[int], answer: messages.StorageMessage | None, reason: str
) -> None:
    bench = Bench()
    bench.pool.want(1)
    bench.pool.dialed(0)
    bench.receive(encode_hello(Hello(tuple(versions), "node")))
    if answer is not None:
        bench.requests()
        bench.answer(answer)
    bench.pool.closed(0, "closed by us")
    assert reason in bench.pool.trouble
    (told,) = reports(bench)
    assert reason in told


def test_a_node_that_nobody_needs_is_not_reported() -> None:
    bench = Bench().ready()
    bench.pool.unwant(1)
    bench.pool.closed(0, "the peer closed the connection")
    assert reports(bench) == []
    assert bench.pool.trouble == "the peer closed the connection"


def test_a_node_that_was_away_for_long_is_dialed_again_within_a_second() -> None:
    bench = Bench(retry_max_ms=20_000)
    bench.pool.want(1)
    for now in range(0, 60_000, 2_000):
        bench.pool.closed(now, "connection refused")
        due = bench.pool.deadline()
        assert due is not None
        assert due - now <= 1_000
        bench.pool.step(due)
        assert bench.pool.state is DialState.DIALING
