"""The one connection of a server to one storage node, shared by all partitions.

```
         a partition wants it            stands            hello             the key fits
IDLE ────────────────────────► DIALING ─────────► GREETING ─────► OPENING ─────────────────► READY
  ▲                               │                  │               │                         │
  │ pause over, nobody wants it   │ failed           │ silent, or no storage node of ours      │ an answer is overdue,
  │                               ▼                  ▼               ▼                         ▼ or makes no sense
WAITING ◄─────────────────────── end of the connection ◄──────────────────────────────────── CLOSING
  └──── pause over, still wanted ────► DIALING
```

Requests carry a sequence number of this connection; beside it stands the ticket of whoever asked. When the connection
ends, each of them fails first, and then every partition hears that the link is down: nobody waits for an answer of a
connection that is gone. Pauses between dials grow to one second, so that a node that is back is noticed soon; each
reason why it cannot be used is reported once.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

import attrs

from waltz_core.base.contract import Rng, earliest
from waltz_core.base.edge import CloseConn, Dial, Level, Port, Report, Send
from waltz_core.base.errors import ConfigError, HandshakeError, ProtocolError
from waltz_core.base.ids import parse_endpoint
from waltz_core.store.calls import (
    LinkDown,
    LinkUp,
    StorageAnswer,
    StorageAppend,
    StorageCall,
    StorageFailed,
    StorageNews,
)
from waltz_core.wire import storage_messages as messages
from waltz_core.wire.connection import STORAGE_PROTOCOL, Connection
from waltz_core.wire.storage_codec import encode_append

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

HELLO_TEXT = "Waltz Storage Client"
VERSIONS = frozenset({0, 1})  # 0 is all that 0.13.2 speaks
_DIAL_PAUSE_MAX_MS = 1_000  # a node that is back is noticed within this, however long it was away
_QUEUE_FACTOR = 3  # how many times the time-out a request may wait behind others that are answered


class PoolState(enum.Enum):
    """IDLE → DIALING → GREETING → OPENING → READY → (CLOSING →) WAITING → DIALING …"""

    IDLE = "nobody needs it"
    DIALING = "connecting"
    GREETING = "waits for the hello"
    OPENING = "waits for the answer to open"
    READY = "usable"
    CLOSING = "told to close; waits for the end of the connection"
    WAITING = "waits before the next dial"


PoolEffect: TypeAlias = Dial | CloseConn | Send | Report
PoolNote: TypeAlias = LinkUp | LinkDown | StorageAnswer | StorageFailed | StorageNews


class StoragePool:
    """Dials while some partition wants it, opens with the cluster key, matches answers by sequence number.

    Every request has a deadline, counted from the last answer of the node: the oldest one that passes it
    ends the connection, which fails all requests under way and is a `LinkDown` for every partition
    (server-D10: 0.13.2 waits for ever).
    """

    __slots__ = (
        "_answer_timeout_ms",
        "_buffer",
        "_conn",
        "_connection",
        "_frame_size_max",
        "_heard_at",
        "_key",
        "_new_conn",
        "_num_partitions",
        "_pending",
        "_retry_at",
        "_retry_max_ms",
        "_retry_min_ms",
        "_retry_ms",
        "_rng",
        "_seq",
        "_told",
        "_versions",
        "_wanted",
        "_was_ready",
        "endpoint",
        "replica",
        "state",
        "trouble",
    )

    def __init__(
        self,
        replica: str,
        *,
        key: bytes,
        num_partitions: int,
        new_conn: Callable[[], int],
        rng: Rng,
        frame_size_max: int,
        answer_timeout_ms: int,
        retry_min_ms: int,
        retry_max_ms: int,
        versions: Collection[int] = VERSIONS,
    ) -> None:
        self.replica = replica
        try:
            self.endpoint = parse_endpoint(replica)
        except ConfigError as error:
            raise ConfigError(f"storage node in the cluster's metadata: {error}") from error
        self._key = UUID(bytes=key)
        self._num_partitions = num_partitions
        self._new_conn = new_conn
        self._rng = rng
        self._frame_size_max = frame_size_max
        self._answer_timeout_ms = answer_timeout_ms
        self._retry_min_ms = retry_min_ms
        self._retry_max_ms = min(retry_max_ms, _DIAL_PAUSE_MAX_MS)
        self._versions = versions
        self._retry_ms = retry_min_ms
        self._retry_at: int | None = None
        self._conn: int | None = None
        self._connection: Connection[messages.StorageMessage] | None = None
        self._wanted: set[int] = set()
        self._pending: OrderedDict[int, tuple[int, int]] = OrderedDict()  # seq → ticket, time of sending
        self._heard_at = 0  # when it answered last
        self._seq = 0
        self._buffer = bytearray()
        self._was_ready = False
        self.state = PoolState.IDLE
        self.trouble = ""  # why it is not READY, for people: the last thing that went wrong
        self._told = ""  # the trouble that was reported

    @property
    def conn(self) -> int | None:
        """Id of the present connection."""
        return self._conn

    @property
    def codec(self) -> int:
        """What the connection speaks; 0 while there is none."""
        return (self._connection.version or 0) if self._connection is not None else 0

    @property
    def usable(self) -> bool:
        """It is connected and was opened with our cluster key."""
        return self.state is PoolState.READY

    @property
    def waiting(self) -> bool:
        """The last dial failed and the next one is not due."""
        return self.state is PoolState.WAITING

    def want(self, now: int, partition_id: int, out: list[PoolEffect]) -> bool:
        """A partition needs this node; returns whether it is usable already."""
        self._wanted.add(partition_id)
        if self.state is PoolState.IDLE:
            self._dial(out)
        return self.state is PoolState.READY

    def unwant(self, partition_id: int) -> None:
        """A partition does not need it any more; the connection stays as long as it lives."""
        self._wanted.discard(partition_id)

    def wanted_by(self) -> list[int]:
        """Partitions that need this node, ascending."""
        return sorted(self._wanted)

    def call(self, now: int, call: StorageCall, notes: list[PoolNote]) -> None:
        """Send a request; fails at once when the node is not usable."""
        seq = self._take(now, call.ticket, notes)
        if seq is not None:
            assert self._connection is not None
            self._connection.encode(attrs.evolve(call.message, seq_num=seq), self._buffer)

    def append(self, now: int, call: StorageAppend, notes: list[PoolNote]) -> None:
        """Send an append."""
        seq = self._take(now, call.ticket, notes)
        if seq is not None:
            assert self._connection is not None
            assert self._connection.version is not None
            encode_append(
                self._buffer,
                call.session_id,
                seq,
                call.partition_id,
                call.batch.count,
                call.batch.encoded,
                False,
                version=self._connection.version,
            )

    def dialed(self, now: int, out: list[PoolEffect]) -> None:
        """The connection stands: greet."""
        assert self.state is PoolState.DIALING
        assert self._conn is not None
        self._connection = Connection(STORAGE_PROTOCOL, HELLO_TEXT, self._versions, self._frame_size_max)
        out.append(Send(self._conn, self._connection.hello()))
        self.state = PoolState.GREETING
        self._retry_at = now + self._answer_timeout_ms

    def received(self, now: int, data: bytes, out: list[PoolEffect], notes: list[PoolNote]) -> None:
        """Bytes from the storage node."""
        if self._connection is None:
            return
        answers: list[messages.StorageMessage] = []
        trouble = ""
        try:
            self._connection.receive(data, answers)
        except HandshakeError as error:
            trouble = f"it does not greet as a storage node does: {error}"
        except ProtocolError as error:
            trouble = f"it sent what no storage node sends: {error}"
        if self.state is PoolState.GREETING and self._connection.version is not None:
            self._connection.encode(messages.OpenRequest(-1, -1, -1, self._key, self._num_partitions), self._buffer)
            self.state = PoolState.OPENING
        if answers:
            self._heard_at = now
        for answer in answers:
            if self.state is PoolState.CLOSING:
                break
            self._on_answer(answer, out, notes)
        if trouble and self.state is not PoolState.CLOSING:
            self._fail(trouble, out)

    def closed(self, now: int, reason: str, out: list[PoolEffect], notes: list[PoolNote]) -> None:
        """The connection ended, or the dial failed."""
        was_ready = self.state is PoolState.READY or self._was_ready
        self._was_ready = False
        for ticket, _ in self._pending.values():
            notes.append(StorageFailed(ticket, reason))
        self._pending.clear()
        self._buffer.clear()
        self._conn = None
        self._connection = None
        if self.state is not PoolState.CLOSING:
            self._is_troubled(reason, out)  # otherwise we ended it, and have said why
        if was_ready:
            notes.append(LinkDown(self.replica, reason))
        jitter = self._rng.randrange(self._retry_ms // 2 + 1)
        self._retry_at = now + self._retry_ms // 2 + jitter
        self._retry_ms = min(self._retry_ms * 2, self._retry_max_ms)
        self.state = PoolState.WAITING

    def flush(self, out: list[PoolEffect]) -> None:
        """Hand over what was written in this step, as one piece."""
        if self._buffer and self._conn is not None:
            out.append(Send(self._conn, bytes(self._buffer)))
            self._buffer.clear()

    def step(self, now: int, out: list[PoolEffect]) -> None:
        """Dial again when due; end a connection that does not answer."""
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            if self.state is PoolState.WAITING:
                self.state = PoolState.IDLE
                if self._wanted:
                    self._dial(out)
            elif self.state in (PoolState.GREETING, PoolState.OPENING):
                self._fail(f"it did not greet within {self._answer_timeout_ms} ms", out)
        overdue = self._overdue_at()
        if overdue is not None and now >= overdue:
            self._fail(f"it did not answer within {self._answer_timeout_ms} ms", out)

    def deadline(self) -> int | None:
        """Next dial or overdue answer."""
        return earliest(self._retry_at, self._overdue_at())

    def _overdue_at(self) -> int | None:
        """When the oldest request is given up. A node that works off a long queue gets more time, with an end."""
        if self.state is not PoolState.READY or not self._pending:
            return None
        sent = next(iter(self._pending.values()))[1]
        return min(max(sent, self._heard_at), sent + _QUEUE_FACTOR * self._answer_timeout_ms) + self._answer_timeout_ms

    def _take(self, now: int, ticket: int, notes: list[PoolNote]) -> int | None:
        if self.state is not PoolState.READY:
            notes.append(StorageFailed(ticket, self.trouble or "not connected"))
            return None
        seq = self._seq
        self._seq += 1
        self._pending[seq] = ticket, now
        return seq

    def _dial(self, out: list[PoolEffect]) -> None:
        self._conn = self._new_conn()
        self.state = PoolState.DIALING
        out.append(Dial(self._conn, self.endpoint, Port.STORAGE))

    def _on_answer(self, answer: messages.StorageMessage, out: list[PoolEffect], notes: list[PoolNote]) -> None:
        if self.state is PoolState.OPENING:
            if isinstance(answer, messages.SuccessResponse):
                self.state = PoolState.READY
                if self._told:
                    out.append(Report(Level.INFO, f"storage node {self.replica} can be used again"))
                self.trouble = self._told = ""
                self._retry_at = None
                self._retry_ms = self._retry_min_ms
                notes.append(LinkUp(self.replica, self.codec))
            elif isinstance(answer, messages.FailureResponse):
                self._fail(f"it refused to open: {answer.message}", out)
            return
        if isinstance(answer, messages.SuspectReport):
            notes.append(StorageNews(self.replica, answer))
            return
        pending = self._pending.pop(answer.seq_num, None)
        if pending is None:
            self._fail(f"it answered request {answer.seq_num}, which was not asked", out)
            return
        notes.append(StorageAnswer(pending[0], answer))

    def _is_troubled(self, reason: str, out: list[PoolEffect]) -> None:
        """The node cannot be used for this reason, which may be another one than before: one report per change."""
        self.trouble = reason
        if self._wanted and reason != self._told:
            self._told = reason
            out.append(Report(Level.WARNING, f"storage node {self.replica} cannot be used: {reason}"))

    def _fail(self, reason: str, out: list[PoolEffect]) -> None:
        """End the connection; `closed` follows from the driver."""
        self._is_troubled(reason, out)
        assert self._conn is not None
        self.flush(out)
        out.append(CloseConn(self._conn, reason))
        self._was_ready = self.state is PoolState.READY
        self.state = PoolState.CLOSING
        self._connection = None
        self._retry_at = None
