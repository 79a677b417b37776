"""What the server's end of the pipes to its archive does: one process at a time, one answer to each question."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing

from tests.spark.test_archive_agent import log
from waltz_core.base.edge import Level
from waltz_core.server import archive_calls as calls
from waltz_trio.node.archive_agent import ArchiveAgent

Answers = list[calls.ArchiveEvent]


class Server:
    """Asks, and keeps the answers."""

    def __init__(self, where: Path, command: Sequence[str] | None = None) -> None:
        self.answers: Answers = []
        self.told: list[str] = []
        self._news = trio.Event()
        self.agent = ArchiveAgent(str(where), self._deliver, self._report, command)

    def _deliver(self, answers: Sequence[calls.ArchiveEvent]) -> None:
        self.answers += answers
        self._news.set()

    def _report(self, level: Level, text: str) -> None:
        self.told.append(text)
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        with trio.fail_after(30):
            while not condition():
                await self._news.wait()
                self._news = trio.Event()

    def ask(self, *asks: calls.ArchiveEffect) -> None:
        for each in asks:
            self.agent.perform(each)


@asynccontextmanager
async def serving(where: Path, command: Sequence[str] | None = None) -> AsyncIterator[Server]:
    server = Server(where, command)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.agent.run)
        yield server
        nursery.cancel_scope.cancel()


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def look(ticket: int) -> calls.ArchiveLook:
    return calls.ArchiveLook(ticket, 0, bytes(16), 1, 10, 0)


async def test_a_killed_archive_fails_what_it_owes_once_and_the_next_gets_no_old_question(tmp_path: Path) -> None:
    async with serving(tmp_path / "vault") as server:
        server.ask(look(1))
        await server.until(lambda: len(server.answers) == 1)
        server.ask(calls.ArchiveTake(2, 0, 0, 0, log(0, 4)))
        await server.until(lambda: len(server.answers) == 2)
        assert server.answers == [calls.ArchiveHolds(1, 0, 0, 10), calls.ArchiveTaken(2)]
        assert not server.agent._asked  # with the records that were asked about
        with trio.fail_after(30):
            await trio.testing.wait_all_tasks_blocked(0.01)  # nothing is done while nothing is asked
        open_files = len(os.listdir("/proc/self/fd"))

        server.ask(calls.ArchiveCommit(3, 0, 0, 4), calls.ArchiveReset("it is slow"))  # before the question is sent
        await server.until(lambda: len(server.answers) == 3)
        assert server.answers[2:] == [calls.ArchiveFailed(3, "its process ended with status -9")]

        server.ask(look(4))
        await server.until(lambda: len(server.answers) == 4)
        assert server.answers[3:] == [calls.ArchiveHolds(4, 0, 0, 10)]  # the question that failed is not asked again
        assert len(os.listdir("/proc/self/fd")) == open_files
    assert server.told == []


async def test_an_archive_that_is_just_being_started_can_be_given_up(tmp_path: Path) -> None:
    async with serving(tmp_path / "vault", python("import time; time.sleep(3600)")) as server:
        server.ask(look(1), calls.ArchiveReset("it is slow"))
        await server.until(lambda: server.answers)
        assert server.answers == [calls.ArchiveFailed(1, "its process ended with status -9")]


async def test_an_archive_that_says_what_is_no_frame_is_ended_and_what_it_was_asked_has_failed(tmp_path: Path) -> None:
    program = "import sys, time; print('x' * 99, file=sys.stdout, flush=True); time.sleep(3600)"
    async with serving(tmp_path / "vault", python(program)) as server:
        server.ask(look(1), look(2))
        await server.until(lambda: len(server.answers) == 2)
        assert [type(answer) for answer in server.answers] == [calls.ArchiveFailed] * 2
        assert "a frame of" in str(server.answers[0])


async def test_what_an_archive_says_before_it_ends_is_told(tmp_path: Path) -> None:
    program = "import sys; print('a' * 3000 + '\\nno room', file=sys.stderr, flush=True); sys.stdin.buffer.read(1)"
    async with serving(tmp_path / "vault", python(program + "; sys.exit(7)")) as server:
        server.agent.abandon()  # nothing is asked yet: what is asked from now on is meant
        server.ask(look(1))
        await server.until(lambda: server.answers and len(server.told) == 2)
        assert server.answers == [calls.ArchiveFailed(1, "its process ended with status 7")]
        assert [text.removeprefix(f"archive {tmp_path / 'vault'}: ") for text in server.told] == ["a" * 2000, "no room"]


async def test_an_archive_that_cannot_be_started_fails_what_it_is_asked_each_time(tmp_path: Path) -> None:
    program = tmp_path / "archive"
    async with serving(tmp_path / "vault", [str(program)]) as server:
        server.ask(look(1))
        await server.until(lambda: len(server.answers) == 1)
        server.ask(look(2))
        await server.until(lambda: len(server.answers) == 2)
        reason = "its process cannot be started: No such file or directory"
        assert server.answers == [calls.ArchiveFailed(1, reason), calls.ArchiveFailed(2, reason)]
        count = "import sys; print(sys.stdin.buffer.read1().count(b'ArchiveLook'), file=sys.stderr)"
        program.write_text(f"#!{sys.executable}\n{count}\n")
        program.chmod(0o755)
        server.ask(look(3))
        await server.until(lambda: len(server.answers) == 3)
        assert [text.rpartition(" ")[2] for text in server.told] == ["1"]  # those that failed are not asked again
