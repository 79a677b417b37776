"""What a forked child is kept from."""

from __future__ import annotations

import socket

from tests.forks import exit_status_of_child
from waltz_trio.base.forks import call_in_child, keep_from_child


class Told:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed_before: bool | None = None

    def in_child(self) -> None:
        self.closed_before = self.sock.fileno() == -1


def test_sockets_are_closed_in_the_child_alone_before_what_used_them_hears_of_it() -> None:
    ours, peers = socket.socketpair()
    with ours, peers:
        keep_from_child(ours)
        told = Told(ours)
        call_in_child(told.in_child)
        assert exit_status_of_child(lambda: int(not (ours.fileno() == -1 and told.closed_before))) == 0
        assert told.closed_before is None
        ours.sendall(b"the parent goes on")
        assert peers.recv(100) == b"the parent goes on"


def test_what_is_gone_is_not_told() -> None:
    ours, peers = socket.socketpair()
    with ours, peers:
        heard: list[bool] = []

        class Counted(Told):
            def in_child(self) -> None:
                heard.append(True)

        kept, gone = Counted(ours), Counted(ours)
        call_in_child(kept.in_child)
        call_in_child(gone.in_child)
        del gone
        assert exit_status_of_child(lambda: len(heard)) == 1
