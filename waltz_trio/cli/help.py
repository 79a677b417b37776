"""One form of `--help` for every command, made by argparse, with an example at its end.

Commands of the original's style are a table (`options.Command`) that `options.parse` reads as the original does; their
help is made here from that table. The other commands give their options to `Parser` themselves.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from waltz_trio.cli.options import Command, Option

USAGE_STATUS = 1  # exit status of a wrong call, as of the original's tools

# Metavar and value of the example, by long name; an option may carry another value.
_VALUES = {
    "accept-data-loss": ("", ""),
    "batch-size": ("N", "1000"),
    "cli-config-path": ("PATH", "tools.yml"),
    "deserializer": ("FORM", "json"),
    "destination-ssl-config-path": ("PATH", "storage.yml"),
    "destination-storage": ("HOST:ADMIN_PORT", "storage-2:7073"),
    "destination-storage-port": ("PORT", "7071"),
    "from": ("HOST:PORT", "storage-1:7071"),
    "grace": ("SECONDS", "45"),
    "group": ("GROUP", "0"),
    "input": ("PATH", "backup.json"),
    "interval": ("MS", "10"),
    "lock-pool-size": ("N", "0"),
    "name": ("NAME", "orders"),
    "num-active-partitions": ("N", "1"),
    "num-clients": ("N", "2"),
    "num-thread": ("N", "2"),
    "num-txn": ("N", "1000"),
    "online": ("TRUE|FALSE", "true"),
    "partition": ("PARTITIONS", "0"),
    "partitions": ("N", "16"),
    "server": ("HOST:PORT", "server-1:7100"),
    "source-ssl-config-path": ("PATH", "storage.yml"),
    "source-storage": ("HOST:ADMIN_PORT", "storage-1:7073"),
    "sources": ("NODES", "storage-2:7073"),
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


class Parser(argparse.ArgumentParser):
    """An argparse parser whose help ends with an example and whose complaints read as those of the other tools."""

    def __init__(self, *arguments: Any, example: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.example = example

    def format_help(self) -> str:
        """The help, and the example in one piece, so that it can be copied."""
        return super().format_help() + (f"\nexample:\n  {self.example}\n" if self.example else "")

    def error(self, message: str) -> NoReturn:
        """One line, and the status of a wrong call."""
        print(f"Error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(USAGE_STATUS)


def parser_of(program: str, command: Command) -> Parser:
    """The parser that shows the help of a command of the table."""
    words = f"{program} {command.name}".strip()
    parser = Parser(
        prog=words, description=_plain(command.meaning), add_help=False, example=" ".join([words, *example(command)])
    )
    required = parser.add_argument_group("required options") if any(one.required for one in command.options) else parser
    parser.add_argument("-h", "--help", action="store_true", help="Display help message")
    for option in command.options:
        group = required if option.required else parser
        names, meaning = (f"-{option.short}", f"--{option.long}"), _plain(option.meaning)
        if option.takes_value:
            group.add_argument(*names, required=option.required, metavar=_values(option)[0], help=meaning)
        else:
            group.add_argument(*names, action="store_true", required=option.required, help=meaning)
    if command.operand:
        parser.add_argument("operands", metavar=command.operand, nargs="+" if command.repeated else None)
    return parser


def example(command: Command) -> list[str]:
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
