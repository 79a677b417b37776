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


async def test_what_is_posted_now_is_stepped_at_once_and_so_is_what_performing_posts_but_only_once(
    nursery: trio.Nursery,
) -> None:
    machine, words = Recorder(), [str(number) for number in range(5)]

    def perform(out: Sequence[str]) -> None:
        for word in out:
            pump.post_all_now(words[int(word) + 1 : int(word) + 2])

    pump: Pump[str, str] = Pump(machine, perform)
    nursery.start_soon(pump.run)
    await trio.testing.wait_all_tasks_blocked()

    pump.post_now("0")

    assert [events for _, events in machine.batches] == [["0"], ["1"]]
    await trio.testing.wait_all_tasks_blocked()
    assert [events for _, events in machine.batches] == [[word] for word in words]


async def test_what_is_posted_now_while_a_step_is_due_joins_it(nursery: trio.Nursery) -> None:
    machine = Recorder()
    pump = pumped(machine, [])
    pump.post_now("before it runs")
    nursery.start_soon(pump.run)
    await trio.testing.wait_all_tasks_blocked()

    pump.post("a")
    pump.post_now("b")
    await trio.testing.wait_all_tasks_blocked()

    assert [events for _, events in machine.batches] == [["before it runs"], ["a", "b"]]


async def test_an_error_of_a_step_ends_the_pump_and_not_the_task_that_posted() -> None:
    machine = Recorder()
    pump = pumped(machine, [])
    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="asked to fail")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            await trio.testing.wait_all_tasks_blocked()

            pump.post_now("fail")
            pump.post_now("nobody steps for it")
            await trio.sleep_forever()

    assert [events for _, events in machine.batches] == [["fail"]]


async def test_a_pump_that_is_halted_by_such_a_step_ends(nursery: trio.Nursery) -> None:
    machine = Recorder()

    def perform(out: Sequence[str]) -> None:
        pump.halted = True

    pump: Pump[str, str] = Pump(machine, perform)
    ended = trio.Event()

    async def run() -> None:
        await pump.run()
        ended.set()

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()

    pump.post_now("the last")
    with trio.fail_after(60):
        await ended.wait()

    assert [events for _, events in machine.batches] == [["the last"]]


async def test_a_deadline_that_such_a_step_sets_is_kept(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    class Lazy(Recorder):
        def step(self, now: int, events: Sequence[str], out: list[str]) -> None:
            super().step(now, events, out)
            for event in events:
                self.due = now + int(event)

    machine = Lazy()
    pump = pumped(machine, [])
    nursery.start_soon(pump.run)
    await trio.sleep(1)
    begin = now_ms()

    pump.post_now("500")
    await trio.sleep(1)
    pump.post_now("0")  # it has more to do
    await trio.sleep(1)

    times = [(now - begin, events) for now, events in machine.batches]
    assert times == [(0, ["500"]), (500, []), (1000, ["0"]), (1000, [])]


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
