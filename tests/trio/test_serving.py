"""Commands that serve: which signals end them, what they leave, and what becomes of an address that nobody can take."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.trio.test_dev import WALTZ
from tests.trio.test_streams import FULL, ended

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HEARD = ["env", "--default-signal=HUP"]  # also where the tests run under `nohup`
CALLS = {"dev": ["--port", "0"], "console": ["-p", "0", "-c", "{}"], "gateway": ["run", "-c", "{}"]}
FILES = {
    "console": "zookeeper.connectString: localhost:1\nzookeeper.sessionTimeout: 10000\ncluster.root: /waltz\n",
    "gateway": "gateway.port: 0\ngateway.healthPort: 0\nlog.level: error\n"
    "gateway.topics: [{name: payments, cluster: 'waltz://127.0.0.1:1', partitions: '0'}]\n",
    "dev": "",
}


def call(noun: str, directory: Path) -> list[str]:
    """A command that serves with nobody else running."""
    path = directory / f"{noun}.yml"
    path.write_text(FILES[noun])
    return [noun, *(word.format(path) for word in CALLS[noun])]


@contextmanager
def running(words: Sequence[str], directory: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said its address; `directory` is where its temporary files are."""
    process = subprocess.Popen(
        [*before, *WALTZ, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("noun", CALLS)
def test_a_signal_ends_what_serves_and_nothing_is_left(noun: str, number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM killed the console, and SIGHUP a cluster whose directory stayed."""
    (tmp_path / "temporary").mkdir()
    with running(call(noun, tmp_path), tmp_path / "temporary", *HEARD) as process:
        process.send_signal(number)
        _, notes = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in notes
    assert not list((tmp_path / "temporary").iterdir())


def test_what_is_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    with running(call("gateway", tmp_path), tmp_path, "env", "--ignore-signal=HUP") as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize("noun", CALLS)
def test_an_address_that_cannot_be_said_is_an_error_in_one_line(noun: str, tmp_path: Path) -> None:
    """That of the gateway was a traceback."""
    status, _, notes = ended(call(noun, tmp_path), f">{FULL}")
    assert status == 1
    assert "Error: standard output: No space left on device\n" in notes
    assert "Traceback" not in notes


@pytest.mark.parametrize("noun", CALLS)
def test_an_address_that_nobody_reads_is_none(noun: str, tmp_path: Path) -> None:
    reading, output = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*WALTZ, *call(noun, tmp_path)], stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(output)
    assert done.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


def test_a_gateway_says_what_its_configuration_asks_for(tmp_path: Path) -> None:
    for level, said in (("error", False), ("info", True)):
        words = call("gateway", tmp_path)
        path = Path(words[-1])
        path.write_text(path.read_text().replace("error", level))
        with running(words, tmp_path) as process:
            process.terminate()
            _, notes = process.communicate(timeout=30)
        assert ("/health and /metrics at" in notes) is said


@pytest.mark.parametrize(("number", "status"), [*zip(ENDS, (130, 143, 129), strict=True)])
def test_a_bank_that_is_interrupted_takes_its_cluster_down(number: signal.Signals, status: int, tmp_path: Path) -> None:
    with running(["demo", "bank"], tmp_path, *HEARD) as process:
        assert process.stdout is not None
        assert "Choose run mode" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == status
        assert process.stderr is not None
        assert process.stderr.read() == f"Interrupted by {number.name}\n"
    assert not list(tmp_path.iterdir())
