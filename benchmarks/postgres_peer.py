"""PostgreSQL as a peer of `benchmarks.peers`: a primary and two standbys, of which one must have synced a commit.

That is what Waltz promises of three replicas, a majority on disk. Commits are SERIALIZABLE, one row each, made by
`pgbench`, which is written in C and counts for nothing here.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.processes.cluster import poll
from tests.views.servers import PostgresServer

_STANDBYS = ("standby_a", "standby_b")
_SCRIPT = "INSERT INTO log (payload) VALUES (decode(repeat('00', {size}), 'hex'));\n"
_MOST = 90  # connections


class Primary(PostgresServer):
    """The one that takes commits."""

    def bench(self, in_flight: int, size: int, seconds: float) -> dict[str, Any]:
        """Commits a second with so many connections that each have one under way, after two seconds to warm up."""
        script = self.directory / "insert.sql"
        script.write_text(_SCRIPT.format(size=size))
        script.chmod(0o644)
        for length in (2, max(1, round(seconds))):
            clients = min(in_flight, _MOST)
            command = [
                self._binaries / "pgbench",
                "-n",
                "-f",
                script,
                "-c",
                clients,
                "-j",
                min(2, clients),
                "-T",
                length,
            ]
            command += ["-h", self.directory, "-U", "waltz", "postgres"]
            done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=True)
        rate = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
        mean = re.search(r"^latency average = ([\d.]+) ms", done.stdout, re.MULTILINE)
        assert rate is not None, done.stdout
        assert mean is not None, done.stdout
        return {"in_flight": clients, "tx_per_s": round(float(rate[1])), "mean_ms": float(mean[1])}


class Standby(PostgresServer):
    """A copy of a primary, which follows it."""

    def __init__(self, primary: PostgresServer, name: str) -> None:
        self._primary, self._name = primary, name
        super().__init__(durable=True)

    def _create(self) -> None:
        source: list[str | Path] = ["-h", self._primary.directory, "-U", "waltz", "-R", "-X", "stream", "-c", "fast"]
        self._run(self._binaries / "pg_basebackup", *source, "-D", self.directory / "data")

    def _command(self) -> list[str | Path]:
        return [*super()._command(), f"-ccluster_name={self._name}"]


@contextmanager
def running() -> Iterator[Primary]:
    """All three, following, with the table; none is left at the end."""
    with ExitStack() as stack:
        primary = Primary(durable=True)
        stack.callback(primary.close)
        primary.execute("", "CREATE TABLE log (id BIGSERIAL PRIMARY KEY, payload BYTEA NOT NULL)")
        for name in _STANDBYS:
            stack.callback(Standby(primary, name).close)
        primary.execute("", f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({', '.join(_STANDBYS)})'")
        primary.execute("", "ALTER SYSTEM SET default_transaction_isolation = 'serializable'")
        primary.execute("", "SELECT pg_reload_conf()")
        count = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum' AND state = 'streaming'"
        poll("both standbys follow", lambda: primary.execute("", count)[0][0] == len(_STANDBYS))
        yield primary
