"""The console's requests over raw sockets, on a cluster in this process."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import waltz_trio as waltz
from waltz_core.access.web import Door
from waltz_core.base.errors import ConfigError
from waltz_core.operations.page import Console
from waltz_core.zookeeper.paths import cluster_paths
from waltz_trio.config.config import Config
from waltz_trio.console.pages import Pages
from waltz_trio.console.watch import Watch
from waltz_trio.net.certificates import issue, make_ca
from waltz_trio.net.http import HttpServer
from waltz_trio.node.console import door_of
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster
from waltz_trio.node.server import ServerProcess
from waltz_trio.zk.admin import create_cluster
from waltz_trio.zk.client import open_znode_client
from waltz_trio.zk.embedded import open_embedded_znodes


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    async with embedded_cluster(tmp_path / "data", partitions=2) as made:
        yield made


@attrs.frozen
class Answer:
    status: int
    head: str
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


async def ask(port: int, target: str, method: str = "GET", **headers: str) -> Answer:
    sent = {"Host": f"localhost:{port}", "Connection": "close"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    answer = bytearray()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode())
        async for data in stream:
            answer += data
    head, _, body = answer.decode().partition("\r\n\r\n")
    return Answer(int(head.split()[1]), head, body)


def port_of(cluster: EmbeddedCluster) -> int:
    server = cluster.server(0)
    assert server is not None
    assert server.http_port is not None
    return server.http_port


async def test_the_page_tells_of_the_cluster_and_the_log_is_read(cluster: EmbeddedCluster) -> None:
    port = port_of(cluster)
    async with waltz.open_client(cluster.url) as client:
        for number in range(30):
            await client.append(1, waltz.Append({"number": number}, waltz.Json(dict), header=number))

    page = (await ask(port, "/console/page.json")).json()
    assert [row["state"] for row in page["partitions"]] == ["ready", "ready"]
    assert page["partitions"][1]["mark"] == 29
    assert {row["level"] for row in page["servers"] + page["storages"]} == {"ok"}

    log = (await ask(port, "/console/log.json?partition=1&first=3&count=2")).json()
    assert [(row["id"], row["header"], row["size"]) for row in log["records"]] == [(3, 3, 12), (4, 4, 12)]
    assert (log["log_start"], log["high_water_mark"]) == (0, 29)
    last = (await ask(port, "/console/log.json?partition=1")).json()
    assert [row["id"] for row in last["records"]] == list(range(10, 30))
    behind = (await ask(port, "/console/log.json?partition=1&first=500")).json()
    assert behind["records"] == []


async def test_records_show_their_locks_where_the_journal_has_them(tmp_path: Path) -> None:
    settings = {"server.journal.mode": "sync", "server.journal.directory": str(tmp_path / "journal")}
    async with embedded_cluster(tmp_path / "data", partitions=1, settings=settings) as cluster:
        port = port_of(cluster)
        async with waltz.open_client(cluster.url) as client:
            first = await client.append(0, waltz.Append(b"none"))
            named = waltz.Append(b"named", write=[("account", 7)], read=[("rate", -3)], append=[("log", 1 << 60)])
            await client.append(0, named, based_on=first)
        rows = (await ask(port, "/console/log.json?partition=0")).json()["records"]
        assert rows[0]["locks"] == {"mark": -1, "write": [], "read": [], "append": []}
        kinds = {"write": ["account/7"], "read": ["rate/-3"], "append": [f"log/{1 << 60}"]}
        assert rows[1]["locks"] == {"mark": first, **kinds}

        (journal,) = (tmp_path / "journal" / "0").glob("*.journal")
        journal.unlink()
        journal.mkdir()
        log = (await ask(port, "/console/log.json?partition=0")).json()
        assert "Is a directory" in log["journal_problem"]
        assert "locks" not in log["records"][0]


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ("", 400, "partition is missing"),
        ("partition=x", 400, "expected a number"),
        ("partition=-1", 400, "expected a number"),
        ("partition=7", 400, "partitions 0 to 1"),
        ("partition=0&count=101", 400, "from 0 to 100"),
        ("partition=0&first=99999999999999999999", 400, "expected a number"),
        ("partition=%D9%A1", 400, "expected a number"),  # a digit, elsewhere
    ],
)
async def test_a_range_that_is_none_is_refused_by_name(
    cluster: EmbeddedCluster, query: str, status: int, why: str
) -> None:
    answer = await ask(port_of(cluster), f"/console/log.json?{query}")

    assert answer.status == status
    assert why in answer.json()["problem"]


@pytest.mark.parametrize("path", ["", "console.js", "page.json", "events", "log.json?partition=0"])
async def test_requests_of_strangers_are_refused(cluster: EmbeddedCluster, path: str) -> None:
    port = port_of(cluster)
    assert (await ask(port, f"/console/{path}", Host="rebound.example")).status == 421
    assert (await ask(port, f"/console/{path}", Origin="https://evil.example")).status == 403
    if path:
        assert (await ask(port, f"/console/{path}", Sec_Fetch_Site="cross-site")).status == 403


@pytest.mark.parametrize(
    "path", ["../../pages.py", "%2e%2e/pages.py", "static/console.js", "..%2fpages.py", "console.js/", "index.html"]
)
async def test_only_the_three_files_are_served(cluster: EmbeddedCluster, path: str) -> None:
    assert (await ask(port_of(cluster), f"/console/{path}")).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_but_get_is_served(cluster: EmbeddedCluster, method: str) -> None:
    assert (await ask(port_of(cluster), "/console/page.json", method)).status == 405


async def test_every_answer_forbids_scripts_and_frames_of_others(cluster: EmbeddedCluster) -> None:
    for path in ("", "console.js", "page.json", "nothing", "log.json"):
        head = (await ask(port_of(cluster), f"/console/{path}")).head
        policy = re.search(r"Content-Security-Policy: (.*)\r", head)
        assert policy is not None, path
        assert "default-src 'none'" in policy[1]
        assert "frame-ancestors 'none'" in policy[1]
        assert "unsafe" not in policy[1]
        assert "Access-Control" not in head
    static = Path(waltz.__file__).parent / "console" / "static"
    for file in static.iterdir():
        assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", file.read_text()), f"{file} loads elsewhere"
    script = (static / "console.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)


async def test_the_endpoints_of_monitoring_stay_as_they_are(cluster: EmbeddedCluster) -> None:
    port = port_of(cluster)
    assert (await ask(port, "/ping", Host="monitored.example")).body == "pong\n"
    assert (await ask(port, "/nothing")).status == 404
    assert (await ask(port, "/console")).status == 303


async def test_the_token_is_asked_for_once_and_kept_in_a_cookie(
    cluster: EmbeddedCluster, nursery: trio.Nursery
) -> None:
    server = cluster.server(0)
    assert server is not None
    watch = Watch(lambda: pytest.fail("nobody was let in"), Console("/"))
    http = HttpServer(Pages(watch, Door.LOOPBACK, token="s3cret").handle)
    port = http.listen("127.0.0.1", 0, "--port")
    nursery.start_soon(http.run)

    assert (await ask(port, "/console/")).status == 403
    assert (await ask(port, "/console/?token=wrong")).status == 403
    welcome = await ask(port, "/console/?token=s3cret")
    assert welcome.status == 303
    cookie = re.search(
        r"Set-Cookie: (waltz-console-\d+=s3cret); Path=/console/; HttpOnly; SameSite=Strict", welcome.head
    )
    assert cookie is not None
    assert (await ask(port, "/console/console.js", Cookie=f"other=1; {cookie[1]}")).status == 200
    assert (await ask(port, "/console/console.js", Cookie="waltz-console-1=s3cret")).status == 403


async def test_nobody_looks_while_nobody_watches(cluster: EmbeddedCluster) -> None:
    server = cluster.server(0)
    assert server is not None
    snapshot = server.snapshot()
    assert snapshot is not None
    assert snapshot.connections == 0
    await ask(port_of(cluster), "/console/page.json")
    assert (await ask(port_of(cluster), "/console/page.json")).json()["problem"] == ""


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, "server.console.port is not set"),
        ({"server.console.port": 0}, "set server.ssl.ca"),
    ],
)
def test_certificates_need_a_port_and_an_authority(keys: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        door_of(Config({"server.console": "certificate", **keys}))


async def test_behind_certificates_it_is_served_over_tls_to_whom_shows_one(tmp_path: Path) -> None:
    settings = {
        "server.console": "certificate",
        "server.console.port": 0,
        "server.ssl.requireClientCertificate": True,
        "storage.ssl.requireClientCertificate": True,
    }
    async with embedded_cluster(tmp_path / "data", partitions=1, settings=settings) as cluster:
        server = cluster.server(0)
        assert server is not None
        assert server.console_port is not None
        assert (await ask(port_of(cluster), "/console/")).status == 404
        tls = tmp_path / "data" / "tls"
        context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
        assert await ask_secure(server.console_port, context) == b""
        context.load_cert_chain(tls / "node.pem", tls / "node.key")
        answer = await ask_secure(server.console_port, context)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert [row["id"] for row in json.loads(body)["partitions"]] == [0]


async def test_behind_certificates_it_needs_no_http_port(nursery: trio.Nursery, tmp_path: Path) -> None:
    ca = make_ca("authority")
    pair = issue(ca, "server", ["127.0.0.1"])
    (tmp_path / "ca.pem").write_bytes(ca.certificate)
    (tmp_path / "server.pem").write_bytes(pair.certificate + pair.key)
    keys = {
        "zookeeper.connectString": "in this process",
        "zookeeper.sessionTimeout": 3000,
        "cluster.root": "/test",
        "server.host": "127.0.0.1",
        "server.port": 0,
        "server.console": "certificate",
        "server.console.port": 0,
        "server.ssl.ca": str(tmp_path / "ca.pem"),
        "server.ssl.certificate": str(tmp_path / "server.pem"),
    }
    async with open_embedded_znodes() as store, open_znode_client(store) as client:
        await create_cluster(client, cluster_paths("/test"), "test", 1)
        server = ServerProcess(Config(keys), store)
        await nursery.start(server.run)
        assert server.http_port is None
        assert server.console_port is not None
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        context.load_cert_chain(tmp_path / "server.pem")
        assert b" 200 " in await ask_secure(server.console_port, context)
        server.cancel()


async def ask_secure(port: int, context: ssl.SSLContext) -> bytes:
    """The answer; empty where the server ended the connection instead."""
    answer = bytearray()
    try:
        stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context, https_compatible=True)
        async with stream:
            await stream.send_all(b"GET /console/page.json HTTP/1.1\r\nHost: db1.example\r\nConnection: close\r\n\r\n")
            async for data in stream:
                answer += data
    except (trio.BrokenResourceError, OSError):
        pass  # TLS 1.3: a client learns only when it reads that its certificate is missed
    return bytes(answer)
