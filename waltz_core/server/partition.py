"""One served partition: store sessions, appends, mounts and feeds, data reads."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from struct import Struct
from typing import TypeAlias

from waltz_core.base.contract import Rng, Tickets, earliest
from waltz_core.base.edge import (
    CloseConn,
    Level,
    Report,
    ZkCreate,
    ZkDone,
    ZkError,
    ZkFailed,
    ZkGet,
    ZkRequest,
    ZkSet,
)
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId, req_client, req_generation
from waltz_core.base.outbox import Outbox
from waltz_core.base.record import record
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.locks.exact import UNEXPLAINED
from waltz_core.locks.hot import HotLocks
from waltz_core.locks.table import LockTable
from waltz_core.server.appender import Append, Appender, Committed, Dropped, Passed, Refused, Verdict
from waltz_core.server.context import Reply
from waltz_core.server.data_cache import DataCache
from waltz_core.server.feed import Feed, FeedEffect, ReadHeaders, SendFrames, SendReply
from waltz_core.server.feed_cache import FeedCache, encode_frames
from waltz_core.server.fetches import DataFetches
from waltz_core.server.journal import JournalEvent, Journals, JournalWrite
from waltz_core.server.journal_format import Mode
from waltz_core.server.marks import MarkReads
from waltz_core.server.members import Members
from waltz_core.server.peer import Peer
from waltz_core.server.ranges import RangeReads, before_start
from waltz_core.server.refusals import lock_refusal, refusal
from waltz_core.server.response_times import ResponseTimes
from waltz_core.server.states_write import StatesWrite
from waltz_core.server.turns import Shares
from waltz_core.store import recovery as rec
from waltz_core.store.calls import (
    LinkDown,
    LinkUnwanted,
    LinkUp,
    StorageAnswer,
    StorageEffect,
    StorageFailed,
    StorageNews,
)
from waltz_core.store.followers import SessionConfig
from waltz_core.store.session import SessionState, StoreSession
from waltz_core.store.session_notes import (
    HeadersRead,
    LogStartProblem,
    LogStartRaised,
    ReadFailed,
    RecordsRead,
    ReplicaJoined,
    ReplicaLags,
    ReplicaRefused,
    ReplicaSuspect,
    SessionEnded,
    SessionNote,
    SessionOpened,
    SourcePutAside,
    Stuck,
    Voted,
)
from waltz_core.wire import client_messages as messages
from waltz_core.wire.lock_count import OversizedAppend
from waltz_core.zookeeper.znodes import (
    EMPTY_METADATA,
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)

NOT_OPEN_MARK = -(2**63)
"""High-water mark reported before the first store session (Java: commitHighWaterMark)."""

_HEAD = Struct(">ii")  # the first two of the four ints of a request id: client id, generation
_LOCK_PROBES = 3  # Java: Partition uses 3 hash functions
_EXTENDED = 5  # codec since which everything can be answered by an error
_LOOK_MS = 2_000  # while recovery is stuck, so often the metadata is looked at for an operator's word
_STALL_MS = 5_000  # appends that wait so long without a commit or a refusal are trouble
_SHORT_LIFE_MS = 1_000  # a session that lived shorter counts as a failure for the back-off


@record
class PartitionConfig:
    """Limits of a partition; the keys of the original where it has one."""

    metadata_path: str
    lock_table_size: int = 30_000  # server.optimisticLockTableSize, slots
    exact_locks: int = 1_000_000  # server.exactLocks, takings of locks
    min_fetch_size: int = 100  # server.minFetchSize, transactions
    feed_cache_bytes: int = 16 << 20  # server.feedCacheSize, bytes; shared by the partitions
    batch_count_max: int = 1_000  # storage.maxBatchSize, appends
    batch_bytes_max: int = 1 << 20
    flight_bytes_max: int = 16 << 20
    payload_size_max: int = 16 << 20  # server.payloadSizeMax, bytes
    locks_max: int = 10_000  # server.locksMax, of one append
    retry_min_ms: int = 100  # storage.initialRetryInterval
    retry_max_ms: int = 20_000  # storage.maxRetryInterval
    checkpoint_interval: int = 250_000  # storage.checkpointInterval, transactions
    mount_count_max: int = 10_000  # transactions that a mount brings a client that goes on by itself
    feed_count_min: int = 10_000  # feed budget of peers with codec 5, where 0.13.2 asks again every 100
    session: SessionConfig = SessionConfig()
    archive: str = ""  # server.archive


@record
class RepairWanted:
    """A replica of the partition is damaged: its node should fetch good records from the others."""

    replica: str


PartitionEffect: TypeAlias = (
    StorageEffect | ZkRequest | FeedEffect | Reply | CloseConn | Report | RepairWanted | JournalWrite
)


class Phase(enum.Enum):
    """Where the partition is on its way to an open store session."""

    IDLE = "waits for its assignment"
    READING = "reads the metadata"
    CREATING = "creates the metadata"
    ANNOUNCING = "announces a store session"
    RECOVERING = "recovers"
    OPEN = "serves"
    WAITING = "waits before the next try"
    CLOSED = "closed"


@record
class _Mount:
    conn: int
    owner: str
    req_id: ReqId
    client_mark: int
    version: int
    feed_windows: bool


@record
class _Flush:
    conn: int
    req_id: ReqId


class PartitionServer:
    """A partition that this server owns.

    Methods are events; what is to be done is collected and handed over by `flush`, once per step.
    Without an open store session appends, mounts and flushes wait in the queue, in order.
    """

    def __init__(
        self,
        partition_id: int,
        config: PartitionConfig,
        *,
        tickets: Tickets,
        data_cache: DataCache,
        rng: Rng,
        journals: Journals | None = None,
        held: Shares | None = None,
        rules: SafetyRules = SAFE,
    ) -> None:
        """Begin without a session.

        Args:
            held: requests that wait for an answer, by connection, in all partitions of the server together.
        """
        self.partition_id = partition_id
        self.journal = (journals or Journals(Mode.OFF)).of(partition_id, tickets)
        self.phase = Phase.IDLE
        self.reason = ""  # of the present phase, for people
        self.since = 0
        self.generation = -1
        self.session: StoreSession | None = None
        self.counters = {"transaction": 0, "successful-append": 0, "rejected-append": 0}
        self.response_times = ResponseTimes()
        self.hot_locks = HotLocks()
        self._config = config
        self._tickets = tickets
        self._rng = rng
        self._rules = rules
        self._data_cache = data_cache
        self._locks = LockTable(config.lock_table_size, _LOCK_PROBES, -1)
        self._appender = Appender(
            self._locks,
            -1,
            batch_count_max=config.batch_count_max,
            batch_bytes_max=config.batch_bytes_max,
            flight_bytes_max=config.flight_bytes_max,
            exact_locks=config.exact_locks,
            explain_all=self.journal is not None,
            rules=rules,
        )
        self._feed_cache = FeedCache(config.feed_cache_bytes)
        self._feed = Feed(self._feed_cache)
        self._members = Members()
        self._replicas: tuple[str, ...] = ()
        self._doubtful = False
        self._draining = False  # a checkpoint is due: nothing is launched
        self._announced: tuple[int, int] | None = None  # generation and id of our last session
        self._open_generation: int | None = None  # of our last session that was open; None before the first
        self._foreign = False  # somebody else may have written since
        self._fence_seen = -1  # highest session that a replica says it answered
        self._attempts: set[tuple[int, int]] = set()  # announced, perhaps
        self._metadata: PartitionMetadata = EMPTY_METADATA
        self._zk: dict[int, str] = {}  # ticket → what for
        self._warned_of = -1  # connection whose appends were said to be ahead of the log
        self._forgers: set[int] = set()  # connections whose use of other clients' request ids was reported
        self._states_write = StatesWrite(config.retry_min_ms, config.retry_max_ms, rng)
        self._retry_at: int | None = None
        self._look_at: int | None = None  # while recovery is stuck
        self._retry_ms = 0
        self._opened_at = 0
        self._waits_since: int | None = None  # when there was last an append that waits, and progress
        self._decided = 0  # appends by then
        self._held = held if held is not None else Shares()
        self._barriers: dict[int, list[_Mount | _Flush]] = {}  # token → who waits for it
        self._held_feeds: list[tuple[Peer, messages.FeedRequest | messages.FeedWindowRequest]] = []
        self._fetches = DataFetches(partition_id, data_cache, tickets, self._held, rules)
        self._ranges = RangeReads(partition_id, data_cache, tickets, self._held)
        self._ranges.where_before = config.archive
        self._marks = MarkReads(self._held)
        self._starts: list[tuple[int, ReqId, int]] = []  # who waits for which log start
        self._header_reads: dict[int, int] = {}  # token → first
        self._verdicts: list[Verdict] = []
        self._out: list[PartitionEffect] = []
        self._notes: Outbox[SessionNote] = Outbox()
        self._storage_out: Outbox[StorageEffect] = Outbox()

    # ---- what the node tells us --------------------------------------------------------------

    @property
    def _known(self) -> bool:
        """Whether a store session has been open in this object."""
        return self._open_generation is not None

    @property
    def high_water_mark(self) -> int:
        """Highest committed id, `NOT_OPEN_MARK` before the first store session."""
        return self._appender.commit_mark if self._known else NOT_OPEN_MARK

    def trouble(self, now: int) -> str:
        """Why appends cannot be committed now, or are not; empty if all is well."""
        if self.phase is not Phase.OPEN:
            return self.stuck or self.reason or self.phase.value
        if self._doubtful:
            return "another server may own it by now: ZooKeeper does not answer"
        if self.refusing:
            return self.refusing
        waited = now - self._waits_since if self._waits_since is not None else 0
        if waited < _STALL_MS:
            return ""
        waiting = self._appender.queued + self._appender.in_flight
        return f"{waiting} appends wait, and none was decided for {waited / 1000:.0f} s"

    @property
    def refusing(self) -> str:
        """Why appends are refused although the partition may be open, empty if they are not."""
        return self.journal.refusal if self.journal is not None else ""

    def crowded(self, count_max: int, bytes_max: int) -> bool:
        """Whether more appends, or bytes of them, wait for their lock check than should."""
        return self._appender.queued > count_max or self._appender.queued_bytes > bytes_max

    def greedy(self, conn: int, count_max: int, bytes_max: int) -> bool:
        """Whether a connection has more of these than its fair part."""
        appender = self._appender
        return appender.held.greedy(conn, count_max) or appender.bytes_held.greedy(conn, bytes_max)

    @property
    def pending(self) -> int:
        """Appends and barriers without a verdict."""
        return self._appender.pending

    @property
    def reads(self) -> int:
        """Requests that wait for a read, or for its answer."""
        return self._fetches.waiting + self._ranges.waiting

    @property
    def queued(self) -> int:
        """Appends and barriers waiting for the lock check."""
        return self._appender.queued

    @property
    def feeds(self) -> tuple[int, int]:
        """Numbers of live and of other feeds."""
        return self._feed.lag()

    def behind(self) -> list[tuple[int, int]]:
        """Connections whose feed has yet to give them transactions, and how many."""
        return self._feed.behind()

    @property
    def feeds_added(self) -> tuple[int, int]:
        """How many feeds came to be live, and to lag, so far."""
        return self._feed.live_added, self._feed.lagging_added

    @property
    def feed_cache_misses(self) -> int:
        """Reads of the feed that had to ask a replica."""
        return self._feed_cache.misses

    @property
    def stuck(self) -> str:
        """Why recovery waits, empty if it does not."""
        return self.session.stuck if self.session is not None else ""

    def set_generation(self, now: int, generation: int) -> None:
        """The assignment names this server with `generation`; it only grows."""
        if generation <= self.generation:
            return
        self.generation = generation
        if self.session is not None:
            self.session.close(now, f"generation {generation} replaces {self.session.generation}")
        elif self.phase in (Phase.IDLE, Phase.WAITING):
            self._begin(now)

    def set_replicas(self, now: int, replicas: Sequence[str]) -> None:
        """Storage nodes that are to hold this partition."""
        wanted = tuple(sorted(replicas))
        if wanted == self._replicas:
            return
        for replica in self._replicas:
            if replica not in wanted:
                self._out.append(LinkUnwanted(replica))
        self._replicas = wanted
        if self.session is not None:
            self.session.close(now, "the assignment of replicas changed")
        elif self.phase in (Phase.IDLE, Phase.WAITING):
            self._begin(now)

    def set_doubtful(self, doubtful: bool) -> None:
        """Whether somebody else may own the partition by now: then nothing is launched."""
        self._doubtful = doubtful

    def set_feed_cache(self, bytes_max: int) -> None:
        """This partition's share of the feed cache."""
        self._feed_cache.limit(bytes_max)

    def close(self, now: int) -> None:
        """The partition is not ours any more."""
        if self.session is not None:
            self.session.close(now, "the partition is closed")
        for replica in self._replicas:
            self._out.append(LinkUnwanted(replica))
        self._appender.drop_queue(self._verdicts)
        self._settle(now)
        self._let_go()
        self._retry_at = self._look_at = None  # a pause that is under way must not end with a read
        self._states_write.forget()
        self._answer(self._marks.close("the partition is closed"))
        self._enter(now, Phase.CLOSED, "")

    def _let_go(self) -> None:
        """Whoever waits here is let go; the count of what waits is the whole server's.

        Mounts are answered: a client of 0.13.2 sends the next one only after an answer, a cut, or a change of the
        server, and if the partition comes back here it may see none of them. All else a client asks anew once it
        has mounted.
        """
        self._fetches.close()
        self._ranges.close()
        for barrier in [one for waiting in self._barriers.values() for one in waiting]:
            self._held.free(barrier.conn, 1)
            if isinstance(barrier, _Mount) and self._rules.waiting_mounts_answered:
                response = messages.MountResponse(barrier.req_id, messages.PartitionState.NOT_READY)
                self._out.append(Reply(barrier.conn, response))
        for peer, _ in self._held_feeds:
            self._held.free(peer.conn, 1)
        self._barriers = {token: [] for token in self._barriers}
        self._held_feeds = []

    def link_up(self, now: int, event: LinkUp) -> None:
        """A connection to a storage node stands: what was waited for may be over, and with it the back-off."""
        if self.session is not None:
            self.session.link_up(now, event)
        elif self.phase is Phase.WAITING:
            self._retry_ms = 0
            self._retry_at = now

    def link_down(self, now: int, event: LinkDown) -> None:
        """A connection to a storage node ended."""
        if self.session is not None:
            self.session.link_down(now, event)

    def storage_answered(self, now: int, event: StorageAnswer | StorageFailed) -> None:
        """A storage request was answered, or never will be; answers to an ended session are void."""
        if self.session is None:
            return
        if isinstance(event, StorageAnswer):
            self.session.answered(now, event)
        else:
            self.session.failed(now, event)

    def storage_news(self, now: int, event: StorageNews) -> None:
        """A storage node says something about its replica."""
        if self.session is not None:
            self.session.news(event)

    def journal_answered(self, now: int, event: JournalEvent) -> None:
        """A write to the journal ended."""
        assert self.journal is not None
        self.journal.answered(now, event, self._out)  # type: ignore[arg-type]  # a list of more kinds of effects

    def writable(self, conn: int, writable: bool) -> None:
        """A connection stopped or started taking data."""
        self._feed.writable(conn, writable)
        self._ranges.writable(conn, writable)
        self._fetches.writable(conn, writable)

    def gone(self, peer: Peer) -> None:
        """A connection ended: only its appends are of use to anybody yet."""
        if peer.client_id is not None:
            self._members.gone(peer.client_id, peer.conn)
        self._forgers.discard(peer.conn)
        self._feed.gone(peer.conn)
        self._ranges.gone(peer.conn)
        self._fetches.gone(peer.conn)
        for waiting in self._barriers.values():
            waiting[:] = [barrier for barrier in waiting if barrier.conn != peer.conn]
        self._marks.gone(peer.conn)
        self._held_feeds = [held for held in self._held_feeds if held[0].conn != peer.conn]

    # ---- messages of clients -----------------------------------------------------------------

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
                self._on_feed(peer, message)
            case messages.FlushRequest(req_id):
                self._barrier(peer, _Flush(peer.conn, req_id))
            case messages.HighWaterMarkRequest(req_id):
                self._on_mark(now, peer, req_id)
            case messages.TransactionDataRequest():
                self._on_data(peer, message)
            case OversizedAppend():
                self._on_oversized(peer, message)
            case _:
                # Java: a response sent to a server is an unchecked exception in the handler.
                self._out.append(
                    CloseConn(peer.conn, f"{type(message).__name__} is not a message for a server's partition")
                )

    def _on_mark(self, now: int, peer: Peer, req_id: ReqId) -> None:
        """Somebody asks for the committed mark; before the first session it is a number that is no mark, at once."""
        if self._known and self._rules.marks_confirmed:
            self._marks.ask(now, peer.conn, peer.owner, req_id, peer.version)
        else:
            self._out.append(Reply(peer.conn, messages.HighWaterMarkResponse(req_id, self.high_water_mark)))

    def _on_mount(self, peer: Peer, message: messages.MountRequest) -> None:
        assert peer.client_id is not None
        assert peer.net_sequence is not None
        if self._members.mount(peer.client_id, peer.conn, req_generation(message.req_id), peer.net_sequence):
            mark, version = message.client_mark, peer.version
            self._barrier(peer, _Mount(peer.conn, peer.owner, message.req_id, mark, version, peer.feed_windows))

    def _on_appends(self, now: int, peer: Peer, requests: list[Append]) -> None:
        self.counters["transaction"] += len(requests)
        if peer.client_id is None or not self._members.valid(peer.client_id, peer.net_sequence):
            # Java: messages of a superseded connection are dropped without a word
            self._refuse(now, peer.conn, requests, messages.Refusal.NOT_MOUNTED)
            return
        if self.refusing:
            self._refuse(now, peer.conn, requests, messages.Refusal.NOT_READY, self.refusing)
            requests = [request for request in requests if type(request) is messages.AppendRequest]  # these wait
            if not requests:
                return
        payload_max = self._config.payload_size_max
        begin = 4 if peer.carries_others or not self._rules.own_request_ids else 0
        expected = _HEAD.pack(peer.client_id, self.generation)[begin:]
        accepted = [
            request
            for request in requests
            if request.req_id[begin:8] == expected
            and request.write_locks is not None
            and request.read_locks is not None
            and request.append_locks is not None
        ]
        if len(accepted) != len(requests):
            others = [request for request in requests if request.req_id[begin:8] != expected]
            if not begin:
                others = self._refuse_forged(peer, others)
            self._refuse(now, peer.conn, others, messages.Refusal.GENERATION)
        if max([len(request.data) for request in requests]) > payload_max:
            large = [request for request in accepted if len(request.data) > payload_max]
            accepted = [request for request in accepted if len(request.data) <= payload_max]
            text = f"a payload of more than {payload_max} bytes, the limit of configuration key server.payloadSizeMax"
            self._refuse(now, peer.conn, large, messages.Refusal.TOO_LARGE, text)
            if any(len(one.data) > payload_max for one in requests if type(one) is messages.AppendRequest):
                self._out.append(CloseConn(peer.conn, text))
        self._appender.enqueue(peer.conn, accepted, now, peer.owner)

    def _on_oversized(self, peer: Peer, append: OversizedAppend) -> None:
        """An append has more locks than may be checked while everybody else waits."""
        client, limit = req_client(append.req_id), self._config.locks_max
        text = f"an append of client {client} with {append.count} locks, more than the {limit} of server.locksMax"
        if not append.named:  # nobody would answer it: the client must not wait
            self._out.append(CloseConn(peer.conn, f"partition {self.partition_id}: {text}"))
            return
        self._out.append(Reply(peer.conn, refusal(append.req_id, messages.Refusal.TOO_LARGE, text)))
        if peer.conn != self._warned_of:
            self._warned_of = peer.conn
            self._out.append(Report(Level.WARNING, f"partition {self.partition_id}: {peer.who}: refused {text}"))

    def _refuse_forged(self, peer: Peer, requests: Sequence[Append]) -> list[Append]:
        """Refuse those under request ids of other clients; returns the rest.

        In the log they would look like commits of the other client's. They are not in the decision journal
        either: it would say that the other client's append was refused.
        """
        rest: list[Append] = []
        for request in requests:
            client_id = req_client(request.req_id)
            if client_id == peer.client_id:
                rest.append(request)
                continue
            text = f"the request id is of client {client_id}, this connection mounted as client {peer.client_id}"
            if peer.conn not in self._forgers:
                self._forgers.add(peer.conn)
                what = f"refused appends of {peer.who}, mounted as client {peer.client_id}"
                report = f"partition {self.partition_id}: {what}, under request ids of client {client_id}"
                self._out.append(Report(Level.WARNING, report))
            if type(request) is messages.NamedAppendRequest:
                answer = refusal(request.req_id, messages.Refusal.NOT_ALLOWED, text)
                self._out.append(Reply(peer.conn, answer))
            elif peer.version >= _EXTENDED:
                code = messages.ErrorCode.NOT_ALLOWED
                self._out.append(Reply(peer.conn, messages.ErrorResponse(request.req_id, code, text)))
        return rest

    def _refuse(self, now: int, conn: int, requests: Sequence[Append], why: messages.Refusal, text: str = "") -> None:
        """Tell those that want to know it why they are not in the log and never will be."""
        if self.journal is not None and why is not messages.Refusal.NOT_READY:
            self.journal.refused(now, self._session_id, requests, why)
        self._out.extend(
            Reply(conn, refusal(request.req_id, why, text or None))
            for request in requests
            if type(request) is messages.NamedAppendRequest
        )

    def _on_feed(self, peer: Peer, message: messages.FeedRequest | messages.FeedWindowRequest) -> None:
        if peer.client_id is None or not self._members.valid(peer.client_id, peer.net_sequence):
            return
        if self.phase is not Phase.OPEN:
            self._held_feeds.append((peer, message))
            self._held.add(peer.conn, peer.owner, 1)
            return
        mark = self._appender.commit_mark
        gap = mark - message.client_mark
        if self._is_before_start(peer.conn, message.req_id, message.client_mark, peer.version):
            return
        if gap < 0:
            self._out.append(
                CloseConn(
                    peer.conn,
                    f"partition {self.partition_id}: feed asked behind {message.client_mark}, the log ends at {mark}",
                )
            )
            return
        budget = max(gap, self._config.min_fetch_size)
        if type(message) is messages.FeedWindowRequest:
            budget = message.count
            if budget < 1:
                problem = f"partition {self.partition_id}: feed asked for {budget} transactions, expected at least 1"
                self._out.append(CloseConn(peer.conn, problem))
                return
        elif peer.version >= _EXTENDED:
            budget = max(gap, self._config.feed_count_min)
        if peer.version >= _EXTENDED:
            self._feed.replace(peer.conn)  # 0.13.2 asks for one at a time, and counts on each
        closing = messages.FeedSuspended(message.req_id)
        self._subscribe(peer.conn, peer.owner, message.req_id, message.client_mark, budget, closing)

    def _subscribe(
        self,
        conn: int,
        owner: str,
        req_id: ReqId,
        client_mark: int,
        budget: int,
        closing: messages.MountResponse | messages.FeedSuspended,
        *,
        cut: bool = False,
    ) -> None:
        if client_mark < -1:
            # Java serves ids from client_mark + 1 on, which exist only from 0.
            client_mark = -1
        self._feed.subscribe(conn, req_id, client_mark, budget, closing, owner, cut=cut)

    def _barrier(self, peer: Peer, barrier: _Mount | _Flush) -> None:
        token = self._appender.barrier(self._tickets.take())
        self._barriers.setdefault(token, []).append(barrier)
        self._held.add(peer.conn, peer.owner, 1)

    def _on_passed(self, token: int) -> None:
        for barrier in self._barriers.pop(token):
            self._held.free(barrier.conn, 1)
            self._after(barrier)

    def _after(self, barrier: _Mount | _Flush) -> None:
        """Everything that was queued before a mount or a flush is decided."""
        mark = self._appender.commit_mark
        if isinstance(barrier, _Flush):
            self._out.append(Reply(barrier.conn, messages.FlushResponse(barrier.req_id, mark)))
            return
        gap = mark - barrier.client_mark
        if self._is_before_start(barrier.conn, barrier.req_id, barrier.client_mark, barrier.version):
            return
        state = messages.PartitionState.CLIENT_AHEAD if gap < 0 else messages.PartitionState.READY
        response = messages.MountResponse(barrier.req_id, state)
        if barrier.feed_windows:
            self._feed.replace(barrier.conn)
        if gap > 0:
            cut = barrier.feed_windows and gap > self._config.mount_count_max
            budget = self._config.mount_count_max if cut else gap
            self._subscribe(barrier.conn, barrier.owner, barrier.req_id, barrier.client_mark, budget, response, cut=cut)
        else:
            self._out.append(Reply(barrier.conn, response))

    # ---- data --------------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        """The smallest id that can be read."""
        return self._ranges.log_start

    def _is_before_start(self, conn: int, req_id: ReqId, client_mark: int, version: int) -> bool:
        """Whether a feed behind `client_mark` would begin below the log start; its client is told."""
        wanted, start = max(client_mark, -1) + 1, self.log_start
        if wanted >= start:
            return False
        answer = before_start(req_id, wanted, start, self._config.archive)
        if version >= _EXTENDED:
            self._out.append(Reply(conn, answer))
        else:
            self._out.append(CloseConn(conn, f"partition {self.partition_id}: {answer.message}"))
        return True

    def on_set_log_start(self, conn: int, req_id: ReqId, start: int) -> None:
        """Somebody gives up what is below an id; `LogStartResponse` once a quorum has done so durably."""
        session, mark = self.session, self._appender.commit_mark
        code, text = messages.ErrorCode.NOT_READY, "the partition is not open"
        if not 0 <= start <= mark + 1:
            code, text = messages.ErrorCode.INVALID, f"expected a log start of 0 to {mark + 1}, found {start}"
        elif start <= self.log_start:
            self._out.append(Reply(conn, messages.LogStartResponse(req_id, self.log_start, mark)))
            return
        elif self.phase is Phase.OPEN and session is not None:
            problem = session.log_start_problem(start)
            if problem is None:
                self._starts.append((conn, req_id, start))
                session.raise_log_start(start)
                return
            text = problem[1]
            if start > session.low_water_mark + 1 and problem[0] is LogStartProblem.NOT_READY:
                self._draining = True  # a new session marks everything there is: then it can be
                text += "; a new one begins now"
            if problem[0] is LogStartProblem.NOT_POSSIBLE:
                code = messages.ErrorCode.NOT_IMPLEMENTED
        self._out.append(Reply(conn, messages.ErrorResponse(req_id, code, text)))

    def _on_log_start(self, start: int) -> None:
        """Nothing below is given out any more."""
        if start <= self.log_start:
            return
        self._ranges.log_start = start
        text = f"partition {self.partition_id}: the log begins at {start}: what is before it was given up"
        self._out.append(Report(Level.INFO, text))
        for conn in self._feed.below(start):
            why = f"partition {self.partition_id}: its feed is below the log start, {start}"
            self._out.append(CloseConn(conn, why))

    def _answer_starts(self, why_not: str = "") -> None:
        """Tell those who asked for a log start, once it is raised or cannot be any more."""
        for conn, req_id, start in self._starts:
            if start <= self.log_start:
                found = messages.LogStartResponse(req_id, self.log_start, self._appender.commit_mark)
                self._out.append(Reply(conn, found))
            else:
                self._out.append(Reply(conn, messages.ErrorResponse(req_id, messages.ErrorCode.NOT_READY, why_not)))
        self._starts = []

    def on_range(self, peer: Peer, request: messages.RecordRangeRequest) -> None:
        """A client asks for a range of records; no mount is needed."""
        answer = self._ranges.ask(peer.conn, peer.owner, request, self._appender.commit_mark)
        if answer is not None:
            self._out.append(Reply(*answer))

    def _on_data(self, peer: Peer, message: messages.TransactionDataRequest) -> None:
        answer = self._fetches.ask(peer.conn, peer.owner, message.req_id, message.transaction_id)
        if answer is not None:
            self._out.append(Reply(peer.conn, answer))

    def _fetch(self, now: int) -> None:
        """Start reads of what was asked for and is not cached."""
        session = self.session
        if self.phase is not Phase.OPEN or session is None:
            return

        def read(token: int, first: int, count: int) -> None:
            session.read_records(now, token, first, count)

        def read_range(token: int, first: int, count: int, headers_only: bool) -> None:
            if headers_only:
                session.read_headers(now, token, first, count)
            else:
                session.read_records(now, token, first, count)

        self._answer(self._fetches.launch(self._appender.commit_mark, read))
        self._answer(self._ranges.launch(self._appender.commit_mark, read_range))

    def _read_marks(self) -> None:
        """Answer what is confirmed, and let the storage nodes confirm, for all who ask now, that we still serve."""
        session = self.session
        # Launching may have ended it, for a checkpoint.
        if session is not None and session.state is SessionState.OPEN:
            self._answer(self._marks.confirmed(session.confirmed, self._appender.commit_mark))
            if self._marks.unasked:
                self._marks.begin(session.confirm())

    def _answer(self, answers: Sequence[tuple[int, messages.ClientMessage]]) -> None:
        self._out.extend(Reply(conn, message) for conn, message in answers)

    def _on_read_failed(self, now: int, note: ReadFailed) -> None:
        if note.token in self._header_reads:
            self._feed.read_failed(now, self._header_reads.pop(note.token))
            return
        final = self.session is not None and self.session.state is SessionState.OPEN
        if not self._ranges.owns(note.token):
            self._answer(self._fetches.failed(note, final=final))
        elif (answer := self._ranges.failed(note, final=final)) is not None:
            self._out.append(Reply(*answer))

    # ---- store sessions ----------------------------------------------------------------------

    def _enter(self, now: int, phase: Phase, reason: str) -> None:
        self.phase = phase
        self.reason = reason
        self.since = now

    def _begin(self, now: int) -> None:
        """Read the metadata, the first step to a store session."""
        self._retry_at = None
        if self.generation < 0 or not self._replicas:
            self._enter(now, Phase.IDLE, "no storage node is assigned" if self.generation >= 0 else "")
            return
        self._enter(now, Phase.READING, "")
        self._ask_zk("read", ZkGet(self._tickets.take(), self._config.metadata_path))

    def _ask_zk(self, purpose: str, request: ZkRequest) -> None:
        self._zk[request.ticket] = purpose
        self._out.append(request)

    def _retry(self, now: int, reason: str) -> None:
        """Try again after a back-off."""
        self._retry_ms = min(max(self._config.retry_min_ms, self._retry_ms * 2), self._config.retry_max_ms)
        self._retry_at = now + self._retry_ms // 2 + self._rng.randrange(self._retry_ms // 2 + 1)
        if reason != self.reason:
            self._out.append(Report(Level.WARNING, f"partition {self.partition_id}: {reason}"))
        self._enter(now, Phase.WAITING, reason)

    def zk_answered(self, now: int, event: ZkDone | ZkFailed) -> None:
        """ZooKeeper has answered."""
        if isinstance(event, ZkDone):
            self.zk_done(now, event)
        else:
            self.zk_failed(now, event)

    def zk_done(self, now: int, event: ZkDone) -> bool:
        """A ZooKeeper request succeeded; False if it is not ours."""
        purpose = self._zk.pop(event.ticket, None)
        if purpose is None:
            return False
        if self.phase is Phase.CLOSED:
            return True
        if purpose == "create":
            self._begin(now)
        elif purpose == "look":
            self._on_looked(now, event.data or b"")
        elif purpose in ("read", "reread"):
            assert event.stat is not None
            try:
                metadata = decode_partition_metadata(event.data or b"")
            except ProtocolError as error:
                self._retry(now, f"{self._config.metadata_path} is not a partition's metadata: {error}")
                return True
            if purpose == "reread":
                if self.session is not None:
                    self.session.cas_lost(metadata, event.stat.version)
            elif self.phase is Phase.READING:
                self._announce(now, metadata, event.stat.version)
        elif purpose == "announce":
            assert event.stat is not None
            self._open_session(now, event.stat.version)
        elif purpose == "states" and self.session is not None:
            assert event.stat is not None
            self._on_states_written(self.session, event.stat.version)
        return True

    def _on_looked(self, now: int, data: bytes) -> None:
        """While recovery waits, an operator may have written what it waits for; a session of his own says so."""
        try:
            metadata = decode_partition_metadata(data)
        except ProtocolError:
            return
        if self.session is None:
            return
        # Until it has decided, a session writes no states: others than it began with are somebody else's.
        repaired = not self.session.decided and metadata.replica_states != self._metadata.replica_states
        if repaired or metadata.session_id != self.session.session_id:
            self.session.close(now, f"the metadata in ZooKeeper is of session {metadata.session_id} now")

    def zk_failed(self, now: int, event: ZkFailed) -> bool:
        """A ZooKeeper request failed; False if it is not ours."""
        purpose = self._zk.pop(event.ticket, None)
        if purpose is None:
            return False
        if self.phase is Phase.CLOSED:
            return True
        error = event.error
        if purpose == "read" and error is ZkError.NO_NODE:
            self._enter(now, Phase.CREATING, "")
            self._ask_zk(
                "create",
                ZkCreate(self._tickets.take(), self._config.metadata_path, encode_partition_metadata(EMPTY_METADATA)),
            )
        elif purpose == "create" and error is ZkError.NODE_EXISTS:
            self._begin(now)  # server-D30: somebody else was first
        elif purpose == "look":
            pass  # again soon
        elif purpose in ("states", "reread"):
            # Lost, or perhaps written: look at what stands there now.
            if error is ZkError.BAD_VERSION:
                self._ask_zk("reread", ZkGet(self._tickets.take(), self._config.metadata_path))
            else:
                self._on_states_failed(now, error)
        elif purpose == "announce" and error is ZkError.BAD_VERSION:
            self._begin(now)
        else:
            self._retry(now, f"ZooKeeper, {self._config.metadata_path}: {error.value}")
        return True

    def _on_states_written(self, session: StoreSession, version: int) -> None:
        if self._states_write.succeeded():
            self.reason = ""
            text = f"partition {self.partition_id}: the states of its replicas are in ZooKeeper again"
            self._out.append(Report(Level.INFO, text))
        session.cas_done(version)

    def _on_states_failed(self, now: int, error: ZkError) -> None:
        """Not written, or nobody knows: look at what stands there, but not all the time."""
        trouble = self._states_write.failed(now, error)
        if trouble:
            path = self._config.metadata_path
            self.reason = f"ZooKeeper, {path}: the states of its replicas cannot be written: {trouble}"
            self._out.append(Report(Level.WARNING, f"partition {self.partition_id}: {self.reason}; tried again"))

    def _announce(self, now: int, metadata: PartitionMetadata, version: int) -> None:
        """Write generation and the next session id: from here on older sessions are out."""
        if metadata.generation > self.generation:
            self._retry(
                now,
                f"generation {metadata.generation} stands in ZooKeeper, ours is {self.generation}: "
                "another server owns the partition",
            )
            return
        if metadata.session_id < self._fence_seen and self._rules.rewound_metadata_stops:
            self._retry(
                now,
                f"ZooKeeper says that the last store session was {metadata.session_id}, but a replica answered "
                f"session {self._fence_seen}: was ZooKeeper restored from an older state? The partition waits "
                "until its metadata is repaired",
            )
            return
        # Ours if nobody wrote since our last session, whatever became of announcements in between.
        stored = metadata.generation, metadata.session_id
        # Under another generation somebody else may have had the partition; metadata that was set back would hide it.
        again = self._open_generation not in (None, self.generation)
        self._foreign = again or (stored != self._announced and stored not in self._attempts)
        session_id = metadata.session_id + 1
        self._metadata = PartitionMetadata(self.generation, session_id, metadata.replica_states)
        self._attempts.add((self.generation, session_id))
        self._enter(now, Phase.ANNOUNCING, "")
        self._ask_zk(
            "announce",
            ZkSet(self._tickets.take(), self._config.metadata_path, encode_partition_metadata(self._metadata), version),
        )

    def _open_session(self, now: int, version: int) -> None:
        metadata = self._metadata
        self._announced = metadata.generation, metadata.session_id
        self._attempts.clear()
        if metadata.generation != self.generation or not self._replicas:
            self._begin(now)
            return
        self._enter(now, Phase.RECOVERING, "")
        self.session = StoreSession(
            self.partition_id,
            metadata.session_id,
            metadata.generation,
            metadata,
            version,
            self._replicas,
            tickets=self._tickets,
            out=self._storage_out,
            notes=self._notes,
            config=self._config.session,
            rules=self._rules,
        )
        self.session.start()

    # ---- what a session tells us -------------------------------------------------------------

    def _on_note(self, now: int, note: SessionNote) -> None:
        match note:
            case Voted(replica, mark):
                self._appender.voted(replica, mark)
            case HeadersRead() | RecordsRead() | ReadFailed():
                self._on_read(now, note)
            case ReplicaJoined(replica, acked):
                self._appender.joined(replica, acked)
            case SessionOpened():
                self._on_opened(now, note)
            case SessionEnded(reason, recovered, fence):
                if fence is not None:
                    self._fence_seen = max(self._fence_seen, fence)
                self._on_ended(now, reason, recovered)
            case ReplicaRefused() | ReplicaLags() | SourcePutAside():
                self._out.append(self._report_replica(note))
            case ReplicaSuspect(replica):
                self._out.append(RepairWanted(replica))
            case Stuck(reason):
                self._on_stuck(now, reason)
            case LogStartRaised(start):
                self._on_log_start(start)
                self._answer_starts()
            case rec.CasMetadata(metadata, expected_version):
                self._ask_zk(
                    "states",
                    ZkSet(
                        self._tickets.take(),
                        self._config.metadata_path,
                        encode_partition_metadata(metadata),
                        expected_version,
                    ),
                )

    def _report_replica(self, note: ReplicaRefused | ReplicaLags | SourcePutAside) -> Report:
        where = f"partition {self.partition_id}: replica"
        match note:
            case ReplicaRefused(replica, reason):
                return Report(Level.ERROR, f"{where} {replica} stays out: {reason}")
            case ReplicaLags(replica, reason):
                mend = "repair one of them; until then the replica stays out, and they are asked again"
                return Report(Level.ERROR, f"{where} {replica} cannot be brought level: {reason}; {mend}")
            case SourcePutAside(source, transaction_id, reason):
                text = f"cannot give out transaction {transaction_id}, another replica is asked: {reason}"
                return Report(Level.WARNING, f"{where} {source} {text}")

    def _on_read(self, now: int, note: HeadersRead | RecordsRead | ReadFailed) -> None:
        match note:
            case HeadersRead(token, headers) if token in self._header_reads:
                first = self._header_reads.pop(token)
                self._feed.headers(first, encode_frames(first, headers))
            case HeadersRead() | RecordsRead() if self._ranges.owns(note.token):
                found = self._ranges.done(note, self._appender.commit_mark)
                if found is not None:
                    self._out.append(Reply(*found))
            case RecordsRead():
                self._answer(self._fetches.records(note))
            case ReadFailed():
                self._on_read_failed(now, note)

    def _on_stuck(self, now: int, reason: str) -> None:
        self.reason = reason
        self._look_at = now + _LOOK_MS if reason else None
        level = Level.WARNING if reason else Level.INFO
        text = f"recovery waits: {reason}" if reason else "recovery goes on"
        self._out.append(Report(level, f"partition {self.partition_id}: {text}"))

    def _on_opened(self, now: int, note: SessionOpened) -> None:
        assert self.session is not None
        mark = note.mark
        if self._known and mark < self._appender.commit_mark:
            self._opened_at = now  # a short life, so that the next attempt waits
            self.session.close(
                now,
                f"the replicas resolved the log at {mark}, but transactions up to {self._appender.commit_mark} "
                "were committed: replicas lost data; restore them, the partition is not served meanwhile",
            )
            return
        if not self._known:
            self._appender.restart(mark, self.generation, self._verdicts)
            self._settle(now)
            self._feed.restart(mark)
        elif not self._foreign:
            self._appender.resolved(mark, self._verdicts)
            self._settle(now)
        else:
            self._on_gap(now, mark)
        self._open_generation = self.generation
        if self.journal is not None:
            self.journal.session_opened(now, self.session.session_id, self.generation, mark)
        self._appender.opened(note.quorum, note.replicas)
        self._opened_at = now
        self._draining = False
        self._enter(now, Phase.OPEN, "")
        self._on_log_start(self.session.log_start)
        held, self._held_feeds = self._held_feeds, []
        for peer, request in held:
            self._held.free(peer.conn, 1)
            self._on_feed(peer, request)
        self._out.append(
            Report(
                Level.INFO,
                f"partition {self.partition_id}: store session {self.session.session_id} open at {mark}, "
                f"generation {self.generation}, replicas {', '.join(note.replicas)}",
            )
        )

    def _on_gap(self, now: int, mark: int) -> None:
        """Somebody else owned the partition since our last session, and may have written up to `mark`."""
        if self._rules.leftovers_by_req_id:
            self._appender.restart(mark, self.generation, self._verdicts)
            self._settle(now)
            self._feed_cache.clear()
            self._data_cache.forget(self.partition_id)
        else:
            # Java: what was left over counts as committed by its position, under ids of others.
            self._appender.resolved(min(mark, self._appender.next_id - 1), self._verdicts)
            self._settle(now)
            self._appender.skip_to(mark)
            if self._rules.locks_reset_on_gap:
                self._locks.reset(mark)
        self._feed.restart(mark)

    def _on_ended(self, now: int, reason: str, recovered: bool) -> None:
        self.session = None
        self._look_at = None
        self._states_write.forget()
        self._zk = {ticket: purpose for ticket, purpose in self._zk.items() if purpose not in ("states", "reread")}
        self.response_times.forget()
        self._marks.session_ended()
        self._answer_starts(f"the store session ended: {reason}")
        if self.journal is not None:
            self.journal.session_ended()
        if recovered:
            self._appender.closed()
        if self.phase is Phase.CLOSED:
            return
        level = Level.INFO if self._draining else Level.WARNING
        self._out.append(Report(level, f"partition {self.partition_id}: store session ended: {reason}"))
        if recovered and (self._draining or now - self._opened_at >= _SHORT_LIFE_MS):
            self._retry_ms = 0
            self._begin(now)
        else:
            self.reason = reason
            self._retry(now, reason)

    # ---- once per step -----------------------------------------------------------------------

    def flush(self, now: int, out: list[PartitionEffect]) -> None:
        """Everything that is done once per batch of events; hands over the effects."""
        if self._retry_at is not None and now >= self._retry_at:
            self._begin(now)
        if self._states_write.due(now):
            self._ask_zk("reread", ZkGet(self._tickets.take(), self._config.metadata_path))
        if self._look_at is not None and now >= self._look_at:
            self._look_at = now + _LOOK_MS
            if self.session is not None and "look" not in self._zk.values():
                self._ask_zk("look", ZkGet(self._tickets.take(), self._config.metadata_path))
        self._run_session(now)
        if self.phase is Phase.OPEN:
            self._launch(now)
            self._fetch(now)
            self._read_marks()
        self._answer(self._marks.overdue(now, self.reason or "no quorum of storage nodes confirms it"))
        self._serve_feed(now)
        if self.session is not None:
            self._run_session(now)
        self._note_progress(now)
        self._check()
        if self.journal is not None:
            self.journal.flush(now, self._out)  # type: ignore[arg-type]  # a list of more kinds of effects
        out += self._out
        self._out.clear()

    def _note_progress(self, now: int) -> None:
        decided = self._appender.commit_mark + self.counters["rejected-append"]
        if not self._appender.queued and not self._appender.in_flight:
            self._waits_since = None
        elif self._waits_since is None or decided != self._decided:
            self._waits_since = now
        self._decided = decided

    def _run_session(self, now: int) -> None:
        session = self.session
        while session is not None:
            due = session.deadline()
            if due is not None and now >= due:
                session.due(now)
            session.flush(now)
            self._storage_out.drain(self._out)  # type: ignore[arg-type]  # a list of more kinds of effects
            if not self._notes:
                return
            for note in self._notes.take():
                self._on_note(now, note)
            self._appender.advance(self._verdicts)
            self._settle(now)
            session = self.session

    def _launch(self, now: int) -> None:
        session = self.session
        assert session is not None
        if self._appender.commit_mark - session.low_water_mark >= self._config.checkpoint_interval:
            self._draining = True
        if self._draining and self._appender.in_flight == 0:
            session.close(now, f"checkpoint after {self._appender.commit_mark - session.low_water_mark} transactions")
            return
        journal = self.journal
        if journal is not None and not self._doubtful:
            for batch in journal.ready():
                session.replicate(batch)
        while not self._draining and not self._doubtful and (journal is None or not journal.blocked):
            launched = self._appender.launch(self._verdicts)
            if launched is None:
                break
            self.response_times.launched(now, launched.last)
            if journal is None or journal.launched(now, session.session_id, launched, self._appender.newest):
                session.replicate(launched)
        if self.refusing:
            self._appender.launch_barriers(self._verdicts)
        self._settle(now)

    @property
    def _session_id(self) -> int:
        return self.session.session_id if self.session is not None else -1

    def _settle(self, now: int) -> None:
        """Act on verdicts, in order."""
        verdicts, self._verdicts = self._verdicts, []
        for verdict in verdicts:
            if type(verdict) is Committed:
                self._on_committed(now, verdict)
            elif type(verdict) is Refused:
                self.counters["rejected-append"] += 1
                if verdict.why is not UNEXPLAINED:
                    self.hot_locks.refused(verdict.why.lock_hash)
                if self.journal is not None:
                    self.journal.lock_refused(now, self._session_id, verdict)
                self._out.append(Reply(verdict.conn, lock_refusal(verdict)))
            elif type(verdict) is Dropped:
                self._on_dropped(now, verdict)
            else:
                assert type(verdict) is Passed
                self._on_passed(verdict.token)

    def _on_dropped(self, now: int, verdict: Dropped) -> None:
        self._refuse(now, verdict.conn, verdict.requests, verdict.refusal, verdict.text)
        if verdict.text and verdict.conn != self._warned_of:
            self._warned_of = verdict.conn
            client = req_client(verdict.requests[0].req_id)
            text = f"partition {self.partition_id}: refused appends of client {client}: {verdict.text}"
            self._out.append(Report(Level.WARNING, text))

    def _on_committed(self, now: int, verdict: Committed) -> None:
        appends = verdict.appends
        self.response_times.committed(now, verdict.last, len(appends))
        self.counters["successful-append"] += len(appends)
        if self.journal is not None:
            self.journal.committed(now, self._session_id, verdict.first, verdict.last)
        self._data_cache.add(self.partition_id, verdict.first, appends)
        if self.session is not None:
            self.session.committed(verdict.last)
        effects: list[FeedEffect] = []
        self._feed.committed(verdict.first, encode_frames(verdict.first, appends), effects)
        self._out += effects

    def _serve_feed(self, now: int) -> None:
        effects: list[FeedEffect] = []
        self._feed.serve(now, effects)
        for effect in effects:
            if type(effect) is ReadHeaders:
                token = self._tickets.take()
                self._header_reads[token] = effect.first
                if self.phase is Phase.OPEN and self.session is not None:
                    self.session.read_headers(now, token, effect.first, effect.count)
                else:
                    self._header_reads.pop(token)
                    self._feed.read_failed(now, effect.first)
            else:
                self._out.append(effect)

    def deadline(self, now: int) -> int | None:
        """When `flush` must be called at the latest."""
        session = self.session.deadline() if self.session is not None else None
        journal = self.journal.deadline() if self.journal is not None else None
        feed, marks, again = self._feed.deadline(now), self._marks.deadline(), self._states_write.again_at
        ranges = now if self.phase is Phase.OPEN and self._ranges.ready else None
        return earliest(session, self._retry_at, again, self._look_at, feed, marks, journal, ranges)

    def _check(self) -> None:
        """Invariants that only our own bugs could break."""
        assert (self.session is not None) == (self.phase in (Phase.RECOVERING, Phase.OPEN)), self.phase
        assert not self._known or self.phase is not Phase.OPEN or self._feed.mark == self._appender.commit_mark


__all__ = ["NOT_OPEN_MARK", "PartitionConfig", "PartitionServer", "Peer", "Phase", "Reply", "SendFrames", "SendReply"]
