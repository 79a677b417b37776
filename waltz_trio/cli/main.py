"""The `waltz` command: finds the module of the noun that was named; each has `main(argv) -> exit status`."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence

from waltz_trio.base.durable import reason_of
from waltz_trio.cli import interruption, streams
from waltz_trio.cli.help import FAILED_STATUS, Parser, run

NOUNS = {
    "dev": "a whole cluster in one process, for development",
    "server": "run, inspect or prefer a server",
    "proxy": "run a read proxy for a region",
    "storage": "run, inspect or repair storage nodes",
    "zookeeper": "make and change clusters in ZooKeeper",
    "cluster": "check that everything agrees and reaches each other",
    "client": "marks of partitions, and whether locking really works",
    "performance": "how fast a cluster takes and gives transactions",
    "disk": "look at data and control files",
    "doctor": "what is wrong with a cluster, and the command that mends it",
    "console": "the cluster as a page in your browser, live",
    "gateway": "logs as topics over HTTP, for programs in any language",
    "may-stop": "whether storage nodes or servers may be stopped now, and what that would mean",
    "restart-plan": "a rolling restart or upgrade, node by node, with the checks between",
    "top": "the cluster in a terminal, live",
    "certificates": "an authority, certificates, roles and keys for a cluster; when they end, and new ones",
    "completion": "completion of commands and options for bash, zsh and fish",
    "demo": "a bank: under fire, or at your prompt",
    "spark": "scan, archive, verify and restore logs, on a laptop or a Spark cluster",
    "seal": "a signed Merkle tree over a log, so that no record of it can be changed unnoticed",
    "prove": "that a transaction is in a sealed log, or that the log has only grown",
    "check-proof": "whether a proof holds: with the public key alone",
}
ELSEWHERE = {  # applications above the product: module, and what makes the parser
    "demo": "waltz_trio.demo.command:make_parser",
    "spark": "waltz_spark.cli.main:make_parser",
    "seal": "waltz_spark.seal.commands:make_seal_parser",
    "prove": "waltz_spark.seal.commands:make_prove_parser",
    "check-proof": "waltz_spark.seal.commands:make_check_parser",
}
_EXTRAS = {  # what of this distribution brings a module that a client does not need
    "rich": "cli",
    "pyspark": "spark",
    "pyarrow": "spark",
    "numpy": "spark",
    "pandas": "spark",
    "isal": "spark",
    "matplotlib": "report",
    "fsspec": "s3",
    "s3fs": "s3",
    "grpc": "connect",
    "wsproto": "gateway",
}


_CLOSED_OUTPUT = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    streams.settle()
    try:
        status = _main(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output wants no more of it (`| head`)
        streams.abandon_output()
        return _CLOSED_OUTPUT
    except KeyboardInterrupt:  # while a command was loaded; `run` answers it from there on
        status, words = interruption.told()
        print(words, file=sys.stderr)
    except OSError as error:
        if error.filename != streams.OUTPUT:
            raise
        streams.abandon_output()
        print(f"Error: {reason_of(error)}", file=sys.stderr)
        return FAILED_STATUS
    return status


def _main(words: list[str]) -> int:
    if not __debug__:
        print("waltz: the assertions are part of the safety of this program; run it without -O", file=sys.stderr)
        return FAILED_STATUS
    noun = words[0] if words else ""
    if noun not in NOUNS:
        return run(make_parser(), ["--help"] if noun == "help" else words)
    try:
        return run(parser_of_noun(noun), words[1:])
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        extra = "demo" if noun == "demo" and missing in _EXTRAS else _EXTRAS.get(missing)
        if extra is None:
            raise
        why = f"needs {missing}, which is missing" if isinstance(error, ModuleNotFoundError) else str(error)
        print(f"Error: waltz {noun} {why}: pip install 'waltz-log[{extra}]'", file=sys.stderr)
        return FAILED_STATUS


def make_parser() -> Parser:
    """The parser of `waltz` itself: of the nouns it knows the names alone, since each takes its time to load."""
    parser = Parser(prog="waltz", description="Waltz for Python, a distributed write-ahead log.", example="waltz dev")
    parser.add_argument("--version", action=_Version, nargs=0, help="the version of this program")
    nouns = parser.subcommands()
    for noun, meaning in NOUNS.items():
        nouns.add_parser(noun, help=meaning, add_help=False)
    return parser


def parser_of_noun(noun: str) -> Parser:
    """The parser of a noun and of everything below it."""
    module, _, make = ELSEWHERE.get(noun, f"waltz_trio.cli.{noun.replace('-', '_')}:make_parser").partition(":")
    parser: Parser = getattr(importlib.import_module(module), make)()
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from waltz_core.base.checksum import CRC32_BY
        from waltz_speedups import in_use
        from waltz_trio.base.version import version

        print(f"waltz {version() or 'of unknown version'}, loops over transactions: {in_use()}, CRC-32 by {CRC32_BY}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
