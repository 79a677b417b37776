"""`python -m tests.vectors [DIR]`: run every vector file of a folder against this implementation."""

from __future__ import annotations

import collections
import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.vectors.reading import Unit

CHECKERS = {
    "client_server.jsonl": "client_server",
    "client_server_decode.jsonl": "client_server_decode",
    "record_struct.jsonl": "record_struct",
    "lock_hash.jsonl": "lock_hash",
    "locks.jsonl": "locks",
    "server_probes.jsonl": "server_probes",
    "client_probes.jsonl": "client_probes",
    "session_capture.jsonl": "session_capture",
    "storage.jsonl": "storage",
    "storage_malformed.jsonl": "storage_malformed",
    "storage_sessions.jsonl": "storage_sessions",
    "storage_dirs": "storage_dirs",
    "voting.jsonl": "voting",
    "zk_serializers.jsonl": "zk_serializers",
    "zk_assignment_policy.jsonl": "zk_assignment_policy",
    "zk_store_ops.jsonl": "zk_store_ops",
    "zk_trees.jsonl": "zk_trees",
    "zk_write_trace.jsonl": "zk_write_trace",
}
"""Vector file or folder → module `tests.vectors.check_<name>` with `units(path) -> Iterator[Unit]`."""


def units_of(path: Path) -> Iterator[Unit]:
    """The units of one vector file or folder."""
    module = importlib.import_module(f"tests.vectors.check_{CHECKERS[path.name]}")
    yield from module.units(path)


def vector_files(folder: Path) -> list[Path]:
    """What counts as a vector in `folder`: everything but Python files and hidden or cache entries."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix != ".py" and not path.name.startswith((".", "__")) and path.name != "README.md"
    ]


def run_unit(unit: Unit) -> tuple[str | None, frozenset[str]]:
    """Failure text (None when it passed) and the rules that made it run twice."""
    try:
        rules = unit.run()
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {error}", frozenset()
    unread = [name for fields in unit.fields for name in fields.unread()]
    if unread:
        return f"fields not checked: {', '.join(unread[:8])}", rules
    return None, rules


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else Path(__file__).parent
    passed = failed = 0
    rules: collections.Counter[str] = collections.Counter()
    for path in vector_files(folder):
        if path.name not in CHECKERS:
            print(f"FAILED {path.name}: no checker knows this file; known: {', '.join(sorted(CHECKERS))}")
            failed += 1
            continue
        before = passed, failed
        found = False
        for unit in units_of(path):
            found = True
            failure, touched = run_unit(unit)
            rules.update(touched)
            if failure is None:
                passed += 1
            else:
                failed += 1
                print(f"FAILED {unit.name}: {failure}")
        if not found:
            failed += 1
            print(f"FAILED {path.name}: there is nothing in it to compare")
        print(f"{path.name}: {passed - before[0]} passed, {failed - before[1]} failed")
    for name, count in sorted(rules.items()):
        print(f"rule {name}: {count} units checked with the twin and with ours")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
