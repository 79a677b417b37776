"""Imports point downwards: the core does no I/O, and nothing below a front for applications knows of it.

A clean interpreter that imports all of the core loads nothing which could do input or output.
"""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from tests.sources import ROOT, imports

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


def test_a_storage_node_loads_nothing_that_only_servers_and_tools_need() -> None:
    """Most of a process's start are its imports."""
    names = (
        "waltz_core.server.",
        "waltz_core.store.",
        "waltz_core.client.",
        "waltz_trio.console.",
        "cryptography.",
        "rich.",
    )
    code = (
        f"import sys, waltz_trio.node.storage_node\nprint(*[name for name in sys.modules if name.startswith({names})])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stdout + done.stderr


def imported_by(package: str) -> set[str]:
    """Top-level names that any module of a package imports."""
    return {module.partition(".")[0] for _, module, _ in imports(package)}


def test_the_front_for_threads_is_above_the_drivers_and_beside_the_pipeline() -> None:
    for package in ("waltz_core", "waltz_trio", "waltz_spark"):
        assert "waltz_sync" not in imported_by(package), package
    assert not imported_by("waltz_sync") & {"waltz_spark", "asyncio", "anyio"}


LEVELS = {
    "waltz_core": (
        "base",
        "wire zookeeper",
        "locks access cluster store",
        "client server storage operations",
        "gateway proxy",
    ),
    "waltz_trio": (
        "base",
        "net storage",
        "config",
        "zk",
        "ports client",
        "console gateway",
        "node",
        "cli",
        "demo",
    ),
    "waltz_spark": ("base", "records", "read", "write archive", "spark", "audit", "cli", "seal"),
}
"""The parts of each package, from the bottom; a part imports parts of its own level or below, and no circle."""

ARROWS = {"waltz_core": 36, "waltz_trio": 36, "waltz_spark": 28}
"""Imports between parts, each pair counted once, at most: a new one is a decision, not an accident."""


def arrows(package: str) -> dict[str, set[str]]:
    """Which part of a package imports which others."""
    parts = {path.relative_to(ROOT / package).parts[0] for path in (ROOT / package).glob("*/**/*.py")}
    graph: dict[str, set[str]] = {part: set() for part in parts}
    for path, module, name in imports(package):
        target = f"{module}.{name}"
        if target.startswith(f"{package}.") and path.parent != ROOT / package:
            graph[path.relative_to(ROOT / package).parts[0]].add(target.split(".")[1])
    return {part: (targets & parts) - {part} for part, targets in graph.items()}


@pytest.mark.parametrize("package", LEVELS)
def test_the_parts_of_a_package_import_downwards_and_in_no_circle(package: str) -> None:
    level = {part: height for height, parts in enumerate(LEVELS[package]) for part in parts.split()}
    graph = arrows(package)
    assert set(graph) == set(level), "a part that this test does not know"
    for part, targets in graph.items():
        assert not [target for target in targets if level[target] > level[part]], part
    assert sum(map(len, graph.values())) <= ARROWS[package], sorted((a, b) for a in graph for b in graph[a])
    left = dict(graph)
    while left:
        free = [part for part, targets in left.items() if not targets & set(left)]
        assert free, f"a circle among {sorted(left)}"
        for part in free:
            del left[part]


PACKAGES = (*LEVELS, "waltz_sync", "waltz_asyncio", "waltz_dcb", "waltz_testing")


def module_imports(package: str) -> dict[str, set[str]]:
    """Which module of a package imports which others, those that only a type checker sees among them."""
    modules = {
        path: ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    graph: dict[str, set[str]] = {module: set() for module in modules.values()}
    for path, module, name in imports(package):
        if path in modules:
            graph[modules[path]] |= {module, f"{module}.{name}"}
    return {module: targets & set(graph) - {module} for module, targets in graph.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_modules_of_a_package_import_in_no_circle(package: str) -> None:
    left = module_imports(package)
    assert len(left) > 1
    while left:
        free = [module for module, targets in left.items() if not targets & set(left)]
        assert free, f"a circle among {sorted(left)}"
        for module in free:
            del left[module]


@pytest.mark.parametrize("package", LEVELS)
def test_a_package_has_no_modules_beside_its_parts(package: str) -> None:
    assert [path.name for path in (ROOT / package).glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("package", ["waltz_trio", "waltz_spark", "waltz_testing"])
def test_every_name_of_a_front_is_there_when_it_is_asked_for(package: str) -> None:
    front = importlib.import_module(package)
    assert [name for name in front.__all__ if getattr(front, name, None) is None] == []
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'nothing'"):
        front.nothing  # noqa: B018 - the name is looked for
