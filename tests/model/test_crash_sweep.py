"""A short form of the crash sweep, and that it is awake; `make crash-sweep` runs lives of six requests."""

from __future__ import annotations

import pytest

from tests.model import crash_sweep
from waltz_core.storage.effects import Operation, SyncDirectory, SyncFile


def test_no_short_life_ends_in_a_state_that_breaks_a_promise() -> None:
    found = crash_sweep.sweep(3)
    assert found["first_violations"] == []
    assert found["sequences"] == 168
    assert found["starts"] > 1500


@pytest.mark.parametrize(("kind", "suffix"), [(SyncFile, ".seg"), (SyncFile, ".ctl"), (SyncDirectory, "0")])
def test_a_disk_that_only_pretends_to_sync_is_noticed(
    monkeypatch: pytest.MonkeyPatch, kind: type[SyncFile] | type[SyncDirectory], suffix: str
) -> None:
    def deaf_to(operation: Operation) -> bool:
        return isinstance(operation, kind) and operation.path.endswith(suffix)

    monkeypatch.setattr(crash_sweep.Disk, "deaf_to", staticmethod(deaf_to))
    assert crash_sweep.sweep(1, enough=1)["violations"] == 1
