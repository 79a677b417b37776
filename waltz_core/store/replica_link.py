"""One replica as a store session sees it, and the newest batches kept for those that follow the log."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence

import attrs

from waltz_core.base.record import record


@record
class Batch:
    """A run of records, encoded once for all replicas."""

    first: int
    count: int
    encoded: bytes  # as in the storage protocol's AppendRequest
    last: int = attrs.field(
        init=False, default=attrs.Factory(lambda self: self.first + self.count - 1, takes_self=True)
    )


class Tail:
    """The newest batches of a session, in order and without gaps, bounded by bytes."""

    __slots__ = ("_batches", "_bytes", "_bytes_max", "end", "kept")

    def __init__(self, start: int, bytes_max: int) -> None:
        self._batches: deque[Batch] = deque()
        self.kept: Sequence[Batch] = self._batches  # always the same: to look at the oldest, without a call
        self._bytes = 0
        self._bytes_max = bytes_max
        self.end = start  # id that the next batch must start with

    def add(self, batch: Batch, committed: int) -> None:
        """Keep a batch; the oldest ones go once they are committed and the limit is exceeded."""
        assert batch.first == self.end, (batch.first, self.end)
        self._batches.append(batch)
        self._bytes += len(batch.encoded)
        self.end = batch.last + 1
        # What is not committed yet exists nowhere else for a replica that must still get it.
        while self._bytes > self._bytes_max and self._batches[0].last <= committed:
            self._bytes -= len(self._batches.popleft().encoded)

    def release(self, below: int) -> None:
        """Drop batches that end below `below`: every replica has been sent them."""
        while self._batches and self._batches[0].last < below:
            self._bytes -= len(self._batches.popleft().encoded)

    def at(self, first: int) -> Batch | None:
        """The batch that starts with `first`; None if it is gone or not a batch's start."""
        for batch in reversed(self._batches):
            if batch.first <= first:
                return batch if batch.first == first else None
        return None


class LinkState(enum.Enum):
    """Life of a link: forward only, never back (docs/recovery.md, I2: a replica never rejoins a session)."""

    DIALING = "dialing"  # no connection yet
    GREETING = "greeting"  # asked for its session info, which fences older sessions
    RECOVERING = "recovering"  # in the hands of Recovery
    FOLLOWING = "following"  # gets the log: from the tail, or from another replica when too far behind
    LOST = "lost"  # failed; out of this session for good


class ReplicaLink:
    """Position of one replica in the log of a session."""

    __slots__ = (
        "acked",
        "blocked",
        "codec",
        "copying",
        "denied",
        "flight",
        "flight_bytes",
        "movable",
        "next",
        "replica",
        "start",
        "state",
    )

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.state = LinkState.DIALING
        self.next = 0  # first id not sent yet
        self.acked = -1  # highest id it said is durable
        self.flight: deque[tuple[int, int, int]] = deque()  # (last id, bytes, round) of every append not answered
        self.flight_bytes = 0
        self.copying = False  # a read for its catch-up is under way
        self.denied: set[str] = set()  # sources that could not give out what it needs next
        self.blocked = ""  # why no source is left, as reported last
        self.start = 0  # the smallest id it keeps
        self.codec = 0  # of the storage protocol that its node and we speak
        self.movable = False  # it knows what a log start is; a node of 0.13.2 does not

    def follow(self, next_id: int) -> None:
        """Recovery is done with it: it is level up to `next_id - 1`."""
        assert self.state is LinkState.RECOVERING
        self.state = LinkState.FOLLOWING
        self.next = next_id
        self.acked = next_id - 1

    def sent(self, last: int, size: int, round_number: int) -> None:
        """An append up to `last` was handed to the connection, in a round of confirmations."""
        self.next = last + 1
        self.flight.append((last, size, round_number))
        self.flight_bytes += size

    def answered(self) -> int:
        """The oldest append is durable there; returns the round in which it left."""
        last, size, round_number = self.flight.popleft()
        self.flight_bytes -= size
        assert last > self.acked
        self.acked = last
        return round_number

    @property
    def last_round(self) -> int:
        """The round in which the newest append in flight left; 0 when there is none."""
        return self.flight[-1][2] if self.flight else 0
