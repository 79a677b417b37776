"""Where things are below the root of a cluster."""

from __future__ import annotations

from waltz_core.base.errors import ConfigError
from waltz_core.base.record import record


@record
class ClusterPaths:
    """Paths of one cluster; `root` as in the configuration key `cluster.root`."""

    root: str

    @property
    def ids(self) -> str:
        return f"{self.root}/ids"

    @property
    def client_ids(self) -> str:
        return f"{self.root}/ids/client"

    @property
    def server_ids(self) -> str:
        return f"{self.root}/ids/server"

    @property
    def servers(self) -> str:
        return f"{self.root}/serverDescriptors"

    @property
    def server_prefix(self) -> str:
        """ZooKeeper appends ten digits; they are not the server id."""
        return f"{self.root}/serverDescriptors/s_"

    @property
    def store(self) -> str:
        return f"{self.root}/store"

    @property
    def groups(self) -> str:
        return f"{self.root}/store/group"

    @property
    def assignment(self) -> str:
        return f"{self.root}/store/assignment"

    @property
    def connections(self) -> str:
        return f"{self.root}/store/connection"

    @property
    def partitions(self) -> str:
        return f"{self.root}/store/partition"

    def partition(self, partition_id: int) -> str:
        return f"{self.root}/store/partition/{partition_id}"

    @property
    def admin_lock(self) -> str:
        return f"{self.root}/store/adminLock"


def cluster_paths(root: str) -> ClusterPaths:
    """Paths below `root`.

    Raises:
        ConfigError: not an absolute path, or one that the original refuses.
    """
    if not root.startswith("/") or root.endswith("/") or "//" in root or root != root.strip():
        raise ConfigError(
            f"cluster.root must start with /, not end with /, and hold no // or blanks around it; found {root!r}"
        )
    return ClusterPaths(root)
