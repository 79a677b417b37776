"""Callers that follow a feed through simulated gateways: what a browser's EventSource does, and what must come of it.

A follower connects to some gateway, takes events at his own pace, and goes on by the id of his last event when the
connection ends, at whichever gateway: because it was killed, because its feed broke, or because he left. A connection
holds a few pieces; what is in it when the gateway dies arrives up to any byte.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Protocol

import trio

from waltz_trio.net.http import Request, Response, Send

_PIECES = 3  # in a connection, before it holds the gateway up
_ABANDONED = 0.05  # of the pieces after which he leaves
FEED = "/topics/payments/partitions/0/feed"


RESUMED = "a reader of a gateway's feed went on by his mark"
LEFT_BEHIND = "a reader of a gateway's feed fell out of its window"


class Server(Protocol):
    """A gateway that may die."""

    def has_left_behind(self, mark: int) -> bool:
        """Whether what a reader at this mark lacks has fallen out of its window."""
        ...

    async def follow(self, request: Request, send: Send) -> Response | None:
        """Answer a request for a feed: sends until the feed ends or the gateway dies; or the answer of another kind."""
        ...


class EventStream:
    """Events out of a text that arrives in pieces; one that is not complete does not count."""

    def __init__(self) -> None:
        self.begins: int | None = None  # the mark that the gateway says it begins behind
        self._rest = b""

    def receive(self, piece: bytes) -> list[tuple[str, int | None, str]]:
        """Kind, id and data of the events that a piece completes."""
        *blocks, self._rest = (self._rest + piece).split(b"\n\n")
        events = []
        for block in blocks:
            fields = {"event": "message"}
            for line in block.decode().split("\n"):
                name, _, value = line.partition(": ")
                fields[name] = value
            if self.begins is None:
                self.begins = int(fields["id"])  # without data: no event, but what a browser goes on by
            if "data" in fields:
                events.append((fields["event"], int(fields["id"]) if "id" in fields else None, fields["data"]))
        return events


class Follower:
    """One caller."""

    def __init__(self, name: str, after: int | str, seed: int, servers: Sequence[Server]) -> None:
        self.name = name
        self.after = after  # what he asks for until he has an event, or knows where he began
        self.records: list[tuple[int, str]] = []  # id and payload, as they came
        self.began: int | None = None if isinstance(after, str) else after
        self.marks: set[str] = set()  # coverage marks that he reached
        self._rng = Random(f"{seed}/{name}")
        self._pace = self._rng.choice((0.0, 0.02, 0.4))  # seconds for an event, at most
        self._servers = servers

    @property
    def mark(self) -> int | None:
        """Up to where he has everything; None before he knows where he begins."""
        return self.records[-1][0] if self.records else self.began

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            await self._connect(self._rng.choice(self._servers))
            await trio.sleep(self._rng.random())

    async def _connect(self, server: Server) -> None:
        query = {"payload": ["json"]}
        headers = {"host": "localhost"}
        if self.mark is not None:
            headers["last-event-id"] = str(self.mark)
        query["after"] = [str(self.after)]
        request = Request("GET", FEED, query, headers, "127.0.0.1:1")
        give, take = trio.open_memory_channel[bytes](_PIECES)
        before = len(self.records)

        async def answer() -> None:
            async with give:
                refused = await server.follow(request, give.send)
            if refused is not None:
                assert refused.status in (502, 503, 504), refused

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            await self._take(take, server)
            nursery.cancel_scope.cancel()
        if before and len(self.records) > before:
            self.marks.add(RESUMED)

    async def _take(self, pieces: trio.MemoryReceiveChannel[bytes], server: Server) -> None:
        """Take what comes until it ends, or he leaves."""
        stream = EventStream()
        async with pieces:
            async for piece in pieces:
                for kind, event_id, data in stream.receive(piece):
                    if self.began is None:
                        self.began = stream.begins
                    if kind != "message":
                        assert kind == "problem", kind
                        return
                    assert event_id is not None
                    mark = self.mark
                    assert mark is not None
                    assert event_id > mark, f"{self.name} has everything up to {mark} and was given {event_id}"
                    record = json.loads(data)
                    assert record["id"] == event_id
                    self.records.append((event_id, json.dumps(record.get("json"))))
                    if server.has_left_behind(event_id):
                        self.marks.add(LEFT_BEHIND)
                    if self._pace:
                        await trio.sleep(self._rng.random() * self._pace)
                if self.began is None:
                    self.began = stream.begins
                if self._rng.random() < _ABANDONED:
                    return

    def judge(self, log: Sequence[object | None]) -> None:
        """Everything from where he began to the end of a log that was read, in order, once; None is a marker."""
        began = self.began
        assert began is not None, f"{self.name} never began"
        expected = [(at, json.dumps(each)) for at, each in enumerate(log) if at > began and each is not None]
        given = [pair for pair in self.records if pair[0] < len(log)]
        missing = [pair[0] for pair in expected if pair not in given]
        ids = [pair[0] for pair in given]
        assert given == expected, f"{self.name} began behind {began}, was given {ids}, and lacks {missing}"
