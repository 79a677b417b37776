"""Every code block of README and docs runs, page by page, each page on a fresh cluster and in its order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import ROOT, Block, Command, blocks_of, commands_of, matches, pages, program_of
from waltz_trio.config.config import Config
from waltz_trio.config.roles import parse_roles
from waltz_trio.net.ports import HeldPorts

PATIENCE = 120.0  # seconds that one command may take, on a machine that is busy
ELSEWHERE = {
    "docs/pipeline.md": "its blocks need Spark and run with the tests of the pipeline",
}
SLOW = {  # the quick half has pages of each kind: README, one for each front, the references
    "docs/tutorial.md",
    "docs/howto/seal.md",
    "docs/howto/seeds.md",
    "docs/howto/saga.md",
    "docs/howto/outbox.md",
    "docs/howto/rebuild.md",
    "docs/howto/schema-change.md",
    "docs/howto/embedding.md",
    "docs/howto/events.md",
    "docs/howto/idempotency.md",
    "docs/howto/many-at-once.md",
    "docs/howto/observing.md",
    "docs/howto/sqlalchemy.md",
}
PAGES = [page for page in pages() if page not in ELSEWHERE and blocks_of(page)]
SERVES = re.compile(r"waltz (dev|(server|storage|gateway) run)\b")  # goes on until the page ends


def read_configuration(block: Block) -> None:
    """A configuration file: known keys, values of their types."""
    assert Config.parse(block.text, block.where).unknown() == (), block.where


def read_roles(block: Block) -> None:
    """The file that `security.roles` names."""
    parse_roles(yaml.safe_load(block.text), block.where)


READERS: dict[str, Callable[[Block], None]] = {"configuration": read_configuration, "security.roles": read_roles}


def _says(expected: str, output: str) -> bool:
    """Whether a page's output came; it may leave out where `waltz dev` serves the console."""
    return matches(expected, output) or matches(expected, re.sub(r"(?m)^console: .*\n?", "", output))


class Reader:
    """A person in front of one page, who does everything that it says, in a directory of his own."""

    def __init__(self, directory: Path, *, programs: Path | None = None) -> None:
        """`programs`: where `python` and `waltz` are installed; None = this tree, as the tests themselves."""
        self.directory = directory
        self.url: str | None = None
        self._ports = HeldPorts()
        self._port = str(self._ports.take())
        self._gateway_port = str(self._ports.take())
        self._running: list[tuple[subprocess.Popen[str], Path]] = []
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDEVMODE"},
            "PATH": os.pathsep.join([str(programs or Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT) if programs is None else "",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "error::RuntimeWarning",  # an await that is missing
        }

    def does(self, block: Block) -> None:
        """Run, read or look at one block.

        Raises:
            AssertionError: it does not do what the page says.
        """
        marks = block.marks
        if "not-run" in marks:
            assert len(marks["not-run"]) > 10, f"{block.where}: why is it not run?"
        elif "checked-by" in marks:
            assert Path(block.page).name in (ROOT / marks["checked-by"]).read_text(), block.where
        elif "read-by" in marks:
            READERS[marks["read-by"]](block)
        elif "file" in marks:
            (self.directory / marks["file"]).write_text(block.text)
        elif block.language == "python":
            self._runs_program(block)
        elif block.language == "console":
            for command in commands_of(block):
                self._types(block, command)
        elif block.language == "sh":
            self._runs(block.where, ["bash", "-e", "-o", "pipefail", "-c", self._replaced(block, block.text)])
        else:
            raise AssertionError(f"{block.where}: nothing checks a block of {block.language or 'no language'!r}")

    def leaves(self) -> None:
        """End what still runs; all of it must end in order."""
        for process, log in self._running:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(PATIENCE) == 0, log.read_text()
            finally:
                process.kill()
                process.wait()
        self._ports.release()

    # ---- inside ----------------------------------------------------------------------------------

    def _replaced(self, block: Block, text: str) -> str:
        """The page's example names replaced by what they are here."""
        words = {"7801": self._port, "7950": self._gateway_port, "/home/you": str(self.directory), **block.words}
        pattern = "|".join(rf"(?<![\w-]){re.escape(word)}(?!\w)" for word in sorted(words, key=len, reverse=True))
        return re.sub(pattern, lambda match: words[match[0]], text)

    def _types(self, block: Block, command: Command) -> None:
        line, expected = self._replaced(block, command.text).strip(), self._replaced(block, command.output)
        if SERVES.match(line):
            self._starts(f"{line} --port {self._port}" if line.startswith("waltz dev") else line, expected)
            return
        output = self._runs(f"{block.where}: {line}", ["bash", "-e", "-o", "pipefail", "-c", line])
        assert matches(expected, output), f"{block.where}: {line}\nexpected:\n{expected}\nfound:\n{output}"

    def _starts(self, line: str, expected: str) -> None:
        log = self.directory / f"output-{len(self._running)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "bash", "-c", f"exec {line}"],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=self._environment,
                text=True,
            )
        self._running.append((process, log))
        end = time.monotonic() + PATIENCE
        while not (_says(expected, log.read_text()) and (log.read_text() or not line.startswith("waltz dev"))):
            assert process.poll() is None, f"{line}: ended with {process.returncode}\n{log.read_text()}"
            assert time.monotonic() < end, f"{line}\nexpected:\n{expected}\nfound:\n{log.read_text()}"
            time.sleep(0.05)
        if line.startswith("waltz dev"):
            self.url = self._environment["URL"] = log.read_text().splitlines()[0]

    def _runs_program(self, block: Block) -> None:
        if self.url is None:
            address = f"waltz://127.0.0.1:{self._port}…\nconsole: http://localhost:…/console/\n"
            self._starts(f"waltz dev --directory page-data --port {self._port}", address)
        program = self._replaced(block, program_of(block))
        assert self.url is not None
        self._runs(block.where, [sys.executable, "-c", program, self.url])

    def _runs(self, what: str, command: list[str]) -> str:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            env=self._environment,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{what}: status {done.returncode}\n{done.stdout}"
        return done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in PAGES])
def test_every_block_of_the_page_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        for block in blocks_of(page):
            reader.does(block)
    finally:
        reader.leaves()
    unused = [block.where for block in blocks_of(page) if "file" in block.marks and not is_used(block)]
    assert not unused, f"nothing on the page uses these files: {unused}"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/howto/asyncio.md"])
def test_the_first_program_of_the_page_says_what_it_expects_when_it_gets_no_address(page: str, tmp_path: Path) -> None:
    program = next(block for block in blocks_of(page) if "file" in block.marks)
    name = program.marks["file"]
    (tmp_path / name).write_text(program.text)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"usage: python {re.escape(name)} .+\n", done.stderr)


def is_used(block: Block) -> bool:
    """Whether a later command of the page names a file, or a program of the page imports it."""
    name = block.marks["file"]
    imports = re.compile(rf"^(?:from|import) {re.escape(name.removesuffix('.py'))}\b", re.MULTILINE)
    others = [other for other in blocks_of(block.page) if other.line > block.line]
    return any(name in other.text for other in others if other.language in ("console", "sh")) or any(
        imports.search(other.text) for other in others if "file" in other.marks
    )


def test_pages_that_run_elsewhere_exist() -> None:
    assert set(ELSEWHERE) | SLOW <= set(pages())
