"""Processes of a benchmark that append or read: a job comes as a file, lines of JSON tell how far it is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.append_client import Job
from benchmarks.measured import observed
from tests.processes.cluster import ROOT, Cluster

_NAMES = {"append": "client", "read": "reader", "idle": "idle"}


class Client:
    """A child that runs `benchmarks.append_client`."""

    def __init__(self, name: str, directory: Path, job: Job) -> None:
        self.name = name
        path = directory / f"{name}.json"
        job.write(path)
        self.process = subprocess.Popen(
            [sys.executable, *observed(name), "-m", "benchmarks.append_client", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def expect(self, event: str) -> dict[str, Any]:
        """Its next line, which must be about `event`."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()} before it was {event}")
        found: dict[str, Any] = json.loads(line)
        assert found["event"] == event, f"{self.name}: expected {event}, found {found}"
        return found

    def begin(self) -> None:
        """Let it go."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        """It must end by itself, in order."""
        status = self.process.wait(120)
        self.close()
        if status:
            raise SystemExit(f"{self.name} ended with status {status}")

    def close(self) -> None:
        """End it in any state."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def clients(cluster: Cluster, jobs: Sequence[Job]) -> Iterator[list[Client]]:
    """One process for each job; none is left at the end."""
    with ExitStack() as stack:
        made = []
        for number, job in enumerate(jobs):
            name = f"{_NAMES[job.role]}-{number}"
            made.append(Client(name, cluster.directory, job))
            stack.callback(made[-1].close)
        yield made
