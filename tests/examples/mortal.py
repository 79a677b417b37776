"""A task of the Celery example's application whose process is killed at the first attempt; test_bank.py sends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from celery.signals import worker_process_init

from examples.bank.with_celery import FOLDER, app, open_bank

PATIENCE = 60.0
worker_process_init.disconnect(open_bank)  # it needs no cluster


@app.task(name="die_once")
def die_once() -> str:
    """Die as a process does that the kernel kills, and come through the second time."""
    mark = Path(FOLDER) / "died"
    if mark.exists():
        return "came again"
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it is dead")


def main() -> None:
    """A worker, and the task."""
    for name in ("queue", "control", "results"):
        (Path(FOLDER) / name).mkdir()
    command = [sys.executable, "-m", "celery", "-A", "tests.examples.mortal", "worker", "--concurrency=1"]
    with subprocess.Popen([*command, "--without-gossip", "--without-mingle"]) as process:
        try:
            print(die_once.delay().get(timeout=PATIENCE))
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
