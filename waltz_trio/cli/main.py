"""The `waltz` command: finds the module of the noun that was named; each has `main(argv) -> exit status`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from waltz_core.base.errors import ConfigError

if TYPE_CHECKING:
    from waltz_trio.cli.options import Command

NOUNS = {
    "dev": "a whole cluster in one process, for development",
    "server": "run, inspect or prefer a server",
    "storage": "run, inspect or repair storage nodes",
    "zookeeper": "make and change clusters in ZooKeeper",
    "cluster": "check that everything agrees and reaches each other",
    "client": "marks of partitions, and whether locking really works",
    "performance": "how fast a cluster takes and gives transactions",
    "disk": "look at data and control files",
    "doctor": "what is wrong with a cluster, and the command that mends it",
    "may-stop": "whether storage nodes or servers may be stopped now, and what that would mean",
    "certificates": "an authority, certificates, roles and keys for a cluster; when they end, and new ones",
    "completion": "completion of commands and options for bash, zsh and fish",
    "demo": "a bank: under fire, or at your prompt",
    "spark": "scan, archive, verify and restore logs, on a laptop or a Spark cluster",
}
ELSEWHERE = {"spark": "waltz_spark.cli"}  # applications above this package
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
}


_CLOSED_OUTPUT = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    try:
        try:
            status = _main(argv)
        except SystemExit as ended:  # argparse: the help, or a wrong call
            status = ended.code if isinstance(ended.code, int) else 1
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output wants no more of it (`| head`). Python flushes once more at exit, into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_OUTPUT
    return status


def _main(argv: Sequence[str] | None) -> int:
    if not __debug__:
        print("waltz: the assertions are part of the safety of this program; run it without -O", file=sys.stderr)
        return 1
    arguments = list(sys.argv[1:] if argv is None else argv)
    noun = arguments[0] if arguments else ""
    if noun in ("", "-h", "--help", "help"):
        print(_usage())
        return 0 if noun else 1
    if noun == "--version":
        from waltz_trio.http import version

        print(f"waltz {version() or 'of unknown version'}")
        return 0
    if noun not in NOUNS:
        print(f"waltz: there is no {noun!r}\n\n{_usage()}", file=sys.stderr)
        return 1
    try:
        module = importlib.import_module(module_of(noun))
        return int(module.main(arguments[1:]))
    except ConfigError as error:
        print(f"waltz {noun}: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        extra = "demo" if noun == "demo" and missing in _EXTRAS else _EXTRAS.get(missing)
        if extra is None:
            raise
        why = f"needs {missing}, which is missing" if isinstance(error, ModuleNotFoundError) else str(error)
        print(f"waltz {noun}: {why}: pip install 'waltz-log[{extra}]'", file=sys.stderr)
        return 1


def module_of(noun: str) -> str:
    """Name of the module of a noun."""
    return ELSEWHERE.get(noun, f"waltz_trio.cli.{noun.replace('-', '_')}")


def commands_of(module: ModuleType) -> tuple[Command, ...]:
    """The table of commands of such a module; empty if it has a parser of its own."""
    if hasattr(module, "COMMAND"):
        return (module.COMMAND,)
    return (*getattr(module, "COMMANDS", ()), *getattr(module, "MORE_COMMANDS", ()))


def _usage() -> str:
    rows = "\n".join(f"  {noun:<12} {meaning}" for noun, meaning in NOUNS.items())
    return f"usage: waltz NOUN ...\n\n{rows}\n\nwaltz NOUN --help tells more."


if __name__ == "__main__":
    sys.exit(main())
