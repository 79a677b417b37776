"""What a command shows on a terminal while it takes long, and that it shows nothing elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.logs import make_log


def on_terminal(*words: str) -> str:
    """What a command writes to standard error, which is a terminal."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "waltz_trio.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=its, env={**os.environ, "TERM": "xterm"}) as child:
        os.close(its)
        written = bytearray()
        try:
            while data := os.read(ours, 1 << 16):
                written += data
        except OSError:
            pass  # the other end is closed
        finally:
            os.close(ours)
            child.wait(60)
    return written.decode()


@pytest.fixture
def tools_file(tmp_path: Path) -> Path:
    path = tmp_path / "tools.yml"
    path.write_text("zookeeper.connectString: 127.0.0.1:1\nzookeeper.connectTimeout: 4000\ncluster.root: /x\n")
    return path


@pytest.mark.parametrize("words", ["doctor", "zookeeper list", "cluster verify"])
def test_a_command_that_waits_says_for_what(words: str, tools_file: Path) -> None:
    assert "connecting to ZooKeeper ..." in on_terminal(*words.split(), "-c", str(tools_file))


def test_where_nobody_looks_on_nothing_is_shown(tools_file: Path) -> None:
    command = [sys.executable, "-m", "waltz_trio.cli.main", "cluster", "verify", "-c", str(tools_file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "connecting" not in ended.stderr


@pytest.mark.parametrize("command", ["verify-segment", "segment-statistic"])
def test_a_segment_shows_how_far_it_is_read(command: str, tmp_path: Path) -> None:
    make_log(tmp_path, [[b"x" * 50 for _ in range(1000)]], threshold=1 << 20)
    (segment,) = (tmp_path / "0").glob("*.seg")
    assert "/1000" in on_terminal("disk", command, str(segment))
