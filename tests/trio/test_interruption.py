"""Commands that are interrupted: by Ctrl-C, SIGTERM and SIGHUP, in order, with what they leave."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import trio
import trio.testing

from waltz_trio.cli.audit import audited
from waltz_trio.cli.help import Parser, run
from waltz_trio.cli.interruption import advising, interruptible
from waltz_trio.cli.main import main as waltz


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """SIGHUP does what it does by default, also where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def run_of(work: Callable[[], int]) -> int:
    """The exit status of a command."""

    def called(given: argparse.Namespace) -> int:
        return work()

    parser = Parser(prog="waltz", description="", example="waltz dev")
    parser.set_defaults(run=called)
    return run(parser, [])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_that_is_interrupted_ends_in_order_and_says_what_it_leaves(
    number: signal.Signals, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM ended it without a word, Ctrl-C with a traceback, or not: a task took it for a lost connection."""
    before = signal.getsignal(number)
    closed = []

    async def session() -> None:
        try:
            async with interruptible():
                with advising(lambda: "The first step is done; the same command goes on"), audited("the second step"):
                    signal.raise_signal(number)
                    with suppress(Exception):  # nobody takes an interruption for an error
                        await trio.sleep_forever()
        finally:
            await trio.lowlevel.checkpoint()  # the session can be closed in order
            closed.append(True)

    def work() -> int:
        trio.run(session)
        return 0

    assert run_of(work) == status
    assert closed
    said = capsys.readouterr().err
    assert "the second step: interrupted: nobody knows whether it was done" in said
    assert said.endswith(f"Interrupted by {number.name}\nThe first step is done; the same command goes on\n")
    assert signal.getsignal(number) is before


def test_a_command_that_is_not_interrupted_hears_its_own_error(capsys: pytest.CaptureFixture[str]) -> None:
    async def session() -> None:
        async with interruptible():
            with advising(lambda: "not to be told"):
                raise OSError("the disk")

    def work() -> int:
        trio.run(session)
        return 0

    assert run_of(work) == 1
    assert capsys.readouterr().err == "Error: the disk\n"


def test_ctrl_c_outside_of_a_session_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    async def task() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)
            nursery.start_soon(trio.sleep_forever)

    def work() -> int:
        trio.run(main)
        return 0

    assert run_of(work) == 130
    assert capsys.readouterr().err == "Interrupted by SIGINT\n"


def test_ctrl_c_while_a_command_is_loaded_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("waltz_trio.cli.main.importlib.import_module", load)
    assert waltz(["dev"]) == 130
    assert capsys.readouterr().err == "Interrupted by SIGINT\n"


def test_a_command_whose_supervisor_ignores_the_signals_runs_on() -> None:
    async def session() -> None:
        async with interruptible():
            for number in ends:
                signal.raise_signal(number)
            await trio.testing.wait_all_tasks_blocked()

    ends = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ends}
    try:
        assert run_of(lambda: trio.run(session) or 0) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
