"""What servers say: bytes of a connection, decoded in one go and handed to who lives there.

The feed goes in runs, one call for all transactions of a partition that came together; payloads are delivered together
too. A message that no server sends ends the connection, after everything before it has been taken in. Of a STREAM
connection the server is asked what it can do before the mount that follows, so a mount of any length is cut short
already; until it has answered, appends and feed requests go as 0.13.2 sends them. An RPC connection asks the same, as
servers end connections that ask for nothing, and there may be no payloads to read for long.
"""

from __future__ import annotations

import typing

from waltz_core.base.edge import Received
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import make_req_id, req_partition, req_sequence
from waltz_core.client.calls import MarkRead
from waltz_core.client.cluster_port import ClusterPort
from waltz_core.client.connections import Connections
from waltz_core.client.context import ClientContext
from waltz_core.client.link import Kind, Link
from waltz_core.client.partitions import Partitions
from waltz_core.client.reads import PartitionReads
from waltz_core.wire.client_codec import EXTENDED
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
from waltz_core.wire.runs import end_of_run

_SEQUENCE_MAX = (1 << 31) - 1


class ServerPort:
    """Messages of servers, on their way to partitions, readers and the view of the cluster."""

    def __init__(
        self, context: ClientContext, connections: Connections, partitions: Partitions, cluster: ClusterPort
    ) -> None:
        self._context = context
        self._out = context.out
        self._touch = context.touch
        self._connections = connections
        self._partitions = partitions
        self._cluster = cluster
        self._arrived: dict[PartitionReads, None] = {}  # readers that got payloads of this read of a connection

    def received(self, now: int, event: Received) -> None:
        """Bytes of one connection."""
        link = self._connections.get(event.conn)
        if link is None:
            return
        messages: list[ClientMessage] = []
        trouble = ""
        greeted = not link.ready
        try:
            link.receive(now, event.data, messages)
        except ProtocolError as error:
            trouble = str(error)
        if greeted and link.ready:
            self._touch(link)
            if link.kind is Kind.STREAM or not self._cluster.asks(link):
                self._ask_capabilities(link)
            self._connections.ready(now, link)
        try:
            self._on_messages(now, link, messages)
        except ProtocolError as error:
            trouble = trouble or str(error)
        for reads in self._arrived:
            reads.payloads.deliver()
        self._arrived.clear()
        if trouble:
            self._connections.drop(now, link, trouble)

    def _on_messages(self, now: int, link: Link, messages: list[ClientMessage]) -> None:
        """Hand messages to whom they are for, the feed in runs.

        Raises:
            ProtocolError: a message that no server sends.
        """
        at = 0
        while at < len(messages):
            message = messages[at]
            if type(message) is FeedData:
                end = end_of_run(messages, at, FeedData)
                self._on_feed(now, link, message.req_id[8:12], typing.cast(list[FeedData], messages[at:end]))
                at = end
            else:
                self._on_message(now, link, message)
                at += 1

    def _on_feed(self, now: int, link: Link, key: bytes, run: list[FeedData]) -> None:
        partition = self._partitions.on_link(key, link)
        if partition is not None:
            partition.on_feed(now, run)
            self._touch(partition)

    def _on_message(self, now: int, link: Link, message: ClientMessage) -> None:
        if isinstance(message, (TransactionDataResponse, RecordRangeResponse)):
            self._on_payloads(now, link, message)
        elif isinstance(message, HighWaterMarkResponse):
            self._on_mark(now, link, message)
        elif isinstance(message, ErrorResponse) and self._on_read_refused(now, link, message):
            pass  # a read that waits, or goes another way
        elif self._on_capabilities(link, message) or self._cluster.on_message(now, message, link):
            pass  # about the server, or the cluster
        elif isinstance(message, ErrorResponse):
            self._on_error(now, link, message)
        else:
            self._on_answer(now, link, message)

    # ---- for partitions ----------------------------------------------------------------------

    def _on_answer(self, now: int, link: Link, message: ClientMessage) -> None:
        partition = self._partitions.on_link(message.req_id[8:12], link)
        if partition is None:
            return
        self._touch(partition)
        match message:
            case FeedSuspended():
                partition.on_feed_suspended(message)
            case LockFailure():
                partition.on_lock_failure(now, message)
            case FlushResponse():
                partition.on_flush_response(now, message)
            case MountResponse():
                partition.on_mount_response(now, message)
            case AppendRefused():
                partition.on_refused(now, message)

    def _on_error(self, now: int, link: Link, message: ErrorResponse) -> None:
        partition = self._partitions.on_link(message.req_id[8:12], link)
        if partition is None:
            return
        self._touch(partition)
        if message.code == ErrorCode.BEFORE_START:
            partition.on_before_start(now, message.req_id, message.message or "the log begins later")
            self._partitions.seek_tail(now, partition)
        elif message.code == ErrorCode.NOT_ALLOWED:
            text = message.message or "not allowed"
            self._connections.complain(link, f"{link.endpoint} refuses: ", text)
            partition.on_not_allowed(now, message.req_id, text)

    # ---- for readers -------------------------------------------------------------------------

    def _on_payloads(self, now: int, link: Link, message: TransactionDataResponse | RecordRangeResponse) -> None:
        reads = self._partitions.reads_on_link(req_partition(message.req_id), link)
        if reads is None:
            return
        self._arrived[reads] = None
        self._touch(reads)
        if isinstance(message, TransactionDataResponse):
            reads.payloads.data_answered(now, message)
        else:
            reads.on_range(now, message)

    def _on_mark(self, now: int, link: Link, message: HighWaterMarkResponse) -> None:
        number = req_partition(message.req_id)
        reads = self._partitions.reads_on_link(number, link)
        if reads is None:
            return
        mark, answered = message.high_water_mark, reads.marks.answered(now, message)
        self._touch(reads)
        partition = self._partitions.opened.get(number)
        if partition is not None and answered.tail:
            partition.on_tail(now, mark)
            self._touch(partition)
        if answered.tokens:
            self._out.put(MarkRead(number, mark, answered.tokens))

    def _on_read_refused(self, now: int, link: Link, message: ErrorResponse) -> bool:
        reads = self._partitions.reads_on_link(req_partition(message.req_id), link)
        if reads is None:
            return False
        self._touch(reads)
        if not reads.on_refused(now, message):
            return False
        if message.code == ErrorCode.NOT_ALLOWED:
            self._connections.complain(link, f"{link.endpoint} refuses: ", message.message or "not allowed")
        return True

    # ---- what a server can do ----------------------------------------------------------------

    def _ask_capabilities(self, link: Link) -> None:
        if link.version >= EXTENDED:
            # Negative: it must not be taken for an answer about partition 0.
            req_id = make_req_id(self._context.client_id, 0, 0, -1 - (link.net_seq & _SEQUENCE_MAX))
            capabilities = ClientCapability.FEED_WINDOWS
            if self._context.settings.carries_others:
                capabilities |= ClientCapability.CARRIES_OTHERS
            link.send(ClusterInfoRequest(req_id, False, False, capabilities))

    def _on_capabilities(self, link: Link, message: ClientMessage) -> bool:
        """Take the answer; ask again with a mount if there was none: the server may not have joined its cluster yet."""
        if link.kind is not Kind.STREAM:
            return isinstance(message, ClusterInfoResponse) and req_sequence(message.req_id) < 0
        if isinstance(message, ClusterInfoResponse):
            link.explains = bool(message.capabilities & Capability.NAMED_APPENDS)
            link.windows = bool(message.capabilities & Capability.FEED_WINDOWS)
            return True
        if isinstance(message, MountResponse) and link.explains is None:
            self._ask_capabilities(link)
        return False
