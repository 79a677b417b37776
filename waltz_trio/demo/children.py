"""Processes that a demonstration starts: orders go to their standard input, JSON lines come back.

A child sits in a session of its own, so that Ctrl-C reaches only the parent; and it ends when its standard
input does, so that none is left behind even if the parent is killed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from waltz_trio.node.main import ending_signals

_CHUNK = 1 << 16
_LINE_MAX = 1 << 20
_PATIENCE = 5.0  # seconds a child may take to end after being asked


class ChildError(Exception):
    """A child ended, or never became ready, though it should work; the text holds the end of its log."""


class Child:
    """One process; `start` before anything else."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log  # its standard error
        self._process: trio.Process | None = None
        self._ended = trio.Event()
        self._sending = trio.Lock()

    async def start(self, nursery: trio.Nursery, module: str, arguments: Sequence[str]) -> None:
        """Run a Python module; with the nursery, or after `end`, the process is gone."""
        command = [sys.executable, "-m", module, *arguments]
        run = functools.partial(self._run, command)
        self._process = await nursery.start(run)

    async def _run(self, command: Sequence[str], *, task_status: Any) -> None:
        with self.log.open("ab") as log:
            try:
                await trio.run_process(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    check=False,
                    start_new_session=True,
                    deliver_cancel=_end_soon,
                    task_status=task_status,
                )
            finally:
                self._ended.set()

    @property
    def process(self) -> trio.Process:
        """The process, which was started."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def running(self) -> bool:
        """Started, and not ended."""
        return self._process is not None and not self._ended.is_set()

    @property
    def status(self) -> int | None:
        """Exit status; negative after a signal, None while it runs."""
        return self.process.returncode

    async def order(self, text: str) -> None:
        """Send one line; lost if the process is gone."""
        stdin = self.process.stdin
        assert stdin is not None
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._sending:
                await stdin.send_all(text.encode() + b"\n")

    async def reports(self) -> AsyncIterator[dict[str, Any]]:
        """What it says, until its output ends; lines that are no JSON objects come as {"text": line}."""
        stdout = self.process.stdout
        assert stdout is not None
        async for line in lines(stdout):
            yield parse(line)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()

    async def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        await self._ended.wait()
        status = self.process.returncode
        assert status is not None
        return status

    async def end(self) -> int:
        """Close its standard input, which ends it; kill it if that does not help. Returns the exit status."""
        stdin = self.process.stdin
        assert stdin is not None
        await stdin.aclose()
        with trio.move_on_after(_PATIENCE):
            return await self.wait()
        self.kill()
        return await self.wait()

    def failure(self, what: str) -> ChildError:
        """An error that shows why: the end of the log."""
        return ChildError(f"{self.name} {what}{tail(self.log)}")


async def _end_soon(process: trio.Process) -> None:
    if process.stdin is not None:
        await process.stdin.aclose()
    with trio.move_on_after(_PATIENCE):
        await process.wait()
        return
    process.kill()


def tail(log: Path, count: int = 15) -> str:
    """The last lines of a log, ready to follow a message; empty if there are none."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return ""
    return f"; the end of {log}:\n" + "\n".join(f"    {line}" for line in lines) if lines else f" (see {log})"


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    """Complete lines of a stream, without their ends."""
    buffer = bytearray()
    while data := await stream.receive_some(_CHUNK):
        buffer += data
        *complete, rest = bytes(buffer).split(b"\n")
        buffer = bytearray(rest)
        assert len(buffer) < _LINE_MAX
        for line in complete:
            yield line


def parse(line: bytes) -> dict[str, Any]:
    """A line as an object."""
    try:
        parsed = json.loads(line)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"text": line.decode(errors="replace")}


async def cancel_on_signal(scope: trio.CancelScope, heard: list[int]) -> None:
    """Cancel a scope at a signal, and note its number; Ctrl-C would otherwise come as an exception, anywhere."""
    with trio.open_signal_receiver(*ending_signals()) as signals:
        async for number in signals:
            heard.append(number)
            scope.cancel()


# ---- the child's side ------------------------------------------------------------------------------


def tell(report: Mapping[str, Any]) -> None:
    """Say one thing to the parent."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


async def obey(carry_out: Callable[[str], Awaitable[None]]) -> None:
    """Carry out the orders of the parent, one by one, until there are no more."""
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        async for line in lines(stdin):
            await carry_out(line.decode())
