"""UmaDB as a peer of `benchmarks.peers`: an event store, one server and so one copy, which is synced before it answers.

Its package has both the server and the client in Rust. Each append is one event of its own and bears a condition, as
applications of UmaDB do: it fails if there is an event with its tag that is newer than the last one of its thread. That
is checked for every append, as a lock of Waltz would be. In flight are threads of one process that each wait for an
append, over one connection; with hundreds of them Python's own lock limits the rate, not the server.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from benchmarks.measured import cpu_seconds, scratch
from tests.processes.cluster import poll
from waltz_trio.net.ports import HeldPorts

_SERVER = "from umadb.umadb_server_cli import main; main()"
_WARM_SECONDS = 2.0


def missing() -> str | None:
    """What is missing to run UmaDB here, None if nothing."""
    return "no umadb: pip install umadb" if importlib.util.find_spec("umadb") is None else None


def appends(umadb: Any, client: Any, in_flight: int, size: int, seconds: float) -> tuple[float, list[float]]:
    """Append from so many threads for so long: how long it was at last, and what each append took, in order."""
    payload = bytes(size)
    took: list[list[float]] = [[] for _ in range(in_flight)]
    failed: list[BaseException] = []
    begin = time.perf_counter()

    def work(mine: list[float], tag: str) -> None:
        query = umadb.Query(items=[umadb.QueryItem(tags=[tag])])
        last = None
        try:
            while not failed and (at := time.perf_counter()) < begin + seconds:
                condition = umadb.AppendCondition(query, last)
                last = client.append([umadb.Event("benchmark", payload, [tag])], condition)
                mine.append(time.perf_counter() - at)
        except Exception as error:  # told by who started the threads
            failed.append(error)

    # Tags of an earlier load have events already.
    workers = [threading.Thread(target=work, args=(mine, f"{begin}:{at}")) for at, mine in enumerate(took)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - begin, sorted(each for mine in took for each in mine)


@contextmanager
def running(parent: str, size: int, seconds: float) -> Iterator[Callable[[int], dict[str, Any]]]:
    """The server, and its load."""
    umadb: Any = importlib.import_module("umadb")
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(parent))
        address = f"127.0.0.1:{stack.enter_context(HeldPorts()).take()}"
        (directory / "data").mkdir()
        command = [sys.executable, "-c", _SERVER, "--listen", address, "--db-path", str(directory / "data")]
        with (directory / "server.log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(server.wait)
        stack.callback(server.kill)

        def connected() -> Any:
            assert server.poll() is None, (directory / "server.log").read_text()
            with suppress(umadb.TransportError):
                client = umadb.Client(f"http://{address}")
                client.head()
                return client
            return None

        client = poll("UmaDB answers", connected)
        stack.callback(client.close)

        def measure(in_flight: int) -> dict[str, Any]:
            appends(umadb, client, in_flight, size, _WARM_SECONDS)
            before = cpu_seconds(server.pid)
            passed, took = appends(umadb, client, in_flight, size, seconds)
            cost = (cpu_seconds(server.pid) - before) / len(took)
            return {
                "in_flight": in_flight,
                "tx_per_s": round(len(took) / passed),
                "p50_ms": round(took[len(took) // 2] * 1000, 2),
                "p99_ms": round(took[int(len(took) * 0.99)] * 1000, 2),
                "cpu_us_per_tx": round(cost * 1e6, 1),
            }

        yield measure
