"""How errors show what was found."""

from __future__ import annotations

_SHOWN_MAX = 80  # characters


def shown(value: object) -> str:
    """A value in an error: short, with its type."""
    text = repr(value)
    return f"{text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + '…'} ({type(value).__name__})"
