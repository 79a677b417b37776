"""When a task of a port does its work: in turns with others, and how often it looks at what comes in drops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

import trio

from waltz_core.access.port_turns import PortTurns

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.25
_WINDOW = 49_152  # bytes, of which sockets take more before their sender has to wait


class Drops:
    """Pauses between reads of something small that arrives in pieces, so that not every byte wakes a task.

    One piece causes no pause, two cause one of a millisecond; together the pauses are shorter than the time that the
    bytes took so far. Without them, peers that send single bytes on many connections would keep a process busy. They
    begin anew where much has come since the last one: that sender may have filled its window, and waited for us.
    """

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._came = False  # the last thing that came was a drop
        self._size = 0  # bytes that came since the last pause

    async def read(self, stream: trio.abc.ReceiveStream, size: int, *, began: bool = False) -> bytes:
        """So many bytes at most, after a pause if the last thing was a drop, or is not whole yet (`began`)."""
        if began or self._came:
            await self.gather()
        data = bytes(await stream.receive_some(size))
        self._came = len(data) < size // 4
        self._size += len(data)
        return data

    async def gather(self) -> None:
        """Let some more arrive."""
        if self._size >= _WINDOW:
            self._pause = _FIRST_PAUSE
        self._size = 0
        await trio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


class Turns:
    """The turns of one port: `waltz_core.access.port_turns` says whose it is, here is the event loop.

    Lifetime: `run` in a nursery, for as long as there is work.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rule = PortTurns(rate, burst)
        self._waiting: dict[int, trio.Event] = {}
        self._delayed: set[int] = set()
        self._wanted = trio.Event()
        self._resting = trio.Event()

    async def turn(self, conn: int, owner: str, cost: int, *, request: bool = False, ahead: bool = False) -> bool:
        """Wait until work of a connection may be done; whether it had to wait because requests are too many."""
        self._wanted.set()
        if self._rule.at_once(trio.current_time(), conn, owner, cost, request=request):
            return False
        turn = self._waiting[conn] = trio.Event()
        self._rule.ask(conn, owner, cost, request=request, ahead=ahead)
        try:
            await turn.wait()
        except BaseException:
            self._rule.drop(conn)
            self._waiting.pop(conn, None)
            self._delayed.discard(conn)
            raise
        delayed = conn in self._delayed
        self._delayed.discard(conn)
        return delayed

    def came(self, conn: int) -> None:
        """A new connection."""
        self._rule.came(conn)

    def gone(self, conn: int) -> None:
        """It has ended."""
        self._rule.gone(conn)

    def admitted(self, conn: int, before: str, owner: str) -> None:
        """The request of a connection is an owner's, and no longer of whom it counted for before."""
        self._rule.admitted(trio.current_time(), conn, before, owner)

    @contextmanager
    def under_way(self, owner: str) -> Iterator[None]:
        """A request waits for its answer."""
        self._rule.begin(owner)
        try:
            yield
        finally:
            self._rule.end(owner)
            self._wanted.set()

    async def run(self) -> None:
        """Give turns, a measure in each round of the event loop, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_back)
            while True:
                self._give(self._rule.round(trio.current_time()))
                now = trio.current_time()
                due = self._rule.due(now)
                if due is not None and due <= now:
                    await trio.lowlevel.checkpoint()
                    continue
                if self._rule.resting:
                    self._resting.set()
                with trio.CancelScope(deadline=math.inf if due is None else due):
                    await self._wanted.wait()
                self._wanted = trio.Event()

    async def _give_back(self) -> None:
        """Whenever all tasks wait, give the next turn of those who rest."""
        while True:
            await self._resting.wait()
            from trio.testing import wait_all_tasks_blocked  # loads pytest where that is installed: not at each start

            await wait_all_tasks_blocked()
            self._give(self._rule.idle(trio.current_time()))
            self._resting = trio.Event()
            self._wanted.set()  # for the round that follows, and looks whether somebody still rests

    def _give(self, turns: list[tuple[int, bool]]) -> None:
        for conn, delayed in turns:
            if delayed:
                self._delayed.add(conn)
            self._waiting.pop(conn).set()


class Work:
    """What one connection has to do at a port, in the turns of its owner."""

    def __init__(self, turns: Turns, conn: int, address: str, delayed: Callable[[], None]) -> None:
        """`delayed` hears of requests that waited because there are too many."""
        self.conn = conn
        self.owner = self._address = address
        self._turns = turns
        self._delayed = delayed

    def __enter__(self) -> Work:
        """The connection is there."""
        self._turns.came(self.conn)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is gone."""
        self._turns.gone(self.conn)

    async def turn(self, cost: int, *, request: bool = False, ahead: bool = False) -> None:
        """Wait until so much may be done; `ahead`: for a request that came before the answer to the last one."""
        if await self._turns.turn(self.conn, self.owner, cost, request=request, ahead=ahead):
            self._delayed()

    def beside(self) -> Work:
        """What another task has to do for the same connection: it waits for turns of its own."""
        work = Work(self._turns, -self.conn, self._address, self._delayed)
        work.owner = self.owner
        return work

    def belongs_to(self, owner: str) -> None:
        """Whose the request is that came last; empty: not known, so the address stands for him."""
        before, self.owner = self.owner, owner or self._address
        self._turns.admitted(self.conn, before, self.owner)

    def under_way(self) -> AbstractContextManager[None]:
        """A request waits for its answer."""
        return self._turns.under_way(self.owner)
