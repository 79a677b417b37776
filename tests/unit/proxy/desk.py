"""A partition of a proxy with nothing around it: what goes upstream is kept in lists."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from waltz_core.base.edge import CloseConn
from waltz_core.base.ids import Endpoint, ReqId, make_req_id
from waltz_core.base.log import Record
from waltz_core.base.outbox import Outbox
from waltz_core.client.calls import Carried, Deliver, Phase, RecordsCarried
from waltz_core.proxy.cache import CacheEffect, CacheIndex
from waltz_core.proxy.carriage import Append
from waltz_core.proxy.fresh import Fresh
from waltz_core.proxy.partition import ProxyPartition
from waltz_core.server.config import ServerConfig
from waltz_core.server.context import NodeContext, Reply
from waltz_core.server.feed import SendFrames, SendReply
from waltz_core.server.feed_cache import FRAME_SIZE
from waltz_core.server.peer import Peer
from waltz_core.wire import client_messages as messages
from waltz_core.wire.primitives import checksum_of

M = TypeVar("M")
FRESH_ABOVE = 100
GENERATION = 3


class FakeUpstream:
    """Takes everything while it is `up`."""

    def __init__(self) -> None:
        self.up = True
        self.full = False  # it takes no appends
        self.carried: list[Append] = []
        self.barriers: list[ReqId] = []
        self.reads: list[tuple[int, int, int]] = []
        self.marks: list[int] = []

    def carry(self, partition_id: int, append: Append, /) -> bool:
        if not self.up or self.full:
            return False
        self.carried.append(append)
        return True

    def barrier(self, now: int, partition_id: int, /) -> ReqId | None:
        if not self.up:
            return None
        self.barriers.append(make_req_id(1, GENERATION, partition_id, len(self.barriers)))
        return self.barriers[-1]

    def read(self, now: int, partition_id: int, token: int, first: int, count: int, /) -> None:
        self.reads.append((token, first, count))

    def ask_mark(self, now: int, partition_id: int, number: int, /) -> None:
        self.marks.append(number)


class Desk:
    """The partition, its upstream, and what clients are told."""

    def __init__(self, *, mark: int = 9, connected: bool = True, cache_bytes: int = 0, **server: Any) -> None:
        self.context = NodeContext(ServerConfig("/own", Endpoint("proxy", 1), **server), random.Random(1))
        fresh = Fresh()
        fresh.seen(alone=True)
        for _ in range(2):
            fresh.given(FRESH_ABOVE)
        self.disk: Outbox[CacheEffect] = Outbox()
        self.partition = ProxyPartition(0, self.context, fresh, CacheIndex(cache_bytes), self.disk)
        self.partition.generation = GENERATION
        self.upstream = FakeUpstream()
        self.told: list[object] = []
        self.now = 1_000
        self.partition.begins_behind = mark
        self.partition.begin(self.now, 0, whole=False)
        if connected:
            self.connect()

    def connect(self) -> None:
        """The mount upstream was answered; the flush that it begins with is answered too."""
        self.partition.phase_changed(Phase.MOUNTED)
        self.work()
        self.flushed(self.partition.mark)

    def lose(self) -> None:
        self.partition.phase_changed(Phase.WAITING)
        self.work()

    def work(self) -> None:
        self.partition.flush(self.now, self.upstream)
        self.told += self.context.clients.take()

    def flushed(self, mark: int, at: int = -1) -> None:
        """The server has answered a flush."""
        self.partition.carried(self.now, Carried(0, messages.FlushResponse(self.upstream.barriers[at], mark)))
        self.work()

    def feed(self, *req_ids: ReqId) -> None:
        """Transactions are committed upstream."""
        first = self.partition.mark + 1
        run = [messages.FeedData(req_id, first + at, 0) for at, req_id in enumerate(req_ids)]
        self.partition.delivered(self.now, Deliver(0, run))
        self.work()

    def records(self, first: int, count: int) -> Sequence[Record]:
        data = b"x"
        return [Record(first + at, make_req_id(9, 1, 0, at), 0, data, checksum_of(data)) for at in range(count)]

    def answer_read(self, at: int = -1, *, readable: bool = True, log_start: int = 0, most: int = 1000) -> None:
        """The server answers a read, with so many records at most."""
        token, first, count = self.upstream.reads[at]
        records = self.records(first, min(count, most)) if readable else None
        self.partition.fetched(RecordsCarried(0, token, records, log_start if readable else -1))
        self.work()

    def says(self, peer: Peer, *batch: messages.ClientMessage) -> None:
        """A client says something."""
        self.partition.received(self.now, peer, batch)
        self.work()

    def mount(self, peer: Peer, mark: int, sequence: int = 1) -> messages.MountRequest:
        """A client mounts."""
        assert peer.client_id is not None
        peer.net_sequence = sequence if peer.net_sequence is None else peer.net_sequence
        request = messages.MountRequest(
            make_req_id(peer.client_id, GENERATION, 0, 1000 + sequence), mark, peer.net_sequence
        )
        self.says(peer, request)
        return request

    def of(self, kind: type[M], conn: int | None = None) -> list[M]:
        """What clients were told of one kind, replies by their messages."""
        messages_ = []
        for effect in self.told:
            if isinstance(effect, Reply | SendReply):
                message: object = effect.message
            else:
                message = effect
            if isinstance(message, kind) and (conn is None or conn == getattr(effect, "conn", None)):
                messages_.append(message)
        return messages_

    def closed(self) -> list[int]:
        return [effect.conn for effect in self.told if isinstance(effect, CloseConn)]

    def fed(self, conn: int) -> int:
        return sum(len(e.frames) for e in self.told if isinstance(e, SendFrames) and e.conn == conn) // FRAME_SIZE


def peer(conn: int, client_id: int, *, version: int = 5, carries_others: bool = False) -> Peer:
    made = Peer(conn, f"owner{conn}", f"client {client_id}", carries_others=carries_others)
    made.client_id, made.version = client_id, version
    return made


def append(
    client_id: int, sequence: int, *, generation: int = GENERATION, data: bytes = b"d", named: bool = False
) -> Append:
    req_id = make_req_id(client_id, generation, 0, sequence)
    make = messages.NamedAppendRequest if named else messages.AppendRequest
    return make(req_id, -1, (), (), (), 0, data, checksum_of(data))
