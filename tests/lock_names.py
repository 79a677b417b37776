"""Names of locks packed as clients pack them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from waltz_core.wire.lock_names import NO_NAMES, UNNAMED, pack_text

_ID = Struct(">q")


def pack_names(names: Sequence[tuple[str, int] | None]) -> bytes:
    """Pack the names of all locks of an append."""
    if not any(name is not None for name in names):
        return NO_NAMES
    return b"".join([UNNAMED if name is None else pack_text(name[0]) + _ID.pack(name[1]) for name in names])
