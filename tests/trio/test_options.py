"""Options of the tools: names, abbreviations, texts and exit statuses."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from waltz_trio.cli.help import UsageError
from waltz_trio.cli.options import (
    Arguments,
    Command,
    CommandError,
    Option,
    confirm,
    parse_partitions,
    parser_of,
    run_commands,
    show,
)

COMMAND = Command(
    "",
    "Copies.",
    (
        Option("s", "source-storage", "Where from", required=True),
        Option("sp", "storage-port", "Port", required=True),
        Option("d", "delete", "Deletes", takes_value=False),
        Option("b", "batch-size", "How many"),
    ),
    lambda arguments: 0,
)


def options(*words: str, command: Command = COMMAND) -> Arguments:
    """What a command is run with; a wrong call raises SystemExit."""
    given: list[Arguments] = []

    def run(arguments: Arguments) -> int:
        given.append(arguments)
        return 0

    parsed = parser_of("tool", (replace(command, run=run),)).parse_args(words)
    assert parsed.run(parsed) == 0
    return given[0]


def test_short_names_may_have_several_letters() -> None:
    arguments = options("-s", "a:1", "-sp", "7", "-d")
    assert arguments.text("source-storage") == "a:1"
    assert arguments.number("storage-port") == 7
    assert arguments.flag("delete")
    assert not arguments.flag("batch-size")
    assert arguments.text_or_none("batch-size") is None
    assert arguments.number("batch-size", 5) == 5


def test_long_names_may_be_shortened_while_they_are_unique() -> None:
    assert options("--source", "a", "--storage-port=7", "--ba", "3").number("batch-size", 5) == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-s", "a"), "Missing required option: sp"),
        ((), "Missing required options: s, sp"),
        (("--s", "a"), "Ambiguous option: '--s'  (could be: 'source-storage', 'storage-port')"),
        (("-x",), "Unrecognized option: -x"),
        (("--",), "Missing required options: s, sp"),
        (("-d=1",), "Unrecognized option: -d=1"),
        (("-s", "a", "-sp"), "Missing argument for option: sp"),
        (("-s", "a", "-sp", "1", "more"), "Unexpected argument: more"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(words: Sequence[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options(*words)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"Error: {text} (see tool --help)\n")


def test_a_value_that_looks_like_help_is_a_value() -> None:
    assert options("-s", "-h", "-sp", "1").text("source-storage") == "-h"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0-2,3,4-5", (0, 1, 2, 3, 4, 5)),
        (" 3 , 1 - 2 ", (1, 2, 3)),
        ("1,1,0-1", (0, 1)),
        (",", ()),
        ("7", (7,)),
    ],
)
def test_lists_of_partitions_are_numbers_and_ranges(text: str, found: tuple[int, ...]) -> None:
    assert parse_partitions(text) == found


@pytest.mark.parametrize("text", ["", "-1", "a", "1,,2", "1-", "1-2-3", "0-2000000000", "99999999999", "2-0", "3-1,5"])
def test_anything_else_is_no_list_of_partitions(text: str) -> None:
    with pytest.raises(UsageError):
        parse_partitions(text)


NAMED = replace(COMMAND, name="copy")


def test_missing_and_unknown_subcommands_are_wrong_calls(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands("tool", (NAMED,), ()) == 2
    assert run_commands("tool", (NAMED,), ("paste",)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "Error: Missing subcommand. (see tool --help)",
        "Error: Unknown subcommand: paste (see tool --help)",
    ]


def test_help_prints_the_usage_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands("tool", (NAMED,), ("copy", "-s", "x", "-h")) == 0
    text = capsys.readouterr().out
    usage = " ".join(text.partition("\n\n")[0].split())
    assert usage == "usage: tool copy [-h] -s HOST:ADMIN_PORT -sp PORT [-d] [-b N] [-j]"
    assert "required options:\n  -s HOST:ADMIN_PORT, --source-storage HOST:ADMIN_PORT" in text
    assert text.endswith("example:\n  tool copy -s storage-1:7073 -sp 7071\n")


def test_options_may_stand_behind_what_they_are_about() -> None:
    command = Command("", "Looks.", (Option("p", "partition", "Which"),), lambda _: 0, operand="NODE", repeated=True)
    given = options("a:1", "-p", "-7", "b:2", command=command)
    assert given.operands == ("a:1", "b:2")
    assert given.number("partition") == -7


def test_a_command_that_answers_in_lines_prints_them_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    def work(arguments: Arguments) -> int:
        print("one")
        print("two")
        return 1

    assert run_commands("tool", (Command("act", "Acts.", (), work),), ("act", "--json")) == 1
    assert json.loads(capsys.readouterr().out) == {"command": "tool act", "done": False, "said": ["one", "two"]}


def test_a_failure_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(arguments: Arguments) -> int:
        raise CommandError("no such thing")

    assert run_commands("tool", (Command("fail", "Fails.", (), fail),), ("fail",)) == 1
    assert capsys.readouterr() == ("", "Error: no such thing\n")


def test_without_a_terminal_consent_must_be_given() -> None:
    confirm("Sure?", given=True)
    with pytest.raises(CommandError, match="--yes"):
        confirm("Sure?", given=False)


def test_an_end_of_input_is_no_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-D at the question was a traceback, which does not say that nothing was done."""

    def end_of_input() -> str:
        raise EOFError

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", end_of_input)
    with pytest.raises(CommandError, match="nothing was done"):
        confirm("Sure?", given=False)


def test_a_report_can_go_to_the_log_paragraph_by_paragraph(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        show("head one\n  a\n  b\nhead two\n  c", logger_as_output=True)
    assert [record.message for record in caplog.records] == ["head one\n  a\n  b", "head two\n  c"]


def test_a_file_argument_is_required_where_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    command = Command("", "Dumps.", (), lambda arguments: 0, operand="FILE")
    assert options("--", "-file", command=command).operands == ("-file",)
    with pytest.raises(SystemExit):
        options(command=command)
    assert capsys.readouterr().err == "Error: Missing required argument: FILE (see tool --help)\n"


@pytest.mark.parametrize("text", ["abc", "1e3", "", "2147483648", "-2147483649", "9" * 5000])
def test_a_number_that_is_none_is_told_with_its_option(text: str) -> None:
    with pytest.raises(UsageError) as found:
        Arguments({"wait": text}).number("wait", 0)
    told = f'For input string: "{text}" (--wait: expected a whole number, at most 2147483647)'
    assert str(found.value) == told


def test_a_number_is_kept_within_its_bounds() -> None:
    arguments = Arguments({"port": "65536", "group": "0001", "wait": "0"})
    with pytest.raises(UsageError, match="--port must be at most 65535, found 65536"):
        arguments.number("port", least=1, most=65535)
    with pytest.raises(UsageError, match="--wait must be at least 1, found 0"):
        arguments.number("wait", least=1)
    assert arguments.number("group", most=1) == 1
