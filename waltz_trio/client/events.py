"""Events: one class for each header, so that `apply` can match on what happened; and formats besides JSON.

`docs/howto/events.md` shows how, and how events change while old and new programs read one log.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar, cast, overload

import attrs

from waltz_core.base.errors import UnknownHeaderError
from waltz_trio.client.building import is_model, name_of
from waltz_trio.client.codecs import Codec, Codecs, Json, as_header, is_a, listed_by_header, refuse_value_as_type
from waltz_trio.client.shown import shown
from waltz_trio.client.values import Append, LockLike

T = TypeVar("T")


@attrs.frozen
class UnknownEvent:
    """A transaction whose header nobody here knows: of a newer program, or of another one."""

    header: int
    data: bytes


@attrs.frozen
class _Unknown:
    header: int

    def dumps(self, value: UnknownEvent) -> bytes:
        return value.data

    def loads(self, data: bytes) -> UnknownEvent:
        return UnknownEvent(self.header, data)


@attrs.frozen
class _Upcast:
    """Reads an old class as what it has become."""

    codec: Codec[Any]
    upcasts: Mapping[type, Callable[[Any], Any]]

    def dumps(self, value: Any) -> bytes:
        return self.codec.dumps(value)

    def loads(self, data: bytes) -> Any:
        value = self.codec.loads(data)
        while type(value) in self.upcasts:
            value = self.upcasts[type(value)](value)
        return value


class Events(Codecs):
    """Classes by header: `txn.load(EVENTS)` gives an instance, `EVENTS.append(event, ...)` makes an `Append`.

    A header is for ever: it names one class with one set of fields. See `docs/howto/events.md` for what may change.

    Args:
        by_header: the class of each header.
        codec: makes the codec of a class, such as `Json` or `MsgPack`.
        unknown: a header that is not listed: "refuse" raises `UnknownHeaderError`, and a view stops there; "keep"
            gives an `UnknownEvent`.
        upcasts: for old classes: makes of an instance one of a newer class, which is what `load` gives. New events
            of an old class are refused.

    Raises:
        ValueError: one class has two headers.
        TypeError: `codec` cannot carry a class, or a header is no whole number.
    """

    def __init__(
        self,
        by_header: Mapping[int, type],
        codec: Callable[[Any], Codec[Any]] = Json,
        *,
        unknown: Literal["refuse", "keep"] = "refuse",
        upcasts: Mapping[type, Callable[[Any], Any]] | None = None,
    ) -> None:
        if unknown not in ("refuse", "keep"):
            raise ValueError(f"unknown is 'refuse' or 'keep', not {unknown!r}")
        self._upcasts = dict(upcasts or {})
        self._keeps = unknown == "keep"
        self._headers: dict[type, int] = {}
        classes = {as_header(header): cls for header, cls in listed_by_header(by_header, "classes").items()}
        if not callable(codec):
            raise TypeError(f"codec makes the codec of a class, such as Json or MsgPack, found {shown(codec)}")
        for old, upcast in self._upcasts.items():
            if not isinstance(old, type) or not callable(upcast):
                raise TypeError(
                    f"upcasts: expected an old class, and what makes a new event of it, found {old!r}: {upcast!r}"
                )
        for header, cls in classes.items():
            other = self._headers.setdefault(cls, header)
            if other != header:
                raise ValueError(f"{cls.__name__} has headers {other} and {header}; a class has one header")
        super().__init__({header: _Upcast(codec(cls), self._upcasts) for header, cls in classes.items()})

    def of(self, header: int) -> Codec[Any]:
        """The codec of a header.

        Raises:
            UnknownHeaderError: there is none, with `unknown="refuse"`.
        """
        try:
            return super().of(header)
        except UnknownHeaderError:
            if self._keeps:
                return _Unknown(header)
            raise

    def append(
        self,
        event: Any,
        *,
        write: Iterable[LockLike] = (),
        read: Iterable[LockLike] = (),
        append: Iterable[LockLike] = (),
        result: Any = None,
    ) -> Append:
        """An `Append` of an event, with the header and the codec of its class.

        Raises:
            TypeError: its class is not listed, or is an old one.
        """
        cls = type(event)
        header = self._headers.get(cls)
        if header is None:
            known = ", ".join(known.__name__ for known in self._headers)
            raise TypeError(f"expected an event of {known}, found {shown(event)}")
        if cls in self._upcasts:
            raise TypeError(f"{cls.__name__} is an old event, kept to read what was written; append its successor")
        return Append(event, self.of(header), header, write, read, append, result)


class MsgPack(Generic[T]):
    """MessagePack of one type, by msgspec: smaller and several times as fast as JSON. Extra `msgspec`.

    Takes what `Json` takes. Missing fields take their default. Unknown fields are ignored, but for a msgspec class
    with `forbid_unknown_fields=True`.

    Args:
        cls: the type; None = any plain value.
    """

    @overload
    def __init__(self: MsgPack[Any], cls: None = None) -> None: ...

    @overload
    def __init__(self, cls: type[T]) -> None: ...

    def __init__(self, cls: Any = None) -> None:
        try:
            from msgspec import msgpack
        except ImportError as error:
            raise _missing("msgspec", "msgspec") from error
        refuse_value_as_type(cls, "MsgPack")
        self.cls = cls
        self._encode = msgpack.Encoder().encode
        wanted: Any = Any if cls is None or is_model(cls) else cls
        self._decode = msgpack.Decoder(wanted).decode

    def dumps(self, value: T) -> bytes:
        """MessagePack; TypeError when the value does not fit."""
        if self.cls is not None and not _may_be(value, self.cls):
            raise TypeError(f"expected {name_of(self.cls)}, found {shown(value)}")
        plain: Any = value
        if is_model(type(value)):
            plain = plain.model_dump(mode="json")
        data: bytes = self._encode(plain)
        if self.cls is not None:
            try:
                self.loads(data)  # what it refuses would stop every view at its transaction
            except Exception as error:
                raise TypeError(f"{shown(value)} could be written, but not read again: {error}") from error
        return data

    def loads(self, data: bytes) -> Any:
        """The value; ValueError when it does not fit."""
        value = self._decode(data)
        cls: Any = self.cls
        return cls.model_validate(value) if is_model(cls) else value


def _may_be(value: object, wanted: Any) -> bool:
    """False where a value is none of a type; of types that only msgspec knows, reading it again tells."""
    try:
        return is_a(value, wanted)
    except TypeError:  # such as Annotated and Literal, which are no classes
        return True


class Protobuf(Generic[T]):
    """Protocol Buffers of one message class. Extra `protobuf`.

    Missing fields take their default. Unknown fields are kept, and written again with the message.
    """

    def __init__(self, cls: type[T]) -> None:
        if not hasattr(cls, "SerializeToString") or not hasattr(cls, "ParseFromString"):
            raise TypeError(f"expected a message class made by protoc, found {shown(cls)}")
        self.cls = cls

    def dumps(self, value: T) -> bytes:
        """The message; equal messages give equal bytes."""
        if not isinstance(value, self.cls):
            raise TypeError(f"expected {self.cls.__name__}, found {shown(value)}")
        message: Any = value
        data: bytes = message.SerializeToString(deterministic=True)
        return data

    def loads(self, data: bytes) -> T:
        """The message; an error of protobuf when it is none."""
        message: Any = self.cls()
        message.ParseFromString(data)
        return cast(T, message)


class Avro:
    """Avro without a container: dicts of one schema. Extra `avro`.

    Args:
        schema: what values are read as, and written by.
        written: what payloads were written by, if that is an older schema: they are read by it, and resolved as Avro
            has it (missing fields take their default, fields that are gone are dropped). New events belong to a
            header of their own.
    """

    def __init__(self, schema: Mapping[str, Any], *, written: Mapping[str, Any] | None = None) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise _missing("fastavro", "avro") from error
        self._avro: Any = fastavro
        self._schema = self._parsed(schema, "schema")
        self._written = None if written is None else self._parsed(written, "written")

    def _parsed(self, schema: Mapping[str, Any], what: str) -> Any:
        try:
            return self._avro.parse_schema(schema)
        except Exception as error:
            raise TypeError(
                f"{what}: expected a schema of Avro, such as {{'type': 'record', 'name': 'Deposit', 'fields': [...]}}, "
                f"found {shown(schema)}: {error!r}"
            ) from error

    def dumps(self, value: Mapping[str, Any]) -> bytes:
        """Avro; ValueError when the value does not fit, or the payloads of this codec are old ones."""
        if self._written is not None:
            raise ValueError("this codec reads what was written by an older schema; append by the one of a new header")
        target = io.BytesIO()
        self._avro.schemaless_writer(target, self._schema, value, strict=True)
        return target.getvalue()

    def loads(self, data: bytes) -> Any:
        """The value; ValueError when bytes are left over."""
        source = io.BytesIO(data)
        value = self._avro.schemaless_reader(source, self._written or self._schema, self._schema)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes are left behind the value")
        return value


def _missing(module: str, extra: str) -> ImportError:
    return ImportError(f"{module} is not installed: pip install 'waltz-log[{extra}]'")
