"""Messages of every protocol and version, for property tests."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import attrs
from hypothesis import strategies as st

from tests.lock_names import pack_names
from waltz_core.base.ids import Endpoint, ReqId
from waltz_core.base.log import Record, RecordHeader, SessionInfo
from waltz_core.wire import admin_messages, client_messages, shared, storage_messages
from waltz_core.wire.client_messages import PartitionState
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, STORAGE_PROTOCOL
from waltz_core.wire.primitives import checksum_of
from waltz_core.wire.table import Codec, WireProtocol

PROTOCOLS: tuple[WireProtocol[Any], ...] = (CLIENT_PROTOCOL, STORAGE_PROTOCOL, ADMIN_PROTOCOL)
VERSIONS = [(protocol, version) for protocol in PROTOCOLS for version in protocol.tables]

_INT8 = frozenset({"condition", "cause", "outcome", "refusal", "conflict", "lock_kind", "state"})
_INT64 = (
    {"client_mark", "seq_num", "transaction_id", "high_water_mark", "low_water_mark", "local_low_water_mark"}
    | {"session_id", "fence", "detail", "time_ms", "first_id", "last_id", "log_start", "max_transaction_id"}
    | {"capabilities", "durable_mark", "size", "creation_ms", "offset", "revision", "blocking_id", "since_ms"}
)
_INT32_SIZE = "SegmentReadRequest"  # the one message whose `size` is an int32


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


texts = st.text(st.characters(codec="utf-8"), max_size=12)
datas = st.binary(max_size=40)
req_ids = st.binary(min_size=16, max_size=16).map(ReqId)
records = st.builds(Record, _ints(64), req_ids, _ints(32), datas, _ints(32))
_hints: dict[type[Any], dict[str, Any]] = {}


def hints_of(cls: type[Any]) -> dict[str, Any]:
    if cls not in _hints:
        spaces = [vars(module) for module in (client_messages, storage_messages, admin_messages, shared)]
        own = next(space for space in spaces if space.get(cls.__name__) is cls) if cls not in (Endpoint,) else {}
        known = {"ReqId": ReqId, "UUID": UUID, "Record": Record, "Sequence": Sequence, "RecordHeader": RecordHeader}
        # A class may have an attribute of the name of a type, so the class's own names are left out.
        _hints[cls] = {
            name: eval(text, {**vars(typing), **known, **own}) if isinstance(text, str) else text
            for name, text in cls.__annotations__.items()
        }
    return _hints[cls]


def values(owner: type[Any], name: str, hint: Any) -> st.SearchStrategy[Any]:
    """What an attribute may hold."""
    if hint is ReqId:
        return req_ids
    if hint is int:
        if name in _INT8:
            return _ints(8)
        wide = name in _INT64 and not (name == "size" and owner.__name__ == _INT32_SIZE)
        return _ints(64 if wide else 32)
    simple = {
        bool: st.booleans(),
        str: texts,
        bytes: datas,
        float: st.floats(allow_nan=False),
        UUID: st.uuids(),
        Record: records,
        RecordHeader: st.builds(RecordHeader, _ints(64), req_ids, _ints(32)),
        SessionInfo: st.builds(SessionInfo, _ints(64), _ints(64), _ints(64)),
        Endpoint: st.builds(Endpoint, texts, _ints(32)),
    }
    if hint in simple:
        return simple[hint]
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return st.one_of(*(st.none() if each is types.NoneType else values(owner, name, each) for each in arguments))
    if typing.get_origin(hint) is tuple and arguments[-1] is not Ellipsis:  # (name, id) of a lock, (id, generation)
        kinds = {str: texts, int: _ints(64) if str in arguments else _ints(32), bool: st.booleans()}
        return st.tuples(*(kinds.get(each, st.none() | texts) for each in arguments))
    if typing.get_origin(hint) in (tuple, Sequence):
        item = arguments[0]
        of_map = typing.get_args(item)[-1:] == (bool,)
        return st.lists(
            values(owner, name, item), max_size=4, unique_by=(lambda each: each[0]) if of_map else None
        ).map(tuple)
    return build(hint)


def build(cls: type[Any], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Instances of a record class."""
    hints = hints_of(cls)
    return st.builds(
        cls, **{name: fixed[name] if name in fixed else values(cls, name, hint) for name, hint in hints.items()}
    )


def messages(protocol: WireProtocol[Any], version: int, codec: Codec[Any]) -> st.SearchStrategy[Any]:
    """Messages that `version` carries without loss."""
    cls, none = codec.cls, st.just(())
    name = cls.__name__
    if name in ("OpenRequest", "AdminOpenRequest"):  # ids on the wire are ignored
        ids = ("session_id", "seq_num", "partition_id") if name == "OpenRequest" else ("seq_num",)
        return build(cls, **dict.fromkeys(ids, st.just(-1)))
    if protocol is CLIENT_PROTOCOL:
        if name == "MountResponse" and version < 3:
            return build(cls, partition_state=st.sampled_from([PartitionState.READY, PartitionState.NOT_READY]))
        if name == "AppendRequest":
            missing = ("read_locks", "append_locks") if version == 0 else ("append_locks",) if version == 1 else ()
            return build(cls, **dict.fromkeys(missing, none)).map(_sealed)
        if name == "NamedAppendRequest":
            return st.builds(_named, build(cls), st.lists(st.none() | st.tuples(texts, _ints(64)), max_size=12))
        if name == "TransactionDataResponse":
            return build(cls).map(
                lambda m: _sealed(attrs.evolve(m, error=None)) if m.success else attrs.evolve(m, data=b"", checksum=0)
            )
    elif version == 0:
        return build(
            cls,
            **{
                f.name: st.just(f.default)
                for f in attrs.fields(cls)
                if f.default is not attrs.NOTHING and f.name != "stack"
            },
        )
    return build(cls)


def _named(message: Any, names: list[tuple[str, int] | None]) -> Any:
    """With as many names as locks, or none at all."""
    count = len(message.write_locks) + len(message.read_locks) + len(message.append_locks)
    return _sealed(attrs.evolve(message, names=pack_names((names + [None] * count)[:count])))


def _sealed(message: Any) -> Any:
    return attrs.evolve(message, checksum=checksum_of(message.data))


def every_codec() -> list[tuple[WireProtocol[Any], int, Codec[Any]]]:
    """Every codec once, with the lowest version that uses it."""
    found: dict[tuple[str, int], tuple[WireProtocol[Any], int, Codec[Any]]] = {}
    for protocol, version in VERSIONS:
        for codec in protocol.tables[version].codecs.values():
            found.setdefault((protocol.name, id(codec)), (protocol, version, codec))
    return list(found.values())


@functools.cache
def _any_message(name: str, version: int) -> st.SearchStrategy[Any]:
    protocol = next(protocol for protocol in PROTOCOLS if protocol.name == name)
    return st.one_of(*(messages(protocol, version, codec) for codec in protocol.tables[version].codecs.values()))


def any_message(protocol: WireProtocol[Any], version: int) -> st.SearchStrategy[Any]:
    """Any message of one version."""
    return _any_message(protocol.name, version)
