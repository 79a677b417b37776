"""Sockets in memory that do what the kernel may: take part of a write, give part of what came, fail, stall, go away.

`SimNetwork.installed()` puts them under the real channel, dialer, listener and end watch while a block runs: those wait
by descriptor, and here the descriptors are numbers of this network. Time is Trio's, which tests let jump.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import outcome
import trio

from waltz_core.base.ids import Endpoint
from waltz_trio.net import arrivals, channel, dialer, ends, listener

_FIRST_DESCRIPTOR = 100_000  # no descriptor of this process


@attrs.define
class Faults:
    """What befalls one connection, both ways; a fair one is slow and takes writes in part, and loses nothing."""

    capacity: int = 65_536  # bytes under way in one direction
    latency: float = 0.0  # seconds
    short: float = 0.0  # chance that a send or a receive moves only a part
    idle_wakes: float = 0.0  # chance of waking up although there is nothing to do
    breaks_at: int | None = None  # number of the call at which it breaks
    breaks_by: str = ""  # reset, end, surprise
    stalls_at: int | None = None  # number of the call from which on nothing passes

    @property
    def fair(self) -> bool:
        """Whether everything that is sent must arrive."""
        return self.breaks_at is None and self.stalls_at is None


class SimSocket:
    """One end of a connection; non-blocking."""

    def __init__(self, network: SimNetwork, name: str, faults: Faults) -> None:
        self.network = network
        self.name = name
        self.faults = faults
        self.peer: SimSocket | None = None
        self.arrived = bytearray()
        self.under_way = 0  # bytes sent to this end and not arrived
        self.ended = False  # the peer sends no more, and everything has arrived
        self.error: int | None = None  # of the next call
        self._lingers = True
        self._shut = False
        self._calls = itertools.count(1)
        self._descriptor = network.register(self)

    # ---- what the code under test calls ------------------------------------------------------------

    def fileno(self) -> int:
        return self._descriptor

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, level: int, name: int, value: object) -> None:
        if name == socket.SO_LINGER:
            self._lingers = False

    def send(self, data: bytes | memoryview) -> int:
        self._call("send")
        peer = self.peer
        if self._shut or peer is None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        if not data:
            return 0
        size = min(len(data), self.room)
        if size <= 0 or self._draws(self.faults.idle_wakes):
            self.network.later_again(self)
            raise BlockingIOError(errno.EAGAIN, "full")
        if size > 1 and self._draws(self.faults.short):
            size = self.network.rng.randint(1, size)
        self.network.carry(peer, bytes(data[:size]))
        return size

    def recv(self, size: int) -> bytes:
        self._call("recv")
        if not self.arrived:
            if self.ended:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing")
        if size > 1 and self._draws(self.faults.short):
            size = self.network.rng.randint(1, min(size, len(self.arrived)))
        data = bytes(self.arrived[:size])
        del self.arrived[:size]
        if self.peer is not None:
            self.network.look(self.peer)
        return data

    def recv_into(self, buffer: bytearray) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def shutdown(self, how: int) -> None:
        self._call("shutdown")
        if not self._shut and self.peer is not None:
            self._shut = True
            self.network.carry(self.peer, None)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        self.network.forget(self)
        self._descriptor = -1
        if self.peer is not None:
            if self.arrived or not self._lingers:
                self.network.reset(self.peer)
            elif not self._shut:
                self._shut = True
                self.network.carry(self.peer, None)

    # ---- what the network asks ---------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        peer = self.peer
        return 0 if peer is None else self.faults.capacity - peer.under_way - len(peer.arrived)

    @property
    def readable(self) -> bool:
        return bool(self.arrived) or self.ended or self.error is not None

    @property
    def writable(self) -> bool:
        return self.room > 0 or self._shut or self.error is not None

    @property
    def gone(self) -> bool:
        """What EPOLLRDHUP reports."""
        return self.ended or self.error is not None

    def _draws(self, chance: float) -> bool:
        return chance > 0 and self.network.rng.random() < chance

    def _call(self, what: str) -> None:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        number = next(self._calls)
        self.network.trace(f"{self.name} {what} {number}")
        if self.faults.stalls_at == number:
            self.network.stall(self)
        if self.faults.breaks_at == number:
            self.network.break_off(self, self.faults.breaks_by)
        if self.error is not None:
            code, self.error = self.error, None
            self.ended = True
            raise OSError(code, os.strerror(code))


class SimListener:
    """A listening socket: those who wait to be accepted, and errors of `accept`."""

    def __init__(self, network: SimNetwork) -> None:
        self.network = network
        self.waiting: deque[SimSocket | int] = deque()
        self._descriptor = network.register(self)

    def fileno(self) -> int:
        return self._descriptor

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not self.waiting:
            raise BlockingIOError(errno.EAGAIN, "nobody")
        first = self.waiting.popleft()
        if isinstance(first, int):
            raise OSError(first, os.strerror(first))
        return first, (first.name, 1)

    def close(self) -> None:
        if self._descriptor >= 0:
            self.network.forget(self)
            self._descriptor = -1
            for one in self.waiting:
                if isinstance(one, SimSocket):
                    one.close()

    @property
    def readable(self) -> bool:
        return bool(self.waiting)

    writable = False


class _Epoll:
    """`select.epoll` as far as `EndWatch` and `Arrivals` use it."""

    def __init__(self, network: SimNetwork) -> None:
        self.closed = False
        self.watched: dict[int, tuple[SimSocket, int]] = {}
        self._network = network
        self._descriptor = network.register(self)

    def fileno(self) -> int:
        return self._descriptor

    def register(self, descriptor: int, mask: int) -> None:
        assert descriptor not in self.watched, "watched already"
        found = self._network.open[descriptor]
        assert isinstance(found, SimSocket)
        self.watched[descriptor] = found, mask
        self._network.look(self)

    def unregister(self, descriptor: int) -> None:
        if descriptor not in self.watched:
            raise FileNotFoundError(errno.ENOENT, "not watched")
        del self.watched[descriptor]

    def poll(self, timeout: float, events_max: int = -1) -> list[tuple[int, int]]:
        ready = [(number, mask) for number, (one, mask) in self.watched.items() if self._is_ready(one, mask)]
        return ready[:events_max] if events_max > 0 else ready

    def close(self) -> None:
        self.closed = True
        self._network.forget(self)

    def __enter__(self) -> _Epoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def readable(self) -> bool:
        return bool(self.poll(0))

    @staticmethod
    def _is_ready(one: SimSocket, mask: int) -> bool:
        return one.gone or bool(mask & select.EPOLLIN and one.readable)

    writable = False


class SimNetwork:
    """All sockets, what is under way between them, and who waits for what.

    Lifetime: `run` in a nursery while connections stand.
    """

    def __init__(self, seed: object) -> None:
        self.rng = Random(f"{seed}/net")
        self.open: dict[int, Any] = {}
        self.listeners: dict[Endpoint, SimListener] = {}
        self.draw_faults: Callable[[], Faults] = Faults
        self.connect_delay: Callable[[], float] = lambda: 0.0
        self.faults: dict[str, Faults] = {}  # name of a connection → what befell it
        self.lines: list[str] = []
        self._numbers = itertools.count(_FIRST_DESCRIPTOR)
        self._names = itertools.count(1)
        self._waiting: dict[tuple[int, str], trio.lowlevel.Task] = {}
        self._due: list[tuple[float, int, SimSocket, bytes | None]] = []
        self._order = itertools.count()
        self._last_due: dict[int, float] = {}
        self._stalled: set[int] = set()  # ends to which nothing comes any more
        self._changed = trio.Event()

    def trace(self, line: str) -> None:
        """One line of what happened."""
        self.lines.append(f"{trio.current_time():.4f} {line}")

    # ---- descriptors -------------------------------------------------------------------------------

    def register(self, thing: object) -> int:
        number = next(self._numbers)
        self.open[number] = thing
        return number

    def forget(self, thing: Any) -> None:
        number = thing.fileno()
        for way in ("read", "write"):
            assert (number, way) not in self._waiting, "closed under somebody who waits, without notice"
        del self.open[number]

    async def wait(self, way: str, number: int) -> None:
        """`wait_readable` and `wait_writable`."""
        thing = self.open.get(number)
        if thing is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if (number, way) in self._waiting:
            raise trio.BusyResourceError("another task is waiting for this descriptor")
        idle = isinstance(thing, SimSocket) and thing._draws(thing.faults.idle_wakes)
        if idle or (thing.readable if way == "read" else thing.writable):
            await trio.lowlevel.checkpoint()
            return
        key = number, way
        self._waiting[key] = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiting[key]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def notify_closing(self, number: int) -> None:
        assert number >= 0, "descriptor -1"
        for way in ("read", "write"):
            task = self._waiting.pop((number, way), None)
            if task is not None:
                trio.lowlevel.reschedule(task, outcome.Error(trio.ClosedResourceError("closed meanwhile")))

    @property
    def waiting(self) -> int:
        """Tasks that wait for a descriptor."""
        return len(self._waiting)

    def look(self, thing: Any) -> None:
        """Wake who waits for what has come true."""
        number = thing.fileno()
        for way, true in (("read", thing.readable), ("write", thing.writable)):
            if true:
                task = self._waiting.pop((number, way), None)
                if task is not None:
                    trio.lowlevel.reschedule(task, outcome.Value(None))
        if isinstance(thing, SimSocket) and thing.gone:
            for one in list(self.open.values()):
                if isinstance(one, _Epoll) and number in one.watched:
                    self.look(one)

    # ---- bytes -------------------------------------------------------------------------------------

    def carry(self, target: SimSocket, data: bytes | None) -> None:
        """Bytes, or the end, on their way to an end of a connection."""
        due = max(trio.current_time() + target.faults.latency, self._last_due.get(id(target), 0.0))
        self._last_due[id(target)] = due
        target.under_way += len(data or b"")
        heapq.heappush(self._due, (due, next(self._order), target, data))
        self._changed.set()

    def later_again(self, end: SimSocket) -> None:
        """Somebody was told to wait although there is room."""
        self.carry(end, b"")

    async def run(self) -> None:
        """Let bytes arrive."""
        while True:
            self._changed = trio.Event()
            wait = self._due[0][0] - trio.current_time() if self._due else float("inf")
            if wait > 0:
                with trio.move_on_after(wait):
                    await self._changed.wait()
                continue
            _, _, target, data = heapq.heappop(self._due)
            self._arrive(target, data)

    def _arrive(self, target: SimSocket, data: bytes | None) -> None:
        target.under_way -= len(data or b"")
        if id(target) in self._stalled:
            target.under_way += len(data or b"")  # it keeps its room for ever
            return
        if target.fileno() < 0:
            if data and target.peer is not None and target.peer.fileno() >= 0:
                self.reset(target.peer)  # nobody is there
            return
        if data is None:
            target.ended = True
        else:
            target.arrived += data
        self.look(target)

    def reset(self, end: SimSocket) -> None:
        """The peer is gone with a reset: what had arrived is lost."""
        if end.fileno() >= 0:
            end.arrived.clear()
            end.error = errno.ECONNRESET
            self.look(end)

    def stall(self, end: SimSocket) -> None:
        """Nothing passes any more, either way, and nobody is told."""
        for one in (end, end.peer):
            if one is not None:
                self._stalled.add(id(one))

    def break_off(self, end: SimSocket, how: str) -> None:
        """A connection breaks."""
        self.trace(f"{end.name} breaks: {how}")
        if how == "surprise":
            raise RuntimeError("a surprise of the test")
        if end.peer is not None:
            if how == "reset":
                self.reset(end.peer)
                end.error = errno.ECONNRESET
            else:  # the end without goodbye
                end.peer.ended = end.ended = True
                end._shut = end.peer._shut = True
                self.look(end.peer)
            self.look(end)

    # ---- connections -------------------------------------------------------------------------------

    def pair(self, faults: Faults) -> tuple[SimSocket, SimSocket]:
        """Both ends of a new connection."""
        name = f"c{next(self._names)}"
        self.faults[name] = faults
        near = SimSocket(self, f"{name}/near", attrs.evolve(faults))
        # What breaks, breaks at one end.
        far = SimSocket(self, f"{name}/far", attrs.evolve(faults, breaks_at=None, stalls_at=None))
        near.peer, far.peer = far, near
        return near, far

    def listen(self, endpoint: Endpoint) -> SimListener:
        made = self.listeners[endpoint] = SimListener(self)
        return made

    async def connect(self, endpoint: Endpoint) -> SimSocket:
        """`dialer._connected`."""
        await trio.sleep(self.connect_delay())
        return self.connect_now(endpoint)

    def connect_now(self, endpoint: Endpoint) -> SimSocket:
        """Connect, or be refused."""
        listening = self.listeners.get(endpoint)
        if listening is None or listening.fileno() < 0:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        near, far = self.pair(self.draw_faults())
        listening.waiting.append(far)
        self.look(listening)
        return near

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Under the real drivers while the block runs."""

        async def readable(number: int) -> None:
            await self.wait("read", number)

        async def writable(number: int) -> None:
            await self.wait("write", number)

        watch = SimpleNamespace(epoll=lambda: _Epoll(self), EPOLLIN=select.EPOLLIN, EPOLLRDHUP=select.EPOLLRDHUP)
        names = {
            (channel, "wait_readable"): readable,
            (channel, "wait_writable"): writable,
            (channel, "notify_closing"): self.notify_closing,
            (listener, "wait_readable"): readable,
            (listener, "notify_closing"): self.notify_closing,
            (ends, "wait_readable"): readable,
            (ends, "select"): watch,
            (arrivals, "select"): watch,
            (dialer, "_connected"): self.connect,
        }
        before = {(module, name): getattr(module, name) for module, name in names}
        for (module, name), function in names.items():
            setattr(module, name, function)
        try:
            yield
        finally:
            for (module, name), function in before.items():
                setattr(module, name, function)
