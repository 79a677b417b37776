"""JSON as text goes through a gateway: numbers keep the digits that they were written with, and nothing is guessed.

Python's parser would round a number with a fraction to the next float, which for an amount of money is another number.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any, NoReturn


class Number(str):
    """A number with a fraction or an exponent, as it was written."""

    __slots__ = ()


def parse(text: str | bytes) -> Any:
    """A value from its text.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or names a member twice.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"member {twice!r} stands there twice")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _fraction(text: str) -> Number:
    return Number(text)  # not the type itself: then a parser in a thread would not let go of the interpreter


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_fraction, parse_constant=_constant)


def write(value: Any) -> str:
    """A value as text in one line; what `parse` gives, and plain values.

    Raises:
        ValueError: it is nested too deeply.
    """
    try:
        return _text(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _text(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(name)}:{_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if type(value) is int:
        return repr(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    quoted = encode_basestring(text)
    if text.isascii():
        return quoted
    try:
        quoted.encode()
    except UnicodeEncodeError:  # half of a pair, which UTF-8 cannot carry: as it came, by its number
        return json.dumps(text)
    return quoted
