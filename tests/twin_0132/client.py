"""The client of 0.13.2.

Defects: it dials again at once, or after a second if nobody listened (`reconnect_paced`); it waits without end for a
peer that owes an answer (`silent_peer_dropped`); a mount is renewed neither under a newer generation
(`remount_on_generation`) nor when appends got lost without a word (`remount_after_loss`); a question for the mark is
asked once (`mark_asked_again`).

No defect: it reads every payload at a server, its own ones too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tests.twin_0132.wire import Connection0132
from waltz_core.client.link import ConnectionState, Link
from waltz_core.client.mark_reads import MarkReads
from waltz_core.client.mounting import Mounting
from waltz_core.client.node import ClientNode
from waltz_core.client.partition import ClientPartition
from waltz_core.client.partitions import Partitions
from waltz_core.client.patience import Patience
from waltz_core.client.payload_reads import PayloadReads
from waltz_core.client.reads import PartitionReads
from waltz_core.client.router import ClientRouter
from waltz_core.wire.client_messages import ClientMessage
from waltz_core.wire.connection import Connection

_NOBODY_LISTENED_MS = 1_000


class Link0132(Link):
    """A connection that is dialed again without a pause."""

    make_connection: ClassVar[type[Connection[ClientMessage]]] = Connection0132

    __slots__ = ("_connected",)

    def on_closed(self, now: int, reason: str) -> None:
        self._connected = self.state is not ConnectionState.DIALING
        super().on_closed(now, reason)

    def _next_dial_at(self, now: int) -> int:
        return now if self._connected else now + _NOBODY_LISTENED_MS

    def _greeting_due(self) -> int | None:
        return None


class Mounting0132(Mounting):
    """Trusts a mount for ever."""

    __slots__ = ()

    def newer_generation(self, now: int) -> None:
        pass  # only later request ids carry the new number: who was forgotten waits for ever for its feed

    def lost_unnoticed(self, now: int) -> None:
        pass


class Patience0132(Patience):
    """Never ends."""

    __slots__ = ()

    def ends_at(self) -> int | None:
        return None

    def _suspect_at(self) -> int | None:
        return None


class ClientPartition0132(ClientPartition):
    """Trusts a mount, and its server, for ever."""

    make_mounting = Mounting0132
    make_patience = Patience0132

    __slots__ = ()


class MarkReads0132(MarkReads):
    """Asks once."""

    __slots__ = ()

    def _ask(self, now: int) -> None:
        super()._ask(now)
        self.again_at = None


class PayloadReads0132(PayloadReads):
    """Reads everything at a server."""

    __slots__ = ()

    def from_memory(self, transaction_ids: Sequence[int]) -> Sequence[int]:
        return transaction_ids


class PartitionReads0132(PartitionReads):
    """Asks once, and waits."""

    make_marks = MarkReads0132
    make_payloads = PayloadReads0132

    __slots__ = ()

    def hurry_at(self) -> int | None:
        return None

    def _silent_at(self) -> int | None:
        return None


class Partitions0132(Partitions):
    """What is open."""

    make_partition = ClientPartition0132
    make_reads = PartitionReads0132


class ClientRouter0132(ClientRouter):
    """Leads to its servers over such links."""

    make_link = Link0132

    __slots__ = ()


class ClientNode0132(ClientNode):
    """A client of 0.13.2; `versions` are for the caller to limit."""

    make_router = ClientRouter0132
    make_partitions = Partitions0132
