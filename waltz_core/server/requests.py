"""What becomes of a client's requests: who may ask what, and which part of the server answers.

    batch ──▶ per message: allowed? ──▶ for the server itself ──▶ ServerRequests
                   │                └─▶ for a partition, in runs ──▶ PartitionServer, or "not here"
                   └── refused: answered where the codec can say so, closed where not

Runs of messages for one partition are handed over together; everything of one connection stays in order.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from waltz_core.base.edge import Level, Report
from waltz_core.base.ids import req_client, req_partition
from waltz_core.server.client_port import Batch, ClientConn, ClientPort
from waltz_core.server.context import NodeContext
from waltz_core.server.refusals import payload_not_here, refusal
from waltz_core.server.server_requests import SERVER_MESSAGES
from waltz_core.server.source import ServedPartitions
from waltz_core.server.step_budget import APPENDS
from waltz_core.wire import client_messages as messages
from waltz_core.wire.client_codec import EXTENDED
from waltz_core.wire.runs import end_of_run

_REFUSALS_REPORTED = 20  # different ones of one connection

_Message: TypeAlias = messages.ClientMessage


class AnswersItself(Protocol):
    """Whoever answers what is not for a partition."""

    def handle(self, now: int, conn: ClientConn, message: messages.ClientMessage) -> None:
        """One request; who asks was found to be allowed to."""


class Requests:
    """Hands requests on, in order."""

    def __init__(
        self, context: NodeContext, clients: ClientPort, partitions: ServedPartitions, server: AnswersItself
    ) -> None:
        self._out = context.out
        self._clients = clients
        self._partitions = partitions
        self._server = server

    def dispatch(self, now: int, conn: ClientConn, batch: Batch) -> None:
        """Handle messages of one connection."""
        if conn.client_id is None and batch:
            conn.client_id = req_client(batch[0].req_id)
        run: Batch = []
        run_key = b""
        at = 0
        count = len(batch)
        while at < count:
            if conn.closing:
                return
            message = batch[at]
            key = message.req_id[8:12]  # the partition id, undecoded: it is the same for whole runs
            kind = type(message)
            if kind in APPENDS:
                if key != run_key:
                    if run:
                        self._deliver(now, conn, run)
                        run = []
                    run_key = key
                end = end_of_run(batch, at, kind)
                run += batch[at:end]
                at = end
                continue
            at += 1
            if kind in SERVER_MESSAGES:
                self._deliver(now, conn, run)
                run = []
                if conn.access.unrestricted or self._allowed(conn, message):
                    self._server.handle(now, conn, message)
                continue
            if key != run_key:
                self._deliver(now, conn, run)
                run = []
                run_key = key
            if conn.net_sequence is None and kind is messages.MountRequest:
                self._deliver(now, conn, run)
                run = []
                if not self._claim(conn, message):
                    continue
            run.append(message)
        self._deliver(now, conn, run)

    def _deliver(self, now: int, conn: ClientConn, run: Batch) -> None:
        if not run or conn.closing:
            return
        if not conn.access.unrestricted:
            run = [message for message in run if self._allowed(conn, message)]
            if not run or conn.closing:
                return
        partition_id = req_partition(run[0].req_id)
        partition = self._partitions.get(partition_id)
        if partition is None:
            for message in run:
                self._not_here(conn, message)
            return
        conn.partitions.add(partition_id)
        partition.received(now, conn, run)
        self._partitions.touch(partition_id)

    def _not_here(self, conn: ClientConn, message: _Message) -> None:
        match message:
            case messages.MountRequest(req_id):
                self._clients.reply(conn.conn, messages.MountResponse(req_id, messages.PartitionState.NOT_READY))
            case messages.TransactionDataRequest(req_id, transaction_id):
                self._clients.reply(conn.conn, payload_not_here(req_id, transaction_id))
            case messages.NamedAppendRequest(req_id):
                self._clients.reply(conn.conn, refusal(req_id, messages.Refusal.NOT_SERVED))
            case _:
                pass  # Java: no answer on a partition that is not here (traps 5 and 17 of the protocol page)

    def _claim(self, conn: ClientConn, message: _Message) -> bool:
        """The first mount of a connection: whether it may speak for its client id; if not, it is refused."""
        assert isinstance(message, messages.MountRequest)
        if conn.closing or not (conn.access.unrestricted or self._allowed(conn, message)):
            return False
        assert conn.client_id is not None
        if not conn.carries_others:
            owner = self._clients.claims.mount(conn.client_id, conn.conn, conn.certificate)
            if owner is not None:
                problem = f"{conn.who} may not mount with client id {conn.client_id}"
                known = f"{problem}: it is in use by {owner!r}" if owner else f"{problem}: it is in use"
                self._refuse(conn, message, f"{problem}, which is another client's", known)
                return False
        conn.net_sequence = message.seq_num
        return True

    def _allowed(self, conn: ClientConn, message: _Message) -> bool:
        """Whether the role of a client includes a request; if not, it is refused."""
        problem = None if conn.closing else conn.access.client_problem(message, req_partition(message.req_id))
        if problem is not None:
            self._refuse(conn, message, problem, problem)
        return problem is None and not conn.closing

    def _refuse(self, conn: ClientConn, message: _Message, problem: str, log_text: str) -> None:
        """A client asked for what is not its to ask: answer where its codec can say so, close it where not."""
        req_id = message.req_id
        answer: _Message
        match message:
            case messages.TransactionDataRequest():
                answer = messages.TransactionDataResponse(req_id, message.transaction_id, False, error=problem)
            case messages.AddPreferredPartitionRequest():
                answer = messages.AddPreferredPartitionResponse(req_id, False)
            case messages.RemovePreferredPartitionRequest():
                answer = messages.RemovePreferredPartitionResponse(req_id, False)
            case messages.NamedAppendRequest():
                answer = refusal(req_id, messages.Refusal.NOT_ALLOWED, problem)
            case _ if conn.version >= EXTENDED:
                answer = messages.ErrorResponse(req_id, messages.ErrorCode.NOT_ALLOWED, problem)
            case _:
                self._clients.close(conn.conn, log_text)
                return
        if problem not in conn.refused and len(conn.refused) < _REFUSALS_REPORTED:
            conn.refused.add(problem)
            self._out.put(Report(Level.WARNING, f"refused: {log_text}", conn.address, conn.owner))
        self._clients.reply(conn.conn, answer)
