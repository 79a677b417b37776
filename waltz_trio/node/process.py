"""One process around one machine: what servers and storage nodes have in common.

`NodeProcess.run` parses the configuration, makes the machine and its driver, opens what the kind of process needs,
serves until the machine has ended, and releases everything. A kind says by its `Kind` how its keys and metrics are
called, and by a few methods what it opens, in which order, and what its health is. Protocol and rules live in the core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import attrs
import trio

from waltz_core.access.roles import NO_ROLES
from waltz_core.base.contract import Machine
from waltz_core.base.edge import Level, Shutdown, WallClock
from waltz_core.base.errors import ConfigError
from waltz_core.base.tracing import Traced
from waltz_trio.base.background import background_nursery
from waltz_trio.base.log import reporter, warn_once
from waltz_trio.base.metrics import Registry
from waltz_trio.base.pump import wall_offset_ms
from waltz_trio.config.config import Config
from waltz_trio.config.roles import access_warning, read_roles
from waltz_trio.net.driver import NodeDriver
from waltz_trio.net.endpoints import endpoints
from waltz_trio.net.http import Handler, HttpServer
from waltz_trio.net.listener import local_host
from waltz_trio.net.tls import ClientTls, FileVersion, ServerTls, expiry_warnings, version
from waltz_trio.node.graphite import report_to_graphite
from waltz_trio.node.otel import OtelExporter
from waltz_trio.node.settings import NodeSettings
from waltz_trio.zk.embedded import EmbeddedZnodes

_REFRESH = 5.0  # seconds between readings of the machine's counters, the tick of the moving rates


@attrs.frozen
class Kind:
    """How one kind of process is called."""

    prefix: str  # of its keys in a configuration
    service: str  # at /buildinfo; also the group of its metrics


class NodeProcess(ABC):
    """One server or storage node.

    `shutdown` asks for an orderly end; `kill` ends as `kill -9` would.
    """

    KIND: ClassVar[Kind]

    def __init__(self, config: Config, znodes: EmbeddedZnodes | None = None, *, name: str = "") -> None:
        """Prepare; nothing is read or bound before `run`.

        Args:
            config: see docs/configuration.md.
            znodes: a store inside this process instead of the ZooKeeper that the configuration names.
            name: of the log lines.
        """
        self.name = name or self.KIND.prefix.rstrip(".")
        self.config = config
        self.report = reporter(self.name)
        self.registry = Registry(trio.current_time)
        self.http_port: int | None = None  # as bound
        self._warn = warn_once(lambda level, text: self.report(level, text))
        self._znodes = znodes
        self._driver: NodeDriver | None = None
        self._roles = NO_ROLES
        self._scope = trio.CancelScope()

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> str:
        """Serve until the end; returns why the machine could not continue (empty after an orderly end).

        Raises:
            ConfigError: a key is missing, a file unreadable, a port taken, a directory in use or absent.
        """
        reason = ""
        with self._scope:
            named = self.config.text_or_none(f"{self.KIND.prefix}host")
            node = self._parse(named or await local_host())
            server_tls, client_tls = ServerTls(node.tls, self.report), self._client_tls(node)
            for expiry in expiry_warnings(node.tls):  # a proxy shows others than those it dials with
                self._warn(expiry)
            self._roles = node.roles
            warning = access_warning(node.tls, node.roles)
            if self._znodes is None and warning:  # a cluster in one process is for trying
                self._warn(warning)
            otel = self._make_otel(node)
            try:
                machine = await self._make_machine()
                driver = self._driver = NodeDriver(
                    machine,
                    name=self.name,
                    client_tls=client_tls,
                    roles=node.roles,
                    plugins={**self._plugins(), **({} if otel is None else {Traced: otel.trace})},
                    report=self.report,
                    limits=node.net,
                    recorded_batches=node.recorded_batches,
                    afterwards=self._afterwards(),
                )
                driver.post(WallClock(wall_offset_ms()))
                async with background_nursery() as nursery:
                    self._register()
                    if otel is not None:
                        nursery.start_soon(otel.run)
                    await nursery.start(driver.run)
                    for work in (self._keep_rates, self._report_to_graphite, *self._background()):
                        nursery.start_soon(work)
                    if node.roles_file is not None:
                        nursery.start_soon(self._watch_roles, node.roles_file)
                    async with self._serving(driver, server_tls, nursery):
                        task_status.started()
                        await driver.ended.wait()
                        reason = driver.end_reason
                        await driver.stop()
                    if otel is not None:
                        await otel.flush()
            finally:
                await self._let_go()
        return reason

    def shutdown(self) -> None:
        """Ask for an orderly end: leave the cluster, write what is lazily written, release everything."""
        if self._driver is not None:
            self._driver.post(Shutdown())
        else:
            self._scope.cancel()  # it has only begun to start, and may be waiting for ZooKeeper

    def kill(self) -> None:
        """End as `kill -9` would: sockets are reset, nothing is flushed, synced or said."""
        if self._driver is not None:
            self._driver.kill()
        self._abandon()
        self._scope.cancel()

    def cancel(self) -> None:
        """End without waiting for the machine; what it asked the disk to do is still done."""
        self._scope.cancel()

    # ---- what the kinds differ in ----------------------------------------------------------------

    @abstractmethod
    def _parse(self, local: str) -> NodeSettings:
        """Read the configuration, before anything is touched; `local`: the address where it names none."""

    @abstractmethod
    async def _make_machine(self) -> Machine[Any, Any]:
        """Take what the machine needs to know, and make it."""

    @abstractmethod
    def _plugins(self) -> Mapping[type, Callable[[Any], None]]:
        """What carries out the effects that are not of sockets or ZooKeeper."""

    def _afterwards(self) -> Callable[[], None] | None:
        """What is to be done at the end of each step, when everything has been sent."""
        return None

    @abstractmethod
    def _register(self) -> None:
        """Register the metrics."""

    @abstractmethod
    def _background(self) -> Iterable[Callable[[], Awaitable[object]]]:
        """What else runs beside the machine."""

    @abstractmethod
    def _serving(self, driver: NodeDriver, tls: ServerTls, nursery: trio.Nursery) -> AbstractAsyncContextManager[None]:
        """Open the ports; inside, the process serves; at an orderly end, close what the machine has used."""

    @abstractmethod
    def _abandon(self) -> None:
        """Drop what is open as `kill -9` would."""

    @abstractmethod
    def _instance(self) -> str:
        """What tells this process from others of its kind: where it is reached."""

    @abstractmethod
    async def _let_go(self) -> None:
        """Close what is still open, after any end."""

    @abstractmethod
    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether the process is healthy, and the object that /health shows."""

    # ---- what they have in common ----------------------------------------------------------------

    def _client_tls(self, node: NodeSettings) -> ClientTls:
        """The certificate shown to peers that it dials: by default the one shown to peers that dial it."""
        return ClientTls(node.tls, self._warn)

    def _make_otel(self, node: NodeSettings) -> OtelExporter | None:
        if node.otel is None:
            return None
        return OtelExporter(
            node.otel, self.KIND.service, self._instance, self.registry, f"waltz.{self.name}", self.report
        )

    def _end(self, reason: str) -> None:
        if self._driver is not None:
            self._driver.end(reason)

    def _zookeeper(self) -> EmbeddedZnodes | str:
        return self._znodes or self.config.text("zookeeper.connectString")

    def _start_http(self, nursery: trio.Nursery, node: NodeSettings) -> None:
        key = f"{self.KIND.prefix}jetty.port"
        if node.http_port is None:
            self.report(Level.WARNING, f"no HTTP endpoints: {key} is not set")
            return
        handler = self._pages(nursery, node, endpoints(self.KIND.service, self.registry, self.health))
        http = HttpServer(handler, self.report)
        self.http_port = http.listen(node.http_host, node.http_port, key)
        nursery.start_soon(http.run)

    def _pages(self, nursery: trio.Nursery, node: NodeSettings, handler: Handler) -> Handler:
        """What answers at the HTTP port: the endpoints of every process, and what a kind puts before them."""
        return handler

    async def _report_to_graphite(self) -> None:
        await report_to_graphite(self.config, f"{self.KIND.prefix}graphite.", self.registry, self.report)

    async def _watch_roles(self, path: str) -> None:
        seen: FileVersion | None = None
        said = ""
        while True:
            await trio.sleep(_REFRESH)
            if (now := version(path)) == seen:
                continue
            try:
                roles = read_roles(path)
            except ConfigError as error:  # which may pass without a change of the file: it is read again
                if str(error) != said:
                    said = str(error)
                    self.report(Level.WARNING, f"the changed roles cannot be used, the rules read before hold: {said}")
                continue
            seen, said = now, ""
            if roles.rules != self._roles.rules:
                self._roles = roles
                self.report(Level.INFO, f"the roles have changed ({path}): peers that they concern must connect again")
                assert self._driver is not None
                self._driver.change_roles(roles)

    async def _keep_rates(self) -> None:
        while True:
            await trio.sleep(_REFRESH)
            await self.registry.keep_up()
            assert self._driver is not None
            self._driver.post(WallClock(wall_offset_ms()))
