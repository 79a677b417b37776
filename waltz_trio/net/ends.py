"""Sees that a peer is gone on sockets that are not being read."""

from __future__ import annotations

import select
from collections.abc import Callable

from trio.lowlevel import wait_readable


class EndWatch:
    """The end of a stream stands behind its last byte: who does not read a socket would see it never.

    The kernel knows it even so (`EPOLLRDHUP`), once it has room for what the peer sent before. Where there is
    no epoll, an end is seen when the socket is read again.

    Lifetime: `run` in a nursery; `watch` and `forget` at any time, `forget` before the socket is closed.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._ended: dict[int, Callable[[], None]] = {}

    def watch(self, descriptor: int, ended: Callable[[], None]) -> None:
        """Call `ended` once the peer of a socket is gone."""
        if self._epoll is not None and not self._epoll.closed and descriptor not in self._ended:
            self._epoll.register(descriptor, select.EPOLLRDHUP)
            self._ended[descriptor] = ended

    def forget(self, descriptor: int) -> None:
        """Stop watching a socket."""
        if self._ended.pop(descriptor, None) is not None:
            assert self._epoll is not None
            if not self._epoll.closed:
                self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Watch until cancelled."""
        if self._epoll is None:
            return
        with self._epoll:
            while True:
                await wait_readable(self._epoll.fileno())
                for descriptor, _ in self._epoll.poll(0):
                    ended = self._ended[descriptor]
                    self.forget(descriptor)
                    ended()
