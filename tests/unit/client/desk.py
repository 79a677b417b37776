"""A client machine on the bench: the test is the driver, the clock and both ends of every connection."""

from __future__ import annotations

import random
import zlib
from typing import Any

from tests.fixed_membership import FixedMembership
from waltz_core.base.edge import CloseConn, Closed, Dial, Dialed, Received, Send
from waltz_core.base.ids import Endpoint, ReqId, make_req_id, req_sequence
from waltz_core.client.calls import Failed, Open, Submit
from waltz_core.client.link import Kind
from waltz_core.client.node import ClientNode
from waltz_core.client.router import EndpointMap
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.client_messages import (
    AppendRequest,
    ClusterInfoRequest,
    FeedData,
    FeedRequest,
    FeedSuspended,
    MountRequest,
    MountResponse,
    NamedAppendRequest,
    PartitionState,
)
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection

A = Endpoint("a", 1)
B = Endpoint("b", 2)
EVERYTHING_AT_A = ((A, ((0, 1), (1, 1))),)


class Desk:
    """Effects pile up in `told`; messages of the client are in `sent`, by server and kind of connection."""

    def __init__(
        self,
        membership: Any = None,
        *,
        settings: ClientSettings | None = None,
        node: type[ClientNode] = ClientNode,
        versions: Any = VERSIONS,
    ) -> None:
        self.now = 1_000
        self.settings = settings or ClientSettings()
        self.membership = membership or FixedMembership(7, 2, EVERYTHING_AT_A)
        self.node = node(self.membership, self.settings, random.Random(3), versions=versions)
        self.versions = versions
        self.told: list[Any] = []
        self.dials: list[Dial] = []
        self.conns: dict[int, tuple[Endpoint, Kind]] = {}
        self.codecs: dict[int, Connection[Any]] = {}
        self.sent: dict[tuple[Endpoint, Kind], list[Any]] = {}
        self.closed: list[CloseConn] = []
        self.capability_requests: dict[Kind, list[ClusterInfoRequest]] = {kind: [] for kind in Kind}
        self.step()

    # ---- driving -------------------------------------------------------------------------------

    def step(self, *events: Any) -> list[Any]:
        """Step the machine; what it tells the application is returned, and kept in `told`."""
        out: list[Any] = []
        self.node.step(self.now, events, out)
        told = []
        for effect in out:
            match effect:
                case Dial():
                    kind = self.node.link_kind(effect.conn)
                    assert kind is not None
                    self.dials.append(effect)
                    self.conns[effect.conn] = effect.endpoint, kind
                case Send(conn=conn, data=data):
                    if conn not in self.codecs:
                        self.codecs[conn] = Connection(CLIENT_PROTOCOL, "server", self.versions)
                    self._received(conn, bytes(data))
                case CloseConn():
                    self.closed.append(effect)
                case _:
                    told.append(effect)
        self.told += told
        return told

    def _received(self, conn: int, data: bytes) -> None:
        found: list[Any] = []
        self.codecs[conn].receive(data, found)
        for message in found:
            if isinstance(message, ClusterInfoRequest) and req_sequence(message.req_id) < 0:
                self.capability_requests[self.conns[conn][1]].append(message)  # stands apart
            else:
                self.sent.setdefault(self.conns[conn], []).append(message)

    def change(self, endpoints: EndpointMap) -> list[Any]:
        """The map of the cluster becomes another one."""
        self.membership.change(endpoints)
        return self.step()

    def wait(self, milliseconds: int) -> list[Any]:
        """Let time pass, waking the machine whenever it wants."""
        until = self.now + milliseconds
        told: list[Any] = []
        for _ in range(10_000):
            due = self.node.deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            told += self.step()
        else:
            raise AssertionError("the machine wants to be woken again and again")
        self.now = until
        return told + self.step()

    def connect(self, *, versions: Any = None, greet: bool = True) -> None:
        """Let every dial succeed."""
        while self.dials:
            conn = self.dials.pop(0).conn
            self.codecs[conn] = server = Connection(CLIENT_PROTOCOL, "server", versions or self.versions)
            self.step(Dialed(conn))
            if greet:
                self.step(Received(conn, server.hello()))

    def conn(self, kind: Kind = Kind.STREAM, server: Endpoint = A) -> int:
        """The newest connection of a kind."""
        return min(conn for conn, what in self.conns.items() if what == (server, kind))

    def cut(self, kind: Kind = Kind.STREAM, server: Endpoint = A) -> list[Any]:
        """A connection breaks."""
        return self.step(Closed(self.conn(kind, server), "cut"))

    def send(self, *messages: Any, kind: Kind = Kind.STREAM, server: Endpoint = A) -> list[Any]:
        """The server sends messages, in one piece."""
        return self.step(self.encoded(*messages, kind=kind, server=server))

    def encoded(self, *messages: Any, kind: Kind = Kind.STREAM, server: Endpoint = A) -> Received:
        """Messages of the server, as they come, for a step that something else happens in."""
        conn = self.conn(kind, server)
        data = bytearray()
        for message in messages:
            self.codecs[conn].encode(message, data)
        return Received(conn, bytes(data))

    def take(self, kind: Kind = Kind.STREAM, server: Endpoint = A) -> list[Any]:
        """What the client has sent since the last time."""
        return self.sent.pop((server, kind), [])

    # ---- shortcuts -----------------------------------------------------------------------------

    def mounted(self, partition: int = 0, *, mark: int = -1, deliver: bool = True) -> ReqId:
        """Open a partition and mount it; returns the session id. What was sent meanwhile is taken."""
        self.step(Open(partition, mark, deliver))
        self.connect()
        mount = self.take()[-1]
        assert isinstance(mount, MountRequest)
        self.send(MountResponse(mount.req_id, PartitionState.READY))
        self.take()
        return mount.req_id

    def submit(self, token: object, *, partition: int = 0, mark: int | None = None, lock: int | None = None) -> Any:
        """Submit an append; returns what was told."""
        return self.step(submit(token, partition=partition, mark=mark, lock=lock))


def submit(token: object, *, partition: int = 0, mark: int | None = None, lock: int | None = None) -> Submit:
    data = repr(token).encode()
    checksum = zlib.crc32(data)
    checksum -= (checksum & 1 << 31) << 1
    return Submit(partition, token, mark, () if lock is None else (lock,), (), (), 9, data, checksum)


def foreign(transaction_id: int, partition: int = 0) -> FeedData:
    """A transaction of somebody else."""
    return FeedData(make_req_id(99, 1, partition, transaction_id), transaction_id, 5)


def own(request: AppendRequest | NamedAppendRequest, transaction_id: int) -> FeedData:
    """The transaction that an append of ours became."""
    return FeedData(request.req_id, transaction_id, request.header)


def failures(told: list[Any]) -> list[tuple[object, Any]]:
    return [(effect.token, effect.reason) for effect in told if isinstance(effect, Failed)]


__all__ = [
    "EVERYTHING_AT_A",
    "A",
    "B",
    "Desk",
    "FeedData",
    "FeedRequest",
    "FeedSuspended",
    "failures",
    "foreign",
    "own",
    "submit",
]
