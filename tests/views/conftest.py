"""One server of each database for all tests that need one; each test has a database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.conftest import zookeeper as zookeeper
from tests.views.servers import MariaServer, PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def maria() -> Iterator[MariaServer]:
    server = MariaServer()
    yield server
    server.close()
