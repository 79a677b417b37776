"""How a process proves itself to ZooKeeper, and whom the znodes that it makes belong to. All off: as 0.13.2."""

from __future__ import annotations

import importlib.util
from typing import Any

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl

from waltz_core.base.errors import ConfigError
from waltz_core.base.record import record
from waltz_trio.config.config import Config, read_file

_PREFIX = "zookeeper."
_ACLS = {"open": OPEN_ACL_UNSAFE, "creator": CREATOR_ALL_ACL, "creator-read": CREATOR_ALL_ACL + READ_ACL_UNSAFE}
_PERMISSIONS = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "admin"}


@record
class ZkTls:
    """TLS to ZooKeeper; the certificate of the server is always verified."""

    ca: str
    certificate: str | None = None
    key: str | None = None  # None = in the certificate's file
    verify_host: bool = True


@record
class ZkSasl:
    """Login by SASL."""

    mechanism: str
    service: str = "zookeeper"
    username: str | None = None
    password: str | None = None


@record
class ZkSecurity:
    """Everything about one session with ZooKeeper that is not its address."""

    tls: ZkTls | None = None
    sasl: ZkSasl | None = None
    auth: tuple[str, str] | None = None  # scheme and credential
    acl: str = "open"  # of new znodes, as in `zookeeper.acl.create`

    def options(self) -> dict[str, Any]:
        """Arguments of kazoo's client."""
        options: dict[str, Any] = {}
        if self.tls is not None:
            options |= {"use_ssl": True, "ca": self.tls.ca, "check_hostname": self.tls.verify_host}
            if self.tls.certificate is not None:
                options |= {"certfile": self.tls.certificate, "keyfile": self.tls.key or self.tls.certificate}
        if self.sasl is not None:
            given = {"mechanism": self.sasl.mechanism, "service": self.sasl.service}
            if self.sasl.username is not None:
                given |= {"username": self.sasl.username, "password": self.sasl.password or ""}
            options["sasl_options"] = given
        if self.auth is not None:
            options["auth_data"] = [self.auth]
        return options

    def acls(self) -> list[Any]:
        """Who may do what with new znodes.

        Raises:
            ConfigError: `acl` cannot be read.
        """
        known = _ACLS.get(self.acl)
        return list(known) if known is not None else [_grant(text.strip()) for text in self.acl.split(",")]


NO_ZK_SECURITY = ZkSecurity()


def zookeeper_security(config: Config) -> ZkSecurity:
    """What a configuration says of it.

    Raises:
        ConfigError: keys that do not go together, or a file that cannot be read.
    """
    auth = config.secret_or_none("zookeeper.acl.auth")
    parts: tuple[str, str] | None = None
    if auth is not None:
        scheme, colon, credential = auth.partition(":")
        if not colon or not scheme or not credential:
            raise ConfigError("zookeeper.acl.auth: expected SCHEME:CREDENTIAL, such as digest:USER:PASSWORD")
        parts = scheme, credential
    security = ZkSecurity(_tls(config), _sasl(config), parts, config.text(_PREFIX + "acl.create"))
    security.acls()
    if security.acl.startswith("creator") and security.sasl is None and security.auth is None:
        raise ConfigError(
            f"zookeeper.acl.create is {security.acl}, but the session is nobody's: set zookeeper.sasl.mechanism or "
            "zookeeper.acl.auth"
        )
    return security


def _tls(config: Config) -> ZkTls | None:
    ca = config.text_or_none("zookeeper.ssl.ca")
    certificate, key = config.text_or_none("zookeeper.ssl.certificate"), config.text_or_none("zookeeper.ssl.key")
    if ca is None:
        if certificate is not None:
            raise ConfigError("zookeeper.ssl.certificate is set, but zookeeper.ssl.ca is not: there would be no TLS")
        return None
    for name, path in (("ca", ca), ("certificate", certificate), ("key", key)):
        if path is not None:
            read_file(path, f"zookeeper.ssl.{name}")
    return ZkTls(ca, certificate, key, config.flag("zookeeper.ssl.verifyHost"))


def _sasl(config: Config) -> ZkSasl | None:
    mechanism = config.text_or_none("zookeeper.sasl.mechanism")
    if mechanism is None:
        return None
    if importlib.util.find_spec("puresasl") is None:
        raise ConfigError("zookeeper.sasl.mechanism is set, but pure-sasl is missing: pip install 'waltz-log[sasl]'")
    service = config.text("zookeeper.sasl.service")
    if mechanism == "gssapi":
        return ZkSasl("GSSAPI", service)
    username = config.text_or_none("zookeeper.sasl.username")
    password = config.secret_or_none("zookeeper.sasl.password")
    if username is None or password is None:
        raise ConfigError("zookeeper.sasl.mechanism digest-md5 needs zookeeper.sasl.username and a password")
    return ZkSasl("DIGEST-MD5", service, username, password)


def _grant(text: str) -> Any:
    """`SCHEME:ID:PERMISSIONS`; an id may hold colons."""
    scheme, _, rest = text.partition(":")
    identity, _, letters = rest.rpartition(":")
    if not scheme or not identity or not letters or not set(letters) <= set(_PERMISSIONS):
        raise ConfigError(
            f"zookeeper.acl.create: expected open, creator, creator-read or a list of SCHEME:ID:PERMISSIONS with "
            f"permissions of the letters cdrwa, found {text!r}"
        )
    return make_acl(scheme, identity, **{_PERMISSIONS[letter]: True for letter in letters})
