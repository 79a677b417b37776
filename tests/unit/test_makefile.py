"""`make test` and `make test-long` run every test there is: a folder that nobody names is never run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = sorted({path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").rglob("test_*.py")})


def recipe(target: str) -> set[str]:
    """The folders of tests that a target names."""
    text = (ROOT / "Makefile").read_text()
    match = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert match is not None
    return set(re.findall(r"\btests/(\w+)", match[1]))


def test_every_folder_of_tests_is_run_by_make_test() -> None:
    assert [name for name in FOLDERS if name not in recipe("test")] == []


def test_every_folder_with_slow_tests_is_run_by_make_test_long() -> None:
    slow = {name for name in FOLDERS for path in (ROOT / "tests" / name).rglob("test_*.py") if is_slow(path)}
    assert slow
    assert slow - recipe("test-long") == set()


def is_slow(path: Path) -> bool:
    return "mark.slow" in path.read_text()
