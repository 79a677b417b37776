"""One partition of a proxy: what a server's partition is for its clients, made of the feed of another server.

    clients ── appends ──▶ queue ──▶ upstream ──▶ feed, refusals ──▶ clients, in the order in which the server said them
    clients ── mounts, flushes ──▶ barrier ──▶ upstream flush ──▶ answered when its mark is reached
    clients ── feeds, reads ──▶ what the proxy holds, and what it holds not, once, from upstream

What must hold, and why it does:

- **The feed is the server's.** Transactions are given out as they came, dense and in order; our mark never goes back.
- **A mount decides.** A client takes it that none of its earlier appends commits behind the answer to its mount that
  it does not see in the feed before. So a mount waits for a *barrier*: a flush upstream that leaves when every append
  of this client was carried. The answer says how far the log was committed by then, and the mount is answered when
  our own mark is there. One flush serves all who waited when it left.
- **Appends of connections that are gone do not come late.** Of a client only the newest connection counts (`Members`);
  upstream, only the newest connection of the proxy does, over the end of its process too (`waltz_core/proxy/upstream`).
- **A lost upstream connection is a lost connection.** What became of appends that went over it is decided by the next
  mount there. Clients that have sent some since are disconnected, and mount anew: their mounts wait for a barrier over
  the next one. Nothing is sent twice. What was not sent yet stays in the queue, as in a server without a store session.
- **Without upstream** the feeds and reads of what is here go on. A mount is answered at once, without a barrier, only
  if its client cannot have an append under way: its id was given out since this proxy is alone in its root (`Fresh`),
  it has sent no append through it that a flush has not decided since, and is not ahead of our mark. Everybody else
  waits, as for a server without a quorum. Who asks for the committed mark is never answered from memory.

Which append is carried next, and how much may be under way, is decided in `carriage.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Protocol

from waltz_core.base.contract import earliest
from waltz_core.base.edge import CloseConn
from waltz_core.base.ids import req_client
from waltz_core.base.outbox import Emits, Outbox
from waltz_core.base.pending import Pending
from waltz_core.client.calls import Carried, Deliver, Phase, RecordsCarried
from waltz_core.proxy.cache import CacheEffect, CacheIndex
from waltz_core.proxy.carriage import Append, Carriage, Way
from waltz_core.proxy.fresh import Fresh
from waltz_core.proxy.source import FetchWanted, MarkWanted, ReadNote, UpstreamSource
from waltz_core.server.context import NodeContext, PartitionAlarm, PartitionDue, ReadFor, Reply
from waltz_core.server.feeds import Feeds, Flush, Mount
from waltz_core.server.intake import all_acceptable
from waltz_core.server.log_start import LogBeginning
from waltz_core.server.members import Members
from waltz_core.server.partition import NOT_OPEN_MARK
from waltz_core.server.peer import Peer
from waltz_core.server.reads import Reads
from waltz_core.server.refusals import refusal
from waltz_core.wire import client_messages as messages
from waltz_core.wire.lock_count import OversizedAppend

_HEAD = Struct(">ii")  # the first two of the four ints of a request id: client id, generation
PROBE = 0
"""Token of a read of nothing, which tells where the log begins."""
FLOOR = -1
"""Token of a read of nothing before id 0, which is refused unless the server gives out the log from there on."""
_ROUNDS = 8  # of reading what is cached, in one step


class Carrier(Way, Protocol):
    """What a partition needs of the client machine upstream."""

    def read(self, now: int, partition_id: int, token: int, first: int, count: int, /) -> None:
        """Read records."""

    def ask_mark(self, now: int, partition_id: int, number: int, /) -> None:
        """Ask for the committed mark."""


class ProxyPartition:
    """A partition that the upstream cluster serves."""

    def __init__(
        self,
        partition_id: int,
        context: NodeContext,
        fresh: Fresh,
        kept: CacheIndex,
        disk: Emits[CacheEffect],
    ) -> None:
        config = context.config.partition(partition_id)
        self.partition_id = partition_id
        self.mark = -1
        self.begins_behind = -1  # the mark that was heard first
        self.generation = -1
        self.phase = Phase.CLOSED  # of the client machine upstream
        self._context = context
        self._config = config
        self._alarms = context.alarms
        self._alarm = PartitionAlarm(partition_id, PartitionDue.WORK)
        self._wanted: Outbox[FetchWanted | MarkWanted] = Outbox()
        self._clients = context.clients
        self._notes: Outbox[ReadNote] = Outbox()
        self._members = Members()
        self._fresh = fresh
        reading: Pending[ReadFor] = Pending(context.tickets)
        self.source = UpstreamSource(
            partition_id, context.data_cache, kept, context.tickets, self._wanted, disk, self._notes
        )
        self._log_start = LogBeginning(config.archive, context, partition_id)
        self.feeds = Feeds(partition_id, config, context, self.source, self._log_start, reading)
        self.reads = Reads(partition_id, config, context, self.source, reading, self.feeds)
        self.carriage = Carriage(partition_id, config.append_turn, config.append_window, config.append_pace)

    # ---- for others to see -------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Appends and barriers can go upstream."""
        return self.phase is Phase.MOUNTED

    @property
    def busy(self) -> bool:
        """Appends may await their verdict upstream: they have the larger part of the time, as in a server."""
        return self.carriage.under_way > 0

    @property
    def high_water_mark(self) -> int | None:
        """The highest id that is known to be committed; None before the server was heard."""
        return self.mark if self.source.known else None

    @property
    def log_start(self) -> int:
        """The smallest id that can be read."""
        return self._log_start.present

    def trouble(self) -> str:
        """Why this partition is not as good as its server; empty if it is."""
        return "" if self.connected else f"upstream: {self.phase.value}"

    # ---- upstream ------------------------------------------------------------------------------

    def begin(self, now: int, log_start: int, *, whole: bool) -> None:
        """The log reaches from here to the mark that was heard, which is where our feed begins.

        Args:
            log_start: where storage nodes begin.
            whole: the server gives out what is below it too, from an archive.
        """
        assert not self.source.known
        self.source.known = True
        self.mark = mark = self.begins_behind
        self.feeds.restart(mark)
        self._log_start.rises(log_start)
        self._log_start.archived = 0 if whole else None
        self._tell_beginning()
        self.feeds.opened(mark)
        self._pass_reached(now)

    def marked(self, number: int, mark: int) -> None:
        """The server has confirmed a mark, for a round of questions and all before it."""
        self.source.marked(number, mark)
        self.source.reached(self.mark)

    def log_begins(self, start: int) -> None:
        """Storage nodes have given up what is below; ask whether the server can read it from an archive."""
        floor = self._log_start.floor
        if self._log_start.rises(start):
            self._log_start.archived = floor  # until the answer
            self._tell_beginning()
            self._wanted.put(FetchWanted(FLOOR, 0, 0))

    def _tell_beginning(self) -> None:
        start, floor = self._log_start.present, self._log_start.floor
        self.reads.log_begins(start, floor)
        self.feeds.log_begins(floor)

    def delivered(self, now: int, delivery: Deliver) -> None:
        """The feed came on."""
        run = delivery.run
        assert run[0].transaction_id == self.mark + 1, (run[0].transaction_id, self.mark)
        self.feeds.grown(now, run[0].transaction_id, run)
        self.mark = run[-1].transaction_id
        self._pass_reached(now)

    def phase_changed(self, phase: Phase) -> None:
        """Of the client machine. Once it waits, nobody says any more what became of appends that went over the way."""
        self.phase = phase
        if phase is Phase.WAITING:
            for conn in self.carriage.lost():
                text = f"partition {self.partition_id}: the upstream connection that carried its appends was lost"
                self._clients.put(CloseConn(conn, text))
        self.carriage.mounted(self.connected)

    def carried(self, now: int, answer: Carried) -> None:
        """The server says what became of something that was sent for others."""
        message = answer.message
        if isinstance(message, messages.FlushResponse):
            self.carriage.answered(message)
            self._pass_reached(now)
            return
        conn = self.carriage.conn_of(req_client(message.req_id))
        if conn is not None:
            self._clients.put(Reply(conn, message))

    def fetched(self, answer: RecordsCarried) -> None:
        """Records were read, or cannot be: perhaps they were given up."""
        if answer.token == FLOOR:
            self._log_start.archived = None if answer.records is None else 0
            self._tell_beginning()
            return
        if answer.records is None:
            self._wanted.put(FetchWanted(PROBE, self.mark + 1, 0))
            if self._log_start.archived is not None:
                self._wanted.put(FetchWanted(FLOOR, 0, 0))
        else:
            self.log_begins(answer.log_start)
        self.source.fetched(answer)

    def _pass_reached(self, now: int) -> None:
        self.source.reached(self.mark)
        if self.source.known:
            for token in self.carriage.reached(now, self.mark):
                self.feeds.passed(token, self.mark)

    # ---- clients -----------------------------------------------------------------------------

    def received(self, now: int, peer: Peer, batch: Sequence[messages.ClientMessage]) -> None:
        """Messages of one connection for this partition, in order."""
        appends: list[Append] = []
        for message in batch:
            if type(message) is messages.AppendRequest or type(message) is messages.NamedAppendRequest:
                appends.append(message)
                continue
            if appends:
                self._on_appends(now, peer, appends)
                appends = []
            self._on_message(now, peer, message)
        if appends:
            self._on_appends(now, peer, appends)

    def _on_message(self, now: int, peer: Peer, message: messages.ClientMessage | OversizedAppend) -> None:
        match message:
            case messages.MountRequest():
                self._on_mount(peer, message)
            case messages.FeedRequest() | messages.FeedWindowRequest():
                if self._members.speaks(peer):
                    self.feeds.asked(peer, message, self.mark)
            case messages.FlushRequest(req_id):
                self._wait(peer, Flush(peer.conn, req_id))
            case messages.HighWaterMarkRequest(req_id):
                self.reads.mark_asked(now, peer, req_id, NOT_OPEN_MARK)
            case messages.TransactionDataRequest():
                self.reads.data_asked(peer, message)
            case OversizedAppend():
                self._on_oversized(peer, message)
            case _:
                text = f"{type(message).__name__} is not a message for a server's partition"
                self._clients.put(CloseConn(peer.conn, text))

    def range_asked(self, peer: Peer, request: messages.RecordRangeRequest) -> None:
        """A client asks for a range of records; no mount is needed."""
        self.reads.range_asked(peer, request, self.mark)

    # ---- mounts and flushes ------------------------------------------------------------------

    def _on_mount(self, peer: Peer, message: messages.MountRequest) -> None:
        assert peer.client_id is not None
        assert peer.net_sequence is not None
        generation = int.from_bytes(message.req_id[4:8], "big", signed=True)
        if not self._members.mount(peer.client_id, peer.conn, generation, peer.net_sequence):
            return
        mount = Mount(peer.conn, peer.owner, message.req_id, message.client_mark, peer.version, peer.feed_windows)
        if not self.connected and self._has_nothing_under_way(peer.client_id) and message.client_mark <= self.mark:
            token = self.carriage.token()
            self.feeds.wait(peer, token, mount)
            self.feeds.passed(token, self.mark)
        else:
            self._wait(peer, mount)

    def _has_nothing_under_way(self, client_id: int) -> bool:
        return self.source.known and client_id in self._fresh and not self.carriage.has_under_way(client_id)

    def _wait(self, peer: Peer, barrier: Mount | Flush) -> None:
        """Answered by a flush upstream that leaves behind everything of this client."""
        self.feeds.wait(peer, self.carriage.barrier(peer), barrier)

    # ---- appends -----------------------------------------------------------------------------

    def _on_appends(self, now: int, peer: Peer, requests: list[Append]) -> None:
        """Appends of one connection, in order. Refused is what would end our own connection upstream, or is forged."""
        if not self._members.speaks(peer):
            # Java: messages of a superseded connection are dropped without a word
            self._refuse(peer, requests, messages.Refusal.NOT_MOUNTED)
            return
        assert peer.client_id is not None
        begin = 4 if peer.carries_others else 0
        expected = _HEAD.pack(peer.client_id, self.generation)[begin:]
        if not all_acceptable(requests, expected, begin, self._config.payload_size_max):
            requests = self._acceptable(peer, requests, expected, begin)
        if requests:
            self.carriage.put(now, peer, requests)

    def _acceptable(self, peer: Peer, requests: Sequence[Append], expected: bytes, begin: int) -> list[Append]:
        accepted = []
        for request in requests:
            locks = request.write_locks, request.read_locks, request.append_locks
            if request.req_id[begin:8] != expected:
                forged = not begin and req_client(request.req_id) != peer.client_id
                why = messages.Refusal.NOT_ALLOWED if forged else messages.Refusal.GENERATION
                self._refuse(peer, [request], why)
            elif len(request.data) > self._config.payload_size_max:
                text = f"a payload of more than {self._config.payload_size_max} bytes, the limit server.payloadSizeMax"
                if not self._refuse(peer, [request], messages.Refusal.TOO_LARGE, text):
                    self._clients.put(CloseConn(peer.conn, text))
            elif None not in locks:
                accepted.append(request)
        return accepted

    def _on_oversized(self, peer: Peer, append: OversizedAppend) -> None:
        text = f"an append with {append.count} locks, more than server.locksMax of this proxy"
        if append.named:
            self._clients.put(Reply(peer.conn, refusal(append.req_id, messages.Refusal.TOO_LARGE, text)))
        else:  # nobody would answer it: the client must not wait
            self._clients.put(CloseConn(peer.conn, f"partition {self.partition_id}: {text}"))

    def _refuse(self, peer: Peer, requests: Sequence[Append], why: messages.Refusal, text: str | None = None) -> bool:
        """Answer those that can be answered; whether all could. The others learn it from a flush, as from a server."""
        named = [request for request in requests if type(request) is messages.NamedAppendRequest]
        for request in named:
            self._clients.put(Reply(peer.conn, refusal(request.req_id, why, text)))
        return len(named) == len(requests)

    # ---- connections and work ----------------------------------------------------------------

    def writable(self, conn: int, writable: bool) -> None:
        """A connection stopped or started taking data."""
        self.feeds.feed.writable(conn, writable)
        self.reads.writable(conn, writable)

    def gone(self, peer: Peer) -> None:
        """A connection ended: only its appends are of use to anybody yet."""
        if peer.client_id is not None:
            self._members.gone(peer.client_id, peer.conn)
        self.feeds.gone(peer)
        self.reads.gone(peer)
        self.carriage.gone(peer.conn)

    def flush(self, now: int, upstream: Carrier) -> None:
        """Everything that is done once per step."""
        for _ in range(_ROUNDS):
            if self.source.known:
                self.reads.launch(now, self.mark)
            self.feeds.serve(now, busy=self.busy)
            if not self._notes:
                break
            for note in self._notes.take():
                self.reads.answered(now, note, self.mark)
        self.reads.overdue(now)
        for wanted in self._wanted.take():
            if isinstance(wanted, FetchWanted):
                upstream.read(now, self.partition_id, wanted.token, wanted.first, wanted.count)
            else:
                upstream.ask_mark(now, self.partition_id, wanted.number)
        self.carriage.send(now, upstream)
        due = now if self._notes else earliest(self.feeds.feed.deadline(now), self.reads.deadline(now))
        self._alarms.set(self._alarm, earliest(due, self.carriage.deadline(now)))
        assert not self.source.known or self.feeds.feed.mark == self.mark
