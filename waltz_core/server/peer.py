"""A client's connection, as partitions see it."""

from __future__ import annotations


class Peer:
    """What the server knows of one client connection; owned by the client port, read by partitions."""

    __slots__ = (
        "address",
        "carries_others",
        "client_id",
        "conn",
        "feed_windows",
        "net_sequence",
        "owner",
        "version",
        "who",
    )

    def __init__(self, conn: int, owner: str = "", who: str = "", *, carries_others: bool = False) -> None:
        self.conn = conn
        self.owner = owner  # name in its certificate, else its address: who shares with whom
        self.who = who  # for people
        self.address = ""  # host:port
        self.carries_others = carries_others  # it speaks for other clients: a proxy
        self.client_id: int | None = None  # of the first message
        self.net_sequence: int | None = None  # of the first mount
        self.version = 0
        self.feed_windows = False  # its mounts may be cut short
