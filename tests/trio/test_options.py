"""Options of the tools: names, abbreviations, texts and exit statuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from waltz_trio.cli.options import (
    Arguments,
    Command,
    CommandError,
    Option,
    confirm,
    parse,
    parse_partitions,
    run_commands,
    show,
)

COMMAND = Command(
    "copy",
    "Copies.",
    (
        Option("s", "source-storage", "Where from", required=True),
        Option("sp", "storage-port", "Port", required=True),
        Option("d", "delete", "Deletes", takes_value=False),
        Option("b", "batch-size", "How many"),
    ),
    lambda arguments: 0,
)


def options(*words: str) -> Arguments:
    return parse(COMMAND, words)


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
        (("--s", "a"), r"Ambiguous option: '--s'  \(could be: 'source-storage', 'storage-port'\)"),
        (("-x",), "Unrecognized option: -x"),
        (("--",), "Missing required options: s, sp"),
        (("-d=1",), "Unrecognized option: -d=1"),
        (("-s", "a", "-sp"), "Missing argument for option: sp"),
        (("-s", "a", "-sp", "1", "more"), "Unexpected argument: more"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(words: Sequence[str], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        options(*words)


def test_a_value_that_looks_like_help_is_a_value() -> None:
    assert options("-s", "-h", "-sp", "1").text("source-storage") == "-h"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0-2,3,4-5", (0, 1, 2, 3, 4, 5)),
        (" 3 , 1 - 2 ", (1, 2, 3)),
        ("1,1,0-1", (0, 1)),
        ("2-0", ()),
        (",", ()),
        ("7", (7,)),
    ],
)
def test_lists_of_partitions_are_numbers_and_ranges(text: str, found: tuple[int, ...]) -> None:
    assert parse_partitions(text) == found


@pytest.mark.parametrize("text", ["", "-1", "a", "1,,2", "1-", "1-2-3", "0-2000000000", "99999999999"])
def test_anything_else_is_no_list_of_partitions(text: str) -> None:
    with pytest.raises(CommandError):
        parse_partitions(text)


def test_missing_and_unknown_subcommands_list_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands("tool", (COMMAND,), ()) == 1
    assert run_commands("tool", (COMMAND,), ("paste",)) == 1
    output = capsys.readouterr()
    assert "Error: Missing subcommand." in output.out
    assert "Error: Unknown subcommand: paste" in output.out
    assert "  copy    Copies." in output.out
    assert output.err == ""
    assert run_commands("tool", (COMMAND,), ("--help",)) == 0


def test_help_prints_the_usage_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands("tool", (COMMAND,), ("copy", "-s", "x", "-h")) == 0
    text = capsys.readouterr().out
    usage = " ".join(text.partition("\n\n")[0].split())
    assert usage == "usage: tool copy [-h] -s HOST:ADMIN_PORT -sp PORT [-d] [-b N]"
    assert "required options:\n  -s HOST:ADMIN_PORT, --source-storage HOST:ADMIN_PORT" in text
    assert text.endswith("example:\n  tool copy -s storage-1:7073 -sp 7071\n")


def test_a_failure_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(arguments: Arguments) -> int:
        raise CommandError("no such thing")

    assert run_commands("tool", (Command("fail", "Fails.", (), fail),), ("fail",)) == 1
    assert capsys.readouterr() == ("", "Error: no such thing\n")


def test_without_a_terminal_consent_must_be_given() -> None:
    confirm("Sure?", given=True)
    with pytest.raises(CommandError, match="--yes"):
        confirm("Sure?", given=False)


def test_a_report_can_go_to_the_log_paragraph_by_paragraph(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        show("head one\n  a\n  b\nhead two\n  c", logger_as_output=True)
    assert [record.message for record in caplog.records] == ["head one\n  a\n  b", "head two\n  c"]


def test_a_file_argument_is_required_where_it_is_named() -> None:
    command = Command("dump", "Dumps.", (), lambda arguments: 0, operand="FILE")
    assert parse(command, ["--", "-file"]).operands == ("-file",)
    with pytest.raises(CommandError, match="FILE"):
        parse(command, [])
