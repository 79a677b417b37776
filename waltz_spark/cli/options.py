"""The options of `waltz spark ...`: one way to name a log, an archive, and where the work is done."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from waltz_core.base.errors import ConfigError
from waltz_spark.archive.archive import RANGE_COUNT
from waltz_spark.archive.restore import THRESHOLD, THRESHOLD_MIN
from waltz_spark.base.errors import OptionError
from waltz_spark.read.options import Options, parse_options
from waltz_spark.write.files import KINDS
from waltz_spark.write.sink_options import MODES
from waltz_trio.cli.help import Lines, Parser, UsageError, whole_number
from waltz_trio.config.config import Config

Action = Callable[[argparse.Namespace], int]

_STATUS = "Exit status: 0 all of it was looked at and is right, 1 something is wrong, 3 something was not looked at."


def log_parser(parser: argparse.ArgumentParser, archive: str = "an archive in front of the rest") -> None:
    """The options that name a log: the same ones in every command."""
    log = parser.add_argument_group("the log")
    log.add_argument("-c", "--config", metavar="FILE", help="tools.yml of a running cluster: its ZooKeeper, its TLS")
    log.add_argument("--url", metavar="URL", help="waltz://host:port?ca=FILE of a running cluster")
    log.add_argument("--zookeeper", metavar="H:P", help="connect string of a running cluster")
    log.add_argument("--root", metavar="PATH", help="znode of the cluster, with --zookeeper")
    log.add_argument(
        "--directory", action="append", default=[], metavar="D", help="storage directory or backup; repeatable"
    )
    log.add_argument("--archive", metavar="ARCHIVE", help=f"{archive}: directory or URI (s3://bucket/prefix)")
    log.add_argument("--trust", choices=("control", "files"), help="how far directories are believed (control)")
    log.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="any option of the source; repeatable"
    )


def log_values(arguments: argparse.Namespace, *, files: bool = True) -> dict[str, str]:
    """The values of the options of `log_parser`, as options of the source; without `files` no directories and archive.

    Raises:
        OptionError: the file of --config cannot be used, or a directory has a comma in its path.
    """
    given = {
        "directory": _directories(arguments) if files else None,
        "url": arguments.url,
        "zookeeper": arguments.zookeeper,
        "clusterRoot": arguments.root,
        "archive": arguments.archive if files else None,
        "trust": arguments.trust,
    }
    return given_values(arguments, {**config_values(arguments.config), **{k: v for k, v in given.items() if v}})


def _directories(arguments: argparse.Namespace) -> str:
    """As the option of the source, which has commas between them."""
    for directory in arguments.directory:
        if "," in directory:
            raise OptionError(
                f"--directory {directory}: a comma separates directories: give each with a --directory of its own, or, "
                "if it is in the path of one, name that through a symbolic link without it"
            )
    return ",".join(arguments.directory)


def given_values(arguments: argparse.Namespace, given: dict[str, str | None]) -> dict[str, str]:
    """Options as text, those of -o included.

    Raises:
        UsageError: one has no value.
    """
    values: dict[str, str] = {}
    for pair in arguments.option:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"-o {pair}: expected NAME=VALUE")
        values[name] = value
    return {**{name: value for name, value in given.items() if value}, **values}


def log_options(arguments: argparse.Namespace) -> Options:
    """The named log, all places together.

    Raises:
        UsageError: none is named.
    """
    values = log_values(arguments)
    if not arguments.option and not any(place in values for place in ("url", "zookeeper", "directory", "archive")):
        raise UsageError("say what to read: -c FILE, --url URL, --zookeeper H:P, --directory D or --archive ARCHIVE")
    return parse_options(values)


def live_options(arguments: argparse.Namespace) -> Options | None:
    """The named running cluster, without directories and archive; None if none is named.

    Raises:
        UsageError: partitions are chosen, which can only be those of a running cluster.
    """
    given = log_values(arguments, files=False)
    values = {name: value for name, value in given.items() if name not in ("directory", "archive")}  # those of -o
    if "url" in values or "zookeeper" in values:
        return parse_options(values)
    if any(name.lower() == "partitions" for name in values):
        raise UsageError("-o partitions: directories and archives are looked at whole; name the running cluster too")
    return None


def config_values(path: str | None) -> dict[str, str]:
    """A tools.yml as options of the source.

    Raises:
        OptionError: it cannot be read, names no ZooKeeper, or keys that only the original's tools read.
    """
    if path is None:
        return {}
    try:
        config = Config.load(path)
        values = {
            "zookeeper": config.text("zookeeper.connectString"),
            "clusterRoot": config.text("cluster.root"),
            "zookeeperConfig": str(Path(path).absolute()),
        }
        for name in ("ca", "certificate", "key"):
            if (text := config.text_or_none(f"ssl.{name}")) is not None:
                values[f"ssl.{name}"] = text
        if (verify := config.flag_or_none("ssl.verify")) is not None:
            values["ssl.verify"] = str(verify).lower()
        for store, key in (("keyStore", "certificate"), ("trustStore", "ca")):
            if config.text_or_none(f"ssl.{store}.location") is not None and f"ssl.{key}" not in values:
                raise OptionError(f"{path}: ssl.{store}.location is not read here: name a PEM file in ssl.{key}")
    except ConfigError as error:
        raise OptionError(str(error)) from error
    return values


def journals_of(arguments: argparse.Namespace) -> list[str]:
    """Journals as given, or the one that the file of --config names."""
    if arguments.journal or arguments.config is None:
        return list(arguments.journal)
    named = Config.load(arguments.config).text_or_none("server.journal.directory")
    return [named] if named else []


def archive_of(arguments: argparse.Namespace) -> str:
    """The archive of a command that needs one.

    Raises:
        UsageError: none was given, or two.
    """
    named = [one for one in (arguments.place, arguments.archive) if one]
    if len(named) != 1:
        raise UsageError("say which archive: --archive ARCHIVE" + (", once" if named else ""))
    return str(named[0])


# ---- the commands ----------------------------------------------------------------------------


def parser_of(description: str | None, actions: Mapping[str, Action]) -> Parser:
    """The parser of all commands; `actions` by name."""
    parser = Parser(
        prog="waltz spark",
        description=description,
        formatter_class=Lines,
        example="waltz spark scan -c tools.yml",
    )
    commands = parser.subcommands()
    for name, add in _COMMANDS.items():
        add(commands, name, actions[name])
    return parser


Commands = argparse._SubParsersAction  # the type of what `add_subparsers` returns has no public name


def _place(text: str) -> str:
    if not text:  # as of a variable of the shell that is not set: it would be the working directory
        raise argparse.ArgumentTypeError("expected the name of a directory, found nothing")
    return text


def _command(commands: Commands[Parser], name: str, run: Action, meaning: str, examples: str, more: str = "") -> Parser:
    first, *others = (f"waltz spark {name} {line}" for line in examples.splitlines())
    parser = commands.add_parser(
        name,
        help=meaning,
        description=f"{meaning[0].upper()}{meaning[1:]}.{' ' + more if more else ''}",
        epilog="\n".join(["also:", *(f"  {line}" for line in others)]) if others else None,
        formatter_class=Lines,
        example=first,
    )
    parser.add_argument("--master", metavar="URL", help="a Spark master: 'local[*]', spark://host:7077, ...")
    parser.add_argument(
        "--jobs", type=whole_number(1), default=os.cpu_count() or 1, metavar="N", help="processes, without --master"
    )
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run, words=parser.prog)
    return parser


def _scan(commands: Commands[Parser], name: str, run: Action) -> None:
    examples = "-c tools.yml\n--directory /data/waltz/storage-0 --url 'waltz://ledger:7801?ca=ca.pem'"
    meaning = "read every record, check that none is missing or damaged"
    log_parser(_command(commands, name, run, meaning, examples, _STATUS))


def _archive(commands: Commands[Parser], name: str, run: Action) -> None:
    examples = "-c tools.yml --to s3://vault/ledger\n--directory /data/waltz/storage-0 --to /vault/ledger --dry-run"
    parser = _command(commands, name, run, "add what is new to an archive of Parquet files", examples)
    log_parser(parser)
    parser.add_argument(
        "--to", type=_place, required=True, metavar="ARCHIVE", help="directory or URI (s3://bucket/prefix)"
    )
    parser.add_argument(
        "--range", type=whole_number(1), default=RANGE_COUNT, metavar="N", help="ids per file (%(default)s)"
    )
    parser.add_argument("--whole", action="store_true", help="leave out the last, incomplete range of ids")
    parser.add_argument(
        "--keep-last", type=whole_number(0), default=0, metavar="N", help="leave out the last N ids of each partition"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be written, and freed")
    parser.add_argument(
        "--free",
        action="store_true",
        help="then verify it, compare it with a quorum of replicas, and let the storage nodes give up what it holds",
    )
    parser.add_argument(
        "--keep-local",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="with --free: the last N ids stay on the storage nodes",
    )
    parser.add_argument("--yes", action="store_true", help="with --free: do not ask")


def _verify(commands: Commands[Parser], name: str, run: Action) -> None:
    examples = "--archive s3://vault/ledger\n--archive s3://vault/ledger -c tools.yml"
    meaning = "read an archive back, compare digests, hash chain and replicas"
    parser = _command(commands, name, run, meaning, examples, _STATUS)
    log_parser(parser, "what to verify")
    _add_place(parser)


def _audit(commands: Commands[Parser], name: str, run: Action) -> None:
    examples = (
        "-c tools.yml --journal /journal/server-0 --journal /journal/server-1\n"
        "--directory /data/a --directory /data/b --archive s3://vault/ledger --no-journal --html audit.html"
    )
    meaning = "check replicas, archive and decisions of a log; one table, one page"
    told = f"{_STATUS[:-1]}, 4 the page could not be written though nothing is wrong."
    parser = _command(commands, name, run, meaning, examples, told)
    log_parser(parser, "to be read back and compared")
    _add_journal(parser)
    parser.add_argument(
        "--no-journal",
        action="store_true",
        help="leave serializability out, which only journals prove; the verdict says so",
    )
    query = "file with a query that finds violations of what must always hold; needs --master; repeatable"
    parser.add_argument("--invariant", action="append", type=Path, default=[], metavar="FILE.sql", help=query)
    parser.add_argument("--html", type=Path, metavar="PATH", help="write the result as a page")


def _report(commands: Commands[Parser], name: str, run: Action) -> None:
    examples = "-c tools.yml\n--directory /data/waltz/storage-0 --html report.html"
    parser = _command(commands, name, run, "load, growth and contention of a log, on one page", examples)
    log_parser(parser)
    _add_journal(parser)
    parser.add_argument("--html", type=Path, metavar="PATH", help="write the page with pictures (needs matplotlib)")


def _restore(commands: Commands[Parser], name: str, run: Action) -> None:
    examples = "--archive s3://vault/ledger --to /data/waltz/new"
    parser = _command(commands, name, run, "make a storage directory from an archive", examples)
    parser.add_argument("--archive", metavar="ARCHIVE", help="directory or URI (s3://bucket/prefix)")
    _add_place(parser)
    parser.add_argument("--to", type=_place, required=True, metavar="DIRECTORY", help="must be empty or absent")
    parser.add_argument("--partitions", metavar="P", help="which ones, such as 0-3,7 (all)")
    text = "if the archive does not tell (%(default)s)"
    size = whole_number(THRESHOLD_MIN)
    parser.add_argument("--segment-size", type=size, default=THRESHOLD, metavar="BYTES", help=text)


def _sink(commands: Commands[Parser], name: str, run: Action) -> None:
    parser = _command(
        commands,
        name,
        run,
        "append the rows of files to a log, each exactly once",
        "orders.parquet --url 'waltz://ledger:7801?ca=ca.pem' --checkpoint /var/lib/orders-import",
        "Columns: data, and partition or key; header; append_locks; with --mode conditional also write_locks,\n"
        "read_locks, client_high_water_mark. Exit status: 0 every row is in the log, 3 the others are in --rejects,\n"
        "1 something else went wrong.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="Parquet, JSON lines or CSV; or one directory")
    parser.add_argument("--format", choices=tuple(KINDS), help="by default, as the names of the files say")
    target = parser.add_argument_group("the log")
    target.add_argument("-c", "--config", metavar="FILE", help="tools.yml of a running cluster: its ZooKeeper, its TLS")
    target.add_argument("--url", metavar="URL", help="waltz://host:port?ca=FILE of a running cluster")
    target.add_argument("--zookeeper", metavar="H:P", help="connect string of a running cluster")
    target.add_argument("--root", metavar="PATH", help="znode of the cluster, with --zookeeper")
    parser.add_argument("--mode", choices=MODES, help="append (default): all rows; conditional: check locks")
    parser.add_argument(
        "--cut", metavar="JSON", help='state the rows were computed from, as next ids: {"0": 15, "1": 7}'
    )
    parser.add_argument("--rejects", metavar="DIR", help="where rows go whose locks were taken since (Parquet)")
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="remembers what is done: the same call again completes what an earlier one began, and never repeats it",
    )
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="any option of the sink; repeatable"
    )
    parser.set_defaults(jobs=1)


def _add_place(parser: argparse.ArgumentParser) -> None:
    """Scripts of earlier versions give the archive without its option."""
    parser.add_argument("place", nargs="?", help=argparse.SUPPRESS)


def _add_journal(parser: argparse.ArgumentParser) -> None:
    text = "decision journal of a server; repeat for every server (by default that of the file of --config, if any)"
    parser.add_argument("--journal", action="append", default=[], metavar="D", help=text)


_COMMANDS = {
    "scan": _scan,
    "archive": _archive,
    "verify": _verify,
    "audit": _audit,
    "report": _report,
    "restore": _restore,
    "sink": _sink,
}
