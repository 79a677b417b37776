"""Keys that every process reads."""

from __future__ import annotations

from waltz_trio.config.keys.key import MIB, Key, Kind, Use


def _zookeeper_security() -> tuple[Key, ...]:
    def key(name: str, meaning: str, **more: object) -> Key:
        return Key(f"zookeeper.{name}", Kind.TEXT, Use.ALL, meaning, original=False, **more)  # type: ignore[arg-type]

    return (
        key(
            "sasl.mechanism",
            "how to log in to ZooKeeper; none = not at all. gssapi (Kerberos) needs the package kerberos",
            choices=("digest-md5", "gssapi"),
        ),
        key("sasl.username", "DIGEST-MD5: name of the user"),
        key("sasl.password", "DIGEST-MD5: its password; better in a file, see sasl.passwordFile"),
        key("sasl.passwordFile", "file whose first line is the password"),
        key("sasl.service", "GSSAPI: name of ZooKeeper's service", default="zookeeper"),
        key("acl.auth", "SCHEME:CREDENTIAL added to each session, such as digest:USER:PASSWORD; none = nothing"),
        key("acl.authFile", "file whose first line is SCHEME:CREDENTIAL"),
        key(
            "acl.create",
            "open = new znodes belong to everybody, as those of 0.13.2; creator = to whom the session is logged in as; "
            "creator-read = likewise, and everybody may read; or a list such as sasl:waltz:cdrwa,sasl:reader:r",
            default="open",
        ),
        key("ssl.ca", "PEM file with the authorities that vouch for ZooKeeper; set = TLS to ZooKeeper"),
        key("ssl.certificate", "PEM file with the certificate shown to ZooKeeper"),
        key("ssl.key", "PEM file with its private key; none = it stands in the certificate's file"),
        Key(
            "zookeeper.ssl.verifyHost",
            Kind.BOOL,
            Use.ALL,
            "compare ZooKeeper's name with its certificate",
            default=True,
            original=False,
        ),
    )


SHARED = (
    Key("zookeeper.connectString", Kind.TEXT, Use.ALL, "host:port list of ZooKeeper, optional /chroot", required=True),
    Key(
        "zookeeper.sessionTimeout",
        Kind.INT,
        Use.ALL,
        "session time-out asked for; of a server it is how long its partitions wait once its host or network is lost "
        "(10000 is usual), as shorter ones are lost in a pause of a busy machine; tools default to 30000",
        required=True,
        unit="ms",
        low=1,
    ),
    Key("cluster.root", Kind.TEXT, Use.ALL, "path of the cluster's root znode", required=True),
    Key(
        "network.frameSizeMax",
        Kind.SIZE,
        Use.ALL,
        "largest frame accepted; none = 64 MiB from clients, 1 GiB from storage nodes and servers",
        unit="bytes",
        original=False,
        low=1024,
    ),
    Key(
        "network.handshakeTimeout",
        Kind.TIME,
        Use.ALL,
        "a peer that does not finish TLS in this time is dropped; likewise one that does not greet, or show a storage "
        "node the cluster key",
        default=10_000,
        unit="ms",
        original=False,
        low=1,
    ),
    Key(
        "network.connectTimeout",
        Kind.TIME,
        Use.ALL,
        "give up on a TCP connection after this time",
        default=10_000,
        unit="ms",
        original=False,
        low=1,
    ),
    Key(
        "network.stallTimeout",
        Kind.TIME,
        Use.ALL,
        "a peer that takes none of the data waiting for it for this long is dropped",
        default=120_000,
        unit="ms",
        original=False,
        low=1,
    ),
    Key(
        "network.connectionsMax",
        Kind.INT,
        Use.ALL,
        "accepted connections per process; never more than half of the descriptors it may have",
        default=10_000,
        unit="connections",
        original=False,
        low=1,
    ),
    Key(
        "network.handshakesMax",
        Kind.INT,
        Use.ALL,
        "accepted connections that have not finished TLS; the oldest goes when there are more",
        default=500,
        unit="connections",
        original=False,
        low=1,
    ),
    Key(
        "network.connectionsPerAddressMax",
        Kind.INT,
        Use.ALL,
        "of those, from one address; none = half of all. Peers with the role of a server, a storage node or an admin "
        "do not count, and one connection in eight is theirs alone",
        unit="connections",
        original=False,
        low=1,
    ),
    Key(
        "network.requestTimeout",
        Kind.TIME,
        Use.ALL,
        "a connection that has asked for nothing in this time, keep-alives apart, is ended",
        default=30_000,
        unit="ms",
        original=False,
        low=1000,
    ),
    Key(
        "network.idleTimeout",
        Kind.TIME,
        Use.ALL,
        "a client from which not a byte has come for this time is dropped; clients send keep-alives after 10 minutes",
        default=1_800_000,
        unit="ms",
        original=False,
        low=1_800_000,
    ),
    Key(
        "network.unsentMax",
        Kind.SIZE,
        Use.ALL,
        "a peer for which more than this waits to be taken is dropped",
        default=512 * MIB,
        unit="bytes",
        original=False,
        low=MIB,
    ),
    Key(
        "network.gatheredMax",
        Kind.SIZE,
        Use.ALL,
        "unfinished frames of all connections together; above it the one with the most is dropped; none = 256 MiB on "
        "servers, 2 GiB on storage nodes, at least one frame",
        unit="bytes",
        original=False,
        low=1024,
    ),
    Key(
        "security.roles",
        Kind.TEXT,
        Use.ALL,
        "servers and storage nodes: YAML file that says which certificates may do what (docs/operations/security.md); "
        "none = everybody may do everything",
        original=False,
    ),
    *_zookeeper_security(),
    Key(
        "log.level",
        Kind.TEXT,
        Use.ALL,
        "least important level written",
        default="info",
        original=False,
        choices=("debug", "info", "warning", "error"),
    ),
    Key(
        "otel.endpoint",
        Kind.TEXT,
        Use.ALL,
        "where servers and storage nodes send metrics, log lines and spans by OTLP over HTTP, such as "
        "http://127.0.0.1:4318; none = off",
        original=False,
    ),
    Key("otel.interval", Kind.TIME, Use.ALL, "between two sends", default=10_000, unit="ms", original=False, low=100),
    Key(
        "otel.traceEvery",
        Kind.INT,
        Use.ALL,
        "one transaction in so many has spans; the same for all processes, so that traces are whole; 0 = none",
        default=1_000,
        unit="transactions",
        original=False,
        low=0,
    ),
    Key("otel.logs", Kind.BOOL, Use.ALL, "send log lines too", default=True, original=False),
    Key(
        "debug.flightRecorder",
        Kind.INT,
        Use.ALL,
        "batches of events and effects kept for a post-mortem; they hold payloads",
        default=0,
        unit="batches",
        original=False,
        low=0,
    ),
)
