"""The hashes of a sealed partition: tiles of 256, as c2sp.org/tlog-tiles lays them out.

A place (`waltz_spark/seal/places.py`) holds a checkpoint and `tile/LEVEL/INDEX`: tile `n` of level `l` has the hashes
of 256 subtrees of `256 ** l` leaves each. The last tile of a level may be partial, and is then called `INDEX.p/WIDTH`.
A full tile never changes; a partial one is replaced by a wider one under another name. So the order of writes is:
tiles, each durable; then the checkpoint; then what it has outgrown is removed, in a folder. A power cut leaves the old
checkpoint with all of its tiles, or the new one.
"""

from __future__ import annotations

from collections import OrderedDict

from waltz_core.operations.merkle import HASH_SIZE, ProofError, root_hash, subtree_hash
from waltz_core.operations.transparency import SignedCheckpoint
from waltz_spark.seal.places import Place

WIDTH = 256
_HEIGHT = 8  # levels of the tree in a tile
_KEPT = 64  # tiles in memory
_GROUP = 1000


class Tiles:
    """The hashes of one partition, up to a size.

    Args:
        place: of the partition's seal.
        size: leaves.
    """

    def __init__(self, place: Place, size: int) -> None:
        self.place, self.size = place, size
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()  # full ones, the oldest first
        self._partial: dict[tuple[int, int], bytes] = {}  # kept for good: a run that seals may remove their files

    def root(self) -> bytes:
        """The root over all leaves; every partial tile is read for it, so nothing else is missed later.

        Raises:
            ProofError: a tile is missing or damaged.
        """
        return root_hash(self.size, self.subtree)

    def leaf(self, index: int) -> bytes:
        """The hash of a leaf; errors as `root`."""
        return self.subtree(0, index)

    def subtree(self, level: int, index: int) -> bytes:
        """The hash of a complete subtree; errors as `root`."""
        tile_level, rest = divmod(level, _HEIGHT)
        first = index << rest
        tile = self.tile(tile_level, first // WIDTH)
        at = first % WIDTH * HASH_SIZE
        return subtree_hash(_cut(tile[at : at + (HASH_SIZE << rest)]))

    def check(self) -> None:
        """Compare each full tile with the hash that the level above has for it.

        `root` reads the edge of the tree alone; with this, every tile is shown to lead to it.

        Raises:
            ProofError: one does not.
        """
        level = 1
        while (count := self.size >> _HEIGHT * level) > 0:
            for index in range(count):
                raw = self.tile(level - 1, index)
                if subtree_hash(_cut(raw)) != self.subtree(_HEIGHT * level, index):
                    raise ProofError(f"{self.place}: tile {index} of level {level - 1} was changed since it was sealed")
            level += 1

    def tile(self, level: int, index: int) -> bytes:
        """The hashes of a tile, end to end; errors as `root`."""
        at = level, index
        known = self._kept.get(at) or self._partial.get(at)
        if known is None:
            width = min(WIDTH, (self.size >> _HEIGHT * level) - index * WIDTH)
            known = self._read(tile_name(level, index, width), width)
            kept = self._kept if width == WIDTH else self._partial
            kept[at] = known
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return known

    def _read(self, name: str, width: int) -> bytes:
        hashes = self.place.find(name, WIDTH * HASH_SIZE)
        if hashes is None:
            raise ProofError(f"{self.place}/{name}: a tile of {width} hashes is missing from the seal")
        if len(hashes) != width * HASH_SIZE:
            raise ProofError(f"{self.place}/{name}: expected {width * HASH_SIZE} bytes of hashes, found {len(hashes)}")
        return hashes


class Growth:
    """Leaves added to a partition's hashes; nothing counts before the checkpoint is written.

    Args:
        tiles: what there is.
    """

    def __init__(self, tiles: Tiles) -> None:
        self.place, self.size = tiles.place, tiles.size
        self._open: list[list[bytes]] = []  # the last tile of each level
        level = 0
        while (count := tiles.size >> _HEIGHT * level) > 0:
            width = count % WIDTH
            raw = tiles.tile(level, count // WIDTH) if width else b""
            self._open.append(_cut(raw))
            level += 1

    def add(self, leaf: bytes) -> None:
        """Add the hash of a leaf."""
        self.size += 1
        level = 0
        while True:
            if level == len(self._open):
                self._open.append([])
            hashes = self._open[level]
            hashes.append(leaf)
            if len(hashes) < WIDTH:
                return
            index = (self.size >> _HEIGHT * (level + 1)) - 1
            self._write(tile_name(level, index, WIDTH), hashes)
            leaf = subtree_hash(hashes)
            hashes.clear()
            level += 1

    def finish(self) -> Tiles:
        """Write the partial tiles; returns all hashes, the new ones included."""
        for level, hashes in enumerate(self._open):
            if hashes:
                index = (self.size >> _HEIGHT * level) // WIDTH
                self._write(tile_name(level, index, len(hashes)), hashes)
        self.place.settle()
        return Tiles(self.place, self.size)

    def _write(self, name: str, hashes: list[bytes]) -> None:
        self.place.put(name, b"".join(hashes))


def _cut(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH_SIZE] for at in range(0, len(hashes), HASH_SIZE)]


def tile_name(level: int, index: int, width: int) -> str:
    """What a tile is called: groups of three digits of its index, all but the last one after an `x`."""
    groups = [f"{index % _GROUP:03d}"]
    while index >= _GROUP:
        index //= _GROUP
        groups.append(f"x{index % _GROUP:03d}")
    name = "/".join(("tile", str(level), *reversed(groups)))
    return name if width == WIDTH else f"{name}.p/{width}"


def write_checkpoint(place: Place, signed: SignedCheckpoint, old_size: int) -> None:
    """Make the tiles up to a size count, then remove the partial tiles of the old size, where that is done."""
    new_size, level = signed.checkpoint.size, 0
    place.put_checkpoint(signed)
    while (count := old_size >> _HEIGHT * level) > 0:
        if count % WIDTH and count != new_size >> _HEIGHT * level:
            full = new_size >> _HEIGHT * level >= (count // WIDTH + 1) * WIDTH
            place.outgrown(tile_name(level, count // WIDTH, count % WIDTH), folder=full)
        level += 1
