"""The HTTP endpoints over real sockets."""

from __future__ import annotations

import contextlib
import html
import json
import ssl

import pytest
import trio

import waltz_trio.net.http
from waltz_core.base.edge import Level
from waltz_core.base.errors import ConfigError
from waltz_trio.base.metrics import Registry
from waltz_trio.net.endpoints import endpoints
from waltz_trio.net.http import HttpLimits, HttpServer, Pay, Request, Response, Send, Stream, text
from waltz_trio.net.tls import ServerTls, TlsSettings

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
    assert headers["x-content-type-options"] == "nosniff"

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
    scraper = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    for target, accept, kind in (
        ("/metrics/prometheus", "", "text/plain; version=0.0.4"),
        ("/metrics", "text/plain", "text/plain; version=0.0.4"),
        ("/metrics", scraper, "application/openmetrics-text; version=1.0.0"),
        ("/metrics/prometheus", scraper, "application/openmetrics-text; version=1.0.0"),
    ):
        _, headers, body = await get(port, target, accept)
        assert headers["content-type"].startswith(kind)
        assert "waltz_server_num_partitions 4\n" in body
        assert body.endswith("# EOF\n") == kind.startswith("application/")


async def test_pretty_indents(nursery: trio.Nursery) -> None:
    port = await serve(nursery)

    assert "\n" in (await get(port, "/metrics?pretty=true"))[2]
    assert "\n" in (await get(port, "/health?pretty=true"))[2]
    assert "\n" not in (await get(port, "/health"))[2]


async def test_other_paths_and_methods_are_refused(nursery: trio.Nursery) -> None:
    port = await serve(nursery)

    status, headers, _ = await get(port, "/nothing")
    assert (status, headers["content-type"]) == (404, "text/html;charset=utf-8")
    assert (await exchange(port, b"POST /ping HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello")).startswith(
        b"HTTP/1.1 405 "
    )


async def test_head_gives_the_head_only(nursery: trio.Nursery) -> None:
    answer = await exchange(await serve(nursery), b"HEAD /ping HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 5\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"HEAD / HTTP/1.2\r\nHost: h\r\n\r\n", 505),
        (b"HEAD /" + b"a" * 16_380 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431),
        (b"HEAD * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ],
)
async def test_the_refusal_of_a_head_is_the_head_only_and_no_error(
    nursery: trio.Nursery, request_: bytes, status: int
) -> None:
    said: list[tuple[Level, str]] = []
    server = HttpServer(lambda request: text("pong\n"), lambda level, line: said.append((level, line)))
    port = server.listen("127.0.0.1", 0, "port")
    nursery.start_soon(server.run)

    answer = await exchange(port, request_)

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.endswith(b"\r\n\r\n")
    assert [level for level, _ in said] == [Level.WARNING]


async def test_a_refusal_behind_a_head_has_its_body(nursery: trio.Nursery) -> None:
    port = await serve(nursery)
    answer = await exchange(port, b"HEAD /ping HTTP/1.1\r\nHost: h\r\n\r\nGARBAGE\r\n\r\n")
    assert answer.endswith(b"</html>\n")


async def test_a_mistake_in_this_process_is_one_line_for_a_peer_that_repeats_it(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[Level, str]] = []
    server = HttpServer(lambda request: text("pong\n"), lambda level, line: said.append((level, line)))
    monkeypatch.setattr(HttpServer, "_requests", lambda *_: 1 / 0)
    port = server.listen("127.0.0.1", 0, "port")
    nursery.start_soon(server.run)

    for _ in range(5):
        await exchange(port, b"")

    [(level, line)] = said
    assert (level, "ZeroDivisionError" in line) == (Level.ERROR, True)


async def test_a_connection_serves_several_requests_also_pipelined(nursery: trio.Nursery) -> None:
    request = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"
    last = b"GET /ping HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

    answer = await exchange(await serve(nursery), request * 2 + last)

    assert answer.count(b"pong\n") == 3


@pytest.mark.parametrize(
    ("hostile", "status", "why"),
    [
        (b"\x00\x01\x02\r\n\r\n", 400, "illegal request line"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "illegal request line"),  # TLS
        (b"GET /ping\r\n\r\n", 400, "illegal request line"),
        (b"GET ping HTTP/1.1\r\nHost: h\r\n\r\n", 400, "is a path"),
        (b"GET /ping HTTP/2.0\r\nHost: h\r\n\r\n", 505, "HTTP/1.1"),
        (b"GET /ping HTTP/1.1\r\n\r\n", 400, "Missing mandatory Host"),
        (b"GET /ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "multiple Host"),
        (b"GET /ping HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", 400, "illegal header line"),
        (b"GET /ping HTTP/1.1\r\nHost: h\r\nX : smuggled\r\n\r\n", 400, "illegal header line"),
        (b"GET /ping HTTP/1.1\r\nHost: h\r\nX: a\rSet-Cookie: b\r\n\r\n", 400, "illegal header"),
        (b"GET /ping HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400, "Content-Length"),
        (b"GET /ping HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 4_500 + b"\r\n\r\n", 400, "Content-Length"),
        (b"GET /ping%0d%0aX:y HTTP/1.1\r\nHost: h\r\n\r\n", 400, "control characters"),
        (b"GET /ping?" + b"&".join([b"a=b"] * 30) + b" HTTP/1.1\r\nHost: h\r\n\r\n", 400, "fields"),
        (b"GET http://[::1/ping HTTP/1.1\r\nHost: h\r\n\r\n", 400, "IPv6"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n", 404, "Not Found"),
        (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n", 404, "Not Found"),
        (b"DELETE /ping HTTP/1.1\r\nHost: h\r\n\r\n", 405, "changes anything"),
        (b"GET /ping HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431, "too long"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431, "too long"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
async def test_a_hostile_request_is_answered_with_what_is_wrong(
    nursery: trio.Nursery, hostile: bytes, status: int, why: str
) -> None:
    port = await serve(nursery)
    ending = hostile + b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" if status in (404, 405) else hostile

    answer = await exchange(port, ending)

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert why in html.unescape(answer.decode())
    assert (await get(port, "/ping"))[0] == 200


async def test_a_request_behind_a_body_is_not_answered(nursery: trio.Nursery) -> None:
    smuggled = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
    head = b"GET /ping HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(smuggled)

    answer = await exchange(await serve(nursery), head + smuggled)

    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close\r\n" in answer
    assert answer.endswith(b"pong\n")


async def test_a_body_that_is_none_is_answered_as_one_that_nobody_reads_and_counted_in_the_log(
    nursery: trio.Nursery,
) -> None:
    said: list[tuple[Level, str]] = []
    server = HttpServer(lambda request: text("pong\n"), lambda level, line: said.append((level, line)))
    port = server.listen("127.0.0.1", 0, "server.jetty.port")
    nursery.start_soon(server.run)

    answer = await exchange(port, b"GET /ping HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n")

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close\r\n" in answer
    assert answer.endswith(b"pong\n")
    [(level, line)] = said
    assert level is Level.WARNING
    assert line.startswith("127.0.0.1:")
    assert line.endswith("an HTTP request was refused: 400 Bad Request")


async def test_an_endless_head_is_cut(nursery: trio.Nursery) -> None:
    port = await serve(nursery)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x" * (1 << 26))


async def test_a_slow_request_ends_with_an_answer_that_says_so(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waltz_trio.net.http, "_IDLE", 0.05)
    port = await serve(nursery)

    answer = await exchange(port, b"GET /ping HTTP/1.1\r\nHost: ")

    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_stream_ends_with_its_reader_and_there_are_only_so_many(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waltz_trio.net.http, "_STREAMS_MAX", 2)
    ended = trio.Event()

    async def feed(send: Send, pay: Pay) -> None:
        try:
            await send(b"data: 1\n\n")
            await trio.sleep_forever()
        finally:
            ended.set()

    server = HttpServer(lambda request: Stream("text/event-stream", feed))
    port = server.listen("127.0.0.1", 0, "server.jetty.port")
    nursery.start_soon(server.run)
    request = b"GET /events HTTP/1.1\r\nHost: h\r\n\r\n"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            await stream.send_all(request)
            answer = b""
            while b"data: 1\n\n" not in answer:
                answer += bytes(await stream.receive_some())
            assert b"text/event-stream" in answer
        refused = await exchange(port, request + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert refused.count(b"HTTP/1.1 503 ") == 2
    with trio.fail_after(5):
        await ended.wait()


async def test_places_of_readers_that_have_gone_are_free(nursery: trio.Nursery) -> None:
    async def feed(send: Send, pay: Pay) -> None:
        await send(b"data: 1\n\n")

    limits = HttpLimits(connections_max=10, streams_max=1, rate=1e6, burst=1000)
    server = HttpServer(lambda request: Stream("text/event-stream", feed), limits=limits)
    port = server.listen("127.0.0.1", 0, "server.jetty.port")
    nursery.start_soon(server.run)

    for _ in range(3):
        assert b"data: 1\n\n" in await exchange(port, b"GET /events HTTP/1.1\r\nHost: h\r\n\r\n")


async def test_the_head_of_a_stream_is_its_whole_answer(nursery: trio.Nursery) -> None:
    said: list[str] = []

    async def feed(send: Send, pay: Pay) -> None:
        await send(b"data: 1\n\n")

    server = HttpServer(lambda request: Stream("text/event-stream", feed), lambda level, line: said.append(line))
    port = server.listen("127.0.0.1", 0, "server.jetty.port")
    nursery.start_soon(server.run)

    answer = await exchange(port, b"HEAD /events HTTP/1.1\r\nHost: h\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert said == []


@pytest.mark.parametrize("endless", [False, True], ids=["one answer", "a stream"])
async def test_a_reader_that_takes_nothing_of_its_answer_is_left_and_named(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, endless: bool
) -> None:
    named = trio.Event()

    async def feed(send: Send, pay: Pay) -> None:
        while True:
            await send(b"x" * (1 << 20))

    def report(level: Level, line: str) -> None:
        assert line.startswith("127.0.0.1:")
        assert "too slow: the HTTP connection ended" in line
        named.set()

    def handle(request: Request) -> Response | Stream:
        monkeypatch.setattr(waltz_trio.net.http, "_IDLE", 0.05)  # from here on: the request may take its time
        much = Response(200, "text/plain", b"x" * (1 << 25))
        return Stream("text/event-stream", feed) if endless else much

    server = HttpServer(handle, report)
    port = server.listen("127.0.0.1", 0, "server.jetty.port")
    nursery.start_soon(server.run)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        with trio.fail_after(30):
            await named.wait()


async def test_a_body_that_does_not_arrive_ends_with_an_answer_that_says_so(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def admit(request: Request) -> str:
        monkeypatch.setattr(waltz_trio.net.http, "_IDLE", 0.05)  # from here on: the head may take its time
        return ""

    limits = HttpLimits(connections_max=10, streams_max=0, rate=1e6, burst=1000, body_max=8, bodies_max=10_000)
    server = HttpServer(lambda request: text(""), limits=limits, admit=admit)
    port = server.listen("127.0.0.1", 0, "port")
    nursery.start_soon(server.run)

    with trio.fail_after(30):
        answer = await exchange(port, b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\nhalf")

    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_who_connects_to_a_port_with_tls_and_says_nothing_is_left_and_named(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waltz_trio.net.http, "_IDLE", 0.05)
    said: list[str] = []
    server = HttpServer(lambda request: text(""), lambda level, line: said.append(line), ServerTls(TlsSettings()))
    port = server.listen("127.0.0.1", 0, "port")
    nursery.start_soon(server.run)

    with trio.fail_after(30):
        assert await exchange(port, b"") == b""

    [line] = said
    assert "too slow: the HTTP connection ended" in line


async def test_what_is_under_way_behind_a_refusal_resets_nothing(nursery: trio.Nursery) -> None:
    """A reset takes from a peer what it has not read yet: the answer that says what was wrong."""
    port = await serve(nursery)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.fail_after(30):
            await stream.send_all(b"no request\r\n\r\n")
            answer = b"".join([data async for data in stream])
            for _ in range(20):
                await stream.send_all(bytes(1000))
                await trio.testing.wait_all_tasks_blocked()
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_who_keeps_a_connection_open_behind_a_refusal_is_waited_for_a_moment_only(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waltz_trio.net.http, "_LINGER", 0.05)
    server = HttpServer(lambda request: text(""), tls=ServerTls(TlsSettings()))  # over TLS it ends when it is closed
    port = server.listen("127.0.0.1", 0, "port")
    nursery.start_soon(server.run)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context, https_compatible=True)
    async with stream:
        await stream.send_all(b"no request\r\n\r\n")
        answer = b""
        with trio.fail_after(30):
            async for data in stream:
                answer += data

    assert answer.startswith(b"HTTP/1.1 400 ")


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


async def test_who_sends_requests_ahead_beside_one_who_waits_has_a_line_in_the_log(nursery: trio.Nursery) -> None:
    told, answer = trio.Event(), trio.Event()

    async def handle(request: Request) -> Response:
        if request.path == "/slow":
            await answer.wait()
        return text("")

    def report(level: object, line: str) -> None:
        if "127.0.0.1" in line and "more HTTP requests than its part" in line:
            told.set()

    limits = HttpLimits(connections_max=10, streams_max=0, rate=1e6, burst=1_000_000, body_max=1)
    server = HttpServer(handle, report, limits=limits, admit=lambda request: request.headers["host"])
    port = server.listen("127.0.0.1", 0, "port")
    nursery.start_soon(server.run)
    async with (
        await trio.open_tcp_stream("127.0.0.1", port) as waits,
        await trio.open_tcp_stream("127.0.0.1", port) as floods,
    ):
        await waits.send_all(b"GET /slow HTTP/1.1\r\nHost: honest\r\n\r\n")
        await floods.send_all(b"GET / HTTP/1.1\r\nHost: flood\r\n\r\n" * 200)
        with trio.fail_after(60):
            await told.wait()
        answer.set()


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
async def test_a_body_may_be_as_long_as_the_limit_and_no_longer(
    nursery: trio.Nursery, size: int, chunked: bool
) -> None:
    limits = HttpLimits(connections_max=10, streams_max=0, rate=1e6, burst=1000, body_max=8, bodies_max=10_000)
    server = HttpServer(lambda request: text(request.body.decode()), limits=limits)
    port = server.listen("127.0.0.1", 0, "port")
    nursery.start_soon(server.run)
    head = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
    body = b"x" * size
    sent = b"Content-Length: %d\r\n\r\n%s" % (size, body)
    if chunked:
        chunks = b"5\r\nxxxxx\r\n%d\r\n%s\r\n0\r\n\r\n" % (size - 5, body[5:])
        sent = b"Transfer-Encoding: chunked\r\n\r\n" + chunks

    answer = await exchange(port, head + sent)

    assert answer.startswith(b"HTTP/1.1 %d " % (200 if size == 8 else 413))
    assert answer.endswith(body) == (size == 8)
