"""Names that say nothing do not come back where they are gone, and the search for them finds what it is for."""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.names import PACKAGES, ROOT, places, vague_names


def _vague(source: str) -> list[tuple[int, str]]:
    return vague_names(textwrap.dedent(source))


@pytest.mark.parametrize("folder", PACKAGES)
def test_nothing_is_called_one_or_found_beyond_three_lines(folder: str) -> None:
    assert [f"{path}:{line}: {name}" for path, line, name in places((folder,))] == []


@pytest.mark.parametrize(
    "source",
    [
        "found = []\na = 1\nb = 2\nreturned = found\n",
        "def f(one):\n    a = 1\n    b = 2\n    return one\n",
        "for one in rows:\n    a\n    b\n    use(one)\n",
        "found = []\na = 1\nb = 2\nreturned = [row for row in found]\n",
        "class C:\n    found: int\n",
        "self.found = 1\n",
        "def one():\n    pass\n",
        "match event:\n    case A() as one:\n        a\n        b\n        use(one)\n",
    ],
)
def test_a_vague_name_that_lives_long_is_found(source: str) -> None:
    assert [name for _, name in _vague(source)] == ["found" if "found" in source else "one"]


@pytest.mark.parametrize(
    "source",
    [
        "found = []\na = 1\nreturned = found\n",
        "a = [one for one in rows]\n\n\n\nb = [one for one in rows]\n",
        "a = sorted(rows, key=lambda one: one.mark)\n",
        '"""One is found."""\n\n\n\n# one is found\n',
    ],
)
def test_a_vague_name_that_is_gone_at_once_is_let_be(source: str) -> None:
    assert _vague(source) == []


@pytest.mark.parametrize("name", ["Phase", "Port", "LinkState", "RefusedError", "Reading"])
def test_a_word_that_had_several_meanings_names_one_class(name: str) -> None:
    definitions = [
        path
        for package in ("waltz_core", "waltz_trio", "waltz_spark")
        for path in (ROOT / package).rglob("*.py")
        if re.search(rf"^(class {name}\b|{name}(: TypeAlias)? = )", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(definitions) == 1, definitions
