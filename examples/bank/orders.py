"""What a request asks for, of web frameworks that hand over texts."""

from __future__ import annotations

from collections.abc import Mapping


def order_of(given: Mapping[str, str]) -> tuple[int, int, int, str]:
    """Source, target, amount and the name of an order; ValueError says what is missing, or no number."""
    source, target, amount = (_number(given, name) for name in ("source", "target", "amount"))
    return source, target, amount, _text(given, "order")


def _number(given: Mapping[str, str], name: str) -> int:
    text = _text(given, name)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}: expected a whole number, found {text[:40]!r}") from None


def _text(given: Mapping[str, str], name: str) -> str:
    text = given.get(name)
    if text is None:
        raise ValueError(f"{name} is missing")
    return text
