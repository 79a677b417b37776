"""For tests of programs that use Waltz: real clusters in the test's process, and a suite for views of your own.

`docs/howto/testing.md` shows how; `waltz_testing.plugin` has the fixtures for pytest.
"""

from waltz_testing.clusters import RunningCluster, running_cluster
from waltz_testing.views import ViewCase, check_view, transactions, view_checks
from waltz_trio.embedded import EmbeddedCluster, embedded_cluster

__all__ = [
    "EmbeddedCluster",
    "RunningCluster",
    "ViewCase",
    "check_view",
    "embedded_cluster",
    "running_cluster",
    "transactions",
    "view_checks",
]
