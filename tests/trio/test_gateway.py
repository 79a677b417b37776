"""A gateway over raw sockets, on a cluster in this process: what is asked, what is hostile, what is too much."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    TextMessage,
)
from wsproto.events import Request as Handshake

import waltz_trio as waltz
from waltz_core.access.bodies import Bodies
from waltz_core.access.port_turns import PIECE, STREAM
from waltz_core.base.errors import ConfigError
from waltz_core.gateway import calls, json_text
from waltz_core.gateway.door import token_hash
from waltz_core.gateway.keyed import Done, Key
from waltz_core.gateway.problems import Outcome, Problem
from waltz_core.gateway.quotas import Limits, Quotas
from waltz_core.gateway.topics import Place, Topic
from waltz_trio.cli.gateway import tls_of
from waltz_trio.config.config import Config
from waltz_trio.config.gateway import gateway_settings
from waltz_trio.gateway.appends import Appends
from waltz_trio.gateway.clusters import Cluster
from waltz_trio.gateway.service import Gateway, http_limits, refuse
from waltz_trio.gateway.sockets import Socket
from waltz_trio.net.http import HttpServer, Request, Response, Stream
from waltz_trio.net.pace import Turns, Work
from waltz_trio.net.ports import HeldPorts
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster

PATIENCE = 60
AT = "/topics/pay/partitions/0"
_POST = f"POST {AT}/append HTTP/1.1\r\nHost: localhost\r\n".encode()


@attrs.frozen
class Answer:
    status: int
    head: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@attrs.frozen
class Desk:
    """A gateway that runs, and how it is asked."""

    port: int
    complaints: list[str]
    gave_up: trio.Event  # on a connection that was too slow
    gateway: Gateway

    async def raw(self, data: bytes) -> Answer:
        """Send, and read to the end of the connection."""
        with trio.fail_after(PATIENCE):
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                await stream.send_all(data)
                answer = b"".join([piece async for piece in stream])
        head, _, body = answer.partition(b"\r\n\r\n")
        return Answer(int(head.split()[1]), head.decode().lower(), body)

    async def ask(self, path: str, body: object = None, method: str = "", **headers: str) -> Answer:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1", "Connection: close"]
        given = {"Host": "localhost", "Content-Type": "application/json", **headers}
        lines += [f"{name.replace('_', '-')}: {text}" for name, text in given.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(data)}")
        return await self.raw("\r\n".join([*lines, "", ""]).encode() + data)

    async def append(self, body: object, **headers: str) -> Answer:
        return await self.ask(f"{AT}/append", body, **headers)

    @asynccontextmanager
    async def events(self, path: str, **headers: str) -> AsyncIterator[Events]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            lines = [f"GET {path} HTTP/1.1", "Host: localhost", *(f"{name}: {text}" for name, text in headers.items())]
            await stream.send_all("\r\n".join([*lines, "", ""]).encode())
            yield Events(stream)


class Events:
    """The data of server-sent events."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._held = b""
        self._lines: list[str] = []

    async def next(self) -> str:
        with trio.fail_after(PATIENCE):
            while not self._lines:
                piece = await self._stream.receive_some()
                assert piece, "the feed has ended"
                *lines, self._held = (self._held + piece).split(b"\n")
                self._lines += [line[6:].decode() for line in lines if line.startswith(b"data: ")]
        return self._lines.pop(0)


@asynccontextmanager
async def gateway(
    cluster_url: str, more_topics: Sequence[Mapping[str, object]] = (), /, **keys: object
) -> AsyncIterator[Desk]:
    complaints: list[str] = []
    gave_up = trio.Event()
    topics = [
        *more_topics,
        {"name": "pay", "cluster": cluster_url, "partitions": "0-1"},
        {"name": "audit", "cluster": cluster_url, "partitions": "2"},
    ]
    given = {f"gateway.{name}": value for name, value in keys.items()}
    settings = gateway_settings(Config({"gateway.topics": topics, **given}))
    async with trio.open_nursery() as nursery:

        def report(level: object, text: str) -> None:
            complaints.append(text)
            if "too slow" in text:
                gave_up.set()

        made = Gateway(settings, nursery, report)
        server = HttpServer(
            made.handle, report, tls_of(settings), limits=http_limits(settings), admit=made.admit, refuse=refuse
        )
        port = server.listen("127.0.0.1", 0, "gateway.port")
        nursery.start_soon(server.run)
        yield Desk(port, complaints, gave_up, made)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    async with embedded_cluster(tmp_path / "data", partitions=3) as made:
        yield made


@pytest.fixture
async def desk(cluster: EmbeddedCluster) -> AsyncIterator[Desk]:
    async with gateway(cluster.url, bodySizeMax=200_000) as made:
        yield made
    assert not [line for line in made.complaints if "error" in line.lower()], made.complaints


async def test_what_is_appended_is_read_followed_and_found_by_its_key(desk: Desk) -> None:
    assert (await desk.ask(f"{AT}/mark")).json()["mark"] == -1
    body = b'{"json": {"n": 1.10}, "header": 7, "key": "-1:a"}'
    first = await desk.append(body)
    assert (first.status, first.json()) == (201, {"topic": "pay", "partition": 0, "id": 0, "repeated": False})
    again = await desk.append(body)
    assert (again.status, again.json()["id"], again.json()["repeated"]) == (200, 0, True)
    other = await desk.append({"json": {"n": 1.1}, "header": 7, "key": "-1:a"})
    assert (other.status, other.json()["code"], other.json()["id"]) == (409, "key-reused", 0)
    assert (await desk.append({"base64": "/w=="})).json()["id"] == 1
    records = (await desk.ask(f"{AT}/records?first=0&payload=json")).body.decode()
    assert (
        '{"id":0,"header":7,"json":{"n":1.10,"idempotencyKey":"-1:a"}},{"id":1,"header":0,"base64":"/w=="}' in records
    )
    assert (await desk.ask(f"{AT}/records?first=2")).json()["records"] == []
    assert [each["id"] for each in (await desk.ask(f"{AT}/records?first=1&count=9")).json()["records"]] == [1]
    async with desk.events(f"{AT}/feed?after=tail", **{"Last-Event-ID": "0"}) as events:
        assert json.loads(await events.next()) == {"id": 1, "header": 0, "base64": "/w=="}
        assert (await desk.append({"text": "later"})).status == 201
        assert base64.b64decode(json.loads(await events.next())["base64"]) == b"later"


async def test_a_feed_says_where_it_begins_so_that_who_comes_again_before_a_record_misses_none(desk: Desk) -> None:
    assert (await desk.append({"text": "before"})).json()["id"] == 0
    async with await trio.open_tcp_stream("127.0.0.1", desk.port) as stream:
        await stream.send_all(f"GET {AT}/feed?after=tail HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        said = b""
        with trio.fail_after(PATIENCE):
            while b"\n\n" not in said:
                said += await stream.receive_some()
    assert b": from 0 on\nid: 0\n\n" in said, "no data: it is no event, but sets the id of the last one"
    assert (await desk.append({"text": "while away"})).json()["id"] == 1
    async with desk.events(f"{AT}/feed?after=tail&payload=text", **{"Last-Event-ID": "0"}) as events:
        assert json.loads(await events.next()) == {"id": 1, "header": 0, "text": "while away"}
    async with desk.events(f"{AT}/feed?after=tail&payload=text", **{"Last-Event-ID": "-1"}) as events:
        assert json.loads(await events.next())["text"] == "before"


async def test_a_decision_on_an_old_state_is_refused(desk: Desk) -> None:
    locked = {"text": "x", "locks": {"write": [["account", 7]]}, "mark": -1}
    assert (await desk.append(locked)).status == 201
    refused = await desk.append(locked)
    assert (refused.status, refused.json()["code"], refused.json()["outcome"]) == (409, "lock-conflict", "refused")
    assert (await desk.append({**locked, "mark": 1})).json()["code"] == "mark-ahead"
    assert (await desk.append({**locked, "mark": 0})).status == 201


async def test_a_key_that_is_newer_than_the_decision_does_not_switch_its_locks_off(desk: Desk) -> None:
    """The mark of the key is asked for right before the append, as the how-to says; the decision is older."""
    account = {"locks": {"write": [["account", 7]]}, "mark": 0}
    assert (await desk.append({"json": {"balance": 5}})).json()["id"] == 0
    assert (await desk.append({"json": {"balance": 1}, **account})).json()["id"] == 1
    mark = (await desk.ask(f"{AT}/mark")).json()["mark"]
    refused = await desk.append({"json": {"balance": 2}, "key": f"{mark}:order-1", **account})
    assert (refused.status, refused.json()["code"]) == (409, "lock-conflict")
    assert refused.json()["blockingId"] == 1
    decided_anew = {"json": {"balance": 0}, "key": f"{mark}:order-2", **account, "mark": 1}
    answers = [await desk.append(decided_anew) for _ in range(2)]
    assert [(each.status, each.json()["id"]) for each in answers] == [(201, 2), (200, 2)]
    ahead = await desk.append({"json": {}, "key": "9:order-3", **account})
    assert (ahead.status, ahead.json()["code"]) == (409, "mark-ahead")


async def test_repeats_at_the_same_time_commit_once(cluster: EmbeddedCluster) -> None:
    ids: list[int] = []
    async with gateway(cluster.url) as one, gateway(cluster.url) as other, trio.open_nursery() as nursery:

        async def repeat(desk: Desk) -> None:
            ids.append((await desk.append({"json": {"n": 1}, "key": "-1:same"})).json()["id"])

        for _ in range(10):
            nursery.start_soon(repeat, one)
            nursery.start_soon(repeat, other)
    async with waltz.open_client(cluster.url) as client:
        assert (set(ids), len(ids), await client.committed_mark(0)) == ({ids[0]}, 20, ids[0])


async def test_a_repeat_finds_its_key_among_others(desk: Desk) -> None:
    assert (await desk.append({"json": {"n": 1}, "key": "-1:a"})).status == 201
    for number in range(5):
        assert (await desk.append({"json": {"n": number}, "key": f"0:b{number}"})).status == 201
    found = await desk.append({"json": {"n": 1}, "key": "-1:a"})
    assert (found.json()["id"], found.json()["repeated"]) == (0, True)


# ---- who may ---------------------------------------------------------------------------------------------


async def test_roles_are_kept_to(cluster: EmbeddedCluster) -> None:
    access = [
        {"tokenSha256": token_hash("r"), "name": "reader", "read": ["pay"]},
        {"tokenSha256": token_hash("w"), "name": "writer", "append": ["pay"]},
    ]
    async with gateway(cluster.url, access=access) as desk:
        body = {"text": "x"}
        assert (await desk.append(body)).status == 401
        assert "www-authenticate: bearer" in (await desk.append(body)).head
        assert (await desk.append(body, Authorization="Bearer no")).status == 401
        refused = await desk.append(body, Authorization="Bearer r")
        assert (refused.status, refused.json()["detail"]) == (403, "reader may not append to topic pay")
        assert (await desk.append(body, Authorization="Bearer w")).status == 201
        assert (await desk.ask(f"{AT}/records?first=0", Authorization="Bearer w")).status == 403
        assert (await desk.ask(f"{AT}/feed?after=-1", Authorization="Bearer w")).status == 403
        assert (await desk.ask(f"{AT}/records?first=0", Authorization="Bearer r")).status == 200
        assert (await desk.ask("/topics/audit", Authorization="Bearer r")).status == 404
        topics = (await desk.ask("/topics", Authorization="Bearer r")).json()["topics"]
        assert [topic["topic"] for topic in topics] == ["pay"]


async def test_pages_of_other_sites_are_let_in_by_name_alone(cluster: EmbeddedCluster) -> None:
    async with gateway(cluster.url, origins=["https://shop.example"]) as desk:
        shared = await desk.append({"text": "x"}, Origin="https://shop.example", Sec_Fetch_Site="cross-site")
        assert shared.status == 201
        assert "access-control-allow-origin: https://shop.example" in shared.head
        before = await desk.ask(f"{AT}/append", method="OPTIONS", Origin="https://shop.example")
        assert (before.status, before.body) == (204, b"")
        assert "access-control-allow-methods: get, post" in before.head
        for origin in ("https://evil.example", "null"):
            refused = await desk.append({"text": "x"}, Origin=origin)
            assert (refused.status, refused.json()["code"]) == (403, "foreign-page")
            assert "allow-origin" not in refused.head
            assert (await desk.ask(f"{AT}/append", method="OPTIONS", Origin=origin)).status == 403
        rebound = await desk.append({"text": "x"}, Host="evil.example")
        assert (rebound.status, rebound.json()["code"]) == (421, "wrong-host")
        assert (await desk.ask(f"{AT}/mark")).json()["mark"] == 0


# ---- what is hostile -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hostile", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (_POST + b"Content-Length: 200001\r\n\r\n", 413),
        (_POST + b"Content-Length: -1\r\n\r\n", 400),
        (_POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (
            _POST + b"Transfer-Encoding: chunked\r\n\r\n"
            + (b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 20,
            413,
        ),
        (b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: a\r\n\tb: c\r\nX\x00: d\r\n\r\n", 400),
        (b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /topics/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET /topics/%2e%2e%2f%2e%2e%2fetc%2fpasswd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET /topics/a%0d%0aSet-Cookie:%20x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        (b"GET /topics HTTP/1.1\r\n\r\n", 400),
        (b"DELETE /topics/pay HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
    ],
)  # fmt: skip
async def test_hostile_requests_get_an_answer_as_json_and_leave_nothing(
    desk: Desk, hostile: bytes, status: int
) -> None:
    answer = await desk.raw(hostile)
    assert answer.status == status
    assert answer.json()["status"] == status
    assert "set-cookie" not in answer.head
    assert (await desk.ask(f"{AT}/mark")).json()["mark"] == -1


async def test_a_body_is_not_read_of_who_may_not_append(cluster: EmbeddedCluster) -> None:
    async with gateway(cluster.url, access=[]) as desk:
        head = b"POST /topics/pay/partitions/0/append HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        assert (await desk.raw(head)).status == 401, "answered without one byte of the body"


async def test_a_body_that_does_not_come_is_answered_in_time(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(cluster.url) as desk:
        assert (await desk.ask(f"{AT}/mark")).json()["mark"] == -1
        monkeypatch.setattr("waltz_trio.net.http._IDLE", 0.5)
        answer = await desk.raw(_POST + b"Content-Type: application/json\r\nContent-Length: 40\r\n\r\n" + b'{"text": ')
        monkeypatch.undo()
        assert (answer.status, answer.json()["code"]) == (408, "too-slow")
        assert (await desk.ask(f"{AT}/mark")).json()["mark"] == -1


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_of_another_type_is_refused(desk: Desk, content_type: str) -> None:
    answer = await desk.append({"text": "x"}, **{"Content-Type": content_type})
    assert (answer.status, answer.json()["status"]) == (415, 415)
    assert (await desk.ask(f"{AT}/mark")).json()["mark"] == -1


async def test_a_large_body_is_asked_for(desk: Desk) -> None:
    body = json.dumps({"text": "x" * 100_000}).encode()
    head = (
        f"POST {AT}/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with await trio.open_tcp_stream("127.0.0.1", desk.port) as stream:
        await stream.send_all(head.encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 Continue\r\n")
        await stream.send_all(body)
        assert b"".join([piece async for piece in stream]).startswith(b"HTTP/1.1 201 ")


async def test_large_json_is_parsed_beside_the_loop_that_serves_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_loop: list[bool] = []
    parse = json_text.parse

    def watched(text: str | bytes) -> Any:
        in_loop.append(threading.current_thread() is threading.main_thread())
        return parse(text)

    monkeypatch.setattr(json_text, "parse", watched)
    large = {"json": [1] * 50_000}
    for body in ({"text": "x"}, large):
        assert (await desk.append(body)).status == 201
    assert (await desk.append(b"[" * 100_000)).status == 400
    async with peer(desk, f"{AT}/socket") as other:
        assert isinstance(await other.event(), AcceptConnection)
        await other.send(TextMessage(json.dumps({"ref": 1, **large})))
        assert (await other.json())["append"]["id"] == 2
        await other.send(CloseConnection(1000))
    assert in_loop == [True, False, False, False]


async def test_bodies_that_are_held_are_counted_for_all(cluster: EmbeddedCluster) -> None:
    async with gateway(cluster.url, bytesMax=3000) as desk:
        head = f"POST {AT}/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
        async with await trio.open_tcp_stream("127.0.0.1", desk.port) as slow:
            await slow.send_all(head + b"Content-Length: 2500\r\n\r\n" + b" " * 2400)
            with trio.fail_after(PATIENCE):
                while True:  # until the first body is held
                    full = await desk.append({"text": "x" * 800})
                    if full.status == 503:
                        break
            assert full.json()["code"] == "full"
            assert "retry-after: 1" in full.head
        with trio.fail_after(PATIENCE):
            while (await desk.append({"text": "x" * 800})).status != 201:
                pass


async def test_bodies_of_one_caller_leave_room_for_those_of_others(cluster: EmbeddedCluster) -> None:
    everything = {"read": "all", "append": "all"}
    access = [{"tokenSha256": token_hash(name), "name": name, **everything} for name in ("flood", "honest")]
    async with gateway(cluster.url, bytesMax=40_000, access=access) as desk, AsyncExitStack() as stack:
        head = f"POST {AT}/append HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer flood\r\n"
        for _ in range(20):
            slow = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", desk.port))
            await slow.send_all(f"{head}Content-Length: 9000\r\n\r\n".encode() + b" " * 8_000)
        await desk.ask("/topics", Authorization="Bearer flood")
        for _ in range(3):
            answer = await desk.append({"text": "x" * 15_000}, Authorization="Bearer honest")
            assert answer.status == 201, answer


async def test_a_message_in_thousands_of_frames_is_looked_at_in_turns() -> None:
    upgrade = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version": "13"}
    headers = {"host": "localhost", **upgrade, "sec-websocket-key": "YXR0YWNrYXR0YWNrYXR0YQ=="}
    ours, theirs = trio.testing.memory_stream_pair()
    costs: list[int] = []
    messages: list[str] = []

    class Counted(Turns):
        async def turn(self, conn: int, owner: str, cost: int, *, request: bool = False, ahead: bool = False) -> bool:
            costs.append(cost)
            return False

    async def answer(message: str) -> str:
        messages.append(message)
        return "done"

    frame = b"\x81" + bytes(4) + b"x"
    sent = b"\x01" + frame + (b"\x00" + frame) * 5_000 + b"\x80" + frame
    socket = Socket(headers, f"{AT}/socket", size_max=10_000, answer=answer, feed=None)
    work = Work(Counted(1e6, 1), 1, "a", lambda: None)
    async with ours, theirs, trio.open_nursery() as nursery:
        nursery.start_soon(socket.serve, ours, sent, Bodies(1 << 20).of(1, "a"), work)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert messages == ["x" * 5_002]
    assert len(costs) > 5_000 // 50
    assert min(costs[1:]) > 500, "and what is done in one costs as much"


async def test_feeds_are_counted(cluster: EmbeddedCluster) -> None:
    async with gateway(cluster.url, feedsMax=1) as desk:
        assert (await desk.append({"text": "x"})).status == 201
        async with desk.events(f"{AT}/feed?after=-1") as events:
            await events.next()
            refused = await desk.ask(f"{AT}/feed?after=-1")
            assert (refused.status, refused.json()["code"]) == (503, "full")
            assert "retry-after: 1" in refused.head


async def test_feeds_of_one_caller_are_counted_and_leave_places_for_others(cluster: EmbeddedCluster) -> None:
    access = [{"tokenSha256": token_hash(name), "name": name, "read": ["pay"], "append": ["pay"]} for name in "ab"]
    greedy, other = {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}
    path = f"{AT}/feed?after=-1"
    async with gateway(cluster.url, feedsPerCaller=1, access=access) as desk:
        assert (await desk.append({"text": "x"}, **greedy)).status == 201
        async with desk.events(path, **greedy) as events:
            await events.next()
            refused = await desk.ask(path, **greedy)
            assert (refused.status, refused.json()["code"]) == (429, "too-many-feeds")
            assert "retry-after: 1" in refused.head
            assert [line for line in desk.complaints if "refused: 429" in line and line.startswith("127.0.0.1:")]
            async with desk.events(path, **other) as others:
                await others.next()
        with trio.fail_after(PATIENCE):
            while (await status_of(desk, path, greedy)) != 200:  # once the end of the first is seen
                pass


async def status_of(desk: Desk, path: str, headers: dict[str, str]) -> int:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", *(f"{name}: {text}" for name, text in headers.items())]
    async with await trio.open_tcp_stream("127.0.0.1", desk.port) as stream:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode())
        return int((await stream.receive_some()).split()[1])


@pytest.mark.parametrize("more", [{}, {"gateway.access": [{"tokenSha256": token_hash("a"), "read": "all"}]}])
def test_a_gateway_that_nobody_guards_listens_on_this_machine_alone(more: dict[str, object]) -> None:
    topics = [{"name": "pay", "cluster": "waltz://h:1", "partitions": "0"}]
    with pytest.raises(ConfigError, match=r"gateway\.host is 0\.0\.0\.0"):
        gateway_settings(Config({"gateway.topics": topics, "gateway.host": "0.0.0.0", **more}))


def test_a_gateway_that_cannot_listen_says_so_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yml"
    topics = [{"name": "pay", "cluster": "waltz://h:1", "partitions": "0"}]
    with HeldPorts() as ports, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port, number = ports.take(), taken.getsockname()[1]
        for keys, text in (
            ({"port": number}, f"gateway.port: cannot listen on 127.0.0.1:{number}"),
            ({"port": port, "healthPort": number}, f"gateway.healthPort: cannot listen on 127.0.0.1:{number}"),
            ({"port": port, "ssl.certificate": "/missing"}, "gateway.ssl.certificate: cannot read /missing"),
        ):
            path.write_text(json.dumps({"gateway.topics": topics} | {f"gateway.{key}": it for key, it in keys.items()}))
            command = [sys.executable, "-m", "waltz_trio.cli.main", "gateway", "run", "-c", str(path)]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
            assert (ended.returncode, ended.stdout) == (1, "")
            assert ended.stderr.startswith(f"Error: {text}")
            assert ended.stderr.count("\n") == 1


async def test_who_guesses_tokens_is_named_in_the_log_once_a_minute(cluster: EmbeddedCluster) -> None:
    async with gateway(cluster.url, access=[]) as desk:
        for number in range(5):
            assert (await desk.append({"text": "x"}, Authorization=f"Bearer guess{number}")).status == 401
        assert (await desk.append({"text": "x"}, Origin="https://evil.example")).status == 403
        named = [line.partition(": ")[2] for line in desk.complaints if line.startswith("127.0.0.1:")]
        assert named == ["an HTTP request was refused: 401 Unauthorized", "an HTTP request was refused: 403 Forbidden"]


async def test_reading_records_costs_a_caller_more_than_a_mark_does(desk: Desk) -> None:
    assert (await desk.append({"text": "x" * 10_000})).status == 201
    costs = []
    for path, query in ((f"{AT}/mark", {}), (f"{AT}/records", {"first": ["0"], "payload": ["text"]})):
        answer = await desk.gateway.handle(Request("GET", path, query, {"host": "localhost"}, "127.0.0.1:1"))
        assert isinstance(answer, Response)
        assert answer.status == 200, answer.body
        costs.append(answer.cost)
    assert desk.gateway._readers == {}, "nothing is kept of who asks no more"
    assert costs[0] == 0
    assert costs[1] >= STREAM + 2_500


async def test_what_a_feed_brings_to_a_reader_who_is_behind_is_paid_for(desk: Desk) -> None:
    """By what he reads; who stands at the end, where all readers share one feed, pays for nothing more."""
    for number in range(20):
        assert (await desk.append({"text": f"{number} " + "x" * 1_000})).status == 201
    request = Request("GET", f"{AT}/feed", {"after": ["-1"], "payload": ["text"]}, {"host": "localhost"}, "127.0.0.1:1")
    answer = await desk.gateway.handle(request)
    assert isinstance(answer, Stream)
    paid, text = list[int](), bytearray()

    async def send(piece: bytes) -> None:
        text.extend(piece)
        await trio.lowlevel.checkpoint()

    async def pay(cost: int) -> None:
        paid.append(cost)
        await trio.lowlevel.checkpoint()

    async def sent(number: int) -> None:
        with trio.fail_after(PATIENCE):
            while f"{number} xxx".encode() not in text:  # noqa: ASYNC110
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer.feed, send, pay)
        await sent(19)
        for number in (20, 21):
            assert (await desk.append({"text": f"{number} " + "x" * 1_000})).status == 201
            await sent(number)
        nursery.cancel_scope.cancel()
    assert len(text) / 5 < sum(paid) < len(text) / 4 + 20 * PIECE
    assert len(paid) >= 2


async def test_readers_for_whom_there_is_nothing_get_signs_of_life(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands between them and the gateway would take a silent connection for a dead one."""
    monkeypatch.setattr("waltz_trio.gateway.fanout._ALIVE", 0.1)
    async with gateway(cluster.url) as desk:
        async with await trio.open_tcp_stream("127.0.0.1", desk.port) as stream:
            await stream.send_all(f"GET {AT}/feed?after=tail HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            said = b""
            with trio.fail_after(PATIENCE):
                while said.count(b": still here\n\n") < 2:
                    said += await stream.receive_some()
        async with peer(desk, f"{AT}/socket?after=tail") as other:
            assert isinstance(await other.event(), AcceptConnection)
            pings = 0
            with trio.fail_after(PATIENCE):
                while pings < 2:
                    other.ws.receive_data(bytes(await other.stream.receive_some()) or None)
                    pings += sum(isinstance(event, Ping) for event in other.ws.events())


async def test_two_readers_of_a_partition_have_a_feed_each(desk: Desk) -> None:
    assert (await desk.append({"text": "a"})).status == 201
    assert (await desk.append({"text": "b"})).status == 201
    async with desk.events(f"{AT}/feed?after=-1") as one, desk.events(f"{AT}/feed?after=0") as other:
        assert [json.loads(await one.next())["id"], json.loads(await one.next())["id"]] == [0, 1]
        assert json.loads(await other.next())["id"] == 1


async def test_a_feed_whose_reader_does_not_read_waits_and_is_given_up(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(cluster.url, prefetch=2) as desk:
        for _ in range(40):
            assert (await desk.append({"text": "x"})).status == 201
        handed = 0

        def count(*_: object) -> str:
            nonlocal handed
            handed += 1
            return "data: " + "x" * 1_000_000 + "\n\n"  # more in all than the system's buffers take

        monkeypatch.setattr("waltz_core.gateway.replies.event_text", count)
        async with desk.events(f"{AT}/feed?after=-1") as events:
            await events.next()
            monkeypatch.setattr("waltz_trio.net.http._IDLE", 1.0)
            # What is being sent still has half a minute: it must be read before one is sent that has a second.
            begun = handed
            with suppress(AssertionError, trio.BrokenResourceError):  # given up already, on a slow machine
                while handed == begun:
                    await events.next()
            with trio.fail_after(PATIENCE):
                await desk.gave_up.wait()
            assert handed < 40


async def test_a_cluster_that_does_not_answer_is_said_in_time(tmp_path: Path) -> None:
    with HeldPorts() as ports:
        nobody = f"waltz://127.0.0.1:{ports.take()}?verify=off"
    async with gateway(nobody, requestTimeout=500) as desk:
        mark = await desk.ask(f"{AT}/mark")
        assert (mark.status, mark.json()["code"]) == (504, "too-slow")
        append = await desk.append({"text": "x"})
        assert (append.status, append.json()["outcome"]) == (504, "refused")
        assert "retry-after: 2" in append.head
    async with gateway(str(tmp_path / "missing.yml")) as desk:
        append = await desk.append({"text": "x"})
        assert (append.status, append.json()["code"], append.json()["outcome"]) == (
            503,
            "cluster-unreachable",
            "refused",
        )
        assert str(tmp_path) not in append.body.decode()
        assert any("missing.yml" in line for line in desk.complaints)


async def test_a_client_that_broke_is_replaced_by_whoever_asks_next() -> None:
    opened = 0

    @asynccontextmanager
    async def open_one(source: str) -> AsyncIterator[Any]:
        nonlocal opened
        opened += 1
        if opened % 2:
            raise waltz.ClientFailedError(f"{source} does not answer")
        yield f"client {opened}"

    async with trio.open_nursery() as nursery:
        clients = Cluster("a cluster", nursery, lambda level, text: None, open_one)

        async def read() -> object:
            async with clients.reader(0) as client:
                return client

        for ask in (clients.client, read):
            with pytest.raises(waltz.ClientFailedError, match="a cluster does not answer"):
                await ask()
            assert [await ask(), await ask()] == [f"client {opened}"] * 2
        nursery.cancel_scope.cancel()


async def test_feeds_of_one_partition_have_a_client_each_and_a_few_of_these_are_kept() -> None:
    opened: set[str] = set()

    @asynccontextmanager
    async def open_one(source: str) -> AsyncIterator[Any]:
        name = f"client {len(opened)}"
        opened.add(name)
        yield name
        opened.discard(name)

    async with trio.open_nursery() as nursery:
        clients = Cluster("a cluster", nursery, lambda level, text: None, open_one)
        async with AsyncExitStack() as stack:
            given = [await stack.enter_async_context(clients.reader(0)) for _ in range(7)]
            assert len(set(given)) == len(opened) == 7
            await stack.enter_async_context(clients.reader(1))
            assert len(opened) == 7, "one of them has no feed of that partition"
        await trio.testing.wait_all_tasks_blocked()
        assert len(opened) == 4
        async with clients.reader(0) as again:
            assert again in given
        nursery.cancel_scope.cancel()


def an_append(text: bytes) -> calls.Append:
    return calls.Append(Place(Topic("pay", "a cluster", (0,)), 0, 0), text, 0, (), (), (), None, None)


async def test_an_append_that_fails_is_counted_no_more_and_said_in_the_log_where_the_gateway_is_why() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def open_one(source: str) -> AsyncIterator[waltz.Client]:
        raise LookupError("mine")
        yield

    async with trio.open_nursery() as nursery:
        quotas = Quotas(Limits(appends_per_caller=1))
        appends = Appends(nursery, quotas, lambda level, text: said.append(text), timeout=PATIENCE, window=1)
        clients = Cluster("a cluster", nursery, lambda level, text: None, open_one)
        for _ in range(2):
            problem = await appends.append("me", an_append(b"x"), clients)
            assert isinstance(problem, Problem)
            assert (problem.status, problem.code, problem.outcome) == (500, "gateway-failed", Outcome.REFUSED)
            assert (quotas.appends, quotas.size) == (0, 0)
        nursery.cancel_scope.cancel()
    assert said == ["an append to pay failed: LookupError('mine')"] * 2


async def test_an_append_that_was_given_up_before_it_left_never_leaves(cluster: EmbeddedCluster) -> None:
    """It is refused: its caller may send it again."""
    there = trio.Event()

    @asynccontextmanager
    async def open_one(source: str) -> AsyncIterator[waltz.Client]:
        await there.wait()
        async with waltz.open_client(cluster.url) as client:
            yield client

    async with trio.open_nursery() as nursery:
        clients = Cluster("a cluster", nursery, lambda level, text: None, open_one)
        hurried, patient = (
            Appends(nursery, Quotas(Limits()), lambda level, text: None, timeout=timeout, window=1)
            for timeout in (0.01, PATIENCE)
        )
        problem = await hurried.append("me", an_append(b"given up"), clients)
        assert isinstance(problem, Problem)
        assert (problem.status, problem.outcome) == (504, Outcome.REFUSED)
        there.set()
        for number in range(2):
            assert await patient.append("me", an_append(b"again"), clients) == Done(number, repeated=False)
        nursery.cancel_scope.cancel()


class Freed:
    """A client of a log whose low part is freed: a lock was taken, and the key cannot be searched for."""

    num_partitions = 1

    def __init__(self) -> None:
        self.patient = False
        self.silent = False  # once something was sent
        self.sent = 0
        self.verdict: Exception = waltz.LockConflictError(0, 3)

    async def send(self, *args: object, **options: object) -> Freed:
        self.sent += 1
        return self

    async def outcome(self) -> int:
        raise self.verdict

    async def committed_mark(self, partition: int) -> int:
        if self.silent and self.sent:
            await trio.sleep_forever()
        return 9

    @property
    def _by_ids(self) -> Freed:
        return self

    async def piece(self, partition: int, first: int, last: int) -> list[waltz.Transaction]:
        if self.patient:
            await trio.sleep_forever()
        raise waltz.BeforeStartError(partition, "the log begins at 7")


async def test_a_key_whose_part_of_the_log_cannot_be_searched_may_be_in_it() -> None:
    """An earlier attempt may have committed there: who was told that it is refused would send it under another key."""
    freed = Freed()

    @asynccontextmanager
    async def open_one(source: str) -> AsyncIterator[Any]:
        yield freed

    async with trio.open_nursery() as nursery:
        clients = Cluster("a cluster", nursery, lambda level, text: None, open_one)
        call = attrs.evolve(an_append(b'{"k":"2:x"}'), key=Key("2:x", 2))
        found: list[tuple[int, Outcome | None]] = []
        for freed.patient, timeout in ((False, PATIENCE), (True, 0.05)):
            appends = Appends(nursery, Quotas(Limits()), lambda level, text: None, timeout=timeout, window=100)
            problem = await appends.append("me", call, clients)
            assert isinstance(problem, Problem)
            found.append((problem.status, problem.outcome))
        assert found == [(410, Outcome.UNKNOWN), (504, Outcome.UNKNOWN)]
        nursery.cancel_scope.cancel()


async def test_a_repeat_that_hears_no_mark_to_search_up_to_may_be_in_the_log() -> None:
    """The lock of its key was refused, so an earlier attempt may have it: nothing was searched yet."""
    freed = Freed()
    freed.silent = True

    @asynccontextmanager
    async def open_one(source: str) -> AsyncIterator[Any]:
        yield freed

    async with trio.open_nursery() as nursery:
        clients = Cluster("a cluster", nursery, lambda level, text: None, open_one)
        appends = Appends(nursery, Quotas(Limits()), lambda level, text: None, timeout=0.05, window=100)
        call = attrs.evolve(an_append(b'{"k":"2:x"}'), key=Key("2:x", 2))
        problem = await appends.append("me", call, clients)
        assert isinstance(problem, Problem)
        assert (freed.sent, problem.status, problem.outcome) == (1, 504, Outcome.UNKNOWN)
        nursery.cancel_scope.cancel()


async def test_what_the_cluster_refuses_for_good_is_sent_once_and_the_callers_fault() -> None:
    freed = Freed()
    freed.verdict = waltz.NotCommittedError(0, "the payload has 2000 bytes, 1000 are allowed", refused=True)

    @asynccontextmanager
    async def open_one(source: str) -> AsyncIterator[Any]:
        yield freed

    async with trio.open_nursery() as nursery:
        clients = Cluster("a cluster", nursery, lambda level, text: None, open_one)
        appends = Appends(nursery, Quotas(Limits()), lambda level, text: None, timeout=PATIENCE, window=100)
        problem = await appends.append("me", an_append(b"x"), clients)
        assert isinstance(problem, Problem)
        assert (problem.status, problem.code, problem.outcome) == (422, "append-refused", Outcome.REFUSED)
        assert "1000 are allowed" in problem.detail
        assert freed.sent == 1
        nursery.cancel_scope.cancel()


async def test_a_cluster_that_was_restored_has_the_mark_that_it_says() -> None:
    @asynccontextmanager
    async def open_one(source: str) -> AsyncIterator[Any]:
        yield Freed()

    async with trio.open_nursery() as nursery:
        clients = Cluster("a cluster", nursery, lambda level, text: None, open_one)
        clients.learn(0, 1000)
        assert await clients.committed_mark(0) == 9 == clients.known_mark(0)
        nursery.cancel_scope.cancel()


async def test_appends_whose_outcome_is_not_heard_are_unknown_and_counted_until_it_is(tmp_path: Path) -> None:
    async with (
        embedded_cluster(tmp_path / "data", partitions=3, storage_nodes=1) as cluster,
        gateway(cluster.url, requestTimeout=500, appendsPerCaller=2) as desk,
    ):
        assert (await desk.append({"text": "x"})).status == 201
        await cluster.stop_storage(0)
        answers = [await desk.append({"json": {}, "key": f"0:k{number}"}) for number in range(3)]
        assert [answer.status for answer in answers] == [504, 504, 429]
        assert [answer.json()["outcome"] for answer in answers] == ["unknown", "unknown", "refused"]
        assert "retry-after: 1" in answers[2].head
        await cluster.restart_storage(0)
        with trio.fail_after(PATIENCE):
            while (again := await desk.append({"json": {}, "key": "0:k0"})).status not in (200, 201):
                pass
        records = (await desk.ask(f"{AT}/records?first=0&payload=json")).json()["records"]
        keys = [each["json"]["idempotencyKey"] for each in records[1:]]
        assert sorted(set(keys)) == sorted(keys), "no key is there twice"
        assert records[again.json()["id"]]["json"]["idempotencyKey"] == "0:k0"


# ---- WebSocket -------------------------------------------------------------------------------------------


class Peer:
    """The other side of a WebSocket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.ws = WSConnection(ConnectionType.CLIENT)
        self.held: list[Event] = []

    async def send(self, event: Event) -> None:
        await self.stream.send_all(self.ws.send(event))

    async def event(self) -> Event:
        with trio.fail_after(PATIENCE):
            while not self.held:
                self.ws.receive_data(bytes(await self.stream.receive_some()) or None)
                self.held += [event for event in self.ws.events() if not isinstance(event, Ping)]
        return self.held.pop(0)

    async def json(self) -> Any:
        text = ""
        while True:
            event = await self.event()
            assert isinstance(event, TextMessage), event
            text += event.data
            if event.message_finished:
                return json.loads(text)


@asynccontextmanager
async def peer(desk: Desk, path: str, *, protocols: tuple[str, ...] = (), origin: str = "") -> AsyncIterator[Peer]:
    async with await trio.open_tcp_stream("127.0.0.1", desk.port) as stream:
        made = Peer(stream)
        headers = [(b"Origin", origin.encode())] if origin else []
        await made.send(Handshake(host="localhost", target=path, subprotocols=list(protocols), extra_headers=headers))
        yield made


async def test_a_websocket_appends_in_order_and_feeds(desk: Desk) -> None:
    async with peer(desk, f"{AT}/socket?after=-1&payload=json") as other:
        assert isinstance(await other.event(), AcceptConnection)
        for number in range(3):
            await other.send(TextMessage(json.dumps({"ref": number, "json": {"n": number}})))
        said = [await other.json() for _ in range(6)]
        assert [each["append"]["id"] for each in said if "append" in each] == [0, 1, 2]
        assert [each["ref"] for each in said if "append" in each] == [0, 1, 2]
        assert [each["record"]["json"]["n"] for each in said if "record" in each] == [0, 1, 2]
        for text in ("{", "[]", '{"text":"x"}', '{"ref":true,"text":"x"}'):
            await other.send(TextMessage(text))
            assert (await other.json())["problem"]["status"] == 400
        await other.send(TextMessage('{"ref":"a","te', message_finished=False))
        await other.send(TextMessage('xt":1}'))
        refused = await other.json()
        assert (refused["ref"], refused["problem"]["code"]) == ("a", "bad-append")
        await other.send(CloseConnection(1000))
        assert isinstance(await other.event(), CloseConnection)


@pytest.mark.parametrize(
    ("event", "code"), [(BytesMessage(b"\0"), 1003), (TextMessage("x" * 200_001), 1009), (TextMessage("ok"), 0)]
)
async def test_what_is_no_message_ends_a_websocket_with_its_reason(desk: Desk, event: Event, code: int) -> None:
    async with peer(desk, f"{AT}/socket") as other:
        assert isinstance(await other.event(), AcceptConnection)
        await other.send(event)
        if not code:
            assert (await other.json())["problem"]["code"] == "bad-json"
            await other.stream.send_all(b"\xff\xff\xff\xff")  # no frame
            code = 1002
        ended = await other.event()
        assert isinstance(ended, CloseConnection)
        assert ended.code == code
    with trio.fail_after(PATIENCE):
        while not any(
            line.startswith("127.0.0.1:") and "the WebSocket was ended: " in line for line in desk.complaints
        ):
            await trio.lowlevel.checkpoint()


async def test_messages_of_a_websocket_count_one_by_one_and_in_all_their_pieces(cluster: EmbeddedCluster) -> None:
    """However many come, none counts for another one; and one is too large however it is cut."""
    async with (
        gateway(cluster.url, bodySizeMax=10_000, bytesMax=40_000) as desk,
        peer(desk, f"{AT}/socket") as other,
    ):
        assert isinstance(await other.event(), AcceptConnection)
        for number in range(20):
            await other.send(TextMessage(f'{{"ref":{number},', message_finished=False))
            await other.send(TextMessage(json.dumps({"text": "x" * 6_000})[1:]))
            assert (await other.json())["append"]["id"] == number
        for _ in range(2):
            await other.send(TextMessage("x" * 6_000, message_finished=False))
        ended = await other.event()
        assert isinstance(ended, CloseConnection)
        assert ended.code == 1009


async def test_a_message_of_a_websocket_that_does_not_end_is_not_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with peer(desk, f"{AT}/socket") as other:
        assert isinstance(await other.event(), AcceptConnection)
        monkeypatch.setattr("waltz_trio.gateway.sockets._PATIENCE", 1.0)
        await other.send(TextMessage('{"ref":1,', message_finished=False))
        with trio.fail_after(PATIENCE):
            await desk.gave_up.wait()


async def test_a_websocket_is_opened_by_who_may_and_by_no_foreign_page(cluster: EmbeddedCluster) -> None:
    access = [{"tokenSha256": token_hash("w"), "append": ["pay"]}]
    async with gateway(cluster.url, access=access) as desk:
        for path, protocols, origin in (
            (f"{AT}/socket", (), ""),
            (f"{AT}/socket?after=-1", ("waltz", "bearer.w"), ""),
            (f"{AT}/socket", ("waltz", "bearer.no"), ""),
            (f"{AT}/socket", ("waltz", "bearer.w"), "https://evil.example"),
        ):
            async with peer(desk, path, protocols=protocols, origin=origin) as other:
                assert isinstance(await other.event(), RejectConnection)
        async with peer(desk, f"{AT}/socket", protocols=("waltz", "bearer.w")) as other:
            accepted = await other.event()
            assert isinstance(accepted, AcceptConnection)
            assert accepted.subprotocol == "waltz"
            await other.send(TextMessage('{"ref":1,"text":"x"}'))
            assert (await other.json())["append"]["id"] == 0
        plain = await desk.ask(f"{AT}/socket", Authorization="Bearer w")
        assert (plain.status, plain.json()["code"]) == (426, "no-websocket")
