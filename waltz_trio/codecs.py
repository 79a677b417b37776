"""How application values become payloads and back."""

from __future__ import annotations

import base64
import enum
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import attrs

from waltz_core.errors import UnknownHeaderError

T = TypeVar("T")


class Codec(Protocol[T]):
    """Two methods; whatever `loads` raises becomes a `PayloadInvalidError` with partition and id."""

    def dumps(self, value: T) -> bytes:
        """The payload of a value."""

    def loads(self, data: bytes) -> T:
        """The value of a payload."""


@attrs.frozen
class Raw:
    """Payloads as they are."""

    def dumps(self, value: bytes) -> bytes:
        """`value`, which must be bytes-like."""
        return value if type(value) is bytes else bytes(memoryview(value))

    def loads(self, data: bytes) -> bytes:
        """`data` itself."""
        return data


@attrs.frozen
class Utf8:
    """Text."""

    def dumps(self, value: str) -> bytes:
        """UTF-8, strictly."""
        return value.encode()

    def loads(self, data: bytes) -> str:
        """UTF-8, strictly."""
        return data.decode()


class Json(Generic[T]):
    """JSON, of plain values or of one attrs class.

    Fields may be None, bool, int, float, str, bytes (as base64), enums, attrs classes, and list, tuple, dict
    and unions with None of these, as their annotations say. Fields that are not known are refused, missing
    ones take their default.

    Args:
        cls: an attrs class; None = plain JSON values.
    """

    def __init__(self, cls: type[T] | None = None) -> None:
        if cls is not None and not attrs.has(cls):
            raise TypeError(f"{cls.__name__} is not an attrs class")
        self.cls = cls
        self._build = _builder(cls) if cls is not None else _as_is

    def __repr__(self) -> str:
        return f"Json({'' if self.cls is None else self.cls.__name__})"

    def dumps(self, value: T) -> bytes:
        """Compact JSON in UTF-8."""
        if self.cls is not None and not isinstance(value, self.cls):
            raise TypeError(f"expected {self.cls.__name__}, found {type(value).__name__}")
        return json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False).encode()

    def loads(self, data: bytes) -> T:
        """The value; ValueError or TypeError when it does not fit."""
        return typing.cast(T, self._build(json.loads(data)))


class Codecs:
    """One codec per header: the header says what a payload is. Pass the header with each `Append`.

    Args:
        by_header: codecs by the header of their transactions.
        default: for every other header; None = `UnknownHeaderError`.
    """

    def __init__(self, by_header: Mapping[int, Codec[Any]], default: Codec[Any] | None = None) -> None:
        self._by_header = dict(by_header)
        self._default = default

    def of(self, header: int) -> Codec[Any]:
        """The codec of a header.

        Raises:
            UnknownHeaderError: there is none and no default.
        """
        codec = self._by_header.get(header, self._default)
        if codec is None:
            raise UnknownHeaderError(header)
        return codec


def _plain(value: object) -> object:
    cls: Any = type(value)
    if attrs.has(cls):
        return {field.name: getattr(value, field.name) for field in attrs.fields(cls)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _as_is(value: Any) -> Any:
    return value


@functools.cache
def _builder(wanted: Any) -> Callable[[Any], Any]:
    """What makes a value of type `wanted` from parsed JSON."""
    if wanted is Any or wanted is object:
        return _as_is
    if attrs.has(wanted):
        return _class_builder(wanted)
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return _optional_builder(wanted, arguments)
    if origin is list:
        item = _builder(arguments[0])
        return lambda value: [item(part) for part in _checked(value, list)]
    if origin is tuple:
        return _tuple_builder(arguments)
    if origin is dict:
        item = _builder(arguments[1])
        return lambda value: {key: item(part) for key, part in _checked(value, dict).items()}
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return wanted
    if wanted is bytes:
        return lambda value: base64.b64decode(_checked(value, str), validate=True)
    if wanted is float:
        return lambda value: float(_checked(value, (int, float)))
    if wanted in (int, str, bool, list, dict):
        return lambda value: _checked(value, wanted)
    raise TypeError(f"Json cannot carry a field of type {wanted}")


def _checked(value: Any, wanted: Any) -> Any:
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise TypeError(f"expected {wanted}, found {value!r}")
    return value


def _class_builder(cls: Any) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in attrs.fields(cls)}

    @functools.cache
    def part(name: str) -> Callable[[Any], Any]:  # late, for classes that contain themselves
        return _builder(hints[name])

    def build(value: Any) -> Any:
        found = _checked(value, dict)
        unknown = found.keys() - fields.keys()
        if unknown:
            raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
        return cls(**{fields[name].alias: part(name)(item) for name, item in found.items()})

    return build


def _optional_builder(wanted: Any, arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    rest = [argument for argument in arguments if argument is not type(None)]
    if len(rest) != 1 or len(rest) == len(arguments):
        raise TypeError(f"Json cannot carry a field of type {wanted}: only unions with None")
    item = _builder(rest[0])
    return lambda value: None if value is None else item(value)


def _tuple_builder(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _builder(arguments[0])
        return lambda value: tuple(item(part) for part in _checked(value, list))
    items = [_builder(argument) for argument in arguments]
    return lambda value: tuple(build(part) for build, part in zip(items, _checked(value, list), strict=True))
