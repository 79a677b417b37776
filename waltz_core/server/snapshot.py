"""State of a server for metrics, health and people."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.server.awaited import awaited_of
from waltz_core.server.feed import Feed
from waltz_core.server.ownership import OwnershipPhase
from waltz_core.server.partition import PartitionServer
from waltz_core.server.peer import Peer
from waltz_core.wire import client_messages as messages
from waltz_core.wire.shared import ARCHIVE_TROUBLE, AWAITED, UNUSABLE, Statistic, Trouble

RESPONSE_BOUNDS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 300, 500, 1000, 2000, 5000, 10_000)
"""Milliseconds: the upper bounds of the buckets into which appends are counted."""

_WITHIN = tuple(f"response-within-ms.{bound}" for bound in RESPONSE_BOUNDS)
_HOT_LOCKS = 8  # of each partition
CLIENTS_LISTED = 100  # those with the largest lags


@record
class ArchiveSnapshot:
    """What the archive has of a partition, and what it waits for."""

    log_start: int  # on the storage nodes
    end: int  # behind the last id that is archived, as far as this server knows
    status: str  # what is under way, or waited for
    trouble: str  # why it is not archived, freed, or read through; empty if all is well
    archived: int  # records added by this process
    freed: int  # records given up by this process
    first: int | None = None  # id that the archive holds; None: it was not asked yet
    files_due: int = 0  # whole files that the records would fill that are not archived

    def lag(self, mark: int) -> int:
        """Committed records, up to `mark`, that are not archived; none before the mark is known."""
        return max(0, mark + 1 - self.end)


@record
class PartitionSnapshot:
    """One partition for metrics, health and people."""

    partition_id: int
    phase: str
    reason: str  # why it is not healthy, for people
    since_ms: int
    healthy: bool
    generation: int
    high_water_mark: int
    queued: int
    pending: int
    live_feeds: int
    lagging_feeds: int
    live_feeds_added: int  # so far, as all that follow
    lagging_feeds_added: int
    response_times: tuple[tuple[int, int], ...]  # milliseconds, transactions
    counters: tuple[tuple[str, int], ...]
    links: tuple[tuple[str, str, int, int], ...]
    hot_locks: tuple[tuple[int, int], ...] = ()  # lock hash, appends refused for it; where refusals are explained
    awaited: tuple[tuple[str, int], ...] = ()  # in words, how often
    archive: ArchiveSnapshot | None = None  # where one is configured


@record
class ServerSnapshot:
    """A server for metrics, health and people."""

    cluster_name: str
    server_id: int | None
    endpoint: Endpoint
    connections: int
    partitions: tuple[PartitionSnapshot, ...]
    replicas: tuple[tuple[int, tuple[str, ...]], ...]  # partition → storage nodes, all of the cluster
    storage_nodes: tuple[tuple[str, str, str], ...]  # connect string, state, trouble
    data_cache_misses: int
    feed_cache_misses: int
    zookeeper: str
    access_level: int = 0  # AccessLevel
    client_lags: tuple[tuple[int, int], ...] = ()  # client → transactions its feeds have yet to give it, at most
    awaited: tuple[tuple[str, int], ...] = ()  # by the process, in words, how often
    unusable: tuple[tuple[str, Trouble], ...] = ()  # storage nodes


_STATES = {
    OwnershipPhase.OPEN: messages.ServedState.READY,
    OwnershipPhase.RECOVERING: messages.ServedState.RECOVERING,
    OwnershipPhase.CLOSED: messages.ServedState.CLOSING,
}


def status_of(now: int, partition: PartitionServer) -> messages.PartitionStatus:
    ownership = partition.ownership
    state = (
        messages.ServedState.STUCK if ownership.stuck else _STATES.get(partition.phase, messages.ServedState.OPENING)
    )
    return messages.PartitionStatus(
        partition.partition_id,
        ownership.generation,
        state,
        now - ownership.since,
        ownership.session_id,
        partition.high_water_mark,
        (partition.trouble(now) if ownership.open else ownership.stuck or ownership.reason) or None,
    )


def _journal_counters(partition: PartitionServer) -> tuple[tuple[str, int], ...]:
    journal = partition.commits.journal
    if journal is None:
        return ()
    return ("journal-written", journal.written), ("journal-dropped", journal.dropped)


def snapshot_of(now: int, partition: PartitionServer, awaited: Counter[str]) -> PartitionSnapshot:
    commits, feed = partition.commits, partition.feeds.feed
    live, lagging = feed.lag()
    trouble = partition.trouble(now)
    return PartitionSnapshot(
        partition.partition_id,
        partition.phase.value,
        trouble,
        now - partition.ownership.since,
        not trouble,
        partition.generation,
        partition.high_water_mark,
        commits.queued,
        commits.pending,
        live,
        lagging,
        feed.live_added,
        feed.lagging_added,
        tuple(commits.response_times.counts.items()),
        (*commits.counters.items(), *_journal_counters(partition)),
        partition.session.links() if partition.session is not None else (),
        commits.hot_locks.hottest(_HOT_LOCKS),
        awaited_of(awaited, partition.session.requests if partition.session is not None else ()),
        _archive_of(partition),
    )


def _archive_of(partition: PartitionServer) -> ArchiveSnapshot | None:
    archiving = partition.archiving
    if archiving is None:
        return None
    trouble = archiving.trouble or partition.archive_unreadable
    status = archiving.status(partition.commits.mark)
    done = archiving.archived, archiving.freed
    due = archiving.files_due(partition.commits.mark)
    return ArchiveSnapshot(partition.log_start, archiving.end, status, trouble, *done, archiving.first, due)


def client_lags(peers: Sequence[Peer], feeds: Iterable[Feed]) -> tuple[tuple[int, int], ...]:
    """Of each client, the lag of the partition where it is furthest behind."""
    client_of = {peer.conn: peer.client_id for peer in peers}
    mounted = (peer for peer in peers if peer.net_sequence is not None)
    lags = {peer.client_id: 0 for peer in mounted if peer.client_id is not None}
    for feed in feeds:
        for conn, lag in feed.behind():
            client_id = client_of.get(conn)
            if client_id is not None and lag > lags.get(client_id, lag):
                lags[client_id] = lag
    return tuple(lags.items())


def statistics_of(snapshot: ServerSnapshot, partition_id: int, prefixes: Sequence[str]) -> tuple[Statistic, ...]:
    """Figures of a server, see `chosen`."""
    of_partitions = ((each.partition_id, _partition_statistics(each)) for each in snapshot.partitions)
    return chosen(_process_statistics(snapshot), of_partitions, partition_id, prefixes)


def chosen(
    of_process: Iterable[Statistic],
    of_partitions: Iterable[tuple[int, Iterable[Statistic]]],
    partition_id: int,
    prefixes: Sequence[str],
) -> tuple[Statistic, ...]:
    """Figures of one partition (-1: of all and of the process) whose names start with a prefix (none: all).

    Args:
        of_process, of_partitions: figures, which are made only as far as they are wanted.
    """
    groups = [of_process] if partition_id == -1 else []
    groups += [figures for number, figures in of_partitions if partition_id in (-1, number)]
    if not prefixes:
        return tuple(itertools.chain.from_iterable(groups))
    wanted = tuple(prefixes)
    return tuple(statistic for figures in groups for statistic in figures if statistic.name.startswith(wanted))


def _process_statistics(snapshot: ServerSnapshot) -> Iterator[Statistic]:
    yield Statistic("access-level", -1, snapshot.access_level)
    yield Statistic("connections", -1, snapshot.connections)
    yield Statistic("feed-cache-miss", -1, snapshot.feed_cache_misses)
    yield Statistic("transaction-cache-miss", -1, snapshot.data_cache_misses)
    for storage, trouble in snapshot.unusable:
        yield Statistic(f"{UNUSABLE}{storage}", -1, trouble)
    for text, count in snapshot.awaited:
        yield Statistic(f"{AWAITED}{text}", -1, count)
    for client, lag in sorted(snapshot.client_lags, key=lambda item: -item[1])[:CLIENTS_LISTED]:
        yield Statistic(f"client-lag.{client}", -1, lag)


def _partition_statistics(partition: PartitionSnapshot) -> Iterator[Statistic]:
    number = partition.partition_id
    for name, count in partition.counters:
        yield Statistic(name, number, count)
    yield Statistic("append-queue-size", number, partition.queued)
    yield Statistic("pending-append", number, partition.pending)
    yield Statistic("real-time-feeds", number, partition.live_feeds)
    yield Statistic("catchup-feeds", number, partition.lagging_feeds)
    yield from _response_statistics(number, partition.response_times)
    for text, count in partition.awaited:
        yield Statistic(f"{AWAITED}{text}", number, count)
    if partition.archive is not None:
        yield from _archive_statistics(number, partition.high_water_mark, partition.archive)
    for lock_hash, refusals in partition.hot_locks:
        yield Statistic(f"hot-lock.{lock_hash}", number, refusals)


def _response_statistics(number: int, response_times: Iterable[tuple[int, int]]) -> Iterator[Statistic]:
    took = 0
    buckets = [0] * (len(RESPONSE_BOUNDS) + 1)  # the last one: above all bounds
    for milliseconds, count in response_times:
        took += milliseconds * count
        buckets[bisect_left(RESPONSE_BOUNDS, milliseconds)] += count
    *within, count = itertools.accumulate(buckets)
    yield Statistic("response-latency-mean-ms", number, took / count if count else 0.0)
    if count:
        yield from map(Statistic, _WITHIN, itertools.repeat(number), within)
        yield Statistic("response-count", number, count)


def _archive_statistics(number: int, mark: int, archive: ArchiveSnapshot) -> Iterator[Statistic]:
    yield Statistic("archived-up-to", number, archive.end - 1)
    yield Statistic("archive-lag", number, archive.lag(mark))
    yield Statistic("archive-files-due", number, archive.files_due)
    yield Statistic("archive-trouble", number, bool(archive.trouble))
    if archive.trouble:
        yield Statistic(f"{ARCHIVE_TROUBLE}{archive.trouble}", number, 1)
    if archive.first is not None:
        yield Statistic("archive-first", number, archive.first)
    yield Statistic("log-start", number, archive.log_start)
