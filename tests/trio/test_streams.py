"""Where the standard streams of a command lead to a full disk, to a reader that is gone, or nowhere."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.forks import exit_status_of_child
from tests.trio.test_dev import WALTZ, append, dev
from waltz_trio.cli import streams
from waltz_trio.cli.options import CommandError, confirm

FULL = "/dev/full"
"""Every write fails as on a full disk."""

OUTPUTS = pytest.mark.parametrize("words", [["--version"], ["--help"], ["completion", "bash"]], ids=" ".join)


def ended(words: list[str], redirection: str) -> tuple[int, str, str]:
    """A command's exit status, standard output and standard error; the shell redirects what it is told to."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *WALTZ, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@OUTPUTS
def test_a_result_that_cannot_be_written_is_an_error_that_says_where(words: list[str]) -> None:
    assert ended(words, f">{FULL}") == (1, "", "Error: standard output: No space left on device\n")


@OUTPUTS
def test_a_result_that_nobody_wants_is_none(words: list[str]) -> None:
    assert ended(words, ">&-") == (0, "", "")


def test_a_standard_input_that_is_closed_says_nothing_and_is_nobody_to_ask() -> None:
    """It was a traceback, of whatever reads or asks."""
    status, said, notes = ended(["demo", "bank"], "<&-")
    assert (status, notes) == (0, "")
    assert "Choose run mode" in said

    def ask() -> int:
        sys.stdin = None  # as Python makes it
        os.close(0)
        streams.settle()
        with pytest.raises(CommandError, match="There is no terminal to ask on: give --yes"):
            confirm("Go on?", given=False)
        return 7

    assert exit_status_of_child(ask) == 7


@pytest.mark.parametrize("redirection", [f"2>{FULL}", "2>&-"])
def test_a_note_that_cannot_be_written_changes_neither_status_nor_result(redirection: str) -> None:
    assert ended(["nonsense"], redirection) == (2, "", "")


def full_disk() -> int:
    return os.open(FULL, os.O_WRONLY)


def full_pipe() -> int:
    """Nobody reads from it, and writing to it does not wait."""
    _, writing = os.pipe()
    fill(writing)
    os.set_blocking(writing, False)
    return writing


def fill(pipe: int) -> None:
    """Nothing more can be written to it without a wait."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(1 << 16))
    os.set_blocking(pipe, True)


@pytest.mark.parametrize("make", [full_disk, full_pipe])
def test_a_note_that_cannot_be_written_raises_nothing(make: Callable[[], int]) -> None:
    def speak() -> int:
        sys.stderr = sys.__stderr__  # not what pytest looks at
        os.dup2(make(), 2)
        streams.settle()
        for _ in range(2):
            print("nobody can take this", file=sys.stderr, flush=True)
        return 7

    assert exit_status_of_child(speak) == 7


def test_closed_descriptors_lead_to_nowhere() -> None:
    def look() -> int:
        for number in (0, 2):
            os.close(number)
        streams.settle()
        return 7 if {os.readlink(f"/proc/self/fd/{number}") for number in (0, 2)} == {os.devnull} else 8

    assert exit_status_of_child(look) == 7


@pytest.mark.parametrize("kind", ["full", "reader gone"])
def test_a_cluster_goes_on_when_its_log_cannot_be_written(tmp_path: Path, kind: str) -> None:
    if kind == "full":
        notes = os.open(FULL, os.O_WRONLY)
    else:
        reading, notes = os.pipe()
        os.close(reading)
    try:
        with dev(tmp_path, "--verbose", stderr=notes) as (process, url):
            assert append(url, b"one") == 0
            assert append(url, b"two") == 1
            process.terminate()
            assert process.wait(30) == 0
    finally:
        os.close(notes)


def test_a_cluster_goes_on_when_the_reader_of_its_log_hangs(tmp_path: Path) -> None:
    """It would wait with the next line, and nobody would take its partitions over: its session is kept by a thread."""
    reading, notes = os.pipe()
    with open(reading, "rb") as log, dev(tmp_path, "--verbose", stderr=notes) as (process, url):
        while not log.readline().startswith(b"console: "):
            pass
        fill(notes)
        os.close(notes)
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        for _ in range(3):
            with socket.create_connection((address.hostname, address.port), timeout=30) as stranger:
                stranger.sendall(b"neither TLS nor Waltz: a warning")
                assert stranger.recv(1 << 16) is not None  # its answer, and then the end
        assert append(url, b"one") == 0
        assert append(url, b"two") == 1
        process.terminate()
        assert process.wait(30) == 0


def test_no_file_of_a_cluster_takes_the_number_of_a_stream_that_is_closed(tmp_path: Path) -> None:
    """What a library in C writes to its standard error would be written into a log."""
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *WALTZ, "dev", "--port", "0", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("waltz://")
        assert {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 2)} == {os.devnull}
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_sign_that_a_terminal_does_not_have_ends_no_command() -> None:
    """The doctor has an arrow before each command: it ended with a traceback where it had something to say."""
    code = "from waltz_trio.cli import streams; streams.settle(); print('\\u2192 mend it')"
    environment = {**os.environ, "PYTHONIOENCODING": "iso-8859-1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u2192 mend it\n", "")
