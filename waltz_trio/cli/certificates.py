"""`waltz certificates`: an authority, one file per process, roles, and the keys for each configuration.

Everything lies in one directory, so that it can be made again, extended and renewed there:

    authority/ca-key.pem    the authority's private key: it belongs on none of the hosts of the cluster
    ca.pem                  the authority, for every process
    roles.yml               who may do what, for servers and storage nodes; yours to edit
    NAME.pem                certificate and private key of one process
    NAME.keys.yml           what to put into its configuration
    NAME.p12, trust.p12, NAME.java.yml    the same for a process of 0.13.2, which reads key stores only

What exists is kept. Only `renew` replaces anything, and it replaces certificates; but trust.p12 is made again where
ca.pem holds other authorities.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import attrs
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from waltz_core.access.roles import Role
from waltz_core.base.errors import ConfigError
from waltz_trio.base import durable
from waltz_trio.cli.help import Lines, Parser, as_object, whole_number
from waltz_trio.config.roles import read_roles
from waltz_trio.net.certificates import (
    authority_of,
    host_names,
    is_trust_store_of,
    issue,
    key_store,
    make_ca,
    trust_store,
)
from waltz_trio.net.key_pair import KeyPair

DAYS = 365
SOON_DAYS = 30
_DAYS_MAX = 1_000_000  # certificates know no year behind 9999
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_KEY_BEGIN = b"-----BEGIN PRIVATE KEY-----"
_CERTIFICATE_BEGIN = b"-----BEGIN CERTIFICATE-----"


@attrs.frozen
class _Kind:
    """What a process is, and so what its certificate and its configuration need."""

    prefix: str  # of the keys in its configuration
    role: Role
    rule: str  # the fields of its rule besides the certificate
    hosts: bool  # it is dialed
    about: str


_KINDS = {
    "server": _Kind("server.ssl.", Role.SERVER, "role: server", True, "a server"),
    "storage": _Kind("storage.ssl.", Role.STORAGE, "role: storage", True, "a storage node"),
    "client": _Kind("client.ssl.", Role.CLIENT, "role: client, write: all", False, "a client that reads and appends"),
    "reader": _Kind("client.ssl.", Role.CLIENT, "role: client, read: all", False, "a client that only reads"),
    "admin": _Kind("ssl.", Role.ADMIN, "role: admin", False, "an operator's tools"),
    "proxy": _Kind(
        "client.ssl.", Role.PROXY, "role: proxy, read: all, write: all", False, "a client for other clients"
    ),
}


@attrs.frozen
class _Wanted:
    """A process that needs a certificate."""

    name: str
    kind: _Kind
    hosts: tuple[str, ...]


def make_parser() -> Parser:
    """The commands and their options."""
    parser = Parser(
        prog="waltz certificates",
        description=__doc__,
        formatter_class=Lines,
        example="waltz certificates list waltz-tls",
    )
    commands = parser.subcommands()
    make = commands.add_parser(
        "make",
        help="make what is missing; what exists is kept",
        example="waltz certificates make waltz-tls --storage storage-1=HOST --server server-1=HOST --client orders",
    )
    make.add_argument("directory", type=Path)
    for name, kind in _KINDS.items():
        metavar = "NAME=HOST[,HOST]" if kind.hosts else "NAME"
        make.add_argument(f"--{name}", action="append", default=[], metavar=metavar, help=kind.about)
    days, soon = whole_number(1, _DAYS_MAX), whole_number(0, _DAYS_MAX)
    make.add_argument("--days", type=days, default=DAYS, help="that new certificates are good for (%(default)s)")
    make.add_argument(
        "--installed-at", metavar="PATH", help="directory of the hosts to which the files are copied; default: this one"
    )
    make.set_defaults(run=partial(_said, _make), words=make.prog)
    show = commands.add_parser(
        "list", help="names and ends; status 1 if one ends soon", example="waltz certificates list waltz-tls --json"
    )
    show.add_argument("directory", type=Path)
    show.add_argument("--within", type=soon, default=SOON_DAYS, help="days that count as soon (%(default)s)")
    show.set_defaults(run=partial(_named, _list), words=show.prog)
    renew = commands.add_parser(
        "renew",
        help="replace certificates, with new keys: those named, or that end soon",
        example="waltz certificates renew waltz-tls --within 30",
    )
    renew.add_argument("directory", type=Path)
    renew.add_argument("names", nargs="*", metavar="NAME[=HOST,HOST]", help="hosts: others than until now")
    renew.add_argument("--within", type=soon, default=SOON_DAYS, help="days that count as soon (%(default)s)")
    renew.add_argument("--days", type=days, default=DAYS, help="that the new ones are good for (%(default)s)")
    renew.set_defaults(run=partial(_said, _renew), words=renew.prog)
    for command in (make, show, renew):
        command.add_argument("-j", "--json", action="store_true", help="print JSON")
    return parser


def _named(work: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    try:
        return work(arguments)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error


def _said(work: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    if arguments.json:
        return as_object(arguments.words, partial(_named, work, arguments))
    return _named(work, arguments)


# ---- make ------------------------------------------------------------------------------------


def _make(arguments: argparse.Namespace) -> int:
    wanted = list(_wanted(arguments))
    folder = Path(arguments.directory).absolute()
    place = Path(arguments.installed_at or folder)
    if not place.is_absolute():
        raise ConfigError(f"--installed-at must be an absolute path, found {place}")
    fresh = not (folder / "ca.pem").exists()
    if fresh and not wanted:
        raise ConfigError("name at least one process: --server, --storage, --client, --reader, --admin or --proxy")
    durable.make_directories(folder)
    authority = _authority(folder)
    for process in wanted:
        _check(folder, authority, process)
    rules = _missing_rules(folder / "roles.yml", wanted)
    made = [*(["ca.pem"] if fresh else []), *_write_trust(folder)]
    for process in wanted:
        path = folder / f"{process.name}.pem"
        if not path.exists():
            lifetime = datetime.timedelta(days=arguments.days)
            pair = issue(authority, process.name, process.hosts, lifetime)
            _write(path, pair.certificate + pair.key)
            made.append(path.name)
        made += _write_missing(folder, place, process)
    if rules:
        text = (folder / "roles.yml").read_text("utf-8") if (folder / "roles.yml").exists() else ""
        _write(folder / "roles.yml", (text + "".join(rules)).encode())
        made.append("roles.yml")
    print(f"{folder}: " + (f"made {', '.join(made)}" if made else "everything is there already, nothing was changed"))
    for process in wanted:
        files = f"{process.name}.pem, ca.pem" + (" and roles.yml" if process.kind.hosts else "")
        print(
            f"  {process.name}: {files} belong in {place} of its host, {process.name}.keys.yml into its configuration"
        )
    if fresh:
        print(f"keep {folder / 'authority'} away from every host of the cluster: it makes certificates of any name")
    return 0


def _wanted(arguments: argparse.Namespace) -> Iterator[_Wanted]:
    names: set[str] = set()
    for option, kind in _KINDS.items():
        for text in getattr(arguments, option):
            name, hosts = _parsed(text)
            if kind.hosts and not hosts:
                raise ConfigError(f"--{option} {text}: expected NAME=HOST[,HOST], the hosts by which others reach it")
            if hosts and not kind.hosts:
                raise ConfigError(f"--{option} {text}: expected NAME alone, nobody connects to it")
            if name in names:
                raise ConfigError(f"--{option} {text}: {name} is named twice; every process has a name of its own")
            names.add(name)
            yield _Wanted(name, kind, hosts)


def _parsed(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, listed = text.partition("=")
    hosts = tuple(host for host in listed.split(",") if host)
    if not _NAME.match(name) or name in ("ca", "trust", "roles"):
        raise ConfigError(
            f"{name!r} cannot be a name: expected 1 to 64 letters, digits, '.', '_' and '-', a letter or a digit "
            "first, not ca, trust or roles"
        )
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9.:*-]+", host):
            raise ConfigError(f"{text}: {host!r} is no host name or address")
    return name, hosts


def _authority(folder: Path) -> KeyPair:
    """The authority of a directory; made if there is none."""
    certificate, key = folder / "ca.pem", folder / "authority" / "ca-key.pem"
    if not certificate.exists():
        if key.exists():
            raise ConfigError(f"{key} is there and {certificate} is not: bring it back, or begin in another directory")
        durable.make_directory(key.parent)  # its name is synced with the certificate, which comes last
        pair = make_ca(f"waltz authority {secrets.token_hex(4)}")
        _write(key, pair.key)
        _write(certificate, pair.certificate, 0o644)
        return pair
    if not key.exists():
        raise ConfigError(f"{key} is not there: without it nothing can be signed; bring it back")
    own = _own_authority(folder)
    if _days_left(own) < 0:
        raise ConfigError(
            f"the authority {certificate} has ended on {own.not_valid_after_utc:%Y-%m-%d}: nobody accepts what it "
            "signs; begin in another directory"
        )
    return KeyPair(own.public_bytes(Encoding.PEM), key.read_bytes())


def _own_authority(folder: Path) -> x509.Certificate:
    """Of the authorities that are trusted, the one that signs here."""
    try:
        return authority_of((folder / "ca.pem").read_bytes(), (folder / "authority" / "ca-key.pem").read_bytes())
    except ConfigError as error:
        raise ConfigError(f"{folder / 'ca.pem'} and {folder / 'authority' / 'ca-key.pem'}: {error}") from None


def _check(folder: Path, authority: KeyPair, process: _Wanted) -> None:
    """That what exists is what is wanted."""
    path = folder / f"{process.name}.pem"
    if not path.exists():
        return
    certificate = _read(path)
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise ConfigError(f"{path} is not of the authority {folder / 'ca.pem'}: move it away") from error
    missing = [host for host in process.hosts if host not in host_names(path.read_bytes())]
    if missing:
        raise ConfigError(
            f"{path} is not for {', '.join(missing)}; to replace it: "
            f"waltz certificates renew {folder} {process.name}={','.join(process.hosts)}"
        )


def _missing_rules(path: Path, wanted: Sequence[_Wanted]) -> list[str]:
    """Lines for the file of roles, of those whom no rule of it matches."""
    roles = read_roles(str(path)) if path.exists() else None
    lines = []
    for process in wanted:
        known = roles.access((process.name,), "").roles if roles is not None else frozenset()
        if not known:
            lines.append(f'- {{certificate: "{process.name}", {process.kind.rule}}}\n')
        elif process.kind.role not in known:
            roles_now = ", ".join(sorted(role.value for role in known))
            raise ConfigError(
                f"{path} makes {process.name} {roles_now}, not {process.kind.role.value}: edit it, or take another name"
            )
    return lines


def _write_missing(folder: Path, place: Path, process: _Wanted) -> list[str]:
    """Keys and key stores of a process, as far as they are not there; the names of what was written."""
    prefix, made = process.kind.prefix, []
    keys: dict[str, object] = {
        f"{prefix}certificate": str(place / f"{process.name}.pem"),
        f"{prefix}ca": str(place / "ca.pem"),
        f"{prefix}verify": True,
        f"{prefix}verifyHost": True,
    }
    shared: dict[str, object] = {"security.roles": str(place / "roles.yml")} if process.kind.hosts else {}
    if not (folder / f"{process.name}.keys.yml").exists():
        _write(folder / f"{process.name}.keys.yml", yaml.safe_dump({**keys, **shared}, sort_keys=False).encode())
        made.append(f"{process.name}.keys.yml")
    java = folder / f"{process.name}.java.yml"
    if not java.exists():
        stores = {
            f"{prefix}keyStore.location": str(place / f"{process.name}.p12"),
            f"{prefix}keyStore.password": secrets.token_urlsafe(18),
            f"{prefix}keyStore.type": "PKCS12",
            f"{prefix}trustStore.location": str(place / "trust.p12"),
            f"{prefix}trustStore.password": _TRUST_PASSWORD,
            f"{prefix}trustStore.type": "PKCS12",
        }
        _write(java, yaml.safe_dump(stores, sort_keys=False).encode())
        made.append(java.name)
    if not (folder / f"{process.name}.p12").exists():
        data = (folder / f"{process.name}.pem").read_bytes()
        at = data.index(_KEY_BEGIN)
        _write_key_store(folder, process.name, KeyPair(data[:at], data[at:]))
        made.append(f"{process.name}.p12")
    return made


def _write_trust(folder: Path) -> list[str]:
    """The trust store of all authorities of `ca.pem`, if there is none or one of others; its name if it was written."""
    path, authorities = folder / "trust.p12", (folder / "ca.pem").read_bytes()
    if path.exists() and is_trust_store_of(path.read_bytes(), authorities, _TRUST_PASSWORD):
        return []
    _write(path, trust_store(authorities, _TRUST_PASSWORD), 0o644)
    return [path.name]


_TRUST_PASSWORD = "changeit"
"""Of the trust store, which holds certificates of authorities alone."""


def _write_key_store(folder: Path, name: str, pair: KeyPair) -> None:
    """The key store of a certificate, under the password that its keys name."""
    keys = yaml.safe_load((folder / f"{name}.java.yml").read_text("utf-8"))
    password = next((str(value) for key, value in keys.items() if key.endswith("keyStore.password")), None)
    if password is None:
        raise ConfigError(f"{folder / name}.java.yml holds no keyStore.password: remove the file to have it made again")
    authority = _own_authority(folder).public_bytes(Encoding.PEM)
    _write(folder / f"{name}.p12", key_store(name, pair, authority, password))


# ---- list and renew --------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.directory)
    soonest, rows = arguments.within, []
    for path in _files(folder):
        certificate, hosts = _read(path), () if path.stem == "ca" else host_names(path.read_bytes())
        ends, left = certificate.not_valid_after_utc.isoformat(timespec="seconds"), _days_left(certificate)
        soonest = min(soonest, left)
        rows.append({"name": path.stem, "hosts": hosts, "ends": ends, "days_left": left})
        if not arguments.json:
            state = "has ended" if left < 0 else f"{left} days left"
            print(f"{path.stem:<24} {ends}  {state}  {', '.join(hosts)}".rstrip())
    if arguments.json:
        print(json.dumps(rows, indent=2))
    return 1 if soonest < arguments.within else 0


def _renew(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.directory)
    files = {path.stem: path for path in _files(folder)}
    asked = dict(_parsed(text) for text in arguments.names)
    unknown = [name for name in asked if name not in files]
    if unknown:
        raise ConfigError(f"{folder} holds no certificate of {', '.join(unknown)}; make it by: waltz certificates make")
    authority = _authority(folder)
    ending: dict[str, tuple[str, ...]] = {
        name: () for name, path in files.items() if _days_left(_read(path)) < arguments.within
    }
    lifetime = datetime.timedelta(days=arguments.days)
    chosen = asked or {name: hosts for name, hosts in ending.items() if name != "ca"}
    for name, hosts in chosen.items():
        path = files[name]
        pair = issue(authority, name, hosts or host_names(path.read_bytes()), lifetime)
        if (folder / f"{name}.java.yml").exists():  # first: if this is interrupted here, the other one still ends soon
            _write_key_store(folder, name, pair)
        _write(path, pair.certificate + pair.key)
        until = f"{_read(path).not_valid_after_utc:%Y-%m-%d}"
        print(f"{name}: new certificate until {until}; copy it: no restart is needed, but of a process of 0.13.2")
    if not chosen:
        print(f"none ends within {arguments.within} days, nothing was changed")
    if "ca" in ending and not asked:
        print("the authority itself ends soon: begin a new directory, and trust both authorities (ca.pem may hold "
              "several certificates) until every process has a new certificate", file=sys.stderr)  # fmt: skip
        return 1
    return 0


def _files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.pem"))
    if not (folder / "ca.pem").exists():
        raise ConfigError(f"{folder} holds no authority (ca.pem); make one by: waltz certificates make")
    return paths


def _read(path: Path) -> x509.Certificate:
    data = path.read_bytes()
    if path.stem == "ca" and (path.parent / "authority" / "ca-key.pem").exists():
        return _own_authority(path.parent)
    try:
        certificate = x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise ConfigError(f"{path} holds no certificate: {error}") from error
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if path.stem != "ca" and [str(name.value) for name in names] != [path.stem]:
        raise ConfigError(f"{path} is of {certificate.subject.rfc4514_string()}, not of {path.stem}: move it away")
    if path.stem != "ca" and (_KEY_BEGIN not in data or not data.startswith(_CERTIFICATE_BEGIN)):
        raise ConfigError(f"{path} must hold a certificate and behind it its private key: move it away")
    return certificate


def _days_left(certificate: x509.Certificate) -> int:
    return (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days


def _write(path: Path, data: bytes, mode: int = durable.OWNER_ONLY) -> None:
    durable.replace_file(path, data, mode)
