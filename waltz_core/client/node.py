"""The machine of a client process: connections, partitions, reads, and the view of the cluster.

```
 calls ──► ClientNode ──► ClientPartition   mounts, follows the feed, appends, judges      one per open partition
              │  │ ╲───► PartitionReads     payloads and the committed mark               one per partition read
              │  └─────► ClientRouter       where what is served; owns the Links         two per server: STREAM, RPC
              └────────► Membership         who we are and what the cluster looks like   ZooKeeper, or a server
```

The membership says what servers there are; the node puts every partition and every reader on the link to its server,
again whenever the map changes. Bytes of a link are decoded here and handed to the partition that lives on that link; an
answer that comes over another one is of a life before, and nobody's. Nothing here is durable: what a partition has seen
and what it still owes its callers is rebuilt by mounting at the mark that the application gives.

A step costs what it concerns: `_touched` gathers whatever something happened to, and only those are asked again when
they are due (`Dues`); links that have bytes to send say so themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from waltz_core.base.contract import Rng, earliest
from waltz_core.base.edge import (
    Closed,
    Dialed,
    Level,
    Received,
    Report,
    Writable,
    ZkChanged,
    ZkDone,
    ZkEvent,
    ZkFailed,
    ZkStateChanged,
)
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import Endpoint, make_req_id, req_partition
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.client.calls import (
    Call,
    CloseClient,
    ClusterLost,
    Consumed,
    Effect,
    Failed,
    Fetch,
    Flush,
    Flushed,
    Forget,
    ForgetMark,
    Joined,
    MarkRead,
    Open,
    PartitionStatus,
    Phase,
    ReadMark,
    Reason,
    StopFeed,
    Submit,
)
from waltz_core.client.data import PartitionReads, complaint, deliver
from waltz_core.client.dues import Dues
from waltz_core.client.link import ConnectionState, Kind, Link
from waltz_core.client.membership import Membership
from waltz_core.client.partition import ClientPartition
from waltz_core.client.router import ClientRouter, EndpointMap
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.client_messages import (
    AppendRefused,
    Capability,
    ClientCapability,
    ClientMessage,
    ClusterInfoRequest,
    ClusterInfoResponse,
    ErrorCode,
    ErrorResponse,
    FeedData,
    FeedSuspended,
    FlushResponse,
    HighWaterMarkResponse,
    LockFailure,
    MountResponse,
    RecordRangeResponse,
    TransactionDataResponse,
)

ClientEvent: TypeAlias = Dialed | Received | Writable | Closed | ZkEvent | Call

_TROUBLED = (Phase.WAITING, Phase.NOT_READY)
_EXTENDED = 5  # version of the client protocol since which a server tells what it can
_DUE_EVERY_MS = 20  # how late a deadline may be noticed while events never cease


class ClientNode:
    """One client: everything above decrypted bytes.

    Calls that come before the cluster has answered wait; after `CloseClient` appends fail as CLOSED and
    everything else is ignored.
    """

    def __init__(
        self,
        membership: Membership,
        settings: ClientSettings,
        rng: Rng,
        *,
        rules: SafetyRules = SAFE,
        versions: Collection[int] = VERSIONS,
    ) -> None:
        self._membership = membership
        self._settings, self._rules = settings, rules
        self._router = ClientRouter(settings, rng, rules, versions)
        self._partitions: dict[int, ClientPartition] = {}
        self._by_key: dict[bytes, ClientPartition] = {}  # bytes 8..12 of a request id → partition
        self._reads: dict[int, PartitionReads] = {}
        self._conns: dict[int, Link] = {}
        self._complaints: dict[Endpoint, str] = {}
        self._last_conn = 0
        self._client_id = 0
        self._partition_count: int | None = None
        self._early: list[Call] | None = []
        self._started = False
        self._closed = False
        self._dial_wanted = False
        self._dues: Dues[Link | ClientPartition | PartitionReads] = Dues(lambda machine: machine.deadline())
        self._hurries: Dues[ClientPartition | PartitionReads] = Dues(_hurry_at)
        self._touched: dict[Link | ClientPartition | PartitionReads, None] = {}  # since they were asked last
        self._due_links: dict[Link, None] = {}
        self._due_at = 0
        self._connect_by: int | None = None  # until the cluster has answered
        self._handlers: dict[type, Callable[[Any, int, list[Effect]], None]] = {
            Dialed: self._on_dialed,
            Received: self._on_received,
            Writable: self._on_writable,
            Closed: self._on_closed,
            ZkDone: self._on_zk,
            ZkFailed: self._on_zk,
            ZkChanged: self._on_zk,
            ZkStateChanged: self._on_zk,
            Submit: self._on_submit,
            Open: self._on_open,
            StopFeed: self._on_stop_feed,
            Consumed: self._on_consumed,
            Flush: self._on_flush,
            ReadMark: self._on_read_mark,
            Fetch: self._on_fetch,
            Forget: self._on_forget,
            ForgetMark: self._on_forget_mark,
            CloseClient: self._on_close_client,
        }

    # ---- machine -------------------------------------------------------------------------------------

    def step(self, now: int, events: Sequence[ClientEvent], out: list[Effect]) -> None:
        """Handle events in order; send what they caused at the end."""
        if not self._started:
            self._started = True
            if self._settings.connect_ms is not None:
                self._connect_by = now + self._settings.connect_ms
            self._membership.start(self, now, out)
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event, now, out)
        if not events or now >= self._due_at:
            self._due(now, out)
        self._finish(now, out)

    def deadline(self) -> int | None:
        """When `step` must be called at the latest."""
        if not self._started:
            return 0
        if self._closed:
            return None
        self._settle()
        return earliest(self._connect_by, self._membership.deadline(), self._dues.next())

    def status(self, partition: int, now: int) -> PartitionStatus:
        """A snapshot of one partition, open or not."""
        found = self._partitions.get(partition)
        if found is None:
            return PartitionStatus(partition, Phase.CLOSED, 0, self._router.owners.get(partition), -1, -1, -1, 0, 0)
        return found.status(now)

    def link_kind(self, conn: int) -> Kind | None:
        """What a connection that is dialed or stands is for; None for any other."""
        link = self._conns.get(conn)
        return None if link is None else link.kind

    @property
    def connected(self) -> int:
        """Connections that can be used."""
        return sum(link.ready for link in self._router.links())

    def _due(self, now: int, out: list[Effect]) -> None:
        self._due_at = now + _DUE_EVERY_MS
        if self._closed:
            return
        if self._connect_by is not None and now >= self._connect_by:
            self._connect_by = None
            patience = f"{(self._settings.connect_ms or 0) / 1000:g} s (client.connectTimeout)"
            self.cluster_lost(f"no cluster answered within {patience}: {self._membership.trouble()}", out)
        self._membership.due(now, out)
        self._settle()
        for machine in self._dues.due(now):
            if isinstance(machine, Link):
                self._due_links[machine] = None
            elif machine.due(now, out) and machine.link is not None:
                self._drop(machine.link, "the server owes an answer and is silent", now, out)
            self._touch(machine)

    def _touch(self, machine: Link | ClientPartition | PartitionReads) -> None:
        """Something happened to it: it may be due earlier now."""
        self._touched[machine] = None

    def _settle(self) -> None:
        for machine in self._touched:
            self._dues.touch(machine)
            if not isinstance(machine, Link):
                self._hurries.touch(machine)
        self._touched.clear()

    def _finish(self, now: int, out: list[Effect]) -> None:
        if self._dial_wanted:
            self._dial_wanted = False
            self._due_links.update(dict.fromkeys(self._router.wanted()))
        if self._due_links:
            due, self._due_links = self._due_links, {}
            for link in [link for link in self._router.wanted() if link in due]:
                self._tend(link, now, out)
        for link in self._router.filled():
            link.flush(now, out)

    def _tend(self, link: Link, now: int, out: list[Effect]) -> None:
        """Keep a connection alive, give it up, or open its successor, whichever is due."""
        before = link.state
        if link.due(now, out):
            self._last_conn -= 1
            link.dial(self._last_conn, now, out)
            self._conns[link.conn] = link
        elif before is ConnectionState.GREETING and link.state is ConnectionState.IDLE:
            self._conns.pop(link.conn, None)
            self._lose(link, now, out)
        self._touch(link)

    # ---- what the view of the cluster tells ------------------------------------------------------------

    def joined(self, cluster: str, client_id: int, partition_count: int, now: int, out: list[Effect]) -> None:
        """The cluster gave us an id; calls that waited for it are carried out."""
        self._connect_by = None
        self._client_id, self._partition_count = client_id, partition_count
        out.append(Joined(cluster, client_id, partition_count))
        early, self._early = self._early, None
        for call in early or ():
            self._handlers[type(call)](call, now, out)

    def endpoints_changed(self, endpoints: EndpointMap, now: int, out: list[Effect]) -> None:
        """The map of the cluster changed: partitions move to where they are served."""
        for link in self._router.set_endpoints(endpoints):
            if self._membership.keeps(link):
                continue
            self._conns.pop(link.conn, None)
            self._lose(link, now, out)
            link.end("the server left the cluster", now, out)
            self._touch(link)
        for partition in self._partitions.values():
            self._place(partition, now, out)
        for reads in self._reads.values():
            self._place_reads(reads, now)

    def cluster_lost(self, reason: str, out: list[Effect]) -> None:
        """This client cannot work with what the cluster says; final."""
        out.append(ClusterLost(reason))

    def hurry_at(self) -> int | None:
        """When to ask others who serves what.

        At once while an open partition has no server that takes it; and when a server that owes an answer has been
        silent for long, as it may be cut off.
        """
        self._settle()
        return self._hurries.next()

    def link_to(self, endpoint: Endpoint) -> Link:
        """The rpc connection to a server, dialed on demand; for the view of the cluster."""
        self._dial_wanted = True
        return self._router.link_to(endpoint, Kind.RPC)

    def _place(self, partition: ClientPartition, now: int, out: list[Effect]) -> None:
        """Put a partition on the connection to its server."""
        number = partition.partition
        if partition.phase is Phase.CLOSED:
            return
        generation = self._router.generations.get(number, -1)
        partition.place(self._router.link_of(number, Kind.STREAM), generation, now, out)
        self._touch(partition)
        # Both connections stand before they are needed: the first payload is not to wait for a handshake.
        self._router.link_of(number, Kind.RPC)
        self._dial_wanted = True

    def _place_reads(self, reads: PartitionReads, now: int) -> None:
        reads.generation = self._router.generations.get(reads.partition, -1)
        reads.attach(self._router.link_of(reads.partition, Kind.RPC), now)
        self._touch(reads)
        self._dial_wanted = True

    # ---- connections -----------------------------------------------------------------------------------

    def _on_dialed(self, event: Dialed, now: int, out: list[Effect]) -> None:
        link = self._conns.get(event.conn)
        if link is not None:
            link.on_dialed(now)
            self._touch(link)

    def _on_closed(self, event: Closed, now: int, out: list[Effect]) -> None:
        link = self._conns.pop(event.conn, None)
        if link is not None:
            link.on_closed(event.reason, now)
            self._touch(link)
            self._complain(link, event.reason, out)
            self._lose(link, now, out)
            self._dial_wanted = True

    def _complain(self, link: Link, reason: str, out: list[Effect]) -> None:
        """Tell why a server cannot be reached, each reason once until it can be."""
        if self._complaints.get(link.endpoint) != reason:
            self._complaints[link.endpoint] = reason
            out.append(Report(Level.WARNING, f"no connection to {link.endpoint}: {reason}"))

    def _on_writable(self, event: Writable, now: int, out: list[Effect]) -> None:
        link = self._conns.get(event.conn)
        if link is None:
            return
        link.writable = event.writable
        if event.writable:
            for partition in self._on(link):
                partition.on_writable(now, out)
                self._touch(partition)

    def _on_received(self, event: Received, now: int, out: list[Effect]) -> None:
        link = self._conns.get(event.conn)
        if link is None:
            return
        messages: list[ClientMessage] = []
        trouble = ""
        greeted = not link.ready
        try:
            link.receive(event.data, now, messages)
        except ProtocolError as error:
            trouble = str(error)
        if greeted and link.ready:
            self._touch(link)
            self._on_ready(link, now, out)
        try:
            self._on_messages(link, messages, now, out)
        except ProtocolError as error:
            trouble = trouble or str(error)
        if trouble:
            self._drop(link, trouble, now, out)

    def _on_ready(self, link: Link, now: int, out: list[Effect]) -> None:
        self._complaints.pop(link.endpoint, None)
        if link.kind is Kind.STREAM:
            self._ask_capabilities(link)
            for partition in self._on(link):
                partition.on_link_ready(now, out)
                self._touch(partition)
            return
        self._membership.on_link_ready(link, now, out)
        for reads in self._reads.values():
            if reads.link is link:
                reads.on_link_ready(now)
                self._touch(reads)

    def _ask_capabilities(self, link: Link) -> None:
        """What the server can do; until it has answered, appends and feed requests go as 0.13.2 sends them.

        It reads this before the mount that follows, so a mount of any length is cut short already.
        """
        if link.version >= _EXTENDED:
            # Negative: it must not be taken for an answer about partition 0.
            req_id = make_req_id(self._client_id, 0, 0, -1 - link.net_seq)
            link.send(ClusterInfoRequest(req_id, False, False, ClientCapability.FEED_WINDOWS))

    def _on_capabilities(self, message: ClientMessage, link: Link) -> bool:
        """Take the answer; ask again with a mount if there was none: the server may not have joined its cluster yet."""
        if link.kind is not Kind.STREAM:
            return False
        if isinstance(message, ClusterInfoResponse):
            link.explains = bool(message.capabilities & Capability.NAMED_APPENDS)
            link.windows = bool(message.capabilities & Capability.FEED_WINDOWS)
            return True
        if isinstance(message, MountResponse) and link.explains is None:
            self._ask_capabilities(link)
        return False

    def _on_messages(self, link: Link, messages: list[ClientMessage], now: int, out: list[Effect]) -> None:
        """Hand messages to their partitions, the feed in runs.

        Raises:
            ProtocolError: a message that no server sends.
        """
        by_key = self._by_key
        run: list[FeedData] = []
        key = b""
        payloads: dict[int, list[tuple[int, bytes]]] = {}
        for message in messages:
            if type(message) is FeedData:
                found = message.req_id[8:12]
                if found != key:
                    if run:
                        self._on_feed(by_key.get(key), link, run, now, out)
                        run = []
                    key = found
                run.append(message)
                continue
            if run:
                self._on_feed(by_key.get(key), link, run, now, out)
                run = []
            if type(message) is TransactionDataResponse:
                self._on_data(message, link, now, payloads, out)
            elif type(message) is RecordRangeResponse:
                reads = self._reads.get(req_partition(message.req_id))
                if reads is not None and reads.link is link:
                    self._touch(reads)
                    reads.on_range(message, now, payloads.setdefault(reads.partition, []))
            else:
                self._on_message(message, link, now, out)
        if run:
            self._on_feed(by_key.get(key), link, run, now, out)
        for partition, found_payloads in payloads.items():
            deliver(partition, found_payloads, out)

    def _on_feed(
        self, partition: ClientPartition | None, link: Link, run: list[FeedData], now: int, out: list[Effect]
    ) -> None:
        if partition is not None and partition.link is link:
            partition.on_feed(run, now, out)
            self._touch(partition)

    def _on_message(self, message: ClientMessage, link: Link, now: int, out: list[Effect]) -> None:
        if isinstance(message, HighWaterMarkResponse):
            self._on_mark(message, link, now, out)
            return
        if isinstance(message, ErrorResponse) and self._on_read_refused(message, link, now):
            return
        if self._on_capabilities(message, link) or self._membership.on_message(message, link, now, out):
            return
        if isinstance(message, ErrorResponse):
            self._on_error(message, link, now, out)
            return
        partition = self._by_key.get(message.req_id[8:12])
        if partition is None or partition.link is not link:
            return
        self._touch(partition)
        if isinstance(message, FeedSuspended):
            partition.on_feed_suspended(message)
        elif isinstance(message, LockFailure):
            partition.on_lock_failure(message, now, out)
        elif isinstance(message, FlushResponse):
            partition.on_flush_response(message, now, out)
        elif isinstance(message, MountResponse):
            partition.on_mount_response(message, now, out)
        elif isinstance(message, AppendRefused):
            partition.on_refused(message, now, out)

    def _on_read_refused(self, message: ErrorResponse, link: Link, now: int) -> bool:
        reads = self._reads.get(req_partition(message.req_id))
        if reads is None or reads.link is not link:
            return False
        self._touch(reads)
        later = message.code in (ErrorCode.NOT_READY, ErrorCode.NOT_SERVED)
        return reads.on_range_refused(message.req_id, now) or (later and reads.on_mark_refused(message.req_id, now))

    def _on_error(self, message: ErrorResponse, link: Link, now: int, out: list[Effect]) -> None:
        partition = self._by_key.get(message.req_id[8:12])
        if partition is None or partition.link is not link:
            return
        self._touch(partition)
        if message.code == ErrorCode.BEFORE_START:
            partition.on_before_start(message.req_id, message.message or "the log begins later", now, out)
        elif message.code == ErrorCode.NOT_ALLOWED:
            text = message.message or "not allowed"
            if self._complaints.get(link.endpoint) != text:
                self._complaints[link.endpoint] = text
                out.append(Report(Level.WARNING, f"{link.endpoint} refuses: {text}"))
            partition.on_not_allowed(message.req_id, text, now, out)

    def _on_data(
        self,
        message: TransactionDataResponse,
        link: Link,
        now: int,
        payloads: dict[int, list[tuple[int, bytes]]],
        out: list[Effect],
    ) -> None:
        number = int.from_bytes(message.req_id[8:12], "big", signed=True)
        reads = self._reads.get(number)
        if reads is not None and reads.link is link:
            text = reads.on_data(message, now, payloads.setdefault(number, []))
            self._touch(reads)
            if text is not None:
                out.append(complaint(number, message.transaction_id, text))

    def _on_mark(self, message: HighWaterMarkResponse, link: Link, now: int, out: list[Effect]) -> None:
        number = req_partition(message.req_id)
        reads = self._reads.get(number)
        if reads is None or reads.link is not link:
            return
        mark, answered = message.high_water_mark, reads.on_mark(message, now)
        self._touch(reads)
        partition = self._partitions.get(number)
        if partition is not None and answered.tail:
            partition.on_tail(mark, now, out)
            self._touch(partition)
        if answered.tokens:
            out.append(MarkRead(number, mark, answered.tokens))

    def _on(self, link: Link) -> list[ClientPartition]:
        return [partition for partition in self._partitions.values() if partition.link is link]

    def _drop(self, link: Link, reason: str, now: int, out: list[Effect]) -> None:
        """Close a connection because of its peer; a new one follows."""
        self._conns.pop(link.conn, None)
        self._complain(link, reason, out)
        link.close(reason, now, out)
        self._touch(link)
        self._lose(link, now, out)
        self._dial_wanted = True

    def _lose(self, link: Link, now: int, out: list[Effect]) -> None:
        if link.kind is Kind.STREAM:
            for partition in self._on(link):
                partition.on_link_lost(now, out)
                self._touch(partition)
            return
        self._membership.on_link_lost(link, now, out)
        for reads in self._reads.values():
            if reads.link is link:
                reads.on_link_lost()
                self._touch(reads)

    # ---- ZooKeeper ---------------------------------------------------------------------------------------

    def _on_zk(self, event: ZkEvent, now: int, out: list[Effect]) -> None:
        if not self._closed:
            self._membership.on_zk(event, now, out)

    # ---- calls -------------------------------------------------------------------------------------------

    def _waits(self, call: Call) -> bool:
        """The call must wait for the cluster, or comes too late."""
        if self._early is not None:
            self._early.append(call)
            return True
        return self._closed

    def _partition(self, number: int, now: int, out: list[Effect], mark: int | None, feed: bool) -> ClientPartition:
        """An open partition."""
        partition = self._partitions.get(number)
        if partition is None:
            partition = ClientPartition(number, self._client_id, self._settings, self._rules)
            self._partitions[number] = partition
            self._by_key[number.to_bytes(4, "big", signed=True)] = partition
        self._touch(partition)
        if partition.phase is Phase.CLOSED:
            partition.open(mark, feed, now, out)
            self._place(partition, now, out)
            if partition.wants_tail:
                self._reads_of(number, now).read_tail(now)
        elif feed:
            partition.open(mark, feed, now, out)
        return partition

    def _reads_of(self, number: int, now: int) -> PartitionReads:
        reads = self._reads.get(number)
        if reads is None:
            reads = self._reads[number] = PartitionReads(number, self._client_id, self._settings, self._rules)
            self._place_reads(reads, now)
        self._touch(reads)
        return reads

    def _exists(self, number: int) -> bool:
        return self._partition_count is not None and 0 <= number < self._partition_count

    def _on_open(self, call: Open, now: int, out: list[Effect]) -> None:
        if not self._waits(call) and self._exists(call.partition):
            self._partition(call.partition, now, out, call.mark, call.deliver)

    def _on_submit(self, call: Submit, now: int, out: list[Effect]) -> None:
        partition = self._partitions.get(call.partition)
        if partition is None or partition.phase is Phase.CLOSED:
            if self._closed:
                out.append(Failed(call.partition, call.token, Reason.CLOSED))
                return
            if self._waits(call):
                return
            if not self._exists(call.partition):
                out.append(Failed(call.partition, call.token, Reason.REFUSED, text="there is no such partition"))
                return
            partition = self._partition(call.partition, now, out, None, False)
        partition.submit(call, now, out)
        self._touched[partition] = None  # as `_touch`; there are very many of these

    def _on_stop_feed(self, call: StopFeed, now: int, out: list[Effect]) -> None:
        if self._waits(call):
            return
        partition = self._partitions.get(call.partition)
        if partition is not None and partition.phase is not Phase.CLOSED:
            partition.stop_feed()
            self._touch(partition)
            if partition.unused:
                partition.close(now, out)

    def _on_consumed(self, call: Consumed, now: int, out: list[Effect]) -> None:
        partition = self._partitions.get(call.partition)
        if partition is not None:
            partition.consumed(call.mark, now)
            self._touch(partition)

    def _on_flush(self, call: Flush, now: int, out: list[Effect]) -> None:
        if self._waits(call):
            return
        partition = self._partitions.get(call.partition)
        if partition is None:
            out.append(Flushed(call.partition, call.token))  # nothing was ever submitted
        else:
            partition.flush(call.token, now, out)
            self._touch(partition)

    def _on_read_mark(self, call: ReadMark, now: int, out: list[Effect]) -> None:
        if not self._waits(call) and self._exists(call.partition):
            self._reads_of(call.partition, now).read_mark(call.token, now)

    def _on_fetch(self, call: Fetch, now: int, out: list[Effect]) -> None:
        if not self._waits(call) and self._exists(call.partition):
            self._reads_of(call.partition, now).fetch(call.transaction_ids, now)

    def _on_forget(self, call: Forget, now: int, out: list[Effect]) -> None:
        if not self._waits(call) and call.partition in self._reads:
            self._reads[call.partition].forget(call.transaction_ids)
            self._touch(self._reads[call.partition])

    def _on_forget_mark(self, call: ForgetMark, now: int, out: list[Effect]) -> None:
        if not self._waits(call) and call.partition in self._reads:
            self._reads[call.partition].forget_mark(call.token)
            self._touch(self._reads[call.partition])

    def _on_close_client(self, call: CloseClient, now: int, out: list[Effect]) -> None:
        if self._closed:
            return
        self._closed = True
        early = [call for call in self._early or () if isinstance(call, Submit)]
        out.extend(Failed(call.partition, call.token, Reason.CLOSED) for call in early)
        self._early = None
        for partition in self._partitions.values():
            partition.close(now, out)
        self._membership.close(now, out)
        for link in list(self._router.wanted()):
            self._conns.pop(link.conn, None)
            link.end("the client is closed", now, out)


def _hurry_at(machine: ClientPartition | PartitionReads) -> int | None:
    if isinstance(machine, ClientPartition) and machine.phase in _TROUBLED:
        return 0
    return machine.suspect_at()
