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
from waltz_spark.base.runners import Here, OnProgress, OnSpark, Runner
from waltz_spark.read.options import Options
from waltz_trio.cli.main import main as waltz


def work_on(directory: str) -> None:
    """Say who works, and do not end."""
    (Path(directory) / str(os.getpid())).touch()
    while True:
        time.sleep(1)


@pytest.mark.parametrize("program", ["main", "command"])
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, (130, "Interrupted by SIGINT\n")),
        (signal.SIGTERM, (143, "Interrupted by SIGTERM\n")),
        (signal.SIGKILL, (-signal.SIGKILL, "")),
    ],
)
def test_processes_end_with_the_command_that_they_work_for(
    program: str, number: signal.Signals, said: tuple[int, str], tmp_path: Path
) -> None:
    """They waited for work that nobody could give them any more, and a command waited for the end of theirs."""
    status, errors = ended(program, number, tmp_path)
    if program == "command":
        assert (status, errors) == said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_on_spark_ends_without_traces_of_its_driver(number: signal.Signals, tmp_path: Path) -> None:
    """PySpark's own answer to Ctrl-C fails in the middle of a job, and Py4J logs how."""
    status, errors = ended("command_on_spark", number, tmp_path)
    assert status == 128 + number, errors
    assert errors.endswith(f"\nInterrupted by {number.name}\n")
    assert "Traceback" not in errors


def test_an_error_on_the_way_out_of_an_interrupted_job_is_the_interruption() -> None:
    """The JVM had ended when PySpark talked to it once more: it was "Answer from Java side is empty", and status 1."""

    class Session:
        def range(self, *_: int) -> Session:
            return self

        def mapInArrow(self, *_: object) -> Session:  # noqa: N802
            return self

        def collect(self) -> None:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as interruption:
                raise OSError("Answer from Java side is empty") from interruption

    with pytest.raises(KeyboardInterrupt):
        OnSpark(Session(), 1).run(work_on, ["nowhere"])


def ended(program: str, number: signal.Signals, directory: Path) -> tuple[int, str]:
    """A program of this module gets the signal once two processes work for it: its status and its last words."""
    # A shell has what it puts into the background ignore Ctrl-C, such as these tests.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    source = f"{heard}; import sys; from tests.spark.test_runners import {program}; sys.exit({program}(sys.argv[1]))"
    command = [sys.executable, "-c", source, str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        workers = poll("both processes work", lambda: names if len(names := os.listdir(directory)) == 2 else None)
        try:
            process.send_signal(number)
            # Its output ends when nobody holds it any more.
            _, errors = process.communicate(timeout=60)
        finally:
            for worker in workers:
                if Path(f"/proc/{worker}").exists():
                    os.kill(int(worker), signal.SIGKILL)
    return process.returncode, errors.decode()


def main(directory: str) -> None:
    """A program of someone else's."""
    Here(2).run(work_on, [directory, directory])


def command_on_spark(directory: str) -> int:
    """The same in the executors of a session."""
    return command(directory, "--master", "local[2]")


def command(directory: str, *where: str) -> int:
    """`waltz spark scan`, with something to do that does not end."""

    def scan(options: Options, runner: Runner, on_progress: OnProgress | None) -> None:
        runner.run(work_on, [directory, directory])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("waltz_spark.cli.main.scan", scan)
        return waltz(["spark", "scan", "--directory", directory, *(where or ("--jobs", "2"))])
