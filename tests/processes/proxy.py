"""A network between real processes that can fail: every connection of a cluster goes through it.

It runs in a thread of its own. A route leads from a port of the proxy to the real port of one process; who dialled
is found out by the process id behind the other end of the connection, so that the connections of one
process can be cut whoever they lead to. Cut bytes are kept, as a network keeps what is sent again: they arrive
once the connection is whole again, unless it was reset.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

_CHUNK = 1 << 16  # bytes forwarded at a time

# Of <linux/netlink.h> and <linux/sock_diag.h>.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEAD = 16  # bytes of a netlink header
_ANY = 0xFFFFFFFF


@attrs.define(eq=False)
class _Link:
    """One connection through the proxy."""

    dialler: str
    target: str
    near: trio.SocketStream
    far: trio.SocketStream | None = None
    changed: trio.Event = attrs.field(factory=trio.Event)


class FaultProxy:
    """Forwards bytes between processes, except where it is told not to.

    Args:
        who: name of the process of an id, None if it is not one of ours.
    """

    def __init__(self, who: Callable[[int], str | None]) -> None:
        self._who = who
        self._cut: set[tuple[str, str]] = set()  # (from, to): bytes in this direction stay here
        self._rates: dict[tuple[str, str], int] = {}  # (from, to): bytes a second that get through
        self._links: set[_Link] = set()
        self._routes: dict[int, tuple[str, int]] = {}  # port → target, its real port
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name="fault proxy", daemon=True)

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        """Forward until the block is left."""
        self._thread.start()
        self._ready.wait()
        try:
            yield self
        finally:
            self._do(self._scope.cancel)
            self._thread.join()

    def route(self, target: str, port: int) -> int:
        """A port of 127.0.0.1 that leads to `port` of the process `target`."""
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        number = int(listening.getsockname()[1])
        self._routes[number] = target, port
        self._do(lambda: self._serve(listening))
        return number

    def cut(self, name: str, *, sends: bool = True, receives: bool = True) -> None:
        """From now on nothing that `name` sends, and nothing that is sent to it, arrives anywhere."""

        def act() -> None:
            if sends:
                self._cut.add((name, ""))
            if receives:
                self._cut.add(("", name))

        self._do(act)

    def cut_between(self, source: str, target: str) -> None:
        """From now on nothing that `source` sends to `target` arrives; the other way is open."""
        self._do(lambda: self._cut.add((source, target)))

    def slow_between(self, source: str, target: str, rate: int) -> None:
        """From now on what `source` sends to `target` arrives at `rate` bytes a second, over each connection."""
        self._do(lambda: self._rates.update({(source, target): rate}))

    def heal(self, name: str | None = None) -> None:
        """What was cut, or what of it concerns `name`, is whole again, and what was kept arrives."""

        def act() -> None:
            self._cut = {pair for pair in self._cut if name is not None and name not in pair}
            self._rates = {pair: rate for pair, rate in self._rates.items() if name is not None and name not in pair}
            for link in self._links:
                link.changed.set()
                link.changed = trio.Event()

        self._do(act)

    def reset(self, name: str) -> None:
        """Break every connection of a process."""
        self._do(lambda: [self._break(link) for link in list(self._links) if name in (link.dialler, link.target)])

    # ---- inside the thread -----------------------------------------------------------------------

    def _do(self, act: Callable[[], object]) -> None:
        assert self._token is not None, "the proxy does not run"
        trio.from_thread.run_sync(act, trio_token=self._token)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._ready.set()
                await trio.sleep_forever()

    def _serve(self, listening: socket.socket) -> None:
        assert self._nursery is not None
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        target, port = self._routes[listening.getsockname()[1]]

        async def accept() -> None:
            async with listener:
                handler: Callable[[trio.SocketStream], Awaitable[None]] = partial(self._forward, target, port)
                await trio.serve_listeners(handler, [listener])

        self._nursery.start_soon(accept)

    async def _forward(self, target: str, port: int, near: trio.SocketStream) -> None:
        link = _Link(self._dialler(near), target, near)
        self._links.add(link)
        try:
            while self._is_cut(link.dialler, target) or self._is_cut(target, link.dialler):
                await link.changed.wait()  # whoever dials now waits, as for a host that is not there
            link.far = await trio.open_tcp_stream("127.0.0.1", port)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._copy, link, near, link.far, link.dialler, target)
                nursery.start_soon(self._copy, link, link.far, near, target, link.dialler)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one end is gone: so is the other
        finally:
            self._links.discard(link)
            self._break(link)

    async def _copy(self, link: _Link, source: trio.SocketStream, sink: trio.SocketStream, name: str, to: str) -> None:
        while data := await source.receive_some(_CHUNK):
            while self._is_cut(name, to):
                await link.changed.wait()
            if rate := self._rates.get((name, to)):
                await trio.sleep(len(data) / rate)
            await sink.send_all(data)
        while self._is_cut(name, to):
            await link.changed.wait()
        await sink.send_eof()

    def _is_cut(self, source: str, target: str) -> bool:
        return not self._cut.isdisjoint({(source, ""), ("", target), (source, target)})

    @staticmethod
    def _break(link: _Link) -> None:
        for stream in (link.near, link.far):
            if stream is not None and stream.socket.fileno() >= 0:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close resets
                stream.socket.close()

    def _dialler(self, near: trio.SocketStream) -> str:
        """The process at the other end, by its socket: Linux lists the sockets of each process as files."""
        try:
            wanted = f"socket:[{_inode(near.socket.getpeername()[1], near.socket.getsockname()[1])}]"
        except OSError:
            return ""  # it has hung up
        for path in Path("/proc").glob("[0-9]*"):
            name = self._who(int(path.name))
            if name is not None and wanted in _files(path / "fd"):
                return name
        return ""  # a tool, or the process has ended


def _inode(local: int, remote: int) -> int:
    """Of the socket of 127.0.0.1 from port `local` to port `remote`; 0 if there is none any more.

    The kernel is asked for this one socket (sock_diag(7)): the table of all, /proc/net/tcp, takes it 12 ms, and where
    a whole cluster dials again on a busy machine, nobody would be through before he gives up.
    """
    here = socket.inet_aton("127.0.0.1") + bytes(12)
    wanted = struct.pack(">HH", local, remote) + here + here + struct.pack("=III", 0, _ANY, _ANY)
    body = struct.pack("=BBxxI", socket.AF_INET, socket.IPPROTO_TCP, _ANY) + wanted
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as netlink:
        netlink.send(struct.pack("=IHHII", _HEAD + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body)
        answer = netlink.recv(_CHUNK)
    (kind,) = struct.unpack_from("=H", answer, 4)
    return int(struct.unpack_from("=I", answer, _HEAD + 68)[0]) if kind == _SOCK_DIAG_BY_FAMILY else 0


def _files(directory: Path) -> set[str]:
    """What the open files of a process are; those that come and go meanwhile are left out."""
    found = set()
    try:
        for entry in os.scandir(directory):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry))
    except OSError:
        pass  # the process has just ended
    return found
