"""The pages of defects and rules: none is missing, and every test that they name exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "defects.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if re.match(r"\| \w+-", line)]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]

COUNTS = {
    "server-D": 30,
    "zk-D": 14,
    "client-C": 20,
    "tools-T": 18,
    "storage-10.": 12,
    "disk-8.": 14,
    "protocol-16.": 8,
    "recovery-14.": 8,
}
"""How many there are of each kind, counted from 1."""
SECTIONS = ("server-5", "storage-1")  # defects told in a section of their own


def test_no_defect_is_missing() -> None:
    wanted = [f"{kind}{number}" for kind, count in COUNTS.items() for number in range(1, count + 1)]
    found = [row[0] for row in ROWS]
    assert len(set(found)) == len(found)
    assert set(wanted) <= set(found), sorted(set(wanted) - set(found))
    assert all(one in wanted or one.startswith("history-") or one in SECTIONS for one in found)


def test_every_row_says_what_goes_wrong_what_ours_does_and_what_shows_it() -> None:
    for row in ROWS:
        assert len(row) == 4, row[0]
        assert all(row), row[0]
        if row[3] == "—":
            assert row[2].startswith(("does not apply", "not made yet")), row[0]


def test_every_test_that_the_page_names_exists() -> None:
    named = sorted(set(chain.from_iterable(re.findall(r"`([^`]+)`", row[3]) for row in ROWS)))
    assert len(named) > 100
    assert [one for one in named if one.split("::")[1] not in _functions(one.split("::")[0])] == []


@cache
def _functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


COMPATIBILITY = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


def test_every_rule_of_compatibility_has_a_test_and_is_broken_by_the_twin() -> None:
    section = COMPATIBILITY.partition("## 3. Deliberate differences")[2].partition("## 4. ")[0]
    rows, _, tests = section.partition("### Each rule and its test")
    first_cells = re.findall(r"^\| ([^|]+) \|", rows, flags=re.MULTILINE)
    rules = sorted(name for cell in first_cells for name in re.findall(r"`([a-z_]+)`", cell))
    shown = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|$", tests, flags=re.MULTILINE))
    assert rules == sorted(shown)
    assert [one for one in shown.values() if one.split("::")[1] not in _functions(one.split("::")[0])] == []
    twin = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "twin_0132").glob("*.py"))
    assert [rule for rule in rules if f"`{rule}`" not in twin] == []
