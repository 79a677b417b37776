"""Sub-commands and options as the original's tools take them.

One-dash short names may have several letters (`-sp`), long names may be shortened as long as they stay
unique, `-h` anywhere but as a value prints the usage. Texts and exit statuses are those people and scripts
match on: what is wrong with the call or fails goes to standard error behind `Error: `, with status 1.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waltz_core.base.errors import WaltzError
from waltz_trio.cli.help import USAGE_STATUS, parser_of

PARTITIONS_MAX = 1_000_000


class CommandError(WaltzError):
    """A command failed; its text follows `Error: `."""


class _UsageWanted(Exception):  # noqa: N818  not an error: the way out of parsing
    """`-h` was given."""


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
    failed: int = USAGE_STATUS  # exit status of whatever goes wrong, where 1 is an answer
    example: str = ""  # a call, without the name of the program


HELP = Option("h", "help", "Display help message", takes_value=False)
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

    def number(self, name: str, default: int | None = None, *, least: int | None = None, bits: int = 32) -> int:
        """Whole number of an option.

        Raises:
            CommandError: it is no signed number of so many bits, or below `least`.
        """
        if default is not None and name not in self._values:
            return default
        number = parse_number(self._values[name], bits)
        if least is not None and number < least:
            raise CommandError(f"--{name} must be at least {least}, found {number}")
        return number

    def partitions(self, name: str) -> tuple[int, ...]:
        """Partition ids of an option.

        Raises:
            CommandError: it is no list of numbers and ranges.
        """
        return parse_partitions(self._values[name])


def parse_number(text: str, bits: int = 32) -> int:
    """A signed number of so many bits.

    Raises:
        CommandError: it is none.
    """
    if not re.fullmatch(r"[+-]?\d+", text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise CommandError(f'For input string: "{text}"')
    return int(text)


def parse_partitions(text: str) -> tuple[int, ...]:
    """`0-2,3,4-5` → (0, 1, 2, 3, 4, 5): sorted, each once; `2-0` and `,` are empty.

    Raises:
        CommandError: it is no list of numbers and ranges.
    """
    if not text:
        raise CommandError("Invalid input ")
    found: set[int] = set()
    pieces = text.split(",")
    while pieces and not pieces[-1]:
        pieces.pop()
    for piece in pieces:
        first, dash, last = piece.partition("-")
        low = parse_number(first.strip())
        high = parse_number(last.strip()) if dash else low
        if high - low >= PARTITIONS_MAX:
            raise CommandError(f"range {piece.strip()} holds more than {PARTITIONS_MAX} partitions")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def run_commands(program: str, commands: Sequence[Command], argv: Sequence[str]) -> int:
    """Find and run the sub-command; returns the exit status."""
    known = {command.name: command for command in commands}
    if not argv or argv[0] not in known:
        if argv and argv[0] in ("-h", "--help"):
            print(_list(commands, None))
            return 0
        problem = f"Unknown subcommand: {argv[0]}" if argv else "Missing subcommand."
        print(_list(commands, problem))
        return USAGE_STATUS
    return run_command(program, known[argv[0]], argv[1:])


def run_command(program: str, command: Command, words: Sequence[str]) -> int:
    """Run one command with its options; returns the exit status."""
    try:
        return command.run(parse(command, words))
    except _UsageWanted:
        print(usage(program, command))
        return 0
    except BrokenPipeError:
        raise  # nobody reads our output any more: no error to report, see `main`
    except (WaltzError, OSError) as problem_found:
        print(f"Error: {problem_found}", file=sys.stderr)
        return command.failed


def _list(commands: Sequence[Command], problem: str | None) -> str:
    width = max(len(command.name) for command in commands)
    rows = "".join(f"  {command.name:<{width}}    {command.meaning}\n" for command in commands)
    head = f"\nError: {problem}\n\n" if problem else "\n"
    return f"{head}subcommands:\n\n{rows}"


def usage(program: str, command: Command) -> str:
    """The text of `--help`."""
    return parser_of(program, command).format_help().rstrip("\n")


def parse(command: Command, words: Sequence[str]) -> Arguments:
    """Read the options of a sub-command.

    Raises:
        CommandError: an unknown, ambiguous, incomplete or missing option.
        _UsageWanted: the usage was asked for.
    """
    values: dict[str, str] = {}
    operands: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            operands += words[at:]
            break
        if not word.startswith("-") or word == "-":
            operands.append(word)
            continue
        name, equals, value = word.partition("=")
        option = _find(command, name)
        if option is HELP:
            raise _UsageWanted
        if not option.takes_value:
            if equals:
                raise CommandError(f"Unrecognized option: {word}")
            values[option.long] = ""
            continue
        if not equals:
            if at == len(words):
                raise CommandError(f"Missing argument for option: {option.short}")
            value = words[at]
            at += 1
        values[option.long] = value
    missing = [option.short for option in command.options if option.required and option.long not in values]
    if missing:
        raise CommandError(f"Missing required option{'s' if len(missing) > 1 else ''}: {', '.join(missing)}")
    taken = len(operands) if command.repeated else 1 if command.operand else 0
    if len(operands) > taken:
        raise CommandError(f"Unexpected argument: {operands[taken]}")
    if command.operand and not operands:
        raise CommandError(f"Missing required argument: {command.operand}")
    return Arguments(values, tuple(operands))


def _find(command: Command, name: str) -> Option:
    options = (HELP, *command.options)
    if not name.startswith("--"):
        for option in options:
            if option.short == name[1:]:
                return option
    bare = name.lstrip("-")
    for option in options:
        if option.long == bare:
            return option
    found = [option for option in options if bare and option.long.startswith(bare)]
    if len(found) == 1:
        return found[0]
    if found:
        could = ", ".join(f"'{option.long}'" for option in found)
        raise CommandError(f"Ambiguous option: '{name}'  (could be: {could})")
    raise CommandError(f"Unrecognized option: {name}")


def confirm(question: str, *, given: bool) -> None:
    """Ask before something that cannot be undone; `given` is the consent from the command line.

    Raises:
        CommandError: no consent.
    """
    if given:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} There is no terminal to ask on: give --yes")
    answer = input(f"{question} [y/N] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done")


def show(text: str, *, logger_as_output: bool = False) -> None:
    """Print a report, or log it: one record per paragraph, which starts with a line without indentation."""
    if not logger_as_output:
        print(text)
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
    "parse",
    "parse_number",
    "parse_partitions",
    "run_command",
    "run_commands",
    "show",
    "usage",
]
