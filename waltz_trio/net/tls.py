"""TLS: contexts for both sides, key stores, pins. TLS is never off.

Peers of 0.13.2 speak TLS 1.2 only (ECDHE with AES-GCM, ECDSA or RSA certificates), ours prefer 1.3.

Certificates are replaced without a restart. Whoever makes a connection asks for the context, and that asks the file
system whether a file behind it has changed: a few microseconds beside the millisecond of a handshake, and no task that
could be late. Connections that stand are not touched.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import os
import socket
import ssl
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from waltz_core.base.edge import Level
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_trio.base.log import described
from waltz_trio.net.jks import MAGIC as JKS_MAGIC
from waltz_trio.net.jks import JksError, JksStore, read_jks
from waltz_trio.net.key_pair import KeyPair

FileVersion: TypeAlias = tuple[int, int, int, int]
"""Times of the last change in ns, of its content and of its owner, mode or name, size, number of the inode."""

_AGAIN = 1.0  # seconds until files that could not be used are looked at again, though they look the same
_JCEKS_MAGIC = bytes.fromhex("cececece")


@record
class TlsSettings:
    """One TLS group of a configuration (`server.ssl.`, `storage.ssl.`, `client.ssl.` or `ssl.`)."""

    prefix: str = "ssl."  # for messages
    certificate: str | None = None  # PEM file: certificate, then its chain
    key: str | None = None  # PEM file; None = in the certificate's file
    key_password: str | None = None
    ca: str | None = None  # PEM file of the authorities we trust
    key_store: str | None = None  # the original's key: PKCS12 or PEM
    key_store_password: str | None = None
    trust_store: str | None = None  # the original's key: PKCS12 or PEM
    trust_store_password: str | None = None
    verify: bool | None = None  # None = verify where a trust store is set
    require_client: bool = True  # where a trust store is set: ask clients for certificates
    verify_host: bool = False  # the original does not compare host names
    pin_loopback: bool = False  # without a trust store: pin what a loopback peer shows first

    @property
    def trusts(self) -> bool:
        """A trust store is configured."""
        return self.ca is not None or self.trust_store is not None


# ---- contexts --------------------------------------------------------------------------------


class _Renewed(ABC):
    """A context that is made again when a file behind it has changed."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self._seen = _versions(settings)  # before the files are read: a change meanwhile is seen the next time
        self._context = self._make()
        self._failed: tuple[FileVersion | None, ...] | None = None  # could not be used
        self._again = 0.0  # when they are tried again
        self._why = ""  # said of them

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection; of the files as they are, or of the last that could be used."""
        seen = _versions(self.settings)
        # What kept them from being used may pass without a change of theirs: no room, or no descriptors.
        if seen != self._seen and (seen != self._failed or time.monotonic() >= self._again):
            self._renew(seen)
        return self._context

    def _renew(self, seen: tuple[FileVersion | None, ...]) -> None:
        prefix = self.settings.prefix
        try:
            self._context = self._make()
        except Exception as error:  # certificate and key are two files: between their changes they do not fit
            self._failed, self._again = seen, time.monotonic() + _AGAIN
            why = str(error) if isinstance(error, ConfigError) else described(error)
            if why != self._why:
                self._why = why
                text = f"{prefix}*: changed files cannot be used, those read before stay in use: {why}"
                self._report_change(Level.WARNING, text)
            return
        self._seen, self._failed, self._why = seen, None, ""
        self._report_change(Level.INFO, f"{prefix}*: changed files are in use for new connections")
        try:  # the files are read once more for this, and may have changed again
            problems = expiry_warnings(self.settings)
        except Exception as error:
            why = str(error) if isinstance(error, ConfigError) else described(error)
            problems = [f"{prefix}*: nobody could look when these certificates end: {why}"]
        for problem in problems:
            self._report_change(Level.WARNING, problem)

    @abstractmethod
    def _make(self) -> ssl.SSLContext:
        """The context, of the files as they are now."""

    @abstractmethod
    def _report_change(self, level: Level, text: str) -> None:
        """Say what became of changed files."""


class ServerTls(_Renewed):
    """The accepting side: asks for and checks client certificates where a trust store is set."""

    def __init__(
        self, settings: TlsSettings, report: Callable[[Level, str], None] | None = None, *, optional: bool = False
    ) -> None:
        """Build the context.

        Args:
            settings: the TLS group.
            report: called when files have changed, with what became of it.
            optional: a client may show no certificate; one that it shows is checked.

        Raises:
            ConfigError: a file is absent or unreadable.
        """
        self._report, self._optional = report, optional
        self._stand_in = None if settings.certificate or settings.key_store else _self_signed()
        super().__init__(settings)

    def _make(self) -> ssl.SSLContext:
        settings = self.settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _common(context)
        context.num_tickets = 0  # sessions are never resumed; tickets would be an extra message per connection
        pair = self._stand_in or _own_pair(settings)
        assert pair is not None
        load_pair(context, pair, _names(settings))
        if settings.trusts:
            if settings.require_client:
                load_trust(context, settings)
                context.verify_mode = ssl.CERT_OPTIONAL if self._optional else ssl.CERT_REQUIRED
        elif settings.verify:
            raise ConfigError(f"{settings.prefix}verify is true but no trust store is set ({settings.prefix}ca)")
        return context

    def _report_change(self, level: Level, text: str) -> None:
        if self._report is not None:
            self._report(level, text)


class ClientTls(_Renewed):
    """How a dialing side treats its peers: one context, and pins where nothing else vouches for a peer."""

    def __init__(self, settings: TlsSettings, warn: Callable[[str], None] | None = None) -> None:
        """Build the context.

        Args:
            settings: the TLS group.
            warn: called where peers are going to be accepted unverified, and for each certificate at or near its end.

        Raises:
            ConfigError: a file is absent or unreadable, or verification is asked for without a trust store.
        """
        self._warn = warn
        self._pins: dict[Endpoint, bytes] | None = None
        super().__init__(settings)
        if warn is not None:
            for problem in expiry_warnings(settings):
                warn(problem)
        if settings.trusts and settings.verify is not False:
            return
        if settings.pin_loopback and settings.verify is not False:
            self._pins = {}
        elif settings.verify:
            raise ConfigError(f"{settings.prefix}verify is true but no trust store is set ({settings.prefix}ca)")
        elif warn is not None and settings.verify is None:
            warn(
                f"peers are not verified: no trust store is set ({settings.prefix}ca or "
                f"{settings.prefix}trustStore.location); anybody who can answer at their address is believed"
            )

    def _make(self) -> ssl.SSLContext:
        settings = self.settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _common(context)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        pair = _own_pair(settings)
        if pair is not None:  # Java: else a self-signed one, which every peer that asks for one refuses
            load_pair(context, pair, _names(settings))
        if settings.trusts and settings.verify is not False:
            load_trust(context, settings)
            context.verify_mode = ssl.CERT_REQUIRED
            context.check_hostname = settings.verify_host
        return context

    def _report_change(self, level: Level, text: str) -> None:
        if self._warn is not None and level is Level.WARNING:
            self._warn(text)

    def host_name(self, endpoint: Endpoint) -> str | None:
        """Name to announce and, where names are checked, to compare with the certificate."""
        return endpoint.host or None

    def check(self, endpoint: Endpoint, certificate: bytes | None) -> str | None:
        """Why the peer that showed `certificate` (DER) must be refused; None = it may stay."""
        if self._pins is None:
            return None
        if not is_loopback(endpoint.host):
            return (
                f"{endpoint} is not on this machine and nothing vouches for it: name an authority (ca=PATH), "
                "or switch verification off by name (verify=off)"
            )
        if certificate is None:
            return f"{endpoint} showed no certificate"
        digest = hashlib.sha256(certificate).digest()
        if self._pins.setdefault(endpoint, digest) != digest:
            return f"{endpoint} shows another certificate than when this process first met it"
        return None


def local_names() -> tuple[str, ...]:
    """Every name under which this machine may be reached from itself."""
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname())))


def is_loopback(host: str) -> bool:
    """Whether `host` can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of(tls: ssl.SSLObject) -> tuple[str, ...]:
    """Names in the peer's certificate, where one was asked for and verified: common name, then DNS names.

    Raises:
        ssl.SSLError: a name is no text, though a trusted authority has signed it.
    """
    try:
        certificate = tls.getpeercert()
    except ValueError as error:
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, f"its certificate cannot be read: {error}") from error
    if not certificate:
        return ()
    subject = [str(pair[1]) for part in certificate.get("subject", ()) for pair in part if pair[0] == "commonName"]
    alternative = [str(pair[1]) for pair in certificate.get("subjectAltName", ()) if pair[0] == "DNS"]
    return tuple(dict.fromkeys((*subject, *alternative)))


def _common(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_NO_RENEGOTIATION  # so that a write never waits for a read


def load_pair(context: ssl.SSLContext, pair: KeyPair, names: str = "certificate and key") -> None:
    """Give a context its certificate, called `names` in errors; ssl reads files only, so one exists for a moment.

    Raises:
        ConfigError: the key does not fit the certificate, neither can be read, or there is no room for the file.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix="waltz-", suffix=".pem")  # readable by this user only
    except OSError as error:
        raise _no_file(error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pair.key + b"\n" + pair.certificate)
        context.load_cert_chain(name, password=_no_password)
    except ssl.SSLError as error:
        raise ConfigError(f"{names} do not fit together: {error}") from error
    except OSError as error:
        raise _no_file(error) from error
    finally:
        os.unlink(name)


def _no_file(error: OSError) -> ConfigError:
    return ConfigError(f"certificate and key cannot be put into a file for the moment of loading them: {error}")


def _no_password() -> str:
    """Asked for where a key is encrypted even so; without this OpenSSL would ask the terminal, and wait for it."""
    raise ConfigError("the private key is encrypted, and its password is not set")


def load_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Load the authorities of a TLS group.

    Raises:
        ConfigError: a file is absent, unreadable or holds no certificate.
    """
    if settings.ca is not None:
        path, key = settings.ca, settings.prefix + "ca"
        data = _read(path, key)
    else:
        assert settings.trust_store is not None
        path, key = settings.trust_store, settings.prefix + "trustStore.location"
        data = _read(path, key)
        kind = _kind(data, path, key)
        if kind == "PKCS12":
            from waltz_trio.net.certificates import pkcs12_certificates

            data = pkcs12_certificates(data, settings.trust_store_password, key)
        elif kind == "JKS":
            data = _pem(_jks(data, settings.trust_store_password, key).trusted, key)
    try:
        context.load_verify_locations(cadata=data.decode("ascii"))
        # Java: every certificate in a trust store is trusted, an authority or a single one.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    except (ssl.SSLError, ValueError) as error:  # ValueError: not ASCII, or empty
        raise ConfigError(f"{key}: no certificate can be read from {path}: {error}") from error


# ---- key stores ------------------------------------------------------------------------------


def _own_pair(settings: TlsSettings) -> KeyPair | None:
    if settings.certificate is not None:
        certificate = _read(settings.certificate, settings.prefix + "certificate")
        key = certificate if settings.key is None else _read(settings.key, settings.prefix + "key")
        _refuse_other(settings, certificate, key)
        return _pem_pair(certificate, key, settings.key_password, settings.prefix + "key")
    if settings.key_store is None:
        return None
    name = settings.prefix + "keyStore.location"
    data = _read(settings.key_store, name)
    kind = _kind(data, settings.key_store, name)
    if kind == "JKS":
        return _jks_pair(data, settings.key_store_password, settings.key_password, name)
    if kind == "PEM":
        return _pem_pair(data, data, settings.key_store_password, name)
    from waltz_trio.net.certificates import pkcs12_pair

    return pkcs12_pair(data, settings.key_store_password, name)


def _names(settings: TlsSettings) -> str:
    if settings.certificate is None:
        return f"certificate and key of {settings.prefix}keyStore.location ({settings.key_store})"
    names = f"{settings.prefix}certificate ({settings.certificate})"
    return f"{names} and {settings.prefix}key ({settings.key})" if settings.key else f"certificate and key of {names}"


def _refuse_other(settings: TlsSettings, certificate: bytes, key: bytes) -> None:
    """OpenSSL says of a file that holds something else that certificate and key do not fit together."""
    at_certificate, at_key = f"{settings.prefix}certificate: {settings.certificate}", f"{settings.prefix}key"
    if b" CERTIFICATE-----" not in certificate:
        raise ConfigError(f"{at_certificate} holds no certificate in PEM format")
    if b" PRIVATE KEY-----" not in key:
        if settings.key is None:
            raise ConfigError(f"{at_certificate} holds no private key in PEM format, and {at_key} is not set")
        raise ConfigError(f"{at_key}: {settings.key} holds no private key in PEM format")


def _kind(data: bytes, path: str, key: str) -> str:
    """What a key store really is: the content decides, since `JKS` is only the default of the type key."""
    if data[:4] == JKS_MAGIC:
        return "JKS"
    if data[:4] == _JCEKS_MAGIC:
        raise ConfigError(
            f"{key}: {path} is a JCEKS key store, which is not read here; convert it with: "
            f"keytool -importkeystore -srckeystore {path} -srcstoretype JCEKS "
            f"-destkeystore {Path(path).with_suffix('.p12')} -deststoretype PKCS12"
        )
    if b"-----BEGIN " in data:
        return "PEM"
    if data[:1] == b"\x30":
        return "PKCS12"
    raise ConfigError(f"{key}: {path} is neither a PEM file nor a PKCS12 or JKS key store")


def _read(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error


def _pem_pair(certificate: bytes, key: bytes, password: str | None, name: str) -> KeyPair:
    if password is None:
        return KeyPair(certificate, key)
    from waltz_trio.net.certificates import plain_key

    return KeyPair(certificate, plain_key(key, password, name))


def expiry_warnings(settings: TlsSettings) -> list[str]:
    """Certificates of a TLS group that peers refuse, or will refuse soon.

    Raises:
        ConfigError: a file cannot be read.
    """
    pair = _own_pair(settings)
    if pair is None and settings.ca is None:
        return []
    from waltz_trio.net.certificates import expiry_problems

    now = datetime.datetime.now(datetime.UTC)
    own = "certificate" if settings.certificate is not None else "keyStore.location"
    problems = expiry_problems(pair.certificate, settings.prefix + own, now) if pair is not None else []
    if settings.ca is not None:
        problems += expiry_problems(_read(settings.ca, settings.prefix + "ca"), settings.prefix + "ca", now)
    return problems


def _versions(settings: TlsSettings) -> tuple[FileVersion | None, ...]:
    files = settings.certificate, settings.key, settings.ca, settings.key_store, settings.trust_store
    return tuple(version(path) for path in files if path is not None)


def version(path: str) -> FileVersion | None:
    """What changes when a file is replaced or written; None while it is absent."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _self_signed() -> KeyPair:
    from waltz_trio.net.certificates import self_signed

    return self_signed("waltz")


def _jks(data: bytes, password: str | None, name: str, key_password: str | None = None) -> JksStore:
    try:
        return read_jks(data, password, key_password)
    except JksError as error:
        raise ConfigError(f"{name}: {error}") from error


def _jks_pair(data: bytes, password: str | None, key_password: str | None, name: str) -> KeyPair:
    store = _jks(data, password, name, key_password)
    if not store.keys:
        raise ConfigError(f"{name}: the key store holds no private key with a certificate")
    body = base64.encodebytes(store.keys[0].key).decode()
    key = f"-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n"
    return KeyPair(_pem(store.keys[0].chain, name), key.encode())


def _pem(certificates: Sequence[bytes], name: str) -> bytes:
    if not certificates:
        raise ConfigError(f"{name}: the store holds no certificate")
    return "".join(ssl.DER_cert_to_PEM_cert(certificate) for certificate in certificates).encode()
