"""Talks to the port of a server, one request after the other: for tools. Clients do it in the core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from waltz_core.base.ids import Endpoint, ReqId, make_req_id
from waltz_core.wire import client_messages as wire
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.connection import CLIENT_PROTOCOL
from waltz_core.wire.port_session import PortSession
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.tls import ClientTls
from waltz_trio.ports.port import PortError, RefusedError, ToolPort, dialed

_DEFAULT_LIMITS = NetLimits()
_TOOL_ID = -1  # client id of requests that need none

M = TypeVar("M")


class ServerPort(ToolPort[wire.ClientMessage]):
    """One connection to a server. Made by `open_server_port`. All methods raise

    PortError: the connection broke, or the server speaks an older codec than the request needs.
    RefusedError: the server refused.
    """

    def __init__(self, endpoint: Endpoint, stream: trio.SSLStream[trio.SocketStream]) -> None:
        super().__init__(endpoint, stream, PortSession(CLIENT_PROTOCOL, "Waltz Client", VERSIONS), "server")
        self._seq_num = 0

    async def storage_connectivity(self) -> Mapping[str, bool]:
        """Storage nodes, each with whether the server reaches it."""
        request = wire.CheckStorageConnectivityRequest(self._req_id())
        answer = await self._expect(1, request, wire.CheckStorageConnectivityResponse)
        return {storage or "": reached for storage, reached in answer.connectivity}

    async def partitions(self) -> tuple[int, ...]:
        """Partitions that the server serves."""
        request = wire.ServerPartitionsAssignmentRequest(self._req_id())
        return (await self._expect(2, request, wire.ServerPartitionsAssignmentResponse)).partitions

    async def health(self) -> Mapping[int, bool]:
        """Partitions that the server serves, each with whether appends can be committed."""
        request = wire.ServerPartitionsHealthStatRequest(self._req_id())
        return dict((await self._expect(4, request, wire.ServerPartitionsHealthStatResponse)).health)

    async def add_preferred(self, partitions: Collection[int]) -> bool:
        """Prefer this server for partitions; False if it refused."""
        request = wire.AddPreferredPartitionRequest(self._req_id(), tuple(partitions))
        return (await self._expect(2, request, wire.AddPreferredPartitionResponse)).result

    async def remove_preferred(self, partitions: Collection[int]) -> bool:
        """Stop preferring this server for partitions; False if it refused."""
        request = wire.RemovePreferredPartitionRequest(self._req_id(), tuple(partitions))
        return (await self._expect(2, request, wire.RemovePreferredPartitionResponse)).result

    async def status(self) -> tuple[wire.PartitionStatus, ...]:
        """What each partition of the server is at, and why; servers of 0.13.2 do not say."""
        request = wire.PartitionStatusRequest(self._req_id())
        return (await self._expect(5, request, wire.PartitionStatusResponse)).partitions

    async def storage_nodes(self) -> Mapping[str, str]:
        """Storage nodes that the server cannot use, each with the reason; servers of 0.13.2 do not say."""
        request = wire.StorageNodesRequest(self._req_id())
        answer = await self._expect(5, request, wire.StorageNodesResponse)
        return {node.storage: node.reason or "" for node in answer.nodes if not node.usable}

    async def cluster_key(self) -> bytes:
        """Key of the cluster that the server works for; servers of 0.13.2 do not say."""
        request = wire.ClusterInfoRequest(self._req_id(), False, False)
        return (await self._expect(5, request, wire.ClusterInfoResponse)).key.bytes

    async def statistics(self, *prefixes: str) -> wire.StatisticsResponse | None:
        """Figures of the process with such names, and its clock; None if it does not send them."""
        try:
            request = wire.StatisticsRequest(self._req_id(), -1, prefixes)
            return await self._expect(5, request, wire.StatisticsResponse)
        except RefusedError:
            return None

    async def records(self, partition_id: int, first_id: int, last_id: int, size_max: int) -> wire.RecordRangeResponse:
        """Committed records of a partition that the server owns, fewer where they are large or the log ends."""
        count = last_id - first_id + 1
        request = wire.RecordRangeRequest(self._req_id(partition_id), first_id, last_id, count, size_max, False)
        return await self._expect(5, request, wire.RecordRangeResponse)

    async def log_ends(self, partition_id: int) -> wire.LogStartResponse:
        """The first id of a partition that can be read, and the last committed one."""
        return await self._expect(5, wire.LogStartRequest(self._req_id(partition_id)), wire.LogStartResponse)

    def _req_id(self, partition_id: int = -1) -> ReqId:
        self._seq_num += 1
        return make_req_id(_TOOL_ID, -1, partition_id, self._seq_num)

    async def _expect(self, version: int, request: wire.ClientMessage, expected: type[M]) -> M:
        if self.version < version:
            name = type(request).__name__.removesuffix("Request")
            raise PortError(f"{self.endpoint} speaks codec {self.version}; {name} needs {version}")
        answer = await self.granted(request)
        if not isinstance(answer, expected):
            raise PortError(f"{self.endpoint}: unexpected answer {type(answer).__name__}")
        return answer


@asynccontextmanager
async def open_server_port(
    endpoint: Endpoint, tls: ClientTls, limits: NetLimits = _DEFAULT_LIMITS
) -> AsyncIterator[ServerPort]:
    """Connect to a server.

    Raises:
        PortError: it cannot be reached, or is no server.
    """
    async with dialed(endpoint, tls, limits) as stream:
        port = ServerPort(endpoint, stream)
        await port.open()
        yield port
