"""The newest transactions of a partition as encoded feed frames, ready to be sent.

Theory of operation:

* **A frame is encoded once** for all subscribers, under codec 0; another codec changes one byte of each. All frames
  have one size, so ids are places, and a run for a subscriber is a slice.
* **Blocks of 1,024 ids** hold what is consecutive from some id of theirs on. Frames that continue or overlap it, on
  either side, are joined to it, so that a lagging subscriber who reads up to the newest ones meets them. With a gap
  between them the newer frames replace it, which costs a read from a storage node later and never a wrong answer.
* **Nothing here can become wrong**: only committed headers are added. When the log ceases to be ours all is dropped.
* **Memory** is a share of the server's, changed as partitions come and go; the block used least recently goes first,
  and two are always kept: one that is being filled and one that a lagging subscriber reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from struct import Struct

from waltz_core.base.twins import twin
from waltz_core.wire.headers import HEADER_SIZE, HasHeader, HeaderRun

# One FeedData frame: magic 'L', codec version, length 29, type 4, request id, transaction id, header.
# Every frame has the same size, so a run of them is sliced, not encoded again, for each subscriber.
_FRAME = Struct(">chiB16sqi")
FRAME_SIZE = _FRAME.size
_BODY_SIZE = 29
_FEED_DATA = 4
_BLOCK = 1024  # transactions per block

_EMPTY = _FRAME.pack(b"L", 0, _BODY_SIZE, _FEED_DATA, bytes(16), 0, 0)
_PLACES = (*range(24, 32), *range(8, 24), *range(32, 36))
"""Where in a frame each byte of a header goes: transaction id, request id, header."""


@twin
def encode_frames(first: int, transactions: Iterable[HasHeader]) -> bytes:
    """Feed frames under codec version 0 of ids `first`, `first + 1`, …"""
    pack = _FRAME.pack
    return b"".join(
        [
            pack(b"L", 0, _BODY_SIZE, _FEED_DATA, found.req_id, transaction_id, found.header)
            for transaction_id, found in enumerate(transactions, start=first)
        ]
    )


def frames_of(headers: HeaderRun) -> bytes:
    """Feed frames under codec version 0 of headers."""
    return frames_of_headers(headers.encoded)


@twin
def frames_of_headers(encoded: bytes) -> bytes:
    """The same of encoded headers: their bytes in another order, moved column by column."""
    frames = bytearray(_EMPTY * (len(encoded) // HEADER_SIZE))
    for at in range(HEADER_SIZE):
        frames[_PLACES[at] :: FRAME_SIZE] = encoded[at::HEADER_SIZE]
    return bytes(frames)


def with_version(frames: bytes, version: int) -> bytes:
    """The same frames under another codec version (0…255)."""
    if version == 0 or not frames:
        return frames
    patched = bytearray(frames)
    patched[2::FRAME_SIZE] = bytes((version,)) * (len(frames) // FRAME_SIZE)
    return bytes(patched)


def to_block_end(first: int) -> int:
    """How many ids to read from `first` on: to the end of its block, or of the next one if that is near.

    A subscriber gets what is in one block in one turn. More than two of them might not be kept.
    """
    left = _BLOCK - first % _BLOCK
    return left if left >= _BLOCK // 2 else left + _BLOCK


class _Block:
    """Frames of consecutive ids inside one block, from `start` on."""

    __slots__ = ("frames", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.frames = bytearray()


class FeedCache:
    """Encoded frames of a partition in blocks of 1024 ids; least recently used blocks go first.

    Only committed headers are ever added, so an entry cannot become wrong while the log is ours.
    """

    __slots__ = ("_block_count_max", "_blocks", "misses")

    def __init__(self, bytes_max: int) -> None:
        self._blocks: OrderedDict[int, _Block] = OrderedDict()
        self.limit(bytes_max)
        self.misses = 0

    def limit(self, bytes_max: int) -> None:
        """Change the share of this partition; two blocks are always kept."""
        self._block_count_max = max(2, bytes_max // (_BLOCK * FRAME_SIZE))
        self._evict()

    def add(self, first: int, frames: bytes) -> None:
        """Remember the frames of ids `first`, `first + 1`, …"""
        at, end = 0, len(frames)
        while at < end:
            number, offset = first // _BLOCK, first % _BLOCK
            size = min(end - at, (_BLOCK - offset) * FRAME_SIZE)
            self._put(number, offset, frames[at : at + size])
            at += size
            first += size // FRAME_SIZE
        self._evict()

    def get(self, first: int, count_max: int) -> bytes:
        """Frames from `first` on, at most `count_max` and at most to the end of its block; empty on a miss."""
        number, offset = divmod(first, _BLOCK)
        block = self._blocks.get(number)
        if block is not None:
            self._blocks.move_to_end(number)
            at = (offset - block.start) * FRAME_SIZE
            if 0 <= at < len(block.frames):
                return bytes(block.frames[at : at + count_max * FRAME_SIZE])
        self.misses += 1
        return b""

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def _put(self, number: int, offset: int, frames: bytes) -> None:
        block = self._blocks.get(number)
        if block is not None:
            self._blocks.move_to_end(number)
            end = block.start + len(block.frames) // FRAME_SIZE
            if offset <= end and offset + len(frames) // FRAME_SIZE >= block.start:
                block.frames += frames[(end - offset) * FRAME_SIZE :]
                if offset < block.start:
                    block.frames[:0] = frames[: (block.start - offset) * FRAME_SIZE]
                    block.start = offset
                return
        # A gap: the newer run replaces the older one.
        block = self._blocks[number] = _Block(offset)
        block.frames += frames
        self._blocks.move_to_end(number)

    def _evict(self) -> None:
        while len(self._blocks) > self._block_count_max:
            self._blocks.popitem(last=False)
