"""The configuration of a gateway as one typed record: its topics, who may use them, and its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping

from waltz_core.base.errors import ConfigError
from waltz_core.base.record import record
from waltz_core.gateway.door import ALL, Rule
from waltz_core.gateway.quotas import Limits
from waltz_core.gateway.topics import KEY_FIELD, Topic, Topics
from waltz_trio.config.config import Config, tls_settings
from waltz_trio.config.roles import certificates_asked
from waltz_trio.net.tls import TlsSettings, is_loopback

_TOPIC_FIELDS = ("name", "cluster", "partitions", "keyField", "keysRequired")
_RULE_FIELDS = ("certificate", "tokenSha256", "name", "read", "append")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z")
_PARTITIONS_MAX = 100_000
_HASH = re.compile(r"[0-9a-fA-F]{64}\Z")
_ORIGIN = re.compile(r"https?://[^/\s?#]+\Z")


@record
class GatewaySettings:
    """What a gateway is run with; sizes in bytes, times in seconds."""

    topics: Topics
    rules: tuple[Rule, ...] | None
    origins: tuple[str, ...]
    host: str
    port: int
    tls: TlsSettings | None  # None: plain HTTP
    health_host: str
    health_port: int | None  # of /health and /metrics; None: they are not served
    quotas: Limits
    body_max: int
    feeds_max: int
    feeds_per_caller: int
    connections_max: int
    rate: int
    prefetch: int
    window_bytes: int
    request_timeout: float
    key_window: int


def gateway_settings(config: Config) -> GatewaySettings:
    """Read all of it.

    Raises:
        ConfigError: a value cannot be used, or strangers could reach what nobody guards.
    """
    topics = config.items("gateway.topics")
    if not topics:
        raise ConfigError(f"parameter not found: gateway.topics (in {config.source})")
    rules = None
    if "gateway.access" in config:
        rules = tuple(
            _rule(entry, f"gateway.access, entry {at}") for at, entry in enumerate(config.items("gateway.access"), 1)
        )
    tls = tls_settings(config, "gateway.ssl.") if config.under("gateway.ssl.") else None
    settings = GatewaySettings(
        topics=Topics([_topic(entry, f"gateway.topics, entry {at}") for at, entry in enumerate(topics, 1)]),
        rules=rules,
        origins=tuple(map(_origin, config.items("gateway.origins"))),
        host=config.text("gateway.host"),
        port=config.number("gateway.port"),
        tls=tls,
        health_host=config.text("gateway.healthHost"),
        health_port=config.number("gateway.healthPort") if "gateway.healthPort" in config else None,
        quotas=Limits(
            config.number("gateway.appendsMax"),
            config.number("gateway.appendsPerCaller"),
            config.number("gateway.bytesMax"),
        ),
        body_max=config.number("gateway.bodySizeMax"),
        feeds_max=config.number("gateway.feedsMax"),
        feeds_per_caller=config.number("gateway.feedsPerCaller"),
        connections_max=config.number("gateway.connectionsMax"),
        rate=config.number("gateway.requestsPerSecond"),
        prefetch=config.number("gateway.prefetch"),
        window_bytes=config.number("gateway.windowSize"),
        request_timeout=config.seconds("gateway.requestTimeout"),
        key_window=config.number("gateway.keyWindow"),
    )
    _check(settings)
    return settings


def _check(settings: GatewaySettings) -> None:
    rules = settings.rules or ()
    for rule in rules:
        for topic in {*rule.read, *rule.append} - {ALL}:
            if settings.topics.topic(topic) is None:
                known = ", ".join(settings.topics.names)
                raise ConfigError(f"gateway.access names topic {topic!r}, which there is not; topics: {known}")
    if any(rule.certificate for rule in rules) and (settings.tls is None or not certificates_asked(settings.tls)):
        raise ConfigError(
            "gateway.access has rules for certificates, but callers are not asked for one: set gateway.ssl.ca"
        )
    if is_loopback(settings.host):
        return
    if settings.rules is None:
        raise ConfigError(
            f"gateway.host is {settings.host}, which others reach, and everybody may do everything: set "
            "gateway.access, or listen on 127.0.0.1"
        )
    if settings.tls is None:
        raise ConfigError(
            f"gateway.host is {settings.host}, and tokens would cross the network in the clear: set "
            "gateway.ssl.certificate and gateway.ssl.key, or listen on 127.0.0.1 behind a proxy that speaks TLS"
        )


def _fields(entry: object, known: tuple[str, ...], where: str) -> Mapping[str, object]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: expected {', '.join(known)}, found {entry!r}")
    for name in entry:
        if name not in known:
            raise ConfigError(f"{where}: unknown field {name!r}; known: {', '.join(known)}")
    return entry


def _text(entry: Mapping[str, object], name: str, where: str, default: str | None = None) -> str:
    value = entry.get(name, default)
    if not isinstance(value, str) or (not value and default is None):
        raise ConfigError(f"{where}: {name} must be text, found {value!r}")
    return value


def _topic(entry: object, where: str) -> Topic:
    fields = _fields(entry, _TOPIC_FIELDS, where)
    required = fields.get("keysRequired", False)
    if not isinstance(required, bool):
        raise ConfigError(f"{where}: keysRequired must be true or false, found {required!r}")
    return Topic(
        _text(fields, "name", where),
        _text(fields, "cluster", where),
        _partitions(fields.get("partitions"), f"{where}: partitions"),
        _text(fields, "keyField", where, KEY_FIELD) or KEY_FIELD,
        required,
    )


def _partitions(value: object, where: str) -> tuple[int, ...]:
    ids: list[int] = []
    for piece in str(value).replace(" ", "").split(","):
        match = _RANGE.match(piece)
        if isinstance(value, bool) or match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ConfigError(f"{where} must be partitions of the cluster such as 0-3,7, found {value!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first + len(ids) >= _PARTITIONS_MAX:
            raise ConfigError(f"{where}: more than {_PARTITIONS_MAX}")
        ids.extend(range(first, last + 1))
    return tuple(ids)


def _rule(entry: object, where: str) -> Rule:
    fields = _fields(entry, _RULE_FIELDS, where)
    certificate, token = _text(fields, "certificate", where, ""), _text(fields, "tokenSha256", where, "")
    if bool(certificate) == bool(token):
        raise ConfigError(f"{where}: expected one of certificate and tokenSha256")
    if token and not _HASH.match(token):
        raise ConfigError(
            f"{where}: tokenSha256 has 64 hex digits: `waltz gateway token` makes a token and prints both"
        )
    return Rule(
        certificate,
        token,
        _topics(fields, "read", where),
        _topics(fields, "append", where),
        _text(fields, "name", where, ""),
    )


def _topics(fields: Mapping[str, object], name: str, where: str) -> tuple[str, ...]:
    value = fields.get(name, [])
    if value == "all":
        return (ALL,)
    if not isinstance(value, list) or not all(isinstance(topic, str) and topic != ALL for topic in value):
        raise ConfigError(f"{where}: {name} must be all, or a list of topics, found {value!r}")
    return tuple(value)


def _origin(value: object) -> str:
    if not isinstance(value, str) or not _ORIGIN.match(value):
        raise ConfigError(f"gateway.origins: expected origins such as https://shop.example, found {value!r}")
    return value
