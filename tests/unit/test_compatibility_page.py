"""What docs/compatibility.md calls equal is shown by something that exists: tests, vectors, rows of interop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
FEATURES = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.split("## 2. Features")[1].split("## 3.")[0], re.M
)[1:]
ROWS = {  # words of the third column → the row of the first section that they mean
    "eight mixes": "client, server, storage of either kind: eight mixes",
    "interop": "client, server, storage of either kind: eight mixes",
    "storage quorum of both kinds": "storage nodes of both kinds in one quorum",
    "servers of both kinds": "servers of both kinds in one assignment",
    "mutual TLS": "mutual TLS",
    "rolling replacement": "rolling replacement",
    "one directory": "one directory",
    "original's tools": "the original's tools on our cluster",
    "our tools": "our tools on the original's cluster",
    "ServerCli list": "the original's tools on our cluster",
}


def test_the_table_is_read() -> None:
    assert len(FEATURES) > 25
    assert sum("equal" in ours for _, ours, _ in FEATURES) > 10


@pytest.mark.parametrize(("feature", "ours", "shown"), FEATURES, ids=[feature for feature, _, _ in FEATURES])
def test_each_feature_names_what_shows_it(feature: str, ours: str, shown: str) -> None:
    marks = [name.partition("::") for name in re.findall(r"`([\w./:]+)`", shown)]
    named = [ROOT / (file if "/" in file else f"tests/trio/{file}") for file, _, _ in marks]
    assert [path for path in named if not path.exists()] == []
    functions = [(path, test) for path, (_, _, test) in zip(named, marks, strict=True) if test]
    assert [test for path, test in functions if f"def {test}(" not in path.read_text(encoding="utf-8")] == []
    listed = re.search(r"`tests/vectors` \(([^)]+)\)", shown)
    vectors = listed[1].split(", ") if listed else []
    assert [name for name in vectors if not list((ROOT / "tests" / "vectors").glob(f"{name}*"))] == []
    table = PAGE.split("## 2. Features")[0]
    rows = [row for words, row in ROWS.items() if words in shown]
    assert [row for row in rows if f"| {row}" not in table] == []
    tests = [path for path in named if path.name != "vectors"]
    assert tests or vectors or rows, f"{feature} is called {ours!r}, and nothing shows it"
