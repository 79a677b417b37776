"""Talks to the admin port of a storage node, one request after the other: for tools and for `waltz dev`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

import trio

from waltz_core.base.ids import Endpoint
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_codec import VERSIONS
from waltz_core.wire.connection import ADMIN_PROTOCOL
from waltz_core.wire.port_session import PortSession
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.tls import ClientTls
from waltz_trio.ports.port import PortError, RefusedError, ToolPort, dialed

_DEFAULT_LIMITS = NetLimits()

M = TypeVar("M")


class AdminClient(ToolPort[admin.AdminMessage]):
    """One connection to an admin port. Made by `open_admin`; requests are answered in turn. Codec 0 is 0.13.2."""

    def __init__(
        self,
        endpoint: Endpoint,
        stream: trio.SSLStream[trio.SocketStream],
        versions: Collection[int],
        opening: admin.AdminOpenRequest,
    ) -> None:
        session = PortSession[admin.AdminMessage](ADMIN_PROTOCOL, "Waltz Storage Admin Client", versions, opening)
        super().__init__(endpoint, stream, session, "admin")
        self._seq_num = -1

    async def call(self, make: Callable[[int], admin.AdminMessage]) -> admin.AdminMessage:
        """Send the request that `make` builds from its sequence number; return the answer.

        Raises:
            PortError: the connection broke; what became of the request is unknown.
            RefusedError: the node refused.
        """
        self._seq_num += 1
        return await self.granted(make(self._seq_num))

    async def expect(self, make: Callable[[int], admin.AdminMessage], expected: type[M]) -> M:
        """As `call`, for an answer of this type; errors as there, and `PortError` if it is another one."""
        answer = await self.call(make)
        if not isinstance(answer, expected):
            raise PortError(f"{self.endpoint}: unexpected answer {type(answer).__name__}")
        return answer

    async def assign(self, partition_ids: Collection[int]) -> None:
        """Make the node a replica of partitions; errors as `call`."""
        wanted = tuple(partition_ids)
        await self.call(lambda seq: admin.PartitionAssignmentRequest(seq, wanted, True, False))

    async def unassign(self, partition_ids: Collection[int], *, delete_files: bool = False) -> None:
        """Let the node forget partitions; errors as `call`."""
        wanted = tuple(partition_ids)
        await self.call(lambda seq: admin.PartitionAssignmentRequest(seq, wanted, False, delete_files))

    async def set_available(self, partition_ids: Collection[int], available: bool) -> None:
        """Allow or forbid reads and writes of partitions; errors as `call`."""
        wanted = tuple(partition_ids)
        await self.call(lambda seq: admin.PartitionAvailableRequest(seq, wanted, available))

    async def assigned(self) -> dict[int, bool]:
        """Assigned partitions and whether each is available; errors as `call`."""
        answer = await self.expect(admin.AssignedPartitionStatusRequest, admin.AssignedPartitionStatusResponse)
        return dict(answer.partition_status)

    async def metrics(self) -> str:
        """The node's metrics as JSON; errors as `call`."""
        answer = await self.expect(admin.MetricsRequest, admin.MetricsResponse)
        return answer.metrics_json or ""


@asynccontextmanager
async def open_admin(
    endpoint: Endpoint,
    tls: ClientTls,
    *,
    key: bytes,
    num_partitions: int,
    versions: Collection[int] = VERSIONS,
    limits: NetLimits = _DEFAULT_LIMITS,
) -> AsyncIterator[AdminClient]:
    """Connect to an admin port and show `key`, the cluster's, 16 bytes as in the `store` znode.

    Raises:
        PortError: the node cannot be reached.
        RefusedError: the node belongs to another cluster.
    """
    async with dialed(endpoint, tls, limits) as stream:
        client = AdminClient(endpoint, stream, versions, admin.AdminOpenRequest(-1, UUID(bytes=key), num_partitions))
        await client.open()
        yield client


__all__ = ["AdminClient", "PortError", "RefusedError", "open_admin"]
