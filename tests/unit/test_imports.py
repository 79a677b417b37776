"""Imports point downwards: the core does no I/O, and nothing below a front for applications knows of it.

A clean interpreter that imports all of the core loads nothing which could do input or output.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_IMPORT_ALL = """
import sys
import attrs  # itself loads threading
before = set(sys.modules)
import importlib, pkgutil, waltz_core
names = [found.name for found in pkgutil.walk_packages(waltz_core.__path__, "waltz_core.")]
for name in names:
    importlib.import_module(name)
assert len(names) > 20, names
banned = {"trio", "socket", "ssl", "select", "asyncio", "kazoo", "threading", "logging", "subprocess"}
print(*sorted(banned & (set(sys.modules) - before)))
"""


def test_no_module_of_the_core_loads_anything_that_does_input_or_output() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT_ALL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stdout + done.stderr


def imported_by(package: str) -> set[str]:
    """Top-level names that any module of a package imports."""
    found: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return found


def test_the_front_for_threads_is_above_the_drivers_and_beside_the_pipeline() -> None:
    for package in ("waltz_core", "waltz_trio", "waltz_spark"):
        assert "waltz_sync" not in imported_by(package), package
    assert not imported_by("waltz_sync") & {"waltz_spark", "asyncio", "anyio"}


LEVELS = ("base", "wire zookeeper", "locks access cluster store", "client server storage operations")
"""The parts of the core, from the bottom; a part imports parts of its own level or below, and no circle."""


def arrows() -> dict[str, set[str]]:
    """Which part of the core imports which others."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "waltz_core").glob("*/**/*.py"):
        part = path.relative_to(ROOT / "waltz_core").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("waltz_core."):
                found.setdefault(part, set()).add((node.module or "").split(".")[1])
    return {part: targets - {part} for part, targets in found.items()}


def test_the_parts_of_the_core_import_downwards_and_in_no_circle() -> None:
    level = {part: height for height, parts in enumerate(LEVELS) for part in parts.split()}
    graph = arrows()
    assert set(graph) == set(level), "a part that this test does not know"
    for part, targets in graph.items():
        assert not [one for one in targets if level[one] > level[part]], part
    left = dict(graph)
    while left:
        free = [part for part, targets in left.items() if not targets & set(left)]
        assert free, f"a circle among {sorted(left)}"
        for part in free:
            del left[part]
