"""Codec tables: which message types exist in one version of one protocol, and how each is coded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from struct import Struct
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import attrs

from waltz_core.base.errors import ProtocolError
from waltz_core.wire.primitives import Field, short
from waltz_core.wire.runs import DecodeRun

M = TypeVar("M")


class Codec(NamedTuple, Generic[M]):
    """How one message is coded. A body starts with its type byte."""

    type_id: int
    cls: type[M]
    encode: Callable[[M, bytearray], None]  # appends the body
    decode: Callable[[bytes, int, int], tuple[M, int]]  # buffer, place of the type byte, end of the body
    decode_run: DecodeRun | None = None  # for frames of this kind in a row


def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls))


def fixed(type_id: int, cls: type[M], layout: str) -> Codec[M]:
    """A message of fixed size: one struct format character per attribute, in order."""
    pack = Struct(">B" + layout).pack
    struct = Struct(">x" + layout)
    unpack, size = struct.unpack_from, struct.size
    names = _names(cls)
    values = attrgetter(*names)

    def encode_one(message: M, out: bytearray) -> None:
        out += pack(type_id, values(message))

    def encode(message: M, out: bytearray) -> None:
        out += pack(type_id, *values(message))

    def decode(buffer: bytes, start: int, end: int) -> tuple[M, int]:
        if end - start < size:
            raise short(start, end, size)
        return cls(*unpack(buffer, start)), start + size

    return Codec(type_id, cls, encode_one if len(names) == 1 else encode, decode)


def layout(type_id: int, cls: type[M], *fields: Field[Any]) -> Codec[M]:
    """A message read and written field by field: one `Field` per attribute, in order.

    Attributes behind the last field are not carried; they must have defaults.
    """
    # Any: the fields of one message have different types; the class checks nothing at run time either.
    reads = tuple(field.read for field in fields)
    writes = tuple(zip(_names(cls), (field.write for field in fields), strict=False))

    def encode(message: M, out: bytearray) -> None:
        out.append(type_id)
        for name, write in writes:
            write(out, getattr(message, name))

    def decode(buffer: bytes, start: int, end: int) -> tuple[M, int]:
        values = []
        at = start + 1
        for read in reads:
            value, at = read(buffer, at, end)
            values.append(value)
        return cls(*values), at

    return Codec(type_id, cls, encode, decode)


def _unknown(buffer: bytes, start: int, end: int) -> NoReturn:
    type_id = buffer[start]
    raise ProtocolError(f"unknown message type: {type_id - 256 if type_id > 127 else type_id}")


class Table(Generic[M]):
    """The messages of one version: decoders by type byte, encoders by class."""

    __slots__ = ("codecs", "decoders", "encoders", "runs")

    def __init__(self, codecs: Iterable[Codec[Any]]) -> None:
        self.codecs: dict[int, Codec[Any]] = {codec.type_id: codec for codec in codecs}
        decoders: list[Callable[[bytes, int, int], tuple[M, int]]] = [_unknown] * 256
        for codec in self.codecs.values():
            decoders[codec.type_id] = codec.decode
        self.decoders = tuple(decoders)
        self.runs = tuple(self.codecs[at].decode_run if at in self.codecs else None for at in range(256))
        self.encoders: dict[type[Any], Callable[[Any, bytearray], None]] = {
            codec.cls: codec.encode for codec in self.codecs.values()
        }

    def plus(self, *codecs: Codec[Any]) -> Table[M]:
        """This table with messages added or, where the type id exists, coded differently."""
        return Table({**self.codecs, **{codec.type_id: codec for codec in codecs}}.values())


class WireProtocol(NamedTuple, Generic[M]):
    """What a connection must know about its protocol."""

    name: str
    magic: int
    tables: Mapping[int, Table[M]]  # by negotiated version
