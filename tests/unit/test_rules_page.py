"""Where docs/architecture.md and the pages of formats say that a rule lives, it lives: files, names, tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from waltz_core.store.arrivals import Case

ROOT = Path(__file__).parents[2]
RULES_MIN = 40
PAGES = ("architecture", "classic-protocol", "formats", "znodes", "recovery", "locks")
ROW = re.compile(r"^\| (?P<rule>[^|]+) \| (?P<places>`[^|]+`) \| (?P<tests>`tests/[^|]+`) \|$", re.MULTILINE)
PLACE = re.compile(r"`(?P<file>[\w/]+\.py)(?:: (?P<names>[\w., ]+))?`")
WANTED = ("feed window", "client retry", "mark of a view", "catches up", "segments are deleted", "wire formats")


@cache
def names_in(file: str) -> frozenset[str]:
    """What a file defines: classes, functions, methods as `Class.method`, constants."""
    found: set[str] = set()

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef(name=name, body=inner):
                    found.add(name)
                    look(inner, f"{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(prefix + name)
                case ast.Assign(targets=targets):
                    found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(prefix + name)

    look(ast.parse((ROOT / file).read_text(encoding="utf-8")).body, "")
    return frozenset(found)


def path_of(file: str) -> str:
    """Paths of the core stand without its name."""
    return file if file.startswith(("waltz_", "tests/")) else f"waltz_core/{file}"


def rows(page: str) -> list[tuple[str, str, str]]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return [(row["rule"], row["places"], row["tests"]) for row in ROW.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
def test_every_place_and_every_test_that_a_page_names_exists(page: str) -> None:
    listed = rows(page)
    assert listed
    for rule, places, tests in listed:
        named = list(PLACE.finditer(places))
        assert len(named) == places.count("`") // 2, f"{rule}: {places}"
        for place in named:
            file = path_of(place["file"])
            assert (ROOT / file).exists(), f"{rule}: {file}"
            wanted = {name.strip() for name in (place["names"] or "").split(",")} - {""}
            assert not wanted - names_in(file), f"{rule}: {file} has no {sorted(wanted - names_in(file))}"
        for test in re.findall(r"`([^`]+)`", tests):
            assert (ROOT / test).exists(), f"{rule}: {test}"


def test_many_rules_have_their_place() -> None:
    listed = rows("architecture")
    assert len(listed) >= RULES_MIN
    text = " ".join(rule for rule, _, _ in listed)
    assert [wanted for wanted in WANTED if wanted not in text] == []


def test_the_page_of_recovery_has_every_case_of_an_arrival() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| ([A-Z_]{3,}) \|", text, re.MULTILINE) == [case.name for case in Case]


def test_comments_cite_no_page_that_is_not_here() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    pages = {path.name for path in ROOT.glob("*.md")} | {path.name for top in folders for path in top.rglob("*.md")}
    wrong = [
        f"{path.relative_to(ROOT)}: {page}"
        for package in ("waltz_core", "waltz_trio", "waltz_sync", "waltz_asyncio", "waltz_testing", "waltz_spark")
        for path in (ROOT / package).rglob("*.py")
        for page in re.findall(r"(?<![\w{}/*])([\w-]+\.md)\b", path.read_text(encoding="utf-8"))
        if not any(name.endswith(page) for name in pages)  # a name may be broken over two lines
    ]
    assert wrong == []
