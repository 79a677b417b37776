"""What processes read of their configuration, once, before anything is touched."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import attrs

from waltz_core.access.admission import Places
from waltz_core.access.roles import Roles
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_core.server.archive_calls import ArchivePolicy
from waltz_core.server.config import ServerConfig
from waltz_core.server.journal_format import Mode
from waltz_core.storage.config import StorageConfig
from waltz_trio.base.pump import wall_offset_ms
from waltz_trio.base.version import version
from waltz_trio.config.config import Config, net_limits, tls_settings
from waltz_trio.config.roles import KEY as ROLES_KEY
from waltz_trio.config.roles import certificates_asked, roles_of
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.driver import accepted_max
from waltz_trio.net.listener import LOOPBACK
from waltz_trio.net.tls import TlsSettings
from waltz_trio.node.archive_agent import check_installed
from waltz_trio.node.otel import OtelSettings, otel_settings
from waltz_trio.zk.security import ZkSecurity, zookeeper_security

_FRAME_SIZE_MAX_CLIENT = 64 << 20
_FRAME_SIZE_MAX_STORAGE = 1 << 30


@attrs.frozen
class NodeSettings:
    """What servers and storage nodes have in common."""

    host: str  # to listen at
    http_host: str
    http_port: int | None
    tls: TlsSettings
    roles: Roles
    roles_file: str | None
    certificates_asked: bool
    net: NetLimits
    places: Places
    greeting_ms: int
    frame_size_max: int | None
    gathered_max: int | None
    recorded_batches: int
    root: str
    session_timeout_ms: int
    security: ZkSecurity  # of the session with ZooKeeper
    otel: OtelSettings | None  # None: off

    @property
    def trace_every(self) -> int:
        """One transaction in so many is traced; 0: none."""
        return self.otel.trace_every if self.otel is not None else 0


@attrs.frozen
class ServerSettings:
    """A server's configuration."""

    node: NodeSettings
    port: int
    advertised: Endpoint | None
    session_timeout: float  # seconds
    connect_timeout: float
    journal: Mode
    journal_directory: Path | None
    journal_bytes_max: int
    machine: ServerConfig  # all but the endpoint, which is known when the port is bound


@attrs.frozen
class ProxySettings:
    """A proxy's configuration: that of a server, and where the cluster is."""

    server: ServerSettings
    upstream: str  # connect string of its ZooKeeper
    upstream_root: str
    upstream_tls: TlsSettings
    cache_directory: Path | None
    cache_size: int


@attrs.frozen
class StorageSettings:
    """A storage node's configuration."""

    node: NodeSettings
    port: int
    admin_port: int
    directory: Path
    segments_open: int  # of a partition
    segment_size: int
    reserve: int | None  # bytes that appends leave free; None: by the size of the disk
    machine: StorageConfig  # all but what ZooKeeper and the disk say

    def open_files_max(self, partition_count: int) -> int:
        """Segments kept open per partition, two files each, and its side files; within what a process may open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(16, min(partition_count * (2 * (self.segments_open + 1) + 3), soft // 2))

    def reserve_bytes(self, disk_size: int) -> int:
        """Bytes that appends leave free."""
        return min(self.segment_size, disk_size // 50) if self.reserve is None else self.reserve


def server_settings(config: Config, warn: Callable[[str], None], local: str = LOOPBACK) -> ServerSettings:
    """Parse a server's configuration.

    Args:
        config: what is read.
        warn: hears of keys that nobody knows.
        local: the address to listen on where the configuration names none.

    Raises:
        ConfigError: a key is missing, cannot be read, or contradicts another.
    """
    config.warn_unknown(warn)
    node = _node_settings(config, "server.", local)
    fetch, threshold = config.number("server.minFetchSize"), config.number("server.realtimeThreshold")
    if threshold <= fetch:
        raise ConfigError(f"server.realtimeThreshold ({threshold}) must be greater than server.minFetchSize ({fetch})")
    journal, directory = (
        Mode[config.text("server.journal.mode").upper()],
        config.text_or_none("server.journal.directory"),
    )
    if journal is not Mode.OFF and directory is None:
        raise ConfigError(f"server.journal.mode is {journal.name.lower()}, but server.journal.directory is not set")
    return ServerSettings(
        node=node,
        port=config.number("server.port"),
        advertised=config.endpoint_or_none("server.advertisedEndpoint"),
        session_timeout=config.seconds("zookeeper.sessionTimeout"),
        connect_timeout=config.seconds("zookeeper.connectTimeout"),
        journal=journal,
        journal_directory=None if directory is None else Path(directory),
        journal_bytes_max=config.number("server.journal.maxBytes"),
        machine=ServerConfig(
            root=node.root,
            endpoint=Endpoint("", 0),
            frame_size_max=node.frame_size_max or _FRAME_SIZE_MAX_CLIENT,
            storage_frame_size_max=node.frame_size_max or _FRAME_SIZE_MAX_STORAGE,
            lock_table_size=config.number("server.optimisticLockTableSize"),
            exact_locks=config.number("server.exactLocks"),
            archive=config.text_or_none("server.archive") or "",
            archiving=_archive_policy(config),
            min_fetch_size=fetch,
            feed_cache_bytes=config.number("server.feedCacheSize"),
            data_cache_bytes=config.number("server.transactionDataCacheSize"),
            batch_count_max=config.number("storage.maxBatchSize"),
            payload_size_max=config.number("server.payloadSizeMax"),
            locks_max=config.number("server.locksMax"),
            append_pace=config.number("server.appendPace"),
            retry_min_ms=config.number("storage.initialRetryInterval"),
            retry_max_ms=config.number("storage.maxRetryInterval"),
            checkpoint_interval=config.number("storage.checkpointInterval"),
            answer_timeout_ms=config.number("storage.answerTimeout"),
            journal=journal,
            roles=node.roles,
            certificates_asked=node.certificates_asked,
            greeting_ms=node.greeting_ms,
            places=node.places,
            gathered_max=node.gathered_max or 256 << 20,
            unsent_max=config.number("network.unsentMax"),
            queue_count_max=config.number("server.queueCountMax"),
            reads_count_max=config.number("server.readCountMax"),
            proxies_trusted=config.flag("server.trustProxies"),
            trace_every=node.trace_every,
        ),
    )


def _archive_policy(config: Config) -> ArchivePolicy | None:
    where = config.text_or_none("archive.location")
    if where is None:
        return None
    check_installed(where)
    if "://" not in where:
        where = str(Path(where).absolute())
    return ArchivePolicy(
        where,
        file_records=config.number("archive.fileRecords"),
        after_ms=config.number("archive.after"),
        keep=config.number_or_none("archive.keepRecords"),
        answer_ms=config.number("archive.answerTimeout"),
    )


def proxy_settings(config: Config, warn: Callable[[str], None], local: str = LOOPBACK) -> ProxySettings:
    """Parse a proxy's configuration, as a server's.

    Raises:
        ConfigError: a key is missing, cannot be read, or contradicts another.
    """
    server = server_settings(config, warn, local)
    if server.journal is not Mode.OFF:
        raise ConfigError("server.journal.mode: a proxy decides nothing, so there is no journal; remove the key")
    if server.machine.archiving is not None:
        raise ConfigError("archive.location: a proxy archives nothing, the cluster's servers do; remove the key")
    root = config.text_or_none("proxy.upstream.root")
    if root is None:
        text = "is not set: expected the path of the cluster's root znode, which its servers have as cluster.root"
        raise ConfigError(f"proxy.upstream.root {text}")
    own = config.text("zookeeper.connectString")
    upstream, root = config.text_or_none("proxy.upstream.connectString") or own, root.rstrip("/")
    if (upstream, root) == (own, server.node.root):
        raise ConfigError(f"cluster.root and proxy.upstream.root are both {root}: a proxy has a root of its own")
    directory = config.text_or_none("proxy.cache.directory")
    return ProxySettings(
        server,
        upstream,
        root,
        tls_settings(config, "client.ssl."),
        None if directory is None else Path(directory),
        config.number("proxy.cache.size"),
    )


def storage_settings(config: Config, warn: Callable[[str], None], local: str = LOOPBACK) -> StorageSettings:
    """Parse a storage node's configuration, as a server's.

    Raises:
        ConfigError: a key is missing or cannot be read.
    """
    config.warn_unknown(warn)
    node = _node_settings(config, "storage.", local)
    segment_size = config.number("storage.segment.size.threshold")
    return StorageSettings(
        node=node,
        port=config.number("storage.port"),
        admin_port=config.number("storage.admin.port"),
        directory=Path(config.text("storage.directory")),
        segments_open=config.number("storage.segment.cache.capacity"),
        segment_size=segment_size,
        reserve=config.number_or_none("storage.reserve"),
        machine=StorageConfig(
            key=b"",
            partition_count=0,
            segment_size_threshold=segment_size,
            wall_clock_offset_ms=wall_offset_ms(),
            frame_size_max=node.frame_size_max or _FRAME_SIZE_MAX_STORAGE,
            version=version() or "unknown",
            scrub_bytes_per_s=config.number("storage.scrub.rate"),
            scrub_pause_ms=config.number("storage.scrub.pause"),
            roles=node.roles,
            certificates_asked=node.certificates_asked,
            greeting_ms=node.greeting_ms,
            places=node.places,
            gathered_max=node.gathered_max or 2 << 30,
            queue_bytes_max=config.number("storage.queueBytesMax"),
            parked_bytes_max=config.number("storage.parkedBytesMax"),
            trace_every=node.trace_every,
        ),
    )


def _node_settings(config: Config, prefix: str, local: str) -> NodeSettings:
    tls = tls_settings(config, f"{prefix}ssl.")
    host = config.text_or_none(f"{prefix}host") or local
    return NodeSettings(
        host=host,
        http_host=config.text_or_none(f"{prefix}jetty.host") or host,
        http_port=config.number_or_none(f"{prefix}jetty.port"),
        tls=tls,
        roles=roles_of(config, tls),
        roles_file=config.text_or_none(ROLES_KEY),
        certificates_asked=certificates_asked(tls),
        net=net_limits(config),
        places=places_of(config),
        greeting_ms=config.number("network.handshakeTimeout"),
        frame_size_max=config.number_or_none("network.frameSizeMax"),
        gathered_max=config.number_or_none("network.gatheredMax"),
        recorded_batches=config.number("debug.flightRecorder"),
        root=config.text("cluster.root").rstrip("/"),
        session_timeout_ms=config.number("zookeeper.sessionTimeout"),
        security=zookeeper_security(config),
        otel=otel_settings(config),
    )


def places_of(config: Config) -> Places:
    """The limits on standing connections, which the machine keeps.

    One place in eight of what the process accepts is left for handshakes and for connections on their way out; were the
    process full itself, it could only refuse all newcomers alike.
    """
    count = accepted_max(net_limits(config))
    standing = max(1, count - max(1, count // 8))
    return Places(
        count_max=standing,
        reserved=standing // 8,
        per_address_max=config.number_or_none("network.connectionsPerAddressMax") or max(1, standing // 2),
        unproven_ms=config.number("network.requestTimeout"),
        idle_ms=config.number("network.idleTimeout"),
    )
