"""Reads of a partition, through the archive where they begin below the log start.

    Feeds, Reads ── read ──▶ below the log start? ── no ──▶ the store session ── failed, as the log start has risen ──┐
                                    └── yes ──▶ the archive ◀───────────────────────────────────────────────────────┘
                                                    ├── answered ──▶ the note that a replica would have given
                                                    └── failed ──▶ headers for feeds: tried again, after a pause,
                                                                   as long as somebody waits for them
                                                                   records for clients: the reason, at once

Feeds and reads see it as their source (`source.py`), so their limits hold here too: nothing is read for a connection
that takes no data, and each connection waits its turn. While the archive is away, a client whose feed is below the log
start waits, as it would for a slow server; nobody else does. Ids and the checksum of every payload are checked, as they
are for replicas.
"""

from __future__ import annotations

from waltz_core.base.attempts import Attempts
from waltz_core.base.contract import Rng
from waltz_core.base.edge import Level, Report
from waltz_core.base.outbox import Emits, Outbox
from waltz_core.base.record import record
from waltz_core.server.archive import Archive, ReadAsked
from waltz_core.server.archive_calls import ArchiveData, ArchiveEvent, ArchiveFailed
from waltz_core.server.log_start import LogBeginning
from waltz_core.server.source import ReadSession, Source
from waltz_core.store.copies import sound_part
from waltz_core.store.session import SessionState
from waltz_core.store.session_notes import HeadersRead, ReadFailed, RecordsRead
from waltz_core.wire.records import headers_of

ReadNote = HeadersRead | RecordsRead | ReadFailed


@record
class _Read:
    token: int
    first: int
    count: int
    headers_only: bool


class ArchivedReads:
    """Of one partition; `Source` and `ReadSession` to its feeds and reads."""

    def __init__(
        self,
        below: Source,
        log_start: LogBeginning,
        archive: Archive,
        out: Emits[Report],
        rng: Rng,
    ) -> None:
        self.partition_id = below.partition_id
        self.notes: Outbox[ReadNote] = Outbox()
        self.trouble = ""  # why the archive cannot be read, if it cannot
        self._below = below
        self._log_start = log_start
        self._archive = archive
        self._out = out
        self._reads: dict[int, _Read] = {}  # token → read under way, wherever it is
        self._again: list[_Read] = []  # headers that are read again after the pause
        self._again_at: int | None = None
        self._needless: set[int] = set()  # tokens of reads under way that are not repeated
        policy = archive.policy
        self._attempts = Attempts(policy.retry_min_ms, policy.retry_max_ms, rng)

    # ---- as a source -------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """As without an archive: what is served is one log."""
        return self._below.open

    @property
    def known(self) -> bool:
        """Likewise."""
        return self._below.known

    @property
    def reason(self) -> str:
        """Likewise."""
        return self._below.reason

    @property
    def session(self) -> ReadSession | None:
        """Itself, while there is a store session."""
        return self if self._below.session is not None else None

    @property
    def _session(self) -> ReadSession:
        session = self._below.session
        assert session is not None
        return session

    @property
    def state(self) -> SessionState:
        """Of the store session."""
        return self._session.state

    @property
    def confirmed(self) -> int:
        """Of the store session."""
        return self._session.confirmed

    def confirm(self) -> int:
        """Of the store session."""
        return self._session.confirm()

    def read_headers(self, now: int, token: int, first: int, count: int) -> None:
        """Read record headers from `first` on."""
        self._read(now, _Read(token, first, count, headers_only=True))

    def read_records(self, now: int, token: int, first: int, count: int) -> None:
        """Read records from `first` on."""
        self._read(now, _Read(token, first, count, headers_only=False))

    def call_off(self, token: int) -> bool:
        """Nobody waits for a read any more: whether no answer to it will come."""
        read = self._reads.get(token)
        if read is None:
            return False  # its answer is on the way
        if read in self._again:
            self._again.remove(read)
        elif not self._archive.call_off(self.partition_id, token):
            self._needless.add(token)
            return False
        del self._reads[token]
        return True

    def _read(self, now: int, read: _Read) -> None:
        self._reads[read.token] = read
        if read.first < self._log_start.present:
            self._ask(now, read)
        elif read.headers_only:
            self._session.read_headers(now, read.token, read.first, read.count)
        else:
            self._session.read_records(now, read.token, read.first, read.count)

    def _ask(self, now: int, read: _Read) -> None:
        count = min(read.count, self._log_start.present - read.first)
        self._archive.read(now, ReadAsked(self.partition_id, read.token, read.first, count))

    # ---- answers -----------------------------------------------------------------------------

    def from_session(self, now: int, note: ReadNote) -> ReadNote | None:
        """A replica has answered; None if the archive is asked instead."""
        read, needless = self._taken(note.token)
        if read is None or needless or not isinstance(note, ReadFailed) or read.first >= self._log_start.present:
            return note
        self._reads[note.token] = read  # it was under way while the log start rose
        self._ask(now, read)
        return None

    def answered(self, now: int, asked: ReadAsked, event: ArchiveEvent) -> None:
        """The archive has answered a read."""
        read, needless = self._taken(asked.token)
        if read is None:
            return
        records = sound_part(event.records, asked.first) if isinstance(event, ArchiveData) else ()
        if not records:
            self._failed(now, read, event, again=read.headers_only and not needless)
            return
        self.trouble = ""
        if self._attempts.succeeded():
            self._out.put(Report(Level.INFO, f"{self._where}: it can be read again"))
        records = records[: asked.record_count]
        if read.headers_only:
            headers = headers_of(records)
            self.notes.put(HeadersRead(read.token, headers))
        else:
            self.notes.put(RecordsRead(read.token, records))

    def _taken(self, token: int) -> tuple[_Read | None, bool]:
        """A read that was answered, and whether nobody waits for it."""
        needless = token in self._needless
        self._needless.discard(token)
        return self._reads.pop(token, None), needless

    @property
    def _where(self) -> str:
        return f"partition {self.partition_id}, archive {self._archive.policy.where}"

    def _failed(self, now: int, read: _Read, event: ArchiveEvent, *, again: bool) -> None:
        reason = _problem(event)
        self.trouble = f"transaction {read.first} cannot be read from the archive: {reason}"
        if self._attempts.failed(reason):
            self._out.put(Report(Level.WARNING, f"{self._where}: {self.trouble}; feeds that need it wait"))
        if not again:
            self.notes.put(ReadFailed(read.token, self.trouble, for_now=True, whole=not isinstance(event, ArchiveData)))
            return
        self._reads[read.token] = read
        self._again.append(read)
        if self._again_at is None:
            self._again_at = self._attempts.pause(now)

    # ---- time --------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """When failed reads are tried again."""
        return self._again_at

    def due(self, now: int) -> None:
        """Try failed reads again, if it is time."""
        if self._again_at is not None and now >= self._again_at:
            again, self._again, self._again_at = self._again, [], None
            for read in again:
                self._ask(now, read)


def _problem(event: ArchiveEvent) -> str:
    """Why an answer does not count."""
    if isinstance(event, ArchiveFailed):
        return event.reason
    if not isinstance(event, ArchiveData) or not event.records:
        return "it gave no record"
    return "a record in it has another id, or data that does not match its checksum"
