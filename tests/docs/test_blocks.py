"""The harness itself: what it takes for a block, and that nothing slips through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Command, blocks_of, commands_of, matches, program_of
from tests.docs.test_pages import Reader


def block(text: str, language: str = "python", mark: str = "") -> str:
    return f"text\n\n{mark}```{language}\n{text}```\n"


def test_a_block_has_its_marks_and_its_line() -> None:
    (found,) = blocks_of("p.md", block("x = 1\n", mark="<!-- block with A=1 B=2 -->\n<!-- block file x.py -->\n"))
    assert (found.language, found.text, found.line) == ("python", "x = 1\n", 5)
    assert found.marks == {"with": "A=1 B=2", "file": "x.py"}
    assert found.words == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    "text",
    [
        "<!-- block file x.py -->\n\nno block\n",
        block("x\n", mark="<!-- block flie x.py -->\n"),
        block("x\n", mark="<!-- block file x -->\n<!-- block file y -->\n"),
        "* a list\n  ```\n  x\n  ```\n",
        "```python\nx = 1\n",
    ],
)
def test_what_would_slip_through_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"^p\.md"):
        blocks_of("p.md", text)


def test_a_fragment_stands_in_its_frame() -> None:
    (found,) = blocks_of("p.md", block("a()\n\nb()\n", mark="<!-- block in\ndef f():\n    BLOCK\nf()\n-->\n"))
    assert program_of(found) == "def f():\n    a()\n\n    b()\nf()\n"


def test_commands_and_their_output() -> None:
    (found,) = blocks_of("p.md", block("$ one \\\n  more\nout\nput\n$ two\n", "console"))
    assert commands_of(found) == [Command("one \\\n  more\n", "out\nput\n"), Command("two\n", "")]


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a", True),
        ("a\n", "a\nb\n", False),
        ("a…c\n", "abbbc\n", True),
        ("a…c\n", "ab\nbc\n", False),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("", "a\n", False),
    ],
)
def test_output_is_compared(expected: str, output: str, same: bool) -> None:
    assert matches(expected, output) is same


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (block("{}\n", "json"), "nothing checks a block of 'json'"),
        (block("x\n", ""), "nothing checks a block of 'no language'"),
        (block("x\n", "text", "<!-- block not-run - -->\n"), "why is it not run"),
        (block("$ echo one\ntwo\n", "console"), r"expected:\s+two\s+found:\s+one"),
        (block("$ false\n", "console"), "status 1"),
        (block("false\ntrue\n", "sh"), "status 1"),
        (block("cluster.roots: /x\n", "yaml", "<!-- block read-by configuration -->\n"), "p.md:4"),
        (block("x\n", "text", "<!-- block checked-by tests/docs/blocks.py -->\n"), "p.md:4"),
    ],
)
def test_a_block_that_does_not_hold_fails(tmp_path: Path, text: str, reason: str) -> None:
    reader = Reader(tmp_path)
    (found,) = blocks_of("p.md", text)
    try:
        with pytest.raises(AssertionError, match=reason):
            reader.does(found)
    finally:
        reader.leaves()
