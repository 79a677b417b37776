"""Messages in the form that the vectors give them, and through the codecs and back."""

from __future__ import annotations

import functools
import struct
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import attrs

from waltz_core.base.ids import ReqId, make_req_id, req_id_parts
from waltz_core.base.log import Record, RecordHeader, SessionInfo
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.encoded_run import EncodedRun
from waltz_core.wire.hello import Hello, decode_hello, encode_hello
from waltz_core.wire.shared import StackFrame
from waltz_core.wire.table import WireProtocol

PROTOCOLS: dict[str, WireProtocol[Any]] = {
    protocol.name: protocol for protocol in (CLIENT_PROTOCOL, STORAGE_PROTOCOL, ADMIN_PROTOCOL)
}


def opened(protocol: WireProtocol[Any], version: int, kind: type[Connection[Any]] = Connection) -> Connection[Any]:
    """A connection on which `version` was agreed."""
    connection = kind(protocol, "ours", [version])
    connection.receive(connection.hello(), [])
    return connection


def greeted_by(protocol: WireProtocol[Any], ours: Collection[int]) -> Connection[Any]:
    """A connection that has not seen its peer's greeting."""
    return Connection(protocol, "ours", ours)


@functools.cache
def _encoder(name: str, version: int) -> Connection[Any]:
    return opened(PROTOCOLS[name], version)


def frame_of(protocol: WireProtocol[Any], version: int, message: Any) -> bytes:
    """The frame of one message."""
    if isinstance(message, Hello):
        return encode_hello(message)
    out = bytearray()
    _encoder(protocol.name, version).encode(message, out)
    return bytes(out)


def message_class(protocol: WireProtocol[Any], name: str) -> type[Any]:
    """The record class of that name."""
    if name == "Hello":
        return Hello
    for table in protocol.tables.values():
        for codec in table.codecs.values():
            if codec.cls.__name__ == name:
                return codec.cls
    raise AssertionError(f"no message {name} in the {protocol.name} protocol")


def read_hello(frame: bytes) -> Hello:
    """The greeting in a whole frame."""
    hello, stop = decode_hello(frame, 7, len(frame))
    assert stop == len(frame)
    return hello


# ---- to the vectors' form --------------------------------------------------------------------


def fields_of(protocol: WireProtocol[Any], message: Any) -> dict[str, Any]:
    """The fields of a message as the vectors of its protocol list them."""
    names = [field.name for field in attrs.fields(type(message))]
    kind = type(message).__name__
    if kind == "TransactionDataResponse":
        names = [*names[:3], *(("data", "checksum") if message.success else ("error",))]
    fields: dict[str, Any] = {}
    for name in names:
        value = getattr(message, name)
        if name in _OURS:  # not in 0.13.2, hence never in a vector: must have its default
            assert value == getattr(attrs.fields(type(message)), name).default
            continue
        if name in ("message", "stack") and kind.endswith("FailureResponse"):
            fields.setdefault("exception", {})[name] = _plain(protocol, value)
        elif name == "data":
            fields["data_hex"] = value.hex()
        else:
            fields[_RENAMED.get((kind, name)) or _RENAMED.get(("", name), name)] = _plain(protocol, value)
    return fields


_OURS = frozenset({"code", "detail", "fence", "condition", "suspects", "reason"})
_RENAMED = {
    ("", "client_mark"): "client_high_water_mark",
    ("HighWaterMarkResponse", "high_water_mark"): "transaction_id",
}


def _plain(protocol: WireProtocol[Any], value: Any) -> Any:
    if isinstance(value, bytes):  # a request id: the only bytes besides `data`
        if protocol.name == "client":
            return dict(
                zip(("client_id", "generation", "partition_id", "seq_num"), req_id_parts(ReqId(value)), strict=True)
            )
        return list(struct.unpack(">qq", value))
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, tuple | EncodedRun):
        return [_plain(protocol, item) for item in value]
    if isinstance(value, StackFrame):
        return {"class": value.class_name, "method": value.method, "file": value.file, "line": value.line}
    if isinstance(value, Record | RecordHeader | SessionInfo):
        return fields_of(protocol, value)
    return value


# ---- from the vectors' form ------------------------------------------------------------------


def message_from(protocol: WireProtocol[Any], name: str, fields: Mapping[str, Any]) -> Any:
    """The record that the vectors' fields describe."""
    values = {key: _value(key, item) for key, item in fields.items()}
    if "exception" in values:
        values |= values.pop("exception")
    if "client_high_water_mark" in values:
        values["client_mark"] = values.pop("client_high_water_mark")
    if name == "HighWaterMarkResponse":
        values["high_water_mark"] = values.pop("transaction_id")
    return message_class(protocol, name)(**{_DATA.get(key, key): value for key, value in values.items()})


_DATA = {"data_hex": "data"}


def req_id_from(value: Any) -> ReqId:
    """A request id from four ints by name, or from two int64."""
    if isinstance(value, Mapping):
        return make_req_id(value["client_id"], value["generation"], value["partition_id"], value["seq_num"])
    return ReqId(struct.pack(">qq", *value))


def record_from(fields: Mapping[str, Any]) -> Record | RecordHeader:
    """A record, or its header where there is no data."""
    values = {_DATA.get(key, key): _value(key, item) for key, item in fields.items()}
    return Record(**values) if "data" in values else RecordHeader(**values)


def _value(key: str, item: Any) -> Any:
    if item is None:
        return None
    match key:
        case "req_id":
            return req_id_from(item)
        case "data_hex":
            return bytes.fromhex(item)
        case "key":
            return UUID(item)
        case "exception":
            stack = tuple(StackFrame(at["class"], at["method"], at["file"], at["line"]) for at in item["stack"])
            return {"message": item["message"], "stack": stack}
        case "record" | "record_header":
            return record_from(item)
        case "records" | "record_headers":
            return tuple(record_from(each) for each in item)
        case "last_session_info":
            return SessionInfo(**item)
    if isinstance(item, list):
        return tuple(tuple(each) if isinstance(each, list) else each for each in item)
    return item


# ---- refusals --------------------------------------------------------------------------------


def same_refusal(java: Mapping[str, Any], ours: Exception) -> None:
    """Ours refuses for the reason that Java gives, as far as its text tells one."""
    text, found = java["text"] or "", str(ours)
    for there, here in _REASONS:
        if there in (text or java["exception"]):
            assert here in found, f"Java: {text}; ours: {found}"
            break
    if "unknown message type" in text and "unknown message type" in found:
        assert text in found, f"Java: {text}; ours: {found}"


_REASONS = (
    ("version[expected", "version "),
    ("magicByte=[expected", "magic byte "),
    ("minimumReadableBytes", "negative frame length"),
    ("corrupted message", "corrupted "),
    ("checksum error", "checksum error"),
    ("is null", "null"),
    ("Illegal Capacity", "negative count"),
    ("NullPointerException", "null"),
    ("NegativeArraySize", "negative count"),
    ("read locks not supported", "read locks need codec"),
    ("append locks not supported", "append locks need codec"),
)
