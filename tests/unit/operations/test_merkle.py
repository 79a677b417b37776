"""Merkle trees: equal to the definition of RFC 6962, proofs that hold, and no others that do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.operations.merkle import (
    EMPTY_ROOT,
    HASH_SIZE,
    ProofError,
    Subtrees,
    check_consistency,
    check_inclusion,
    consistency_path,
    inclusion_path,
    leaf_hash,
    node_hash,
    root_hash,
)

SIZES = 34
LEAVES = [leaf_hash(b"record %d" % n) for n in range(SIZES)]


def defined(leaves: Sequence[bytes]) -> bytes:
    """The tree hash as section 2.1 of RFC 6962 words it."""
    if not leaves:
        return EMPTY_ROOT
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return node_hash(defined(leaves[:k]), defined(leaves[k:]))


def of(leaves: Sequence[bytes]) -> Subtrees:
    """Complete subtrees only; another question is an error of the asker."""

    def subtree(level: int, index: int) -> bytes:
        first, end = index << level, (index + 1) << level
        assert end <= len(leaves)
        return defined(leaves[first:end])

    return subtree


def test_the_root_of_the_eight_leaves_that_certificate_transparency_tests_with() -> None:
    contents = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
    leaves = [leaf_hash(bytes.fromhex(each)) for each in contents]
    expected = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    assert root_hash(8, of(leaves)).hex() == expected


def test_roots_are_those_of_the_definition() -> None:
    for size in range(SIZES):
        assert root_hash(size, of(LEAVES)) == defined(LEAVES[:size])


def test_every_leaf_of_every_tree_is_proved_to_be_there_and_nowhere_else() -> None:
    for size in range(1, SIZES):
        root = defined(LEAVES[:size])
        for index in range(size):
            path = inclusion_path(index, size, of(LEAVES))
            check_inclusion(index, size, LEAVES[index], path, root)
            for other in range(size + 1):
                if other != index:
                    with pytest.raises(ProofError):
                        check_inclusion(other, size, LEAVES[index], path, root)


def test_every_tree_is_proved_to_begin_with_every_smaller_one() -> None:
    for new in range(1, SIZES):
        for old in range(1, new + 1):
            path = consistency_path(old, new, of(LEAVES))
            check_consistency(old, new, defined(LEAVES[:old]), defined(LEAVES[:new]), path)
    check_consistency(0, 5, EMPTY_ROOT, defined(LEAVES[:5]), [])


@given(st.integers(1, SIZES - 1), st.data())
def test_a_changed_proof_of_inclusion_proves_nothing(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    path, leaf, root = inclusion_path(index, size, of(LEAVES)), LEAVES[index], defined(LEAVES[:size])
    hashes = [*path, leaf, root]
    at, bit = data.draw(st.integers(0, len(hashes) - 1)), data.draw(st.integers(0, HASH_SIZE * 8 - 1))
    hashes[at] = (int.from_bytes(hashes[at]) ^ 1 << bit).to_bytes(HASH_SIZE)
    with pytest.raises(ProofError):
        check_inclusion(index, size, hashes[-2], hashes[:-2], hashes[-1])
    for wrong in (path[:-1] if path else [leaf], [*path, leaf]):
        with pytest.raises(ProofError):
            check_inclusion(index, size, leaf, wrong, root)


@given(st.integers(2, SIZES - 1), st.data())
def test_a_tree_in_which_an_old_leaf_was_changed_dropped_or_moved_does_not_begin_with_the_old_one(
    new: int, data: st.DataObject
) -> None:
    old = data.draw(st.integers(1, new - 1))
    at = data.draw(st.integers(0, old - 1))
    kind = data.draw(st.sampled_from(("changed", "dropped", "moved")))
    leaves = LEAVES[:new]
    if kind == "changed":
        leaves[at] = leaf_hash(b"another")
    elif kind == "dropped":
        leaves[at : at + 1] = []
        leaves.append(LEAVES[new])
    else:
        leaves[at], leaves[at + 1] = leaves[at + 1], leaves[at]
    path = consistency_path(old, new, of(leaves))
    with pytest.raises(ProofError):
        check_consistency(old, new, defined(LEAVES[:old]), defined(leaves), path)


@pytest.mark.parametrize(
    ("old", "new", "path"), [(3, 2, []), (-1, 2, []), (2, 4, []), (2, 2, [LEAVES[0]]), (3, 5, []), (2, 3, LEAVES[:9])]
)
def test_a_proof_of_consistency_of_the_wrong_form_is_refused(old: int, new: int, path: list[bytes]) -> None:
    with pytest.raises(ProofError):
        check_consistency(old, new, defined(LEAVES[: max(0, old)]), defined(LEAVES[:new]), path)


def test_trees_of_one_size_have_one_root() -> None:
    with pytest.raises(ProofError, match="different roots"):
        check_consistency(3, 3, defined(LEAVES[:3]), defined(LEAVES[1:4]), [])
    with pytest.raises(ProofError, match="different roots"):
        check_consistency(0, 3, LEAVES[0], defined(LEAVES[:3]), [])
