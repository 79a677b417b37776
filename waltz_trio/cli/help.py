"""One parser for every command of `waltz`, over argparse: one form of help, of complaints and of abbreviations.

The spellings are those of the original's tools: short names of several letters (`-sp`), long names that may be cut
short while they stay unique, after one dash or two, options before and behind what they are about, and a value that
looks like an option (`-s -h`). Of what is left to argparse this parser puts the complaints into the original's words.

Exit status: 0 done, 1 refused or failed, 2 the call itself is wrong, 130 interrupted by Ctrl-C, 143 by SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from waltz_core.base.errors import WaltzError
from waltz_trio.base.durable import reason_of
from waltz_trio.base.printable import printable
from waltz_trio.cli import interruption, streams

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

FAILED_STATUS = 1
USAGE_STATUS = 2
NUMBER_MAX = 2**63 - 1
"""What an id, and whatever is counted along with ids, can be at most."""
PORT_MAX = 65_535

_SUBCOMMAND = "SUBCOMMAND"


class UsageError(WaltzError):
    """The call is wrong, as only its command can see: text for a number, two options that exclude each other."""


def whole_number(least: int, most: int = NUMBER_MAX) -> Callable[[str], int]:
    """The type of an option that takes a whole number within bounds; argparse alone would take any."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,30}", text) or not least <= int(text) <= most:
            bounds = f"of at least {least}" if most == NUMBER_MAX else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"expected a whole number {bounds}, found {text!r}")
        return int(text)

    return parse


class Lines(argparse.HelpFormatter):
    """A description keeps its lines; those that are too long go on below what they say, in tables too.

    A line that is an example stays in one piece, so that it can be copied.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled: list[str] = []
        for line in text.splitlines():
            if line.startswith("  waltz "):
                filled.append(indent + line)
                continue
            column = re.match(r" +\S.*?(?: {2,})(?=\S)|\s*", line)
            below = indent + " " * (0 if column is None else column.end())
            filled += textwrap.wrap(
                line, width, initial_indent=indent, subsequent_indent=below, break_long_words=False
            ) or [""]
        return "\n".join(filled)


class Parser(argparse.ArgumentParser):
    """An argparse parser for the original's spellings, whose help ends with an example."""

    def __init__(self, *arguments: Any, example: str = "", **options: Any) -> None:
        options["allow_abbrev"] = False  # they are spelled out before argparse sees them
        super().__init__(*arguments, **options)
        self.example = example

    def subcommands(self) -> argparse._SubParsersAction[Parser]:
        """Where the parsers of the sub-commands are added."""
        return self.add_subparsers(required=True, metavar=_SUBCOMMAND, title="subcommands")

    def below(self) -> dict[str, tuple[Parser, str]]:
        """The parsers of the sub-commands by name, with what each is for."""
        parsers: dict[str, tuple[Parser, str]] = {}
        for action in self._actions:  # there is no public way to ask a parser what it knows
            if isinstance(action, argparse._SubParsersAction):
                meanings = {choice.dest: choice.help or "" for choice in action._choices_actions}
                parsers |= {name: (parser, meanings.get(name, "")) for name, parser in action.choices.items()}
        return parsers

    def options(self) -> list[argparse.Action]:
        """The options of this parser."""
        return [action for action in self._actions if action.option_strings]

    def every(self) -> Iterator[Parser]:
        """This parser and all below it."""
        yield self
        for parser, _ in self.below().values():
            yield from parser.every()

    def format_help(self) -> str:
        """The help, and the example in one piece, so that it can be copied."""
        return super().format_help() + (f"\nexample:\n  {self.example}\n" if self.example else "")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # argparse would swallow that the reader has gone (`--help | head`); `main` ends as other commands do.
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """One line, and the status of a wrong call."""
        print(f"Error: {_in_words_of_the_original(message)} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE_STATUS)

    def parse_known_args(  # type: ignore[override]  # argparse overloads it by the type of the namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse a call; what is left over is refused here, where its place is known."""
        words = self._spelled_out(sys.argv[1:] if args is None else args)
        given, rest = super().parse_known_args(words, namespace)
        unexpected = [word for word in rest if word != "--"]
        if unexpected:
            self.error(f"Unexpected argument: {unexpected[0]}")
        return given, []

    def _spelled_out(self, words: Sequence[str]) -> list[str]:
        """The same call for argparse: options in full, each in one word with its value, and behind them the rest."""
        options: list[str] = []
        operands: list[str] = []
        rest = iter(words)
        for word in rest:
            if word == "--":
                operands += rest
            elif word == "-" or not word.startswith("-"):
                operands.append(word)
                if self.below():
                    return [*options, *operands, *rest]  # the rest is read by the parser of the sub-command
            else:
                options.append(self._option(word, rest))
        return [*options, "--", *operands] if operands else options

    def _option(self, word: str, rest: Iterator[str]) -> str:
        name, equals, value = word.partition("=")
        action = self._named(name)
        option = action.option_strings[-1]
        if action.nargs == 0:
            if equals:
                self.error(f"Unrecognized option: {word}")
            return option
        if not equals:
            following = next(rest, None)
            if following is None:
                self.error(f"Missing argument for option: {_bare(action)}")
            value = following
        return f"{option}={value}"

    def _named(self, name: str) -> argparse.Action:
        names = {text: action for action in self.options() for text in action.option_strings}
        if name in names:
            return names[name]
        bare = name.lstrip("-")
        long = {text[2:]: action for text, action in names.items() if text.startswith("--")}
        could = [text for text in long if text == bare] or [text for text in long if bare and text.startswith(bare)]
        if len(could) > 1:
            listed = ", ".join(f"'{text}'" for text in could)
            self.error(f"Ambiguous option: '{name}'  (could be: {listed})")
        if not could:
            self.error(f"Unrecognized option: {name}")
        return long[could[0]]


def _bare(action: argparse.Action) -> str:
    return action.option_strings[0].lstrip("-")


def _in_words_of_the_original(message: str) -> str:
    required = message.removeprefix("the following arguments are required: ")
    if required != message:
        names = required.split(", ")
        options = [name.partition("/")[0].lstrip("-") for name in names if name.startswith("-")]
        if options:
            return f"Missing required option{'s' if len(options) > 1 else ''}: {', '.join(options)}"
        return "Missing subcommand." if names == [_SUBCOMMAND] else f"Missing required argument: {required}"
    unknown = re.match(rf"argument {_SUBCOMMAND}: invalid choice: '(.*?)' \(", message)
    return f"Unknown subcommand: {unknown[1]}" if unknown else message


def run(parser: Parser, words: Sequence[str]) -> int:
    """Parse a call and run its command; returns the exit status."""
    try:
        given = parser.parse_args(words)
    except SystemExit as ended:  # the help, or a wrong call
        return ended.code if isinstance(ended.code, int) else FAILED_STATUS
    interruption.begin()
    try:
        status = int(given.run(given))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        raise  # the reader of our output is gone: no error to report, see `main`
    except UsageError as error:
        print(f"Error: {error}", file=sys.stderr)
        return USAGE_STATUS
    except (WaltzError, OSError) as error:
        if isinstance(error, OSError) and error.filename == streams.OUTPUT:
            streams.abandon_output()
        for line in (f"Error: {reason_of(error)}", *getattr(error, "__notes__", ())):
            print(printable(line, "\n"), file=sys.stderr)  # it may be the words of a peer
        return int(getattr(given, "failed", FAILED_STATUS))
    except BaseException as error:
        if not interruption.is_interruption(error):
            raise
        status, words = interruption.told()
        print(words, file=sys.stderr)
        return status


def as_object(words: str, work: Callable[[], int]) -> int:
    """Run a command that answers in lines, and print one JSON object that holds them."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = work()
    print(json.dumps({"command": words, "done": status == 0, "said": said.getvalue().splitlines()}, indent=2))
    return status
