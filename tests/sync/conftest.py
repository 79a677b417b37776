"""A real cluster in a thread of its own, for clients that know nothing of Trio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from waltz_testing import RunningCluster as ClusterThread
from waltz_testing import running_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterThread]:
    with running_cluster(partitions=4) as cluster:
        yield cluster


__all__ = ["ClusterThread", "cluster"]
