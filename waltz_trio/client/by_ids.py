"""Reading transactions by their ids, without a feed, or through one where the server knows no ranges."""

from __future__ import annotations

import trio

from waltz_core.base.errors import BeforeStartError, ClientError, FeedBusyError, PartitionUnavailableError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.calls import ForgetRecords, ReadRecords, RecordsCarried
from waltz_core.wire.client_messages import ErrorCode, ErrorResponse
from waltz_trio.client.answers import Answers
from waltz_trio.client.feed import Feed
from waltz_trio.client.reads import Reads
from waltz_trio.client.values import Transaction

_AT_ONCE = 1000  # records in one question, as many as a server gives


class ReadsByIds:
    """Ranges of transactions that one client asks for."""

    def __init__(self, reads: Reads) -> None:
        self._reads, self._life = reads, reads.life
        self._answers: Answers[RecordsCarried] = Answers()

    async def read(self, partition: int, first: int, last: int) -> list[Transaction]:
        """See `Client.read`."""
        last = min(last, await self._reads.committed_mark(partition))
        read: list[Transaction] = []
        while first <= last:
            piece = await self.piece(partition, first, last)
            if piece is None:
                read += await self._read_feed(partition, first, last)
                break
            read += piece
            first = read[-1].id + 1
        return [each for each in read if each.header != MARKER_HEADER]

    async def piece(self, partition: int, first: int, last: int) -> list[Transaction] | None:
        """The first of committed transactions, as many as one answer holds; None: this server knows no ranges.

        One at least, and markers among them; errors as `Client.read`.
        """
        answer = await self._ask_records(partition, first, min(last - first + 1, _AT_ONCE))
        if answer.records is None:
            if answer.error is not None and answer.error.code != ErrorCode.NOT_IMPLEMENTED:
                raise _refusal(partition, answer.error)
            return None
        return [
            Transaction(partition, each.transaction_id, each.header, each.req_id, each.data) for each in answer.records
        ]

    async def _ask_records(self, partition: int, first: int, count: int) -> RecordsCarried:
        self._life.check_open(partition)
        answer = self._answers.ask()
        self._life.post(ReadRecords(partition, answer, first, count))
        try:
            return await answer.wait()
        finally:
            if self._answers.leave(answer):
                self._life.post(ForgetRecords(partition, answer))

    async def _read_feed(self, partition: int, first: int, last: int) -> list[Transaction]:
        """The same of a server whose codec has no ranges; one read of a partition after the other."""
        await self._reads.until_free(partition)
        if self._reads.has_feed(partition):
            raise FeedBusyError(
                f"partition {partition} is served by a server of 0.13.2, which is read by ids through a feed, and this "
                "client has one, of `feed` or `materialize`: leave that block first, or read with another client"
            )
        read: list[Transaction] = []
        async with Feed(self._reads, partition, first - 1, _AT_ONCE, None) as feed:
            feed.markers = True
            done = self._reads.by_ids[partition] = trio.Event()
            try:
                while not read or read[-1].id < last:
                    read.append(await anext(feed))
            finally:
                del self._reads.by_ids[partition]
                done.set()
        return read

    def on_records(self, effect: RecordsCarried) -> None:
        """Records that were asked for, or why there are none."""
        self._answers.give(effect.token, effect)

    def end(self, error: ClientError) -> None:
        """Fail every read that waits: the client has ended."""
        self._answers.fail(error)


def _refusal(partition: int, error: ErrorResponse) -> ClientError:
    """Why a server gives out no records."""
    text = error.message or "no reason given"
    if error.code == ErrorCode.BEFORE_START:
        return BeforeStartError(partition, text)
    return PartitionUnavailableError(partition, text)
