"""Whole clusters under faults, in which half of the applications go through a proxy that dies, too."""

from __future__ import annotations

import pytest

from tests.model.run import Run


@pytest.mark.parametrize("seed", range(1, 13))
def test_applications_behind_a_proxy_are_told_the_truth(seed: int) -> None:
    run = Run(seed, proxied=True)
    run.go()
    node = run.proxied.proxy.node
    assert node.machine.snapshot(node.clock).partitions
