"""What hostile callers send to HTTP ports: heads at every limit, and what a gateway has besides.

A gateway takes bodies, hands out feeds that never end, and tells callers apart by their tokens. So it is asked with
bodies that are too large or never come, by readers that do not read, under tokens, hosts and origins that are not the
caller's, with headers smuggled into values and paths that climb out of the topics.
"""

from __future__ import annotations

import json

AT = "/topics/pay/partitions/0"
SMALL_PATHS = ("/ping", "/health", "/metrics", "/metrics/prometheus", "/nothing", "/")
GATEWAY_REQUESTS = ("append", "mark", "records", "topics", "openapi", "nothing")
_PAYLOAD_MAX = 4 << 20  # bytes of a body, as a gateway is configured that is not told otherwise

_SMALL_EXTREMES = [
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /ping HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    b"GET /ping HTTP/9.9\r\n\r\n",
    b"\x00\xff" * 1_000,
    b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nffffffff\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: attack\r\n\r\n",
    b"GET /metrics?" + b"&".join(b"name=%d" % at for at in range(5_000)) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /console HTTP/1.1\r\nHost: " + b"a" * 5_000 + b"\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: a\r\nCookie: waltz=\xff\xfe\r\n\r\n",
]


def head(method: str, path: str, token: str = "", *more: str) -> bytes:
    """A request without its body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *((f"Authorization: Bearer {token}",) if token else ())]
    return "\r\n".join([*lines, *more, "", ""]).encode()


def posted(path: str, body: bytes, token: str = "", *more: str) -> bytes:
    """A request with its body."""
    given = ("Content-Type: application/json", f"Content-Length: {len(body)}", *more)
    return head("POST", path, token, *given) + body


def append(text: str, token: str) -> bytes:
    """An append of a caller of good will."""
    return posted(f"{AT}/append", json.dumps({"text": text}).encode(), token)


def request(name: str, token: str) -> bytes:
    """One of `GATEWAY_REQUESTS`."""
    if name == "append":
        return append("attack", token)
    paths = {
        "mark": f"{AT}/mark",
        "records": f"{AT}/records?first=0&count=100",
        "topics": "/topics",
        "openapi": "/openapi.json",
        "nothing": "/topics/nothing/partitions/9/mark",
    }
    return head("GET", paths[name], token)


def socket_head(token: str) -> bytes:
    """The handshake of a WebSocket that appends and follows."""
    given = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    return head("GET", f"{AT}/socket?after=-1", token, *given, "Sec-WebSocket-Key: YXR0YWNrYXR0YWNrYXR0YQ==")


def reader_head(token: str) -> bytes:
    """A feed of everything, as server-sent events."""
    return head("GET", f"{AT}/feed?after=-1", token, "Accept: text/event-stream")


def extremes(protocol: str, token: str = "") -> list[bytes]:
    """Requests at each limit of an HTTP port; whole, though what answers may not have read all of it."""
    return (
        _SMALL_EXTREMES if protocol == "http" else [*_SMALL_EXTREMES, *_bodies(token), *_lies(token), *_frames(token)]
    )


def _bodies(token: str) -> list[bytes]:
    path, chunked = f"{AT}/append", ("Content-Type: application/json", "Transfer-Encoding: chunked")
    deep = b'{"json": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    return [
        posted(path, b"x" * (_PAYLOAD_MAX + 1), token),
        head("POST", path, token, "Content-Length: 99999999999999999999"),
        head("POST", path, token, "Content-Length: 5", "Content-Length: 6") + b"12345",
        head("POST", path, token, *chunked) + b"ffffffffffffffff\r\n",
        head("POST", path, token, *chunked) + b"1\r\n{\r\n" * 5_000 + b"0\r\n\r\n",
        posted(path, deep, token),
        posted(path, b'{"json": 1' + b"0" * 20_000 + b"}", token),
        posted(path, b'{"text": "\\ud800"}', token),
        posted(path, b"\xff\xfe", token),
        posted(path, b'{"base64": "!"}', token),
        posted(path, json.dumps({"text": "x", "locks": {"write": [["a", 1]] * 20_000}, "mark": -1}).encode(), token),
        posted(path, json.dumps({"text": "x", "locks": {"write": [["a", 2**70]]}, "mark": 2**70}).encode(), token),
        posted(path, json.dumps({"json": {"a": 1}, "key": f"{-(2**70)}:x"}).encode(), token),
        posted(path, json.dumps({"json": {"a": 1}, "key": "-1:" + "x" * 100_000}).encode(), token),
    ]


def _lies(token: str) -> list[bytes]:
    """Who asks is not who he says, or asks for what is not behind this door."""
    mark = f"{AT}/mark"
    return [
        head("GET", mark, "guessed"),
        head("GET", mark, "x" * 10_000),
        head("GET", mark, token, "Origin: https://evil.example"),
        head("GET", mark, token, "Sec-Fetch-Site: cross-site"),
        head("OPTIONS", mark, "", "Origin: https://evil.example", "Access-Control-Request-Method: POST"),
        head("GET", mark, token).replace(b"localhost", b"evil.example"),
        head("GET", mark, token, "X-Forwarded-For: 10.0.0.1", "X-Forwarded-Host: evil.example"),
        head("GET", "/topics/pay/../../etc/passwd", token),
        head("GET", "/topics/%2e%2e/%2e%2e/etc/passwd", token),
        head("GET", "/topics/pay%00/partitions/0/mark", token),
        head("GET", "/topics/pay%0d%0aSet-Cookie:%20a=b/partitions/0/mark", token),
        head("GET", "/topics/pay/partitions/99999999999999999999/mark", token),
        head("GET", "/topics/pay/partitions/-1/records?first=-9999999999999999999&count=9999999999", token),
        head("GET", f"{mark}?x=%0d%0aSet-Cookie:%20a=b", token, "Origin: a\rSet-Cookie: b"),
        head("GET", f"{AT}/feed?after=99999999999999999999", token),
        head("DELETE", mark, token),
    ]


def _frames(token: str) -> list[bytes]:
    """WebSockets that break their protocol."""
    mask = bytes(4)
    return [
        socket_head(token).replace(b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 99"),
        socket_head(token) + b"\xff" * 64,
        socket_head(token) + b"\x81\xff" + (2**62).to_bytes(8) + mask,  # a message of more than there can be
        socket_head(token) + b"\x82\x81" + mask + b"x",  # binary
        socket_head(token) + b"\x81\x05hello",  # not masked
        socket_head(token) + b"\x01\x81" + mask + b"x" + (b"\x00\x81" + mask + b"x") * 5_000,  # never finished
        socket_head(token) + b"\x81\x82" + mask + b"\xff\xfe",  # no UTF-8
    ]
