"""The order in which a hash table of Java 17 hands out its keys.

Readers of znodes do not care about order. It shows where 0.13.2 lets it decide something: which storage
node of a group gets which partitions, and which of two servers gets a partition that both prefer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

K = TypeVar("K")

_MASK = 0xFFFFFFFF


def text_hash(text: str) -> int:
    """Hash of a text over its UTF-16 units, as an unsigned 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & _MASK
    return value


def filled_table_size(count: int) -> int:
    """Size of a table that was filled entry by entry."""
    size = 16
    while count > size * 3 // 4:
        size *= 2
    return size


def table_order(keys: Sequence[K], hashes: Sequence[int], size: int) -> list[K]:
    """`keys`, in insertion order, as a table of `size` buckets iterates them (no bucket above seven keys)."""
    buckets: dict[int, list[K]] = {}
    for key, value in zip(keys, hashes, strict=True):
        unsigned = value & _MASK
        buckets.setdefault((unsigned ^ unsigned >> 16) & size - 1, []).append(key)
    return [key for _, bucket in sorted(buckets.items()) for key in bucket]
