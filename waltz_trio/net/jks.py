"""Reads JKS key stores: keys and certificates of installations that were made for the original.

The format is that of `sun.security.provider.JavaKeyStore`: big-endian fields, private keys hidden by a
stream of SHA-1 digests of the password, and a digest over the whole file.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from struct import Struct

from waltz_core.base.record import record

MAGIC = bytes.fromhex("feedfeed")
_HEAD = Struct(">III")
_SHORT = Struct(">H")
_INT = Struct(">I")
_KEY, _CERTIFICATE = 1, 2
_WHITENER = b"Mighty Aphrodite"  # mixed into the digest of the file by the original format
_DIGEST = 20
_OID = bytes.fromhex("060a2b060104012a02110101")  # 1.3.6.1.4.1.42.2.17.1.1, Sun's key protector


class JksError(Exception):
    """The file is damaged, or the password is wrong."""


@record
class JksKey:
    """A private key with its certificate chain."""

    alias: str
    key: bytes  # PKCS #8, DER
    chain: tuple[bytes, ...]  # DER, own certificate first


@record
class JksStore:
    """What a store holds."""

    keys: tuple[JksKey, ...]
    trusted: tuple[bytes, ...]  # certificates, DER


def read_jks(data: bytes, password: str | None, key_password: str | None = None) -> JksStore:
    """Read a store.

    Args:
        data: the whole file.
        password: of the store; None = its digest is not checked, which suffices for certificates.
        key_password: of the keys; None = that of the store.

    Raises:
        JksError: damaged, of an unknown version, or a wrong password.
    """
    try:
        return _read(data, password, key_password)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise JksError(f"the key store is damaged: {error}") from error


class _Cursor:
    """A place in the file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, form: Struct) -> int:
        (found,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return int(found)

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if len(taken) != size:
            raise JksError("the key store is cut short")
        self.at += size
        return taken

    def text(self) -> str:
        return self.take(self.number(_SHORT)).decode("utf-8")


def _read(data: bytes, password: str | None, key_password: str | None) -> JksStore:
    magic, version, count = _HEAD.unpack_from(data)
    if _INT.pack(magic) != MAGIC or version not in (1, 2):
        raise JksError(f"no JKS key store of version 1 or 2 (version {version} found)")
    if password is not None:
        digest = hashlib.sha1(_utf16(password) + _WHITENER + data[:-_DIGEST]).digest()
        if not hmac.compare_digest(digest, data[-_DIGEST:]):
            raise JksError("the password is wrong, or the key store is damaged")
    cursor = _Cursor(data[:-_DIGEST])
    cursor.at = _HEAD.size
    keys: list[JksKey] = []
    trusted: list[bytes] = []
    for _ in range(count):
        tag = cursor.number(_INT)
        alias = cursor.text()
        cursor.take(8)  # when it was made
        if tag == _CERTIFICATE:
            trusted.append(_certificate(cursor, version))
        elif tag == _KEY:
            hidden = cursor.take(cursor.number(_INT))
            chain = tuple(_certificate(cursor, version) for _ in range(cursor.number(_INT)))
            secret = key_password if key_password is not None else password
            if secret is None:
                raise JksError("the key store holds a private key: its password is needed")
            keys.append(JksKey(alias, _reveal(hidden, secret), chain))
        else:
            raise JksError(f"unknown entry {tag} in the key store")
    return JksStore(tuple(keys), tuple(trusted))


def _certificate(cursor: _Cursor, version: int) -> bytes:
    if version == 2 and (kind := cursor.text()) != "X.509":
        raise JksError(f"a certificate of type {kind} instead of X.509")
    return cursor.take(cursor.number(_INT))


def _reveal(hidden: bytes, password: str) -> bytes:
    """The PKCS #8 key inside an EncryptedPrivateKeyInfo of Sun's protector: salt, hidden bytes, digest."""
    algorithm = _der(hidden, 0x30, _der(hidden, 0x30, 0)[0])
    if not hidden[algorithm[0] : algorithm[1]].startswith(_OID):
        raise JksError("a private key is protected in an unknown way")
    start, end = _der(hidden, 0x04, algorithm[1])
    body = hidden[start:end]
    secret, block = _utf16(password), body[:_DIGEST]
    concealed, check = body[_DIGEST:-_DIGEST], body[-_DIGEST:]
    plain = bytearray()
    while len(plain) < len(concealed):
        block = hashlib.sha1(secret + block).digest()
        piece = concealed[len(plain) : len(plain) + _DIGEST]
        plain += bytes(a ^ b for a, b in zip(piece, block, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + plain).digest(), check):
        raise JksError("the password of a private key is wrong")
    return bytes(plain)


def _der(data: bytes, tag: int, at: int) -> tuple[int, int]:
    """Start and end of the content of the DER value at `at`."""
    if data[at] != tag:
        raise JksError("a private key is damaged")
    size = data[at + 1]
    at += 2
    if size & 0x80:
        width = size & 0x7F
        size = int.from_bytes(data[at : at + width], "big")
        at += width
    if at + size > len(data):
        raise JksError("a private key is cut short")
    return at, at + size


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")
