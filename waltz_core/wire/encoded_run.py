"""What runs of records and of their headers have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class EncodedRun(Sequence[T]):
    """Values one behind the other, encoded; equal to any sequence of the same values. Never changed."""

    __slots__ = ("encoded",)

    encoded: bytes

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EncodedRun) and type(other) is type(self):
            return self.encoded == other.encoded
        return tuple(self) == tuple(other) if isinstance(other, tuple | list) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
