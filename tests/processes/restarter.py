"""Restarts processes of a cluster for `restart-plan --exec`, as an operator's command would by ssh."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.processes.cluster import Cluster

# What an operator would do by ssh: ask whoever runs the processes, and wait until it is done.
_ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as made:
    made.sendall((sys.argv[2] + "\\n").encode())
    sys.exit(int(made.makefile().readline()))
"""


class Restarter:
    """Restarts processes of a cluster for whoever asks on a port; can be told to fail once.

    What it started ends with its thread (setpriv --pdeathsig), so it outlives all use of them.
    """

    def __init__(self, cluster: Cluster, restart: Callable[[str], object] | None = None) -> None:
        """`restart` is called with the name of a process in place of stopping and starting it."""
        self._restart = restart or self._stop_and_start
        self._names = {where: name for name, where in cluster.advertised.items()}
        self._cluster = cluster
        self.restarted: list[str] = []
        self.fail_at = ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    @property
    def command(self) -> str:
        """For `--exec`."""
        port = self._listener.getsockname()[1]
        return f"{sys.executable} -c '{_ASK.replace(chr(39), chr(34))}' {port} {{node}}"

    @contextmanager
    def running(self) -> Iterator[Restarter]:
        self._thread.start()
        try:
            yield self
        finally:
            with socket.create_connection(self._listener.getsockname()) as made:
                made.sendall(b"\n")
            self._thread.join()
            self._listener.close()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                asked = connection.makefile().readline().strip()
                if not asked:
                    return
                name = self._names[asked]
                if name == self.fail_at:
                    self.fail_at = ""
                    connection.sendall(b"7\n")
                    continue
                self._restart(name)
                self.restarted.append(name)
                connection.sendall(b"0\n")

    def _stop_and_start(self, name: str) -> None:
        self._cluster.children[name].stop()
        self._cluster.start(name)
