"""What `Json` makes of parsed JSON: a value of a type, or an error that says where it does not fit, and why."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import functools
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import attrs

from waltz_trio.client.shown import shown

Build = Callable[[Any], Any]


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


def name_of(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) and not typing.get_args(wanted) else str(wanted)


def as_is(value: Any) -> Any:
    return value


class MisfitError(Exception):
    """What a builder refused, and how to get there from the value that is read: `.memo[3]`."""

    def __init__(self, where: str, cause: Exception) -> None:
        super().__init__(where, cause)
        self.where = where
        self.cause = cause


def misfit(step: str, error: Exception) -> MisfitError:
    """An error of a part, seen from the whole of which `step` leads to that part."""
    if isinstance(error, MisfitError):
        return MisfitError(step + error.where, error.cause)
    return MisfitError(step, error)


def _each(parts: Iterable[tuple[Any, Build, Any]]) -> Iterator[Any]:
    """Parts as they are built, of each its key, builder and what is read; an error says the key.

    Nothing is built twice, or the time that an error takes would double with every level.
    """
    for key, build, part in parts:
        try:
            made = build(part)
        except Exception as error:
            raise misfit(f"[{key!r}]", error) from None
        yield made


def is_struct(cls: Any) -> bool:
    """A class of msgspec, which knows how to read itself. It is not imported: a class of it exists only if it was."""
    return isinstance(cls, type) and hasattr(cls, "__struct_fields__")


def is_model(cls: Any) -> bool:
    """A class of pydantic."""
    return isinstance(cls, type) and hasattr(cls, "model_validate") and hasattr(cls, "model_dump")


@functools.cache
def builder_of(wanted: Any, lenient: bool) -> Build:
    """What makes a value of type `wanted` from parsed JSON; if `lenient`, without what its class does not know."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is None:
        return _simple_builder(wanted, lenient)
    builder = functools.partial(builder_of, lenient=lenient)
    if origin in (typing.Union, types.UnionType):
        return _optional_builder(wanted, arguments, builder)
    if origin is list:
        return _items_builder(list, builder(arguments[0]))
    if origin is tuple:
        return _tuple_builder(arguments, builder)
    if origin is dict:
        return _dict_builder(_key_builder(arguments[0]), builder(arguments[1]))
    raise _not_carried(wanted)


def _simple_builder(wanted: Any, lenient: bool) -> Build:
    """As `builder_of`, for a type without arguments."""
    if wanted is Any or wanted is object:
        return as_is
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
        f"Json cannot carry {name_of(wanted)}, only None, bool, int, float, str, bytes, Decimal, datetime, date, "
        "time, UUID, list, tuple, dict, enums, classes of attrs, dataclasses, msgspec and pydantic, and unions of one "
        "of these with None; for anything else write a class with dumps and loads"
    )


def _checked(value: Any, wanted: Any) -> Any:
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        names = " or ".join(map(name_of, wanted if isinstance(wanted, tuple) else (wanted,)))
        raise TypeError(f"expected {names}, found {shown(value)}")
    return value


def _enum_builder(cls: type[enum.Enum]) -> Build:
    def build(value: Any) -> Any:
        try:
            return cls(value)
        except ValueError as error:
            values = ", ".join(repr(member.value) for member in cls)
            raise ValueError(f"expected one of {cls.__name__}, {values}, found {shown(value)}") from error

    return build


def _text_builder(wanted: type, read: Callable[[str], Any]) -> Build:
    written = "base64 of bytes" if wanted is bytes else f"a {wanted.__name__}"

    def build(value: Any) -> Any:
        text = _checked(value, str)
        try:
            return read(text)
        except ValueError as error:
            raise ValueError(f"expected {written}, found {shown(text)}: {error}") from error

    return build


def hints_of(cls: Any) -> dict[str, Any]:
    """The types of the fields of a class of attrs or a dataclass.

    Raises:
        TypeError: a field has none.
    """
    hints = dict(typing.get_type_hints(cls))
    for field in attrs.fields(cls) if attrs.has(cls) else ():
        if hints.setdefault(field.name, field.type) is None and field.type is None:
            raise TypeError(
                f"Json cannot carry {cls.__name__}: its field {field.name} has no type, which says how it is read; "
                f"write {field.name}: TYPE = attrs.field(...)"
            )
    return hints


def _class_builder(cls: Any, lenient: bool) -> Build:
    if is_model(cls):
        return lambda value: cls.model_validate(_checked(value, dict))
    if is_struct(cls):
        from msgspec import convert  # it is there, for a class of it is

        return lambda value: convert(value, cls)
    hints = hints_of(cls)
    if attrs.has(cls):
        aliases = {field.name: field.alias for field in attrs.fields(cls)}
        required = {field.name for field in attrs.fields(cls) if field.init and field.default is attrs.NOTHING}
    else:
        aliases = {field.name: field.name for field in dataclasses.fields(cls)}
        required = {field.name for field in dataclasses.fields(cls) if _is_required(field)}

    @functools.cache
    def part(name: str) -> Build:  # late, for classes that contain themselves
        return builder_of(hints[name], lenient)

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
                    raise misfit(f".{name}", error) from None
        return cls(**arguments)

    return build


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.init and field.default is missing and field.default_factory is missing


def _optional_builder(wanted: Any, arguments: tuple[Any, ...], builder: Callable[[Any], Build]) -> Build:
    rest = [argument for argument in arguments if argument is not type(None)]
    if len(rest) != 1 or len(rest) == len(arguments):
        raise TypeError(f"Json cannot carry {wanted}: only unions with None")
    item = builder(rest[0])
    return lambda value: None if value is None else item(value)


def _tuple_builder(arguments: tuple[Any, ...], builder: Callable[[Any], Build]) -> Build:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _items_builder(tuple, builder(arguments[0]))
    items = [builder(argument) for argument in arguments]

    def build(value: Any) -> Any:
        parts = _checked(value, list)
        if len(parts) != len(items):
            raise ValueError(f"expected {len(items)} items, found {len(parts)}: {shown(parts)}")
        return tuple(_each(zip(range(len(parts)), items, parts, strict=True)))

    return build


def _items_builder(kind: Callable[[list[Any]], Any], item: Build) -> Build:
    def build(value: Any) -> Any:
        parts = _checked(value, list)
        return kind(list(_each((at, item, part) for at, part in enumerate(parts))))

    return build


def _dict_builder(key_of: Callable[[str], Any] | None, item: Build) -> Build:
    def build(value: Any) -> Any:
        parts = _checked(value, dict)
        keys = parts if key_of is None else _each((key, key_of, key) for key in parts)
        return dict(zip(keys, _each((key, item, part) for key, part in parts.items()), strict=True))

    return build


def _key_builder(wanted: Any) -> Callable[[str], Any] | None:
    """What makes a key of a dict from the text that JSON has for it; None: it stays as it is.

    Raises:
        TypeError: no such key can be written.
    """
    if wanted in (str, Any, object):
        return None
    if wanted is int:
        return _int_key
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        by_text = {str(member.value): member for member in wanted if isinstance(member.value, str | int)}

        def key_of(text: str) -> Any:
            if text not in by_text:
                raise ValueError(f"expected a key of {wanted.__name__}, {', '.join(by_text)}, found {text!r}")
            return by_text[text]

        return key_of
    raise TypeError(
        f"Json cannot carry a dict with keys of {getattr(wanted, '__name__', wanted)}: JSON has text for keys, and int "
        "and enums of these can be read from it"
    )


def _int_key(text: str) -> int:
    number = int(text)
    if str(number) != text:
        raise ValueError(f"expected a whole number as a key, found {text!r}")
    return number
