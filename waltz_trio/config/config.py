"""Configuration files: the original's YAML rules, typed getters, unknown keys named."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from operator import index
from os import PathLike
from pathlib import Path

import yaml

from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_trio.config.keys.key import Key, Kind, Use
from waltz_trio.config.keys.table import KEYS
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.tls import TlsSettings

_INT = re.compile(r"[+-]?\d+\Z")
_QUANTITY = re.compile(r"\s*(\d+)\s*([A-Za-z]*)\s*\Z")
_UNITS = {
    Kind.SIZE: {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30},
    Kind.TIME: {"": 1, "ms": 1, "s": 1000, "min": 60_000},
}
_BITS = {Kind.INT: 31, Kind.PORT: 31, Kind.LONG: 63, Kind.SIZE: 63, Kind.TIME: 63}
_PORT_MAX = 65535


class Config:
    """Dotted keys and their values; every getter knows type and default of its key from the table.

    Values are validated at construction, for the keys that are present. A missing key without a
    default is an error only when it is read.
    """

    def __init__(self, values: Mapping[str, object], source: str = "configuration") -> None:
        """Take a flat or nested mapping.

        Args:
            values: dotted, nested or mixed keys; later ones win.
            source: file name, for messages.

        Raises:
            ConfigError: a value cannot be used.
        """
        self.source = source
        self._values: dict[str, object] = dict(_flatten(values, ""))
        self._check()

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Config:
        """Read a YAML file.

        Raises:
            ConfigError: the file cannot be read, is no mapping, or holds a value that cannot be used.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8: {error.reason}") from error
        except ValueError as error:  # a zero byte in the path
            raise ConfigError(f"cannot read {str(path)!r}: {error}") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str = "configuration") -> Config:
        """Read YAML text; errors as `load`."""
        config = cls({}, source)
        config._values = dict(_read_yaml(text, source))
        config._check()
        return config

    # ---- getters ---------------------------------------------------------------------------------

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def keys(self) -> tuple[str, ...]:
        """The keys present."""
        return tuple(self._values)

    def under(self, prefix: str) -> dict[str, object]:
        """The keys that begin with `prefix`, and their values."""
        return {key: value for key, value in self._values.items() if key.startswith(prefix)}

    def text(self, key: str) -> str:
        """A text, or its default.

        Raises:
            ConfigError: `parameter not found: KEY (in FILE)`.
        """
        return str(self._need(key))

    def text_or_none(self, key: str) -> str | None:
        """A text, its default, or None."""
        value = self._find(key)
        return None if value is None else str(value)

    def number(self, key: str) -> int:
        """An int of any kind in the key's unit, or its default; errors as `text`."""
        value = self._need(key)
        assert isinstance(value, int), key
        return value

    def number_or_none(self, key: str) -> int | None:
        """An int, its default, or None."""
        value = self._find(key)
        assert value is None or isinstance(value, int), key
        return value

    def flag(self, key: str) -> bool:
        """A boolean, or its default; errors as `text`."""
        return bool(self._need(key))

    def flag_or_none(self, key: str) -> bool | None:
        """A boolean, its default, or None."""
        value = self._find(key)
        return None if value is None else bool(value)

    def items(self, key: str) -> list[object]:
        """A list; empty where there is none."""
        value = self._find(key)
        assert value is None or isinstance(value, list), key
        return list(value or ())

    def seconds(self, key: str) -> float:
        """A time kept in milliseconds, in seconds; errors as `text`."""
        return self.number(key) / 1000

    def endpoint_or_none(self, key: str) -> Endpoint | None:
        """A `host:port`, or None.

        Raises:
            ConfigError: not of this form.
        """
        text = self.text_or_none(key)
        if text is None:
            return None
        try:
            return parse_endpoint(text)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from None

    def secret_or_none(self, key: str) -> str | None:
        """A password: the first line of the file that `<key>File` names, else the value of `key` itself.

        Raises:
            ConfigError: both are set, or the file cannot be read or is empty.
        """
        file_key = key + "File"
        path = self.text_or_none(file_key)
        if path is None:
            return self.text_or_none(key)
        if self.text_or_none(key) is not None:
            raise ConfigError(f"{key} and {file_key} are both set: leave one of them out")
        secret = read_file(path, file_key).decode("utf-8", "replace").partition("\n")[0].rstrip("\r")
        if not secret:
            raise ConfigError(f"{file_key}: the first line of {path} is empty, expected a password")
        return secret

    def _find(self, key: str) -> object:
        known = KEYS[key]
        if key not in self._values:
            return known.default
        return self._convert(known, self._values[key])

    def _need(self, key: str) -> object:
        value = self._find(key)
        if value is None:
            raise ConfigError(f"parameter not found: {key} (in {self.source})")
        return value

    # ---- checks ----------------------------------------------------------------------------------

    def _convert(self, key: Key, value: object) -> str | int | bool | list[object] | None:
        try:
            return _convert(key, value)
        except ValueError as error:  # of thousands of digits
            raise ConfigError(f"{key.name}: {error} (in {self.source})") from None
        except ConfigError as error:
            raise ConfigError(f"{error} (in {self.source})") from None

    def _check(self) -> None:
        taken: set[tuple[Use, int]] = set()  # one file may serve processes on different machines
        for name, value in self._values.items():
            key = KEYS.get(name)
            if key is None:
                continue
            converted = self._convert(key, value)
            if key.kind is Kind.PORT and isinstance(converted, int) and converted:
                if (key.use, converted) in taken:
                    raise ConfigError(
                        f"Validation failed for {name}: value '{converted}' is already taken (in {self.source})"
                    )
                taken.add((key.use, converted))

    def unknown(self) -> tuple[tuple[str, str | None], ...]:
        """Keys that no component knows, each with the nearest known one."""
        return tuple((name, nearest(name)) for name in self._values if name not in KEYS)

    def warn_unknown(self, warn: Callable[[str], None]) -> None:
        """Tell every unknown key; files are read by programs of several versions, so it is no error."""
        for name, near in self.unknown():
            warn(_unknown_text(name, near, self.source))

    def refuse_unknown(self) -> None:
        """For mappings made by programs.

        Raises:
            ConfigError: a key is unknown; the nearest known one is named.
        """
        for name, near in self.unknown():
            raise ConfigError(_unknown_text(name, near, self.source))


_TLS_GROUPS = {"ssl.": "tools", "client.ssl.": "clients", "server.ssl.": "servers", "storage.ssl.": "storage nodes"}


def tls_settings(config: Config, prefix: str) -> TlsSettings:
    """The TLS group `server.ssl.`, `storage.ssl.`, `client.ssl.` or `ssl.` of a configuration."""

    def text(name: str) -> str | None:
        return config.text_or_none(prefix + name)

    return TlsSettings(
        prefix=prefix,
        certificate=text("certificate"),
        key=text("key"),
        key_password=config.secret_or_none(prefix + "keyPassword"),
        ca=text("ca"),
        key_store=text("keyStore.location"),
        key_store_password=config.secret_or_none(prefix + "keyStore.password"),
        trust_store=text("trustStore.location"),
        trust_store_password=config.secret_or_none(prefix + "trustStore.password"),
        verify=config.flag_or_none(prefix + "verify"),
        require_client=config.flag(prefix + "requireClientCertificate"),
        verify_host=bool(config.flag_or_none(prefix + "verifyHost")),
    )


def refuse_misplaced_tls(config: Config, prefix: str) -> None:
    """A file made for another program: its TLS group is there under another name, and ours is not.

    Raises:
        ConfigError: it is so; names the file, its keys and those that are read.
    """
    if config.under(prefix):
        return
    for other, whose in _TLS_GROUPS.items():
        keys = config.under(other)
        if other != prefix and keys:
            raise ConfigError(
                f"{config.source}: has {next(iter(sorted(keys)))}, which {whose} read, and no {prefix}* key, which "
                f"{_TLS_GROUPS[prefix]} read: is it the file of {whose}?"
            )


def read_file(path: str, key: str) -> bytes:
    """The content of a file that a key names.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error


def net_limits(config: Config) -> NetLimits:
    """The bounds on connections of a configuration."""
    return NetLimits(
        stall_timeout=config.seconds("network.stallTimeout"),
        handshake_timeout=config.seconds("network.handshakeTimeout"),
        connect_timeout=config.seconds("network.connectTimeout"),
        connections_max=config.number("network.connectionsMax"),
        handshakes_max=config.number("network.handshakesMax"),
        unsent_max=config.number("network.unsentMax"),
    )


def nearest(name: str) -> str | None:
    """The known key most like `name`, None when nothing is."""
    known = {key.lower(): key for key in KEYS}
    found = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return known[found[0]] if found else None


def _unknown_text(name: str, near: str | None, source: str) -> str:
    hint = f"; did you mean {near}?" if near else ""
    return f"{source}: unknown key {name}{hint}"


# ---- reading ---------------------------------------------------------------------------------


def _flatten(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigError(f"a key must be text, found {key!r}")
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _read_yaml(text: str, source: str) -> Iterator[tuple[str, object]]:
    try:
        loader = yaml.SafeLoader(text)
        loader.name = source  # in what it says about a place
        try:
            node = loader.get_single_node()
            if not isinstance(node, yaml.MappingNode):
                raise ConfigError(f"{source}: expected a mapping of keys to values")
            yield from _walk(loader, node, "", source, 0)
        finally:
            loader.dispose()
    except _NO_YAML as error:
        raise ConfigError(f"{source} is no valid YAML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None


# What PyYAML raises: an impossible date is a ValueError, `!!bool client` a KeyError, `!!int ""` an IndexError,
# `!!timestamp x` an AttributeError.
_NO_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError)
_INT_TAG = "tag:yaml.org,2002:int"
_DEPTH_MAX = 50  # an alias may contain itself


def _walk(
    loader: yaml.SafeLoader, node: yaml.MappingNode, prefix: str, source: str, depth: int
) -> Iterator[tuple[str, object]]:
    """Keys in document order: the dicts PyYAML would make forget which of two equal keys came last."""
    if depth > _DEPTH_MAX:
        raise ConfigError(f"{source}: nested too deeply at {prefix}")
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key is None or isinstance(key, list | dict):
            below = f" below {prefix.rstrip('.')}" if prefix else ""
            line = key_node.start_mark.line + 1
            raise ConfigError(f"{source}, line {line}: a key{below} must be text, found {key!r}")
        name = f"{prefix}{key}"
        if isinstance(value_node, yaml.MappingNode):
            yield from _walk(loader, value_node, name + ".", source, depth + 1)
        else:
            if isinstance(value_node, yaml.SequenceNode) and name in KEYS:  # others may hold what they like
                _refuse_disguised(loader, value_node, source)
            yield name, loader.construct_object(value_node, deep=True)


def _refuse_disguised(loader: yaml.SafeLoader, top: yaml.Node, source: str) -> None:
    """In a list stand partitions, as numbers or as ranges: for YAML, `010` is 8, and `1:30` is 90."""
    waiting, seen = [top], {top}  # an alias may contain itself
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _INT_TAG and str(loader.construct_object(node)) != node.value:
                line = node.start_mark.line + 1
                raise ConfigError(f"{source}, line {line}: {node.value} is another number in YAML: write it in quotes")
            continue
        inner = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        new = [each for each in inner if each not in seen]
        seen.update(new)
        waiting += new


def _convert(key: Key, value: object) -> str | int | bool | list[object] | None:
    if value is None:
        return None
    if key.kind is Kind.LIST:
        if not isinstance(value, list):
            raise ConfigError(f"{key.name}: expected a list, found {value!r}")
        return value
    if key.kind is Kind.BOOL:
        return value if isinstance(value, bool) else _only_text(key, value).strip().lower() == "true"
    if key.kind is Kind.TEXT:
        return _to_text(key, value)
    return _to_number(key, value)


def _to_text(key: Key, value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, list | dict):
        raise ConfigError(f"{key.name}: expected text, found {value!r}")
    if "\0" in text:
        raise ConfigError(f"{key.name}: expected text without NUL characters, found {text!r}")
    if key.choices and text.lower() not in key.choices:
        raise ConfigError(f"{key.name}: expected one of {', '.join(key.choices)}, found {text!r}")
    return text.lower() if key.choices else text


def _to_number(key: Key, value: object) -> int:
    number: int | None
    if isinstance(value, str):
        number = _parse_number(key, value)
    else:
        try:
            number = index(value)  # type: ignore[arg-type]  # of any whole type: mappings are made by programs
        except TypeError:
            number = None
        if number is None or isinstance(value, bool):
            raise ConfigError(f"{key.name}: expected a whole number, found {value!r}")
    limit = 1 << _BITS[key.kind]
    if not -limit <= number < limit:
        raise ConfigError(f"{key.name}: {number} does not fit {_BITS[key.kind] + 1} bits")
    if key.low is not None and number < key.low:
        raise ConfigError(f"{key.name}: at least {key.low} expected, found {number}")
    if key.high is not None and number > key.high:
        raise ConfigError(f"{key.name}: at most {key.high} expected, found {number}")
    if key.kind is Kind.PORT and number > _PORT_MAX:
        raise ConfigError(f"{key.name}: {number} is no port number")
    return number


def _parse_number(key: Key, text: str) -> int:
    if _INT.match(text.strip()):
        return int(text)
    units = _UNITS.get(key.kind)
    match = _QUANTITY.match(text)
    if units is None or match is None or match[2].lower() not in units:
        raise ConfigError(f"{key.name}: expected a whole number, found {text!r}")
    return int(match[1]) * units[match[2].lower()]


def _only_text(key: Key, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{key.name}: expected true or false, found {value!r}")
    return value
