"""Reads of one partition over its rpc connection: payloads (`PayloadReads`), whole records (`RecordReads`), and the
committed mark (`MarkReads`).

They need no mount, share one connection and one sequence of request ids, and outlive every connection: what was not
answered over one is asked again over the next. A server that owes payloads or records and sends nothing at all is
given up, and so is one, later, that answers everything else: what it was asked for may be lost. One that owes a mark is
asked again, and suspected.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from waltz_core.base.contract import earliest
from waltz_core.client.alarms import Due, MachineAlarms
from waltz_core.client.calls import MarkRead, OwedRead
from waltz_core.client.context import ClientContext
from waltz_core.client.link import Link
from waltz_core.client.mark_reads import MarkReads
from waltz_core.client.payload_reads import PayloadReads
from waltz_core.client.read_link import ReadLink
from waltz_core.client.record_reads import RecordReads
from waltz_core.wire.client_messages import ErrorCode, ErrorResponse, RecordRangeResponse

_OWED_FACTOR = 4  # of the silence: as long may a server owe the reads of one partition while it answers others


class PartitionReads:
    """What somebody wants to read of one partition."""

    make_marks: ClassVar[type[MarkReads]] = MarkReads
    make_payloads: ClassVar[type[PayloadReads]] = PayloadReads

    __slots__ = ("_alarms", "_link", "_out", "_settings", "marks", "partition", "payloads", "records")

    def __init__(self, partition: int, context: ClientContext) -> None:
        self.partition = partition
        self._alarms = MachineAlarms(self, context.alarms, context.doubts)
        self._settings = context.settings
        self._out = context.out
        self._link = ReadLink(partition, context.client_id)
        self.marks = self.make_marks(context, self._link)
        self.payloads = self.make_payloads(partition, context, self._link)
        self.records = RecordReads(partition, context, self._link)

    @property
    def link(self) -> Link | None:
        """The rpc connection it uses."""
        return self._link.link

    def place(self, now: int, link: Link | None, generation: int) -> None:
        """Use this connection from now on, or none, under this generation."""
        self._link.generation = generation
        if link is not self._link.link:
            self.on_link_lost()
            self._link.link = link
            self.on_link_ready(now)

    def on_link_ready(self, now: int) -> None:
        """The connection can be used: ask for everything that is wanted."""
        self.marks.link_ready(now)
        self.payloads.send(now)
        self.records.send(now)

    def on_link_lost(self) -> None:
        """No answer comes over the old connection any more."""
        self.payloads.link_lost()
        self.records.link_lost()
        self.marks.link_lost()

    def on_range(self, now: int, response: RecordRangeResponse) -> None:
        """A range was read, for whoever asked for it.

        Raises:
            ProtocolError: data that does not match its checksum; the connection is to be given up.
        """
        if not self.records.answered(now, response):
            self.payloads.range_answered(now, response)

    def on_refused(self, now: int, error: ErrorResponse) -> bool:
        """The server refuses a request; False if it is none of ours."""
        req_id, later = error.req_id, error.code in (ErrorCode.NOT_READY, ErrorCode.NOT_SERVED)
        if self.payloads.range_refused(now, error) or self.records.refused(now, req_id, None if later else error):
            return True
        ended = self.marks.refused(now, req_id, later=later or error.code == ErrorCode.OVERLOADED)
        if ended is None:
            return False
        if ended.tokens:
            self._out.put(MarkRead(self.partition, -1, ended.tokens, error))
        return True

    def set_alarms(self, now: int) -> None:
        """Set the alarm of every purpose to its present time."""
        alarms = self._alarms
        alarms.set(Due.MARK, self.marks.again_at)
        alarms.set(Due.PAYLOADS, self.payloads.again_at)
        alarms.set(Due.RECORDS, self.records.again_at)
        alarms.set_by(Due.SILENCE, self._silent_at())
        alarms.set_hurry(now)

    def due(self, now: int, due: Due) -> bool:
        """An alarm rang: act if it is time; True when the connection is to be given up as dead."""
        self._alarms.rang(due)
        match due:
            case Due.MARK:
                self.marks.due(now)
            case Due.PAYLOADS:
                self.payloads.due(now)
            case Due.RECORDS:
                self.records.due(now)
            case Due.SILENCE:
                silent = self._silent_at()
                return silent is not None and now >= silent
        return False

    def hurry_at(self) -> int | None:
        """When a server that owes an answer has been silent for so long that another may serve this partition."""
        owed_since = earliest(self.payloads.owed_since(), self.records.owed_since(), self.marks.owed_since())
        if owed_since is None or self.link is None:
            return None
        return max(owed_since, self.link.last_read) + self._settings.suspect_ms

    def owed(self, now: int) -> Iterator[OwedRead]:
        """What the server owes, each request by itself."""
        link = self.link
        if link is not None:
            partition, server, heard_ms = self.partition, link.endpoint, now - link.last_read
            for what, owed in (("payloads", self.payloads.owed()), ("records", self.records.owed())):
                for ids, asked_at in owed:
                    yield OwedRead(partition, server, what, ids.start, len(ids), now - asked_at, heard_ms)

    def _silent_at(self) -> int | None:
        """When the server has owed a payload or records for so long that it must be gone, or has lost the request.

        While a read is owed the client asks who serves what, so that answers come also where none comes to the read.
        """
        owed_since = earliest(self.payloads.owed_since(), self.records.owed_since())
        if owed_since is None or self.link is None:
            return None
        silence = self._settings.silence_ms
        return min(max(owed_since, self.link.last_read) + silence, owed_since + _OWED_FACTOR * silence)
