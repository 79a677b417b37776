"""A real cluster in a thread of the test's process: plain tests, asyncio and Trio alike talk to it by its address."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import trio

from waltz_trio.base.background import first_of
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster


class RunningCluster:
    """A cluster while it runs in its thread. Made by `running_cluster`; its methods wait until what they say is done.

    Faults are those of `EmbeddedCluster`: killed nodes lose what they had in memory, and keep their files.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._up: Future[tuple[EmbeddedCluster, trio.lowlevel.TrioToken, trio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="waltz cluster", daemon=True)
        self._thread.start()
        self.cluster, self._token, self._done = self._up.result()

    @property
    def url(self) -> str:
        """What `open_client` takes."""
        return self.cluster.url

    @property
    def partitions(self) -> int:
        """How many it has."""
        return self.cluster.partitions

    def kill_server(self, index: int = 0) -> None:
        """End a server as a crash would."""
        self.tell(self.cluster.kill_server, index)

    def restart_server(self, index: int = 0) -> None:
        """Start a server that was killed."""
        self.tell(self.cluster.restart_server, index)

    def kill_storage(self, index: int = 0) -> None:
        """End a storage node as a crash would."""
        self.tell(self.cluster.kill_storage, index)

    def restart_storage(self, index: int = 0) -> None:
        """Start a storage node that was killed, from its files."""
        self.tell(self.cluster.restart_storage, index)

    def wait_ready(self) -> None:
        """Wait until every partition can be appended to."""
        self.tell(self.cluster.wait_ready)

    def tell(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Run an async function in the cluster's thread, such as a method of `cluster`.

        Raises:
            RuntimeError: the cluster has ended; its cause is why, where it ended by itself.
        """
        try:
            trio.from_thread.run(function, *args, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            self._thread.join()
            why = "it was stopped" if self._failure is None else str(first_of(self._failure))
            raise RuntimeError(f"this cluster has ended: {why}") from (self._failure or error)

    def stop(self) -> None:
        """End every node in order; a failure that ended the cluster before is raised here."""
        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(self._done.set, trio_token=self._token)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    _failure: BaseException | None = None

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            if self._up.done():
                self._failure = error
            else:
                self._up.set_exception(error)

    async def _main(self) -> None:
        async with embedded_cluster(**self._options) as cluster:
            done = trio.Event()
            self._up.set_result((cluster, trio.lowlevel.current_trio_token(), done))
            await done.wait()


@contextmanager
def running_cluster(
    directory: str | None = None,
    *,
    partitions: int | None = None,
    storage_nodes: int | None = None,
    servers: int = 1,
    settings: Mapping[str, object] | None = None,
) -> Iterator[RunningCluster]:
    """A cluster in a thread of its own, running inside the block; arguments as `embedded_cluster`.

    Raises:
        ConfigError: the directory holds something else, or a cluster with other numbers.
    """
    options = {"directory": directory, "partitions": partitions, "storage_nodes": storage_nodes, "servers": servers}
    cluster = RunningCluster({**options, "settings": settings})
    try:
        yield cluster
    finally:
        cluster.stop()
