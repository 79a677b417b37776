"""The file of roles that `security.roles` names: a list of rules, each for certificates of some name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from waltz_core.access.roles import EVERY, NO_ROLES, NONE, Ranges, Role, Roles, Rule
from waltz_core.base.errors import ConfigError
from waltz_trio.config.config import Config
from waltz_trio.net.tls import TlsSettings

KEY = "security.roles"
_FIELDS = ("certificate", "role", "read", "write")
_NULL = "tag:yaml.org,2002:null"
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z")


class _TextLoader(yaml.SafeLoader):
    """Lists, mappings and texts as they are written: for YAML, `010` is 8 and `1:30` is 90, which are rights here.

    Nothing stays None, and is refused; `<<` merges; a tag that asks for something else is an error of YAML.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  # as the library has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag in (_NULL, "tag:yaml.org,2002:merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag in (_NULL, *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")))
    }


def roles_of(config: Config, tls: TlsSettings) -> Roles:
    """The roles of a server or storage node; everything is allowed where no file is named.

    Raises:
        ConfigError: the file cannot be used, or peers are not asked for certificates.
    """
    path = config.text_or_none(KEY)
    if path is None:
        return NO_ROLES
    if not certificates_asked(tls):
        raise ConfigError(
            f"{KEY} is set, but peers are not asked for certificates: set {tls.prefix}ca (or "
            f"{tls.prefix}trustStore.location), and leave {tls.prefix}requireClientCertificate true"
        )
    return read_roles(path)


def certificates_asked(tls: TlsSettings) -> bool:
    """Whether peers that connect must show a certificate of a trusted authority."""
    return tls.trusts and tls.require_client


def access_warning(tls: TlsSettings, roles: Roles) -> str:
    """What a process says at start that lets in more than its operator may think; empty if there is nothing to say."""
    if not certificates_asked(tls):
        missing = f"{tls.prefix}ca" if not tls.trusts else f"{tls.prefix}requireClientCertificate"
        return (
            f"peers are not asked for certificates ({missing}) and no roles are set ({KEY}): whoever reaches a port "
            "may do everything there, and clients may take over each other's ids; `waltz certificates` makes what is "
            "needed"
        )
    if roles.rules is None:
        return f"no roles are set ({KEY}): every certificate of the authority may do everything at every port"
    return ""


def read_roles(path: str) -> Roles:
    """Read a file of rules; errors as `roles_of`."""
    try:
        value = yaml.load(Path(path).read_text(encoding="utf-8"), _TextLoader)
    except OSError as error:
        raise ConfigError(f"{KEY}: cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{KEY}: {path} is no valid YAML: {error}") from error
    return parse_roles(value, f"{KEY}: {path}")


def parse_roles(value: object, source: str) -> Roles:
    """Rules from plain values; errors as `roles_of`, which begin with `source`."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{source}: expected a list of rules, each with `certificate` and `role`")
    return Roles([_rule(entry, f"{source}, rule {number}") for number, entry in enumerate(value, start=1)])


def _rule(entry: object, where: str) -> Rule:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: expected `certificate` and `role`, found {entry!r}")
    unknown = [name for name in entry if name not in _FIELDS]
    if unknown:
        raise ConfigError(f"{where}: unknown field {unknown[0]!r}; known: {', '.join(_FIELDS)}")
    pattern, name = entry.get("certificate"), entry.get("role")
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(f"{where}: `certificate` must be a name or pattern, found {pattern!r}")
    known = {role.value: role for role in Role}
    if not isinstance(name, str) or name not in known:
        raise ConfigError(f"{where}: `role` must be one of {', '.join(known)}, found {name!r}")
    role = known[name]
    if role not in (Role.CLIENT, Role.PROXY):
        if "read" in entry or "write" in entry:
            raise ConfigError(f"{where}: only clients and proxies are limited to partitions, {name} is not")
        return Rule(pattern, role)
    write = _ranges(entry.get("write", "none"), f"{where}: `write`")
    read = _ranges(entry.get("read", "none" if write else "all"), f"{where}: `read`")
    return Rule(pattern, role, read, write)


def _ranges(value: object, where: str) -> Ranges:
    """`all`, `none`, or ids and ranges as tools take them: `0-3,7`."""
    text = str(value).replace(" ", "")
    if text == "all":
        return EVERY
    if text == "none":
        return NONE
    ranges = []
    for piece in text.split(","):
        match = _RANGE.match(piece)
        if isinstance(value, bool) or match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ConfigError(f"{where} must be all, none, or partitions such as 0-3,7, found {value!r}")
        ranges.append((int(match[1]), int(match[2] or match[1])))
    return tuple(ranges)
