"""Many logs behind one door: what a gateway answers. `waltz_core.gateway` decides; here it is carried out.

Reads, marks and feeds are of committed transactions alone. Readers at the end of a log share one feed of the cluster
(`fanout.py`); one that is behind reads for himself, a piece at a time, and no further while he does not take it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeVar, TypeVarTuple

import trio
from trio.to_thread import run_sync

from waltz_core.access.port_turns import cost_of_records
from waltz_core.base.edge import Level
from waltz_core.base.errors import WaltzError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.gateway import calls, openapi, replies
from waltz_core.gateway.door import PREFLIGHT, Caller, Door, Visit, bearer
from waltz_core.gateway.keyed import Done
from waltz_core.gateway.problems import Problem, RequestError
from waltz_core.gateway.quotas import Quotas
from waltz_core.gateway.replies import Record, Reply
from waltz_core.gateway.topics import Place
from waltz_trio.client.connect import open_client
from waltz_trio.config.gateway import GatewaySettings
from waltz_trio.gateway.appends import Appends
from waltz_trio.gateway.clusters import Cluster, OpenClient
from waltz_trio.gateway.fanout import Fanout
from waltz_trio.gateway.sockets import Put, Socket
from waltz_trio.gateway.vitals import Vitals
from waltz_trio.net.http import Answer, HttpLimits, Pay, Request, Response, Send, Stream, Upgrade

Value = TypeVar("Value")
Given = TypeVarTuple("Given")

_RANGE_BYTES = 4 << 20  # of one answer; what is left out is read by the next request
_LARGE = 1 << 16  # bytes of JSON that others do not wait for: it is parsed beside the loop
_RANGES = 8  # that are read for one caller at a time
_STATUS_CODES = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "too-large",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "too-large",
    HTTPStatus.REQUEST_TIMEOUT: "too-slow",
    HTTPStatus.SERVICE_UNAVAILABLE: "full",
    HTTPStatus.TOO_MANY_REQUESTS: "too-many-feeds",
    HTTPStatus.INTERNAL_SERVER_ERROR: "gateway-failed",
}


def http_limits(settings: GatewaySettings) -> HttpLimits:
    """What the port of a gateway takes on."""
    return HttpLimits(
        connections_max=settings.connections_max,
        streams_max=settings.feeds_max,
        rate=float(settings.rate),
        burst=settings.rate,
        body_max=settings.body_max,
        bodies_max=settings.quotas.bytes_max,
        streams_per_owner=settings.feeds_per_caller,
    )


def refuse(status: HTTPStatus, why: str) -> Response:
    """What the port says of a request that it does not take."""
    code = _STATUS_CODES.get(status, "bad-request")
    retry_after = 1 if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS) else 0
    return _response(replies.of_problem(Problem(status.value, code, why or status.phrase, retry_after=retry_after)))


def _response(reply: Reply, more: tuple[tuple[str, str], ...] = (), *, read: bool = False) -> Response:
    """The answer; `read`: it holds records."""
    body = (reply.text and reply.text + "\n").encode()  # a terminal's prompt stands in a line of its own
    cost = cost_of_records(len(body)) if read else 0
    return Response(reply.status, reply.content_type, body, (*reply.headers, *more), cost)


class Gateway:
    """Answers the requests of one port."""

    def __init__(
        self,
        settings: GatewaySettings,
        nursery: trio.Nursery,
        report: Callable[[Level, str], None],
        open_one: OpenClient = open_client,
    ) -> None:
        self._topics = settings.topics
        self._prefetch = settings.prefetch
        self._window_bytes = settings.window_bytes
        self._nursery = nursery
        self._fanouts: dict[tuple[str, int], Fanout] = {}
        self._readers: dict[str, tuple[trio.CapacityLimiter, int]] = {}  # caller → places, and how many he asked for
        self._body_max = settings.body_max
        self._timeout = settings.request_timeout
        self._report = report
        self._parser = trio.CapacityLimiter(1)
        self._door = Door(settings.rules, settings.origins)
        topics = [topic for name in settings.topics.names if (topic := settings.topics.topic(name)) is not None]
        self._clusters = {
            source: Cluster(source, nursery, report, open_one, [topic for topic in topics if topic.cluster == source])
            for source in settings.topics.clusters
        }
        quotas = Quotas(settings.quotas)
        self._appends = Appends(nursery, quotas, report, timeout=settings.request_timeout, window=settings.key_window)
        # Each cluster is asked for a partition of some topic: the one that it has if it has any of them.
        asked = {
            source: (cluster, min(min(topic.partitions) for topic in topics if topic.cluster == source))
            for source, cluster in self._clusters.items()
        }
        self.vitals = Vitals(asked, self._fanouts.values, quotas)

    def admit(self, request: Request) -> Response | str:
        """Whose request it is, if it may bring its body; the answer to one that may not."""
        entered = self._enter(request)
        if isinstance(entered, Reply):
            return _response(entered, self._door.shared_with(_visit(request)))
        return entered[0].who

    async def handle(self, request: Request) -> Answer:
        """Answer a request that was admitted."""
        shared = self._door.shared_with(_visit(request))
        entered = self._enter(request)
        if isinstance(entered, Reply):
            return _response(entered, shared)
        caller, call = entered
        try:
            if isinstance(call, Place):
                kind, body = request.headers.get("content-type", ""), request.body
                call = await self._read(len(body), calls.read_append, call, kind, body)
            if isinstance(call, calls.FollowFeed):
                return await self._follow(caller, call, shared)
            if isinstance(call, calls.OpenSocket):
                return await self._open_socket(caller, call, request, shared)
            return _response(await self._reply(caller, call), shared, read=isinstance(call, calls.ReadRecords))
        except RequestError as error:
            return _response(replies.of_problem(error.problem), shared)
        except WaltzError as error:
            return _response(replies.of_problem(replies.problem_of(error)), shared)
        except trio.TooSlowError:
            return _response(replies.of_problem(replies.too_slow(None, self._timeout)), shared)

    def _enter(self, request: Request) -> tuple[Caller, calls.Call | Place] | Reply:
        """Who asks for what, or why he gets nothing."""
        visit = _visit(request)
        if request.method == "OPTIONS":
            problem = self._door.page_problem(visit)
            return Reply(204, "text/plain", "", PREFLIGHT) if problem is None else replies.of_problem(problem)
        page = openapi.page(request.path) if request.method in ("GET", "HEAD") else None
        if page is not None:
            problem = self._door.page_problem(visit)
            return page if problem is None else replies.of_problem(problem)
        caller = self._door.enter(visit)
        if isinstance(caller, Problem):
            return replies.of_problem(caller)
        try:
            call = calls.route(self._topics, calls.Asked(request.method, request.path, request.query, request.headers))
        except RequestError as error:
            return replies.of_problem(error.problem)
        problem = calls.access_problem(caller, call)
        return (caller, call) if problem is None else replies.of_problem(problem)

    async def _reply(self, caller: Caller, call: calls.Call) -> Reply:
        match call:
            case calls.ListTopics():
                topics = (self._topics.topic(name) for name in self._topics.names)
                return replies.of_topics((topic for topic in topics if topic is not None), caller)
            case calls.ShowTopic(topic):
                return replies.of_topic(topic, caller)
            case calls.FindPartition(topic):
                return replies.of_partition(topic, call.number)
            case calls.ReadMark(place):
                return replies.of_mark(place, await self._mark(place))
            case calls.ReadRecords():
                return await self._records(caller.who, call)
            case calls.Append(place):
                result = await self._appends.append(caller.who, call, self._cluster(place))
                return replies.of_append(place, result) if isinstance(result, Done) else replies.of_problem(result)
            case calls.FollowFeed() | calls.OpenSocket():
                raise AssertionError("a feed is no single reply")

    async def _read(self, size: int, read: Callable[[*Given], Value], *given: *Given) -> Value:
        """What JSON says; of large texts one is parsed at a time."""
        if size < _LARGE:
            return read(*given)
        return await run_sync(read, *given, limiter=self._parser)

    def _cluster(self, place: Place) -> Cluster:
        return self._clusters[place.topic.cluster]

    def _fanout(self, place: Place) -> Fanout:
        """What feeds the readers of a partition; there are no more of these than partitions in the configuration."""
        key = place.topic.cluster, place.partition
        fanout = self._fanouts.get(key)
        if fanout is None:
            fanout = self._fanouts[key] = Fanout(
                self._cluster(place),
                place.partition,
                self._nursery,
                window_bytes=self._window_bytes,
                prefetch=self._prefetch,
            )
        return fanout

    async def _mark(self, place: Place) -> int:
        with trio.fail_after(self._timeout):
            return await self._cluster(place).committed_mark(place.partition)

    async def _records(self, who: str, call: calls.ReadRecords) -> Reply:
        with trio.fail_after(self._timeout):
            async with self._reader(who):
                mark = await self._mark(call.place)
                last = min(call.first + call.count - 1, mark)
                records: list[Record] = []
                if last >= call.first:
                    records = await self._range(call.place, call.first, last)
                return replies.of_records(call.place, mark, records, call.form)

    @asynccontextmanager
    async def _reader(self, who: str) -> AsyncIterator[None]:
        """A few ranges of a caller are read at a time: each may hold megabytes."""
        places, waiting = self._readers.get(who, (trio.CapacityLimiter(_RANGES), 0))
        self._readers[who] = places, waiting + 1
        try:
            async with places:
                yield
        finally:
            places, waiting = self._readers.pop(who)
            if waiting > 1:
                self._readers[who] = places, waiting - 1

    async def _range(self, place: Place, first: int, last: int) -> list[Record]:
        records: list[Record] = []
        size = 0
        while first <= last and size < _RANGE_BYTES:
            for each in await self._cluster(place).records(place.partition, first, last):
                data = each.load()
                size += len(data)
                if each.header != MARKER_HEADER:
                    records.append(Record(each.id, each.header, data))
                first = each.id + 1
                if size >= _RANGE_BYTES:
                    break
        return records

    async def _follow(self, caller: Caller, call: calls.FollowFeed, shared: tuple[tuple[str, str], ...]) -> Answer:
        after = await self._begin(call)
        if isinstance(after, Problem):
            return _response(replies.of_problem(after), shared)

        fanout = self._fanout(call.place)

        async def feed(send: Send, pay: Pay) -> None:
            await send(replies.begin_event(after).encode())

            async def put(records: Sequence[Record]) -> int:
                text = fanout.texts.of(records, call.form, lambda: replies.event_texts(records, call.form))
                await send(text)
                return len(text)

            async def idle() -> None:
                await send(b": still here\n\n")

            try:
                await fanout.follow(after, put, idle, pay)
            except WaltzError as error:
                await send(replies.problem_event(replies.problem_of(error)).encode())

        return Stream("text/event-stream", feed, (("Cache-Control", "no-cache"), *shared), caller.who)

    async def _begin(self, call: calls.FollowFeed) -> int | Problem:
        """The mark behind which a feed begins."""
        mark = await self._mark(call.place)
        return calls.feed_problem(call, mark) or (mark if call.after is None else call.after)

    async def _open_socket(
        self, caller: Caller, call: calls.OpenSocket, request: Request, shared: tuple[tuple[str, str], ...]
    ) -> Answer:
        if request.headers.get("upgrade", "").lower() != "websocket":
            problem = Problem(426, "no-websocket", "this is for a WebSocket: Upgrade: websocket")
            return _response(replies.of_problem(problem), (("Upgrade", "websocket"), *shared))
        following, after = call.feed, -1
        if following is not None:
            begin = await self._begin(following)
            if isinstance(begin, Problem):
                return _response(replies.of_problem(begin), shared)
            after = begin

        async def feed(put: Put, pay: Pay) -> None:
            assert following is not None
            form = following.form

            async def put_all(records: Sequence[Record]) -> int:
                texts = [replies.record_message(each, form) for each in records]
                for text in texts:
                    await put(text)
                return sum(map(len, texts))

            try:
                await self._fanout(call.place).follow(after, put_all, socket.ping, pay)
            except WaltzError as error:
                await put(replies.problem_message(replies.problem_of(error)))

        async def answer(text: str) -> str:
            ref, append = await self._read(len(text), calls.read_message, caller, call.place, text)
            if isinstance(append, Problem) or ref is None:
                assert isinstance(append, Problem)
                return replies.problem_message(append, ref)
            result = await self._appends.append(caller.who, append, self._cluster(call.place))
            if isinstance(result, Problem):
                return replies.problem_message(result, ref)
            return replies.append_message(ref, call.place, result)

        socket = Socket(
            request.headers,
            request.path,
            size_max=self._body_max,
            answer=answer,
            feed=None if following is None else feed,
        )
        return Upgrade(socket.serve, caller.who)


def _visit(request: Request) -> Visit:
    return Visit(request.peer, request.headers, request.names or (), bearer(request.headers))
