"""Makes and reads certificates and keys. Apart from `tls`, because `cryptography` takes a tenth of a second to load."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from waltz_core.base.errors import ConfigError
from waltz_trio.net.key_pair import KeyPair

_BACKDATED = datetime.timedelta(hours=1)  # clocks of two machines differ a little
_LIFETIME = datetime.timedelta(days=3650)
_SOON = datetime.timedelta(days=14)  # before its end a certificate is worth a warning
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)  # the last of a key of a kind or curve that nobody knows


def self_signed(common_name: str) -> KeyPair:
    """A fresh self-signed certificate: what a process shows that has no key store."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    certificate = _builder(name, name, key.public_key()).sign(key, hashes.SHA256())
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), key_pem(key))


def make_ca(common_name: str) -> KeyPair:
    """A fresh authority, to sign the certificates of one cluster."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), key_pem(key))


def issue(
    authority: KeyPair, common_name: str, hosts: Sequence[str], lifetime: datetime.timedelta = _LIFETIME
) -> KeyPair:
    """A certificate for both sides of a connection, signed by `authority`, valid for `hosts` (names, addresses)."""
    ca = x509.load_pem_x509_certificate(authority.certificate)
    ca_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    lifetime = min(lifetime, ca.not_valid_after_utc - datetime.datetime.now(datetime.UTC))
    builder = _builder(_name(common_name), ca.subject, key.public_key(), lifetime)
    if hosts:
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), key_pem(key))


def host_names(certificate: bytes) -> tuple[str, ...]:
    """Names and addresses of the hosts that a certificate (PEM) is for."""
    try:
        extension = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in extension.value if isinstance(name, x509.DNSName | x509.IPAddress))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: datetime.timedelta = _LIFETIME
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lifetime)
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def key_store(name: str, pair: KeyPair, authority: bytes, password: str) -> bytes:
    """A PKCS12 key store of a key and its certificate, for Java."""
    key = serialization.load_pem_private_key(pair.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return pkcs12.serialize_key_and_certificates(
        name.encode(),
        key,
        x509.load_pem_x509_certificate(pair.certificate),
        [x509.load_pem_x509_certificate(authority)],
        serialization.BestAvailableEncryption(password.encode()),
    )


def trust_store(authorities: bytes, password: str) -> bytes:
    """A PKCS12 trust store with all authorities of a PEM text, as Java marks what it trusts."""
    certificates = x509.load_pem_x509_certificates(authorities)
    names = ["authority", *(f"authority-{number}" for number in range(2, 1 + len(certificates)))]
    trusted = [
        pkcs12.PKCS12Certificate(certificate, name.encode())
        for name, certificate in zip(names, certificates, strict=True)
    ]
    return pkcs12.serialize_java_truststore(trusted, serialization.BestAvailableEncryption(password.encode()))


def is_trust_store_of(store: bytes, authorities: bytes, password: str) -> bool:
    """Whether a PKCS12 trust store holds the authorities of a PEM text; one that another password opens is let be."""
    try:
        trusted = pkcs12.load_pkcs12(store, password.encode()).additional_certs
    except ValueError:
        return True
    return {each.certificate for each in trusted} == set(x509.load_pem_x509_certificates(authorities))


def authority_of(authorities: bytes, key: bytes) -> x509.Certificate:
    """Of the authorities of a PEM text, the one whose private key (PEM) this is.

    Raises:
        ConfigError: there is none, or the key cannot be read.
    """
    try:
        public = serialization.load_pem_private_key(key, None).public_key()
        certificates = x509.load_pem_x509_certificates(authorities)
        own = next((each for each in certificates if each.public_key() == public), None)
    except _UNREADABLE as error:
        raise ConfigError(f"the authority's certificate or key cannot be read: {error}") from error
    if own is None:
        raise ConfigError(f"none of {len(certificates)} certificates of authorities belongs to the authority's key")
    return own


# ---- reading ----


def expiry_problems(pem: bytes, key: str, now: datetime.datetime) -> list[str]:
    """Certificates of a PEM text that peers will refuse, or will refuse soon; `key` names where they come from."""
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []  # the code that loads them reports why they cannot be read
    return [text for certificate in certificates if (text := _expiry_problem(certificate, key, now)) is not None]


def _expiry_problem(certificate: x509.Certificate, key: str, now: datetime.datetime) -> str | None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    what = f"{key}: certificate {certificate.subject.rfc4514_string()!r}"
    if now >= end:
        return f"{what} has expired on {end:%Y-%m-%d %H:%M} UTC: peers that verify it refuse it; replace its file"
    if now < begin:
        return f"{what} is not valid before {begin:%Y-%m-%d %H:%M} UTC: peers that verify it refuse it until then"
    if end - now < _SOON:
        return f"{what} expires on {end:%Y-%m-%d %H:%M} UTC, in {(end - now).days} days: replace its file"
    return None


def plain_key(data: bytes, password: str | None, name: str) -> bytes:
    """The private key of a PEM text without its password."""
    secret = password.encode() if password else None
    try:
        try:
            key = serialization.load_pem_private_key(data, secret)
        except TypeError:  # a password was given, the key has none
            key = serialization.load_pem_private_key(data, None)
    except _UNREADABLE as error:
        raise ConfigError(f"{name}: the private key cannot be read: {error}") from error
    return key_pem(key)


def key_pem(key: object) -> bytes:
    assert hasattr(key, "private_bytes")
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem


def _pkcs12(data: bytes, password: str | None, name: str) -> pkcs12.PKCS12KeyAndCertificates:
    try:
        return pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except _UNREADABLE as error:
        raise ConfigError(f"{name}: the key store cannot be opened: {error}") from error


def pkcs12_pair(data: bytes, password: str | None, name: str) -> KeyPair:
    store = _pkcs12(data, password, name)
    if store.key is None or store.cert is None:
        raise ConfigError(f"{name}: the key store holds no private key with a certificate")
    chain = [store.cert, *store.additional_certs]
    pem = b"".join(item.certificate.public_bytes(serialization.Encoding.PEM) for item in chain)
    return KeyPair(pem, key_pem(store.key))


def pkcs12_certificates(data: bytes, password: str | None, name: str) -> bytes:
    store = _pkcs12(data, password, name)
    items = [*([store.cert] if store.cert is not None else []), *store.additional_certs]
    if not items:
        raise ConfigError(f"{name}: the trust store holds no certificate")
    return b"".join(item.certificate.public_bytes(serialization.Encoding.PEM) for item in items)
