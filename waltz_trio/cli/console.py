"""`waltz console -c CONFIG`: the cluster as a page in a browser, live and read-only."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from waltz_core.access.roles import NO_ROLES
from waltz_core.access.web import Door
from waltz_core.operations.page import Console
from waltz_trio.base.log import reporter, surprises
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import CONFIG, Arguments, Command, CommandError, Option, parser_of
from waltz_trio.cli.tool import tls_of, tool_of
from waltz_trio.cli.zookeeper import load_config, open_cluster
from waltz_trio.config.config import Config, tls_settings
from waltz_trio.config.roles import certificates_asked, read_roles
from waltz_trio.console.pages import PREFIX, Pages
from waltz_trio.console.watch import LOOK, Watch
from waltz_trio.net.http import HttpServer
from waltz_trio.net.tls import ServerTls, is_loopback
from waltz_trio.node.main import ending_signals
from waltz_trio.ports.tool import Tool

DEFAULT_PORT = 7900
_LOOPBACK = "127.0.0.1"


def watch_of(config: Config, path: str, surprised: Callable[[Exception], None] | None = None) -> Watch:
    """What looks at the cluster of a tools configuration, kept in the file `path`; `surprised` hears of mistakes."""
    tls = tls_of(config, "ssl.")  # once, for its warnings

    @asynccontextmanager
    async def open_tool() -> AsyncIterator[Tool]:
        async with open_cluster(config) as (zk, paths):
            yield await tool_of(config, zk, paths, tls)

    return Watch(open_tool, Console(config.text("cluster.root").rstrip("/"), path), surprised)


def _run(arguments: Arguments) -> int:
    config = load_config(arguments)
    host = arguments.text_or_none("host") or _LOOPBACK
    port = arguments.number("port", DEFAULT_PORT, least=0)
    report = reporter("console")
    watch = watch_of(config, arguments.text("cli-config-path"), surprises(report, LOOK))
    named = config.text_or_none("server.journal.directory")
    journal = None if named is None else Path(named)
    if is_loopback(host):
        # Others of this machine reach the port too, and it shows what the certificate of this configuration may see.
        token = secrets.token_urlsafe(16)
        server = HttpServer(Pages(watch, Door.LOOPBACK, token=token, journal=journal).handle, report)
        return trio.run(_serve, watch, server, host, port, f"http://{{}}{PREFIX}?token={token}")
    tls = tls_settings(config, "ssl.")
    if not certificates_asked(tls):
        raise CommandError(
            f"{host} is not this machine alone: the console is shown to others only behind certificates; set ssl.ca, "
            "ssl.certificate and ssl.key, or let it listen on 127.0.0.1 and come through `ssh -L`"
        )
    path = config.text_or_none("security.roles")
    roles = NO_ROLES if path is None else read_roles(path)
    pages = Pages(watch, Door.CERTIFICATE, roles=lambda: roles, certificates_asked=True, journal=journal)
    server = HttpServer(pages.handle, report, ServerTls(tls, report))
    return trio.run(_serve, watch, server, host, port, f"https://{{}}{PREFIX}")


async def _serve(watch: Watch, server: HttpServer, host: str, port: int, address: str) -> int:
    with trio.open_signal_receiver(*ending_signals()) as signals:
        bound = server.listen(host, port, "--port")
        shown = "localhost" if host == _LOOPBACK else f"[{host}]" if ":" in host else host
        print(address.format(f"{shown}:{bound}"), flush=True)
        print("read-only; Ctrl+C ends it", file=sys.stderr)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            nursery.start_soon(server.run)
            await anext(aiter(signals))
            nursery.cancel_scope.cancel()
    return 0


COMMAND = Command(
    "",
    "Serves the cluster as a live page and prints its address, with a token that lets you in. It listens on this "
    "machine alone, looks at the cluster with the certificate of CONFIG, so that its role decides what is seen, and "
    "changes nothing. Elsewhere: ssh -L 7900:localhost:7900 HOST.",
    (
        CONFIG,
        Option("p", "port", f"Port to listen on (default {DEFAULT_PORT}; 0 = a free one)"),
        Option(
            "H",
            "host",
            f"Address to listen on (default {_LOOPBACK}); any other one is served over TLS, to whom shows a "
            "certificate of ssl.ca, as far as security.roles goes",
        ),
    ),
    _run,
    answers=False,
    example="-c tools.yml",
)


def make_parser() -> Parser:
    """The only command."""
    return parser_of("waltz console", (COMMAND,))
