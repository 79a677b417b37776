"""Whole clusters under faults, in which half of the applications go through a proxy that dies, too."""

from __future__ import annotations

import pytest

from tests.model.proxied import ProxyRun


@pytest.mark.parametrize("seed", range(1, 13))
def test_applications_behind_a_proxy_are_told_the_truth(seed: int) -> None:
    run = ProxyRun(seed)
    run.go()
    assert run.proxy.node.machine.snapshot(run.proxy.node.clock).partitions
