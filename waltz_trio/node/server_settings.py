"""What a server, and a proxy, reads of its configuration, once, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_core.server.archive_calls import ArchivePolicy
from waltz_core.server.config import ServerConfig
from waltz_core.server.journal_format import Mode
from waltz_trio.config.config import Config, tls_settings
from waltz_trio.net.listener import LOOPBACK
from waltz_trio.net.tls import TlsSettings
from waltz_trio.node.archive_agent import check_installed
from waltz_trio.node.settings import FRAME_SIZE_MAX_STORAGE, NodeSettings, node_settings

_FRAME_SIZE_MAX_CLIENT = 64 << 20


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


def server_settings(config: Config, warn: Callable[[str], None], local: str = LOOPBACK) -> ServerSettings:
    """Parse a server's configuration; `local` is the address to listen on where it names none.

    Raises:
        ConfigError: a key is missing, cannot be read, or contradicts another.
    """
    config.warn_unknown(warn)
    node = node_settings(config, "server.", local)
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
            storage_frame_size_max=node.frame_size_max or FRAME_SIZE_MAX_STORAGE,
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
