"""`waltz dev` and `waltz server run` as processes: first line, exit status, signals, kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from waltz_trio.cli.main import main
from waltz_trio.client.codecs import Raw
from waltz_trio.client.connect import open_client
from waltz_trio.client.values import Append

WALTZ = [sys.executable, "-X", "dev", "-m", "waltz_trio.cli.main"]


@contextmanager
def dev(directory: Path, *arguments: str, stderr: int | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `waltz dev` and the first line that it printed."""
    command = [*WALTZ, "dev", "--port", "0", "--directory", str(directory), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def append(url: str, value: bytes) -> int:
    async def run() -> int:
        with trio.fail_after(30):
            async with open_client(url) as client:
                return await client.append(0, Append(value, Raw()))

    return trio.run(run)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_line_is_the_address_and_a_signal_ends_it_with_status_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    with dev(tmp_path, "--partitions", "2") as (process, url):
        assert url.startswith("waltz://127.0.0.1:")
        assert f"?ca={tmp_path}/tls/ca.pem" in url
        assert append(url, b"one") == 0

        process.send_signal(number)
        assert process.wait(30) == 0


def listening(pid: int) -> set[str]:
    """Addresses at which a process listens, as Linux writes them: IPv4, then IPv6."""
    own = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[1].partition(":")[0])
    return found


def test_it_listens_at_this_machine_alone_unless_it_is_asked_for_more(tmp_path: Path) -> None:
    loopback, other = "0100007F", "0200007F"
    with dev(tmp_path) as (process, _):
        assert listening(process.pid) == {loopback}
    with dev(tmp_path, "--host", "127.0.0.2") as (process, url):
        assert url.startswith("waltz://127.0.0.2:")
        assert listening(process.pid) == {loopback, other}
        assert append(url, b"one") == 0


def test_it_wants_an_address_that_clients_can_reach(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with dev(tmp_path, "--host", "0.0.0.0") as (process, _):
        assert process.wait(30) == 1
    assert "name one address" in capfd.readouterr().err


def test_data_survives_kill_9_and_other_numbers_are_refused(tmp_path: Path) -> None:
    with dev(tmp_path, "--partitions", "1") as (process, url):
        assert append(url, b"one") == 0
        process.kill()
        process.wait()
    with dev(tmp_path) as (_, url):
        assert append(url, b"two") == 1

    text = refused("dev", "--directory", str(tmp_path), "--partitions", "7")
    assert text.startswith("Error: ")
    assert "number of partitions is 1, not 7" in text


def refused(*arguments: str) -> str:
    """What a command says that ends with status 1."""
    found = subprocess.run([*WALTZ, *arguments], capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    return found.stderr


@pytest.mark.parametrize(
    ("option", "number", "bounds"),
    [
        ("--partitions", "0", "from 1 to 1000000"),
        ("--partitions", "99999999999", "from 1 to 1000000"),
        ("--servers", "-1", "from 1 to 65535"),
        ("--storage-nodes", "0", "from 1 to 65535"),
        ("--port", "65536", "from 0 to 65535"),
        ("--port", "-1", "from 0 to 65535"),
    ],
)
def test_a_cluster_that_can_be_none_is_not_begun(
    option: str, number: str, bounds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", "--directory", str(tmp_path / "data"), option, number]) == 2
    assert f"{option}: expected a whole number {bounds}, found '{number}'" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1"])
def test_a_demonstration_lasts_some_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "run", "--seconds", seconds]) == 2
    assert f"{seconds} is not " in capsys.readouterr().err


def test_a_server_that_cannot_start_says_why_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.yml"
    path.write_text("server.port: 1\nzookeeper: {connectString: 'localhost:1', sessionTimout: 5}\n")

    assert main(["server", "run", str(tmp_path / "absent.yml")]) == 1
    assert capsys.readouterr().err.startswith("Error: cannot read ")
    text = refused("server", "run", str(path))
    assert "did you mean zookeeper.sessionTimeout?" in text
    assert text.splitlines()[-1].startswith("Error: ")


def test_the_command_knows_its_nouns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "server" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert main([]) == 2
    assert main(["nonsense"]) == 2
    assert "Unknown subcommand: nonsense" in capsys.readouterr().err


def test_it_refuses_to_run_without_assertions() -> None:
    found = subprocess.run([sys.executable, "-O", "-m", "waltz_trio.cli.main", "--help"], capture_output=True)

    assert found.returncode == 1
    assert b"-O" in found.stderr
