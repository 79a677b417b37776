"""`python -m benchmarks.micro.client`: microseconds per append through the client machine, without sockets.

One round is what a producer costs: submit, encode, decode of the feed, verdict. The second figure adds
the public `send` with its `Pending`, the third is a reader's share.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from tests.fixed_membership import FixedMembership
from waltz_core.base.edge import Dial, Dialed, Received, Send
from waltz_core.base.ids import Endpoint, ReqId
from waltz_core.client.calls import Committed, Deliver, Open, Submit
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_core.server.feed_cache import encode_frames, with_version
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.client_messages import AppendRequest, FeedRequest, FeedSuspended, MountRequest, MountResponse
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.primitives import checksum_of
from waltz_trio.client.client import Client
from waltz_trio.client.encoding import ClientLimits
from waltz_trio.client.values import Append

IN_FLIGHT = 1000
DATA = os.urandom(200)
CHECKSUM = checksum_of(DATA)


class Bench:
    """A mounted client and the server's end of its stream connection; only the client is timed."""

    def __init__(self, *, deliver: bool, public: bool = False) -> None:
        membership = FixedMembership(7, 1, [(Endpoint("server", 1), [(0, 1)])])
        self.client: Client | None = None
        if public:
            self.client = Client(membership, ClientSettings(feed_buffer_max=10**9), ClientLimits())
            self.node = self.client._node
        else:
            self.node = ClientNode(membership, ClientSettings(feed_buffer_max=10**9), random.Random(1))
        self.now = 0
        self.spent = 0.0
        self.mark = -1
        self.window = 0
        self.session = ReqId(b"")
        self.requests: list[ReqId] = []
        self.judged = self.delivered = 0
        self.server = Connection[Any](CLIENT_PROTOCOL, "", VERSIONS)
        self.conn = 0
        out = self.step([Open(0, -1, deliver)])
        dials = [effect.conn for effect in out if isinstance(effect, Dial)]
        self.conn = dials[0]
        for conn in dials:
            out = self.step([Dialed(conn), Received(conn, self.server.hello())])
            if conn == self.conn:
                self.serve(out)

    def step(self, events: list[Any]) -> list[Any]:
        out: list[Any] = []
        self.now += 1
        start = time.perf_counter()
        self.node.step(self.now, events, out)
        self.node.deadline()  # as a pump asks after every step
        self.spent += time.perf_counter() - start
        return out

    def serve(self, out: list[Any]) -> None:
        """Answer what the client sent: mount it, commit its appends, feed it."""
        answer = bytearray()
        messages: list[Any] = []
        for effect in out:
            match effect:
                case Send(conn=self.conn, data=data):
                    self.server.receive(data, messages)
                case Committed(outcomes=outcomes):
                    self.judged += len(outcomes)
                case Deliver(run=run):
                    self.delivered += len(run)
        for message in messages:
            match message:
                case MountRequest(req_id=req_id):
                    self.session = req_id
                    self.server.encode(MountResponse(req_id, 0), answer)
                case FeedRequest():
                    self.window += 100
                case AppendRequest(req_id=req_id):
                    self.requests.append(req_id)
        version = self.server.version
        assert version is not None
        while self.requests and self.window:
            committed = self.requests[: self.window]
            del self.requests[: self.window]
            first = self.mark + 1
            answer += with_version(
                encode_frames(first, [AppendRequest(req_id, 0, (), (), (), 0, b"", 0) for req_id in committed]), version
            )
            self.mark += len(committed)
            self.window -= len(committed)
            if not self.window:
                self.server.encode(FeedSuspended(self.session), answer)
        if answer:
            self.serve(self.step([Received(self.conn, bytes(answer))]))

    def round(self) -> None:
        """Submit as many appends as are meant to be in flight, 32 at a time, and see them all judged."""
        sent: list[Any] = []
        events = [Submit(0, None, None, (), (), (), 0, DATA, CHECKSUM) for _ in range(IN_FLIGHT)]
        for at in range(0, IN_FLIGHT, 32):
            sent += self.step(events[at : at + 32])
        self.serve(sent)


def core(*, deliver: bool) -> float:
    best = float("inf")
    bench = Bench(deliver=deliver)
    for _ in range(50):
        bench.spent = 0.0
        bench.round()
        best = min(best, bench.spent)
    assert bench.judged == 50 * IN_FLIGHT
    assert bench.delivered == (50 * IN_FLIGHT if deliver else 0)
    return best / IN_FLIGHT * 1e6


def sends() -> float:
    """The public `send`, without the machine: value, codec, locks, checksum, event."""
    bench = Bench(deliver=False, public=True)
    client = bench.client
    assert client is not None
    client._life.num_partitions = 1
    events: list[Any] = []
    client._life.post = events.append
    best = float("inf")
    for _ in range(50):
        events.clear()
        start = time.perf_counter()
        pendings = [client._appends.submit(0, Append(DATA), None) for _ in range(IN_FLIGHT)]
        spent = time.perf_counter() - start
        outcomes: list[tuple[object, int]] = [(pending, at) for at, pending in enumerate(pendings)]
        start = time.perf_counter()
        client._appends.on_committed(Committed(0, outcomes))
        best = min(best, spent + time.perf_counter() - start)
    return best / IN_FLIGHT * 1e6


def main() -> None:
    print(f"append through the machine, {IN_FLIGHT} in flight   {core(deliver=False):6.2f} µs")
    print(f"the same with an open feed                {core(deliver=True):6.2f} µs")
    print(f"public send and outcome on top            {sends():6.2f} µs")


if __name__ == "__main__":
    main()
