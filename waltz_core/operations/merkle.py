"""Merkle trees over a log, as RFC 6962 (section 2.1) defines them: root, inclusion, consistency.

A tree over `size` leaves is cut at the largest power of two below `size`; so every complete subtree, once its leaves
exist, never changes. A subtree is named by its level (leaves: 0) and its index on that level; the hashes of complete
subtrees (`waltz_spark.seal.tiles` keeps them) suffice for any root and any proof. Proofs are checked by the procedures
of RFC 9162, sections 2.1.3.2 and 2.1.4.2, from the proof alone.

The leading byte keeps leaves and inner nodes apart: without it, the two hashes of an inner node could be passed off as
the content of a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from waltz_core.base.errors import WaltzError

HASH_SIZE = 32
EMPTY_ROOT = sha256(b"").digest()

Subtrees = Callable[[int, int], bytes]
"""The hash of the complete subtree at (level, index on that level): of leaves `index << level` and on, `1 << level`."""


class ProofError(WaltzError):
    """A proof does not prove its claim."""


def leaf_hash(content: bytes | memoryview) -> bytes:
    """Of the bytes of a leaf."""
    digest = sha256(b"\x00")
    digest.update(content)
    return digest.digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Of the two subtrees below a node."""
    return sha256(b"\x01" + left + right).digest()


def subtree_hash(hashes: Sequence[bytes]) -> bytes:
    """Of a complete subtree, from the hashes of one level below; their number is a power of two."""
    assert len(hashes).bit_count() == 1
    level = list(hashes)
    while len(level) > 1:
        level = [node_hash(level[at], level[at + 1]) for at in range(0, len(level), 2)]
    return level[0]


def root_hash(size: int, subtrees: Subtrees) -> bytes:
    """The root over the first `size` leaves."""
    return _range_hash(0, size, subtrees) if size else EMPTY_ROOT


def inclusion_path(index: int, size: int, subtrees: Subtrees) -> list[bytes]:
    """What proves, with the hash of leaf `index`, the root over `size` leaves; from the leaf upwards."""
    assert 0 <= index < size
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(_range_hash(middle, end, subtrees))
            end = middle
        else:
            path.append(_range_hash(start, middle, subtrees))
            start = middle
    path.reverse()
    return path


def consistency_path(old: int, new: int, subtrees: Subtrees) -> list[bytes]:
    """What proves that the tree over `new` leaves begins with the one over `old`; from the bottom upwards."""
    assert 0 < old <= new
    path: list[bytes] = []
    start, end, known = 0, new, True  # known: the verifier has the hash of what lies left of `old` as the old root
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(_range_hash(middle, end, subtrees))
            end = middle
        else:
            path.append(_range_hash(start, middle, subtrees))
            start, known = middle, False
    if not known:
        path.append(_range_hash(start, end, subtrees))
    path.reverse()
    return path


def check_inclusion(index: int, size: int, leaf: bytes, path: Sequence[bytes], root: bytes) -> None:
    """Check that the leaf with hash `leaf` is number `index` of the tree with this root.

    Raises:
        ProofError: it is not shown.
    """
    if not 0 <= index < size:
        raise ProofError(f"expected an index below the size of the tree, {size}, got {index}")
    result = leaf
    for sibling, is_left in _climb(index, size, path):
        result = node_hash(sibling, result) if is_left else node_hash(result, sibling)
    if result != root:
        raise ProofError(
            f"leaf {index} is not what the tree of {size} leaves has there: the path leads to another root"
        )


def check_consistency(old: int, new: int, old_root: bytes, new_root: bytes, path: Sequence[bytes]) -> None:
    """Check that the tree of `new` leaves begins with all leaves of the one of `old`, in their order.

    Raises:
        ProofError: it is not shown.
    """
    if not 0 <= old <= new:
        raise ProofError(f"the older tree has {old} leaves, the newer one {new}: expected no more in the older one")
    if old in (0, new):  # an empty tree is the beginning of any, and a tree is its own
        if path:
            raise ProofError(f"expected no path between trees of {old} and {new} leaves, got {len(path)} hashes")
        if old_root != (new_root if old else EMPTY_ROOT):
            raise ProofError(f"two trees of {old} leaves have different roots")
        return
    hashes = [old_root, *path] if old & (old - 1) == 0 else list(path)
    if not hashes:
        raise ProofError("the path is empty")
    older = newer = hashes[0]  # of the largest complete subtree in which the older tree ends
    skipped = ((old - 1) ^ old).bit_length() - 1
    for sibling, is_left in _climb(old - 1 >> skipped, (new - 1 >> skipped) + 1, hashes[1:]):
        if is_left:
            older = node_hash(sibling, older)
        newer = node_hash(sibling, newer) if is_left else node_hash(newer, sibling)
    if older != old_root:
        raise ProofError(f"the first {old} leaves of the newer tree are not those of the older one")
    if newer != new_root:
        raise ProofError(f"the path leads to another root than that of the tree of {new} leaves")


def _climb(node: int, size: int, path: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The siblings on the way from a node up to the root over `size` nodes of its level; whether each is a left one."""
    last = size - 1
    for sibling in path:
        if last == 0:
            raise ProofError(f"the path is longer ({len(path)} hashes) than the tree is high")
        is_left = bool(node & 1) or node == last
        yield sibling, is_left
        while is_left and not node & 1 and node:  # the last node of a level without a right sibling moves up as it is
            node, last = node >> 1, last >> 1
        node, last = node >> 1, last >> 1
    if last:
        raise ProofError(f"the path is too short ({len(path)} hashes) for the tree")


def _split(count: int) -> int:
    """The largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1


def _range_hash(start: int, end: int, subtrees: Subtrees) -> bytes:
    """Of leaves `start .. end - 1`, which begin where a subtree begins."""
    count = end - start
    if count & (count - 1) == 0:
        level = count.bit_length() - 1
        return subtrees(level, start >> level)
    middle = start + _split(count)
    return node_hash(_range_hash(start, middle, subtrees), _range_hash(middle, end, subtrees))
