"""The content of one file, with everything that it was since its last sync: every possible remainder can be listed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

from waltz_testing.simulation.contents import SECTOR

_MOST = 4096  # combinations of sectors


class Versions:
    """Everything that a file was since its last sync; the first of them is durable, the last is what it is."""

    __slots__ = ("versions",)

    def __init__(self, data: bytes = b"") -> None:
        self.versions = [data]

    @property
    def now(self) -> bytes:
        return self.versions[-1]

    @property
    def size(self) -> int:
        return len(self.versions[-1])

    def read(self, offset: int, length: int) -> bytes:
        return self.versions[-1][offset : offset + length]

    def write(self, offset: int, data: bytes | memoryview) -> None:
        old = self.versions[-1].ljust(offset, b"\0")
        self._become(old[:offset] + bytes(data) + old[offset + len(data) :])

    def resize(self, size: int) -> None:
        self._become(self.versions[-1][:size].ljust(size, b"\0"))

    def sync(self) -> None:
        del self.versions[:-1]

    def _become(self, content: bytes) -> None:
        if content != self.versions[-1]:
            self.versions.append(content)

    def contents(self) -> list[bytes]:
        """Whatever a power failure may leave.

        Of each sector any version, and of the file any length that it had, or any border of a sector between. Where
        that is more than `_MOST` (a large file that was written at once), up to any sector the first versions and from
        there on the last, or the other way round.
        """
        if len(self.versions) == 1:
            return self.versions
        lengths = {len(version) for version in self.versions}
        borders = range(-(-min(lengths) // SECTOR) * SECTOR, max(lengths), SECTOR)
        sizes = sorted({*lengths, *borders})
        count = -(-sizes[-1] // SECTOR)
        sectors = []
        for number in range(count):
            span = slice(number * SECTOR, (number + 1) * SECTOR)
            sectors.append(sorted({version[span].ljust(SECTOR, b"\0") for version in self.versions}))
        found: set[bytes] = set()
        for choice in itertools.product(*sectors) if prod(map(len, sectors)) <= _MOST else _halves(sectors):
            whole = b"".join(choice)
            found.update(whole[:size] for size in sizes)
        return sorted(found)


def _halves(sectors: Sequence[Sequence[bytes]]) -> Iterator[tuple[bytes, ...]]:
    first, last = tuple(one[0] for one in sectors), tuple(one[-1] for one in sectors)
    for at in range(len(sectors) + 1):
        yield first[:at] + last[at:]
        yield last[:at] + first[at:]
