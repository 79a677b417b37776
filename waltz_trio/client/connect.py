"""`open_client`: from a configuration to a running client."""

from __future__ import annotations

import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from urllib.parse import parse_qs, urlsplit

import attrs
import trio

from waltz_core.base.contract import Tickets
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.base.record import record
from waltz_core.client.membership import Membership, ServerMembership, ZkMembership
from waltz_core.client.settings import ClientSettings
from waltz_trio.base.background import background
from waltz_trio.base.forks import call_in_child
from waltz_trio.base.log import reporter, warn_once
from waltz_trio.client.blocks import Block
from waltz_trio.client.client import Client, ClientDriver
from waltz_trio.client.encoding import ClientLimits
from waltz_trio.client.instrument import Instrument, check_instrument
from waltz_trio.client.shown import shown
from waltz_trio.config.config import Config, net_limits, refuse_misplaced_tls, tls_settings
from waltz_trio.net.dialer import why
from waltz_trio.net.driver import NodeDriver
from waltz_trio.net.tls import ClientTls, TlsSettings
from waltz_trio.zk.embedded import EmbeddedZnodes
from waltz_trio.zk.security import ZkSecurity, zookeeper_security
from waltz_trio.zk.store import connect_string, open_znode_store

_URL_PREFIX = "waltz://"
_URL_FORM = "waltz://host:port[?ca=PATH][&verify=on|ca|off]"
_MAPPING = '{"zookeeper.connectString": "HOST:2181", "zookeeper.sessionTimeout": 30000, "cluster.root": "/PATH"}'
_ADDRESS = re.compile(r"(\w+:/{0,2})?(?P<server>[\w.-]+:\d+)(/.*)?")  # of any kind of service
_AROUND = " \t\r\n'\"<>[](){},;"  # what comes along when an address is copied
_PARTING_TIME = 1.0  # seconds to flush and close connections
_LOOK_TIME = 2.0  # seconds to look at an address that did not answer

ConfigLike = Config | str | os.PathLike[str] | Mapping[str, object]
"""A path, a mapping, a parsed configuration, or `waltz://host:port[?ca=PATH][&verify=on|ca|off]`."""


@record
class Setup:
    """A configuration, read."""

    membership: Membership
    settings: ClientSettings
    limits: ClientLimits
    tls: ClientTls
    config: Config
    zookeeper: tuple[str | EmbeddedZnodes, int] | None  # connect string, session time-out in ms


def open_client(config: ConfigLike, *, instrument: Instrument | None = None) -> AbstractAsyncContextManager[Client]:
    """Connect to a cluster: `async with open_client("client.yml") as client: ...`.

    Entered when the cluster has answered (`client.connectTimeout`); partitions are mounted when they are used.
    Leaving the block normally waits for appends under way (`client.closeTimeout`); nothing is left running.

    Args:
        config: path of a YAML file, a mapping of its keys, or `waltz://host:port[?ca=PATH][&verify=on|ca|off]`.
        instrument: told what the client does, for metrics.

    Raises:
        ConfigError: the configuration cannot be used.
        ClientFailedError: the cluster does not answer or cannot be used, or the client broke.
        RuntimeError: Trio does not run; on leaving: the `await` before an append was forgotten.
    """
    return Block("async with open_client(...) as client:", _open(config, instrument))


@asynccontextmanager
async def _open(config: ConfigLike, instrument: Instrument | None) -> AsyncIterator[Client]:
    if instrument is not None:
        check_instrument(instrument)
    async with run_client(read_config(config), instrument) as client:
        yield client


@asynccontextmanager
async def run_client(setup: Setup, instrument: Instrument | None = None) -> AsyncIterator[Client]:
    """A client of a configuration that was read already."""
    client = Client(setup.membership, setup.settings, setup.limits, instrument)
    driver = NodeDriver(
        client._node,
        name="client",
        client_tls=setup.tls,
        plugins=client._plugins(),
        report=client._life.report,
        limits=net_limits(setup.config),
        recorded_batches=setup.config.number("debug.flightRecorder"),
    )
    client._life.halt = driver.kill
    call_in_child(client._in_child)
    beside: list[Callable[[], Awaitable[object]]] = []
    if setup.zookeeper is not None:
        client._life.look_closer = partial(_look_at_zookeeper, setup.zookeeper[0])
        beside.append(partial(_keep_session, *setup.zookeeper, zookeeper_security(setup.config), driver))
    client._life.post_now = driver.pump.post_now
    async with client_on(driver, client, setup.config.seconds("client.closeTimeout"), beside):
        yield client


@asynccontextmanager
async def client_on(
    driver: ClientDriver, client: Client, close_timeout: float, beside: Iterable[Callable[[], Awaitable[object]]] = ()
) -> AsyncIterator[None]:
    """The life of a client on a driver, from the first answer of the cluster to the end of its tasks.

    Args:
        driver: runs the machine of `client`: on sockets, or in the simulator.
        client: whose life it is.
        close_timeout: seconds that appends under way get when the block is left normally.
        beside: tasks that run as long as the client.
    """
    async with background("the client") as tasks:
        client._life.tasks = tasks
        client._life.post = driver.post
        for task in (driver.run, *beside):
            tasks.start_soon(task)
        try:
            await client._life.joined.wait()
            yield
            await client._appends.settle(close_timeout)
            client._appends.check_awaited()
        finally:
            client._end(driver)
            with trio.CancelScope(shield=True):
                await driver.stop(patience=_PARTING_TIME)


async def _look_at_zookeeper(where: str | EmbeddedZnodes) -> str:
    """What becomes of a plain connection to each address, for a message: sessions are retried without a word."""
    if not isinstance(where, str):
        return ""
    answers: dict[str, str] = {}

    async def look(address: str) -> None:
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "2181")
        try:
            with trio.fail_after(_LOOK_TIME):
                await (await trio.open_tcp_stream(host, int(port))).aclose()
        except trio.TooSlowError:
            answers[address] = "no answer"
        except (OSError, ValueError) as error:
            answers[address] = why(error)
        else:
            answers[address] = "takes connections"

    addresses = [part.strip() for part in where.partition("/")[0].split(",")]
    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(look, address)
    return "".join(f"; {address}: {answers[address]}" for address in addresses)


async def _keep_session(
    where: str | EmbeddedZnodes, session_timeout_ms: int, security: ZkSecurity, driver: NodeDriver
) -> None:
    async with open_znode_store(
        where, driver.post_all, session_timeout_ms=session_timeout_ms, security=security
    ) as driver.znodes:
        await trio.sleep_forever()


# ---- configuration -----------------------------------------------------------------------------------


def read_config(source: ConfigLike) -> Setup:
    if isinstance(source, str) and source.startswith(_URL_PREFIX):
        return _read_url(source)
    if isinstance(source, Config):
        config, tls = source, tls_settings(source, "client.ssl.")
    elif isinstance(source, Mapping):
        config = Config(source, "open_client")
        config.refuse_unknown()
        # A program that names its cluster means that cluster: peers are verified, with their names, and on
        # loopback without an authority by pinning. Files keep to 0.13.2, which does not compare names.
        verify_host = config.flag_or_none("client.ssl.verifyHost") is not False
        tls = attrs.evolve(tls_settings(config, "client.ssl."), pin_loopback=True, verify_host=verify_host)
    elif isinstance(source, str | os.PathLike):
        check_path(source)
        config = Config.load(source)
        refuse_misplaced_tls(config, "client.ssl.")
        tls = tls_settings(config, "client.ssl.")
    else:
        raise ConfigError(f"expected the path of a file, a mapping of keys or {_URL_FORM}, found {shown(source)}")
    warn = warn_once(reporter("client"))
    config.warn_unknown(warn)
    servers = connect_string(config.text("zookeeper.connectString"))
    membership = ZkMembership(config.text("cluster.root").rstrip("/"), Tickets(), random.Random(), servers)
    where = servers, config.number("zookeeper.sessionTimeout")
    return _setup(membership, config, ClientTls(tls, warn), where)


def check_path(source: str | os.PathLike[str]) -> None:
    """See that a text which names no file is not meant as an address.

    Raises:
        ConfigError: it looks like one; the message has the form that is read.
    """
    text = os.fspath(source)
    if isinstance(text, str) and (bare := text.strip(_AROUND)) != text and bare.startswith(_URL_PREFIX):
        raise ConfigError(f"expected {_URL_FORM}, found {text!r}: write it without what is around it, {bare!r}")
    if not text.strip() or os.path.isdir(text):
        raise ConfigError(f"expected the path of a file, a mapping of keys or {_URL_FORM}, found {text!r}")
    match = _ADDRESS.fullmatch(text)
    if match is None or os.path.exists(text):
        return
    raise ConfigError(
        f"there is no file {text!r}; the address of a server is written waltz://{match['server']}, that of a cluster "
        f"in ZooKeeper by the mapping {_MAPPING}"
    )


def _read_url(url: str) -> Setup:
    endpoint, tls = parse_url(url)
    config = Config({}, url)
    membership = ServerMembership(endpoint, client_settings(config))
    return _setup(membership, config, ClientTls(tls, warn_once(reporter("client"))), None)


def parse_url(url: str) -> tuple[Endpoint, TlsSettings]:
    """The server that a `waltz://` address names, and how it is verified.

    Raises:
        ConfigError: not of the form `waltz://host:port[?ca=PATH][&verify=on|ca|off]`.
    """
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ConfigError(f"{url!r}: {error}") from None
    if parts.scheme != "waltz" or parts.path not in ("", "/") or parts.fragment or parts.username is not None:
        raise ConfigError(f"expected {_URL_FORM}, found {url!r}")
    if "," in parts.netloc:
        raise ConfigError(f"{url!r} lists several servers: name one, which describes its cluster; {_URL_FORM}")
    unknown = options.keys() - {"ca", "verify"}
    if unknown:
        raise ConfigError(f"{url!r}: unknown option {sorted(unknown)[0]}; known: ca, verify")
    verify = options.get("verify", ["on"])[-1]
    if verify not in ("on", "ca", "off"):
        raise ConfigError(
            f"{url!r}: verify is on, ca (the authority alone, the name may differ) or off, not {verify!r}"
        )
    ca = options["ca"][-1] if "ca" in options else None
    if verify == "ca" and ca is None:
        raise ConfigError(f"{url!r}: verify=ca needs the authority's certificate: ca=PATH")
    tls = TlsSettings(
        prefix="",
        ca=ca,
        verify=False if verify == "off" else None,
        verify_host=verify == "on",
        pin_loopback=True,
    )
    return parse_endpoint(parts.netloc), tls


def client_settings(config: Config) -> ClientSettings:
    """What the machine reads of a configuration."""
    return ClientSettings(
        connect_ms=config.number("client.connectTimeout") or None,
        nudge_ms=config.number("client.longWaitThreshold"),
        feed_buffer_max=config.number("client.feedBufferMax"),
        lock_names=config.flag("client.lockNames"),
        frame_size_max=config.number_or_none("network.frameSizeMax") or ClientSettings().frame_size_max,
    )


def _setup(
    membership: Membership, config: Config, tls: ClientTls, zookeeper: tuple[str | EmbeddedZnodes, int] | None
) -> Setup:
    return Setup(
        membership=membership,
        settings=client_settings(config),
        limits=ClientLimits(
            max_in_flight=config.number("client.maxConcurrentTransactions"),
            send_window=config.number("client.sendWindow"),
            payload_size_max=config.number("server.payloadSizeMax"),
            locks_max=config.number("server.locksMax"),
        ),
        tls=tls,
        config=config,
        zookeeper=zookeeper,
    )
