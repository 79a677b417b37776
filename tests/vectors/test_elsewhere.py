"""Vectors with other values than ours: another root, other names; and files that hold nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vectors.__main__ import main, run_unit, units_of

FOLDER = Path(__file__).parent


def failures(path: Path) -> list[str]:
    return [f"{unit.name}: {failure}" for unit in units_of(path) if (failure := run_unit(unit)[0]) is not None]


def _moved(line: str, root: str, above: list[str]) -> str:
    """A tree under another root, with the znodes above it."""
    tree: dict[str, Any] = json.loads(line)
    if tree["type"] == "legend":
        return line
    old = tree["root"]
    tree = json.loads(json.dumps(tree).replace(f'"{old}/', f'"{root}/').replace(f'"{old}"', f'"{root}"'))
    # A server's number is that of its place among all that were registered, not of the root.
    first = min(node["czxid"] for node in tree["znodes"])
    model = next(node for node in tree["znodes"] if node["path"] == f"{root}/ids")
    parents = [
        {
            **model,
            "path": path,
            "num_children": 1,
            "cversion": 1,
            "version": 0,
            "czxid": first - len(above) + at,
            "mzxid": first - len(above) + at,
            "pzxid": first - len(above) + at + 1,
        }
        for at, path in enumerate(above)
    ]
    tree["znodes"] = [*parents, *tree["znodes"]]
    return json.dumps(tree)


ROOTS = pytest.mark.parametrize(
    ("root", "above"),
    [("/elsewhere", []), ("/company/team/waltz", ["/company", "/company/team"]), ("/waltz/waltz", ["/waltz"])],
)


@ROOTS
def test_trees_under_another_root(tmp_path: Path, root: str, above: list[str]) -> None:
    ours = (FOLDER / "zk_trees.jsonl").read_text().splitlines()
    path = tmp_path / "zk_trees.jsonl"
    path.write_text("\n".join(_moved(line, root, above) for line in ours) + "\n")
    assert failures(path) == []


@ROOTS
def test_a_trace_of_writes_under_another_root(tmp_path: Path, root: str, above: list[str]) -> None:
    """What is above the root was there before the trace begins."""
    path = tmp_path / "zk_write_trace.jsonl"
    text = (FOLDER / path.name).read_text()
    path.write_text(text.replace('"/waltz/', f'"{root}/').replace('"/waltz"', f'"{root}"'))
    assert above == [] or above[-1] + "/" in root
    assert failures(path) == []


@pytest.mark.parametrize("name", ["zk_trees.jsonl", "storage.jsonl", "voting.jsonl", "session_capture.jsonl"])
def test_a_file_without_a_unit_fails(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lock_hash.jsonl").write_bytes((FOLDER / "lock_hash.jsonl").read_bytes())
    (tmp_path / name).touch()
    assert main([str(tmp_path)]) == 1
    assert f"FAILED {name}: there is nothing in it to compare" in capsys.readouterr().out


def test_a_tree_without_its_root_fails(tmp_path: Path) -> None:
    line = next(line for line in (FOLDER / "zk_trees.jsonl").read_text().splitlines() if '"znode_tree"' in line)
    path = tmp_path / "zk_trees.jsonl"
    path.write_text(json.dumps({**json.loads(line), "znodes": []}) + "\n")
    (failure,) = failures(path)
    assert "there is nothing to compare" in failure


def test_a_capture_in_which_nobody_speaks_fails(tmp_path: Path) -> None:
    line = (FOLDER / "session_capture.jsonl").read_text().splitlines()[0]
    path = tmp_path / "session_capture.jsonl"
    path.write_text(line + "\n")
    (failure,) = failures(path)
    assert "there is nothing to compare" in failure
