"""What is known of a configuration key: type, unit, default, meaning, and which process reads it."""

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
    high: int | None = None  # largest one
