"""What a client does for each transaction of a feed: it finds those of one partition, and makes what readers get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waltz_core.base.twins import twin
from waltz_core.wire.client_messages import FeedData


@twin
def mark_after(run: Sequence[FeedData], seen: int) -> int:
    """The mark after a run; ids other than the next one are passed over."""
    for record in run:
        if record.transaction_id == seen + 1:
            seen += 1
    return seen


@twin
def hand_out(
    handed: list[Any],
    cls: type[Any],
    partition: int,
    records: Sequence[FeedData],
    payloads: Sequence[bytes | None],
    fetch: Any,
    last: int | None,
) -> int:
    """Append a `cls` for each of the `records` that has its payload in `payloads`, at the same place, to `handed`.

    Args:
        handed: where they go.
        cls: is made of partition, id, header, request id, payload and `fetch`.
        partition: the partition of all.
        records: of a feed.
        payloads: as many, or fewer.
        fetch: what reads a payload later, for those whose payload is None.
        last: a header at which it ends: this record and those behind it are left; None = there is no such header.

    Returns:
        How many they are.
    """
    count = 0
    for record, data in zip(records, payloads, strict=False):
        header = record.header
        if header == last:
            break
        # With the payload there, nothing is left to be read: the transaction holds on to nothing of its client.
        handed.append(
            cls(partition, record.transaction_id, header, record.req_id, data, fetch if data is None else None)
        )
        count += 1
    return count
