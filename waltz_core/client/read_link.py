"""The rpc connection that reads of one partition use, and their request ids.

A request keeps the generation under which it was sent, and so does its answer, while the partition may have moved on
to the next one. Reads do not depend on it: what tells them apart is the sequence number, which only grows.
"""

from __future__ import annotations

from waltz_core.base.contract import Tickets
from waltz_core.base.ids import ReqId, make_req_id, req_client, req_partition
from waltz_core.client.link import Link

_SEQUENCE_MAX = (1 << 31) - 1


class ReadLink(Tickets):
    """Where requests go; their tickets are sequence numbers, signed 32-bit integers that wrap."""

    __slots__ = ("_client_id", "_partition", "generation", "link", "sequence")

    def __init__(self, partition: int, client_id: int) -> None:
        super().__init__()
        self.link: Link | None = None
        self.generation = -1
        self.sequence = 0  # of the last request
        self._partition = partition
        self._client_id = client_id

    @property
    def usable(self) -> Link | None:
        """The connection, if requests can be sent."""
        return self.link if self.link is not None and self.link.ready else None

    def take(self) -> int:
        """The number of the next request."""
        self.sequence = following(self.sequence)
        return self.sequence

    def req_id(self, sequence: int) -> ReqId:
        """Of the request with this number."""
        return make_req_id(self._client_id, self.generation, self._partition, sequence)

    def is_ours(self, req_id: ReqId) -> bool:
        """Whether it is of a request about this partition, under any generation."""
        return req_client(req_id) == self._client_id and req_partition(req_id) == self._partition


def following(sequence: int) -> int:
    """The next sequence number."""
    return sequence + 1 if sequence < _SEQUENCE_MAX else -_SEQUENCE_MAX - 1


def reached(sequence: int, first: int) -> bool:
    """`sequence` is `first` or a later one, across a wrap too."""
    return (sequence - first) % (1 << 32) < 1 << 31
