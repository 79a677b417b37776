"""Real database servers of the tests' own: started on this machine alone, killed, started again.

Both refuse to run as root; then they run as the user that Debian's package made for them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from waltz_trio.net.ports import HeldPorts

_PATIENCE = 60.0  # seconds for a start on a busy machine


class DatabaseServer(ABC):
    """A server with one superuser, and an empty database for whoever asks."""

    user: str
    package: str
    unit = "DATABASE"

    def __init__(self, *, durable: bool = False) -> None:
        """`durable`: it waits for the disk, which tests need not, since they kill processes and not machines."""
        self.durable = durable
        # Not below pytest's directory, which other users cannot enter. Paths of sockets are short.
        self.directory = Path(tempfile.mkdtemp(prefix="waltz-db-"))
        self._owner: dict[str, Any] = {}
        if os.getuid() == 0:
            shutil.chown(self.directory, self.user, self.user)
            self._owner = {"user": self.user, "group": self.user, "extra_groups": []}
        self._databases = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.directory / "log"
        self._create()
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log, cwd="/", **self._settings())
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._ask()
            except (psycopg.OperationalError, pymysql.err.OperationalError):
                if self._process.poll() is not None or time.monotonic() > until:
                    raise AssertionError(f"{self.package} did not start:\n{self._log.read_text()}") from None
                time.sleep(0.1)

    def kill(self) -> None:
        """End it as a loss of power would, apart from the disk's cache."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """End it, and remove what it wrote."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def new_database(self) -> str:
        """An empty database."""
        self._databases += 1
        name = f"bank{self._databases}"
        self.execute("", f"CREATE {self.unit} {name}")
        return name

    @abstractmethod
    def execute(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """One statement, committed; the rows of its answer."""

    def _settings(self) -> dict[str, Any]:
        # A server of MariaDB that starts removes what looks like its own temporary files, also another server's.
        return {"env": {**os.environ, "TMPDIR": str(self.directory)}, **self._owner}

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._settings())
        assert done.returncode == 0, done.stdout + done.stderr

    @abstractmethod
    def _create(self) -> None:
        """Make its files."""

    @abstractmethod
    def _command(self) -> list[str | Path]:
        """What starts it."""

    def _ask(self) -> None:
        self.execute("", "SELECT 1")


class PostgresServer(DatabaseServer):
    """PostgreSQL, of the newest version that is installed."""

    user = "postgres"
    package = "postgresql"
    unit = "SCHEMA"  # a database would be a copy of a thousand files

    @property
    def _binaries(self) -> Path:
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
        if versions:
            return versions[-1].parent
        here = shutil.which("postgres")
        assert here is not None, "install the Debian package postgresql"
        return Path(here).resolve().parent

    def _create(self) -> None:
        self._run(self._binaries / "initdb", "-D", self.directory / "data", "-U", "waltz", "-A", "trust", "--no-sync")

    def _command(self) -> list[str | Path]:
        options = [
            f"-k{self.directory}",
            "-clisten_addresses=",
            "-cunix_socket_permissions=0777",
            f"-cfsync={self.durable}",
        ]
        return [self._binaries / "postgres", "-D", self.directory / "data", *options]

    def kill(self) -> None:
        """The first process, and with it those that it notices to be orphans."""
        super().kill()
        # Its children hold the shared memory until they have noticed; a new server waits for that, or refuses.
        data = self.directory / "data"
        until = time.monotonic() + _PATIENCE
        while _processes_in(data) and time.monotonic() < until:
            time.sleep(0.01)
        (data / "postmaster.pid").unlink(missing_ok=True)

    def conninfo(self, database: str) -> str:
        """What PostgresView takes."""
        return f"host={self.directory} user=waltz dbname=postgres" + f" options=-csearch_path={database}" * bool(
            database
        )

    def execute(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """One statement."""
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []


class MariaServer(DatabaseServer):
    """MariaDB."""

    user = "mysql"
    package = "mariadb-server"

    def _create(self) -> None:
        with HeldPorts() as ports:
            self._port = ports.take()  # its driver leaves a socket behind where a path refuses it
        options = ["--no-defaults", f"--datadir={self.directory / 'data'}", "--skip-test-db"]
        self._run("mariadb-install-db", *options, "--auth-root-authentication-method=normal")

    def _command(self) -> list[str | Path]:
        binary = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
        return [
            binary,
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            f"--socket={self.directory / 'socket'}",
            f"--pid-file={self.directory / 'pid'}",
            "--bind-address=127.0.0.1",
            f"--port={self._port}",
            f"--debug-no-sync={int(not self.durable)}",
        ]

    def options(self, database: str) -> dict[str, Any]:
        """What MySqlView takes."""
        return {"host": "127.0.0.1", "port": self._port, "user": "root", "database": database}

    def execute(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """One statement."""
        connection = pymysql.connect(**self.options(database or "mysql"), autocommit=True)
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


def _processes_in(directory: Path) -> list[int]:
    """Processes whose working directory this is."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.resolve() == directory:
                found.append(int(link.parts[2]))
        except OSError:
            continue
    return found
