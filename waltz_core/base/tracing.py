"""Which transactions are traced from append to sync, and what a machine says of one of them.

The protocols have no room for a trace's id, and peers of 0.13.2 would not pass it on. So every process decides from
the transaction id alone whether a transaction is traced, and derives the same ids from what all of them know: cluster
key, partition, store session, transaction. A trace thus joins the server's part and those of the storage nodes.
"""

from __future__ import annotations

from waltz_core.base.record import record


@record
class Traced:
    """An effect: what became of one transaction in this process, in ms of the machine's clock."""

    key: bytes  # of the cluster
    partition_id: int
    session_id: int
    transaction_id: int
    count: int  # transactions of its batch
    steps: tuple[tuple[str, int, int], ...]  # name, begin and end of each, in their order


def traced(every: int, first: int, count: int) -> int:
    """The newest transaction that is traced among `count` from `first` on; -1 if none is.

    Args:
        every: one in so many is traced; 0 = none.
        first: id of the first one.
        count: how many.
    """
    if not every:
        return -1
    last = first + count - 1
    newest = last - last % every
    return newest if newest >= first else -1
