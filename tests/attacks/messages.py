"""What hostile peers send: frames of every message type of every codec, made from the codecs' own tables.

A message type that is added to a table is attacked with from the same day, by what its class says of its attributes;
`tests/attacks/test_messages.py` fails if that is not enough to encode it.
"""

from __future__ import annotations

import itertools
import struct
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import attrs

from tests.lock_names import pack_names
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.frame import HEADER
from waltz_core.wire.primitives import checksum_of
from waltz_core.wire.table import Codec, WireProtocol

PROTOCOLS: dict[str, WireProtocol[Any]] = {
    "client": CLIENT_PROTOCOL,
    "storage": STORAGE_PROTOCOL,
    "admin": ADMIN_PROTOCOL,
}
KEY = UUID(int=0x5EC2E7)  # of no cluster
ID_WIDTHS = (63, 31, 7)  # bits of the largest number in fields of eight, four and one bytes
LOCKS = tuple(range(2_000))
TEXT = "\x00\u202e\ud800" + "x" * 5_000  # a lone surrogate, and what terminals obey


@attrs.frozen
class Identity:
    """As whom a peer speaks: its own numbers by default, those of others when it lies."""

    client_id: int = 4_000_000
    generation: int = 1
    partition: int = 0
    sequence: int = 1
    key: UUID = KEY
    partitions: int = 1

    @property
    def req_id(self) -> ReqId:
        """A request id."""
        return make_req_id(self.client_id, self.generation, self.partition, self.sequence)


def message_types(name: str) -> list[tuple[int, Codec[Any]]]:
    """Every (version, codec) of a protocol."""
    return [(version, codec) for version, table in PROTOCOLS[name].tables.items() for codec in table.codecs.values()]


def newest(name: str) -> dict[str, Codec[Any]]:
    """The message types of the newest version of a protocol, by name."""
    table = PROTOCOLS[name].tables[max(PROTOCOLS[name].tables)]
    return {codec.cls.__name__: codec for codec in table.codecs.values()}


# ---- ordinary values -------------------------------------------------------------------------


def ordinary(codec: Codec[Any], who: Identity = Identity()) -> Any:
    """A message that a peer of good will could send, and that changes nothing of others'."""
    return _sealed(_build(codec.cls, lambda name, hint: _ordinary_value(name, hint, who)))


def _ordinary_value(name: str, hint: Any, who: Identity) -> Any:
    known: dict[str, Any] = {
        "partition_id": who.partition,
        "num_partitions": who.partitions,
        "client_mark": -1,
        "count": 100,
        "count_max": 100,
        "size_max": 100_000,
        "max_num_records": 100,
    }
    return known[name] if name in known else _value(name, hint, who, 0)


def _build(cls: type[Any], value: Callable[[str, Any], Any]) -> Any:
    return cls(**{name: value(name, hint) for name, hint in hints(cls).items()})


_hints: dict[type[Any], Mapping[str, Any]] = {}


def hints(cls: type[Any]) -> Mapping[str, Any]:
    """The types of a record's attributes, in order; found once, as hostile peers ask for every message they make."""
    if cls not in _hints:
        space = vars(sys.modules[cls.__module__])
        _hints[cls] = {
            field.name: eval(field.type, {**space}) if isinstance(field.type, str) else field.type
            for field in attrs.fields(cls)
        }
    return _hints[cls]


def _value(name: str, hint: Any, who: Identity, number: int) -> Any:
    """A value of a type: numbers are `number`, lists hold one item, lists of numbers none."""
    if hint is ReqId:
        return who.req_id
    if hint is bool:
        return False
    simple: dict[Any, Any] = {int: number, float: 0.0, str: "x", bytes: b"", UUID: who.key, type(None): None}
    if hint in simple:
        return simple[hint]
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return _value(name, arguments[0], who, number)
    if hint == tuple[int, ...]:  # locks, which older codecs do not carry, and partitions
        return ()
    if typing.get_origin(hint) in (tuple, Sequence):
        items = arguments[:1] if arguments[-1] is Ellipsis else arguments
        return tuple(_value(name, item, who, number) for item in items)
    return _build(hint, lambda inner, of: _value(inner, of, who, number))


def _sealed(message: Any) -> Any:
    """With the checksum of its data, and no names of locks, so that it gets past the decoder."""
    if hasattr(message, "checksum") and hasattr(message, "data"):
        message = attrs.evolve(message, checksum=checksum_of(message.data))
    if hasattr(message, "names") and hasattr(message, "write_locks"):
        message = attrs.evolve(message, names=b"")
    return message


# ---- extremes --------------------------------------------------------------------------------


def extremes(codec: Codec[Any], who: Identity = Identity()) -> Iterator[Any]:
    """The ordinary message with one field at a time at each of its extremes, and with all numbers there at once."""
    message = ordinary(codec, who)
    fields = hints(codec.cls)
    for name, hint in fields.items():
        for value in _extreme_values(hint, who):
            yield _sealed(attrs.evolve(message, **{name: value}))
    numbers = [name for name, hint in fields.items() if hint is int]
    for sign, bits in itertools.product((1, -1), ID_WIDTHS):
        yield _sealed(attrs.evolve(message, **dict.fromkeys(numbers, _limit(sign, bits))))
    if "names" in fields:
        locked = attrs.evolve(message, write_locks=(1, 2), read_locks=(), append_locks=())
        yield attrs.evolve(locked, names=pack_names([(TEXT, 2**63 - 1), ("", -(2**63))]))
        yield attrs.evolve(locked, names=b"\xff" * 3)


def _limit(sign: int, bits: int) -> int:
    return (1 << bits) - 1 if sign > 0 else -(1 << bits)


def _extreme_values(hint: Any, who: Identity) -> list[Any]:
    if hint is ReqId:
        extreme = ((1 << 31) - 1, -(1 << 31), -1)
        return [make_req_id(one, other, third, one) for one, other, third in itertools.permutations(extreme)]
    if hint is bool:
        return [True]
    if hint is int:
        return [-1, 1, *(_limit(sign, bits) for sign in (1, -1) for bits in ID_WIDTHS)]
    if hint is float:
        return [float("inf"), float("nan"), -0.0]
    if hint is str:
        return ["", TEXT]
    if hint is bytes:
        return [b"\x00", b"\xff" * 100_000]
    if hint is UUID:
        return [UUID(int=0), UUID(int=2**128 - 1)]
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return [*(value for one in arguments if one is not type(None) for value in _extreme_values(one, who)), None]
    if typing.get_origin(hint) is Sequence or (typing.get_origin(hint) is tuple and arguments[-1] is Ellipsis):
        if arguments[0] is int:
            return [(), LOCKS, (0,) * 2_000, (-(1 << 31), (1 << 31) - 1)]
        item = _value("", arguments[0], who, 0)
        return [(), (item,) * 500]
    if typing.get_origin(hint) is tuple:
        return []
    limits = [_limit(sign, 63) for sign in (1, -1)]
    return [_build(hint, partial(_value, who=who, number=limit)) for limit in limits]


# ---- bytes -----------------------------------------------------------------------------------


def encoded(protocol: WireProtocol[Any], version: int, message: Any) -> bytes | None:
    """A whole frame; None where a value does not fit into its field, or the version cannot carry it."""
    body = bytearray()
    try:
        protocol.tables[version].encoders[type(message)](message, body)
    except (struct.error, ValueError, AttributeError, TypeError, ProtocolError):
        return None  # a null where none may be, a number of eight bytes in a field of four, locks before their codec
    return HEADER.pack(protocol.magic, version, len(body)) + bytes(body)


def extreme_frames(name: str, version: int, codec: Codec[Any], who: Identity = Identity()) -> list[bytes]:
    """Every extreme that can be encoded, and frames whose own counts lie."""
    protocol = PROTOCOLS[name]
    frames = [one for message in extremes(codec, who) if (one := encoded(protocol, version, message)) is not None]
    plain = encoded(protocol, version, ordinary(codec, who))
    assert plain is not None, f"{name} {version}: an ordinary {codec.cls.__name__} cannot be encoded"
    return [plain, *frames, *_cut(plain, protocol.magic, version), *_lying(plain)]


def _cut(frame: bytes, magic: int, version: int) -> Iterator[bytes]:
    """The body ends too early, or is followed by more."""
    body = frame[HEADER.size :]
    for short in dict.fromkeys((body[:1], body[: len(body) // 2], body[:-1], body + b"\x00")):
        yield HEADER.pack(magic, version, len(short)) + short


def _lying(frame: bytes) -> Iterator[bytes]:
    """Each aligned int of the body says too much: counts and lengths among them."""
    for at in range(HEADER.size + 1, len(frame) - 3, 4):
        for value in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00"):
            yield frame[:at] + value + frame[at + 4 :]


def opening(name: str, who: Identity) -> list[Any]:
    """What a peer of good will sends first behind its greeting."""
    if name == "client":
        types_of = newest(name)
        mount = ordinary(types_of["MountRequest"], who)
        return [attrs.evolve(mount, seq_num=who.sequence), ordinary(types_of["FeedRequest"], who)]
    opens = [codec for type_name, codec in newest(name).items() if type_name.endswith("OpenRequest")]
    return [ordinary(codec, who) for codec in opens]


def greeting(name: str, versions: Sequence[int]) -> bytes:
    """A greeting that offers these versions."""
    return Connection(PROTOCOLS[name], "attack", versions).hello()


def liars(who: Identity, others: Mapping[str, int]) -> list[Identity]:
    """The same peer under numbers that are not its own."""
    victim, extreme = others.get("client_id", 1), (1 << 31) - 1
    return [
        attrs.evolve(who, client_id=victim),
        attrs.evolve(who, client_id=victim, sequence=extreme),
        attrs.evolve(who, client_id=-1, generation=-1, partition=-1),
        attrs.evolve(who, generation=extreme),
        attrs.evolve(who, partition=extreme),
        attrs.evolve(who, key=UUID(int=0)),
        attrs.evolve(who, partitions=extreme),
    ]
