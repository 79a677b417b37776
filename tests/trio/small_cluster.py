"""The tiny model cluster behind real sockets and TLS, for tests of the public client."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.model.small_server import ServerConn, SmallLog, SmallServer, SmallView
from waltz_core.base.edge import Accepted, CloseConn, Closed, Port, Received, Send
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.wire.client_messages import AppendRequest
from waltz_trio.net.driver import NodeDriver
from waltz_trio.net.listener import bind
from waltz_trio.net.tls import ServerTls, TlsSettings


class SmallNode:
    """A machine around a small server that does everything at once.

    While `held` it takes requests in and answers few; while `deaf` it does not even read; while `muted` its
    answers are made, and wait.
    """

    def __init__(self, server: SmallServer) -> None:
        self.server = server
        self.conns: dict[int, ServerConn] = {}
        self.held = False
        self.deaf = False
        self.muted = False

    @property
    def owes(self) -> bool:
        """Answers wait to be sent."""
        return any(conn.out for conn in self.conns.values())

    def deadline(self) -> int | None:
        return None

    def step(self, now: int, events: Sequence[Any], out: list[Any]) -> None:
        for event in events:
            match event:
                case Accepted(conn=conn):
                    self.conns[conn] = self.server.accept()
                case Received(conn=conn, data=data) if conn in self.conns and not self.deaf:
                    try:
                        self.server.receive(self.conns[conn], data)
                    except ProtocolError as error:
                        out.append(CloseConn(conn, str(error)))
                case Closed(conn=conn):
                    self.server.drop(self.conns.pop(conn))
        if not self.held:
            self._work()
        for number, server_conn in self.conns.items():
            if server_conn.out and not self.muted:
                out.append(Send(number, bytes(server_conn.out)))
                server_conn.out.clear()

    def _work(self) -> None:
        server = self.server
        while server.busy:
            for partition in list(server.owned):
                while server.work(partition):
                    pass
            for conn in list(server.conns):
                for window in list(conn.windows):
                    server.feed(conn, window, 1 << 30)


class SmallCluster:
    """One server (more with `start_server`) and its partitions."""

    def __init__(self, nursery: trio.Nursery, partitions: int) -> None:
        self.logs = {partition: SmallLog() for partition in range(partitions)}
        self.view = SmallView()
        self.nodes: list[SmallNode] = []
        self.drivers: list[NodeDriver] = []
        self._nursery = nursery

    @property
    def url(self) -> str:
        return self.url_of(0)

    def url_of(self, number: int) -> str:
        return f"waltz://{self.nodes[number].server.endpoint}"

    async def start_server(self, **options: Any) -> int:
        """Add a server that owns nothing yet; returns its number."""
        sock = bind("127.0.0.1", 0, "test")
        endpoint = Endpoint("127.0.0.1", sock.getsockname()[1])
        server = SmallServer(endpoint, self.logs, window=options.pop("window", 100), **options)
        server.view = self.view
        self.view.servers.append(server)
        node = SmallNode(server)
        driver = NodeDriver(node, name="small")
        self.nodes.append(node)
        self.drivers.append(driver)
        await self._nursery.start(driver.run)
        driver.serve(Port.CLIENT, sock, ServerTls(TlsSettings()))
        return len(self.nodes) - 1

    def give(self, partition: int, number: int, commits: int = 0) -> None:
        """Move a partition to a server and tell everybody."""
        generation = 1 + max((s.owned.get(partition, 0) for s in self.view.servers), default=0)
        for server in self.view.servers:
            if partition in server.owned:
                server.disown(partition, commits)
        self.nodes[number].server.own(partition, generation)
        self.view.changed()
        for driver in self.drivers:
            driver.post_all([])

    def kill(self, number: int) -> None:
        """A server is gone: its sockets are reset, its partitions stay where they were in the map."""
        self.drivers[number].kill()

    def wake(self, number: int = 0) -> None:
        """Let a server do what it held back."""
        self.drivers[number].post_all([])

    def commit(self, partition: int, payloads: Sequence[bytes], *, header: int = 0) -> None:
        """Somebody else's transactions."""
        for data in payloads:
            checksum = zlib.crc32(data)
            checksum -= (checksum & 1 << 31) << 1
            log = self.logs[partition]
            req_id = make_req_id(999, 1, partition, log.mark + 2)
            log.commit(AppendRequest(req_id, log.mark, (), (), (), header, data, checksum))
        self.wake()


@asynccontextmanager
async def small_cluster(partitions: int = 2, **options: Any) -> AsyncIterator[SmallCluster]:
    async with trio.open_nursery() as nursery:
        cluster = SmallCluster(nursery, partitions)
        await cluster.start_server(**options)
        for partition in cluster.logs:
            cluster.nodes[0].server.own(partition, 1)
        yield cluster
        nursery.cancel_scope.cancel()
