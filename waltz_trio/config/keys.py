"""Every configuration key: type, unit, default, meaning. `docs/configuration.md` is made from this table.

python -m waltz_trio.config.page > docs/configuration.md

The file is long because the table is. It stays in one piece: a key is looked for by its name, not by the process that
reads it, and a key that several processes read stands once. What is done with a value is elsewhere: `config.py` parses
it, and `waltz_trio/node/settings.py` makes typed records for processes.
"""

from __future__ import annotations

import enum

from waltz_core.base.record import record

MIB = 1 << 20


class Kind(enum.Enum):
    """How a value is read."""

    TEXT = "text"
    INT = "int"  # 32 bits
    LONG = "long"  # 64 bits
    BOOL = "bool"
    PORT = "port"
    SIZE = "size"  # bytes; text may carry B, KiB, MiB, GiB
    TIME = "time"  # milliseconds; text may carry ms, s, min
    LIST = "list"  # of what the key says


class Use(enum.Enum):
    """Who reads a key."""

    ALL = "all processes"
    SERVER = "server"
    STORAGE = "storage node"
    CLIENT = "client"
    TOOLS = "tools"
    GATEWAY = "gateway"
    PROXY = "proxy"
    DEMO = "demo"


@record
class Key:
    """One configuration key."""

    name: str
    kind: Kind
    use: Use
    meaning: str
    default: str | int | bool | None = None
    required: bool = False
    unit: str = ""
    original: bool = True  # known to 0.13.2
    choices: tuple[str, ...] = ()
    low: int | None = None  # smallest value allowed


def _tls(prefix: str, use: Use, who: str) -> tuple[Key, ...]:
    def key(name: str, meaning: str, *, kind: Kind = Kind.TEXT, original: bool = False, default: object = None) -> Key:
        assert default is None or isinstance(default, str | bool)
        return Key(prefix + name, kind, use, meaning, default=default, original=original)

    return (
        key("certificate", f"PEM file with the certificate of {who} and its chain; none = a self-signed one is made"),
        key("key", "PEM file with the private key; none = it stands in the certificate's file"),
        key("keyPassword", "password of the private key"),
        key("keyPasswordFile", "file whose first line is the password, instead of it"),
        key("ca", "PEM file with the authorities trusted; takes the place of trustStore.location"),
        key(
            "verify",
            "true = refuse peers that nothing vouches for, and refuse to start without a trust store; false = accept "
            "everybody, without a warning; unset = verify where a trust store is set, else accept with one warning "
            "(mappings and waltz:// addresses verify)",
            kind=Kind.BOOL,
        ),
        key(
            "requireClientCertificate",
            "accepting side with a trust store: false = clients need no certificate",
            kind=Kind.BOOL,
            default=True,
        ),
        key(
            "verifyHost",
            "compare the peer's name with its certificate when dialing; unset = only where a program names its cluster "
            "by a mapping or a waltz:// address",
            kind=Kind.BOOL,
        ),
        key("keyStore.location", "PKCS12, JKS or PEM file, recognised by its content", original=True),
        key("keyStore.password", "required by the original where a location is set", original=True),
        key("keyStore.passwordFile", "file whose first line is the password, instead of it"),
        key("keyStore.type", "accepted and ignored: the content decides", original=True, default="JKS"),
        key("keyManager.algorithm", "accepted and ignored", original=True, default="SunX509"),
        key(
            "trustStore.location",
            "PKCS12, JKS or PEM file. Accepting side: set = client certificates are required. Dialing side: set = the "
            "peer's chain is verified",
            original=True,
        ),
        key("trustStore.password", "required by the original where a location is set", original=True),
        key("trustStore.passwordFile", "file whose first line is the password, instead of it"),
        key("trustStore.type", "accepted and ignored: the content decides", original=True, default="JKS"),
        key("trustManager.algorithm", "accepted and ignored", original=True, default="SunX509"),
    )


def _graphite(prefix: str, use: Use) -> tuple[Key, ...]:
    return (
        Key(prefix + "hostname", Kind.TEXT, use, "where Graphite listens; none = off"),
        Key(prefix + "port", Kind.INT, use, "its port", default=2003),
        Key(prefix + "prefix", Kind.TEXT, use, "prefix of every name", default="waltz"),
        Key(
            prefix + "reportIntervalMs",
            Kind.INT,
            use,
            "time between reports; seconds in spite of its name, as in the original",
            default=60,
            unit="s",
        ),
        Key(prefix + "useUdp", Kind.BOOL, use, "UDP instead of TCP", default=False),
    )


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


_SHARED = (
    Key("zookeeper.connectString", Kind.TEXT, Use.ALL, "host:port list of ZooKeeper, optional /chroot", required=True),
    Key(
        "zookeeper.sessionTimeout",
        Kind.INT,
        Use.ALL,
        "session time-out asked for; tools default to 30000",
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

_CLIENT = (
    Key(
        "client.autoMount",
        Kind.BOOL,
        Use.CLIENT,
        "mount every partition at the start",
        default=True,
    ),
    Key(
        "client.numTransactionRetryThreads",
        Kind.INT,
        Use.CLIENT,
        "accepted and ignored: there are no threads to count",
        default=1,
    ),
    Key("client.numConsumerThreads", Kind.INT, Use.CLIENT, "accepted and ignored", default=10),
    Key(
        "client.longWaitThreshold",
        Kind.LONG,
        Use.CLIENT,
        "age after which an unresolved append asks the server what became of it",
        default=5000,
        unit="ms",
        low=1,
    ),
    Key(
        "client.maxConcurrentTransactions",
        Kind.INT,
        Use.CLIENT,
        "unresolved submits per partition",
        default=5,
        unit="transactions",
        low=1,
    ),
    Key(
        "client.sendWindow",
        Kind.SIZE,
        Use.CLIENT,
        "payload bytes of unresolved appends above which send waits",
        default=8 * MIB,
        unit="bytes",
        original=False,
        low=1,
    ),
    Key(
        "client.lockNames",
        Kind.BOOL,
        Use.CLIENT,
        "send our servers the names of locks, for explanations and the decision journal; false = only hashes",
        default=True,
        original=False,
    ),
    Key(
        "client.feedBufferMax",
        Kind.INT,
        Use.CLIENT,
        "transactions received and not consumed, per partition; a server is asked for what there is room for, an older "
        "one sends everything, and what does not fit is dropped and asked for again",
        default=100_000,
        unit="transactions",
        original=False,
        low=1000,  # a gap this wide uses up its whole window; 0.13.2 servers keep windows that are not used up
    ),
    Key(
        "client.connectTimeout",
        Kind.TIME,
        Use.CLIENT,
        "how long `open_client` waits for the cluster to answer before it raises; 0 = without end",
        default=10_000,
        unit="ms",
        original=False,
        low=0,
    ),
    Key(
        "client.closeTimeout",
        Kind.TIME,
        Use.CLIENT,
        "how long a client that is left waits for appends under way",
        default=5000,
        unit="ms",
        original=False,
        low=0,
    ),
    Key("client.mockDriver", Kind.TEXT, Use.CLIENT, "test hook of the original, ignored"),
    *_tls("client.ssl.", Use.CLIENT, "this client"),
)

_SERVER = (
    Key("server.port", Kind.PORT, Use.SERVER, "port for clients", required=True, low=0),
    Key(
        "server.host",
        Kind.TEXT,
        Use.SERVER,
        "address to listen on (0.0.0.0 = all); none = that of the local host name",
        original=False,
    ),
    Key(
        "server.advertisedEndpoint",
        Kind.TEXT,
        Use.SERVER,
        "host:port registered in ZooKeeper; none = canonical local host name and server.port",
        original=False,
    ),
    Key("server.jetty.port", Kind.PORT, Use.SERVER, "port of the HTTP endpoints; none = no HTTP", low=0),
    Key(
        "server.console",
        Kind.TEXT,
        Use.SERVER,
        "who sees the console (docs/operations/console.md): loopback = processes of this machine, at the HTTP "
        "endpoints; certificate = who shows one of the authority, with a role, at server.console.port; off = nobody",
        default="loopback",
        original=False,
        choices=("off", "loopback", "certificate"),
    ),
    Key(
        "server.console.port",
        Kind.PORT,
        Use.SERVER,
        "where the console is served over TLS, if server.console is certificate",
        original=False,
        low=0,
    ),
    Key(
        "server.jetty.host",
        Kind.TEXT,
        Use.SERVER,
        "address of the HTTP endpoints; none = as server.host",
        original=False,
    ),
    Key("server.region", Kind.TEXT, Use.SERVER, "declared by the original, never used"),
    Key(
        "server.optimisticLockTableSize",
        Kind.INT,
        Use.SERVER,
        "slots of a partition's lock table",
        default=30_000,
        unit="slots",
        low=1,
    ),
    Key(
        "server.archive",
        Kind.TEXT,
        Use.SERVER,
        "path or URI of the archive: named to clients that ask for transactions below the log start",
        original=False,
    ),
    Key(
        "server.exactLocks",
        Kind.INT,
        Use.SERVER,
        "takings of locks that a partition remembers exactly, to tell true conflicts from false ones; 16 bytes each",
        default=1_000_000,
        unit="locks",
        original=False,
        low=0,
    ),
    Key(
        "server.feedCacheSize",
        Kind.SIZE,
        Use.SERVER,
        "cache of transaction ids and headers, all partitions together (original: 64 MiB)",
        default=16 * MIB,
        unit="bytes",
        low=0,
    ),
    Key(
        "server.minFetchSize",
        Kind.INT,
        Use.SERVER,
        "a feed request covers at least this many transactions, or the gap if that is larger",
        default=100,
        unit="transactions",
        low=1,
    ),
    Key(
        "server.realtimeThreshold",
        Kind.INT,
        Use.SERVER,
        "a feed closer than this to the mark counts as real-time; must exceed server.minFetchSize",
        default=1000,
        unit="transactions",
        low=1,
    ),
    Key(
        "server.transactionDataCacheSize",
        Kind.SIZE,
        Use.SERVER,
        "payload cache, all partitions together (original: 128 MiB)",
        default=32 * MIB,
        unit="bytes",
        low=0,
    ),
    Key(
        "server.transactionDataCacheAllocation",
        Kind.TEXT,
        Use.SERVER,
        "accepted and ignored",
        default="heap",
        choices=("heap", "direct"),
    ),
    Key(
        "server.payloadSizeMax",
        Kind.SIZE,
        Use.SERVER,
        "largest payload of one append",
        default=16 * MIB,
        unit="bytes",
        original=False,
        low=0,
    ),
    Key(
        "server.locksMax",
        Kind.INT,
        Use.SERVER,
        "most locks of one append",
        default=10_000,
        unit="locks",
        original=False,
        low=1,
    ),
    Key(
        "server.queueCountMax",
        Kind.INT,
        Use.SERVER,
        "appends that wait in one partition before those who sent more than their fair part are not read from",
        default=2_000,
        unit="appends",
        original=False,
        low=1,
    ),
    Key(
        "server.readCountMax",
        Kind.INT,
        Use.SERVER,
        "requests without an answer (payloads, ranges, feeds, mounts, flushes) that wait in the server, likewise",
        default=10_000,
        unit="requests",
        original=False,
        low=1,
    ),
    Key(
        "server.trustProxies",
        Kind.BOOL,
        Use.SERVER,
        "without roles: believe whoever says that it is a proxy, and let it append under request ids of other clients",
        default=False,
        original=False,
    ),
    Key(
        "server.journal.directory",
        Kind.TEXT,
        Use.SERVER,
        "directory of the decision journal, see formats.md",
        original=False,
    ),
    Key(
        "server.journal.mode",
        Kind.TEXT,
        Use.SERVER,
        "off, async (written behind) or sync (on disk before the record is replicated)",
        default="off",
        original=False,
        choices=("off", "async", "sync"),
    ),
    Key(
        "server.journal.maxBytes",
        Kind.SIZE,
        Use.SERVER,
        "oldest journal files are deleted above this; 0 = never",
        default=1 << 30,
        unit="bytes",
        original=False,
        low=0,
    ),
    Key(
        "storage.maxBatchSize",
        Kind.INT,
        Use.SERVER,
        "most appends sent to storage in one message (original: 100)",
        default=1000,
        unit="appends",
        low=1,
    ),
    Key(
        "storage.initialRetryInterval",
        Kind.LONG,
        Use.SERVER,
        "first pause when storage or recovery fails",
        default=100,
        unit="ms",
        low=1,
    ),
    Key(
        "storage.maxRetryInterval",
        Kind.LONG,
        Use.SERVER,
        "longest pause (it doubles)",
        default=20_000,
        unit="ms",
        low=1,
    ),
    Key(
        "storage.checkpointInterval",
        Kind.INT,
        Use.SERVER,
        "a store session is renewed after this many commits, which moves the low-water mark",
        default=250_000,
        unit="transactions",
        low=1,
    ),
    Key(
        "storage.answerTimeout",
        Kind.TIME,
        Use.SERVER,
        "a storage node that leaves a request unanswered for this long is reconnected",
        default=10_000,
        unit="ms",
        original=False,
        low=1,
    ),
    *_tls("server.ssl.", Use.SERVER, "this server, shown to clients and storage nodes,"),
    *_graphite("server.graphite.", Use.SERVER),
)

_STORAGE = (
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
    *_tls("storage.ssl.", Use.STORAGE, "this storage node"),
    *_graphite("storage.graphite.", Use.STORAGE),
)

_TOOLS = (
    Key(
        "zookeeper.connectTimeout",
        Kind.INT,
        Use.TOOLS,
        "tools give up if ZooKeeper is not reached for this long, servers say so",
        default=10_000,
        unit="ms",
        low=1,
    ),
    *_tls("ssl.", Use.TOOLS, "the tool"),
)


def _gateway(name: str, kind: Kind, meaning: str, default: int | None, *, unit: str = "", low: int = 1) -> Key:
    return Key(f"gateway.{name}", kind, Use.GATEWAY, meaning, default, unit=unit, original=False, low=low)


_GATEWAY = (
    Key(
        "gateway.topics",
        Kind.LIST,
        Use.GATEWAY,
        "topics, each with name, cluster (an address waltz://HOST:PORT or the path of a client's configuration) and "
        "partitions (such as 0-3,7); keyField names the member of JSON payloads that carries idempotency keys "
        "(idempotencyKey), keysRequired: true refuses appends without one",
        required=True,
        original=False,
    ),
    Key(
        "gateway.access",
        Kind.LIST,
        Use.GATEWAY,
        "who may do what: each with certificate (a name or pattern) or tokenSha256 and name (see `waltz gateway "
        "token`), and the topics that it may read and append to, or all; none = whoever reaches the gateway may do "
        "everything, and it listens on this machine alone",
        original=False,
    ),
    Key(
        "gateway.origins",
        Kind.LIST,
        Use.GATEWAY,
        "origins of other sites whose pages may use the gateway, such as https://shop.example; none = no page but "
        "those of its own address",
        original=False,
    ),
    Key("gateway.host", Kind.TEXT, Use.GATEWAY, "address to listen on", default="127.0.0.1", original=False),
    Key("gateway.port", Kind.PORT, Use.GATEWAY, "port to listen on; 0 = a free one", default=7950, original=False),
    _gateway("bodySizeMax", Kind.SIZE, "largest body of a request", 4 << 20, unit="bytes", low=1024),
    _gateway(
        "bytesMax", Kind.SIZE, "payloads of all appends under way, and bodies that are read", 64 << 20, unit="bytes"
    ),
    _gateway("appendsMax", Kind.INT, "appends under way; more are answered 503", 1000),
    _gateway("appendsPerCaller", Kind.INT, "appends of one caller under way; more are answered 429", 100),
    _gateway("feedsMax", Kind.INT, "feeds that are open; more are answered 503", 100),
    _gateway(
        "connectionsMax", Kind.INT, "connections beside those of feeds; the one that waits longest makes room", 500
    ),
    _gateway("requestsPerSecond", Kind.INT, "requests of all callers; more of them wait", 5000),
    _gateway("prefetch", Kind.INT, "payloads that a feed reads ahead", 16),
    _gateway("requestTimeout", Kind.TIME, "how long a cluster may take to answer a request", 30_000, unit="ms"),
    _gateway("keyWindow", Kind.INT, "transactions behind the mark of a key that are searched for it at most", 100_000),
    *_tls("gateway.ssl.", Use.GATEWAY, "this gateway"),
)

_PROXY = (
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

_DEMO = (
    Key("DataSource.ConnectString", Kind.TEXT, Use.DEMO, "database of the bank demo, required where a file is given"),
    Key("DataSource.Username", Kind.TEXT, Use.DEMO, "its user"),
    Key("DataSource.Password", Kind.TEXT, Use.DEMO, "its password"),
)

KEYS: dict[str, Key] = {
    key.name: key for key in (*_SHARED, *_SERVER, *_STORAGE, *_CLIENT, *_TOOLS, *_GATEWAY, *_PROXY, *_DEMO)
}
