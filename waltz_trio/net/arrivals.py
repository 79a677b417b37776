"""Sees whether any connection has something to read, without waiting for it."""

from __future__ import annotations

import select


class Arrivals:
    """Who has read a socket asks here whether others are worth waiting for, so that one step serves all of them.

    Where there is no epoll, they always are. A socket that is not to be read must be forgotten: what waits in it would
    look as if it came.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._watched: set[int] = set()

    def watch(self, descriptor: int) -> None:
        """From now on a socket is read."""
        if self._epoll is not None and not self._epoll.closed and descriptor not in self._watched:
            self._epoll.register(descriptor, select.EPOLLIN)
            self._watched.add(descriptor)

    def forget(self, descriptor: int) -> None:
        """A socket is not read any more, or about to be closed."""
        if descriptor in self._watched:
            self._watched.remove(descriptor)
            assert self._epoll is not None
            if not self._epoll.closed:
                self._epoll.unregister(descriptor)

    def any(self) -> bool:
        """Whether a socket has bytes, or its end, to read now."""
        return self._epoll is None or self._epoll.closed or bool(self._epoll.poll(0, 1))

    def close(self) -> None:
        """Nothing is read any more."""
        if self._epoll is not None:
            self._epoll.close()
