"""Where feeds and reads of a partition get their transactions from.

A server reads its replicas through a store session (`Ownership`), a proxy its upstream server (`waltz_core/proxy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Protocol

from waltz_core.store.session import SessionState

if TYPE_CHECKING:
    from waltz_core.base.ids import ReqId
    from waltz_core.server.peer import Peer
    from waltz_core.wire.client_messages import ClientMessage


class ReadSession(Protocol):
    """Answers come as notes: `HeadersRead`, `RecordsRead` or `ReadFailed`, with the token of the question."""

    @property
    def state(self) -> SessionState:
        """Whether it can be asked."""

    @property
    def confirmed(self) -> int:
        """The last round of questions for the committed mark that may be answered."""

    def confirm(self) -> int:
        """Begin a round; returns its number."""

    def read_headers(self, now: int, token: int, first: int, count: int) -> None:
        """Read record headers from `first` on."""

    def read_records(self, now: int, token: int, first: int, count: int) -> None:
        """Read records from `first` on."""


class Source(Protocol):
    """Whether a partition can be read, and through what."""

    @property
    def partition_id(self) -> int:
        """Which partition."""

    @property
    def open(self) -> bool:
        """Whether it can be read now."""

    @property
    def known(self) -> bool:
        """Whether its mark is known: whether it was ever open."""

    @property
    def reason(self) -> str:
        """Why it is not open, for people."""

    @property
    def session(self) -> ReadSession | None:
        """What answers reads; None while nothing does."""

    def call_off(self, token: int) -> bool:
        """Nobody waits for a read any more: whether no answer to it will come."""


class Beginning(Protocol):
    """Where the log begins."""

    def refuses(self, conn: int, req_id: ReqId, client_mark: int, version: int) -> bool:
        """Whether a feed behind `client_mark` would begin below the log start, which its client must learn."""


class Served(Protocol):
    """A partition, as requests find it."""

    def received(self, now: int, peer: Peer, batch: Sequence[ClientMessage], /) -> None:
        """Messages of one connection, in order."""


class ServedPartitions(Protocol):
    """All partitions of a process, as the port for clients and its requests see them."""

    @property
    def served(self) -> Sized:
        """By id; its length counts."""

    @property
    def undecided(self) -> Sized:
        """Not empty while appends wait for their verdict."""

    @property
    def crowded(self) -> Sized:
        """Not empty while too many do."""

    def get(self, partition_id: int, /) -> Served | None:
        """The partition, if it is here."""

    def touch(self, partition_id: int, /) -> None:
        """Something happened to it."""

    def gone(self, peer: Peer, partition_ids: Iterable[int], /) -> None:
        """A connection that asked something of these has ended."""

    def writable(self, conn: int, partition_ids: Iterable[int], writable: bool, /) -> None:
        """The same stopped or started taking data."""

    def greedy(self, client_id: int, /) -> bool:
        """Whether a client has more than its fair part of what waits where too much does."""

    def hinders(self, client_id: int, /) -> bool:
        """Whether others would have to wait for what a client has queued."""
