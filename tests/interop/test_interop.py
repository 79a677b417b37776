"""Our processes and the original's in one cluster. Needs an installation of 0.13.2: see docs/compatibility.md."""

from __future__ import annotations

import pytest

from tests.interop.scenarios import Scene, scenarios

pytestmark = [pytest.mark.java, pytest.mark.processes]


@pytest.mark.parametrize("name", scenarios())
def test_one_cluster_with_the_original(name: str, scene: Scene) -> None:
    outcome = scenarios()[name](scene)

    print(f"{name}: {outcome.transactions} transactions, {outcome.note}")
    assert outcome.transactions > 0
