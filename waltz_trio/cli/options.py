"""Commands as tables: what the original's tools take, and what their options and arguments mean."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waltz_core.base.errors import WaltzError
from waltz_trio.base.printable import printable
from waltz_trio.cli.help import FAILED_STATUS, Parser, UsageError, as_object, run
from waltz_trio.cli.interruption import blocking

PARTITIONS_MAX = 1_000_000


class CommandError(WaltzError):
    """A command failed; its text follows `Error: `."""


@dataclass(frozen=True)
class Option:
    """One option; `short` and `long` without dashes."""

    short: str
    long: str
    meaning: str
    required: bool = False
    takes_value: bool = True
    sample: str = ""  # its value in the example of the help, where another one than usual


@dataclass(frozen=True)
class Command:
    """One sub-command; `run` returns the exit status and may raise WaltzError."""

    name: str
    meaning: str
    options: tuple[Option, ...]
    run: Callable[[Arguments], int]
    operand: str = ""  # name of a required argument, if there is one
    repeated: bool = False  # the operand may be given more than once
    failed: int = FAILED_STATUS  # exit status of failures, where 1 is an answer
    answers: bool = True  # takes `--json`: prints an object of its own, or one that holds the lines it prints
    example: str = ""  # a call, without the name of the program


CONFIG = Option(
    "c",
    "cli-config-path",
    "Specify the cli config file path required for zooKeeper connection string, zooKeeper root path",
    required=True,
)
LOGGER_OUTPUT = Option(
    "l", "logger-as-output", "Cli output will be sent to logger instead of standard output", takes_value=False
)
JSON = Option("j", "json", "Print one JSON object", takes_value=False)
YES = Option("y", "yes", "Do not ask", takes_value=False)


class Arguments:
    """The options of one call, by long name."""

    def __init__(self, values: dict[str, str], operands: tuple[str, ...] = ()) -> None:
        self._values = values
        self.operands = operands

    def flag(self, name: str) -> bool:
        """Whether an option was given."""
        return name in self._values

    def text(self, name: str) -> str:
        """Value of a required option."""
        return self._values[name]

    def text_or_none(self, name: str) -> str | None:
        """Value of an option, None if it was not given."""
        return self._values.get(name)

    def number(
        self,
        name: str,
        default: int | None = None,
        *,
        least: int | None = None,
        most: int | None = None,
        bits: int = 32,
    ) -> int:
        """Whole number of an option.

        Raises:
            UsageError: it is no signed number of so many bits, below `least` or above `most`.
        """
        if default is not None and name not in self._values:
            return default
        try:
            number = parse_number(self._values[name], bits)
        except UsageError as error:
            largest = 2 ** (bits - 1) - 1
            raise UsageError(f"{error} (--{name}: expected a whole number, at most {largest})") from None
        if least is not None and number < least:
            raise UsageError(f"--{name} must be at least {least}, found {number}")
        if most is not None and number > most:
            raise UsageError(f"--{name} must be at most {most}, found {number}")
        return number

    def partitions(self, name: str) -> tuple[int, ...]:
        """Partition ids of an option.

        Raises:
            UsageError: it is no list of numbers and ranges, or an empty one.
        """
        text = self._values[name]
        partitions = parse_partitions(text)
        if not partitions:
            raise UsageError(f'Partitions list is empty: "{text}"; expected numbers and ranges, such as 0-2,5')
        return partitions


def parse_number(text: str, bits: int = 32) -> int:
    """A signed number of so many bits.

    Raises:
        UsageError: it is malformed.
    """
    if not re.fullmatch(r"[+-]?0*\d{1,19}", text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise UsageError(f'For input string: "{text}"')
    return int(text)


def parse_partitions(text: str) -> tuple[int, ...]:
    """`0-2,3,4-5` → (0, 1, 2, 3, 4, 5): sorted, each once; `,` is empty.

    A range that begins with the higher number is refused: beside others, 0.13.2 passes over it without a word.

    Raises:
        UsageError: it is no list of numbers and ranges.
    """
    if not text:
        raise UsageError("Invalid input ")
    partitions: set[int] = set()
    pieces = text.split(",")
    while pieces and not pieces[-1]:
        pieces.pop()
    for piece in pieces:
        first, dash, last = piece.partition("-")
        low = parse_number(first.strip())
        high = parse_number(last.strip()) if dash else low
        if high < low:
            raise UsageError(f"range {piece.strip()} is empty: it begins with the lower number, such as {high}-{low}")
        if high - low >= PARTITIONS_MAX:
            raise UsageError(f"range {piece.strip()} holds more than {PARTITIONS_MAX} partitions")
        partitions.update(range(low, high + 1))
    return tuple(sorted(partitions))


# ---- parsers ---------------------------------------------------------------------------------

# Metavar and value of the example, by long name; an option may carry another value.
_VALUES = {
    "accept-data-loss": ("", ""),
    "batch-size": ("N", "1000"),
    "cli-config-path": ("PATH", "tools.yml"),
    "deserializer": ("FORM", "json"),
    "done": ("NODE", "storage-1:7071"),
    "destination-ssl-config-path": ("PATH", "storage.yml"),
    "destination-storage": ("HOST:ADMIN_PORT", "storage-2:7073"),
    "destination-storage-port": ("PORT", "7071"),
    "exec": ("COMMAND", "./restart-node.sh"),
    "from": ("HOST:PORT", "storage-1:7071"),
    "gateway-config-path": ("PATH", "gateway.yml"),
    "grace": ("SECONDS", "45"),
    "group": ("GROUP", "0"),
    "host": ("ADDRESS", "127.0.0.1"),
    "input": ("PATH", "backup.json"),
    "output": ("FILE", "waltz-cluster.json"),
    "interval": ("MS", "10"),
    "lock-pool-size": ("N", "0"),
    "name": ("NAME", "orders"),
    "num-active-partitions": ("N", "1"),
    "num-clients": ("N", "2"),
    "num-thread": ("N", "2"),
    "num-txn": ("N", "1000"),
    "only": ("NODES", "storage-1:7071"),
    "online": ("TRUE|FALSE", "true"),
    "partition": ("PARTITIONS", "0"),
    "partitions": ("N", "16"),
    "port": ("PORT", "7900"),
    "server": ("HOST:PORT", "server-1:7100"),
    "source-ssl-config-path": ("PATH", "storage.yml"),
    "source-storage": ("HOST:ADMIN_PORT", "storage-1:7073"),
    "sources": ("NODES", "storage-2:7073"),
    "state": ("FILE", "waltz-restart.json"),
    "storage": ("HOST:PORT", "storage-1:7071"),
    "storage-admin-port": ("PORT", "7073"),
    "storage-port": ("PORT", "7071"),
    "timeout": ("SECONDS", "10"),
    "to": ("HOST:PORT", "storage-4:7071"),
    "transaction-id": ("ID", "0"),
    "txn-per-client": ("N", "1000"),
    "txn-per-thread": ("N", "1000"),
    "txn-size": ("BYTES", "512"),
    "wait": ("SECONDS", "300"),
}


def parser_of(noun: str, commands: Sequence[Command], description: str | None = None) -> Parser:
    """The parser of a noun: of its sub-commands, or of its only command if that has no name."""
    if len(commands) == 1 and not commands[0].name:
        (command,) = commands
        parser = Parser(prog=noun, description=_plain(command.meaning), example=" ".join([noun, *_example(command)]))
        _fill(parser, command)
        return parser
    first = f"{noun} {commands[0].name}"
    parser = Parser(prog=noun, description=description, example=" ".join([first, *_example(commands[0])]))
    below = parser.subcommands()
    for command in commands:
        words = f"{noun} {command.name}"
        meaning = _plain(command.meaning)
        example = " ".join([words, *_example(command)])
        _fill(below.add_parser(command.name, prog=words, help=meaning, description=meaning, example=example), command)
    return parser


def run_commands(noun: str, commands: Sequence[Command], argv: Sequence[str]) -> int:
    """Find and run the sub-command; returns the exit status."""
    return run(parser_of(noun, commands), argv)


def _fill(parser: Parser, command: Command) -> None:
    required = parser.add_argument_group("required options") if any(one.required for one in command.options) else parser
    only_lines = command.answers and all(option.long != JSON.long for option in command.options)
    for option in (*command.options, JSON) if only_lines else command.options:
        group = required if option.required else parser
        names, meaning = (f"-{option.short}", f"--{option.long}"), _plain(option.meaning)
        if option.takes_value:
            group.add_argument(*names, required=option.required, metavar=_values(option)[0], help=meaning)
        else:
            group.add_argument(*names, action="store_true", required=option.required, help=meaning)
    if command.operand:
        parser.add_argument("operands", metavar=command.operand, nargs="+" if command.repeated else 1)
    work = _said(parser.prog, command) if only_lines else command.run
    parser.set_defaults(run=lambda given: work(_arguments(given, command)), failed=command.failed, words=parser.prog)


def _said(words: str, command: Command) -> Callable[[Arguments], int]:
    def work(arguments: Arguments) -> int:
        return as_object(words, lambda: command.run(arguments)) if arguments.flag("json") else command.run(arguments)

    return work


def _arguments(given: argparse.Namespace, command: Command) -> Arguments:
    values: dict[str, str] = {}
    for option in (*command.options, JSON):
        value = getattr(given, option.long.replace("-", "_"), None)
        if value is not None and value is not False:
            values[option.long] = "" if value is True else value
    return Arguments(values, tuple(getattr(given, "operands", ())))


def _example(command: Command) -> list[str]:
    """A call: the one of the table, or one of all required options and the argument."""
    if command.example:
        return command.example.split()
    words = []
    for option in command.options:
        if option.required:
            words += [f"-{option.short}", *([_values(option)[1]] if option.takes_value else [])]
    return [*words, *([command.operand] if command.operand else [])]


def _values(option: Option) -> tuple[str, str]:
    """Metavar and value of the example."""
    metavar, value = _VALUES[option.long]
    if option.long == "storage" and "admin_port" in option.meaning:
        metavar, value = "HOST:ADMIN_PORT", "storage-1:7073"
    if option.long == "server" and "jetty_port" in option.meaning:
        metavar, value = "HOST:HTTP_PORT", "server-1:7101"
    return metavar, option.sample or value


def _plain(text: str) -> str:
    return text.replace("%", "%%")


# ---- what commands do ------------------------------------------------------------------------


def confirm(question: str, *, given: bool, refused: str = "nothing was done") -> None:
    """Ask before something that cannot be undone; `given` is the consent from the command line.

    Args:
        refused: what a no leaves.

    Raises:
        CommandError: no consent.
    """
    if given:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} There is no terminal to ask on: give --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)  # standard output may be for a program
    try:
        with blocking():
            answer = input()
    except EOFError:  # Ctrl-D
        print(file=sys.stderr)
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError(refused)


def show(text: str, *, logger_as_output: bool = False) -> None:
    """Print a report, or log it: one record per paragraph, which starts with a line without indentation."""
    if not logger_as_output:
        print(printable(text, "\n\t"))  # it may have words of a peer in it
        return
    logger = logging.getLogger("waltz.cli")
    for paragraph in re.split(r"\n(?=\S)", text):
        logger.info(paragraph)


__all__ = [
    "CONFIG",
    "JSON",
    "LOGGER_OUTPUT",
    "YES",
    "Arguments",
    "Command",
    "CommandError",
    "Option",
    "confirm",
    "parse_number",
    "parse_partitions",
    "parser_of",
    "run_commands",
    "show",
]
