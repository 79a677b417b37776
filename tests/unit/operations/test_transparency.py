"""Keys, checkpoints and proofs as text: read back as they were, and nothing that is written differently."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waltz_core.operations.merkle import ProofError
from waltz_core.operations.transparency import (
    Checkpoint,
    ConsistencyProof,
    InclusionProof,
    Signature,
    SignedCheckpoint,
    VerifierKey,
    parse_checkpoint,
    parse_proof,
    parse_signer_key,
    parse_verifier_key,
    signer_key_text,
)

KEY = VerifierKey("example.com/ledger", bytes(range(32)))
SIGNED = SignedCheckpoint(
    Checkpoint("waltz.log/key/0", 7, b"r" * 32), (Signature("example.com/ledger", KEY.id, b"s" * 64),)
)
PROOFS = [
    InclusionProof(b"the record", 3, (b"a" * 32, b"b" * 32), SIGNED),
    InclusionProof(b"the record", 0, (), SIGNED),
    ConsistencyProof(5, (b"a" * 32,), SIGNED),
]


def test_a_key_that_the_go_tools_made_is_read() -> None:
    # The example of the documentation of golang.org/x/mod/sumdb/note.
    text = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    key = parse_verifier_key(text)
    assert (key.name, key.id.hex(), str(key)) == ("PeterNeumann", "c74f20a3", text)


def test_keys_are_read_as_they_are_written() -> None:
    assert parse_verifier_key(f"{KEY}\n") == KEY
    assert parse_signer_key(signer_key_text(KEY, b"x" * 32)) == (KEY.name, KEY.id.hex(), b"x" * 32)


@pytest.mark.parametrize(
    "text",
    ["", "a+b", "a+00000000+AAAA", str(KEY).replace("+", "+0", 1), str(KEY)[:-2], "two words" + str(KEY)[18:]],
)
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(ProofError):
        parse_verifier_key(text)


@pytest.mark.parametrize("text", ["", str(KEY), "PRIVATE+KEY+a+00000000+AAAA", "PRIVATE+KEY+a b+00000000+AAAA"])
def test_what_is_no_private_key_is_refused(text: str) -> None:
    with pytest.raises(ProofError):
        parse_signer_key(text)


def test_a_checkpoint_is_read_as_it_is_written() -> None:
    assert parse_checkpoint(str(SIGNED)) == SIGNED
    assert SIGNED.signature_of(KEY) == b"s" * 64
    with pytest.raises(ProofError, match="expected a signature of other"):
        SIGNED.signature_of(VerifierKey("other", KEY.public))
    renewed = VerifierKey(KEY.name, bytes(reversed(KEY.public)))
    both = (*SIGNED.signatures, Signature(KEY.name, renewed.id, b"t" * 64))
    assert SignedCheckpoint(SIGNED.checkpoint, both).signature_of(renewed) == b"t" * 64
    with pytest.raises(ProofError, match="expected a signature of"):
        SIGNED.signature_of(renewed)


@pytest.mark.parametrize("proof", PROOFS)
def test_a_proof_is_read_as_it_is_written(proof: InclusionProof | ConsistencyProof) -> None:
    assert parse_proof(str(proof)) == proof


@given(st.sampled_from(PROOFS), st.data())
def test_a_changed_text_is_refused_or_means_something_else(
    proof: InclusionProof | ConsistencyProof, data: st.DataObject
) -> None:
    text = str(proof)
    at = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(st.sampled_from(("", " ", "\n", "A", "=", "0", "\u2014")))
    changed = text[:at] + put + text[at + 1 :]
    try:
        found = parse_proof(changed)
    except ProofError:
        return
    assert changed == text or found != proof


@given(st.text())
@example("c2sp.org/tlog-proof@v1\n\n")
@example("c2sp.org/tlog-proof@v1\nextra AA==\nindex 01\n\n")
@example("\n\n")
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_proof, parse_checkpoint, parse_verifier_key, parse_signer_key):
        with contextlib.suppress(ProofError):
            parse(text)


def test_a_proof_of_more_hashes_than_any_tree_is_high_is_refused() -> None:
    with pytest.raises(ProofError, match="at most 64"):
        parse_proof(str(ConsistencyProof(5, (b"a" * 32,) * 65, SIGNED)))
