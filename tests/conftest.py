"""What holds for every test of the project."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No timed assertion: a machine may be slow. In CI the examples are the same in every run; exploring is
# the business of the fuzzing targets, and of everybody's own runs.
settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("project")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """In CI nothing may be skipped but what needs an installation of Waltz 0.13.2."""
    outcome = yield
    report = outcome.get_result()
    if os.environ.get("CI") and report.skipped and item.get_closest_marker("java") is None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which CI does not allow: {report.longrepr}"


@pytest.fixture(autouse=True)
def cluster_witness(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The disks of every cluster that runs inside a test are judged when it ends, see tests/witness."""
    if "waltz_trio.embedded" not in sys.modules:
        return None
    from tests.witness.embedded import EmbeddedWitness

    return EmbeddedWitness(monkeypatch)
