"""Records of TLS 1.3 that say nothing: KeyUpdates, which Python's `ssl` does not send."""

from __future__ import annotations

import hashlib
import hmac
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CIPHER = "TLS_AES_256_GCM_SHA384"
"""That a connection must have."""


class UpdateRecords:
    """What a client sends behind its handshake, made from the secret that OpenSSL has logged for it last."""

    def __init__(self, log: Path) -> None:
        lines = [line for line in log.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")]
        self._secret = bytes.fromhex(lines[-1].split()[2])
        self._number = 0

    def updates(self, count: int, *, answered: bool) -> bytes:
        """So many KeyUpdates, each behind the one before."""
        return b"".join(self._update(answered) for _ in range(count))

    def words(self, data: bytes) -> bytes:
        """A record that says something."""
        return self._record(data, 23)

    def _update(self, answered: bool) -> bytes:
        record = self._record(bytes((24, 0, 0, 1, answered)), 22)
        self._secret, self._number = self._expand(b"traffic upd", 48), 0
        return record

    def _record(self, data: bytes, kind: int) -> bytes:
        head = struct.pack(">BHH", 23, 0x0303, len(data) + 17)
        start = int.from_bytes(self._expand(b"iv", 12), "big")
        nonce = (start ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + AESGCM(self._expand(b"key", 32)).encrypt(nonce, data + bytes((kind,)), head)

    def _expand(self, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        info = struct.pack(">HB", size, len(label)) + label + b"\0"
        return hmac.digest(self._secret, info + b"\1", hashlib.sha384)[:size]
