"""Every damaged directory is opened or refused in words: which file, where, expected what, found what, do what."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.storage_desk import Desk
from waltz_core.base.edge import Report
from waltz_core.storage.replica import State
from waltz_testing.simulation.disk import SimDisk

DIRECTORIES = Path(__file__).parents[2] / "vectors" / "storage_dirs"
CASES = sorted(one.name for one in DIRECTORIES.iterdir() if one.is_dir())


def load(name: str) -> tuple[SimDisk, dict[str, Any]]:
    """The files of a directory, and how it is to be opened."""
    manifest = json.loads((DIRECTORIES / name / "manifest.json").read_text(encoding="utf-8"))
    disk = SimDisk()
    for directory in manifest["dirs"]:
        disk.make_directory(directory)
    root = DIRECTORIES / name / "storage"
    for file in sorted(root.rglob("*")):
        if file.is_file():
            disk.put(file.relative_to(root).as_posix(), file.read_bytes())
    return disk, manifest["open"]


def opened(disk: SimDisk, opening: dict[str, Any]) -> Desk:
    threshold = opening["segment_size_threshold"]
    return Desk(disk, UUID(opening["cluster_key"]), opening["num_partitions"], threshold=threshold)


def names_everything(text: str) -> None:
    """A file, a place in it or a name that is missing, what was expected and found, what to do next."""
    assert re.search(r"waltz-storage\.ctl|\d+/|\.seg|\.idx", text), text
    assert "expected" in text, text
    assert "found" in text, text
    assert re.search(r"`waltz storage |Restore it from|Check storage\.directory", text), text


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused_is_refused_in_full(name: str) -> None:
    disk, opening = load(name)
    desk = opened(disk, opening)
    if desk.failure is not None:
        names_everything(desk.failure.reason)
    for replica in desk.node.replicas:
        if replica.state is State.LIMBO:
            said = [
                one.text
                for one in desk.emitted
                if isinstance(one, Report) and one.text.startswith(f"partition {replica.partition_id} is in limbo")
            ]
            names_everything("".join(said))
        else:
            assert replica.state in (State.OPEN, State.UNASSIGNED)


def _sites(name: str) -> list[tuple[str, int]]:
    disk, _ = load(name)
    return [
        (path, offset)
        for path, data in disk.files().items()
        if path.endswith((".seg", ".ctl"))
        for offset in range(0, len(data), 7)
    ]


@pytest.mark.parametrize("name", ["good_multi_segment", "good_behind"])
def test_a_changed_byte_is_named_and_opening_removes_no_other(name: str) -> None:
    """Opening changes no byte of a data file but an unacknowledged tail, whatever a byte became."""
    untouched, opening = load(name)
    refused = 0
    for path, offset in _sites(name):
        disk = untouched.clone()
        disk.flip(path, offset)
        before = disk.files()
        desk = opened(disk, opening)
        if desk.failure is not None:
            names_everything(desk.failure.reason)
            assert disk.files() == before
            refused += 1
            continue
        for replica in desk.node.replicas:
            if replica.state is State.LIMBO:
                refused += 1
                names_everything(
                    "".join(one.text for one in desk.emitted if isinstance(one, Report) and "limbo" in one.text)
                )
        after = disk.files()
        for one, data in before.items():
            if not one.endswith(".seg"):
                continue
            assert after[one] == data[: len(after[one])], f"{path} at {offset}: {one} was altered"
            if len(after[one]) < len(data):
                # Without a durable mark of ours the last write counts as torn where its own bytes are bad.
                assert (one, offset >= len(after[one])) == (path, True), f"{path} at {offset}: {one} was cut"
    assert refused > 10
