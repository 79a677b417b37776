"""Processes that work for a command: none outlives it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes.cluster import ROOT, poll
from waltz_spark.base.runners import Here


def work_on(directory: str) -> None:
    """Say who works, and do not end."""
    (Path(directory) / str(os.getpid())).touch()
    while True:
        time.sleep(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_command_that_they_work_for(number: signal.Signals, tmp_path: Path) -> None:
    """They waited for work that nobody could give them any more, and held the output of the command open."""
    program = "import sys; from tests.spark.test_runners import main; main(sys.argv[1])"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE) as process:
        workers = poll("both processes work", lambda: names if len(names := os.listdir(tmp_path)) == 2 else None)
        try:
            process.send_signal(number)
            process.communicate(timeout=60)  # its output ends when nobody holds it any more
        finally:
            for worker in workers:
                if Path(f"/proc/{worker}").exists():
                    os.kill(int(worker), signal.SIGKILL)


def main(directory: str) -> None:
    """The command."""
    Here(2).run(work_on, [directory, directory])
