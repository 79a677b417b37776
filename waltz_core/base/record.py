"""The decorator of every value class that crosses a boundary."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from attrs import frozen as record
elif sys.flags.dev_mode:
    record = attrs.frozen
else:
    # Real freezing triples the cost of construction; type checkers and tests (which run with
    # `-X dev`) see frozen classes, production trusts them.
    record = partial(attrs.define, unsafe_hash=True, on_setattr=attrs.setters.NO_OP)

__all__ = ["record"]
