"""`waltz top` in a pseudo-terminal, over a cluster of processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pexpect
import pyte
import pytest
from rich.console import Console

from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.zookeeper import ZooKeeperServer
from tests.unit.operations.views import cluster as healthy
from tests.unit.operations.views import with_storage
from waltz_core.operations.page import Console as Pages
from waltz_core.operations.page import Page
from waltz_trio.cli.main import main
from waltz_trio.cli.top import Screen

pytestmark = pytest.mark.processes

TOP = ["-m", "waltz_trio.cli.main", "top"]


def _heard() -> None:
    """In the child: the tests may run under `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Terminal:
    """A terminal of 30 lines with a program in it."""

    def __init__(self, *words: str, columns: int = 110) -> None:
        self._screen = pyte.Screen(columns, 30)
        self._stream = pyte.ByteStream(self._screen)
        self.child = pexpect.spawn(
            sys.executable, [*TOP, *words], dimensions=(30, columns), timeout=60, preexec_fn=_heard
        )

    def shows(self, what: str, times: int = 1) -> str:
        """Wait until lines hold a text so many times; returns the whole screen."""

        def seen() -> str | None:
            with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
                self._stream.feed(self.child.read_nonblocking(1 << 16, timeout=0.2))
            text = "\n".join(self._screen.display)
            return text if text.count(what) >= times else None

        try:
            return poll(f"the terminal shows {what!r}", seen)
        except TimeoutError as error:
            error.add_note("\n".join(self._screen.display))
            raise

    def rest(self) -> bytes:
        """More of what it writes; nothing at its end."""
        try:
            data: bytes = self.child.read_nonblocking(1 << 16, timeout=60)
        except (pexpect.EOF, pexpect.TIMEOUT):
            return b""
        return data

    def ends(self) -> int | None:
        self.child.expect(pexpect.EOF)
        self.child.close()
        status: int | None = self.child.exitstatus
        return status


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Cluster]:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), partitions=2, servers=1) as made:
        yield made


@pytest.mark.slow
def test_it_shows_a_node_that_dies_and_comes_back_and_ends_by_a_key(cluster: Cluster) -> None:
    terminal = Terminal("-c", str(cluster.tools_file))
    victim = cluster.advertised["storage-2"]
    terminal.shows("nothing is wrong")  # painted in pieces, so what stands below may still come
    terminal.shows("ready", times=2)
    text = terminal.shows("3/3")
    assert "test cluster /cluster" in text
    assert cluster.advertised["server-0"] in text

    cluster.children["storage-2"].kill()
    text = terminal.shows("storage-down")
    assert f"storage node {victim} does not answer" in text
    assert "→ start it: waltz storage run" in text
    terminal.shows("2/3")
    terminal.child.send("s")
    terminal.shows("sort by id")
    cluster.start("storage-2")
    terminal.shows("nothing is wrong")
    terminal.child.send("q")
    assert terminal.ends() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_who_ends_it_finds_the_terminal_as_it_was(tmp_path: Path, number: signal.Signals, status: int) -> None:
    config = tmp_path / "tools.yml"
    config.write_text("zookeeper.connectString: 127.0.0.1:1\nzookeeper.connectTimeout: 300\ncluster.root: /x\n")
    terminal = Terminal("-c", str(config))
    echoes = terminal.child.getecho()
    terminal.shows("zookeeper-down")
    assert terminal.child.getecho() is False
    terminal.child.kill(number)
    ended = b"".join(iter(terminal.rest, b""))
    assert b"\x1b[?1049l" in ended, "the screen of before"
    assert b"\x1b[?25h" in ended, "the cursor"
    assert terminal.child.getecho() is echoes is True
    assert terminal.ends() == status


@pytest.mark.slow
def test_a_terminal_that_cannot_be_drawn_on_is_an_error(tmp_path: Path) -> None:
    config = tmp_path / "tools.yml"
    config.write_text("zookeeper.connectString: 127.0.0.1:1\ncluster.root: /x\n")
    child = pexpect.spawn(sys.executable, [*TOP, "-c", str(config)], env={**os.environ, "TERM": "dumb"}, timeout=60)
    child.expect("this terminal cannot be drawn on")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1


@pytest.mark.slow
def test_one_look_as_text_and_as_json(cluster: Cluster) -> None:
    done = cluster.attempt("top", "-c", str(cluster.tools_file), "--once", "--json")
    page = json.loads(done.stdout)
    assert done.returncode == 0
    assert [row["state"] for row in page["partitions"]] == ["ready", "ready"]
    assert page["history"]["at_ms"] != []  # two looks, so that there are rates
    done = cluster.attempt("top", "-c", str(cluster.tools_file), "--once")
    assert done.returncode == 0
    assert "nothing is wrong" in done.stdout
    done = cluster.attempt("top", "-c", str(cluster.tools_file))
    assert done.returncode == 1
    assert done.stdout.startswith("Error: standard output is no terminal: give --once")


def test_without_zookeeper_it_says_so_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "tools.yml"
    config.write_text("zookeeper.connectString: 127.0.0.1:1\nzookeeper.connectTimeout: 300\ncluster.root: /x\n")
    assert main(["top", "-c", str(config), "--once", "--json"]) == 1
    page = json.loads(capsys.readouterr().out)
    assert page["findings"][0]["cause"] == "zookeeper-down"
    assert "zookeeper.connectString" in page["findings"][0]["advice"]


def text_of(screen: Screen, width: int = 100, height: int = 30) -> list[str]:
    terminal = Console(width=width, file=io.StringIO(), highlight=False)
    with terminal.capture() as captured:
        terminal.print(screen.draw(width, height))
    return captured.get().splitlines()


def partitions_of(lines: Sequence[str]) -> list[str]:
    begin = next(number for number, line in enumerate(lines) if line.startswith("part"))
    return [line.split()[0] for line in lines[begin + 1 :] if line.split()[:1] and line.split()[0].isdigit()]


def page(count: int, stuck: int = -1) -> Page:
    """A page of many partitions, one of which is stuck."""
    made = Pages("/root").look(healthy(), 1_000)
    row = made["partitions"][0]
    made["partitions"] = [{**row, "id": number, "rate": float(number)} for number in range(count)]
    if stuck >= 0:
        made["partitions"][stuck] |= {"level": "bad", "state": "stuck", "waits_for": "s0:7000"}
    return made


def test_the_worst_stand_first_and_keys_sort_scroll_and_end() -> None:
    screen = Screen()
    assert "looking at the cluster" in text_of(screen)[0]
    screen.show(page(50, stuck=30))
    assert partitions_of(text_of(screen))[:2] == ["30", "0"]
    assert screen.press(b"s")
    assert partitions_of(text_of(screen))[:2] == ["0", "1"]
    assert screen.press(b"s")
    assert partitions_of(text_of(screen))[:2] == ["49", "48"]
    assert screen.press(b"\x1b[6~")
    assert partitions_of(text_of(screen))[:2] == ["39", "38"]
    for _ in range(20):
        assert screen.press(b"\x1b[6~")
        text_of(screen)
    assert partitions_of(text_of(screen))[-1] == "0"
    for end in (b"q", b"\x03"):
        assert not screen.press(end)


def test_what_is_said_of_no_partition_has_no_column() -> None:
    screen = Screen()
    screen.show(page(2))
    (heads, *rows) = [line for line in text_of(screen) if line.split()[:1] in (["part"], ["0"], ["1"])]
    assert "archive" not in heads
    assert all("ready" in row for row in rows)
    screen.show(page(2, stuck=1))
    assert any("waits for" in line for line in text_of(screen))


def test_what_others_say_is_shown_as_it_is() -> None:
    """It was taken for markup: `[/y]` ended the command, and of an IPv6 address the port was left."""
    screen, shown = Screen(), page(2, stuck=1)
    shown["servers"][0] |= {"name": "[fd00::1]:7101", "trouble": ["x [/y]"]}
    shown["storages"][0] |= {"name": "s0:on:7000", "trouble": ["[bold]no :smile:"]}
    shown["partitions"][1] |= {"owner": "[fd00::1]:7101", "waits_for": "[/]"}
    screen.show(shown)
    text = "\n".join(text_of(screen, width=160))
    assert text.count("[fd00::1]:7101") == 2
    for said in ("x [/y]", "s0:on:7000", "[bold]no :smile:", "[/]"):
        assert said in text


def test_words_of_peers_do_not_move_the_cursor_of_a_terminal() -> None:
    screen, shown = Screen(), page(2, stuck=1)
    shown["servers"][0] |= {"trouble": ["\x1b[2Jgone\r\n"]}
    shown["partitions"][1] |= {"waits_for": "\x1b]0;title\x07"}
    screen.show(shown)
    text = "\n".join(text_of(screen, width=160))
    assert "\\x1b[2Jgone\\r\\n" in text
    assert "\\x1b]0;title\\x07" in text
    assert not set("\x1b\r\x07") & set(text)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 12)])
def test_it_fits_its_terminal(width: int, height: int) -> None:
    screen = Screen()
    down = with_storage(replicas=None, data_problem="refused", admin_problem="refused")
    screen.show({**page(200), "findings": Pages("/root", "tools.yml").look(down, 1_000)["findings"]})

    lines = text_of(screen, width, height)

    assert len(lines) <= max(height, 20)
    assert max(map(len, lines)) <= width
    assert any("replace-node" in line for line in lines)


@pytest.mark.slow
def test_who_wants_one_look_only_ends_it_without_a_trace(cluster: Cluster) -> None:
    """`waltz top --json | head -1` ended with a traceback of a group of exceptions."""
    command = [sys.executable, *TOP, "-c", str(cluster.tools_file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == 141
