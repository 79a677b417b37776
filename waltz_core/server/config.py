"""What a server process needs to know."""

from __future__ import annotations

from waltz_core.access.admission import UNLIMITED, Places
from waltz_core.access.roles import NO_ROLES, Roles, access_level
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.server.append_queue import PACE, TURN, WINDOW
from waltz_core.server.archive_calls import ArchivePolicy
from waltz_core.server.journal import UNWRITTEN_MAX
from waltz_core.server.journal_format import Mode
from waltz_core.store.followers import SessionConfig
from waltz_core.store.pool import VERSIONS as STORAGE_VERSIONS
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.shared import AccessLevel


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
    append_turn: int = TURN  # see `AppendQueue`
    append_window: int = WINDOW
    append_pace: int = PACE
    trace_every: int = 0  # otel.traceEvery: one in so many transactions is traced; 0 = none


@record
class ServerConfig:
    """Settings of a server process; keys of the original where it has one."""

    root: str  # cluster.root
    endpoint: Endpoint  # as registered in ZooKeeper
    preferred_partitions: tuple[int, ...] = ()
    versions: frozenset[int] = frozenset(VERSIONS)
    storage_versions: frozenset[int] = frozenset(STORAGE_VERSIONS)
    frame_size_max: int = 64 << 20  # network.frameSizeMax, bytes
    storage_frame_size_max: int = 1 << 30
    lock_table_size: int = 30_000
    exact_locks: int = 1_000_000  # server.exactLocks
    min_fetch_size: int = 100
    feed_cache_bytes: int = 16 << 20
    data_cache_bytes: int = 32 << 20
    batch_count_max: int = 1_000
    batch_bytes_max: int = 1 << 20
    flight_bytes_max: int = 16 << 20  # of appends sent to storage nodes and not committed, per partition
    mount_count_max: int = 10_000  # transactions that a mount brings a client that goes on by itself
    feed_count_min: int = 10_000  # transactions that a feed of codec 5 brings before it is asked for again
    payload_size_max: int = 16 << 20
    locks_max: int = 10_000  # server.locksMax, of one append
    retry_min_ms: int = 100
    retry_max_ms: int = 20_000
    checkpoint_interval: int = 250_000
    answer_timeout_ms: int = 10_000  # storage.answerTimeout
    session: SessionConfig = SessionConfig()
    archive: str = ""  # server.archive: where clients find what is below the log start
    archiving: ArchivePolicy | None = None  # archive.*: the server archives by itself, and reads through
    append_turn: int = TURN  # cost of appends of one client before others have their turn
    append_window: int = WINDOW  # cost of appends in flight beside a client that waits for each
    append_pace: int = PACE  # server.appendPace: cost of appends launched beside one, a millisecond
    trace_every: int = 0  # otel.traceEvery: one in so many transactions is traced; 0 = none
    journal: Mode = Mode.OFF  # server.journal.mode
    journal_unwritten_max: int = UNWRITTEN_MAX  # bytes on their way to the journal, per partition
    roles: Roles = NO_ROLES  # who may do what
    certificates_asked: bool = False  # of clients
    greeting_ms: int = 0  # a peer that does not greet in this time is dropped; 0 = never
    places: Places = UNLIMITED  # how many connections, and how long without a request
    gathered_max: int = 256 << 20  # bytes of unfinished frames, all clients together
    out_bytes_max: int = 8 << 20  # for one connection in one step; further payloads wait until it took these
    unsent_max: int = 512 << 20  # bytes of payloads that may wait for one client to take them
    queue_count_max: int = 2_000  # appends that wait in one partition before the greedy are held back
    reads_count_max: int = 10_000  # requests without an answer, in the whole server, likewise
    proxies_trusted: bool = False  # server.trustProxies: without roles, who says that it is a proxy is believed

    @property
    def access_level(self) -> AccessLevel:
        """Whom this process serves."""
        return access_level(self.roles, certificates_asked=self.certificates_asked)

    def partition(self, partition_id: int) -> PartitionConfig:
        """Settings of one partition."""
        return PartitionConfig(
            f"{self.root}/store/partition/{partition_id}",
            lock_table_size=self.lock_table_size,
            exact_locks=self.exact_locks,
            min_fetch_size=self.min_fetch_size,
            feed_cache_bytes=self.feed_cache_bytes,
            batch_count_max=self.batch_count_max,
            batch_bytes_max=self.batch_bytes_max,
            flight_bytes_max=self.flight_bytes_max,
            mount_count_max=self.mount_count_max,
            feed_count_min=self.feed_count_min,
            payload_size_max=self.payload_size_max,
            locks_max=self.locks_max,
            retry_min_ms=self.retry_min_ms,
            retry_max_ms=self.retry_max_ms,
            checkpoint_interval=self.checkpoint_interval,
            session=self.session,
            archive=self.archive or (self.archiving.where if self.archiving is not None else ""),
            append_turn=self.append_turn,
            append_window=self.append_window,
            append_pace=self.append_pace,
            trace_every=self.trace_every,
        )
