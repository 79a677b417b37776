"""How application values become payloads and back."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import functools
import json
import operator
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

import attrs

from waltz_core.base.errors import UnknownHeaderError
from waltz_trio.client.fitting import fitting, has_fields, key_builder, refuse_other_kinds

T = TypeVar("T")


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("it is no decimal number") from None


_TEXTS: dict[Any, Callable[[str], Any]] = {
    bytes: functools.partial(base64.b64decode, validate=True),
    Decimal: _decimal,
    uuid.UUID: uuid.UUID,
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
}
"""What JSON carries as text, and how it is read."""

_SHOWN_MAX = 80  # characters of a value in an error


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
        _builder(typing.cast(Any, type(value)), False)
    except TypeError:
        return False
    return True


def shown(value: object) -> str:
    """A value in an error: short, with its type."""
    text = repr(value)
    return f"{text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + '…'} ({type(value).__name__})"


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
        self._build = _as_is if cls is None else _builder(cls, unknown == "ignore")
        self._fits = fitting(Any if cls is None else cls)
        self._tried = False

    def __repr__(self) -> str:
        return f"Json({'' if self.cls is None else _name_of(self.cls)})"

    def dumps(self, value: T) -> bytes:
        """Compact JSON in UTF-8; TypeError or ValueError when the value does not fit."""
        if self.cls is not None and not _is_a(value, self.cls):
            raise TypeError(f"expected {_name_of(self.cls)}, found {shown(value)}")
        try:
            text = _encode(value)
        except ValueError as error:
            if "Out of range" not in str(error):
                raise
            raise ValueError(f"NaN and infinities have no place in JSON, found in {shown(value)}") from None
        if not (self._fits(value) and self._tried):
            self._read_back(value, text)
        return text.encode()

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
            misfit = _misfit("", error)
        cause = misfit.cause
        root = _name_of(self.cls) if has_fields(self.cls) or is_model(self.cls) else "value"
        told = str(cause) if isinstance(cause, TypeError | ValueError) else f"{type(cause).__name__}: {cause}"
        kind = TypeError if isinstance(cause, TypeError) else ValueError
        raise kind(f"{root}{misfit.where}: {told}") from cause


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


_encode = json.JSONEncoder(default=_to_plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _is_a(value: object, wanted: Any) -> bool:
    """Whether `value` may be written as a `wanted`: what `_checked` takes when it is read again."""
    cls = typing.get_origin(wanted) or wanted
    if cls in (typing.Union, types.UnionType):
        return any(_is_a(value, part) for part in typing.get_args(wanted))
    if cls in (Any, object):
        return True
    if isinstance(value, bool):
        return cls is bool
    if cls in (int, float) and hasattr(type(value), "__index__"):
        return True
    return isinstance(value, (list, tuple) if cls in (list, tuple) else cls)


def _name_of(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) and not typing.get_args(wanted) else str(wanted)


def _as_is(value: Any) -> Any:
    return value


class _MisfitError(Exception):
    """What a builder refused, and how to get there from the value that is read: `.memo[3]`."""

    def __init__(self, where: str, cause: Exception) -> None:
        super().__init__(where, cause)
        self.where = where
        self.cause = cause


def _misfit(step: str, error: Exception) -> _MisfitError:
    """An error of a part, seen from the whole of which `step` leads to that part."""
    if isinstance(error, _MisfitError):
        return _MisfitError(step + error.where, error.cause)
    return _MisfitError(step, error)


def _each(parts: Iterable[tuple[Any, Callable[[Any], Any], Any]]) -> Iterator[Any]:
    """Parts as they are built, of each its key, builder and what is read; an error says the key.

    Nothing is built twice, or the time that an error takes would double with every level.
    """
    for key, build, part in parts:
        try:
            made = build(part)
        except Exception as error:
            raise _misfit(f"[{key!r}]", error) from None
        yield made


def is_struct(cls: Any) -> bool:
    """A class of msgspec, which knows how to read itself. It is not imported: a class of it exists only if it was."""
    return isinstance(cls, type) and hasattr(cls, "__struct_fields__")


def is_model(cls: Any) -> bool:
    """A class of pydantic."""
    return isinstance(cls, type) and hasattr(cls, "model_validate") and hasattr(cls, "model_dump")


@functools.cache
def _builder(wanted: Any, lenient: bool) -> Callable[[Any], Any]:
    """What makes a value of type `wanted` from parsed JSON; if `lenient`, without what its class does not know."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is None:
        return _simple_builder(wanted, lenient)
    builder = functools.partial(_builder, lenient=lenient)
    if origin in (typing.Union, types.UnionType):
        return _optional_builder(wanted, arguments, builder)
    if origin is list:
        return _items_builder(list, builder(arguments[0]))
    if origin is tuple:
        return _tuple_builder(arguments, builder)
    if origin is dict:
        return _dict_builder(key_builder(arguments[0]), builder(arguments[1]))
    raise _not_carried(wanted)


def _simple_builder(wanted: Any, lenient: bool) -> Callable[[Any], Any]:
    """As `_builder`, for a type without arguments."""
    if wanted is Any or wanted is object:
        return _as_is
    if isinstance(wanted, type):
        if attrs.has(wanted) or dataclasses.is_dataclass(wanted) or is_model(wanted) or is_struct(wanted):
            return _class_builder(wanted, lenient)
        if issubclass(wanted, enum.Enum):
            return _enum_builder(wanted)
    if wanted in _TEXTS:
        return _text_builder(wanted, _TEXTS[wanted])
    if wanted is float:
        return lambda value: float(_checked(value, (int, float)))
    if wanted in (int, str, bool, list, dict):
        return lambda value: _checked(value, wanted)
    if wanted is tuple:
        return lambda value: tuple(_checked(value, list))
    raise _not_carried(wanted)


def _not_carried(wanted: Any) -> TypeError:
    return TypeError(
        f"Json cannot carry {_name_of(wanted)}, only None, bool, int, float, str, bytes, Decimal, datetime, date, "
        "time, UUID, list, tuple, dict, enums, classes of attrs, dataclasses, msgspec and pydantic, and unions of one "
        "of these with None; for anything else write a class with dumps and loads"
    )


def _checked(value: Any, wanted: Any) -> Any:
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        names = " or ".join(map(_name_of, wanted if isinstance(wanted, tuple) else (wanted,)))
        raise TypeError(f"expected {names}, found {shown(value)}")
    return value


def _enum_builder(cls: type[enum.Enum]) -> Callable[[Any], Any]:
    def build(value: Any) -> Any:
        try:
            return cls(value)
        except ValueError as error:
            values = ", ".join(repr(member.value) for member in cls)
            raise ValueError(f"expected one of {cls.__name__}, {values}, found {shown(value)}") from error

    return build


def _text_builder(wanted: type, read: Callable[[str], Any]) -> Callable[[Any], Any]:
    written = "base64 of bytes" if wanted is bytes else f"a {wanted.__name__}"

    def build(value: Any) -> Any:
        text = _checked(value, str)
        try:
            return read(text)
        except ValueError as error:
            raise ValueError(f"expected {written}, found {shown(text)}: {error}") from error

    return build


def _class_builder(cls: Any, lenient: bool) -> Callable[[Any], Any]:
    if is_model(cls):
        return lambda value: cls.model_validate(_checked(value, dict))
    if is_struct(cls):
        from msgspec import convert  # it is there, for a class of it is

        return lambda value: convert(value, cls)
    hints = typing.get_type_hints(cls)
    if attrs.has(cls):
        aliases = {field.name: field.alias for field in attrs.fields(cls)}
        required = {field.name for field in attrs.fields(cls) if field.init and field.default is attrs.NOTHING}
    else:
        aliases = {field.name: field.name for field in dataclasses.fields(cls)}
        required = {field.name for field in dataclasses.fields(cls) if _is_required(field)}

    @functools.cache
    def part(name: str) -> Callable[[Any], Any]:  # late, for classes that contain themselves
        return _builder(hints[name], lenient)

    def build(value: Any) -> Any:
        fields = _checked(value, dict)
        unknown = fields.keys() - aliases.keys()
        if unknown and not lenient:
            raise TypeError(
                f"{cls.__name__} has no field {', '.join(sorted(unknown))}; to read it without, write "
                'Json(..., unknown="ignore")'
            )
        missing = required - fields.keys()
        if missing:
            raise TypeError(
                f"expected a field {', '.join(sorted(missing))}, found {shown(fields)}; to read what has "
                "none, give the field a default"
            )
        arguments = {}
        for name, item in fields.items():
            if name in aliases:
                try:
                    arguments[aliases[name]] = part(name)(item)
                except Exception as error:
                    raise _misfit(f".{name}", error) from None
        return cls(**arguments)

    return build


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.init and field.default is missing and field.default_factory is missing


def _optional_builder(
    wanted: Any, arguments: tuple[Any, ...], builder: Callable[[Any], Callable[[Any], Any]]
) -> Callable[[Any], Any]:
    rest = [argument for argument in arguments if argument is not type(None)]
    if len(rest) != 1 or len(rest) == len(arguments):
        raise TypeError(f"Json cannot carry {wanted}: only unions with None")
    item = builder(rest[0])
    return lambda value: None if value is None else item(value)


def _tuple_builder(arguments: tuple[Any, ...], builder: Callable[[Any], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _items_builder(tuple, builder(arguments[0]))
    items = [builder(argument) for argument in arguments]

    def build(value: Any) -> Any:
        parts = _checked(value, list)
        if len(parts) != len(items):
            raise ValueError(f"expected {len(items)} items, found {len(parts)}: {shown(parts)}")
        return tuple(_each(zip(range(len(parts)), items, parts, strict=True)))

    return build


def _items_builder(kind: Callable[[list[Any]], Any], item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def build(value: Any) -> Any:
        parts = _checked(value, list)
        return kind(list(_each((at, item, part) for at, part in enumerate(parts))))

    return build


def _dict_builder(key_of: Callable[[str], Any] | None, item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def build(value: Any) -> Any:
        parts = _checked(value, dict)
        keys = parts if key_of is None else _each((key, key_of, key) for key in parts)
        return dict(zip(keys, _each((key, item, part) for key, part in parts.items()), strict=True))

    return build
