"""What tests read in the sources of the packages: each file is parsed once, and expressions are not walked through."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, at any depth, and the handlers and cases between them: a tenth of the nodes."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for blocks in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting.extend(getattr(node, blocks, ()))


@functools.cache
def imports(package: str) -> tuple[tuple[Path, str, str], ...]:
    """Each import of a package, at any depth: the file, the module, and the name that is taken from it or nothing."""
    return tuple(
        (path, module, name) for path in sorted((ROOT / package).rglob("*.py")) for module, name in _imports(path)
    )


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
