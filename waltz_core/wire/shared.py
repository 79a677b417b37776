"""Structures that several protocols use: the records, and how they are read and written."""

from __future__ import annotations

import enum
from struct import Struct

from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.wire.primitives import FLOAT64, INT8, INT32, INT64, STRING, TEXT, list_of, structure


@record
class StackFrame:
    """One line of a Java stack trace, as 0.13.2 attaches them to failures."""

    class_name: str
    method: str
    file: str | None
    line: int


class FailureCode(enum.IntEnum):
    """What kind of failure a storage node reports; other numbers mean OTHER."""

    OTHER = 0
    FENCED = 1  # detail: the session that shuts the sender out
    OUT_OF_ORDER = 2  # detail: the highest id in the log
    NOT_ASSIGNED = 3
    UNAVAILABLE = 4  # reads and writes are switched off, or on while the request is for offline recovery
    BELOW_MARK = 5  # a mark or truncation below what may be given up; detail: that mark
    CORRUPT = 6  # a record does not match its checksum; detail: its id
    LIMBO = 7  # the log may lack records that it once acknowledged
    IO = 8  # the file system refused; the partition has stopped
    BEFORE_START = 9  # an id below the log start; detail: the log start
    WRONG_CLUSTER = 10  # cluster key or number of partitions differ
    NOT_IMPLEMENTED = 11
    OVERLOADED = 12


class Condition(enum.IntEnum):
    """How far a replica trusts its own log."""

    SOUND = 0
    SUSPECT = 1  # some ranges are refused, everything else is served
    LIMBO = 2  # acknowledged records may be missing at the end: the replica takes no part in a session
    STOPPED = 3  # after an error of the file system, until the node is restarted


class Cause(enum.IntEnum):
    """Why a range of records is suspect."""

    CHECKSUM = 1
    UNREADABLE = 2
    UNSYNCED = 3  # a sync failed after these were written
    MISSING = 4  # acknowledged once, not found


def name_of(kind: type[enum.IntEnum], number: int) -> str:
    """What a number that a peer sent stands for, in words; a later version may send one that is not known here."""
    known = kind._value2member_map_.get(number)
    return f"unknown ({number})" if known is None else kind(number).name.lower().replace("_", " ")


@record
class SuspectRange:
    """Records that a storage node refuses to serve, both ends inclusive."""

    first_id: int
    last_id: int
    cause: int  # Cause


@record
class IdRange:
    """Transaction ids, both ends inclusive."""

    first_id: int
    last_id: int


class Trouble(enum.IntEnum):
    """What kind of trouble keeps a peer from being used; the reason in words stands beside it."""

    NETWORK = 1  # no connection, or no answer over it
    TRUST = 2  # TLS failed, or one side refused the other's certificate
    REFUSAL = 3  # it does not let us in: our cluster key is not its own
    VERSION = 4  # it speaks no version of ours
    PROTOCOL = 5  # it sends what such a port never sends


class AccessLevel(enum.IntEnum):
    """How a process decides whom it serves; the statistic `access-level`."""

    EVERYBODY = 0  # every peer that reaches its ports
    CERTIFICATES = 1  # every peer with a certificate of its authority
    ROLES = 2  # what the rules say


UNUSABLE = "unusable."
"""Figures of a server whose names begin so give the `Trouble` with the storage node that the rest of the name names."""

AGE = "age-ms"
"""Of a partition of a proxy: milliseconds since the server said that there was nothing behind the mark."""

LOST_DATA = "replicas lost data"
"""In the reason of a partition whose log ends before what its server has committed."""

STARTED = "started-ms"
"""Statistic of a storage node: when its process started, in milliseconds since 1970."""

ARCHIVE_TROUBLE = "archive-trouble."
"""Figures of a server whose names begin so: the rest says why a partition is not archived, or read through."""

AWAITED = "awaited."
"""Figures of a server whose names begin so count what it waits for; the rest of the name says what, in words."""


@record
class Statistic:
    """One figure; `partition_id` is -1 for a figure of the whole process."""

    name: str
    partition_id: int
    value: float


STACK = list_of(structure(StackFrame, {"class_name": TEXT, "method": TEXT, "file": STRING, "line": INT32}))
"""Java refuses a null class or method, and so do we; n = 0 is what we write."""

ENDPOINTS = list_of(structure(Endpoint, {"host": TEXT, "port": INT32}))
ID_RANGES = list_of(structure(IdRange, {"first_id": INT64, "last_id": INT64}))
SUSPECTS = list_of(structure(SuspectRange, {"first_id": INT64, "last_id": INT64, "cause": INT8}))


def _write_statistics(out: bytearray, statistics: tuple[Statistic, ...]) -> None:
    """As the structure is written, with few calls for each: a server of many partitions has thousands of figures."""
    INT32.write(out, len(statistics))
    rest, names = _FIGURE.pack, dict[str, bytes]()  # the same figures of each partition have the same names
    for statistic in statistics:
        name = names.get(statistic.name)
        if name is None:
            text = bytearray()
            TEXT.write(text, statistic.name)
            name = names[statistic.name] = bytes(text)
        out += name
        out += rest(statistic.partition_id, statistic.value)


_FIGURE = Struct(">id")  # a figure without its name
STATISTICS = list_of(structure(Statistic, {"name": TEXT, "partition_id": INT32, "value": FLOAT64}))._replace(
    write=_write_statistics
)
