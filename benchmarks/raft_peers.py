"""NATS JetStream and etcd as peers of `benchmarks.peers`: three servers each, which sync before they answer.

Each is loaded by the tool that its makers measure it with, written in Go, one record of the given size a commit, over
one connection to NATS and up to sixteen to etcd's leader. NATS syncs each message only with `sync_interval: always`
(2.10 and newer), etcd always. Neither checks locks.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.measured import cpu_of, scratch
from tests.processes.cluster import poll
from waltz_trio.net.ports import HeldPorts

TOOLS: Mapping[str, Sequence[str]] = {"nats": ("nats-server", "nats"), "etcd": ("etcd", "etcd-benchmark")}
"""What must be on PATH: the server, and what loads it (natscli 0.2 or newer; tools/benchmark of etcd)."""

Load: TypeAlias = Callable[[int, int], Sequence[str]]  # command that commits so many, so many in flight
Figures: TypeAlias = Callable[[str], dict[str, Any]]  # from what it prints
_SERVERS = 3
_CONNECTIONS_MAX = 16  # of etcd: one would be a bottleneck
_WARM = 20  # commits for each that is in flight, and 500 more, before the length of a load is known


def missing(peer: str) -> str | None:
    """Which of its tools is not there, None if none."""
    absent = [tool for tool in TOOLS[peer] if shutil.which(tool) is None]
    return f"no `{absent[0]}` on PATH" if absent else None


class Servers:
    """Three servers and what loads them."""

    def __init__(self, commands: Sequence[Sequence[str]], directory: Path) -> None:
        self._children = []
        for at, command in enumerate(commands):
            with (directory / f"{at}.log").open("wb") as log:
                self._children.append(subprocess.Popen(command, stdout=log, stderr=log))

    @property
    def pids(self) -> dict[str, int]:
        """Of each."""
        return {str(child.pid): child.pid for child in self._children}

    def close(self) -> None:
        """End them."""
        for child in self._children:
            child.kill()
            child.wait()

    def bench(self, load: Load, figures: Figures, in_flight: int, seconds: float) -> dict[str, Any]:
        """Load them for about so many seconds with what the first, short load has shown; their own processor time."""
        count = _WARM * in_flight + 500
        for _ in range(2):
            before = cpu_of(self.pids)
            text = _output(load(in_flight, count))
            took = sum(cpu_of(self.pids).values()) - sum(before.values())
            found, done = figures(text), count
            count = max(count, int(found["tx_per_s"] * seconds))
        return {"in_flight": in_flight, **found, "cpu_us_per_tx": round(took / done * 1e6, 1)}


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def works(command: Sequence[str]) -> bool:
    """Whether it ends with status 0."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _figure(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1].replace(",", ""))


def nats_figures(text: str) -> dict[str, Any]:
    return {
        "tx_per_s": round(_figure(r"stats: ([\d,]+) msgs/sec", text)),
        "p50_ms": round(_figure(r"P50: ([\d,.]+)us", text) / 1000, 2),
        "p99_ms": round(_figure(r"P99: ([\d,.]+)us", text) / 1000, 2),
    }


def etcd_figures(text: str) -> dict[str, Any]:
    return {
        "tx_per_s": round(_figure(r"Requests/sec:\s+([\d.]+)", text)),
        "p50_ms": round(_figure(r"50% in ([\d.]+) secs", text) * 1000, 1),
        "p99_ms": round(_figure(r"99% in ([\d.]+) secs", text) * 1000, 1),
    }


@contextmanager
def nats(parent: str, size: int, seconds: float) -> Iterator[Callable[[int], dict[str, Any]]]:
    """JetStream, one stream of three replicas in files."""
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(parent))
        ports = stack.enter_context(HeldPorts())
        listen, routes = ([ports.take() for _ in range(_SERVERS)] for _ in range(2))
        others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        commands = []
        for at in range(_SERVERS):
            path = directory / f"{at}.conf"
            path.write_text(
                f'server_name: n{at}\nlisten: "127.0.0.1:{listen[at]}"\n'
                f'jetstream {{ store_dir: "{directory / str(at)}", sync_interval: always }}\n'
                f'cluster {{ name: bench, listen: "127.0.0.1:{routes[at]}", routes: [{others}] }}\n'
            )
            commands.append(["nats-server", "-c", str(path)])
        servers = Servers(commands, directory)
        stack.callback(servers.close)
        url = ["nats", "-s", f"nats://127.0.0.1:{listen[0]}", "bench", "js", "pub", "async", "bench", "--no-progress"]
        stream = ["--create", "--purge", "--replicas", str(_SERVERS), "--storage", "file", "--size", str(size)]

        def load(in_flight: int, count: int) -> Sequence[str]:
            return [*url, *stream, "--batch", str(in_flight), "--msgs", str(count)]

        poll("the stream is there", lambda: works(load(1, 1)))
        yield lambda in_flight: servers.bench(load, nats_figures, in_flight, seconds)


@contextmanager
def etcd(parent: str, size: int, seconds: float) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Keys in their order, each written once."""
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(parent))
        ports = stack.enter_context(HeldPorts())
        listen, peers = ([f"http://127.0.0.1:{ports.take()}" for _ in range(_SERVERS)] for _ in range(2))
        every = ",".join(f"e{at}={url}" for at, url in enumerate(peers))
        commands = []
        for at, (own, peer) in enumerate(zip(listen, peers, strict=True)):
            options = {"name": f"e{at}", "data-dir": str(directory / str(at)), "initial-cluster": every}
            options |= {"listen-client-urls": own, "advertise-client-urls": own}
            options |= {"listen-peer-urls": peer, "initial-advertise-peer-urls": peer}
            commands.append(["etcd", *itertools.chain(*((f"--{key}", value) for key, value in options.items()))])
        servers = Servers(commands, directory)
        stack.callback(servers.close)
        points = ",".join(url.removeprefix("http://") for url in listen)
        put = ["etcd-benchmark", "put", "--endpoints", points, "--target-leader", "--sequential-keys"]

        def load(in_flight: int, count: int) -> Sequence[str]:
            connections = str(min(in_flight, _CONNECTIONS_MAX))
            sizes = ["--val-size", str(size), "--total", str(count)]
            return [*put, *sizes, "--clients", str(in_flight), "--conns", connections]

        poll("etcd has a leader", lambda: works(load(1, 1)))
        yield lambda in_flight: servers.bench(load, etcd_figures, in_flight, seconds)
