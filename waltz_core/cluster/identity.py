"""The ids of a process: numbers taken from counters in ZooKeeper, so that no two processes have the same."""

from __future__ import annotations

from waltz_core.base.edge import ZkDone
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.znodes import decode_id_counter


class Ids:
    """Which ids a process needs, and which it has."""

    __slots__ = ("_client", "_paths", "_server", "client_id", "server_id")

    def __init__(self, paths: ClusterPaths, *, server: bool, client: bool) -> None:
        self._paths = paths
        self._server = server
        self._client = client
        self.server_id: int | None = None
        self.client_id: int | None = None

    @property
    def counter(self) -> str | None:
        """The counter to take a number from next."""
        if self._server and self.server_id is None:
            return self._paths.server_ids
        if self._client and self.client_id is None:
            return self._paths.client_ids
        return None

    def taken(self, number: int) -> None:
        """The counter was raised to it by us."""
        if self._server and self.server_id is None:
            self.server_id = number
        else:
            self.client_id = number


def next_id(counter: ZkDone) -> tuple[int, int]:
    """The number to raise a counter to, on condition of the version beside it.

    Raises:
        ProtocolError: the znode is no counter.
    """
    # Java: ids wrap to negative ones after 2^31 - 1.
    assert counter.stat is not None
    return (decode_id_counter(counter.data or b"") + 1 + 2**31) % 2**32 - 2**31, counter.stat.version
