"""Talks to the data port of a storage node, one request after the other: for tools. Servers do it in the core."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

import trio

from waltz_core.errors import ProtocolError
from waltz_core.ids import Endpoint
from waltz_core.log import Record
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import STORAGE_PROTOCOL, Connection
from waltz_core.wire.storage_codec import VERSIONS
from waltz_trio.admin import AdminConnectionError, AdminRefusedError
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.dialer import DialError, dial_stream
from waltz_trio.net.tls import ClientTls

_READ = 65536
_DEFAULT_LIMITS = NetLimits()

M = TypeVar("M")


class StoragePort:
    """One connection and one partition, in one store session. Made by `open_storage_port`."""

    def __init__(self, endpoint: Endpoint, stream: trio.SSLStream[trio.SocketStream], offline: bool) -> None:
        self.endpoint = endpoint
        self.session_id = -1
        self.partition_id = -1
        self.offline = offline  # the partition is out of service, for recovery
        self._stream = stream
        self._connection: Connection[wire.StorageMessage] = Connection(
            STORAGE_PROTOCOL, "Waltz Storage Client", VERSIONS
        )
        self._answers: list[wire.StorageMessage] = []
        self._seq_num = -1

    async def greet(self, key: bytes, num_partitions: int) -> None:
        """Agree on a codec and show that we belong to the cluster; errors as `max_transaction_id`."""
        await self._send(self._connection.hello())
        while self._connection.version is None:
            await self._receive()
        await self._ask(wire.OpenRequest(-1, -1, -1, UUID(bytes=key), num_partitions), wire.SuccessResponse)

    async def max_transaction_id(self) -> int:
        """Highest id on the node, committed or not; -1 for none.

        Raises:
            AdminConnectionError: the connection broke.
            AdminRefusedError: the node refused.
        """
        request = wire.MaxTransactionIdRequest(*self._ids(), self.offline)
        return (await self._ask(request, wire.MaxTransactionIdResponse)).transaction_id

    async def truncate(self, transaction_id: int) -> int:
        """Cut what is behind `transaction_id`; the highest id left. Errors as `max_transaction_id`."""
        request = wire.TruncateRequest(*self._ids(), transaction_id, self.offline)
        return (await self._ask(request, wire.MaxTransactionIdResponse)).transaction_id

    async def append(self, records: tuple[Record, ...]) -> None:
        """Continue the log; errors as `max_transaction_id`."""
        await self._ask(wire.AppendRequest(*self._ids(), records, self.offline), wire.SuccessResponse)

    async def set_low_water_mark(self, mark: int) -> None:
        """Persist a mark; errors as `max_transaction_id`."""
        await self._ask(wire.SetLowWaterMarkRequest(*self._ids(), mark, self.offline), wire.SuccessResponse)

    def _ids(self) -> tuple[int, int, int]:
        self._seq_num += 1
        return self.session_id, self._seq_num, self.partition_id

    async def _ask(self, request: wire.StorageMessage, expected: type[M]) -> M:
        out = bytearray()
        self._connection.encode(request, out)
        await self._send(bytes(out))
        while not self._answers:
            await self._receive()
        answer = self._answers.pop(0)
        if isinstance(answer, wire.FailureResponse):
            raise AdminRefusedError(answer.message or "refused without a reason", answer.code, answer.detail)
        if not isinstance(answer, expected):
            raise AdminConnectionError(f"{self.endpoint}: unexpected answer {type(answer).__name__}")
        return answer

    async def _send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise AdminConnectionError(f"{self.endpoint}: the connection broke") from error

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive_some(_READ)
            if not data:
                raise AdminConnectionError(f"{self.endpoint} closed the connection")
            self._connection.receive(data, self._answers)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            raise AdminConnectionError(f"{self.endpoint}: the connection broke") from error
        except ProtocolError as error:
            raise AdminConnectionError(f"{self.endpoint} does not answer as a storage port does: {error}") from error


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
        AdminConnectionError: the node cannot be reached.
        AdminRefusedError: the node belongs to another cluster.
    """
    try:
        stream = await dial_stream(endpoint, tls, limits)
    except DialError as error:
        raise AdminConnectionError(str(error)) from error
    try:
        port = StoragePort(endpoint, stream, offline)
        await port.greet(key, num_partitions)
        yield port
    finally:
        await trio.aclose_forcefully(stream)
