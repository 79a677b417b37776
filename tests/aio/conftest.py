"""The cluster of the tests for threads."""

from tests.sync.conftest import cluster

__all__ = ["cluster"]
