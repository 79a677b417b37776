"""The mistakes of a first program: each ends soon, with the line that is right."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import warnings
from pathlib import Path
from typing import Any

import pytest
import trio

import waltz_trio as waltz
from tests.trio.small_cluster import small_cluster
from waltz_trio.client.connect import read_config, run_client
from waltz_trio.config.config import Config
from waltz_trio.net.ports import HeldPorts

SOON = {"client.connectTimeout": 300}
ZOOKEEPER = {"zookeeper.connectString": "x", "zookeeper.sessionTimeout": 4000, "cluster.root": "/waltz"}


async def failure(source: Any) -> str:
    """Why a client does not open."""
    with trio.fail_after(30), pytest.raises(waltz.ClientFailedError) as found:
        async with run_client(read_config(source)):
            pytest.fail("it opened")
    return str(found.value)


def hurried(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address has no keys of its own: its defaults are made short."""
    real = Config.number

    def number(self: Config, key: str) -> int:
        return SOON.get(key) or real(self, key)

    monkeypatch.setattr(Config, "number", number)
    return url


async def test_an_address_where_nobody_listens_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = HeldPorts()
    port = ports.take()
    text = await failure(hurried(f"waltz://127.0.0.1:{port}", monkeypatch))
    ports.release()
    why = f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert text == f"no cluster answered within 0.3 s (client.connectTimeout): {why}"


async def test_a_port_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        text = await failure(hurried(f"waltz://127.0.0.1:{port}", monkeypatch))
    assert f"127.0.0.1:{port}: still connecting" in text


async def test_zookeeper_that_is_not_there_is_named_address_by_address() -> None:
    ports = HeldPorts()
    nobody = f"127.0.0.1:{ports.take()}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_address = f"127.0.0.1:{silent.getsockname()[1]}"
        where = f"{nobody},{silent_address}/waltz"
        text = await failure({**ZOOKEEPER, "zookeeper.connectString": where, **SOON})
    ports.release()
    assert f"no session with ZooKeeper at {where}" in text
    assert f"; {nobody}: Connection refused; {silent_address}: takes connections" in text


def test_a_client_that_may_wait_waits() -> None:
    assert read_config({**ZOOKEEPER, "client.connectTimeout": 0}).settings.connect_ms is None
    assert read_config("waltz://x:1").settings.connect_ms == 10_000


# ---- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "127.0.0.1:7801",
            "the address of a server is written waltz://127.0.0.1:7801, that of a cluster in ZooKeeper by",
        ),
        ("https://waltz.example:7801/x", "the address of a server is written waltz://waltz.example:7801,"),
        ("waltz:localhost:7801", "the address of a server is written waltz://localhost:7801,"),
        (
            "zk1:2181/waltz",
            '{"zookeeper.connectString": "HOST:2181", "zookeeper.sessionTimeout": 30000, "cluster.root": "/PATH"}',
        ),
        ("waltz://localhost", "localhost"),
        ("waltz://localhost:x", "localhost:x"),
        ("absent.yml", "cannot read absent.yml: No such file or directory"),
        (
            7801,
            "the path of a file, a mapping of keys or waltz://host:port[?ca=PATH][&verify=on|ca|off], found 7801",
        ),
        (None, "found None (NoneType)"),
        (["waltz://localhost:1"], "(list)"),
    ],
)
async def test_what_is_no_address_says_how_one_is_written(source: Any, text: str) -> None:
    with pytest.raises(waltz.ConfigError, match=re.escape(text)):
        async with waltz.open_client(source):
            pytest.fail("it opened")


def test_a_file_may_be_called_like_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("host:1").write_text("zookeeper.connectString: zk\nzookeeper.sessionTimeout: 4000\ncluster.root: /waltz\n")
    assert read_config("host:1").config.source == "host:1"


async def test_the_file_of_tools_is_no_file_of_a_client(tmp_path: Path) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(
        "zookeeper.connectString: zk\nzookeeper.sessionTimeout: 4000\ncluster.root: /waltz\nssl.ca: ca.pem\n"
    )
    expected = f"{path}: has ssl.ca, which tools read, and no client.ssl.* key, which clients read"
    with pytest.raises(waltz.ConfigError, match=re.escape(expected)):
        async with waltz.open_client(path):
            pytest.fail("it opened")


# ---- the block ---------------------------------------------------------------------------------------


async def enter(manager: Any) -> None:
    async with manager:
        pytest.fail("it opened")


def test_asyncio_is_recognised() -> None:
    with pytest.raises(RuntimeError, match=r"runs on Trio, found asyncio: start the program with trio.run\(main\)"):
        asyncio.run(enter(waltz.open_client("waltz://127.0.0.1:1")))


def test_no_loop_at_all_is_recognised() -> None:
    with pytest.raises(RuntimeError, match=r"start the program with trio.run\(main\)"):
        enter(waltz.open_client("waltz://127.0.0.1:1")).send(None)


async def test_async_with_that_is_missing_is_named() -> None:
    line = re.escape("write: async with open_client(...) as client:")
    opening: Any = waltz.open_client("waltz://127.0.0.1:1")
    with pytest.raises(TypeError, match="`async` is missing before `with`; " + line), opening:
        pytest.fail("it opened")
    with pytest.raises(TypeError, match="entered, not awaited; " + line):
        await opening
    with pytest.raises(AttributeError, match="this has no 'append' before it is entered; " + line):
        opening.append(0, waltz.Append(b""))
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        feed: Any = client.feed(0, after=-1)
        with pytest.raises(TypeError, match=r"entered first; write: async with client.feed\(...\) as feed:"):  # noqa: PT012
            async for _ in feed:
                pytest.fail("it was entered")
        bank: Any = client.materialize(waltz.DictView(lambda txn, state: None))
        with pytest.raises(RuntimeError, match="is not open: use `async with client"):
            await bank.submit(print, partition=0)
        assert not hasattr(opening, "__fspath__")


async def test_an_await_that_is_missing_is_an_error_when_the_block_ends() -> None:
    async with small_cluster() as cluster:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter complains too, where it is asked to
            text = "6 calls of append, send or submit, or of their _many, were not awaited, and appended nothing"
            with pytest.raises(RuntimeError, match=text):  # noqa: PT012
                async with waltz.open_client(cluster.url) as client:
                    client.append(0, waltz.Append(b""))  # type: ignore[unused-coroutine]
                    client.send(0, waltz.Append(b""))  # type: ignore[unused-coroutine]
                    client.append_many(0, [waltz.Append(b"")])  # type: ignore[unused-coroutine]
                    client.send_many(0, [waltz.Append(b"")])  # type: ignore[unused-coroutine]
                    async with client.materialize(waltz.DictView[Any](lambda txn, state: None)) as app:
                        app.submit(lambda state: None, partition=0)  # type: ignore[unused-coroutine]
                        app.submit_many(lambda state: None, [()], partition=0)  # type: ignore[unused-coroutine]
                        await app.submit_many(lambda state: None, [()], partition=0)
                    await (await client.send_many(0, [])).outcomes()
                    await client.append_many(0, [])
                    await client.append(0, waltz.Append(b""))
            gc.collect()
    assert cluster.logs[0].mark == 0


async def test_calls_that_tasks_make_count_as_awaited() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(client.append, 0, waltz.Append(b""))
        with trio.move_on_after(0):
            await client.append(0, waltz.Append(b""))
    assert cluster.logs[0].mark >= 2
