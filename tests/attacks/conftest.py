"""ZooKeeper for the attacks."""

from __future__ import annotations

from tests.processes.conftest import zookeeper

__all__ = ["zookeeper"]
