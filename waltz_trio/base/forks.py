"""What a forked child must not use: sockets are closed there, and their users called, before anything else runs.

A child has copies of the sockets of its parent. Whatever it sends on one spoils the parent's connection, and as long as
it has one open, the connection outlives the parent. So sockets are closed first, without sending
anything; then the objects that used them are called.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from weakref import WeakMethod, WeakSet

_SOCKETS: WeakSet[socket.socket] = WeakSet()
_CALLBACKS: set[WeakMethod[Callable[[], None]]] = set()


def keep_from_child(sock: socket.socket) -> None:
    """Have a socket closed in a forked child."""
    _SOCKETS.add(sock)


def call_in_child(method: Callable[[], None]) -> None:
    """Have a method called in a forked child, once its sockets are closed, as long as its object lives."""
    _CALLBACKS.add(WeakMethod(method, _CALLBACKS.discard))


def _in_child() -> None:
    for sock in list(_SOCKETS):
        sock.close()
    for reference in list(_CALLBACKS):
        method = reference()
        if method is not None:
            method()


os.register_at_fork(after_in_child=_in_child)
