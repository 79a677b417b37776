"""The HTTP endpoints over real sockets."""

from __future__ import annotations

import contextlib
import json

import pytest
import trio

from waltz_core.base.errors import ConfigError
from waltz_trio.http import HttpServer, endpoints
from waltz_trio.metrics import Registry

HEALTHY = {"server-health-check": {"healthy": True, "zookeeper": True, "partitions": {"0": True}}}


async def serve(nursery: trio.Nursery, *, healthy: bool = True) -> int:
    registry = Registry(lambda: 1.0)
    registry.gauge("waltz-server.waltz-server-num-partitions", lambda: 4)
    server = HttpServer(endpoints("waltz-server", registry, lambda: (healthy, HEALTHY)))
    port = server.listen("127.0.0.1", 0, "server.jetty.port")
    nursery.start_soon(server.run)
    return port


async def exchange(port: int, request: bytes) -> bytes:
    """Send bytes, read to the end."""
    answer = bytearray()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request)
        async for data in stream:
            answer += data
    return bytes(answer)


async def get(port: int, target: str, accept: str = "") -> tuple[int, dict[str, str], str]:
    request = f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAccept: {accept}\r\n\r\n"
    head, _, body = (await exchange(port, request.encode())).decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert len(body.encode()) == int(headers["content-length"])
    return int(status.split()[1]), headers, body


async def test_ping_and_buildinfo(nursery: trio.Nursery) -> None:
    port = await serve(nursery)

    status, headers, body = await get(port, "/ping")
    assert (status, headers["content-type"], body) == (200, "text/plain", "pong\n")
    assert headers["cache-control"] == "must-revalidate,no-cache,no-store"

    status, headers, body = await get(port, "/buildinfo")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert set(json.loads(body)) == {"service_name", "version"}


@pytest.mark.parametrize(("healthy", "expected"), [(True, 200), (False, 500)])
async def test_health_is_told_by_status_and_object(nursery: trio.Nursery, healthy: bool, expected: int) -> None:
    status, headers, body = await get(await serve(nursery, healthy=healthy), "/health")

    assert (status, headers["content-type"], json.loads(body)) == (expected, "application/json", HEALTHY)


async def test_metrics_are_json_or_prometheus_as_asked(nursery: trio.Nursery) -> None:
    port = await serve(nursery)

    for accept in ("", "*/*", "application/json", "text/html", "application/json, text/plain;q=0.5"):
        _, headers, body = await get(port, "/metrics", accept)
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["gauges"]["waltz-server.waltz-server-num-partitions"] == {"value": 4}
    for target, accept in (
        ("/metrics/prometheus", ""),
        ("/metrics", "text/plain"),
        ("/metrics", "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"),
    ):
        _, headers, body = await get(port, target, accept)
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "waltz_server_num_partitions 4\n" in body


async def test_pretty_indents(nursery: trio.Nursery) -> None:
    port = await serve(nursery)

    assert "\n" in (await get(port, "/metrics?pretty=true"))[2]
    assert "\n" in (await get(port, "/health?pretty=true"))[2]
    assert "\n" not in (await get(port, "/health"))[2]


async def test_other_paths_and_methods_are_refused(nursery: trio.Nursery) -> None:
    port = await serve(nursery)

    status, headers, _ = await get(port, "/nothing")
    assert (status, headers["content-type"]) == (404, "text/html;charset=utf-8")
    assert (await exchange(port, b"POST /ping HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")).startswith(b"HTTP/1.1 405 ")


async def test_head_gives_the_head_only(nursery: trio.Nursery) -> None:
    answer = await exchange(await serve(nursery), b"HEAD /ping HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 5\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_a_connection_serves_several_requests_also_pipelined(nursery: trio.Nursery) -> None:
    request = b"GET /ping HTTP/1.1\r\n\r\n"

    answer = await exchange(await serve(nursery), request * 2 + b"GET /ping HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert answer.count(b"pong\n") == 3


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /ping\r\n\r\n",
        b"GET ping HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/2.0\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET http://[::1/ping HTTP/1.1\r\n\r\n",
    ],
)
async def test_garbage_is_answered_with_400(nursery: trio.Nursery, garbage: bytes) -> None:
    assert (await exchange(await serve(nursery), garbage)).startswith(b"HTTP/1.1 400 ")


async def test_an_endless_head_is_cut(nursery: trio.Nursery) -> None:
    port = await serve(nursery)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x" * (1 << 26))


async def test_connections_that_say_nothing_keep_nobody_out(nursery: trio.Nursery) -> None:
    port = await serve(nursery)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(150):  # more than are served at once
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            stack.push_async_callback(trio.aclose_forcefully, stream)
            await stream.send_all(b"GET /ping HT")
        with trio.fail_after(5):
            assert (await get(port, "/ping"))[0] == 200


async def test_a_taken_port_names_its_key(nursery: trio.Nursery) -> None:
    port = await serve(nursery)

    with pytest.raises(ConfigError, match=rf"server\.jetty\.port: cannot listen on 127\.0\.0\.1:{port}: .*in use"):
        HttpServer(endpoints("x", Registry(lambda: 0.0), lambda: (True, {}))).listen(
            "127.0.0.1", port, "server.jetty.port"
        )
