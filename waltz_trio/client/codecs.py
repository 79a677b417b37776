"""How application values become payloads and back."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import json
import operator
import types
import typing
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

import attrs

from waltz_core.base.errors import UnknownHeaderError
from waltz_trio.client.building import as_is, builder_of, is_model, is_struct, misfit, name_of
from waltz_trio.client.fitting import fitting, has_fields, refuse_other_kinds
from waltz_trio.client.shown import shown

T = TypeVar("T")


class Codec(Protocol[T]):
    """Two methods; any exception of `loads` becomes a `PayloadInvalidError` with partition and id."""

    def dumps(self, value: T) -> bytes:
        """The payload of a value."""

    def loads(self, data: bytes) -> T:
        """The value of a payload."""


@attrs.frozen
class Raw:
    """Payloads as they are."""

    def dumps(self, value: bytes) -> bytes:
        """`value`, which must be bytes-like."""
        if type(value) is bytes:
            return value
        try:
            return bytes(memoryview(value))
        except TypeError:
            raise TypeError(_not_raw(value)) from None

    def loads(self, data: bytes) -> bytes:
        """`data` itself."""
        return data


def _not_raw(value: object) -> str:
    codec = "Utf8()" if isinstance(value, str) else f"Json({type(value).__name__})" if _has_builder(value) else "CODEC"
    return (
        f"without a codec a payload is bytes, found {shown(value)}; name the codec: write Append(value, {codec}, ...), "
        f"and the same for load({codec})"
    )


def _has_builder(value: object) -> bool:
    if type(value) is object:
        return False
    try:
        builder_of(typing.cast(Any, type(value)), False)
    except TypeError:
        return False
    return True


@attrs.frozen
class Utf8:
    """Text."""

    def dumps(self, value: str) -> bytes:
        """UTF-8, strictly."""
        if not isinstance(value, str):
            raise TypeError(f"expected a text, found {shown(value)}; bytes need no codec: write Append(VALUE)")
        return value.encode()

    def loads(self, data: bytes) -> str:
        """UTF-8, strictly."""
        return data.decode()


def refuse_value_as_type(cls: object, codec: str) -> None:
    """See that a codec is not given what it shall write.

    Raises:
        TypeError: it is, such as `Json({"a": 1})`.
    """
    if cls is not None and (isinstance(cls, dict | list | tuple | set | str | bytes | bool | int | float)):
        kind = type(cls).__name__
        raise TypeError(
            f"{codec} is given the type of its values, found {shown(cls)}; write {codec}({kind}), and the value in "
            f"Append(VALUE, {codec}({kind}))"
        )


class Json(Generic[T]):
    """JSON of one type: plain (`dict`, `list`, `str`, `int`, `float`, `bool`, `list[int]`…), or a class with fields.

    Values and fields may be None, bool, int, float, str, bytes (as base64), Decimal, datetime, date, time, UUID (as
    text), enums, classes of attrs, dataclasses, msgspec and pydantic, and list, tuple, dict and unions with None of
    these, as the type or their annotations say. Missing fields take their default. NaN and infinities are refused
    when they are written: JSON has none. So is what `loads` would not take again: a field of another type than its
    class says, a key of a plain dict that is no text.

    Args:
        cls: the type; None = any plain JSON value.
        unknown: fields that a class of attrs or a dataclass does not have: "refuse" or "ignore" them when they are
            read. Classes of msgspec and pydantic say so themselves.
    """

    @overload
    def __init__(self: Json[Any], cls: None = None) -> None: ...

    @overload
    def __init__(self, cls: type[T], *, unknown: Literal["refuse", "ignore"] = "refuse") -> None: ...

    def __init__(self, cls: Any = None, *, unknown: Literal["refuse", "ignore"] = "refuse") -> None:
        if unknown not in ("refuse", "ignore"):
            raise ValueError(f"unknown is 'refuse' or 'ignore', not {unknown!r}")
        refuse_value_as_type(cls, "Json")
        self.cls = cls
        self._build = as_is if cls is None else builder_of(cls, unknown == "ignore")
        self._fits = fitting(Any if cls is None else cls)
        self._tried = False

    def __repr__(self) -> str:
        return f"Json({'' if self.cls is None else name_of(self.cls)})"

    def dumps(self, value: T) -> bytes:
        """Compact JSON in UTF-8; TypeError or ValueError when the value does not fit."""
        if self.cls is not None and not is_a(value, self.cls):
            raise TypeError(f"expected {name_of(self.cls)}, found {shown(value)}")
        try:
            text = self._written(value)
        except ValueError as error:
            if "Out of range" not in str(error):
                raise
            raise ValueError(f"NaN and infinities have no place in JSON, found in {shown(value)}") from None
        if not (self._fits(value) and self._tried):
            self._read_back(value, text)
        return text.encode()

    def _written(self, value: T) -> str:
        try:
            return _encode(value)
        except TypeError as error:
            if not str(error).startswith("keys must be"):
                raise
        return _encode(_with_plain_keys(value))

    def _read_back(self, value: T, text: str) -> None:
        """See that `loads` takes a value again: one that it refuses would stop every view at its transaction.

        Values that a look shows to fit are not read back, but for the first one: a class may refuse its own fields.
        """
        refuse_other_kinds(value, self.cls)
        try:
            self._made(json.loads(text))
        except Exception as error:
            raise TypeError(f"{shown(value)} could be written, but not read again by {self!r}: {error}") from error
        self._tried = True

    def loads(self, data: bytes) -> T:
        """The value; ValueError or TypeError when it does not fit, which says where, as `Transfer.memo[3]`."""
        try:
            parsed = json.loads(data)
        except ValueError as error:
            raise ValueError(f"expected JSON, found {shown(data)}: {error}") from error
        return typing.cast(T, self._made(parsed))

    def _made(self, parsed: Any) -> Any:
        try:
            return self._build(parsed)
        except Exception as error:
            refused = misfit("", error)
        cause = refused.cause
        root = name_of(self.cls) if has_fields(self.cls) or is_model(self.cls) else "value"
        told = str(cause) if isinstance(cause, TypeError | ValueError) else f"{type(cause).__name__}: {cause}"
        kind = TypeError if isinstance(cause, TypeError) else ValueError
        raise kind(f"{root}{refused.where}: {told}") from cause


class Codecs:
    """One codec per header: the header says what a payload is. Pass the header with each `Append`.

    Args:
        by_header: codecs by the header of their transactions.
        default: for every other header; None = `UnknownHeaderError`.
    """

    def __init__(self, by_header: Mapping[int, Codec[Any]], default: Codec[Any] | None = None) -> None:
        self._by_header: dict[int, Codec[Any]] = {
            as_header(header): codec for header, codec in listed_by_header(by_header, "codecs").items()
        }
        self._default = default
        for codec in self._by_header.values() if default is None else (*self._by_header.values(), default):
            refuse_class_as_codec(codec)

    def of(self, header: int) -> Codec[Any]:
        """The codec of a header.

        Raises:
            UnknownHeaderError: there is none and no default.
        """
        codec = self._by_header.get(header, self._default)
        if codec is None:
            raise UnknownHeaderError(header)
        return codec


def listed_by_header(given: Any, what: str) -> Mapping[int, Any]:
    """A mapping of headers.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(given, Mapping):
        raise TypeError(
            f"expected a mapping of headers to {what}, such as {{1: Deposit, 2: Withdrawal}}, found {shown(given)}"
        )
    return given


def as_header(header: Any) -> int:
    """A header as it travels, an int.

    Raises:
        TypeError: no whole number, so no transaction has it.
        ValueError: more than 32 bits.
    """
    try:
        number = operator.index(header)
    except TypeError:
        raise TypeError(f"a header is a whole number, found {shown(header)}") from None
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"a header has 32 bits, from -2**31 to 2**31 - 1, found {number}")
    return number


def refuse_class_as_codec(codec: Any) -> None:
    """See that a codec is none that is still to be made.

    Raises:
        TypeError: it is a class, or has not both methods.
    """
    if isinstance(codec, type):
        is_codec = callable(getattr(codec, "dumps", None))
        line = f"{codec.__name__}()" if is_codec else f"Json({codec.__name__})"
        raise TypeError(f"expected a codec, found the class {codec.__name__}; write {line}")
    if not (callable(getattr(codec, "dumps", None)) and callable(getattr(codec, "loads", None))):
        raise TypeError(f"expected a codec, with dumps and loads, found {shown(codec)}")


def _to_plain(value: object) -> object:
    cls: Any = type(value)
    if attrs.has(cls):
        return {field.name: getattr(value, field.name) for field in attrs.fields(cls)}
    if dataclasses.is_dataclass(cls):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"a Decimal that is no number has no place in JSON, found {shown(value)}")
        return str(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if is_struct(cls):
        return {name: getattr(value, name) for name in cls.__struct_fields__}
    if is_model(cls):
        return typing.cast(Any, value).model_dump(mode="json")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(cls, "__index__"):  # a whole number of another library, such as numpy
        return operator.index(typing.cast(Any, value))
    raise TypeError(f"{cls.__name__} has no place in JSON")


def _with_plain_keys(value: object) -> object:
    """The same with the values of enums for keys: `json` asks nobody what a key is."""
    if isinstance(value, dict):
        plain = {_plain_key(key): _with_plain_keys(part) for key, part in value.items()}
        if len(plain) < len(value):
            raise ValueError(f"two keys of a dict would be the same text in JSON, found {shown(value)}")
        return plain
    if isinstance(value, list | tuple):
        return [_with_plain_keys(part) for part in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return _with_plain_keys(_to_plain(value))


def _plain_key(key: object) -> object:
    plain = key.value if isinstance(key, enum.Enum) else key
    if plain is None or isinstance(plain, str | int | float):
        return plain
    raise TypeError(
        f"keys of a dict are text in JSON, found {shown(key)}; an int, or an enum of text or int, will do, too"
    )


_encode = json.JSONEncoder(default=_to_plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def is_a(value: object, wanted: Any) -> bool:
    """Whether `value` may be written as a `wanted`: what `_checked` takes when it is read again."""
    cls = typing.get_origin(wanted) or wanted
    if cls in (typing.Union, types.UnionType):
        return any(is_a(value, part) for part in typing.get_args(wanted))
    if cls in (Any, object):
        return True
    if isinstance(value, bool):
        return cls is bool
    if cls in (int, float) and hasattr(type(value), "__index__"):
        return True
    return isinstance(value, (list, tuple) if cls in (list, tuple) else cls)
