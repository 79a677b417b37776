"""Keys of clients."""

from __future__ import annotations

from waltz_trio.config.keys.families import tls
from waltz_trio.config.keys.key import MIB, Key, Kind, Use

CLIENT = (
    Key(
        "client.autoMount",
        Kind.BOOL,
        Use.CLIENT,
        "accepted and ignored: partitions are mounted on first use",
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
    *tls("client.ssl.", Use.CLIENT, "this client"),
)
