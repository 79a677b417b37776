"""The decorator of every value class that crosses a boundary."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from attrs import frozen as record
else:
    # Real freezing triples the cost of construction; type checkers and tests (which run with
    # `-X dev`) see frozen classes, production trusts them.
    if sys.flags.dev_mode:
        _made = attrs.frozen(repr=False)
    else:
        _made = attrs.define(repr=False, unsafe_hash=True, on_setattr=attrs.setters.NO_OP)

    def record(cls):
        """Make a value class."""
        if "__repr__" not in vars(cls):
            cls.__repr__ = _shown
        return _made(cls)

    def _shown(self):
        """What attrs would write. Its own is compiled for each class: a process starts faster with one for hundreds."""
        fields = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in attrs.fields(type(self)))
        return f"{type(self).__qualname__.rpartition('>.')[2]}({fields})"


__all__ = ["record"]
