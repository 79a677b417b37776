"""Which appends may be queued: from which client, under which request ids, for which generation, how large.

What is refused here never meets the lock table. A plain append that is refused is not answered, as in 0.13.2: its
client learns by the feed, a flush or its next mount that it is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from waltz_core.base.edge import CloseConn, Level, Report
from waltz_core.base.ids import req_client
from waltz_core.base.twins import twin
from waltz_core.server.append_queue import Append
from waltz_core.server.commits import Commits
from waltz_core.server.config import PartitionConfig
from waltz_core.server.context import NodeContext, Reply
from waltz_core.server.ownership import Ownership
from waltz_core.server.peer import Peer
from waltz_core.server.refusals import refusal
from waltz_core.wire import client_messages as messages
from waltz_core.wire.client_codec import EXTENDED
from waltz_core.wire.lock_count import OversizedAppend

_HEAD = Struct(">ii")  # the first two of the four ints of a request id: client id, generation


def _is_meant(request: Append, expected: bytes, begin: int) -> bool:
    """Whether an append is under the request ids of its client and generation, and has no lock list that is null."""
    return (
        request.req_id[begin:8] == expected
        and request.write_locks is not None
        and request.read_locks is not None
        and request.append_locks is not None
    )


@twin
def all_acceptable(requests: Sequence[Append], expected: bytes, begin: int, size_max: int) -> bool:
    """Whether all of them are meant, and no payload is too large: they nearly always are."""
    return all(_is_meant(one, expected, begin) and len(one.data) <= size_max for one in requests)


class Intake:
    """Checks appends of one partition on their way to the queue."""

    def __init__(
        self, partition_id: int, config: PartitionConfig, context: NodeContext, ownership: Ownership, commits: Commits
    ) -> None:
        self._partition_id = partition_id
        self._config = config
        self._out = context.out
        self._clients = context.clients
        self._ownership = ownership
        self._commits = commits
        self._warned_of = -1  # connection whose too large appends were reported
        self._forgers: set[int] = set()  # connections whose use of other clients' request ids was reported

    def gone(self, conn: int) -> None:
        """A connection ended."""
        self._forgers.discard(conn)

    def appends(self, now: int, peer: Peer, requests: list[Append], *, mounted: bool) -> None:
        """Appends of one connection, in order; whether it speaks for its client was looked up."""
        commits = self._commits
        commits.counters["transaction"] += len(requests)
        if not mounted:
            # Java: messages of a superseded connection are dropped without a word
            commits.refuse(now, peer.conn, requests, messages.Refusal.NOT_MOUNTED)
            return
        if commits.refusing:
            commits.refuse(now, peer.conn, requests, messages.Refusal.NOT_READY, commits.refusing)
            requests = [request for request in requests if type(request) is messages.AppendRequest]  # these wait
            if not requests:
                return
        begin = 4 if peer.carries_others else 0
        assert peer.client_id is not None
        expected = _HEAD.pack(peer.client_id, self._ownership.generation)[begin:]
        if all_acceptable(requests, expected, begin, self._config.payload_size_max):
            commits.enqueue(now, peer, requests)
            return
        accepted = [request for request in requests if _is_meant(request, expected, begin)]
        if len(accepted) != len(requests):
            others = [request for request in requests if request.req_id[begin:8] != expected]
            if not begin:
                others = self._refuse_forged(peer, others)
            commits.refuse(now, peer.conn, others, messages.Refusal.GENERATION)
        if max([len(request.data) for request in requests]) > self._config.payload_size_max:
            accepted = self._refuse_large(now, peer, requests, accepted)
        commits.enqueue(now, peer, accepted)

    def _refuse_large(
        self, now: int, peer: Peer, requests: Sequence[Append], accepted: Sequence[Append]
    ) -> list[Append]:
        """Refuse those with too large payloads; returns the rest. Who would not be answered is closed."""
        limit = self._config.payload_size_max
        large = [request for request in accepted if len(request.data) > limit]
        text = f"a payload of more than {limit} bytes, the limit of configuration key server.payloadSizeMax"
        self._commits.refuse(now, peer.conn, large, messages.Refusal.TOO_LARGE, text)
        if any(len(one.data) > limit for one in requests if type(one) is messages.AppendRequest):
            self._clients.put(CloseConn(peer.conn, text))
        return [request for request in accepted if len(request.data) <= limit]

    def oversized(self, peer: Peer, append: OversizedAppend) -> None:
        """An append has more locks than may be checked while everybody else waits."""
        client, limit = req_client(append.req_id), self._config.locks_max
        text = f"an append of client {client} with {append.count} locks, more than the {limit} of server.locksMax"
        if not append.named:  # nobody would answer it: the client must not wait
            self._clients.put(CloseConn(peer.conn, f"partition {self._partition_id}: {text}"))
            return
        self._clients.put(Reply(peer.conn, refusal(append.req_id, messages.Refusal.TOO_LARGE, text)))
        if peer.conn != self._warned_of:
            self._warned_of = peer.conn
            text = f"partition {self._partition_id}: {peer.who}: refused {text}"
            self._out.put(Report(Level.WARNING, text, peer.address, peer.owner))

    def _refuse_forged(self, peer: Peer, requests: Sequence[Append]) -> list[Append]:
        """Refuse those under request ids of other clients; returns the rest.

        In the log they would look like commits of the other client's. They are not in the decision journal
        either: it would say that the other client's append was refused.
        """
        rest: list[Append] = []
        for request in requests:
            client_id = req_client(request.req_id)
            if client_id == peer.client_id:
                rest.append(request)
                continue
            text = f"the request id is of client {client_id}, this connection mounted as client {peer.client_id}"
            if peer.conn not in self._forgers:
                self._forgers.add(peer.conn)
                what = f"refused appends of {peer.who}, mounted as client {peer.client_id}"
                report = f"partition {self._partition_id}: {what}, under request ids of client {client_id}"
                self._out.put(Report(Level.WARNING, report, peer.address, peer.owner))
            if type(request) is messages.NamedAppendRequest:
                answer = refusal(request.req_id, messages.Refusal.NOT_ALLOWED, text)
                self._clients.put(Reply(peer.conn, answer))
            elif peer.version >= EXTENDED:
                code = messages.ErrorCode.NOT_ALLOWED
                self._clients.put(Reply(peer.conn, messages.ErrorResponse(request.req_id, code, text)))
        return rest
