"""`waltz server ...`: run a server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import trio

from waltz_trio import log
from waltz_trio.config import Config
from waltz_trio.process import run_until_signal
from waltz_trio.server import ServerProcess


def main(argv: Sequence[str]) -> int:
    """Parse and run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="waltz server", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    run = actions.add_parser("run", help="run a server until SIGINT or SIGTERM")
    run.add_argument("config", metavar="CONFIG.yml", help="configuration file, see docs/configuration.md")
    run.set_defaults(action=_run)
    arguments = parser.parse_args(argv)
    return int(arguments.action(arguments))


def _run(arguments: argparse.Namespace) -> int:
    config = Config.load(arguments.config)
    log.set_up(config.text("log.level"))
    return trio.run(_serve, config)


async def _serve(config: Config) -> int:
    return await run_until_signal(ServerProcess(config))
