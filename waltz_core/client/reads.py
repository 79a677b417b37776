"""Reads of one partition over its rpc connection: payloads (`PayloadReads`) and the committed mark (`MarkReads`).

They need no mount, share one connection and one sequence of request ids, and outlive every connection: what was not
answered over one is asked again over the next. A server that owes payloads and sends nothing at all is given up; one
that owes a mark is asked again, and suspected.
"""

from __future__ import annotations

from typing import ClassVar

from waltz_core.base.contract import earliest
from waltz_core.base.ids import ReqId
from waltz_core.client.context import ClientContext
from waltz_core.client.link import Link
from waltz_core.client.mark_reads import MarkReads
from waltz_core.client.payload_reads import PayloadReads
from waltz_core.client.read_link import ReadLink


class PartitionReads:
    """What somebody wants to read of one partition."""

    make_marks: ClassVar[type[MarkReads]] = MarkReads
    make_payloads: ClassVar[type[PayloadReads]] = PayloadReads

    __slots__ = ("_link", "_settings", "marks", "partition", "payloads")

    def __init__(self, partition: int, context: ClientContext) -> None:
        self.partition = partition
        self._settings = context.settings
        self._link = ReadLink(partition, context.client_id)
        self.marks = self.make_marks(context, self._link)
        self.payloads = self.make_payloads(partition, context, self._link)

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

    def on_link_lost(self) -> None:
        """No answer comes over the old connection any more."""
        self.payloads.link_lost()
        self.marks.link_lost()

    def on_refused(self, now: int, req_id: ReqId, *, later: bool) -> bool:
        """The server refuses a request, `later` if it may be able to answer it then; False if it is none of ours."""
        return self.payloads.range_refused(now, req_id) or (later and self.marks.refused(now, req_id))

    def deadline(self) -> int | None:
        """When `due` has something to do."""
        return earliest(self.marks.deadline(), self.payloads.deadline(), self._silent_at())

    def due(self, now: int) -> bool:
        """Repeat what has waited long enough; True when the connection is to be given up as dead."""
        self.marks.due(now)
        self.payloads.due(now)
        silent = self._silent_at()
        return silent is not None and now >= silent

    def hurry_at(self) -> int | None:
        """When a server that owes an answer has been silent for so long that another may serve this partition."""
        owed_since = earliest(self.payloads.owed_since(), self.marks.owed_since())
        if owed_since is None or self.link is None:
            return None
        return max(owed_since, self.link.last_read) + self._settings.suspect_ms

    def _silent_at(self) -> int | None:
        """When the server has owed a payload for so long that it must be gone."""
        owed_since = self.payloads.owed_since()
        if owed_since is None or self.link is None:
            return None
        return max(owed_since, self.link.last_read) + self._settings.silence_ms
