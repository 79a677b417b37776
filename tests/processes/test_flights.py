"""The flights example: right with its locks, wrong without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

ROWS = 2_000
LIMIT = 170  # seconds; far more than needed, for machines that are busy


def flights(path: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    command = [sys.executable, "-m", "examples.flights", "--json", str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert path.exists(), done.stdout + done.stderr
    return done.returncode, done.stdout, json.loads(path.read_text())


def test_conflicting_departures_make_the_tables_that_the_file_gives(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    status, output, result = flights(tmp_path / "result.json", "--rows", str(ROWS), "--keep", str(kept))
    assert status == 0, output
    assert (kept / "dispatcher-0.db").exists()
    assert list((kept / "cluster" / "storage-0" / "0").glob("*.seg"))
    assert result["right"]
    assert result["conflicts"] > 0
    assert result["rows"] == ROWS
    assert "Right: all 3 databases hold the tables that the file gives" in output


def test_without_locks_departures_are_lost(tmp_path: Path) -> None:
    status, output, result = flights(tmp_path / "result.json", "--rows", str(ROWS), "--no-locks", "--partitions", "3")
    assert status == 1
    assert not result["right"]
    assert result["conflicts"] == 0
    assert any(complaint.startswith("dispatcher 0: aircraft: ") for complaint in result["complaints"])
    assert "WRONG" in output


def test_what_was_kept_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    command = [sys.executable, "-m", "examples.flights", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not empty" in done.stdout


def test_numbers_that_make_no_sense_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--rows", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "0 is not positive" in done.stderr
