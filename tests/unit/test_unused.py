"""Nothing in the packages is there for its own sake."""

from __future__ import annotations

from tests.unused import unused


def test_every_definition_of_the_packages_is_used_by_them() -> None:
    assert unused() == [], "remove each, or name it with a reason in tests/unused.py"
