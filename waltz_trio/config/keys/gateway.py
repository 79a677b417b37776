"""Keys of gateways."""

from __future__ import annotations

from waltz_trio.config.keys.families import tls
from waltz_trio.config.keys.key import Key, Kind, Use


def _gateway(name: str, kind: Kind, meaning: str, default: int | None, *, unit: str = "", low: int = 1) -> Key:
    return Key(f"gateway.{name}", kind, Use.GATEWAY, meaning, default, unit=unit, original=False, low=low)


GATEWAY = (
    Key(
        "gateway.topics",
        Kind.LIST,
        Use.GATEWAY,
        "topics, each with name, cluster (an address waltz://HOST:PORT or the path of a client's configuration) and "
        "partitions (such as 0-3,7); keyField names the member of JSON payloads that carries idempotency keys "
        "(idempotencyKey): it must never change, and be the same in all gateways, or repeats commit twice; "
        "keysRequired: true refuses appends without one",
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
    Key(
        "gateway.healthHost",
        Kind.TEXT,
        Use.GATEWAY,
        "address on which /health, /metrics, /ping and /buildinfo are served, in the clear: not one of the world",
        default="127.0.0.1",
        original=False,
    ),
    Key(
        "gateway.healthPort",
        Kind.PORT,
        Use.GATEWAY,
        "their port; 0 = a free one, none = they are not served",
        original=False,
    ),
    _gateway("bodySizeMax", Kind.SIZE, "largest body of a request", 4 << 20, unit="bytes", low=1024),
    _gateway(
        "bytesMax", Kind.SIZE, "payloads of all appends under way, and bodies that are read", 64 << 20, unit="bytes"
    ),
    _gateway("appendsMax", Kind.INT, "appends under way; more are answered 503", 1000),
    _gateway("appendsPerCaller", Kind.INT, "appends of one caller under way; more are answered 429", 100),
    _gateway("feedsMax", Kind.INT, "feeds that are open; more are answered 503", 100),
    _gateway("feedsPerCaller", Kind.INT, "feeds and WebSockets of one caller; more are answered 429", 50),
    _gateway(
        "connectionsMax", Kind.INT, "connections beside those of feeds; the one that waits longest makes room", 500
    ),
    _gateway("requestsPerSecond", Kind.INT, "requests of all callers; more of them wait", 5000),
    _gateway("prefetch", Kind.INT, "payloads that a feed reads ahead", 16),
    _gateway(
        "windowSize",
        Kind.SIZE,
        "newest records of a partition that its readers share, while it has any",
        1 << 20,
        unit="bytes",
    ),
    _gateway("requestTimeout", Kind.TIME, "how long a cluster may take to answer a request", 30_000, unit="ms"),
    _gateway("keyWindow", Kind.INT, "transactions behind the mark of a key that are searched for it at most", 100_000),
    *tls("gateway.ssl.", Use.GATEWAY, "this gateway"),
)
