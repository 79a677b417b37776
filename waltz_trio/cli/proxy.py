"""`waltz proxy ...`: run a read proxy, which serves the feeds of a cluster to a whole region for the price of one."""

from __future__ import annotations

import trio

from waltz_trio.base import log
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import Arguments, Command, Option, parser_of
from waltz_trio.config.config import Config
from waltz_trio.node.main import run_until_signal
from waltz_trio.node.proxy import ProxyProcess


def _run(arguments: Arguments) -> int:
    config = Config.load(arguments.text("cli-config-path"))
    log.set_up(config.text("log.level"))

    async def serve() -> int:
        return await run_until_signal(ProxyProcess(config))

    return trio.run(serve)


COMMANDS = (
    Command(
        "run",
        "Run a proxy until SIGINT or SIGTERM",
        (
            Option(
                "c", "cli-config-path", "Specify the configuration file of the proxy", required=True, sample="proxy.yml"
            ),
        ),
        _run,
        answers=False,
    ),
)


def make_parser() -> Parser:
    """The sub-commands."""
    return parser_of("waltz proxy", COMMANDS, __doc__)
