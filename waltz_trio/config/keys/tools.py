"""Keys of tools, and of the demonstration."""

from __future__ import annotations

from waltz_trio.config.keys.families import tls
from waltz_trio.config.keys.key import Key, Kind, Use

TOOLS = (
    Key(
        "zookeeper.connectTimeout",
        Kind.INT,
        Use.TOOLS,
        "tools give up if ZooKeeper is not reached for this long, servers say so",
        default=10_000,
        unit="ms",
        low=1,
    ),
    Key(
        "tools.gateways",
        Kind.LIST,
        Use.TOOLS,
        "gateways that doctor, top and console ask how they are, each as HOST:PORT of gateway.healthPort",
        original=False,
    ),
    *tls("ssl.", Use.TOOLS, "the tool"),
)


DEMO = (
    Key("DataSource.ConnectString", Kind.TEXT, Use.DEMO, "database of the bank demo, required where a file is given"),
    Key("DataSource.Username", Kind.TEXT, Use.DEMO, "its user"),
    Key("DataSource.Password", Kind.TEXT, Use.DEMO, "its password"),
)
