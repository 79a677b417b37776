"""`make test` and `make test-long` run every test there is: a folder that nobody names is never run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BARE = {
    **os.environ,
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}  # pytest without all that is installed, which takes seconds
FOLDERS = sorted({path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").rglob("test_*.py")})


def runs(*target: str) -> list[str]:
    """The commands of a target that run tests."""
    command = ["make", "--dry-run", "--no-print-directory", f"--assume-old={ROOT / '.venv'}/installed"]
    command += ["--assume-old=.venv/installed", *target]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "LATER"))}
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=outside)
    return [line for line in done.stdout.splitlines() if "-m pytest" in line and "Once more" not in line]


def recipe(target: str) -> set[str]:
    """The folders of tests that a target runs."""
    return {folder for line in runs(target) for folder in re.findall(r"(?<!--ignore=)\btests/(\w+)", line)}


def test_every_folder_of_tests_is_run_by_make_test() -> None:
    assert [name for name in FOLDERS if name not in recipe("test")] == []


def test_what_ci_leaves_out_of_make_test_is_in_make_test_long() -> None:
    words = next(line.split()[1:] for line in (ROOT / ".ci" / "run").read_text().splitlines() if "make test " in line)
    (later,) = set(runs("test")) - set(runs(*words))
    assert any(later.split(" -m 'not slow' ")[1] in line for line in runs("test-long"))


def test_every_folder_with_slow_tests_is_run_by_make_test_long() -> None:
    slow = {name for name in FOLDERS for path in (ROOT / "tests" / name).rglob("*.py") if is_slow(path)}
    assert slow
    assert slow - recipe("test-long") == set()


def is_slow(path: Path) -> bool:
    return "mark.slow" in path.read_text()


def test_what_failed_beside_others_and_passes_alone_is_noted(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
from pathlib import Path
ALONE = Path(__file__).with_name("alone")
def test_good(): pass
def test_bad(): assert False
def test_crowded(): assert ALONE.exists()
""")
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path)]
    assert subprocess.run(command, check=False, capture_output=True, env=BARE).returncode == 1
    (tmp_path / "alone").touch()
    noted = tmp_path / "build" / "beside.txt"
    again = [*command, "-p", "tests.beside", "--beside", str(noted), "--last-failed"]
    assert subprocess.run(again, check=False, capture_output=True, cwd=ROOT, env=BARE).returncode == 1
    assert noted.read_text().splitlines() == ["test_it.py::test_crowded"]


def test_a_test_that_hangs_fails_by_name_and_its_fixtures_end(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
import threading
from pathlib import Path
import pytest
import trio
@pytest.fixture
def process(request):
    yield
    Path(__file__).with_name("ended").open("a").write(request.node.name + " ")
def test_waiting(process): threading.Event().wait()
async def test_tasks(process): await trio.sleep_forever()
def test_next(process): pass
""")
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path)]
    command += ["-p", "pytest_trio.plugin", "-o", "trio_mode=true"]
    command += ["-p", "pytest_timeout", "-o", "timeout=1", "-o", "timeout_method=signal"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=BARE)
    assert "2 failed, 1 passed" in done.stdout
    assert "Timeout (>1.0s)" in done.stdout
    assert re.findall(r"^FAILED .*::(\w+)", done.stdout, re.MULTILINE) == ["test_waiting", "test_tasks"]
    assert (tmp_path / "ended").read_text().split() == ["test_waiting", "test_tasks", "test_next"]
