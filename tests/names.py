"""`python -m tests.names`: how often `one` and `found` serve as names beyond three lines, per part of a package.

Neither says what it stands for, which is fine as long as the reader still sees where the value came from. Beyond three
lines, and as a field or the name of a function, a thing has its own name. `--list` prints every such place; other
arguments limit the search to folders or files.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[1]
NAMES = frozenset({"one", "found"})
LINES_MAX = 3

_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def vague_names(source: str) -> list[tuple[int, str]]:
    """Line and name of each definition of `one` or `found` that lives beyond three lines."""
    return sorted(_in_scope(ast.parse(source))) if _has_name(compile(source, "", "exec")) else []


def _has_name(code: CodeType) -> bool:
    """Whether any of them is a name at all, which the compiler knows much sooner than a walk through the source."""
    used = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}
    # A field that is only declared is a text in its class.
    texts = {text for text in code.co_consts if isinstance(text, str)}
    return bool(NAMES & (used | texts)) or any(_has_name(part) for part in code.co_consts if isinstance(part, CodeType))


def _in_scope(scope: ast.AST) -> Iterator[tuple[int, str]]:
    """What is wrong in `scope` and in the scopes inside it."""
    bound: dict[str, int] = {}
    lines: dict[str, list[int]] = {}
    for node in _nodes_of(scope):
        yield from _declared(node)
        name, line, binds = _occurrence(node)
        if name in NAMES:
            lines.setdefault(name, []).append(line)
            if binds:
                bound.setdefault(name, line)
        if isinstance(node, _SCOPES):
            yield from _in_scope(node)
            for name, line in _free(node).items():
                lines.setdefault(name, []).append(line)
    for name, line in bound.items():
        if isinstance(scope, ast.ClassDef) or max(lines[name]) - min(lines[name]) >= LINES_MAX:
            yield line, name


def _declared(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Functions and attributes: they are used far from where they are defined."""
    match node:
        case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line) if name in NAMES:
            yield line, name
        case ast.Attribute(attr=name, ctx=ast.Store(), lineno=line) if name in NAMES:
            yield line, name
        case _:
            pass


def _occurrence(node: ast.AST) -> tuple[str, int, bool]:
    """Name, line, and whether the name is bound there; an empty name if it is something else."""
    match node:
        case ast.Name(id=name, ctx=context, lineno=line):
            return name, line, isinstance(context, ast.Store)
        case ast.arg(arg=name, lineno=line):
            return name, line, True
        case ast.MatchAs(name=str(name), lineno=line) | ast.MatchStar(name=str(name), lineno=line):
            return name, line, True
        case _:
            return "", 0, False


def _nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of `scope` down to the scopes inside it, those themselves included."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting.extend(ast.iter_child_nodes(node))


def _free(scope: ast.AST) -> dict[str, int]:
    """The last line of each name that `scope` uses from outside."""
    bound: set[str] = set()
    last: dict[str, int] = {}
    for node in _nodes_of(scope):
        name, line, binds = _occurrence(node)
        if name in NAMES:
            last[name] = max(line, last.get(name, 0))
            if binds:
                bound.add(name)
        if isinstance(node, _SCOPES):
            for name, line in _free(node).items():
                last[name] = max(line, last.get(name, 0))
    return {name: line for name, line in last.items() if name not in bound}


def places(folders: tuple[str, ...]) -> Iterator[tuple[Path, int, str]]:
    """Every vague name below `folders`, which may be files too."""
    for folder in folders:
        root = ROOT / folder
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            for line, name in vague_names(path.read_text()):
                yield path.relative_to(ROOT), line, name


# None of them has such a name: `tests/unit/test_names.py` keeps them so.
PACKAGES = ("waltz_core", "waltz_trio", "waltz_spark", "waltz_sync", "waltz_asyncio", "waltz_dcb", "waltz_testing")


def main() -> None:
    """Print the figures, or the places."""
    arguments = sys.argv[1:]
    listed = "--list" in arguments
    folders = tuple(argument for argument in arguments if argument != "--list") or PACKAGES
    counts: Counter[str] = Counter()
    for path, line, name in places(folders):
        if listed:
            print(f"{path}:{line}: {name}")
        counts["/".join(path.parts[:2])] += 1
    for part, count in sorted(counts.items()):
        print(f"{count:5}  {part}")
    print(f"{counts.total():5}  in all")


if __name__ == "__main__":
    main()
