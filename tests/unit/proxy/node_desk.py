"""A proxy on the bench: the test is its clients, the server of the cluster, and both ZooKeepers."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from tests.unit.cluster.coordinators import REQUESTS, ROOT, World
from waltz_core.base.edge import (
    Accepted,
    Dial,
    Dialed,
    Port,
    Received,
    Send,
    ZkChanged,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.base.log import Record
from waltz_core.client.settings import ClientSettings
from waltz_core.proxy.carriage import Append
from waltz_core.proxy.node import FromUpstream, ProxyConfig, ProxyNode, ToUpstream
from waltz_core.proxy.state import BLOCK_SIZE, ProxyState
from waltz_core.server.config import ServerConfig
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.primitives import checksum_of

M = TypeVar("M")
IDENTITY = 11
CLIENT = 20  # one of the ids that the proxy gives out
GENERATION = 1  # of every partition upstream
MARK = 9  # where the log upstream ends


class NodeDesk:
    """Nothing is connected at first; `start` brings the proxy to where it serves."""

    def __init__(self, *, cache_bytes: int = 0, **server: Any) -> None:
        self.now = 1_000
        self.own, self.cluster = World(1), World(1)
        self.cluster.server()
        self.own_session = self.own.tree.open_session()
        self._session = self.cluster.tree.open_session()
        own = ServerConfig(ROOT, Endpoint("proxy", 7000), **server)
        config = ProxyConfig(own, ROOT, "zookeeper:2181", ClientSettings(), cache_bytes)
        state = ProxyState(IDENTITY, 1, ((IDENTITY, IDENTITY + BLOCK_SIZE - 1),), "test", 1, 0)
        self.node = ProxyNode(config, state, random.Random(1))
        self.dials: list[Dial] = []
        self.asked: list[tuple[int, messages.ClientMessage]] = []  # of the server, with the connection
        self._peers: dict[int, Connection[messages.ClientMessage]] = {}  # the other ends of all connections

    # ---- driving -------------------------------------------------------------------------------

    def step(self, *events: Any) -> list[Any]:
        """One step; the whole outbox. What it asks of the server is in `asked` too."""
        out: list[Any] = []
        self.node.step(self.now, events, out)
        if self.node.deadline() != self.now:
            left: list[Any] = []
            self.node.step(self.now, (), left)
            assert left == [], "it was left to a step that nothing calls for"
        self.dials += [effect for effect in out if isinstance(effect, Dial)]
        for effect in out:
            if isinstance(effect, Send) and effect.conn < 0:
                self.asked += [(effect.conn, message) for message in self.read([effect], effect.conn)]
        return out

    def zk(self, *events: Any) -> list[Any]:
        """Step, and answer all that is asked of either ZooKeeper, until nothing more is; the outboxes."""
        return self.settle(self.step(*events))

    def settle(self, out: list[Any]) -> list[Any]:
        """The same for an outbox of before."""
        told = out
        while news := [*self._zk_answers(told)]:
            told = self.step(*news)
            out = out + told
        return out

    def _zk_answers(self, told: list[Any]) -> list[Any]:
        own, cluster = self.own.tree, self.cluster.tree
        news: list[Any] = [own.apply(self.own_session, effect) for effect in told if isinstance(effect, REQUESTS)]
        news += [ZkChanged(path) for session, path in own.fired() if session == self.own_session]
        requests = [effect.request for effect in told if isinstance(effect, ToUpstream)]
        news += [FromUpstream(cluster.apply(self._session, request)) for request in requests]
        return news

    def join(self) -> list[Any]:
        """Both ZooKeepers are there."""
        connected = ZkStateChanged(ZkState.CONNECTED, self._session)
        return self.zk(ZkStateChanged(ZkState.CONNECTED, self.own_session), FromUpstream(connected))

    # ---- the server upstream -------------------------------------------------------------------

    def connect(self) -> None:
        """Let every dial succeed."""
        while self.dials:
            conn = self.dials.pop(0).conn
            peer = self._peers[conn] = Connection(CLIENT_PROTOCOL, "server", {5})
            self.step(Dialed(conn))
            self.step(Received(conn, peer.hello()))

    def take(self, kind: type[M]) -> tuple[int, M]:
        """The only request of a kind that the server was sent, with its connection."""
        ((conn, message),) = [(conn, message) for conn, message in self.asked if isinstance(message, kind)]
        self.asked.remove((conn, message))
        return conn, message

    def serve_range(
        self, *, log_start: int = 0, readable: bool = True
    ) -> tuple[list[Any], messages.RecordRangeRequest]:
        """The server answers the read that it was sent; the outbox, and what was read."""
        conn, request = self.take(messages.RecordRangeRequest)
        answer: messages.ClientMessage = messages.ErrorResponse(request.req_id, messages.ErrorCode.BEFORE_START, "gone")
        if readable:
            ids = range(request.first_id, request.last_id + 1)
            answer = messages.RecordRangeResponse(request.req_id, log_start, MARK, tuple(map(record, ids)))
        return self.say(conn, answer), request

    def start(self, *, log_start: int = 0, archived: bool = False) -> int:
        """Until the partition is mounted upstream and the flush behind that is answered; the connection."""
        self.join()
        self.connect()
        conn, question = self.take(messages.HighWaterMarkRequest)
        self.say(conn, messages.HighWaterMarkResponse(question.req_id, MARK))
        out, _ = self.serve_range(readable=archived, log_start=log_start)  # from the very beginning
        if not archived:
            out, _ = self.serve_range(log_start=log_start)
        self.settle(out)  # it publishes what it heard
        self.connect()
        conn, mount = self.take(messages.MountRequest)
        self.say(conn, messages.MountResponse(mount.req_id, messages.PartitionState.READY))
        self.answer_flush()
        self.asked.clear()
        return conn

    def answer_flush(self) -> list[Any]:
        """Everything before the flush that it was sent is decided."""
        conn, flush = self.take(messages.FlushRequest)
        return self.say(conn, messages.FlushResponse(flush.req_id, MARK))

    # ---- clients -------------------------------------------------------------------------------

    def mounts(self, conn: int) -> bool:
        """A client connects and mounts where the log ends, with an id of its own; whether that is answered at once."""
        self.accept(conn)
        return bool(self.say(conn, mount(conn)))

    def accept(self, conn: int) -> None:
        """A client connects and greets."""
        peer = self._peers[conn] = Connection(CLIENT_PROTOCOL, "test", {5})
        self.read(self.step(Accepted(conn, Port.CLIENT, f"10.0.0.{conn}:{conn}", ())), conn)
        self.step(Received(conn, peer.hello()))

    def mounted(self, conn: int) -> None:
        """A client that may append."""
        self.accept(conn)
        self.say(conn, mount(conn))
        self.answer_flush()

    # ---- both ----------------------------------------------------------------------------------

    def say(self, conn: int, *said: messages.ClientMessage) -> list[Any]:
        """The other end of a connection sends messages, in one piece; the outbox."""
        data = bytearray()
        for message in said:
            self._peers[conn].encode(message, data)
        return self.step(Received(conn, bytes(data)))

    def read(self, out: list[Any], conn: int) -> list[messages.ClientMessage]:
        """What an outbox has for a connection."""
        read: list[messages.ClientMessage] = []
        for effect in out:
            if isinstance(effect, Send) and effect.conn == conn:
                self._peers[conn].receive(bytes(effect.data), read)
        return read


def record(transaction_id: int) -> Record:
    data = bytes([transaction_id]) * 10
    return Record(transaction_id, make_req_id(9, GENERATION, 0, transaction_id), 0, data, checksum_of(data))


def mount(conn: int, client_id: int | None = None) -> messages.MountRequest:
    who = CLIENT + conn if client_id is None else client_id
    return messages.MountRequest(make_req_id(who, GENERATION, 0, 1), MARK, conn)


def append(conn: int, number: int, *, locks: int = 0, named: bool = False) -> Append:
    req_id = make_req_id(CLIENT + conn, GENERATION, 0, 100 + number)
    make = messages.NamedAppendRequest if named else messages.AppendRequest
    return make(req_id, MARK, tuple(range(locks)), (), (), 0, b"d", checksum_of(b"d"))
