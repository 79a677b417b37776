"""The content of one file on a simulated disk: what the process sees, and what a power failure may leave of it.

`Sectors` keeps the durable bytes and which sectors wait, cheap enough for whole clusters.
"""

from __future__ import annotations

import random
from typing import Protocol

SECTOR = 512


class Content(Protocol):
    """What a volume needs of a file."""

    @property
    def size(self) -> int: ...
    def read(self, offset: int, length: int) -> bytes: ...
    def write(self, offset: int, data: bytes | memoryview) -> None: ...
    def resize(self, size: int) -> None: ...
    def sync(self) -> None: ...


class Sectors:
    """Bytes as the process sees them, bytes that survive, and which of them wait to be written.

    Attributes:
        untold: error by which a sync of the whole file system lost something of this file; its own next sync tells it.
    """

    __slots__ = ("dirty", "durable", "sizes", "untold", "volatile")

    def __init__(self, data: bytes = b"") -> None:
        self.volatile = bytearray(data)
        self.durable = bytearray(data)
        self.dirty: list[tuple[int, int]] = []  # byte ranges changed since the last sync
        self.sizes: list[int] = []  # sizes passed through since the last sync, the durable one first
        self.untold: OSError | None = None

    @property
    def size(self) -> int:
        return len(self.volatile)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.volatile[offset : offset + length])

    def write(self, offset: int, data: bytes | memoryview) -> None:
        end = offset + len(data)
        start = len(self.volatile)
        if end > start:
            self.volatile.extend(bytes(end - start))
            self._note_size()
            self.dirty.append((min(start, offset), end))
        else:
            self.dirty.append((offset, end))
        self.volatile[offset:end] = data

    def resize(self, size: int) -> None:
        before = len(self.volatile)
        if size == before:
            return
        if size < before:
            del self.volatile[size:]
            self.dirty.append((size, size))
        else:
            self.volatile.extend(bytes(size - before))
            self.dirty.append((before, size))
        self._note_size()

    def sync(self) -> None:
        """Everything that waits becomes durable."""
        self._resize_durable(len(self.volatile))
        for start, end in self.dirty:
            self.durable[start:end] = self.volatile[start:end]
        self._resize_durable(len(self.volatile))
        self.forget()

    def forget(self) -> None:
        """Nothing waits to be written any more, whether it was written or not."""
        self.dirty.clear()
        self.sizes.clear()

    def keep_some(self, rng: random.Random) -> None:
        """Each waiting sector reaches the disk or not, independently; so does the size."""
        if not self.dirty:
            return
        size = len(self.durable)
        if self.sizes:
            low, high = min(self.sizes), max(self.sizes)
            size = rng.choice([*self.sizes, rng.randint(low, high)])
        sectors = sorted({at for start, end in self.dirty for at in range(start // SECTOR, -(-end // SECTOR))})
        self._resize_durable(size)
        for sector in sectors:
            if rng.random() < 0.5:
                start, end = sector * SECTOR, min((sector + 1) * SECTOR, size, len(self.volatile))
                if start < end:
                    self.durable[start:end] = self.volatile[start:end]

    def fail_sync(self, rng: random.Random) -> None:
        """A sync that fails has written some of it, and the operating system forgets the rest."""
        self.keep_some(rng)
        self.forget()

    def lose(self) -> None:
        """Only what is durable is left."""
        self.volatile = bytearray(self.durable)
        self.untold = None
        self.forget()

    def _note_size(self) -> None:
        if not self.sizes:
            self.sizes.append(len(self.durable))
        self.sizes.append(len(self.volatile))

    def _resize_durable(self, size: int) -> None:
        if size < len(self.durable):
            del self.durable[size:]
        else:
            self.durable.extend(bytes(size - len(self.durable)))
