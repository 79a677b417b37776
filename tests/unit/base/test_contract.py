"""What every machine is built of: outbox, table of what is awaited, heap of alarms."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixed_membership import FixedMembership
from waltz_core.base.alarms import Alarms
from waltz_core.base.contract import Tickets
from waltz_core.base.outbox import Emits, Outbox
from waltz_core.base.pending import Awaits, Pending
from waltz_core.client.calls import Deliver
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.node import StorageNode


@pytest.mark.parametrize(
    ("machine", "event", "known"),
    [
        (StorageNode(StorageConfig(bytes(16), 1)), "hello", "Accepted, Closed, Dialed, DiskBytes"),
        (
            ClientNode(FixedMembership(1, 0, []), ClientSettings(), random.Random(1)),
            Deliver(0, []),
            "CloseClient, Closed",
        ),
    ],
    ids=["storage", "client"],
)
def test_what_is_no_event_of_a_machine_is_refused_with_those_that_are(machine: Any, event: object, known: str) -> None:
    """A storage node passed over it, and whoever had handed it in waited for its effect; a client said KeyError."""
    kind = type(event)
    expected = (
        rf"{type(machine).__name__}.step expects events of these classes, found {kind.__module__}.{kind.__name__}"
    )
    with pytest.raises(TypeError, match=f"{expected}: {known}"):
        machine.step(0, [event], [])


def test_effects_leave_in_the_order_in_which_they_were_put_whoever_put_them() -> None:
    outbox: Outbox[int | str] = Outbox()
    inner: Emits[str] = outbox  # a machine inside may put only what it makes
    outbox.put(1)
    inner.put_all(["a", "b"])
    outbox.put(2)
    out: list[int | str] = [0]
    outbox.drain(out)
    assert out == [0, 1, "a", "b", 2]
    outbox.drain(out)
    assert out == [0, 1, "a", "b", 2]


def test_what_is_put_while_notes_are_looked_at_comes_with_the_next_look() -> None:
    notes: Outbox[str] = Outbox()
    notes.put("opened")
    for note in notes.take():
        notes.put(f"after {note}")
    assert len(notes) == 1
    assert notes.take() == ["after opened"]


def test_an_answer_comes_back_with_what_it_was_asked_for_once() -> None:
    pending: Pending[str | int] = Pending(Tickets())
    asks: Awaits[str] = pending
    first, second = asks.ask("states"), pending.ask(7)
    assert [*pending] == ["states", 7]
    assert pending.take(second) == 7
    assert pending.take(second) is None
    assert pending.take(first) == "states"
    assert len(pending) == 0


def test_what_is_forgotten_is_returned_and_its_answer_is_nobodys() -> None:
    pending: Pending[str] = Pending(Tickets())
    tickets = [pending.ask(what) for what in ("keep", "go", "go too")]
    assert pending.forget(lambda what: what.startswith("go")) == ["go", "go too"]
    assert [pending.take(ticket) for ticket in tickets] == ["keep", None, None]


_MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.none() | st.integers(0, 30)),
        st.tuples(st.just("due"), st.integers(0, 30), st.none()),
    ),
    max_size=300,
)


@given(_MOVES)
def test_alarms_ring_as_a_plain_table_of_times_says(moves: list[tuple[str, int, int | None]]) -> None:
    alarms: Alarms[int] = Alarms()
    table: dict[int, int] = {}
    for what, key, at in moves:
        if what == "set":
            alarms.set(key, at)
            table.pop(key, None)
            if at is not None:
                table[key] = at
        else:
            rung = alarms.due(key)
            assert sorted(rung) == sorted(one for one, due in table.items() if due <= key)
            assert [table[one] for one in rung] == sorted(table[one] for one in rung)
            for one in rung:
                del table[one]
        assert alarms.next() == min(table.values(), default=None)
        assert len(alarms) == len(table)
        assert all(alarms.at(one) == due for one, due in table.items())


def test_an_alarm_that_is_moved_a_million_times_holds_no_memory() -> None:
    alarms: Alarms[str] = Alarms()
    for at in range(10_000):
        alarms.set("again", at)
    assert len(alarms._heap) < 100
    assert alarms.due(10_000) == ["again"]
