"""Talks to the admin port of a storage node, one request after the other: for tools and for `waltz dev`."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

import trio

from waltz_core.errors import ProtocolError, StorageError
from waltz_core.ids import Endpoint
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_codec import VERSIONS
from waltz_core.wire.connection import ADMIN_PROTOCOL, Connection
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.dialer import DialError, dial_stream
from waltz_trio.net.tls import ClientTls

_READ = 65536
_DEFAULT_LIMITS = NetLimits()

M = TypeVar("M")


class AdminConnectionError(StorageError):
    """The node cannot be reached, or the connection broke before the answer."""


class AdminRefusedError(StorageError):
    """The node answered with a failure; the text is the node's."""

    def __init__(self, message: str, code: int = 0, detail: int = -1) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail


class AdminClient:
    """One connection to an admin port. Made by `open_admin`; requests are answered in turn."""

    def __init__(
        self, endpoint: Endpoint, stream: trio.SSLStream[trio.SocketStream], versions: Collection[int]
    ) -> None:
        self.endpoint = endpoint
        self._stream = stream
        self._connection: Connection[admin.AdminMessage] = Connection(
            ADMIN_PROTOCOL, "Waltz Storage Admin Client", versions
        )
        self._answers: list[admin.AdminMessage] = []
        self._seq_num = -1

    @property
    def version(self) -> int:
        """Codec agreed on: 0 is 0.13.2."""
        assert self._connection.version is not None
        return self._connection.version

    async def greet(self, key: bytes, num_partitions: int) -> None:
        """Agree on a codec and show that we belong to the cluster.

        Raises:
            AdminConnectionError: the connection broke, or the peer is no admin port.
            AdminRefusedError: the node belongs to another cluster.
        """
        await self._send(self._connection.hello())
        while self._connection.version is None:
            await self._receive()
        await self._ask(admin.AdminOpenRequest(-1, UUID(bytes=key), num_partitions))

    async def call(self, make: Callable[[int], admin.AdminMessage]) -> admin.AdminMessage:
        """Send the request that `make` builds from its sequence number; return the answer.

        Raises:
            AdminConnectionError: the connection broke; what became of the request is unknown.
            AdminRefusedError: the node refused.
        """
        self._seq_num += 1
        return await self._ask(make(self._seq_num))

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
        answer = await self.call(admin.AssignedPartitionStatusRequest)
        assert isinstance(answer, admin.AssignedPartitionStatusResponse)
        return dict(answer.partition_status)

    async def metrics(self) -> str:
        """The node's metrics as JSON; errors as `call`."""
        answer = await self.call(admin.MetricsRequest)
        assert isinstance(answer, admin.MetricsResponse)
        return answer.metrics_json or ""

    async def _ask(self, request: admin.AdminMessage) -> admin.AdminMessage:
        out = bytearray()
        self._connection.encode(request, out)
        await self._send(bytes(out))
        while not self._answers:
            await self._receive()
        answer = self._answers.pop(0)
        if isinstance(answer, admin.AdminFailureResponse):
            raise AdminRefusedError(answer.message or "refused without a reason", answer.code, answer.detail)
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
            raise AdminConnectionError(f"{self.endpoint} does not answer as an admin port does: {error}") from error


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
        AdminConnectionError: the node cannot be reached.
        AdminRefusedError: the node belongs to another cluster.
    """
    try:
        stream = await dial_stream(endpoint, tls, limits)
    except DialError as error:
        raise AdminConnectionError(str(error)) from error
    try:
        client = AdminClient(endpoint, stream, versions)
        await client.greet(key, num_partitions)
        yield client
    finally:
        await trio.aclose_forcefully(stream)
