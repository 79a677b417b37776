"""`waltz gateway ...`: topics over HTTP, for programs in any language; tokens for those who use it."""

from __future__ import annotations

import json
import secrets

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import WaltzError
from waltz_core.gateway.door import token_hash
from waltz_trio.base import log
from waltz_trio.base.background import first_of
from waltz_trio.base.log import reporter
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import JSON, Arguments, Command, Option, parser_of
from waltz_trio.config.config import Config
from waltz_trio.config.gateway import GatewaySettings, gateway_settings
from waltz_trio.config.roles import certificates_asked
from waltz_trio.gateway.service import Gateway, http_limits, refuse
from waltz_trio.gateway.vitals import GROUP
from waltz_trio.net.endpoints import endpoints
from waltz_trio.net.http import HttpServer
from waltz_trio.net.tls import ServerTls
from waltz_trio.node.main import ending_signals, raise_descriptors, tune_collector


def _run(arguments: Arguments) -> int:
    path = arguments.text("gateway-config-path")
    config = Config.load(path)
    settings = gateway_settings(config)
    log.set_up(config.text("log.level"))
    config.warn_unknown(log.warn_once(log.reporter("gateway")))
    raise_descriptors()
    failure: BaseException | None = None
    try:
        trio.run(_serve, settings)
    except* (WaltzError, OSError) as errors:  # such as a port that is taken, or nobody who takes the address
        failure = first_of(errors)
    if failure is not None:
        raise failure
    return 0


async def _serve(settings: GatewaySettings) -> None:
    report = log.reporter("gateway")
    async with trio.open_nursery() as nursery:
        gateway = Gateway(settings, nursery, report)
        server = HttpServer(
            gateway.handle,
            report,
            tls_of(settings),
            limits=http_limits(settings),
            admit=gateway.admit,
            refuse=refuse,
        )
        bound = server.listen(settings.host, settings.port, "gateway.port")
        nursery.start_soon(server.run)  # which closes the port, also where what follows fails
        if settings.health_port is not None:
            health = HttpServer(endpoints(GROUP, gateway.vitals.registry, gateway.vitals.health), report)
            at = health.listen(settings.health_host, settings.health_port, "gateway.healthPort")
            report(Level.INFO, f"/health and /metrics at {settings.health_host}:{at}")
            nursery.start_soon(health.run)
            nursery.start_soon(gateway.vitals.run)
        tune_collector()
        with trio.open_signal_receiver(*ending_signals()) as signals:
            shown = f"[{settings.host}]" if ":" in settings.host else settings.host
            print(f"{'http' if settings.tls is None else 'https'}://{shown}:{bound}", flush=True)
            async for _ in signals:
                break
        nursery.cancel_scope.cancel()


def tls_of(settings: GatewaySettings) -> ServerTls | None:
    """What the port of a gateway shows, and asks its callers for; None: it speaks plain HTTP."""
    if settings.tls is None:
        return None
    # Who brings a token shows no certificate.
    tokens = certificates_asked(settings.tls) and any(rule.token_hash for rule in settings.rules or ())
    return ServerTls(settings.tls, reporter("gateway"), optional=tokens)


def _token(arguments: Arguments) -> int:
    token = secrets.token_urlsafe(32)
    if arguments.flag("json"):
        print(json.dumps({"token": token, "tokenSha256": token_hash(token)}, indent=2))
    else:
        print(f"token: {token}\ntokenSha256: {token_hash(token)}")
    return 0


COMMANDS = (
    Command(
        "run",
        "Serve topics over HTTP and print the address, until SIGINT or SIGTERM",
        (
            Option(
                "c",
                "gateway-config-path",
                "File with the keys gateway.*: topics, who may use them, limits",
                required=True,
            ),
        ),
        _run,
        answers=False,
    ),
    Command(
        "token",
        "Make a bearer token: the token for who uses it, its SHA-256 for gateway.access",
        (JSON,),
        _token,
    ),
)


def make_parser() -> Parser:
    """The sub-commands."""
    return parser_of("waltz gateway", COMMANDS, __doc__)
