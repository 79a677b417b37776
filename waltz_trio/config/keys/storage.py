"""Keys of storage nodes."""

from __future__ import annotations

from waltz_trio.config.keys.families import graphite, tls
from waltz_trio.config.keys.key import MIB, Key, Kind, Use

STORAGE = (
    Key("storage.port", Kind.PORT, Use.STORAGE, "data port", required=True, low=0),
    Key("storage.admin.port", Kind.PORT, Use.STORAGE, "admin port", required=True, low=0),
    Key("storage.jetty.port", Kind.PORT, Use.STORAGE, "port of the HTTP endpoints; none = no HTTP", low=0),
    Key(
        "storage.host",
        Kind.TEXT,
        Use.STORAGE,
        "address to listen on (0.0.0.0 = all); none = that of the local host name",
        original=False,
    ),
    Key(
        "storage.advertisedEndpoint",
        Kind.TEXT,
        Use.STORAGE,
        "host:port by which the cluster knows this node; none = canonical local host name and storage.port",
        original=False,
    ),
    Key(
        "storage.jetty.host",
        Kind.TEXT,
        Use.STORAGE,
        "address of the HTTP endpoints; none = as storage.host",
        original=False,
    ),
    Key("storage.directory", Kind.TEXT, Use.STORAGE, "data directory, must exist", required=True),
    Key(
        "storage.segment.size.threshold",
        Kind.LONG,
        Use.STORAGE,
        "a new segment starts after this size",
        default=1_000_000_000,
        unit="bytes",
        low=1,
    ),
    Key(
        "storage.segment.cache.capacity",
        Kind.INT,
        Use.STORAGE,
        "read-only segments kept open per partition",
        default=5,
        unit="segments",
        low=1,
    ),
    Key(
        "storage.queueBytesMax",
        Kind.SIZE,
        Use.STORAGE,
        "appends that may wait for one partition before further ones are refused; one is always taken",
        default=256 * MIB,
        unit="bytes",
        original=False,
        low=MIB,
    ),
    Key(
        "storage.parkedBytesMax",
        Kind.SIZE,
        Use.STORAGE,
        "requests of one connection that cannot be served yet, as it takes no answers or waits for a change; above it "
        "the connection is not read from",
        default=16 * MIB,
        unit="bytes",
        original=False,
        low=1024,
    ),
    Key(
        "storage.reserve",
        Kind.SIZE,
        Use.STORAGE,
        "appends are refused while the file system has less room than this; none = one segment, at most 2 % of it",
        unit="bytes",
        original=False,
        low=0,
    ),
    Key(
        "storage.scrub.rate",
        Kind.INT,
        Use.STORAGE,
        "all records are verified in the background, no faster than this; 0 = never",
        default=1 << 20,
        unit="bytes/s",
        original=False,
        low=0,
    ),
    Key(
        "storage.scrub.pause",
        Kind.TIME,
        Use.STORAGE,
        "pause between the end of one such pass and the next",
        default=24 * 3600 * 1000,
        unit="ms",
        original=False,
        low=1,
    ),
    *tls("storage.ssl.", Use.STORAGE, "this storage node"),
    *graphite("storage.graphite.", Use.STORAGE),
)
