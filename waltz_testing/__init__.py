"""For tests of programs that use Waltz: real clusters, simulated ones with faults by seed, and a suite for views.

`docs/howto/testing.md` and `docs/howto/seeds.md` show how; `waltz_testing.plugin` has the fixtures for pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltz_testing.clusters import RunningCluster, running_cluster
    from waltz_testing.simulation.plan import Fault, Plan, Step, Submit
    from waltz_testing.simulation.play import Played, Simulated
    from waltz_testing.simulation.seeds import SimulationError, Summary, check_plan, simulate
    from waltz_testing.view_case import ViewCase, transactions
    from waltz_testing.views import check_view, view_checks
    from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster

__all__ = [
    "EmbeddedCluster",
    "Fault",
    "Plan",
    "Played",
    "RunningCluster",
    "Simulated",
    "SimulationError",
    "Step",
    "Submit",
    "Summary",
    "ViewCase",
    "check_plan",
    "check_view",
    "embedded_cluster",
    "running_cluster",
    "simulate",
    "transactions",
    "view_checks",
]

_HOMES = {
    "EmbeddedCluster": "waltz_trio.node.embedded",
    "Fault": "waltz_testing.simulation.plan",
    "Plan": "waltz_testing.simulation.plan",
    "Played": "waltz_testing.simulation.play",
    "RunningCluster": "waltz_testing.clusters",
    "Simulated": "waltz_testing.simulation.play",
    "SimulationError": "waltz_testing.simulation.seeds",
    "Step": "waltz_testing.simulation.plan",
    "Submit": "waltz_testing.simulation.plan",
    "Summary": "waltz_testing.simulation.seeds",
    "ViewCase": "waltz_testing.view_case",
    "check_plan": "waltz_testing.simulation.seeds",
    "check_view": "waltz_testing.views",
    "embedded_cluster": "waltz_trio.node.embedded",
    "running_cluster": "waltz_testing.clusters",
    "simulate": "waltz_testing.simulation.seeds",
    "transactions": "waltz_testing.view_case",
    "view_checks": "waltz_testing.views",
}


def __getattr__(name: str) -> Any:
    # On demand: pytest loads the plugin, and so this package, in every run where it is installed; one that uses nothing
    # of it should not pay for it, and one that measures coverage of Waltz must be able to begin before Waltz is loaded.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
