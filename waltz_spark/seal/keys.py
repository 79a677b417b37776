"""Ed25519 keys of seals: made, kept in files, used. The texts are in `waltz_core.operations.transparency`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from waltz_core.base.record import record
from waltz_core.operations.merkle import ProofError
from waltz_core.operations.transparency import (
    Checkpoint,
    Signature,
    SignedCheckpoint,
    VerifierKey,
    is_name,
    parse_signer_key,
    parse_verifier_key,
    signer_key_text,
)
from waltz_trio.base import durable

_KEY_MAX = 4096  # bytes of a file with a key


@record
class Signer:
    """A signer of checkpoints."""

    public: VerifierKey
    private: Ed25519PrivateKey

    def sign(self, checkpoint: Checkpoint) -> SignedCheckpoint:
        """The checkpoint with one signature."""
        value = self.private.sign(checkpoint.text.encode())
        return SignedCheckpoint(checkpoint, (Signature(self.public.name, self.public.id, value),))


def make_key(path: Path, name: str) -> Signer:
    """A new key in a new file that only its owner reads; the public half goes beside it, with `.pub` at the end.

    Raises:
        ProofError: a key cannot have this name.
        FileExistsError: the file exists. No key is ever overwritten.
    """
    private = Ed25519PrivateKey.generate()
    public = VerifierKey(name, private.public_key().public_bytes_raw())
    if not is_name(name):
        raise ProofError(f"expected a name without spaces and plus signs, such as example.com/ledger, got {name!r}")
    beside = public_path(path)
    for each in (path, beside):
        if each.exists():
            raise FileExistsError(f"{each} exists: a key is not written over; choose another name or move it away")
    durable.replace_file(beside, f"{public}\n".encode(), 0o644)
    durable.replace_file(path, f"{signer_key_text(public, private.private_bytes_raw())}\n".encode())
    return Signer(public, private)


def public_path(path: Path) -> Path:
    """Path of the public half of a private key."""
    return path.with_name(path.name + ".pub")


def load_signer(path: Path) -> Signer:
    """A private key from its file.

    Raises:
        ProofError: the file holds none, or one whose id is that of another.
        OSError: it cannot be read.
    """
    with _named(path):
        name, key_id, seed = parse_signer_key(_key_text(path))
    private = Ed25519PrivateKey.from_private_bytes(seed)
    public = VerifierKey(name, private.public_key().public_bytes_raw())
    if public.id.hex() != key_id:
        raise ProofError(f"{path}: the id of the key is {public.id.hex()}, its text says {key_id[:20]}")
    return Signer(public, private)


def load_verifier(path: Path) -> VerifierKey:
    """A public key from its file.

    Raises:
        ProofError: the file holds none.
        OSError: it cannot be read.
    """
    with _named(path):
        return parse_verifier_key(_key_text(path))


def check_signature(signed: SignedCheckpoint, key: VerifierKey) -> None:
    """Check that a key signed a checkpoint.

    Raises:
        ProofError: it did not.
    """
    value = signed.signature_of(key)
    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(value, signed.checkpoint.text.encode())
    except InvalidSignature:
        raise ProofError(f"the signature of {key.name} is not of this checkpoint: it was changed, or forged") from None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What is wrong with a key, with the name of its file."""
    try:
        yield
    except ProofError as error:
        raise ProofError(f"{path}: {error}") from None


def _key_text(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(_KEY_MAX + 1)
    try:
        return raw.decode("ascii") if len(raw) <= _KEY_MAX else ""
    except UnicodeDecodeError:
        return ""
