"""Every command of `waltz`, from its parser: one form of help, errors and answers, one status for a wrong call."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from waltz_trio.cli import main as waltz
from waltz_trio.cli.help import Parser

# What runs until it is stopped, or is looked at by people, gives no answer that `--json` could print.
NO_ANSWER = {
    "waltz dev": "prints its address, and runs",
    "waltz console": "prints its address, and serves",
    "waltz server run": "runs",
    "waltz proxy run": "runs",
    "waltz storage run": "runs",
    "waltz gateway run": "prints its address, and serves",
    "waltz completion bash": "prints a script",
    "waltz completion zsh": "prints a script",
    "waltz completion fish": "prints a script",
    "waltz demo run": "is a show; `--json PATH` writes its result",
    "waltz demo bank": "is talked to",
}


def every_parser() -> list[Parser]:
    nouns = [waltz.parser_of_noun(noun) for noun in waltz.NOUNS]
    return [waltz.make_parser(), *(parser for noun in nouns for parser in noun.every())]


PARSERS = {parser.prog: parser for parser in every_parser()}
COMMANDS = {name: parser for name, parser in PARSERS.items() if not parser.below()}


def call(words: str) -> int:
    return waltz.main(words.split()[1:])


def required(parser: Parser) -> list[argparse.Action]:
    return [action for action in parser.options() if action.required]


def test_there_are_so_many() -> None:
    assert len(COMMANDS) >= 60
    assert NO_ANSWER.keys() < COMMANDS.keys()


@pytest.mark.parametrize("name", PARSERS)
def test_help_fits_a_terminal_of_80_columns_but_for_its_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = PARSERS[name].format_help().splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("  waltz ")] == []


@pytest.mark.parametrize("name", PARSERS)
def test_help_has_one_form_and_ends_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for option in ("-h", "--help"):
        assert call(f"{name} {option}") == 0
        texts.append(capsys.readouterr())
    text = texts[0].out
    assert texts[0] == texts[1] == (text, "")
    assert text.startswith(f"usage: {name} [-h]")
    head, _, line = text.rpartition("\nexample:\n  ")
    assert f"{line.strip()} ".startswith(f"{name} ")
    for action in required(PARSERS[name]):
        assert f"[{action.option_strings[0]} " not in head.partition("\n\n")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_is_a_right_call(name: str) -> None:
    line = PARSERS[name].example.replace("'", "")
    given = COMMANDS[name].parse_args(line[len(name) :].split())
    assert callable(given.run)
    assert given.words == name


@pytest.mark.parametrize("name", PARSERS)
def test_a_wrong_call_has_one_status_and_one_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"{name} --no-such-option") == 2
    assert capsys.readouterr() == ("", f"Error: Unrecognized option: --no-such-option (see {name} --help)\n")
    if PARSERS[name].below():
        assert call(name) == call(f"{name} no-such-command") == 2
        missing, unknown = capsys.readouterr().err.splitlines()
        assert missing == f"Error: Missing subcommand. (see {name} --help)"
        assert unknown == f"Error: Unknown subcommand: no-such-command (see {name} --help)"
    elif required(PARSERS[name]):
        assert call(name) == 2
        assert capsys.readouterr().err.startswith("Error: Missing required option")


@pytest.mark.parametrize("name", COMMANDS)
def test_long_options_may_be_cut_short(name: str) -> None:
    """The shortest beginning that no other option shares, after one dash or two."""
    parser = COMMANDS[name]
    long = [text[2:] for action in parser.options() for text in action.option_strings if text.startswith("--")]
    short = [text for action in parser.options() for text in action.option_strings if not text.startswith("--")]
    for action in parser.options():
        text = action.option_strings[-1][2:]
        cut = next(
            text[:end]
            for end in range(1, len(text) + 1)
            if text[:end] == text or not any(other.startswith(text[:end]) for other in long if other != text)
        )
        for spelled in (f"--{cut}", f"-{cut}"):
            if spelled not in short:
                assert parser._named(spelled) is action


@pytest.mark.parametrize("name", COMMANDS)
def test_every_answer_can_be_had_as_json(name: str) -> None:
    takes = any(action.option_strings[-1] == "--json" and action.nargs == 0 for action in COMMANDS[name].options())
    assert takes == (name not in NO_ANSWER)


@pytest.mark.parametrize(
    "words",
    [
        "waltz zookeeper list -c absent.yml",
        "waltz zookeeper create -n x -p 1 -c absent.yml --json",
        "waltz storage list -c absent.yml",
        "waltz server run absent.yml",
        "waltz disk verify-segment absent.seg",
        "waltz certificates list absent",
        "waltz spark scan --directory absent",
    ],
)
def test_a_refusal_has_one_status_and_one_form(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(words) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("Error: ")


@pytest.mark.parametrize("words", ["waltz server list -s h", "waltz spark verify", "waltz demo run --seconds -1"])
def test_a_value_that_is_none_is_a_wrong_call(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Seen by the command and not by its parser."""
    assert call(words) == 2
    assert capsys.readouterr().err.startswith("Error: ")


def test_waltz_knows_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("waltz --version") == 0
    assert capsys.readouterr().out.startswith("waltz ")


def test_tools_do_not_load_what_runs_a_node() -> None:
    code = (
        "import sys, waltz_trio.cli.server, waltz_trio.cli.storage\n"
        "print(*(name for name in sys.modules if name in ('waltz_trio.node.server', 'waltz_trio.node.storage_node')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stdout + done.stderr


def test_help_of_top_says_how_much_json_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each look, for ever, where most commands print one object."""
    assert call("waltz top --help") == 0
    assert "on a line for each look" in " ".join(capsys.readouterr().out.split())
