"""The code blocks of a page, and what the page says about how each of them is checked.

A block is checked by its language. An HTML comment right before it, which readers do not see, says what the language
leaves open; several may follow each other:

    <!-- block file NAME -->          the block is this file; a console block of the page must use it
    <!-- block in PROGRAM -->         a fragment: it stands where PROGRAM has BLOCK, at that indentation
    <!-- block with A=x B=y -->       words that a reader replaces by his own, and what they are replaced by here
    <!-- block read-by READER -->     what reads it: see READERS in test_pages.py
    <!-- block checked-by TEST -->    a test that reads this page and checks the block
    <!-- block not-run REASON -->     it is for the eye only, and why
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
_COMMENT = re.compile(r"<!-- block (?P<key>[a-z-]+)[ \n](?P<value>.*?)\s*-->", re.DOTALL)
_BEFORE = re.compile(r"(?:<!--(?:(?!-->).)*-->\s*)+\Z", re.DOTALL)
_FENCE = re.compile(
    r"^(?P<fence>```+|~~~+)(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE
)
KEYS = frozenset({"file", "in", "with", "read-by", "checked-by", "not-run"})


@attrs.frozen
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def where(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def words(self) -> dict[str, str]:
        """What the reader replaces, and by what."""
        return dict(pair.split("=", 1) for pair in self.marks.get("with", "").split())


def pages() -> list[str]:
    """README and every page below docs, by their paths."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    """The fenced blocks of a page, in its order.

    Raises:
        ValueError: a mark is misspelt, stands twice or before no block.
    """
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    found, used = [], 0
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        before = _BEFORE.search(text, 0, match.start())
        marks: dict[str, str] = {}
        for comment in _COMMENT.finditer(before[0] if before else ""):
            if comment["key"] not in KEYS or comment["key"] in marks:
                raise ValueError(f"{page}:{line}: the mark {comment['key']!r} is unknown or stands there twice")
            marks[comment["key"]] = comment["value"]
            used += 1
        found.append(Block(page, line, match["language"].strip(), match["text"], marks))
    outside = _FENCE.sub("", text)
    if outside.count("<!-- block") != used:
        raise ValueError(f"{page}: a mark stands before no block, or is not closed")
    if re.search(r"^\s*(```|~~~)", outside, re.MULTILINE):
        raise ValueError(f"{page}: a block is indented or not closed, so that nothing would check it")
    return found


def program_of(block: Block) -> str:
    """The program that a Python block is, with the frame that its page gives it."""
    frame = block.marks.get("in")
    if frame is None:
        return block.text
    (line,) = [line for line in frame.splitlines() if line.strip() == "BLOCK"]
    indent = line[: line.index("BLOCK")]
    body = "".join(indent + part if part.strip() else part for part in block.text.splitlines(keepends=True))
    return frame.replace(line, body.rstrip("\n")) + "\n"


@attrs.frozen
class Command:
    """One command of a console block and what it prints."""

    text: str
    output: str


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block: lines that begin with `$ `, and what follows each."""
    found: list[Command] = []
    continued = False
    for line in block.text.splitlines(keepends=True):
        if continued:
            last = found.pop()
            found.append(Command(last.text + line, ""))
        elif line.startswith("$ "):
            found.append(Command(line[2:], ""))
        elif not found:
            raise ValueError(f"{block.where}: output before the first command")
        else:
            found.append(attrs.evolve(found[-1], output=found.pop().output + line))
        continued = line.endswith("\\\n") and not found[-1].output
    if not found:
        raise ValueError(f"{block.where}: a console block without a command; commands begin with `$ `")
    return found


def matches(expected: str, output: str) -> bool:
    """Whether a page's output is what was printed: `…` stands for a part of a line, alone for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else r"[^\n]*".join(map(re.escape, line.rstrip("\n").split("…"))) + r"\n"
        for line in expected.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, output if output.endswith("\n") or not output else output + "\n") is not None
