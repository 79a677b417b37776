"""`python -m tests.unused`: definitions that no code of the packages uses; exit status 1 if there are any.

Three searches. Vulture looks for names that are defined and occur nowhere else, attributes and methods among them. The
second one resolves imports, so it also finds a module's function whose name something else happens to share; the third
one follows types (`tests.members.uses`), and finds such methods. What only tests use counts as unused: it belongs to
the tests. `ALIVE` lists what somebody else calls, with the reason.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

from vulture import Vulture

from tests.members.uses import unused_members

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "waltz_core",
    "waltz_trio",
    "waltz_sync",
    "waltz_asyncio",
    "waltz_dcb",
    "waltz_spark",
    "pyspark_waltz",
    "pyspark_waltz_journal",
)

# What applications import from here is theirs to call: the pages of docs/ describe it.
FRONTS = ("waltz_trio", "waltz_sync", "waltz_asyncio", "waltz_dcb", "waltz_testing")
# These, too.
_API = {
    "_Counter.subtract",  # as of the Counter that it stands for
    "ApplicationStatus.at_work",
    "ApplicationStatus.view_down",
    "Bootstrap.cut",
    "Delivery.markers",
    "EmbeddedZnodes.expire",  # faults that tests of applications inject into an embedded cluster
    "EmbeddedZnodes.interrupt",
    "EmbeddedZnodes.resume",
    "SqlView.seed",
    "arrange",
    "balances",
    "bootstrap",
    "stop_server",
    "stop_storage",
}
# Spark, argparse, Python and our own main program call these by their names.
_CALLBACKS = {
    "DefaultSource",
    "_from_iterable",
    "_print_message",
    "getDefaultReadLimit",
    "latestOffset",
    "make_check_parser",
    "make_prove_parser",
    "make_seal_parser",
    "prepareForTriggerAvailableNow",
    "reportLatestOffset",
    "streamReader",
    "streamWriter",
}
# We assign these, libraries read them.
_ASSIGNED = {"_running", "callback_queue", "maxlist", "maxother", "maxstring", "num_tickets"}
_ASSIGNED |= {"_affected_rows", "_executed", "_next_seq_id", "_pipeline", "lastrowid"}  # drivers of databases
_ASSIGNED |= {"cursor_factory", "cursorclass", "isolation_level", "row_factory"}  # these, too
# Formats define these: fields that a table of a codec writes by name, and numbers that peers may send.
_FORMATS = {
    "UNREADABLE",
    "UNSYNCED",
    "class_name",
    "creation_ms",
    "decode_replica_id",  # structures inside partition metadata, of which vectors are recorded by themselves
    "decode_replica_state",
    "durable_mark",
    "record_header",
}
# State that tests read where nothing else shows it, and what they need to leave no connection behind.
_OBSERVED = {
    "ClientNode.owed",  # an invariant of the simulator looks at each read by itself
    "ClientNode.link_kind",  # no effect says what a connection is for
    "Journal.waiting",
    "LockTable.marks",  # vectors hold the original's whole table
    "Reads.waiting",
    "Recovery.phase",  # vectors hold the original's
    "ServerNode.waiting",
    "Submitter.waiting",
    "drop_connections",
    "peer_hello",
    "stale",
}
_LISTED = _API | _CALLBACKS | _ASSIGNED | _FORMATS | _OBSERVED
ALIVE = {name.rpartition(".")[2] for name in _LISTED}


def names_without_use() -> Iterator[str]:
    """By name alone, whatever it belongs to."""
    search = Vulture(ignore_names=["__*__", *sorted(ALIVE)])
    search.scavenge([str(ROOT / package) for package in PACKAGES])
    for item in search.get_unused_code(min_confidence=60):
        path = Path(item.filename).relative_to(ROOT)
        yield f"{path}:{item.first_lineno}: unused {item.typ} '{item.name}'"


def module_names_without_use() -> Iterator[str]:
    """Top-level definitions that their own module does not use and no other one imports."""
    trees = {path: ast.parse(path.read_text()) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    imported: set[tuple[str, str]] = set()
    attributes: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                imported |= {(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Attribute):
                attributes.add(node.attr)  # perhaps of a module
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                attributes.update(node.value.replace(":", ".").split("."))  # imported when a command runs
    for path, tree in trees.items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for statement in tree.body:
            for name in _defined(statement):
                if (
                    not name.startswith("__")
                    and name not in ALIVE | attributes
                    and (module, name) not in imported
                    and not _read(name, tree, statement)
                ):
                    yield f"{path.relative_to(ROOT)}:{statement.lineno}: '{name}' is used by no module"


def members_without_use() -> Iterator[str]:
    """Methods and properties that no code uses, whatever else has their names; users and `waltz_testing` may."""
    public = {name for front in FRONTS for name in _exported(ROOT / front / "__init__.py")}
    for path, line, name in unused_members(ROOT, (*PACKAGES, "waltz_testing")):
        if path.parts[0] in PACKAGES and name not in _LISTED and name.partition(".")[0] not in public:
            yield f"{path}:{line}: '{name}' is used by no code"


def _exported(front: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(front.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _defined(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _read(name: str, tree: ast.Module, definition: ast.stmt) -> bool:
    others = (statement for statement in tree.body if statement is not definition)
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for statement in others
        for node in ast.walk(statement)
    )


def unused() -> list[str]:
    """A line for each definition that may go."""
    return sorted({*names_without_use(), *module_names_without_use(), *members_without_use()})


def main() -> int:
    """Print them."""
    gc.disable()  # millions of nodes of syntax trees, and no cycle that is worth looking for
    lines = unused()
    for line in lines:
        print(line)
    if lines:
        print(f"{len(lines)} unused: remove each, or name it with a reason in tests/unused.py", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
