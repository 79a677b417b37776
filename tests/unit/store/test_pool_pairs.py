"""Every state of the connection to a storage node meets every event; and any order of them, against counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.store.test_pool import MAX, Bench
from waltz_core.base.edge import CloseConn, Dial
from waltz_core.store.calls import LinkDown, LinkUp, StorageAnswer, StorageAppend, StorageCall, StorageFailed
from waltz_core.store.replica_link import Batch
from waltz_core.wire import storage_messages as messages
from waltz_core.wire.connection import STORAGE_PROTOCOL, Connection
from waltz_core.wire.dialer import DialState


class Driven(Bench):
    """A pool whose driver keeps the contract of the edge: what it is told about a connection fits its life."""

    def __init__(self) -> None:
        super().__init__()
        self.dialing = self.open = False
        self.asked: list[int] = []
        self.sequence: list[messages.StorageMessage] = []

    def settle(self) -> None:
        """Perform what was emitted."""
        effects = self.take()
        for effect in effects:
            match effect:
                case Dial():
                    assert not self.dialing
                    assert not self.open
                    self.dialing = True
                    self.node = Connection(STORAGE_PROTOCOL, "node", {0})
                    self.sequence = []
                case CloseConn():
                    assert self.open or self.dialing
        if self.open:
            for effect in effects:
                data = getattr(effect, "data", None)
                if data is not None:
                    self.node.receive(data, self.sequence)

    def ask(self) -> None:
        self.asked.append(len(self.asked))
        if len(self.asked) % 2:
            self.pool.call(self.now, StorageCall("node:7", self.asked[-1], MAX))
        else:
            batch = Batch(0, 0, b"")
            self.pool.append(self.now, StorageAppend("node:7", self.asked[-1], 3, 1, batch))

    def dialed(self) -> None:
        if self.dialing and not self.open:
            self.dialing, self.open = False, True
            self.pool.dialed(self.now)

    def closed(self) -> None:
        if self.dialing or self.open:
            self.dialing = self.open = False
            self.pool.closed(self.now, "closed")

    def bytes_in(self, data: bytes) -> None:
        if self.open:
            self.receive(data)

    def reply(self) -> None:
        """The oldest request that was not answered."""
        if self.open and self.sequence:
            request = self.sequence.pop(0)
            self.answer(messages.SuccessResponse(request.session_id, request.seq_num, request.partition_id))

    def say(self, message: messages.StorageMessage) -> None:
        if self.open:
            self.answer(message)

    def wait(self, ms: int) -> None:
        self.now += ms
        self.pool.step(self.now)


EVENTS: dict[str, Callable[[Driven], None]] = {
    "want": lambda it: void(it.pool.want(1)),
    "unwant": lambda it: it.pool.unwant(1),
    "ask": Driven.ask,
    "dialed": Driven.dialed,
    "closed": Driven.closed,
    "hello": lambda it: it.bytes_in(it.node.hello()),
    "reply": Driven.reply,
    "refusal": lambda it: it.say(messages.FailureResponse(-1, -1, -1, "no")),
    "stray answer": lambda it: it.say(messages.SuccessResponse(3, 77_777, 1)),
    "garbage": lambda it: it.bytes_in(b"\xff" * 40),
    "half a frame": lambda it: it.bytes_in(b"S\0"),
    "a moment": lambda it: it.wait(10),
    "a long time": lambda it: it.wait(5_000),
}
WAYS: dict[DialState, tuple[str, ...]] = {
    DialState.IDLE: (),
    DialState.DIALING: ("want",),
    DialState.GREETING: ("want", "dialed"),
    DialState.READY: ("want", "dialed", "hello", "reply", "ask"),
    DialState.CLOSING: ("want", "dialed", "hello", "reply", "ask", "garbage"),
    DialState.WAITING: ("want", "closed"),
}


def void(_: object) -> None:
    """Nothing comes of it."""


def run(steps: list[str]) -> Driven:
    """Do all of it, and compare with what may be said about any such history."""
    it = Driven()
    for step in steps:
        EVENTS[step](it)
        it.settle()
        assert (it.pool.conn is not None) == (it.dialing or it.open)
        judge(it)
    return it


def judge(it: Driven) -> None:
    answered = Counter(note.ticket for note in it.notes if isinstance(note, StorageAnswer | StorageFailed))
    assert all(count == 1 for count in answered.values()), "a request got two outcomes"
    links = [note for note in it.notes if isinstance(note, LinkUp | LinkDown)]
    assert all(isinstance(note, LinkDown) == bool(number % 2) for number, note in enumerate(links))
    owed = len(it.asked) - len(answered)
    usable = it.pool.state is DialState.READY
    assert usable == (len(links) % 2 == 1) or it.pool.state is DialState.CLOSING
    if owed:
        assert it.pool.state in (DialState.READY, DialState.CLOSING)
    if owed and usable:
        assert it.pool.deadline() is not None, "an answer is waited for without end"


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", WAYS)
def test_every_state_meets_every_event(state: DialState, event: str) -> None:
    assert run(list(WAYS[state])).pool.state is state
    run([*WAYS[state], event, *WAYS[DialState.READY], "closed"])


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=60))
def test_any_history_keeps_the_books(steps: list[str]) -> None:
    it = run(steps)
    it.closed()
    judge(it)
    answered = sum(isinstance(note, StorageAnswer | StorageFailed) for note in it.notes)
    assert answered == len(it.asked), "without a connection nothing is under way"
