"""A whole log for clients: freed records come from the archive, all others from the feed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any

import trio

import waltz_trio as waltz
from waltz_core.base.ids import make_req_id
from waltz_core.base.log import MARKER_HEADER
from waltz_spark.records.archived import archived_batches
from waltz_spark.records.columns import Shape
from waltz_spark.records.manifest import read_archive

if TYPE_CHECKING:
    from waltz_trio import Client, Transaction

_COLUMNS = ("transaction_id", "client_id", "generation", "seq", "header", "data")
_SHAPE = Shape(columns=_COLUMNS, rows_max=1024)  # payloads are compared with their checksums


async def follow(
    client: Client, partition: int, *, archive: str, after: int = -1, prefetch: int = 256
) -> AsyncGenerator[Transaction, None]:
    """Transactions behind `after`, payloads included, without end; close it (`contextlib.aclosing`).

    The feed is asked first. If it does not go back far enough, the archive is read to its end; by then more
    may have been freed, so the feed is asked again. Markers of sinks are passed over, as by a feed.

    Args:
        archive: path or URI.

    Raises:
        BeforeStartError: neither the log nor the archive holds the transactions.
        ArchiveError, RecordDamagedError: it cannot be read.
        ClientError: as a feed.
    """
    mark = after
    while True:
        try:
            async with client.feed(partition, after=mark, prefetch=prefetch) as feed:
                async for transaction in feed:
                    yield transaction
                    mark = transaction.id
        except waltz.BeforeStartError:
            begin = mark
            batches = _archived(archive, partition, mark + 1)
            while (batch := await trio.to_thread.run_sync(next, batches, None)) is not None:
                for transaction in _transactions(partition, batch):
                    if transaction.header != MARKER_HEADER:
                        yield transaction
                    mark = transaction.id
            if mark == begin:
                raise


def _archived(archive: str, partition: int, first: int) -> Iterator[Any]:
    state = read_archive(archive)
    for file in state.files_of(partition):
        if file.first_id <= first < file.end_id:
            place = file.place(state.root)
            yield from (batch for _, batch in archived_batches(place, partition, first, file.end_id, _SHAPE))
            first = file.end_id


def _transactions(partition: int, batch: Any) -> Iterator[Transaction]:
    columns = [batch.column(name).to_pylist() for name in _COLUMNS]
    for transaction_id, client_id, generation, seq, header, data in zip(*columns, strict=True):
        req_id = make_req_id(client_id, generation, partition, seq)
        yield waltz.Transaction(partition, transaction_id, header, req_id, data)
