"""The references for operators name what there is, all of it and nothing else: causes of the doctor, commands."""

from __future__ import annotations

import ast
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs
import pytest

from tests.docs.blocks import ROOT
from waltz_trio.cli import main as waltz
from waltz_trio.cli.help import FAILED_STATUS, USAGE_STATUS, Parser

DOCTOR, COMMANDS = "docs/operations/doctor.md", "docs/operations/commands.md"
ELSEWHERE = {  # modules whose causes have a table on the page of what they are about
    "waltz_core/operations/archives.py": "docs/operations/archive.md",
    "waltz_core/operations/regions.py": "docs/operations/proxy.md",
    "waltz_core/operations/doors.py": "docs/howto/gateway.md",
}
MARK = "⟳"  # of what may end by itself
CODE = re.compile(r"[a-z]+(?:-[a-z]+)*")


@attrs.frozen
class Cause:
    """One place that makes a finding."""

    code: str
    settles: bool  # it may end by itself: the doctor looks again


def causes_in(path: Path) -> Iterator[Cause]:
    """The causes of all findings that a module makes."""
    text = path.read_text(encoding="utf-8")
    if "Finding(" not in text:
        return
    tree = ast.parse(text)
    taken = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "waltz_core.operations.findings"
        for alias in node.names
    }
    if "Finding" not in taken:  # others have something else of this name
        return
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
            settles = any(keyword.arg == "settles" for keyword in call.keywords)
            for code in codes_of(call.args[0], tree):
                assert CODE.fullmatch(code), f"{path}: {code!r}"
                yield Cause(code, settles)


def codes_of(given: ast.expr, tree: ast.AST) -> list[str]:
    """What the first argument of a finding may be: a text, one of two, or a variable of a loop over texts.

    Raises:
        AssertionError: it is made in another way, which this test must learn.
    """
    match given:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=one, orelse=other):
            return codes_of(one, tree) + codes_of(other, tree)
        case ast.Name(id=name):
            found = [
                code
                for loop in ast.walk(tree)
                if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple) and isinstance(loop.iter, ast.Tuple)
                for at, variable in enumerate(loop.target.elts)
                if isinstance(variable, ast.Name) and variable.id == name
                for row in loop.iter.elts
                if isinstance(row, ast.Tuple)
                for code in codes_of(row.elts[at], tree)
            ]
            assert found, f"line {given.lineno}: where do the values of {name} come from?"
            return found
    raise AssertionError(f"line {given.lineno}: expected a text as the cause")


@cache
def causes() -> dict[str, list[Cause]]:
    """Of each module that makes findings."""
    modules = [path for top in ("waltz_core", "waltz_trio") for path in sorted((ROOT / top).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): list(causes_in(path)) for path in modules}
    return {module: made for module, made in found.items() if made}


def rows(page: str) -> list[list[str]]:
    """The cells of every row of every table whose first column holds codes."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def codes_on(page: str) -> list[str]:
    """Codes in the first columns of a page."""
    return [code for first, *_ in rows(page) for code in re.findall(r"`([^`]+)`", first)]


def test_the_page_of_the_doctor_has_every_cause_once_and_no_other() -> None:
    own = {cause.code for module, made in causes().items() if module not in ELSEWHERE for cause in made}
    listed = codes_on(DOCTOR)
    assert len(listed) == len(set(listed))
    assert set(listed) == own


@pytest.mark.parametrize("module", ELSEWHERE)
def test_causes_of_archives_proxies_and_gateways_are_on_the_pages_about_them(module: str) -> None:
    page = ELSEWHERE[module]
    named = set(re.findall(r"`([a-z-]+)`", (ROOT / page).read_text(encoding="utf-8")))
    assert {cause.code for cause in causes()[module]} - named == set()
    assert page.rpartition("/")[2] in (ROOT / DOCTOR).read_text(encoding="utf-8")


def test_the_page_of_the_doctor_marks_what_may_end_by_itself() -> None:
    own = [cause for module, made in causes().items() if module not in ELSEWHERE for cause in made]
    marked = {first.strip("`") for first, mark, *_ in rows(DOCTOR) if mark == MARK}
    assert marked == {cause.code for cause in own if cause.settles}


def test_tables_of_causes_on_other_pages_name_no_cause_that_there_is_not() -> None:
    every = {cause.code for made in causes().values() for cause in made}
    for page in ELSEWHERE.values():
        text = (ROOT / page).read_text(encoding="utf-8")
        tables = re.findall(r"^\| cause \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
        listed = {code for table in tables for code in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)}
        codes = {code for cell in listed for code in re.findall(r"`([^`]+)`", cell)}
        assert codes - every == set(), page


# ---- commands ------------------------------------------------------------------------------------

NO_VALUE, VALUE = "yes", "to a file"  # how the page has an option
OPTIONS = ("--json", "--yes", "--dry-run")  # in the order of the columns


def commands() -> dict[str, tuple[Parser, str]]:
    """The parser of every command and what it says of itself, by how it is called."""
    found: dict[str, tuple[Parser, str]] = {}
    for noun in waltz.NOUNS:
        parser = waltz.parser_of_noun(noun)
        verbs = parser.below()
        if not verbs:
            found[f"waltz {noun}"] = parser, parser.description or ""
        for verb, (below, meaning) in verbs.items():
            assert not below.below(), f"waltz {noun} {verb}: the table has no third word"
            found[f"waltz {noun} {verb}"] = below, f"{meaning} {below.description or ''}"
    return found


def table() -> dict[str, list[str]]:
    """The cells behind the command, by command."""
    found = {first.strip("`"): cells for first, *cells in rows(COMMANDS)}
    assert len(found) == len(rows(COMMANDS)), "a command stands there twice"
    return found


def taken(parser: Parser, option: str) -> str:
    """How a command takes an option, in the words of the page."""
    actions = [action for action in parser.options() if option in action.option_strings]
    return "" if not actions else NO_VALUE if actions[0].nargs == 0 else VALUE


def statuses(text: str) -> set[int]:
    """Of 3 and more: 0 and 1 all commands have."""
    return {int(number) for number in re.findall(r"\b\d+\b", text)} - {0, FAILED_STATUS}


def test_the_table_of_commands_has_every_command_and_no_other() -> None:
    listed, there = table(), commands()
    assert listed.keys() - there.keys() == set()
    assert there.keys() - listed.keys() == set()


@pytest.mark.parametrize("option", OPTIONS)
def test_the_table_says_which_commands_take_an_option(option: str) -> None:
    at = 1 + OPTIONS.index(option)
    listed = {command: cells[at] for command, cells in table().items()}
    assert listed == {command: taken(parser, option) for command, (parser, _) in commands().items()}


def test_the_table_names_the_statuses_of_which_the_help_speaks() -> None:
    listed = table()
    for command, (parser, text) in commands().items():
        said = re.search(r"[Ss]tatus\b.*", text, re.DOTALL)
        told = said[0] if said else ""
        failed = {int(parser.get_default("failed") or FAILED_STATUS)} - {FAILED_STATUS}
        assert statuses(listed[command][-1]) == statuses(told) | failed, command
        if re.search(r"\b1\b", told):
            assert re.search(r"\b1\b", listed[command][-1]), f"{command}: what does 1 mean?"


def test_the_page_names_the_statuses_that_all_commands_have() -> None:
    text = (ROOT / COMMANDS).read_text(encoding="utf-8")
    first = text[text.index("| exit status | meaning |") :].partition("\n\n")[0]
    named = {int(number) for cell in re.findall(r"^\| ([\d, ]+) \|", first, re.MULTILINE) for number in cell.split(",")}
    signals = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)}
    assert named == {0, FAILED_STATUS, USAGE_STATUS} | signals
