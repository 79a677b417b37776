"""State of a proxy for metrics, health, tools and people.

Tools ask the port of a proxy as they ask a server's: figures that both have are called the same. `AGE` is only a
proxy's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.proxy.partition import ProxyPartition
from waltz_core.server.snapshot import CLIENTS_LISTED, chosen
from waltz_core.wire.shared import AGE, Statistic

UPSTREAM: Final = "upstream-connections"


@record
class ProxyPartitionSnapshot:
    """One partition for metrics, health and people."""

    partition_id: int
    phase: str  # of the client machine
    high_water_mark: int | None
    log_start: int
    age_ms: int | None  # since the server said that there was nothing behind that; None: it was never heard
    generation: int
    queued: int
    under_way: int  # clients that may have an append upstream
    live_feeds: int
    lagging_feeds: int
    trouble: str


@record
class ProxySnapshot:
    """A proxy for metrics, health and people."""

    endpoint: Endpoint
    connections: int
    upstream_connections: int
    partitions: tuple[ProxyPartitionSnapshot, ...]
    zookeeper: str
    data_cache_misses: int
    fetched: int  # records read upstream
    cache_bytes: int  # on the disk
    access_level: int = 0  # AccessLevel
    client_lags: tuple[tuple[int, int], ...] = ()  # client → transactions its feeds have yet to give it, at most


def snapshot_of(now: int, partition: ProxyPartition) -> ProxyPartitionSnapshot:
    """One partition."""
    live, lagging = partition.feeds.feed.lag()
    carriage, heard_at = partition.carriage, partition.carriage.heard_at
    return ProxyPartitionSnapshot(
        partition.partition_id,
        partition.phase.value,
        partition.high_water_mark,
        partition.log_start,
        None if heard_at is None else now - heard_at,
        partition.generation,
        carriage.queued,
        carriage.under_way,
        live,
        lagging,
        partition.trouble(),
    )


def statistics_of(snapshot: ProxySnapshot, partition_id: int, prefixes: Sequence[str]) -> tuple[Statistic, ...]:
    """Figures of a proxy, see `chosen`."""
    of_partitions = ((each.partition_id, _partition_statistics(each)) for each in snapshot.partitions)
    return chosen(_process_statistics(snapshot), of_partitions, partition_id, prefixes)


def _process_statistics(snapshot: ProxySnapshot) -> Iterator[Statistic]:
    yield Statistic("access-level", -1, snapshot.access_level)
    yield Statistic("connections", -1, snapshot.connections)
    yield Statistic(UPSTREAM, -1, snapshot.upstream_connections)
    yield Statistic("transaction-cache-miss", -1, snapshot.data_cache_misses)
    yield Statistic("transactions-fetched", -1, snapshot.fetched)
    yield Statistic("cache-bytes", -1, snapshot.cache_bytes)
    for client, lag in sorted(snapshot.client_lags, key=lambda item: -item[1])[:CLIENTS_LISTED]:
        yield Statistic(f"client-lag.{client}", -1, lag)


def _partition_statistics(partition: ProxyPartitionSnapshot) -> Iterator[Statistic]:
    number = partition.partition_id
    yield Statistic("append-queue-size", number, partition.queued)
    yield Statistic("pending-append", number, partition.under_way)
    yield Statistic("real-time-feeds", number, partition.live_feeds)
    yield Statistic("catchup-feeds", number, partition.lagging_feeds)
    if partition.age_ms is not None:
        yield Statistic(AGE, number, partition.age_ms)
