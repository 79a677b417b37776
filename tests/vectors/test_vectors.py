"""Every vector of the repository, one test per file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors.__main__ import CHECKERS, run_unit, units_of, vector_files

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("path", vector_files(FOLDER), ids=lambda path: path.name)
def test_vectors(path: Path) -> None:
    failures = [f"{unit.name}: {failure}" for unit in units_of(path) if (failure := run_unit(unit)[0]) is not None]
    assert not failures, "\n".join(failures[:20])


def test_every_checker_has_its_vectors() -> None:
    assert {path.name for path in vector_files(FOLDER)} == set(CHECKERS)
