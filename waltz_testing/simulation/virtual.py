"""Trio tasks in the time of a simulated world: the product's own client, application and views, run by seed.

The world has one heap of events, Trio has tasks and deadlines. Whenever every task waits, the earlier of the next event
and the next deadline happens, and the clock of Trio jumps there. Nothing waits for real time, and nothing is left to
chance: Trio's scheduler draws the order of tasks from the seed too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from waltz_testing.simulation.world import SimNode, World
from waltz_trio.base.background import first_of
from waltz_trio.client.client import Client

T = TypeVar("T")

_BEYOND = 1e-6  # seconds past a deadline, which rounding would miss
_INSTALLING = threading.Lock()


class _Draws(threading.local):
    """What Trio draws the order of tasks from: in a thread that runs by seed its own generator, else what it had."""

    own: Random | None = None

    def __init__(self, others: Random) -> None:
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own or self._others, name)


@contextmanager
def tasks_ordered_by(rng: Random) -> Iterator[None]:
    """Runs of Trio that this thread begins inside the block draw the order of their tasks from `rng`.

    All runs of a process share one generator, those of other threads, too: with theirs between ours, no seed would be
    the same run again. As pytest-trio and hypothesis do, what Trio has for this is set in its module, where it stays.
    """
    scheduler = cast(Any, trio)._core._run
    with _INSTALLING:
        if not isinstance(scheduler._r, _Draws):
            scheduler._r = _Draws(scheduler._r)
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    before, scheduler._r.own = scheduler._r.own, rng
    try:
        yield
    finally:
        scheduler._r.own = before


def run_virtually(world: World, main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` in virtual time, while the world runs beside it.

    Raises:
        RuntimeError: every task waits for something that never comes; or Trio runs already.
    """
    clock = MockClock()

    async def both() -> T:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run_world, world, clock)
            result = await main()
            nursery.cancel_scope.cancel()
        return result

    try:
        with tasks_ordered_by(Random(Random(f"{world.seed}/tasks").random())):
            return trio.run(both, clock=clock)
    except BaseExceptionGroup as errors:
        failure = first_of(errors)
    raise failure


async def _run_world(world: World, clock: MockClock) -> None:
    start = trio.current_time() - world.now / 1000
    while True:
        await wait_all_tasks_blocked()
        deadline = trio.current_time() + trio.lowlevel.current_statistics().seconds_to_next_deadline
        at = world.run_to_outside(math.inf if deadline == math.inf else int((deadline - start) * 1000))
        if at is None:
            raise RuntimeError("the simulated program waits for something that never comes")
        target = start + at / 1000 if world.outside else deadline
        clock.jump(max(0.0, target - trio.current_time()) + _BEYOND)


class VirtualDriver:
    """Runs the machine of a client as a process of a simulated world, in the place of sockets."""

    def __init__(self, node: SimNode, client: Client) -> None:
        self._node = node
        self._epoch = node.epoch + 1
        self._table = client._plugins()
        node.plugins.clear()
        node.plugins.update(dict.fromkeys(self._table, self._hand_out))
        self.post: Callable[[Any], None] = self._deliver

    def _deliver(self, event: Any) -> None:
        if self._alive:
            self._node.post(event)

    @property
    def _alive(self) -> bool:
        return self._node.alive and self._node.epoch == self._epoch

    def _hand_out(self, effect: Any) -> None:
        self._node.world.outside = True
        self._table[type(effect)](effect)

    async def run(self) -> None:
        """Live until cancelled; the process ends with it, if nothing has killed it before."""
        self._node.start()
        try:
            await trio.sleep_forever()
        finally:
            if self._alive:
                self._node.crash()

    def finish(self, event: Any) -> None:
        """One last event, whose answer nothing waits for."""
        self.post(event)

    async def stop(self, *, patience: float) -> None:
        """Connections end with the process."""
