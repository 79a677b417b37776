"""The simulated cluster, any process of which may be one of 0.13.2."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

from tests import versions_0132
from tests.model.vault import Agent, Vault
from tests.twin_0132.server import ServerNode0132
from tests.twin_0132.storage import StorageNode0132
from waltz_core.base.ids import Endpoint
from waltz_core.server.config import ServerConfig
from waltz_core.server.node import ServerNode
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.node import StorageNode
from waltz_core.store.followers import SessionConfig
from waltz_testing.simulation import cluster

KEY = cluster.KEY
ROOT = cluster.ROOT
RawPeer = cluster.RawPeer

_SERVER_0132: dict[str, Any] = {
    "versions": frozenset(versions_0132.CLIENT),
    "storage_versions": frozenset(versions_0132.STORAGE),
    # The next batch goes out when the last one is answered.
    "session": SessionConfig(link_flight_bytes_max=1, copy_count_max=20),
}
"""What a server of 0.13.2 speaks, and how it sends."""


class SimStorage(cluster.SimStorage):
    """A storage node of ours or of 0.13.2."""

    def __init__(self, simulated: SimCluster, number: int) -> None:
        super().__init__(simulated, number)
        self.is_0132 = simulated.storages_0132

    def _node_of(self, config: StorageConfig) -> StorageNode:
        return StorageNode0132(config) if self.is_0132 else StorageNode(config)


class SimCluster(cluster.SimCluster):
    """A cluster in which storage nodes and servers may be of 0.13.2.

    Args:
        storages_0132: whether the storage nodes are.
        servers_0132: numbers of the servers that are.
    """

    storages: list[SimStorage]  # type: ignore[assignment]  # as made here

    def __init__(
        self, seed: int, *, storages_0132: bool = False, servers_0132: Collection[int] = (), **options: Any
    ) -> None:
        self.storages_0132 = storages_0132
        self.servers_0132 = servers_0132
        super().__init__(seed, **options)
        self.vault = Vault(self.partitions)
        self.agents: list[Agent] = []  # of servers that archive
        if self._server_options.get("archiving") is not None:
            self.agents = [Agent(self.world, server, self.vault) for server in self.servers]

    def _storage(self, number: int) -> SimStorage:
        return SimStorage(self, number)

    def _server_of(self, number: int, root: str, endpoint: Endpoint, options: dict[str, Any]) -> ServerNode:
        rng = random.Random(f"{self.world.seed}/server{number}")
        if number in self.servers_0132:
            return ServerNode0132(ServerConfig(root, endpoint, **{**options, **_SERVER_0132}), rng)
        return ServerNode(ServerConfig(root, endpoint, **options), rng)
