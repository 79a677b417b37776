"""Runs one state machine: collects events, steps once per batch, carries out the effects."""

from __future__ import annotations

import pickle
import reprlib
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import outcome
import trio

from waltz_core.base.contract import Machine

E = TypeVar("E")
F = TypeVar("F")

INBOX_MAX = 10_000  # events after which readers wait for room


def now_ms() -> int:
    """Trio's clock as machines see it; the tiny surplus keeps a timer from waking a millisecond early."""
    return int(trio.current_time() * 1000 + 0.001)


def wall_offset_ms() -> int:
    """Milliseconds since 1970 minus `now_ms`."""
    return time.time_ns() // 1_000_000 - now_ms()


class FlightRecorder(Generic[E, F]):
    """The last batches of one machine, for the post-mortem of a failed assertion."""

    def __init__(self, name: str, batch_count_max: int) -> None:
        self.name = name
        self.batches: deque[tuple[int, list[E], list[F]]] = deque(maxlen=batch_count_max)

    def write(self, directory: Path | None = None) -> Path:
        """Write the batches as `NAME.txt` (to read) and `NAME.pickle` (to replay); return the text's path."""
        folder = Path(tempfile.mkdtemp(prefix=f"waltz-flight-{self.name}-", dir=directory))
        text = folder / "flight.txt"
        short = reprlib.Repr()
        short.maxother = short.maxstring = 2000
        short.maxlist = 1000
        with text.open("w") as file:
            for now, events, effects in self.batches:
                file.write(f"== {now} ms\n")
                file.writelines(f"  < {short.repr(event)}\n" for event in events)
                file.writelines(f"  > {short.repr(effect)}\n" for effect in effects)
        with (folder / "flight.pickle").open("wb") as file_:
            pickle.dump(list(self.batches), file_)
        return text


class Pump(Generic[E, F]):
    """One machine and its inbox.

    `perform` gets the effects of a step and must neither await nor raise. Events may be posted from
    any Trio task (from foreign threads through `TrioToken.run_sync_soon`). `others` says whether more is about to be
    posted beside what is delivered.
    """

    def __init__(
        self,
        machine: Machine[E, F],
        perform: Callable[[list[F]], None],
        *,
        name: str = "machine",
        recorded_batches: int = 0,
        others: Callable[[], bool] = lambda: False,
    ) -> None:
        self._machine = machine
        self._perform = perform
        self._others = others
        self._inbox: list[E] = []
        self._sleeper: trio.lowlevel.Task | None = None
        self._stepping = False  # in the task of who posted; the sleeper sleeps on unless more is to be done
        self._failure: BaseException | None = None  # of such a step: it ends the pump, not who posted
        self._scope = trio.CancelScope()  # of the sleeper
        self._room: trio.Event | None = None
        self.recorder: FlightRecorder[E, F] | None = (
            FlightRecorder(name, recorded_batches) if recorded_batches > 0 else None
        )
        self.halted = False  # true = the machine is dead: nothing is stepped or performed any more
        self.steps = 0
        self.events = 0

    def post(self, event: E) -> None:
        """Put one event in the inbox; returns at once."""
        self._inbox.append(event)
        self._rouse()

    def post_all(self, events: Iterable[E]) -> None:
        """Put several events in the inbox, in order; returns at once."""
        self._inbox.extend(events)
        self._rouse()

    def post_now(self, event: E) -> None:
        """As `post_all_now`, of one event."""
        self.post_all_now((event,))

    def post_all_now(self, events: Iterable[E]) -> None:
        """Put events in the inbox and step at once, in the calling task, if the pump sleeps.

        For who knows that nothing is about to be posted beside them: a round of the event loop is saved, which costs as
        much as a step with little to do. What performing posts gets a step of its own at once, which is the answer of
        a disk that has synced in place; more than that waits for its round, as others do.
        """
        self._inbox.extend(events)
        # Else it is about to step, or does so, or does not run yet.
        if self._sleeper is not None and not self._stepping:
            self._step_now()

    def deliver(self, events: Iterable[E]) -> None:
        """Put events in the inbox and step at once as `post_all_now` does, unless `others` have something to post.

        Whether they have is not even asked where this step has to wait.
        """
        self._inbox.extend(events)
        if self._sleeper is not None and not self._stepping:
            if self._others():
                self._rouse()
            else:
                self._step_now()

    def _step_now(self) -> None:
        self._stepping = True
        try:
            self.run_once()
            if self._inbox:
                self.run_once()
        except BaseException as error:
            self._failure = error
        finally:
            self._stepping = False
        if self._inbox or self.halted or self._failure is not None or self._overdue():
            self._rouse()

    @property
    def busy(self) -> bool:
        """Events wait for the next step."""
        return bool(self._inbox)

    async def wait_room(self) -> None:
        """Wait until the inbox is short enough for more; returns without a checkpoint when it is."""
        while len(self._inbox) >= INBOX_MAX:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    async def run(self) -> None:
        """Run until cancelled or halted.

        Raises:
            AssertionError: the machine broke one of its own invariants; the flight record, if kept,
                was written first and is named in a note of the exception.
        """
        while not self.halted:
            # One scope serves many steps: it is left only when a deadline passes. A fresh one for every wait was
            # a fifth of the cost of a step.
            with trio.CancelScope() as scope:
                self._scope = scope
                while not self.halted:
                    if self._inbox or self._overdue():
                        await trio.lowlevel.checkpoint()  # others come first, and readers may add to this batch
                    else:
                        await self._park()
                    self.run_once()
            if scope.cancelled_caught and not self.halted:
                due = self._machine.deadline()
                if self._inbox or (due is not None and due <= now_ms()):
                    self.run_once()

    def run_once(self) -> None:
        """Step the machine with the events of the inbox and perform its effects."""
        if self._failure is not None:
            raise self._failure
        if self.halted:
            self._inbox.clear()
            return
        events, self._inbox = self._inbox, []
        if self._room is not None:
            self._room.set()
            self._room = None
        out: list[F] = []
        now = now_ms()
        self.steps += 1
        self.events += len(events)
        try:
            self._machine.step(now, events, out)
        except BaseException as error:
            if self.recorder is not None:
                self._record(now, events, out)
                error.add_note(f"flight record: {self.recorder.write()}")
            raise
        if self.recorder is not None:
            self._record(now, events, out)
        self._perform(out)

    def _record(self, now: int, events: Sequence[E], out: Sequence[F]) -> None:
        assert self.recorder is not None
        self.recorder.batches.append((now, list(events), list(out)))

    def _rouse(self) -> None:
        sleeper = self._sleeper
        if sleeper is not None and not self._stepping:
            self._sleeper = None
            trio.lowlevel.reschedule(sleeper, outcome.Value(None))

    def _overdue(self) -> bool:
        """Whether the machine wants to be stepped now; else its sleep ends at its deadline or before.

        The deadline of the scope is only ever made earlier: deadlines mostly recede, and waking once
        for nothing costs less than moving it with every step.
        """
        due = self._machine.deadline()
        if due is None:
            return False
        if due / 1000 < self._scope.deadline:
            if due <= now_ms():
                return True
            self._scope.deadline = due / 1000
        return False

    async def _park(self) -> None:
        """Wait for an event, or be cancelled by the scope. A bare reschedule costs a fifth of a `trio.Event`."""
        self._sleeper = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._sleeper = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
