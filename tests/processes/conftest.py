"""Real processes for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.zookeeper import ZooKeeperServer, missing, running_zookeeper


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for all tests; each test takes a `fresh_chroot()`."""
    problem = missing()
    if problem is not None:
        pytest.fail(problem)
    with running_zookeeper() as server:
        yield server


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper that one test may kill or silence."""
    problem = missing()
    if problem is not None:
        pytest.fail(problem)
    with running_zookeeper() as server:
        yield server
