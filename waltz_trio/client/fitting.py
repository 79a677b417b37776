"""Whether `Json` will read what it is about to write: a look that is cheap, and says yes only where it is sure."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

import attrs

from waltz_trio.client.building import hints_of

Fits = Callable[[Any], bool]

_EXACT = (int, str, bool, bytes)
_ITEMS = (list, tuple)
_FLOAT_MAX = 1 << 53  # up to here a float is as good as an int; a far larger int is none at all


@functools.cache
def fitting(wanted: Any) -> Fits:
    """Says of a value whether it surely is a `wanted`; False where only reading it again would tell."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (Any, object):
        return _plain
    if wanted in _EXACT:
        return lambda value: type(value) is wanted
    if wanted is float:
        return lambda value: type(value) is float or (type(value) is int and -_FLOAT_MAX <= value <= _FLOAT_MAX)
    if wanted in (list, tuple, dict):
        return _plain
    if isinstance(wanted, type) and (attrs.has(wanted) or dataclasses.is_dataclass(wanted)):
        return _fields_fit(wanted)
    if isinstance(wanted, type):
        sure = not hasattr(wanted, "model_dump") and not hasattr(wanted, "__struct_fields__")  # they check themselves
        if issubclass(wanted, enum.Enum):
            sure = all(type(member.value) in (int, str) for member in wanted)  # JSON has these as they are
        return lambda value: sure and type(value) is wanted
    if origin in (typing.Union, types.UnionType):
        parts = [fitting(part) for part in arguments if part is not type(None)]
        return lambda value: value is None or (len(parts) == 1 and parts[0](value))
    if origin is list or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        item = fitting(arguments[0])
        return lambda value: type(value) in _ITEMS and all(map(item, value))
    if origin is dict and arguments[0] in (str, int):
        key, part = arguments[0], fitting(arguments[1])
        return lambda value: all(type(name) is key and part(each) for name, each in value.items())
    return lambda value: False


def _plain(value: Any) -> bool:
    """Plain JSON, with text for keys; what is inside deep values is looked at, too."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and _plain(part) for key, part in value.items())
    if kind in _ITEMS:
        return all(map(_plain, value))
    return kind in (str, int, float, bool) or value is None


def _checks_itself(cls: Any) -> bool:
    """A class that may refuse the very fields that a value of it has: they may have been changed since it was made."""
    if cls.__new__ is not object.__new__:
        return True
    if attrs.has(cls):
        own = "__attrs_attrs__" in vars(cls)
        hooks = ("__attrs_init__", "__attrs_pre_init__", "__attrs_post_init__")
        checked = any(field.validator is not None or field.converter is not None for field in attrs.fields(cls))
        return not own or checked or any(hasattr(cls, hook) for hook in hooks)
    return "__dataclass_fields__" not in vars(cls) or not cls.__dataclass_params__.init or hasattr(cls, "__post_init__")


def _fields_fit(cls: Any) -> Fits:
    if _checks_itself(cls):
        return lambda value: False
    names = [field.name for field in (attrs.fields(cls) if attrs.has(cls) else dataclasses.fields(cls))]
    checks: list[tuple[str, Fits]] = []

    def fits(value: Any) -> bool:
        if type(value) is not cls:
            return False
        if not checks:  # late, for classes that contain themselves
            hints = hints_of(cls)
            checks.extend((name, fitting(hints[name])) for name in names)
        return all(check(getattr(value, name)) for name, check in checks)

    return fits


def refuse_other_kinds(value: Any, wanted: Any) -> None:
    """See that no text is read again as bytes, or bytes as text, and no key of a dict as another one: JSON has text.

    Raises:
        TypeError: text stands where bytes are wanted, or bytes where text is; or a key is no text, and no type says
            what it is.
    """
    _refuse(value, wanted, type(value).__name__ if has_fields(type(value)) else "value")


def _refuse(value: Any, wanted: Any, where: str) -> None:
    """`where` is how to get at the value: `Transfer.memo[3]`."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in arguments if part is not type(None)]
        _refuse(value, parts[0] if len(parts) == 1 else None, where)
    elif isinstance(value, str | bytes):
        if wanted in (str, bytes) and not isinstance(value, wanted):
            raise TypeError(_other_kind(value, wanted, where))
    elif isinstance(value, dict):
        if origin is not dict or arguments[0] in (str, Any, object):
            _refuse_other_keys(value, where)
        for key, each in value.items():
            _refuse(each, arguments[1] if origin is dict else None, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        fixed = origin is tuple and Ellipsis not in arguments
        for at, each in enumerate(value):
            place = at if fixed else 0
            part = arguments[place] if origin in (list, tuple) and place < len(arguments) else None
            _refuse(each, part, f"{where}[{at}]")
    elif has_fields(type(value)):
        for name, hint in typing.get_type_hints(type(value)).items():
            if hasattr(value, name):
                _refuse(getattr(value, name), hint, f"{where}.{name}")


def has_fields(kind: Any) -> bool:
    """A class of attrs, a dataclass or one of msgspec."""
    return isinstance(kind, type) and (
        attrs.has(kind) or dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__")
    )


def _other_kind(value: str | bytes, wanted: type, where: str) -> str:
    way = "encode the text" if wanted is bytes else "decode the bytes"
    kind = type(value).__name__
    return f"{where}: expected {wanted.__name__}, found {value[:80]!r} ({kind}): {way}, or declare it as {kind}"


def _refuse_other_keys(value: dict[Any, Any], where: str) -> None:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(
                f"{where}: keys of a dict are text in JSON, found {key!r} ({type(key).__name__}): write str({key!r}), "
                "or name their type, such as Json(dict[int, int])"
            )
