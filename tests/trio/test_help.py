"""Every command of `waltz`: one form of help, an example that it takes itself, one status for a wrong call."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

import pytest

from waltz_trio.cli import main as waltz
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import Command, parse, usage

NOUNS = [noun for noun in waltz.NOUNS if noun not in waltz.ELSEWHERE]


def tables() -> Iterator[tuple[str, Command]]:
    for noun in NOUNS:
        module = importlib.import_module(waltz.module_of(noun))
        for command in waltz.commands_of(module):
            yield f"waltz {noun}", command


def parsers(parser: argparse.ArgumentParser) -> Iterator[Parser]:
    assert isinstance(parser, Parser)
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def hand_made() -> Iterator[Parser]:
    for noun in NOUNS:
        module = importlib.import_module(waltz.module_of(noun))
        if hasattr(module, "make_parser"):
            yield from parsers(module.make_parser())


TABLES = list(tables())
PARSERS = list(hand_made())


def example_in(text: str) -> str:
    head, _, line = text.rpartition("example:\n  ")
    assert head.startswith("usage: waltz "), text
    return line.rstrip("\n")


@pytest.mark.parametrize(("program", "command"), TABLES, ids=[f"{noun} {one.name}" for noun, one in TABLES])
def test_the_example_of_a_command_is_a_right_call(program: str, command: Command) -> None:
    text = usage(program, command)
    start = f"{program} {command.name}".strip()
    line = example_in(text)
    assert f"{line} ".startswith(f"{start} ")
    given = parse(command, line[len(start) :].split())
    for option in command.options:
        assert f"--{option.long}" in text
        if option.required:
            assert given.flag(option.long)
            assert f"[-{option.short} " not in text.partition("\n\n")[0]


@pytest.mark.parametrize("parser", PARSERS, ids=[parser.prog for parser in PARSERS])
def test_the_example_of_a_parser_is_a_right_call(parser: Parser) -> None:
    line = example_in(parser.format_help())
    assert line.startswith("waltz ")
    top = next(one for one in PARSERS if line.startswith(f"{one.prog} ") and " " not in one.prog[len("waltz ") :])
    top.parse_args(line[len(top.prog) :].split())


@pytest.mark.parametrize("noun", NOUNS)
def test_a_wrong_call_has_one_status(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = waltz.main([noun, "--no-such-option"])
    output = capsys.readouterr()
    assert status == (3 if noun == "may-stop" else 1)  # there 1 is an answer
    assert "Error: " in output.out + output.err
    assert waltz.main([noun, "--help"]) == 0
