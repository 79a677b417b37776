"""The plugin for pytest: clusters as fixtures. Loaded by pytest where the package is installed.

| fixture | scope |
|---|---|
| `waltz_cluster` | a fresh cluster for each test, about half a second |
| `waltz_session_cluster` | one cluster for all tests; give each test a partition, or names of its own |

Both are a `RunningCluster`, in a thread of its own, so a test may be plain, of asyncio or of Trio. The marker
`@pytest.mark.waltz(partitions=2, servers=2)` says what the cluster of one test is like.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from waltz_testing.clusters import RunningCluster

_NAMES = ("partitions", "storage_nodes", "servers", "settings")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "waltz(partitions=4, storage_nodes=3, servers=1, settings=None): the cluster of `waltz_cluster`"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker that would have no effect."""
    names = getattr(item, "fixturenames", ())
    for marker in item.own_markers:
        if marker.name == "waltz" and "waltz_session_cluster" in names and "waltz_cluster" not in names:
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.waltz is for waltz_cluster; waltz_session_cluster is one cluster for all "
                "tests, with 4 partitions: leave the marker out, or ask for waltz_cluster"
            )


def _check_marker(marker: pytest.Mark) -> None:
    unknown = [repr(value) for value in marker.args] + sorted(marker.kwargs.keys() - set(_NAMES))
    if unknown:
        raise pytest.UsageError(
            f"@pytest.mark.waltz takes {', '.join(f'{name}=' for name in _NAMES)}, found {', '.join(unknown)}"
        )


@pytest.fixture
def waltz_cluster(request: pytest.FixtureRequest) -> Iterator[RunningCluster]:
    """A cluster of this test's own."""
    from waltz_testing.clusters import running_cluster  # a run of pytest without clusters does not load it

    marker = request.node.get_closest_marker("waltz")
    if marker is not None:
        _check_marker(marker)
    with running_cluster(**(marker.kwargs if marker is not None else {})) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def waltz_session_cluster() -> Iterator[RunningCluster]:
    """One cluster for all tests that ask for it."""
    from waltz_testing.clusters import running_cluster

    with running_cluster() as cluster:
        yield cluster
