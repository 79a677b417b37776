"""For tests of programs that use Waltz: real clusters in the test's process, and a suite for views of your own.

`docs/howto/testing.md` shows how; `waltz_testing.plugin` has the fixtures for pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "EmbeddedCluster": "waltz_trio.embedded",
    "RunningCluster": "waltz_testing.clusters",
    "ViewCase": "waltz_testing.views",
    "check_view": "waltz_testing.views",
    "embedded_cluster": "waltz_trio.embedded",
    "running_cluster": "waltz_testing.clusters",
    "transactions": "waltz_testing.views",
    "view_checks": "waltz_testing.views",
}


def __getattr__(name: str) -> Any:
    # On demand: pytest loads the plugin, and so this package, in every run where it is installed; one that uses nothing
    # of it should not pay for it, and one that measures coverage of Waltz must be able to begin before Waltz is loaded.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
