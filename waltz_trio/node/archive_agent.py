"""The process that keeps a server's archive: started when it is asked for something, and again when it is lost.

What is asked and when is for the machine to say (`waltz_core/server/archive.py`); here are pipes. The program is an
application above these drivers, so it is named, not imported.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import get_args

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import ConfigError, ProtocolError
from waltz_core.server.archive_calls import ArchiveAsk, ArchiveEffect, ArchiveEvent, ArchiveFailed, ArchiveReset
from waltz_core.server.archive_frames import FrameReader, encode_message

PROGRAM = "waltz_spark.archive.agent"
_NEEDED = {"waltz_spark": "spark", "pyarrow": "spark", "numpy": "spark", "isal": "spark"}
_NEEDED_REMOTE = {**_NEEDED, "fsspec": "s3", "s3fs": "s3"}
_READ_SIZE = 1 << 18
_LINE_MAX = 2_000

ARCHIVE_EFFECTS: tuple[type, ...] = get_args(ArchiveEffect)
"""What it carries out."""

Report = Callable[[Level, str], None]


_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")


def check_installed(where: str) -> None:
    """Raises:
    ConfigError: what an archive at this place needs is not installed, or the place is not what it looks like.
    """
    if _ONE_SLASH.match(where):
        raise ConfigError(
            f"archive.location: expected a path or a URI such as s3://bucket/prefix or file:///path, found {where!r}, "
            f"which would be a folder in the directory of this process (./{where}, if that is meant)"
        )
    for module, extra in (_NEEDED_REMOTE if "://" in where and not where.startswith("file://") else _NEEDED).items():
        if importlib.util.find_spec(module) is None:
            text = f"an archive needs {module}, which is missing: pip install 'waltz-log[{extra}]'"
            raise ConfigError(f"archive.location is {where}: {text}")


class ArchiveAgent:
    """Carries out `ArchiveEffect`. `perform` queues and returns; every question gets one answer.

    Args:
        where: the archive's location.
        deliver: takes the answers.
        report: takes what people should read.
        command: starts the process, each time anew; None = the archive of `waltz_spark`.
    """

    def __init__(
        self,
        where: str,
        deliver: Callable[[Sequence[ArchiveEvent]], object],
        report: Report,
        command: Sequence[str] | None = None,
    ) -> None:
        self._command = command or (sys.executable, "-m", PROGRAM, "--archive", where)
        self._where = where
        self._deliver = deliver
        self._report = report
        self._asked: dict[int, ArchiveAsk] = {}  # without an answer
        self._unsent = bytearray()
        self._wanted = trio.Event()
        self._process: trio.Process | None = None
        self._given_up = False  # what was asked so far is not waited for

    def perform(self, effect: ArchiveEffect) -> None:
        """Ask, or give up what was asked."""
        if isinstance(effect, ArchiveReset):
            self.abandon()
            return
        self._asked[effect.ticket] = effect
        self._unsent += encode_message(effect)
        self._wanted.set()

    def abandon(self) -> None:
        """Kill it; what was asked has failed."""
        self._given_up = bool(self._asked)
        if self._process is not None:
            self._process.kill()

    async def run(self) -> None:
        """Keep it while it is wanted."""
        while True:
            await self._wanted.wait()
            reason = await self._life()
            self._given_up = False
            failed = [ArchiveFailed(ticket, reason) for ticket in self._asked]
            self._asked.clear()
            self._unsent.clear()
            self._wanted = trio.Event()
            self._deliver(failed)

    async def _life(self) -> str:
        """One process, from its start to its end; returns why it ended."""
        try:
            process = await trio.lowlevel.open_process(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            return f"its process cannot be started: {error.strerror}"
        self._process = process
        if self._given_up:
            process.kill()  # it was just being started then
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell, process)
                nursery.start_soon(self._send, process)
                reason = await self._receive(process)
                nursery.cancel_scope.cancel()
        finally:
            self._process = None
            with trio.CancelScope(shield=True):
                await _ended(process)
        return reason or f"its process ended with status {process.returncode}"

    async def _send(self, process: trio.Process) -> None:
        assert process.stdin is not None
        try:
            while True:
                await self._wanted.wait()
                data = bytes(self._unsent)
                self._unsent.clear()
                self._wanted = trio.Event()
                await process.stdin.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # its end is noticed where its answers are read

    async def _receive(self, process: trio.Process) -> str:
        """Hand on answers; returns what is wrong with them, if that is why it ends."""
        assert process.stdout is not None
        frames = FrameReader()
        try:
            while data := await process.stdout.receive_some(_READ_SIZE):
                answers = [each for each in frames.receive(bytes(data)) if not isinstance(each, ArchiveAsk)]
                for answer in answers:
                    self._asked.pop(answer.ticket, None)
                self._deliver(answers)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return ""
        except ProtocolError as error:
            return str(error)
        return ""

    async def _tell(self, process: trio.Process) -> None:
        """What it writes on its standard error is for people."""
        assert process.stderr is not None
        rest = b""
        while data := await process.stderr.receive_some(_READ_SIZE):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_LINE_MAX:]
            for line in lines:
                self._report(Level.WARNING, f"archive {self._where}: {line[:_LINE_MAX].decode(errors='replace')}")


async def _ended(process: trio.Process) -> None:
    """Kill it if it still runs; it keeps nothing that must survive."""
    if process.poll() is None:
        process.kill()
    await process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        await stream.aclose()
