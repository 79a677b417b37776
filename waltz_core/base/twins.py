"""Loops over transactions that may have a compiled twin.

A function with the decorator `twin` is the *reference*: it says what is right, and it runs wherever `waltz_speedups` is
absent, was not built, or is switched off. Otherwise calls go to the compiled function of the same name, which must
return, raise and change the same for every input. To make that easy to keep, a twin only does what is usual; for
anything else it calls its reference, before it has changed anything.

The names are unique in the core. Machines stay in Python: what is here are loops without any decision of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

try:
    from waltz_speedups import loops as _loops
except ImportError:  # the core alone
    _loops = None

F = TypeVar("F", bound=Callable[..., Any])

REFERENCES: dict[str, Callable[..., Any]] = {}
"""By name, whether or not a twin is used."""


def twin(reference: F) -> F:
    """The compiled twin of a function, or the function itself where there is none."""
    name = reference.__name__
    assert name not in REFERENCES, name
    REFERENCES[name] = reference
    if _loops is None:
        return reference
    _loops.REFERENCES[name] = reference
    compiled: F = getattr(_loops, name, reference)  # what was built in an older checkout may lack it
    return compiled
