"""Identities: requests, replicas, endpoints."""

from __future__ import annotations

from struct import Struct
from typing import NewType

from waltz_core.base.errors import ConfigError
from waltz_core.base.record import record

ReqId = NewType("ReqId", bytes)
"""16 bytes: client id, generation, partition id, sequence, each int32 big-endian. Raw bytes are four
times cheaper to decode, hash and re-encode than a class of four ints."""

_REQ_ID = Struct(">iiii")
_INT = Struct(">i")


def make_req_id(client_id: int, generation: int, partition_id: int, sequence: int) -> ReqId:
    """Pack the four parts; each must fit a signed 32-bit integer."""
    return ReqId(_REQ_ID.pack(client_id, generation, partition_id, sequence))


def req_id_parts(req_id: ReqId) -> tuple[int, int, int, int]:
    """Client id, generation, partition id, sequence."""
    return _REQ_ID.unpack(req_id)


def req_client(req_id: ReqId) -> int:
    """Client id of a request id."""
    return int(_INT.unpack_from(req_id, 0)[0])


def req_generation(req_id: ReqId) -> int:
    """Partition generation the client believed in."""
    return int(_INT.unpack_from(req_id, 4)[0])


def req_partition(req_id: ReqId) -> int:
    """Partition id of a request id."""
    return int(_INT.unpack_from(req_id, 8)[0])


def req_sequence(req_id: ReqId) -> int:
    """Sequence number of a request id."""
    return int(_INT.unpack_from(req_id, 12)[0])


@record
class Endpoint:
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


_NO_HOST = frozenset(":/,;'\"<>[](){} \t\r\n")  # of a list, or of what somebody quoted


def parse_endpoint(text: str) -> Endpoint:
    """Read `host:port`.

    Raises:
        ConfigError: not exactly one colon, or no valid port behind it.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not _NO_HOST.isdisjoint(host) or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"expected host:port, found {text!r}")
    return Endpoint(host, int(port))


@record
class ReplicaId:
    """One partition on one storage node; `storage` is the node's connect string `host:port`."""

    partition_id: int
    storage: str
