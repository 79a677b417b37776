"""The notebook of the documentation still runs, from the flights' log to the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT

LIMIT = 400  # seconds
ROWS = "6000"


@pytest.mark.slow
def test_every_cell_runs_and_shows_what_the_page_promises(tmp_path: Path) -> None:
    target = tmp_path / "run.ipynb"
    environment = {**os.environ, "FLIGHTS_ROWS": ROWS, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONDEVMODE", None)  # of Spark's own workers
    command = [sys.executable, "-m", "tests.spark.notebook", str(ROOT / "docs" / "pipeline.ipynb"), str(target)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cells = [cell for cell in json.loads(target.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    assert "6,000 departures" in target.read_text()
    assert "<svg" in target.read_text()
