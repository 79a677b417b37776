"""A tiny cluster for clients: one log per partition in memory, any number of servers in front of it.

It keeps to what 0.13.2 promises its clients and no more: appends of a partition are handled in order;
mounts and flushes are answered after everything before them; the feed, lock failures and flush answers
may overtake one another; an append may vanish without a word. What happens next is chosen by whoever
drives it: nothing happens by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Any
from uuid import UUID

import attrs

from waltz_core.base.ids import Endpoint, ReqId, req_client, req_generation, req_partition
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.base.log import Record
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.client_messages import (
    AppendRefused,
    AppendRequest,
    Capability,
    ClientCapability,
    ClusterInfoRequest,
    ClusterInfoResponse,
    ErrorCode,
    ErrorResponse,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FeedWindowRequest,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    NamedAppendRequest,
    PartitionState,
    RecordRangeRequest,
    RecordRangeResponse,
    Refusal,
    ServerEntry,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection

Append = AppendRequest | NamedAppendRequest


@attrs.define
class SmallLog:
    """What is committed in one partition, and when each lock was last taken."""

    records: list[Append] = attrs.field(factory=list)
    locks: dict[int, int] = attrs.field(factory=dict)

    @property
    def mark(self) -> int:
        return len(self.records) - 1

    def blocking(self, request: Append) -> int:
        """The newest transaction that holds a checked lock; above the client's mark it refuses the append."""
        checked = (*(request.write_locks or ()), *(request.read_locks or ()))
        return max((self.locks.get(lock, -1) for lock in checked), default=-1)

    def commit(self, request: Append) -> None:
        self.records.append(request)
        for lock in (*(request.write_locks or ()), *(request.append_locks or ())):
            self.locks[lock] = self.mark


@attrs.define
class SmallView:
    """What servers tell about the cluster."""

    revision: int = 0
    last_client_id: int = 0
    servers: list[SmallServer] = attrs.field(factory=list)
    subscribers: list[tuple[ServerConn, ReqId]] = attrs.field(factory=list)
    names: bool = False  # servers take named appends and explain refusals

    def tell(self, conn: ServerConn, req_id: ReqId, client_id: int) -> None:
        entries = tuple(ServerEntry(server.endpoint, tuple(sorted(server.owned.items()))) for server in self.servers)
        partitions = len(self.servers[0].logs) if self.servers else 0
        capabilities = Capability.CLUSTER_INFO | Capability.CLUSTER_CHANGES | Capability.CLIENT_IDS
        if self.names:
            capabilities |= Capability.NAMED_APPENDS | Capability.CONFLICT_CLASSES | Capability.FEED_WINDOWS
        conn.send(
            ClusterInfoResponse(
                req_id, self.revision, "small", UUID(int=1), partitions, client_id, capabilities, entries
            )
        )

    def changed(self) -> None:
        """Tell everybody who asked."""
        self.revision += 1
        for conn, req_id in self.subscribers:
            self.tell(conn, req_id, -1)


@attrs.define
class Window:
    """A feed under way: `left` more transactions after `mark`, then `end` is sent."""

    partition: int
    mark: int
    left: int
    end: Any
    cut: bool = False  # a mount that ends before the mark


@attrs.define(eq=False)
class ServerConn:
    """The server's end of one connection."""

    codec: Connection[Any]
    out: bytearray = attrs.field(factory=bytearray)
    client: int | None = None
    net_seq: int | None = None
    windows: list[Window] = attrs.field(factory=list)
    cuts: bool = False  # its client knows of feed windows
    open: bool = True

    def send(self, message: object) -> None:
        if self.open:
            self.codec.encode(message, self.out)


class SmallServer:
    """One server process."""

    def __init__(self, endpoint: Endpoint, logs: dict[int, SmallLog], *, window: int = 3, versions: Any = VERSIONS):
        self.endpoint = endpoint
        self.logs = logs
        self.view = SmallView()
        self.window = window
        self.versions = versions
        self.sent = 0  # transactions, in feeds
        self.owned: dict[int, int] = {}  # partition → generation
        self.conns: list[ServerConn] = []
        self.registered: dict[tuple[int, int], tuple[int, int]] = {}  # (client, partition) → generation, net seq
        self.queues: dict[int, deque[tuple[ServerConn, Any]]] = {}
        self.loses: Callable[[Append], bool] = lambda request: False
        self.fails_reads: Callable[[int], bool] = lambda transaction_id: False
        self.tells_no_marks = False  # to a role that may not read
        self.begins_at = 0  # the log of each partition

    # ---- connections ---------------------------------------------------------------------------

    def accept(self) -> ServerConn:
        conn = ServerConn(Connection(CLIENT_PROTOCOL, "small", self.versions))
        conn.out += conn.codec.hello()
        self.conns.append(conn)
        return conn

    def drop(self, conn: ServerConn) -> None:
        conn.open = False
        conn.windows.clear()
        if conn in self.conns:
            self.conns.remove(conn)
        for key, (_, net_seq) in list(self.registered.items()):
            if key[0] == conn.client and net_seq == conn.net_seq:
                del self.registered[key]

    def receive(self, conn: ServerConn, data: bytes) -> None:
        messages: list[Any] = []
        conn.codec.receive(data, messages)
        for message in messages:
            self._on_message(conn, message)

    # ---- assignment ----------------------------------------------------------------------------

    def own(self, partition: int, generation: int) -> None:
        self.owned[partition] = generation
        self.queues[partition] = deque()

    def disown(self, partition: int, commits: int) -> None:
        """Lose a partition; of what was queued, the first `commits` appends are found by the next owner."""
        del self.owned[partition]
        for conn, message in self.queues.pop(partition):
            if isinstance(message, Append) and commits > 0:
                commits -= 1
                self._append(partition, conn, message)
        for conn in self.conns:
            conn.windows = [window for window in conn.windows if window.partition != partition]
        for key in [key for key in self.registered if key[1] == partition]:
            del self.registered[key]

    # ---- what happens, one thing at a time -----------------------------------------------------

    def work(self, partition: int) -> bool:
        """Handle the head of a partition's queue."""
        queue = self.queues.get(partition)
        if not queue:
            return False
        conn, message = queue.popleft()
        log = self.logs[partition]
        if isinstance(message, Append):
            self._append(partition, conn, message)
        elif isinstance(message, FlushRequest):
            conn.send(FlushResponse(message.req_id, log.mark))
        else:
            lag = log.mark - message.client_mark
            if lag < 0:
                conn.send(MountResponse(message.req_id, PartitionState.CLIENT_AHEAD))
            elif lag == 0:
                conn.send(MountResponse(message.req_id, PartitionState.READY))
            else:
                end = MountResponse(message.req_id, PartitionState.READY)
                cut = conn.cuts and lag > self.window
                count = self.window if cut else lag
                conn.windows.append(Window(partition, message.client_mark, count, end, cut))
        return True

    def feed(self, conn: ServerConn, window: Window, count: int) -> bool:
        """Send up to `count` transactions of a window."""
        log = self.logs[window.partition]
        before = window.mark
        while count > 0 and window.left > 0 and window.mark < log.mark:
            window.mark += 1
            window.left -= 1
            count -= 1
            made = log.records[window.mark]
            self.sent += 1
            conn.send(FeedData(made.req_id, window.mark, made.header))
        if window.left == 0:
            conn.windows.remove(window)
            if window.cut:
                conn.send(FeedSuspended(window.end.req_id))
            conn.send(window.end)
        return window.mark != before or window.left == 0

    @property
    def busy(self) -> bool:
        """Something can happen without anybody asking."""
        return any(self.queues.values()) or any(
            window.left == 0 or window.mark < self.logs[window.partition].mark
            for conn in self.conns
            for window in conn.windows
        )

    # ---- messages ------------------------------------------------------------------------------

    def _on_message(self, conn: ServerConn, message: Any) -> None:
        req_id: ReqId = message.req_id
        partition = req_partition(req_id)
        if conn.client is None:
            conn.client = req_client(req_id)
        if isinstance(message, ClusterInfoRequest):
            self._info(conn, message)
        elif isinstance(message, MountRequest):
            self._mount(conn, partition, message)
        elif isinstance(message, TransactionDataRequest):
            self._read(conn, partition, message)
        elif isinstance(message, RecordRangeRequest):
            self._read_range(conn, partition, message)
        elif partition not in self.owned:
            return
        elif isinstance(message, HighWaterMarkRequest):
            refusal = ErrorResponse(req_id, ErrorCode.NOT_ALLOWED, "may not read")
            conn.send(refusal if self.tells_no_marks else HighWaterMarkResponse(req_id, self.logs[partition].mark))
        elif isinstance(message, FlushRequest):
            self.queues[partition].append((conn, message))
        elif self._valid(conn, partition):
            if isinstance(message, FeedRequest | FeedWindowRequest):
                self._feed(conn, partition, message)
            elif isinstance(message, Append) and req_generation(req_id) == self.owned[partition]:
                self.queues[partition].append((conn, message))

    def _feed(self, conn: ServerConn, partition: int, message: FeedRequest | FeedWindowRequest) -> None:
        if conn.cuts:
            self._replace(conn, partition)
        lag = self.logs[partition].mark - message.client_mark
        assert lag >= 0, "a feed ahead of the log"
        count = message.count if isinstance(message, FeedWindowRequest) else max(lag, self.window)
        conn.windows.append(Window(partition, message.client_mark, count, FeedSuspended(message.req_id)))

    def _replace(self, conn: ServerConn, partition: int) -> None:
        """End the feeds that were asked for before, each with its suspension."""
        for window in [one for one in conn.windows if one.partition == partition]:
            if isinstance(window.end, FeedSuspended):
                conn.windows.remove(window)
                conn.send(window.end)

    def _info(self, conn: ServerConn, message: ClusterInfoRequest) -> None:
        client_id = -1
        conn.cuts = self.view.names and bool(message.capabilities & ClientCapability.FEED_WINDOWS)
        if message.client_id_wanted:
            client_id = self.view.last_client_id = self.view.last_client_id + 1
        self.view.subscribers = [one for one in self.view.subscribers if one[0] is not conn]
        if message.subscribe:
            self.view.subscribers.append((conn, message.req_id))
        self.view.tell(conn, message.req_id, client_id)

    def _mount(self, conn: ServerConn, partition: int, message: MountRequest) -> None:
        if conn.net_seq is None:
            conn.net_seq = message.seq_num
        if partition not in self.owned:
            conn.send(MountResponse(message.req_id, PartitionState.NOT_READY))
            return
        assert conn.client is not None
        key = conn.client, partition
        ours = req_generation(message.req_id), conn.net_seq
        if key not in self.registered or ours > self.registered[key]:
            self.registered[key] = ours
        if message.client_mark < self.begins_at - 1:
            conn.send(ErrorResponse(message.req_id, ErrorCode.BEFORE_START, f"begins at {self.begins_at}"))
        elif self._valid(conn, partition):
            self.queues[partition].append((conn, message))

    def _valid(self, conn: ServerConn, partition: int) -> bool:
        found = self.registered.get((conn.client or 0, partition))
        return found is not None and found[1] == conn.net_seq

    def _append(self, partition: int, conn: ServerConn, request: Append) -> None:
        log = self.logs[partition]
        named = isinstance(request, NamedAppendRequest)
        if self.loses(request):
            if named and len(request.data) % 2:
                conn.send(AppendRefused(request.req_id, Refusal.OVERLOADED, -1, 0, -1, LockKind.NONE, -1, 0, "full"))
            return
        blocking = log.blocking(request)
        if blocking <= request.client_mark:
            log.commit(request)
        elif named:
            kind = LockKind.WRITE if request.write_locks else LockKind.READ
            lock = (*(request.write_locks or ()), *(request.read_locks or ()))[0]
            conn.send(
                AppendRefused(request.req_id, Refusal.LOCK, blocking, Conflict.TRUE, blocking, kind, 0, lock, None)
            )
        else:
            conn.send(LockFailure(request.req_id, blocking))

    def _read(self, conn: ServerConn, partition: int, message: TransactionDataRequest) -> None:
        wanted = message.transaction_id
        log = self.logs.get(partition)
        known = log is not None and partition in self.owned and self.begins_at <= wanted <= log.mark
        if log is None or not known or self.fails_reads(wanted):
            conn.send(TransactionDataResponse(message.req_id, wanted, False, error="not now"))
            return
        made = log.records[wanted]
        conn.send(TransactionDataResponse(message.req_id, wanted, True, made.data, made.checksum))

    def _read_range(self, conn: ServerConn, partition: int, message: RecordRangeRequest) -> None:
        """Up to the first record that cannot be read, and seldom all that was asked for."""
        log = self.logs.get(partition)
        if not self.view.names:
            conn.send(ErrorResponse(message.req_id, ErrorCode.NOT_IMPLEMENTED, None))
        elif log is None or partition not in self.owned:
            conn.send(ErrorResponse(message.req_id, ErrorCode.NOT_SERVED, None))
        elif message.first_id < self.begins_at:
            conn.send(ErrorResponse(message.req_id, ErrorCode.BEFORE_START, f"begins at {self.begins_at}"))
        else:
            ids = range(message.first_id, min(message.last_id, log.mark, message.first_id + self.window) + 1)
            sound = list(takewhile(lambda one: not self.fails_reads(one), ids))
            if ids and not sound:
                conn.send(ErrorResponse(message.req_id, ErrorCode.CORRUPT, "not now"))
                return
            made = [(one, log.records[one]) for one in sound]
            records = tuple(Record(one, each.req_id, each.header, each.data, each.checksum) for one, each in made)
            conn.send(RecordRangeResponse(message.req_id, 0, log.mark, records))
