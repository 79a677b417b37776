"""The search for methods that nobody calls tells two of one name apart by what they belong to, and errs on one side."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.members.uses import unused_members

DECLARED = """
    from __future__ import annotations
    from typing import Any, Protocol

    class Door:
        def is_open(self) -> bool:
            return True

    class Shop:
        def __init__(self) -> None:
            self.doors: dict[str, list[Door]] = {}

        @property
        def is_open(self) -> bool:
            return True
"""


def unused(tmp_path: Path, used: str) -> list[str]:
    package = tmp_path / "package"
    package.mkdir()
    (package / "declared.py").write_text(textwrap.dedent(DECLARED))
    imports = "from typing import Any, Protocol\nfrom package.declared import Door, Shop\n"
    (package / "uses.py").write_text(imports + textwrap.dedent(used))
    return [name for _, _, name in unused_members(tmp_path, ["package"])]


@pytest.mark.parametrize(
    "used",
    [
        "def f(door: Door) -> bool:\n    return door.is_open()\n",
        "def f(shop: Shop) -> bool:\n    return any(door.is_open() for row in shop.doors.values() for door in row)\n",
        "def f(shop: Shop) -> object:\n    return sorted(shop.doors['a'], key=lambda door: door.is_open())\n",
        "def f(shop: Shop) -> object:\n    first, *_ = shop.doors['a']\n    return first.is_open\n",
        "def f(shop: Shop) -> None:\n    match shop:\n        case Shop(doors=it):\n            it['a'][0].is_open()\n",
        "def made() -> Door:\n    return Door()\n\n\nOPEN = made().is_open()\n",
        "class Front(Door):\n    pass\n\n\ndef f(front: Front) -> bool:\n    return front.is_open()\n",
    ],
)
def test_another_class_with_a_member_of_that_name_is_no_use_of_it(tmp_path: Path, used: str) -> None:
    assert unused(tmp_path, used) == ["Shop.is_open"]


@pytest.mark.parametrize(
    "used",
    [
        "def f(anything: Any) -> Any:\n    return anything.is_open\n",
        "def f(anything: Any) -> Any:\n    return getattr(anything, 'is_open')\n",
        "class Opens(Protocol):\n    def is_open(self) -> bool: ...\n\n\ndef f(it: Opens) -> None:\n    it.is_open()\n",
    ],
)
def test_where_nothing_is_known_every_class_may_be_meant(tmp_path: Path, used: str) -> None:
    assert unused(tmp_path, used) == []


def test_a_method_that_nobody_calls_is_named_with_its_place(tmp_path: Path) -> None:
    assert unused(tmp_path, "") == ["Door.is_open", "Shop.is_open"]
