"""A real cluster in a thread of its own, for clients that know nothing of Trio."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import trio

from waltz_trio.embedded import EmbeddedCluster, embedded_cluster


class ClusterThread:
    """An embedded cluster, and the way to tell it something from outside."""

    def __init__(self) -> None:
        self._up: Future[tuple[EmbeddedCluster, trio.lowlevel.TrioToken]] = Future()
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name="cluster")
        self._thread.start()
        self.cluster, self._token = self._up.result()
        self.url = self.cluster.url

    def tell(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        trio.from_thread.run(function, *args, trio_token=self._token)

    def stop(self) -> None:
        trio.from_thread.run_sync(self._done.set, trio_token=self._token)
        self._thread.join()

    async def _main(self) -> None:
        try:
            async with embedded_cluster(partitions=4) as cluster:
                self._done = trio.Event()
                self._up.set_result((cluster, trio.lowlevel.current_trio_token()))
                await self._done.wait()
        except BaseException as error:
            if not self._up.done():
                self._up.set_exception(error)
            raise


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterThread]:
    thread = ClusterThread()
    yield thread
    thread.stop()
