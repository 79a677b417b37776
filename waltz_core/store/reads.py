"""Reads of committed transactions for the partition, at whichever replica answers fastest."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from waltz_core.base.outbox import Emits
from waltz_core.store.copies import sound_part
from waltz_core.store.replica_link import ReplicaLink
from waltz_core.store.requests import PartitionRead, Requests
from waltz_core.store.routes import ReadRoutes
from waltz_core.store.session_notes import HeadersRead, ReadFailed, RecordsRead
from waltz_core.wire import storage_messages as messages
from waltz_core.wire.headers import HeaderRun


class SessionReads:
    """Tries a read at one replica after the other, and checks what comes."""

    __slots__ = ("_links", "_notes", "_requests", "_routes")

    def __init__(
        self,
        links: Mapping[str, ReplicaLink],
        routes: ReadRoutes,
        requests: Requests,
        notes: Emits[HeadersRead | RecordsRead | ReadFailed],
    ) -> None:
        self._links = links
        self._routes = routes
        self._requests = requests
        self._notes = notes

    def ask(self, now: int, read: PartitionRead) -> None:
        """Send a read to a replica that holds its beginning and was not tried."""
        replica = self._routes.choose(
            lambda name: name not in read.tried and self._links[name].start <= read.first <= self._links[name].acked
        )
        if replica is None and read.count > 1 and any(self._links[name].codec < 1 for name in read.tried):
            # A node of 0.13.2 refuses all that it is asked for because of any record: the first may be sound.
            self.ask(now, attrs.evolve(read, count=1, tried=(), damaged=0))
            return
        if replica is None:
            self.give_up(read)
            return
        read = attrs.evolve(read, tried=(*read.tried, replica), asked_at=now)
        if read.with_data:
            self._requests.read_records(replica, read, read.first, read.count)
        else:
            self._requests.read_headers(replica, read)

    def give_up(self, read: PartitionRead) -> None:
        """Nobody is left who could answer it; that is for good where all who were asked have a damaged record."""
        tried = ", ".join(sorted(read.tried)) or "no replica that holds it is connected"
        reason = f"transaction {read.first} cannot be read ({tried})"
        away = not read.tried or read.damaged < len(read.tried)
        self._notes.put(ReadFailed(read.token, reason, for_now=away, whole=not read.tried))

    def refused(self, now: int, read: PartitionRead, *, damaged: bool) -> None:
        """The replica that was asked cannot answer; another one can as well."""
        self.ask(now, attrs.evolve(read, damaged=read.damaged + damaged))

    def answered(self, now: int, read: PartitionRead, answer: messages.StorageMessage) -> None:
        """Hand over what is in order; an answer that does not begin with it is a read that failed there."""
        self._routes.measured(read.tried[-1], now - read.asked_at)
        if isinstance(answer, messages.RecordHeaderListResponse):
            headers = HeaderRun.of(answer.record_headers)[: read.count]
            if headers and headers.dense(read.first):
                self._notes.put(HeadersRead(read.token, headers))
                return
        elif isinstance(answer, messages.RecordListResponse):
            records = sound_part(answer.records[: read.count], read.first)
            if records:
                self._notes.put(RecordsRead(read.token, records))
                return
        self.refused(now, read, damaged=True)
