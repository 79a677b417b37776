"""What servers and storage nodes both read of their configuration, once, before anything is touched."""

from __future__ import annotations

import attrs

from waltz_core.access.admission import Places
from waltz_core.access.roles import Roles
from waltz_trio.config.config import Config, net_limits, tls_settings
from waltz_trio.config.roles import KEY as ROLES_KEY
from waltz_trio.config.roles import certificates_asked, roles_of
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.driver import accepted_max
from waltz_trio.net.tls import TlsSettings
from waltz_trio.node.otel import OtelSettings, otel_settings
from waltz_trio.zk.security import ZkSecurity, zookeeper_security

FRAME_SIZE_MAX_STORAGE = 1 << 30  # between servers and storage nodes, unless it is set


@attrs.frozen
class NodeSettings:
    """Of a process, whatever it serves."""

    host: str  # to listen at
    http_host: str
    http_port: int | None
    tls: TlsSettings
    roles: Roles
    roles_file: str | None
    certificates_asked: bool
    net: NetLimits
    places: Places
    greeting_ms: int
    frame_size_max: int | None
    gathered_max: int | None
    recorded_batches: int
    root: str
    session_timeout_ms: int
    security: ZkSecurity  # of the session with ZooKeeper
    otel: OtelSettings | None  # None: off

    @property
    def trace_every(self) -> int:
        """One transaction in so many is traced; 0: none."""
        return self.otel.trace_every if self.otel is not None else 0


def node_settings(config: Config, prefix: str, local: str) -> NodeSettings:
    """Parse them: own keys of the process begin with `prefix`; `local` is the address to listen on if none is named."""
    tls = tls_settings(config, f"{prefix}ssl.")
    host = config.text_or_none(f"{prefix}host") or local
    return NodeSettings(
        host=host,
        http_host=config.text_or_none(f"{prefix}jetty.host") or host,
        http_port=config.number_or_none(f"{prefix}jetty.port"),
        tls=tls,
        roles=roles_of(config, tls),
        roles_file=config.text_or_none(ROLES_KEY),
        certificates_asked=certificates_asked(tls),
        net=net_limits(config),
        places=places_of(config),
        greeting_ms=config.number("network.handshakeTimeout"),
        frame_size_max=config.number_or_none("network.frameSizeMax"),
        gathered_max=config.number_or_none("network.gatheredMax"),
        recorded_batches=config.number("debug.flightRecorder"),
        root=config.text("cluster.root").rstrip("/"),
        session_timeout_ms=config.number("zookeeper.sessionTimeout"),
        security=zookeeper_security(config),
        otel=otel_settings(config),
    )


def places_of(config: Config) -> Places:
    """The limits on standing connections, which the machine keeps.

    One place in eight of what the process accepts is left for handshakes and for connections on their way out; were the
    process full itself, it could only refuse all newcomers alike.
    """
    count = accepted_max(net_limits(config))
    standing = max(1, count - max(1, count // 8))
    return Places(
        count_max=standing,
        reserved=standing // 8,
        per_address_max=config.number_or_none("network.connectionsPerAddressMax") or max(1, standing // 2),
        unproven_ms=config.number("network.requestTimeout"),
        idle_ms=config.number("network.idleTimeout"),
    )
