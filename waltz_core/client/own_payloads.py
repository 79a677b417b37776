"""Payloads that a client has sent itself, so that its feeds need not read them again at a server.

```
 sent, by request id ──the feed shows it, and delivers it──► kept, by transaction id ──asked for──► handed out
   └── refused, lost, given up, not delivered, or mounted anew ──► gone ◄──┴── consumed, or the feed ends or moves
```

**What makes it the right payload** is the request id alone. It holds the client, the generation, the partition and a
number, and was given to one append; a transaction that carries it was made of the bytes which this process has sent
under it, and a server has taken those by their checksum. So nothing is handed out for an append that has only a
verdict, and nothing survives the process: the next one has another id, and reads at a server.
A server of 0.13.2 takes a request id from whoever sends it, so somebody else's transaction may carry it: nothing is
kept of what is sent to one, nor of an append that is still on its way when its partition is mounted anew. It keeps its
request id, by which the feed of that mount shows it; but who had the partition in between, nobody here knows.

**A transaction id names one transaction only while a feed goes on.** A log that was put back gives it to another one,
which the next feed would show. So what is kept ends with its feed.

**Memory** is bounded in bytes for all partitions of a client together (`OwnRoom`), from the sending on. What finds no
room is not kept, and read at a server as everything else is. Only a partition whose payloads are asked for keeps any:
appends beside a feed of headers, or without a feed, do not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from waltz_core.base.ids import ReqId
from waltz_core.wire.client_messages import FeedData

GUARDS_IDS_VERSION = 5  # codec of servers that take a request id from nobody but its client
_ENTRY = 256  # bytes that a payload takes beside its own: two objects, and a place in two tables


class OwnRoom:
    """The bytes that are left for the payloads of one client."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = size


class OwnPayloads:
    """Of one partition: what is on its way, and what was delivered and has not been asked for yet."""

    __slots__ = ("_kept", "_room", "_sent", "wanted")

    def __init__(self, room: OwnRoom) -> None:
        self._room = room
        self._sent: dict[ReqId, bytes] = {}
        self._kept: OrderedDict[int, bytes] = OrderedDict()  # ids rise; the first one is found at once
        self.wanted = False  # somebody asks for payloads of this feed

    @property
    def count(self) -> int:
        """Payloads in memory."""
        return len(self._sent) + len(self._kept)

    # ---- on their way ------------------------------------------------------------------------

    def sending(self, req_ids: Iterable[ReqId], payloads: Iterable[bytes]) -> None:
        """Appends leave for a server."""
        room, sent = self._room, self._sent
        for req_id, data in zip(req_ids, payloads, strict=True):
            size = len(data) + _ENTRY
            if size <= room.left:
                room.left -= size
                sent[req_id] = data

    def failed(self, req_id: ReqId) -> None:
        """An append is not in the log, or nobody will know."""
        data = self._sent.pop(req_id, None)
        if data is not None:
            self._give_back(data)

    def drop_sent(self) -> None:
        """The partition is mounted anew: what is on its way may meet a server that takes its ids from anybody."""
        for data in self._sent.values():
            self._give_back(data)
        self._sent.clear()

    def fed(self, run: Sequence[FeedData], delivered: int, to: int) -> None:
        """The feed has come, and what follows `delivered` in it, up to `to`, has just been delivered."""
        sent = self._sent
        if not sent:
            return
        for record in run:
            data = sent.pop(record.req_id, None)
            if data is None:
                continue
            if delivered < record.transaction_id <= to:
                self._kept[record.transaction_id] = data
            else:
                self._give_back(data)

    # ---- for whoever reads ---------------------------------------------------------------------

    def take(self, transaction_ids: Sequence[int]) -> tuple[list[tuple[int, list[bytes]]], Sequence[int]]:
        """Take out the payloads that are here, in pieces of consecutive ids; the ids of the others."""
        self.wanted = True
        kept = self._kept
        pieces: list[tuple[int, list[bytes]]] = []
        if not kept:
            return pieces, transaction_ids
        left: list[int] = []
        stop, size = -1, 0
        piece: list[bytes] = []
        for transaction_id in transaction_ids:
            data = kept.pop(transaction_id, None)
            if data is None:
                left.append(transaction_id)
                continue
            if transaction_id != stop:
                piece = []
                pieces.append((transaction_id, piece))
            piece.append(data)
            stop = transaction_id + 1
            size += len(data) + _ENTRY
        self._room.left += size
        return pieces, left

    def consumed(self, mark: int) -> None:
        """The application is done with everything up to `mark`, and has not asked for what is left of it."""
        kept = self._kept
        while kept and next(iter(kept)) <= mark:
            self._give_back(kept.popitem(last=False)[1])

    def moved(self) -> None:
        """The feed begins, or goes on from another mark."""
        for data in self._kept.values():
            self._give_back(data)
        self._kept.clear()

    def stopped(self) -> None:
        """The feed has ended; nobody wants payloads until somebody asks again."""
        self.moved()
        self.drop_sent()
        self.wanted = False

    def _give_back(self, data: bytes) -> None:
        self._room.left += len(data) + _ENTRY


class OwnOfClient:
    """Those of all partitions, which share their room."""

    __slots__ = ("_by_partition", "room")

    def __init__(self, size_max: int) -> None:
        self.room = OwnRoom(size_max)
        self._by_partition: dict[int, OwnPayloads] = {}

    def of(self, partition: int) -> OwnPayloads:
        """Those of one partition."""
        own = self._by_partition.get(partition)
        if own is None:
            own = self._by_partition[partition] = OwnPayloads(self.room)
        return own
