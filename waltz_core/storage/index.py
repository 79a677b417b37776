"""The index file: the byte offset of every record of a segment. A cache, always derivable from the data file."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from waltz_core.base.twins import twin
from waltz_core.storage.record_codec import RECORD_SIZE_MIN
from waltz_core.storage.segment import HEADER_SIZE

ENTRY_SIZE = 8
_SWAP = sys.byteorder == "little"


def entry_place(position: int) -> int:
    """Where the entry of the segment's record number `position` (from 0) stands in the index file."""
    return HEADER_SIZE + ENTRY_SIZE * position


def encode_entries(offsets: Iterable[int]) -> bytes:
    """Entries as they stand in the file."""
    entries = array("Q", offsets)
    if _SWAP:  # pragma: no branch
        entries.byteswap()
    return entries.tobytes()


def decode_entries(data: bytes) -> array[int]:
    """Offsets from whole entries; a partial one at the end is left out."""
    entries = array("Q")
    entries.frombytes(data[: len(data) - len(data) % ENTRY_SIZE])
    if _SWAP:  # pragma: no branch
        entries.byteswap()
    return entries


@twin
def plausible(entries: array[int], end: int) -> bool:
    """Whether entries rise by at least a record each and leave room for the last one before `end`."""
    previous = HEADER_SIZE - RECORD_SIZE_MIN
    for offset in entries:
        if offset < previous + RECORD_SIZE_MIN:
            return False
        previous = offset
    return previous + RECORD_SIZE_MIN <= end
