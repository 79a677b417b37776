"""Calls of the application: kept until the cluster has answered, then handed to partitions and readers.

Before the cluster has answered nobody knows which partitions there are, or our id. After `CloseClient` appends fail as
CLOSED, and everything else is ignored: who waits for anything else is let go by the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from waltz_core.base.edge import Level, Report
from waltz_core.client.calls import (
    Call,
    Consumed,
    Failed,
    Fetch,
    Flush,
    Flushed,
    Forget,
    ForgetMark,
    ForgetRecords,
    Open,
    Phase,
    ReadMark,
    ReadRecords,
    Reason,
    StopFeed,
    Submit,
    SubmitMany,
)
from waltz_core.client.context import ClientContext
from waltz_core.client.partition import ClientPartition
from waltz_core.client.partitions import Partitions


class ApplicationPort:
    """What the application asks for."""

    def __init__(self, context: ClientContext, partitions: Partitions) -> None:
        self._context = context
        self._out = context.out
        self._touch = context.touch
        self._partitions = partitions
        self._early: list[Call] | None = []  # until the cluster has answered
        self.handlers: Mapping[type, Callable[[int, Any], None]] = {
            Open: self._on_open,
            SubmitMany: self._on_submit_many,
            StopFeed: self._on_stop_feed,
            Consumed: self._on_consumed,
            Flush: self._on_flush,
            ReadMark: self._on_read_mark,
            Fetch: self._on_fetch,
            Forget: self._on_forget,
            ForgetMark: self._on_forget_mark,
            ReadRecords: self._on_read_records,
            ForgetRecords: self._on_forget_records,
        }

    def joined(self, now: int) -> None:
        """The cluster has answered: what waited for that is carried out."""
        early, self._early = self._early or [], None
        at = 0
        while at < len(early):
            call = early[at]
            if type(call) is Submit:
                at = self.submits(now, early, at)
            else:
                self.handlers[type(call)](now, call)
                at += 1

    def close(self) -> None:
        """The client is closed: appends that wait for the cluster fail."""
        early, self._early = self._early or (), None
        for call in early:
            if isinstance(call, Submit | SubmitMany):
                self._fail(call, Reason.CLOSED)

    def _waits(self, call: Call) -> bool:
        """The call must wait for the cluster, or comes too late."""
        if self._early is not None:
            self._early.append(call)
            return True
        return self._context.closed

    def _serves(self, call: Open | ReadMark | Fetch | ReadRecords) -> bool:
        """The call can be carried out now. One of a partition that does not exist never can, and has no answer."""
        if self._waits(call):
            return False
        if not self._context.exists(call.partition):
            count = self._context.partition_count
            what = f"{type(call).__name__} of partition {call.partition!r}"
            self._out.put(Report(Level.ERROR, f"{what} is passed over: the cluster has {count} partitions, from 0 on"))
            return False
        return True

    # ---- appends -----------------------------------------------------------------------------

    def submits(self, now: int, events: Sequence[Any], at: int) -> int:
        """The submits to one partition that begin at `at`, in one go: there are very many; returns where they end."""
        end = _same(events, at)
        partition = self._partitions.opened.get(events[at].partition)
        while partition is None or partition.phase is Phase.CLOSED:
            if at == end:
                return end
            partition = self._opened_for(now, events[at])
            at += partition is None
        partition.submit(now, events, at, end)
        self._touch(partition)
        return end

    def _on_submit_many(self, now: int, call: SubmitMany) -> None:
        partition = self._partitions.opened.get(call.partition)
        if partition is None or partition.phase is Phase.CLOSED:
            partition = self._opened_for(now, call)
        if partition is not None:
            partition.submit_many(now, call)
            self._touch(partition)

    def _opened_for(self, now: int, call: Submit | SubmitMany) -> ClientPartition | None:
        """The partition of a submit, opened; None if that is not possible, and so decides about the submit."""
        if self._context.closed:
            self._fail(call, Reason.CLOSED)
        elif not self._waits(call):
            if self._context.exists(call.partition):
                return self._partitions.open(now, call.partition, None, deliver=False)
            self._fail(call, Reason.REFUSED, "there is no such partition")
        return None

    def _fail(self, call: Submit | SubmitMany, reason: Reason, text: str = "") -> None:
        tokens = call.tokens if isinstance(call, SubmitMany) else (call.token,)
        self._out.put_all(Failed(call.partition, token, reason, text=text) for token in tokens)

    def _on_flush(self, now: int, call: Flush) -> None:
        if self._waits(call):
            return
        partition = self._partitions.opened.get(call.partition)
        if partition is None:
            self._out.put(Flushed(call.partition, call.token))  # nothing was ever submitted
        else:
            partition.flush(now, call.token)
            self._touch(partition)

    # ---- feeds -------------------------------------------------------------------------------

    def _on_open(self, now: int, call: Open) -> None:
        if self._serves(call):
            self._partitions.open(now, call.partition, call.mark, deliver=call.deliver, feed=call.feed)

    def _on_stop_feed(self, now: int, call: StopFeed) -> None:
        if self._waits(call):
            return
        partition = self._partitions.opened.get(call.partition)
        if partition is not None and partition.phase is not Phase.CLOSED:
            waited = partition.wants_tail
            partition.stop_feed(now)
            self._touch(partition)
            if partition.unused:
                partition.close(now)
            elif not waited:
                self._partitions.seek_tail(now, partition)

    def _on_consumed(self, now: int, call: Consumed) -> None:
        partition = self._partitions.opened.get(call.partition)
        if partition is not None:
            partition.consumed(now, call.mark)
            self._touch(partition)

    # ---- reads -------------------------------------------------------------------------------

    def _on_read_mark(self, now: int, call: ReadMark) -> None:
        if self._serves(call):
            self._partitions.reads_of(now, call.partition).marks.read(now, call.token)

    def _on_fetch(self, now: int, call: Fetch) -> None:
        if self._serves(call):
            self._partitions.reads_of(now, call.partition).payloads.fetch(now, call.transaction_ids)

    def _on_forget(self, now: int, call: Forget) -> None:
        reads = None if self._waits(call) else self._partitions.reads_known(call.partition)
        if reads is not None:
            reads.payloads.forget(call.transaction_ids)
            self._touch(reads)

    def _on_forget_mark(self, now: int, call: ForgetMark) -> None:
        reads = None if self._waits(call) else self._partitions.reads_known(call.partition)
        if reads is not None:
            reads.marks.forget(call.token)
            self._touch(reads)

    def _on_read_records(self, now: int, call: ReadRecords) -> None:
        if self._serves(call):
            self._partitions.reads_of(now, call.partition).records.read(now, call.token, call.first, call.count)

    def _on_forget_records(self, now: int, call: ForgetRecords) -> None:
        reads = None if self._waits(call) else self._partitions.reads_known(call.partition)
        if reads is not None:
            reads.records.forget(call.token)
            self._touch(reads)


def _same(events: Sequence[Any], at: int) -> int:
    """Where the submits to one partition that begin at `at` end."""
    partition, end = events[at].partition, at + 1
    while end < len(events) and type(events[end]) is Submit and events[end].partition == partition:
        end += 1
    return end
