"""How large a class, a file and a function may be. What reads better as a whole is named here, and why."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.sources import ROOT, statements
from tests.unused import PACKAGES

CLASS_LINES, FILE_LINES, FUNCTION_LINES = 400, 600, 60
LARGER: dict[str, str] = {}
"""`file: name` → why it is one piece."""


def sizes(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, lines and limit of a file's definitions, and of the file, which has no name."""
    yield "", text.count("\n"), FILE_LINES
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            limit = CLASS_LINES if isinstance(node, ast.ClassDef) else FUNCTION_LINES
            yield node.name, (node.end_lineno or 0) - node.lineno + 1, limit


def test_a_definition_is_measured_from_its_first_line_to_its_last() -> None:
    text = "class A:\n    def a(self):\n        return (\n            1\n        )\n\n\nB = 1\n"
    assert list(sizes(text)) == [("", 8, FILE_LINES), ("A", 5, CLASS_LINES), ("a", 4, FUNCTION_LINES)]


@pytest.mark.parametrize("package", [*PACKAGES, "waltz_testing"])
def test_classes_files_and_functions_are_of_a_size_that_people_can_read(package: str) -> None:
    large = {
        f"{path.relative_to(ROOT)}: {name}": f"{lines} lines, at most {limit}"
        for path in (ROOT / package).rglob("*.py")
        for name, lines, limit in sizes(path.read_text(encoding="utf-8"))
        if lines > limit
    }
    assert {place: size for place, size in large.items() if place not in LARGER} == {}
