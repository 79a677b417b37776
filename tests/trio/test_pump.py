"""The pump: batches, deadlines, order, post-mortem."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from waltz_trio.base import pump as pump_module
from waltz_trio.base.pump import Pump, now_ms


class Recorder:
    """Notes its batches and echoes its events."""

    def __init__(self, due: int | None = None) -> None:
        self.due = due
        self.batches: list[tuple[int, list[str]]] = []

    def deadline(self) -> int | None:
        return self.due

    def step(self, now: int, events: Sequence[str], out: list[str]) -> None:
        self.batches.append((now, list(events)))
        if self.due is not None and now >= self.due:
            self.due = None
        if "fail" in events:
            raise AssertionError("asked to fail")
        out.extend(events)


def pumped(machine: Recorder, effects: list[str], recorded_batches: int = 0) -> Pump[str, str]:
    return Pump(machine, effects.extend, name="test", recorded_batches=recorded_batches)


async def test_events_posted_together_make_one_step(nursery: trio.Nursery) -> None:
    machine, effects = Recorder(), list[str]()
    pump = pumped(machine, effects)
    nursery.start_soon(pump.run)
    await trio.testing.wait_all_tasks_blocked()

    pump.post("a")
    pump.post_all(["b", "c"])
    await trio.testing.wait_all_tasks_blocked()

    assert [events for _, events in machine.batches] == [["a", "b", "c"]]
    assert effects == ["a", "b", "c"]


async def test_events_posted_by_performing_make_the_next_step_each_time(nursery: trio.Nursery) -> None:
    machine, words = Recorder(), [str(number) for number in range(20)]

    def perform(out: Sequence[str]) -> None:
        for word in out:
            pump.post_all(words[int(word) + 1 : int(word) + 2])

    pump: Pump[str, str] = Pump(machine, perform)
    nursery.start_soon(pump.run)
    await trio.testing.wait_all_tasks_blocked()

    pump.post("0")
    await trio.testing.wait_all_tasks_blocked()

    assert [events for _, events in machine.batches] == [[word] for word in words]


async def test_a_due_machine_is_stepped_without_events_and_not_early(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    due = now_ms() + 1234
    machine = Recorder(due)
    nursery.start_soon(pumped(machine, []).run)

    await trio.sleep(100)

    assert machine.batches == [(due, [])]


async def test_a_machine_without_deadline_sleeps(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    machine = Recorder()
    nursery.start_soon(pumped(machine, []).run)

    await trio.sleep(10_000)

    assert machine.batches == []


async def test_an_event_wakes_a_machine_before_its_deadline(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    machine = Recorder(now_ms() + 60_000)
    pump = pumped(machine, [])
    nursery.start_soon(pump.run)
    await trio.sleep(1)

    pump.post("now")
    await trio.testing.wait_all_tasks_blocked()

    assert [events for _, events in machine.batches] == [["now"]]


async def test_a_full_inbox_makes_readers_wait(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "INBOX_MAX", 2)
    machine = Recorder()
    pump = pumped(machine, [])
    pump.post_all(["a", "b"])
    waited = trio.Event()

    async def reader() -> None:
        await pump.wait_room()
        waited.set()

    nursery.start_soon(reader)
    await trio.testing.wait_all_tasks_blocked()
    assert not waited.is_set()

    nursery.start_soon(pump.run)
    await waited.wait()

    assert [events for _, events in machine.batches] == [["a", "b"]]


async def test_events_of_foreign_threads_arrive(nursery: trio.Nursery) -> None:
    machine = Recorder()
    arrived = trio.Event()
    pump: Pump[str, str] = Pump(machine, lambda out: arrived.set())
    nursery.start_soon(pump.run)
    token = trio.lowlevel.current_trio_token()

    await trio.to_thread.run_sync(token.run_sync_soon, pump.post, "hello")
    await arrived.wait()

    assert machine.batches[0][1] == ["hello"]


def test_a_failed_assertion_leaves_a_flight_record_that_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(pump_module, "now_ms", lambda: 5)
    pump = pumped(Recorder(), [], recorded_batches=2)
    for event in ("one", "two", "three"):
        pump.post(event)
        pump.run_once()
    pump.post("fail")

    with pytest.raises(AssertionError) as caught:
        pump.run_once()

    (folder,) = tmp_path.iterdir()
    assert str(folder / "flight.txt") in caught.value.__notes__[0]
    flight = pickle.loads((folder / "flight.pickle").read_bytes())
    assert [(events, effects) for _, events, effects in flight] == [(["three"], ["three"]), (["fail"], [])]
    assert "< 'fail'" in (folder / "flight.txt").read_text()
