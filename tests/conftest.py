"""What holds for every test of the project."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from waltz_trio.node.main import tune_collector

# No timed assertion: a machine may be slow. In CI the examples are the same in every run; exploring is
# the business of the fuzzing targets, and of everybody's own runs.
settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
# What `make test` runs of each property; a run by hand and `make test-long` try as many as hypothesis would.
settings.register_profile("quick", settings.get_profile("project"), max_examples=30, stateful_step_count=30)
settings.load_profile("project")


def pytest_collection_finish() -> None:
    """Collect garbage as rarely as Waltz's processes do: simulated clusters hold no more cycles than real ones."""
    tune_collector()


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """Dots are for people who watch: in a log they would push out what failed."""
    if report.when == "call" and report.passed and config.get_verbosity() < 0 and not sys.stdout.isatty():
        return "passed", "", ""
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite`: transcripts are written as they come out, instead of compared."""
    parser.addoption("--rewrite", action="store_true", help="write the transcripts in tests/model/testdata anew")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI nothing may be skipped but what needs an installation of Waltz 0.13.2."""
    report = yield
    if os.environ.get("CI") and report.skipped and item.get_closest_marker("java") is None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def cluster_witness(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The disks of every cluster that runs inside a test are judged when it ends, see tests/witness."""
    if "waltz_trio.node.embedded" not in sys.modules:
        return None
    from tests.witness.embedded import EmbeddedWitness

    return EmbeddedWitness(monkeypatch)
