"""Keys of proxies."""

from __future__ import annotations

from waltz_trio.config.keys.key import MIB, Key, Kind, Use

PROXY = (
    Key(
        "proxy.upstream.root",
        Kind.TEXT,
        Use.PROXY,
        "path of the root znode of the cluster that the proxy stands for; required. cluster.root is the proxy's own",
        original=False,
    ),
    Key(
        "proxy.upstream.connectString",
        Kind.TEXT,
        Use.PROXY,
        "host:port list of the ZooKeeper of that cluster; none = zookeeper.connectString, where cluster.root is",
        original=False,
    ),
    Key(
        "proxy.cache.directory",
        Kind.TEXT,
        Use.PROXY,
        "directory for records that were read upstream, which holds nothing else and is emptied at the start; none = "
        "they are kept in memory alone (server.transactionDataCacheSize)",
        original=False,
    ),
    Key(
        "proxy.cache.size",
        Kind.SIZE,
        Use.PROXY,
        "how much of it may be used; the oldest sixteenth goes first",
        default=1 << 30,
        unit="bytes",
        original=False,
        low=MIB,
    ),
)
