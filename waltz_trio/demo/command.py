"""`waltz demo ...`: a bank on a cluster that is killed and restarted, and a bank to try by hand."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from waltz_trio.cli.help import Parser, UsageError
from waltz_trio.demo.kills import AT_LEAST


def make_parser() -> Parser:
    """The actions and their options."""
    parser = Parser(prog="waltz demo", description=__doc__, example="waltz demo run --seconds 60 --clients 4")
    actions = parser.subcommands()
    _add_run(actions)
    _add_bank(actions)
    return parser


def _add_run(actions: argparse._SubParsersAction[Parser]) -> None:
    run = actions.add_parser(
        "run",
        help="clients move money while nodes and the whole cluster are killed; ends by proving the result",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        example="waltz demo run --seconds 60 --clients 4",
    )
    run.add_argument("--seconds", type=_positive(float), default=45.0, help="time under fire")
    run.add_argument("--clients", type=_positive(int), default=3, help="client processes, each with its own database")
    run.add_argument("--accounts", type=_positive(int), default=100, help="accounts; fewer mean more conflicts")
    run.add_argument("--kills", type=_positive(int), default=10, help=f"kills of nodes, at least {AT_LEAST}")
    run.add_argument("--partitions", type=_positive(int), default=2, help="partitions of the cluster")
    run.add_argument("--servers", type=_positive(int), default=2, help="servers of the cluster")
    run.add_argument("--at-once", type=_positive(int), default=16, help="requests under way in each client")
    run.add_argument("--seed", type=int, default=None, help="of accounts, amounts and kills (by chance)")
    run.add_argument(
        "--directory", type=Path, default=None, help="a new one to keep data and logs in (a temporary one)"
    )
    run.add_argument("--json", type=Path, default=None, metavar="PATH", help="write the result as one JSON object")
    run.set_defaults(run=_run, words=run.prog)


def _add_bank(actions: argparse._SubParsersAction[Parser]) -> None:
    bank = actions.add_parser(
        "bank",
        help="a bank to try by hand; without arguments on a cluster of its own",
        example="waltz demo bank client.yml --database bank.db",
    )
    bank.add_argument("config", nargs="?", metavar="CONFIG.yml", help="client configuration of a running cluster")
    bank.add_argument("--url", help="a running cluster, as `waltz dev` prints it")
    bank.add_argument(
        "--database", type=Path, help="SQLite file of the accounts (bank.db; temporary with a cluster of its own)"
    )
    bank.add_argument("--mode", choices=("interactive", "automatic"), help="do not ask for the run mode")
    bank.set_defaults(run=_bank, words=bank.prog)


def _run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from waltz_trio.demo.run import Options, run

    if arguments.kills < AT_LEAST:
        raise UsageError(f"--kills {arguments.kills}: at least {AT_LEAST}, fewer prove little")
    if arguments.accounts < arguments.partitions:
        raise UsageError(
            f"--accounts {arguments.accounts}: at least one for each of the {arguments.partitions} partitions, as "
            "nothing would be committed in the others"
        )
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    options = Options(
        seconds=arguments.seconds,
        clients=arguments.clients,
        accounts=arguments.accounts,
        kills=arguments.kills,
        partitions=arguments.partitions,
        servers=arguments.servers,
        at_once=arguments.at_once,
        seed=seed,
        directory=arguments.directory,
        json=arguments.json,
    )
    return run(options, Console())


def _bank(arguments: argparse.Namespace) -> int:
    from waltz_trio.demo.console import run

    if arguments.config is not None and arguments.url is not None:
        raise UsageError("either CONFIG.yml or --url, not both")
    return run(arguments.config or arguments.url, arguments.database, arguments.mode)


def _positive(kind: type[int] | type[float]) -> type[int] | type[float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not value > 0:  # nan neither
            raise argparse.ArgumentTypeError(f"{text} is not positive")
        if value == float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not finite")
        return value

    parse.__name__ = kind.__name__
    return parse  # type: ignore[return-value]
