"""The one connection of a server to one storage node, shared by all partitions.

When it is dialed, how long it is waited for and why it cannot be used is the dialer's (`wire/dialer.py`); this is what
is asked over it. Requests carry a sequence number of this connection; beside it stands the ticket of whoever asked.
When the connection ends, each of them fails first, and then every partition hears that the link is down: nobody waits
for an answer of a connection that is gone. Pauses between dials grow to one second, so that a node that is back is
noticed soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

import attrs

from waltz_core.base.attempts import Attempts
from waltz_core.base.contract import Rng, earliest
from waltz_core.base.edge import Port
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import parse_endpoint
from waltz_core.base.outbox import Emits
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
from waltz_core.wire.connection import STORAGE_PROTOCOL
from waltz_core.wire.dialer import Dialer, DialerEffect, DialState
from waltz_core.wire.frame import LARGE
from waltz_core.wire.port_session import PortSession
from waltz_core.wire.shared import Trouble
from waltz_core.wire.storage_codec import append_around

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

HELLO_TEXT = "Waltz Storage Client"
VERSIONS = frozenset({0, 1})  # 0 is all that 0.13.2 speaks
_DIAL_PAUSE_MAX_MS = 1_000  # a node that is back is noticed within this, however long it was away
_QUEUE_FACTOR = 3  # how many times the time-out a request may wait behind others that are answered


PoolNote: TypeAlias = LinkUp | LinkDown | StorageAnswer | StorageFailed | StorageNews


class StoragePool:
    """Dials while some partition wants it, opens with the cluster key, matches answers by sequence number.

    Every request has a deadline, counted from the last answer of the node: the oldest one that passes it
    ends the connection, which fails all requests under way and is a `LinkDown` for every partition
    (server-D10: 0.13.2 waits for ever).
    """

    __slots__ = (
        "_answer_timeout_ms",
        "_asked",
        "_dialer",
        "_heard_at",
        "_last_seq",
        "_notes",
        "_up",
        "_wanted",
        "flush",
        "replica",
        "rings_at",
    )

    def __init__(
        self,
        replica: str,
        out: Emits[DialerEffect],
        notes: Emits[PoolNote],
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
        try:
            endpoint = parse_endpoint(replica)
        except ConfigError as error:
            raise ConfigError(f"storage node in the cluster's metadata: {error}") from error
        opening = messages.OpenRequest(-1, -1, -1, UUID(bytes=key), num_partitions)
        self.replica = replica
        self._notes = notes
        self._answer_timeout_ms = answer_timeout_ms
        self._dialer: Dialer[messages.StorageMessage] = Dialer(
            endpoint,
            Port.STORAGE,
            out,
            new_conn,
            lambda: PortSession(STORAGE_PROTOCOL, HELLO_TEXT, versions, opening, frame_size_max),
            name=f"storage node {replica}",
            kind="a storage node",
            greeting_ms=answer_timeout_ms,
            again=Attempts(retry_min_ms, min(retry_max_ms, _DIAL_PAUSE_MAX_MS), rng),
        )
        # Hands over what was written in this step, as one piece: the dialer's own method, without a call of ours.
        self.flush: Callable[[], None] = self._dialer.flush
        self.rings_at: int | None = None  # when the alarm of its owner rings, which is not later than `deadline`
        self._wanted: set[int] = set()
        self._last_seq = -1
        self._asked: dict[int, tuple[int, int]] = {}  # sequence number → ticket, time of sending; the oldest first
        self._heard_at = 0  # when it answered last
        self._up = False  # the partitions know that it is usable

    @property
    def conn(self) -> int | None:
        """Id of the present connection."""
        return self._dialer.conn

    @property
    def codec(self) -> int:
        """What the connection speaks; 0 while there is none."""
        return self._dialer.codec

    @property
    def state(self) -> DialState:
        """How far the connection is."""
        return self._dialer.state

    @property
    def trouble(self) -> str:
        """Why it is not usable, for people: the last thing that went wrong."""
        return self._dialer.trouble

    @property
    def trouble_kind(self) -> Trouble | None:
        """The same for programs; None while it is usable, or nothing went wrong yet."""
        return self._dialer.trouble_kind

    @property
    def usable(self) -> bool:
        """It is connected and was opened with our cluster key."""
        return self._dialer.state is DialState.READY

    @property
    def waiting(self) -> bool:
        """The last dial failed and the next one is not due."""
        return self.state is DialState.WAITING

    def want(self, partition_id: int) -> bool:
        """A partition needs this node; returns whether it is usable already."""
        self._wanted.add(partition_id)
        self._dialer.want()
        return self.usable

    def unwant(self, partition_id: int) -> None:
        """A partition does not need it any more; the connection stays as long as it lives."""
        self._wanted.discard(partition_id)
        self._dialer.wanted = bool(self._wanted)

    def wanted_by(self) -> list[int]:
        """Partitions that need this node, ascending."""
        return sorted(self._wanted)

    def call(self, now: int, call: StorageCall) -> None:
        """Send a request; fails at once when the node is not usable."""
        seq = self._take(now, call.ticket)
        if seq is not None:
            self._dialer.send(attrs.evolve(call.message, seq_num=seq))

    def append(self, now: int, call: StorageAppend) -> None:
        """Send an append."""
        seq = self._take(now, call.ticket)
        if seq is not None:
            batch, dialer, encoded = call.batch, self._dialer, call.batch.encoded
            size = len(encoded)
            head, tail = append_around(
                call.session_id, seq, call.partition_id, batch.count, size, False, version=dialer.codec
            )
            if size >= LARGE:
                dialer.pass_on(head, encoded, tail)
                return
            buffer = dialer.buffer  # as `pass_on` would, for every replica of every append
            buffer += head
            buffer += encoded
            buffer += tail

    def dialed(self, now: int) -> None:
        """The connection stands."""
        self._dialer.dialed(now)

    def received(self, now: int, data: bytes) -> bool:
        """Bytes from the storage node; returns if `flush`, or a look at the alarm, may follow from them."""
        dialer = self._dialer
        answers = dialer.received(data)
        greeted = not self._up and dialer.state is DialState.READY
        if greeted:
            self._up = True
            self._notes.put(LinkUp(self.replica, self.codec))
        if answers:
            self._heard_at = now
        for answer in answers:
            if type(answer) is messages.SuspectReport:
                self._notes.put(StorageNews(self.replica, answer))
                continue
            asked = self._asked.pop(answer.seq_num, None)
            if asked is None:
                dialer.give_up(f"it answered request {answer.seq_num}, which was not asked", Trouble.PROTOCOL)
                break
            self._notes.put(StorageAnswer(asked[0], answer))
        return greeted or self.rings_at is None or dialer.state is not DialState.READY

    def closed(self, now: int, reason: str, *, untrusted: bool = False) -> None:
        """The connection ended, or the dial failed."""
        self._dialer.closed(now, reason, untrusted=untrusted)
        asked, self._asked = self._asked, {}
        for ticket, _ in asked.values():
            self._notes.put(StorageFailed(ticket, reason))
        if self._up:
            self._up = False
            self._notes.put(LinkDown(self.replica, reason))

    def step(self, now: int) -> None:
        """Dial again when due; end a connection that does not answer."""
        self._dialer.due(now)
        overdue = self._overdue_at()
        if overdue is not None and now >= overdue:
            self._dialer.give_up(f"it did not answer within {self._answer_timeout_ms} ms")

    @property
    def may_ring_late(self) -> bool:
        """Whether no alarm is set, or one that may be too late: while it is usable, deadlines only recede."""
        return self.rings_at is None or self._dialer.state is not DialState.READY

    def deadline(self) -> int | None:
        """Next dial or overdue answer."""
        return earliest(self._dialer.deadline(), self._overdue_at())

    def _overdue_at(self) -> int | None:
        """When the oldest request is given up. A node that works off a long queue gets more time, with an end."""
        if not self.usable or not self._asked:
            return None
        _, sent = next(iter(self._asked.values()))
        return min(max(sent, self._heard_at), sent + _QUEUE_FACTOR * self._answer_timeout_ms) + self._answer_timeout_ms

    def _take(self, now: int, ticket: int) -> int | None:
        if self._dialer.state is not DialState.READY:
            self._notes.put(StorageFailed(ticket, self.trouble or "not connected"))
            return None
        self._last_seq += 1
        self._asked[self._last_seq] = ticket, now
        return self._last_seq
