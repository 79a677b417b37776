"""Compiled twins of the loops that run once for each transaction. They change no outcome, only how long it takes.

The reference of each twin is the Python function of the same name in `waltz_core`, which is used where no twin was
built, or where the environment says `WALTZ_SPEEDUPS=0`. See `waltz_core.base.twins`.
"""

from __future__ import annotations

import os
from types import ModuleType

__all__ = ["in_use", "loops"]

loops: ModuleType | None = None
"""The compiled module, None where it is not used."""

if os.environ.get("WALTZ_SPEEDUPS") == "0":
    _why = "switched off by WALTZ_SPEEDUPS=0"
else:
    try:
        from waltz_speedups import _loops
    except ImportError as error:
        _why = f"not built here ({error})"
    else:
        loops = _loops


def in_use() -> str:
    """What runs, for people."""
    return "compiled" if loops is not None else f"pure Python ({_why})"
