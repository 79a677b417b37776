"""The texts by which a sealed log is shown to others: keys, signed checkpoints, proofs.

The formats are those of C2SP (c2sp.org), which tools of other transparency logs read: `signed-note`, `tlog-checkpoint`,
`tlog-proof`. A checkpoint is a note of three lines (origin, size, root) with signatures below; a proof of inclusion
carries the record itself in its `extra` line, so that it can be checked with nothing but the public key. C2SP has no
file for a proof of consistency; ours (`waltz.log/consistency-proof@v1`) is written the same way.

What is parsed here comes from strangers: every text is bounded, and written one way only.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Final

from waltz_core.base.record import record
from waltz_core.operations.merkle import HASH_SIZE, ProofError

TEXT_MAX: Final = 256 << 20  # bytes: a record of the largest size in base64, and more
_ED25519: Final = b"\x01"  # algorithm of the key, as signed-note numbers them
_KEY_SIZE: Final = 32
_PRIVATE: Final = "PRIVATE+KEY+"  # before every private key, of which no error shows anything
_INCLUSION: Final = "c2sp.org/tlog-proof@v1"
_CONSISTENCY: Final = "waltz.log/consistency-proof@v1"
_SIGNATURE: Final = re.compile("\u2014 ([^ \n]+) ([A-Za-z0-9+/]+={0,2})")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_NAME: Final = re.compile(r"[^\s+]+")
_PATH_MAX: Final = 64  # hashes: a tree of 2^63 leaves is no higher


# ---- keys ----------------------------------------------------------------------------------------


@record
class VerifierKey:
    """Who signs, and the public key to check it with: `name+id+key`."""

    name: str
    public: bytes  # 32 bytes, Ed25519

    @property
    def id(self) -> bytes:
        """4 bytes by which a signature names its key."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{_text(_ED25519 + self.public)}"


def is_name(text: str) -> bool:
    """Whether a key can have this name."""
    return _NAME.fullmatch(text) is not None


def parse_verifier_key(text: str) -> VerifierKey:
    """A public key as `str()` of it.

    Raises:
        ProofError: it is malformed.
    """
    if text.lstrip().startswith(_PRIVATE):
        raise ProofError("expected a public key, found a private one: give the file that ends in .pub")
    parts = text.strip().split("+", 2)
    raw = _bytes(parts[2], "key") if len(parts) == 3 else b""
    if len(raw) != 1 + _KEY_SIZE or raw[:1] != _ED25519 or not is_name(parts[0]):
        raise ProofError(f"expected a public key, NAME+ID+BASE64 of Ed25519, got {_short(text)}")
    key = VerifierKey(parts[0], raw[1:])
    if key.id.hex() != parts[1]:
        raise ProofError(f"the id of the public key of {key.name} is {key.id.hex()}, its text says {_short(parts[1])}")
    return key


def signer_key_text(key: VerifierKey, seed: bytes) -> str:
    """The private key that belongs to a public one, as signed-note writes it."""
    return f"PRIVATE+KEY+{key.name}+{key.id.hex()}+{_text(_ED25519 + seed)}"


def parse_signer_key(text: str) -> tuple[str, str, bytes]:
    """Name, id and seed of a private key; only a caller that derives the public key can check that they fit.

    Raises:
        ProofError: it is malformed.
    """
    parts = text.strip().split("+", 4)
    if len(parts) != 5 or parts[:2] != ["PRIVATE", "KEY"] or not is_name(parts[2]):
        raise ProofError(f"expected a private key, {_PRIVATE}NAME+ID+BASE64")
    try:
        raw = _bytes(parts[4], "private key")
    except ProofError:
        raise ProofError(f"{parts[2]}: expected a private key in base64: some of it is missing or changed") from None
    if len(raw) != 1 + _KEY_SIZE or raw[:1] != _ED25519:
        raise ProofError("expected a private key of Ed25519 (32 bytes)")
    return parts[2], parts[3], raw[1:]


# ---- checkpoints ---------------------------------------------------------------------------------


@record
class Checkpoint:
    """A log up to some size, in one hash."""

    origin: str  # whose log: cluster key and partition
    size: int  # records
    root: bytes

    @property
    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{_text(self.root)}\n"


@record
class Signature:
    """One line below a note."""

    name: str
    key_id: bytes
    value: bytes


@record
class SignedCheckpoint:
    """A checkpoint with the signatures below it."""

    checkpoint: Checkpoint
    signatures: tuple[Signature, ...]

    def signature_of(self, key: VerifierKey) -> bytes:
        """The signature that a key is said to have made.

        Raises:
            ProofError: there is none.
        """
        for each in self.signatures:
            if (each.name, each.key_id) == (key.name, key.id):
                return each.value
        names = ", ".join(f"{each.name}+{each.key_id.hex()}" for each in self.signatures)
        raise ProofError(f"expected a signature of {key.name}+{key.id.hex()}, the checkpoint has those of {names}")

    def __str__(self) -> str:
        lines = (f"\u2014 {each.name} {_text(each.key_id + each.value)}\n" for each in self.signatures)
        return f"{self.checkpoint.text}\n{''.join(lines)}"


def parse_checkpoint(text: str) -> SignedCheckpoint:
    """A signed checkpoint; whose signature is right is for `waltz_seal.keys`.

    Raises:
        ProofError: it is not written as one.
    """
    body, gap, below = text.partition("\n\n")
    lines = body.split("\n")
    if not gap or len(lines) != 3 or not lines[0] or not _NUMBER.fullmatch(lines[1]) or not below.endswith("\n"):
        raise ProofError(
            f"expected a signed checkpoint (origin, size, root, an empty line, signatures): {_short(text)}"
        )
    signatures = []
    for line in below[:-1].split("\n"):
        match = _SIGNATURE.fullmatch(line)
        raw = _bytes(match[2], "signature") if match is not None else b""
        if match is None or len(raw) < 5:
            raise ProofError(f"expected a signature line, got {_short(line)}")
        signatures.append(Signature(match[1], raw[:4], raw[4:]))
    checkpoint = Checkpoint(lines[0], int(lines[1]), _hash(lines[2]))
    return SignedCheckpoint(checkpoint, tuple(signatures))


# ---- proofs --------------------------------------------------------------------------------------


@record
class InclusionProof:
    """That a record has its place in a log."""

    content: bytes  # of the record, as a data file holds it
    index: int  # its transaction id
    path: tuple[bytes, ...]
    signed: SignedCheckpoint

    def __str__(self) -> str:
        hashes = "".join(f"{_text(each)}\n" for each in self.path)
        return f"{_INCLUSION}\nextra {_text(self.content)}\nindex {self.index}\n{hashes}\n{self.signed}"


@record
class ConsistencyProof:
    """That a log still begins with what it was at an older checkpoint."""

    old_size: int
    path: tuple[bytes, ...]
    signed: SignedCheckpoint

    def __str__(self) -> str:
        hashes = "".join(f"{_text(each)}\n" for each in self.path)
        return f"{_CONSISTENCY}\nold {self.old_size}\n{hashes}\n{self.signed}"


def parse_proof(text: str) -> InclusionProof | ConsistencyProof:
    """A proof of either kind.

    Raises:
        ProofError: it is not written as one.
    """
    head, gap, rest = text.partition("\n\n")
    lines = head.split("\n")
    if not gap or lines[0] not in (_INCLUSION, _CONSISTENCY):
        raise ProofError(f"expected a proof, beginning with {_INCLUSION} or {_CONSISTENCY}, got {_short(text)}")
    signed = parse_checkpoint(rest)
    if lines[0] == _CONSISTENCY:
        old = _field(lines, 1, "old")
        return ConsistencyProof(_number(old), _path(lines[2:]), signed)
    content = _bytes(_field(lines, 1, "extra"), "record")
    return InclusionProof(content, _number(_field(lines, 2, "index")), _path(lines[3:]), signed)


def _path(lines: list[str]) -> tuple[bytes, ...]:
    if len(lines) > _PATH_MAX:
        raise ProofError(f"expected at most {_PATH_MAX} hashes in a proof, got {len(lines)}")
    return tuple(_hash(line) for line in lines)


def _field(lines: list[str], at: int, name: str) -> str:
    line = lines[at] if at < len(lines) else "nothing"
    if not line.startswith(name + " "):
        raise ProofError(f"expected a line '{name} ...' in the proof, got {_short(line)}")
    return line[len(name) + 1 :]


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ProofError(f"expected a number in the proof, got {_short(text)}")
    return int(text)


def _hash(text: str) -> bytes:
    raw = _bytes(text, "hash")
    if len(raw) != HASH_SIZE:
        raise ProofError(f"expected a hash of {HASH_SIZE} bytes in base64, got {_short(text)}")
    return raw


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _bytes(text: str, what: str) -> bytes:
    """Base64 as `_text` writes it, and no other spelling of the same bytes."""
    try:
        raw = b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not raw or _text(raw) != text:
        raise ProofError(f"expected a {what} in base64, got {_short(text)}")
    return raw


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
