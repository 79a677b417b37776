"""Every decoder of the project as a function of bytes, with valid inputs to begin from and a share of the runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from tests.twin_0132.disk import decode_unverified
from waltz_core.base import ids
from waltz_core.base.errors import ConfigError, WaltzError
from waltz_core.storage import control, index, record_codec, segment, side
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.frame import HEADER_SIZE, frame
from waltz_core.wire.hello import decode_hello
from waltz_core.wire.table import Codec, WireProtocol
from waltz_core.zookeeper import modified_utf8, znodes
from waltz_trio.config.config import Config

VECTORS = Path(__file__).parent.parent / "vectors"
PROTOCOLS: tuple[WireProtocol[Any], ...] = (CLIENT_PROTOCOL, STORAGE_PROTOCOL, ADMIN_PROTOCOL)
STREAM_FRAME_MAX = 1 << 20

Decode: TypeAlias = Callable[[bytes], object]

FREQUENT = {
    "AppendRequest": 30,
    "FeedData": 30,
    "TransactionDataRequest": 8,
    "TransactionDataResponse": 8,
    "LockFailure": 4,
    "SuccessResponse": 10,
    "RecordListResponse": 6,
    "RecordHeaderListResponse": 4,
    "FeedRequest": 3,
    "FlushRequest": 2,
    "FlushResponse": 2,
}
"""Shares follow how often a message is sent; everything else counts 1."""


@attrs.frozen
class Target:
    """One decoder; `seeds` are valid inputs."""

    name: str
    share: float
    decode: Decode
    seeds: tuple[bytes, ...] = ()
    declared: tuple[type[Exception], ...] = (WaltzError,)


def all_targets() -> list[Target]:
    """Every decoder there is."""
    return [*_messages(), *_streams(), *_cluster(), *_files(), *_identities()]


# ---- the wire ----------------------------------------------------------------------------------------------------


def _messages() -> Iterator[Target]:
    bodies: dict[int, list[bytes]] = {}
    for name in ("client_server", "client_server_decode", "storage", "storage_malformed"):
        for row in _rows(name):
            if row.get("body_hex"):
                body = bytes.fromhex(row["body_hex"])
                bodies.setdefault(body[0], []).append(body)
    for protocol in PROTOCOLS:
        for version, table in protocol.tables.items():
            for type_id, codec in table.codecs.items():
                share = FREQUENT.get(codec.cls.__name__, 1) / len(protocol.tables)
                seeds = tuple(bodies.get(type_id, ())[:40])
                name = f"{protocol.name} {version} {codec.cls.__name__}"
                yield Target(name, share, partial(_body, codec), seeds or (bytes([type_id]) + bytes(40),))


def _body(codec: Codec[Any], data: bytes) -> object:
    return codec.decode(data, 0, len(data))


def _streams() -> Iterator[Target]:
    hello = [bytes.fromhex(row["body_hex"]) for row in _rows("client_server") if row["message"] == "Hello"]
    yield Target("hello", 1, lambda data: decode_hello(data, 0, len(data)), tuple(hello))
    frames: dict[tuple[int, int], list[bytes]] = {}
    for name in ("client_server", "storage"):
        for row in _rows(name):
            found = bytes.fromhex(row["frame_hex"])
            frames.setdefault((found[0], int.from_bytes(found[1:3])), []).append(found)
    for protocol in PROTOCOLS:
        for version in protocol.tables:
            seeds = tuple(frames.get((protocol.magic, version), ())[:80])
            empty = frame(protocol.magic, version)
            yield Target(f"{protocol.name} {version} stream", 0.5, partial(_stream, protocol, version), (*seeds, empty))
        yield Target(
            f"{protocol.name} greeting", 1, partial(_greeting, protocol), tuple(frame(72, 0, b) for b in hello)
        )


def _stream(protocol: WireProtocol[Any], version: int, data: bytes) -> object:
    connection = Connection(protocol, "", (version,), STREAM_FRAME_MAX)
    connection.receive(connection.hello(), [])
    half = len(data) // 2
    out: list[Any] = []
    connection.receive(data[:half], out)
    connection.receive(data[half:], out)
    assert connection.gathered <= len(data)
    return out


def _greeting(protocol: WireProtocol[Any], data: bytes) -> object:
    connection = Connection(protocol, "", tuple(protocol.tables))
    connection.receive(data, [])
    return connection.version


# ---- ZooKeeper ---------------------------------------------------------------------------------------------------


def _cluster() -> Iterator[Target]:
    seeds = tuple(bytes.fromhex(row["hex"]) for row in _rows("zk_serializers") if row.get("hex"))
    for name in sorted(vars(znodes)):
        if name.startswith("decode_"):
            decode: Decode = getattr(znodes, name)
            good = tuple(seed for seed in seeds if _decodes(decode, seed))[:60]
            yield Target(name.removeprefix("decode_"), 2, decode, good or (bytes(4),))
    yield Target("modified utf-8", 1, modified_utf8.decode_modified_utf8, (b"storage:6000", b"\xc0\x80"))


def _decodes(decode: Decode, data: bytes) -> bool:
    try:
        decode(data)
    except WaltzError:
        return False
    return True


# ---- files -------------------------------------------------------------------------------------------------------


def _files() -> Iterator[Target]:
    by_kind: dict[str, list[bytes]] = {}
    for path in sorted((VECTORS / "storage_dirs").rglob("*")):
        if path.is_file() and path.suffix in (".seg", ".idx", ".ctl") and path.stat().st_size < 20_000:
            by_kind.setdefault(path.suffix, []).append(path.read_bytes())
    segments = tuple(sorted(set(by_kind.get(".seg", ())))[:40])
    indexes = tuple(sorted(set(by_kind.get(".idx", ())))[:40])
    controls = tuple(sorted(set(by_kind.get(".ctl", ())))[:40])
    records = tuple(one[segment.HEADER_SIZE :] for one in segments if len(one) > segment.HEADER_SIZE)
    yield Target("segment header", 1, segment.decode_header, segments)
    yield Target("records of a file", 6, lambda data: record_codec.decode_run(data, 0, 1000), records)
    yield Target("one record of a file", 3, lambda data: record_codec.check_record(data, 0, 0), records)
    yield Target("record of 0.13.2", 1, decode_unverified, records, (ValueError,))
    yield Target("index", 1, _index, indexes)
    yield Target("control header", 1, control.decode_header, controls)
    yield Target("control entries", 2, _control, controls)
    belongs = side.Belongs(1, 1, 0)
    fences = (side.encode_fence(side.Fence(5, None), belongs, 1), side.encode_fence(side.Fence(7, None), belongs, 2))
    marks = (side.encode_mark(9, belongs, 1), side.encode_faults({1, 2, 9}, belongs, 1), *fences)
    yield Target("side file", 2, lambda data: _side(side.newest_slot(data)), marks)
    yield Target("side file with a good checksum", 2, _sealed_side, tuple(one[40:] for one in marks))


def _index(data: bytes) -> object:
    entries = index.decode_entries(data)
    return index.plausible(entries, len(data))


def _control(data: bytes) -> object:
    body = data[control.HEADER_SIZE :]
    count = len(body) // control.ENTRY_SIZE
    return [control.decode_entry(body, one) for one in range(min(count, 20))]


def _side(slot: side.Slot | None) -> object:
    belongs = side.Belongs(1, 1, 0) if slot is None else slot.belongs
    return side.decode_fence(slot), side.decode_mark(slot, belongs), side.decode_faults(slot)


def _sealed_side(data: bytes) -> object:
    slot = side.encode_slot(side.Slot(1, side.Belongs(1, 1, 0), data[:400]))
    found = side.newest_slot(slot)
    assert found is not None
    return _side(found)


# ---- identities and configuration --------------------------------------------------------------------------------


def _identities() -> Iterator[Target]:
    def req_id(data: bytes) -> object:
        one = ids.ReqId(data[:16].ljust(16, b"\0"))
        parts = ids.req_id_parts(one)
        assert ids.make_req_id(*parts) == one
        return ids.req_client(one), ids.req_generation(one), ids.req_partition(one), ids.req_sequence(one)

    yield Target("request id", 1, req_id, (bytes(range(16)),))
    yield Target(
        "endpoint",
        1,
        lambda data: ids.parse_endpoint(data.decode("latin-1")),
        (b"storage:6000", b"[::1]:6000"),
        (ConfigError,),
    )
    page = b"cluster.root: /waltz\nserver:\n  port: 5500\nstorage.segment.size.threshold: 1000\n"
    yield Target("configuration", 0.02, _configuration, (page, b"a: {b: [1, 2]}\n"))


def _configuration(data: bytes) -> object:
    return Config.parse(data[:2000].decode("latin-1"), "fuzz.yml")


def _rows(name: str) -> Iterator[dict[str, Any]]:
    with (VECTORS / f"{name}.jsonl").open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


__all__ = ["HEADER_SIZE", "Target", "all_targets"]
