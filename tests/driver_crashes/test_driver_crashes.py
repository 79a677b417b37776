"""What real drivers acknowledged is there after a power failure at any call; a sync less, or elsewhere, is noticed."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.driver_crashes.lives import Life, short_lives
from tests.driver_crashes.recorder import Call
from tests.driver_crashes.sweep import CHANGES, HARMLESS, ROOT, kinds, record, replay, sites

# Whole-module calls that make bytes durable or change names; drivers reach them through `waltz_trio.durable` alone.
_OS_CALLS = {"fsync", "fdatasync", "sync", "pwrite", "ftruncate", "truncate", "rename", "replace", "link", "unlink"}


@pytest.fixture(scope="module")
def recorded() -> list[tuple[Life, tuple[Call, ...]]]:
    return [(life, record(life)) for life in short_lives()]


@pytest.mark.parametrize("number", range(len(short_lives())), ids=lambda number: short_lives()[number].name)
def test_what_was_acknowledged_survives_a_power_failure_at_any_call(
    recorded: list[tuple[Life, tuple[Call, ...]]], number: int
) -> None:
    life, calls = recorded[number]
    tally = replay(life, calls)
    assert tally.violations == []
    assert tally.cuts == len(calls) > 10
    assert tally.contents > tally.cuts


def test_a_sync_that_is_left_out_or_early_or_elsewhere_is_noticed(
    recorded: list[tuple[Life, tuple[Call, ...]]],
) -> None:
    """The list comes from what was recorded; what changes nothing is named in `HARMLESS` with its reason."""
    unnoticed = set()
    wanted = kinds([calls for _, calls in recorded])
    assert len(wanted) > 20
    for kind, (name, change) in itertools.product(wanted, CHANGES.items()):
        tried = ((life, calls) for life, calls in recorded if kind in kinds([calls]))
        if not any(replay(life, change(calls, kind)).violations for life, calls in tried):
            unnoticed.add(f"{kind}: {name}")
    assert unnoticed == HARMLESS.keys()


def test_every_driver_that_syncs_is_in_a_life(recorded: list[tuple[Life, tuple[Call, ...]]]) -> None:
    reached = {kind.split(": ")[0].split(" < ")[-1] for kind in kinds([calls for _, calls in recorded])}
    assert {*sites()} == reached


def _calls_of_os(path: Path) -> set[str]:
    """The calls in `_OS_CALLS` that a module makes without the port."""
    return {
        f"os.{node.attr}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == "os" and node.attr in _OS_CALLS
    }


def test_drivers_make_bytes_durable_through_the_port_alone() -> None:
    paths = [path for path in (ROOT / "waltz_trio").rglob("*.py") if path.name != "durable.py"]
    paths.append(ROOT / "waltz_spark" / "objects.py")  # archives
    direct = {path.relative_to(ROOT).as_posix(): _calls_of_os(path) for path in paths}
    # A key that OpenSSL takes from a file only: it must be gone at once, not durable.
    assert {name: calls for name, calls in direct.items() if calls} == {"waltz_trio/net/tls.py": {"os.unlink"}}


def test_the_disk_forgets_what_was_not_synced() -> None:
    """The instrument itself: a life without any sync is noticed at once, in every driver."""
    for life in short_lives():
        calls: Sequence[Call] = [call for call in record(life) if not call.name.startswith("sync")]
        assert replay(life, calls).violations, life.name
