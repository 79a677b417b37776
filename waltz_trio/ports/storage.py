"""Talks to the data port of a storage node, one request after the other: for tools. Servers do it in the core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

import trio

from waltz_core.base.ids import Endpoint
from waltz_core.base.log import Record
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import STORAGE_PROTOCOL
from waltz_core.wire.port_session import PortSession
from waltz_core.wire.storage_codec import VERSIONS
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.tls import ClientTls
from waltz_trio.ports.port import PortError, ToolPort, dialed

_DEFAULT_LIMITS = NetLimits()

M = TypeVar("M")


class StoragePort(ToolPort[wire.StorageMessage]):
    """One connection and one partition, in one store session. Made by `open_storage_port`."""

    def __init__(
        self,
        endpoint: Endpoint,
        stream: trio.SSLStream[trio.SocketStream],
        offline: bool,
        opening: wire.OpenRequest,
    ) -> None:
        session = PortSession[wire.StorageMessage](STORAGE_PROTOCOL, "Waltz Storage Client", VERSIONS, opening)
        super().__init__(endpoint, stream, session, "storage")
        self.session_id = -1
        self.partition_id = -1
        self.offline = offline  # the partition is out of service, for recovery
        self._seq_num = -1

    async def max_transaction_id(self) -> int:
        """Highest id on the node, committed or not; -1 for none.

        Raises:
            PortError: the connection broke.
            RefusedError: the node refused.
        """
        request = wire.MaxTransactionIdRequest(*self._ids(), self.offline)
        return (await self._expect(request, wire.MaxTransactionIdResponse)).transaction_id

    async def truncate(self, transaction_id: int) -> int:
        """Cut what is behind `transaction_id`; the highest id left. Errors as `max_transaction_id`."""
        request = wire.TruncateRequest(*self._ids(), transaction_id, self.offline)
        return (await self._expect(request, wire.MaxTransactionIdResponse)).transaction_id

    async def append(self, records: Sequence[Record]) -> None:
        """Continue the log; errors as `max_transaction_id`."""
        await self._expect(wire.AppendRequest(*self._ids(), records, self.offline), wire.SuccessResponse)

    async def set_low_water_mark(self, mark: int) -> None:
        """Persist a mark; errors as `max_transaction_id`."""
        await self._expect(wire.SetLowWaterMarkRequest(*self._ids(), mark, self.offline), wire.SuccessResponse)

    def _ids(self) -> tuple[int, int, int]:
        self._seq_num += 1
        return self.session_id, self._seq_num, self.partition_id

    async def _expect(self, request: wire.StorageMessage, expected: type[M]) -> M:
        answer = await self.granted(request)
        if not isinstance(answer, expected):
            raise PortError(f"{self.endpoint}: unexpected answer {type(answer).__name__}")
        return answer


@asynccontextmanager
async def open_storage_port(
    endpoint: Endpoint,
    tls: ClientTls,
    *,
    key: bytes,
    num_partitions: int,
    offline: bool = False,
    limits: NetLimits = _DEFAULT_LIMITS,
) -> AsyncIterator[StoragePort]:
    """Connect to a data port and show `key`, the cluster's, 16 bytes as in the `store` znode.

    Raises:
        PortError: the node cannot be reached.
        RefusedError: the node belongs to another cluster.
    """
    async with dialed(endpoint, tls, limits) as stream:
        opening = wire.OpenRequest(-1, -1, -1, UUID(bytes=key), num_partitions)
        port = StoragePort(endpoint, stream, offline, opening)
        await port.open()
        yield port
