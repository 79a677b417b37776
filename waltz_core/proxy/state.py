"""What a proxy keeps in its own root in ZooKeeper, besides what a server keeps there.

- `identity`: the client id under which it mounts upstream; the first of its first block. Never given out to anybody.
- `epoch`: how often it was started. It is the upper half of the numbers of its connections, so that the mounts of a
  later process count, and those of an earlier one do not any more.
- `blocks`: client ids that were taken from the counter of the upstream cluster, all of a block at once, and that
  clients of the proxy take from the counter in its own root. So no two clients of the cluster have one id, wherever
  they connect; an id outside the blocks is refused. A proxy behind another one takes part of the block from which the
  clients of that one take theirs.
- which cluster stands upstream: its name, its number of partitions, and which transaction of ZooKeeper created it.
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from waltz_core.base.errors import ProtocolError
from waltz_core.base.record import record

BLOCK_SIZE: Final = 1 << 16
"""Client ids that are taken at once: the cluster has 2^31 of them."""
_SHARE = 16  # of the block of a proxy a part of this size goes to one behind it, so that enough is left for others
_ID_MAX = (1 << 31) - 1
_EPOCH_MAX = (1 << 30) - 1


@record
class ProxyState:
    """The znode `proxy` below the root of a proxy."""

    identity: int
    epoch: int
    blocks: tuple[tuple[int, int], ...]  # first and last id of each, rising
    name: str  # of the upstream cluster
    num_partitions: int
    created: int  # czxid of its root

    @property
    def first_connection(self) -> int:
        """The number of the first connection of this process to a server."""
        return self.epoch << 32

    def includes(self, client_id: int) -> bool:
        """Whether an id may be one of a client of this proxy."""
        return client_id != self.identity and any(first <= client_id <= last for first, last in self.blocks)

    def started(self) -> ProxyState:
        """The same for the next process.

        Raises:
            ProtocolError: there were too many.
        """
        if self.epoch >= _EPOCH_MAX:
            raise ProtocolError(f"this proxy was started {self.epoch} times, which is all that its root can count")
        return attrs.evolve(self, epoch=self.epoch + 1)

    def is_short(self, counter: int) -> bool:
        """Whether another block is due, where the counter for clients stands here."""
        first, last = self.blocks[-1]
        return counter > last - (last - first + 1) // 2


def block_behind(counter: int, proxy: ProxyState | None = None) -> tuple[int, int]:
    """The block to take from a counter: of a cluster, or of the proxy that keeps this in the same root.

    Raises:
        ProtocolError: there are no ids left.
    """
    if proxy is None:
        size, last = BLOCK_SIZE, _ID_MAX
    else:
        first, last = proxy.blocks[-1]
        size = max((last - first + 1) // _SHARE, 2)  # its own id, and a client's
    if counter < 0 or counter > last - size:
        advice = "" if proxy is None else ": the proxy there takes more within 30 s, or stands behind too many others"
        raise ProtocolError(f"no {size} client ids are left behind {counter}{advice}")
    return counter + 1, counter + size


def encode_proxy_state(state: ProxyState) -> bytes:
    """Data of the znode."""
    return json.dumps(attrs.asdict(state), sort_keys=True).encode()


def decode_proxy_state(data: bytes) -> ProxyState:
    """Read the data of the znode.

    Raises:
        ProtocolError: it is something else.
    """
    try:
        fields = json.loads(data)
        blocks = tuple((int(first), int(last)) for first, last in fields["blocks"])
        numbers = [int(fields[name]) for name in ("identity", "epoch", "num_partitions", "created")]
        state = ProxyState(numbers[0], numbers[1], blocks, str(fields["name"]), numbers[2], numbers[3])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"no state of a proxy: {error!r}") from None
    if not blocks or any(first > last for first, last in blocks) or blocks[0][0] != state.identity:
        raise ProtocolError(f"no state of a proxy: identity {state.identity}, blocks {blocks}")
    return state
