"""Every "cannot" of the threat model names a test, and the tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[str]:
    """Rows of the tables, without their heads."""
    lines = PAGE.splitlines()
    return [
        line
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("|") and not line.startswith("|---") and not following.startswith("|---")
    ]


def test_every_row_names_a_test() -> None:
    assert len(rows()) > 20
    assert [row for row in rows() if not _TEST.search(row)] == []


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for path, name in _TEST.findall(PAGE):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        if name not in functions:
            missing.append(f"{path}::{name}")
    assert missing == []
