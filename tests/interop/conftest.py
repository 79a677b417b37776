"""The original's installation and one ZooKeeper for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import installation
from tests.interop.scenarios import Scene
from tests.processes import zookeeper


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """What all scenarios share; skips where no installation of the original is given."""
    missing = installation.missing()
    if missing is not None:
        pytest.skip(missing)
    problem = zookeeper.missing()
    if problem is not None:
        pytest.fail(problem)
    directory = tmp_path_factory.mktemp("interop")
    with zookeeper.running_zookeeper() as server:
        yield Scene(directory, server, installation.prepare(directory / "original"))


@pytest.fixture
def scene(stage: Scene, tmp_path: Path) -> Scene:
    """A scene with a directory of its own."""
    return stage.at(tmp_path)
