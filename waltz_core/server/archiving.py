"""The policy of one partition's archive: what is archived when, and when the log start may rise.

    LOOK ── what is archived? ──▶ IDLE ── a file is due ────▶ READ ◀──▶ GIVE ──▶ COMMIT ── the archive holds more ──┐
      ▲                            │ ▲                       (a piece of the log, to the archive)                  │
      │ pause                      │ └─────────────────────────────────────────────────────────────────────────────┤
      │                            └── more may be freed ──▶ READ ◀──▶ COMPARE ── all is equal ──▶ RAISE ────────────┘
      └── anything failed, or the store session ended: nothing of it is believed, the archive is asked again

*What is due.* A file of `file_records` ids, once all of them are committed; fewer, once the oldest of them is
`after_ms` old. The log has no times, so the age of an id is how long ago this server first saw it committed: after a
fail-over ids are older than they seem, and are archived later, never too early.

*What may be freed.* Ids below all of: what the archive holds, the newest `keep` ids, and the mark at which the store
session began, above which no replica gives up anything. The log start rises to an id only after all from the present
log start up to it was read once more, here and in the archive, and found equal byte for byte: an archive that belongs
to another history of the log, as after a restored backup, or one that was damaged since, frees nothing. At most
`file_records` ids are compared at a time.

*Two servers.* An owner that does not know yet that it lost the partition reads committed records only, as any session
does; the commit to the manifest is conditional and must continue what is there, so one of two fails, looks, and goes on
behind the other's file. A file that was written and not committed is not in the archive; it is found to be equal, or
left behind. Raising the log start needs the session, whose fence shuts the older server out.

*Appends* never wait for this: one piece is under way at a time, and nothing here ends a store session.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence

from waltz_core.base.attempts import Attempts
from waltz_core.base.contract import Rng, Tickets, earliest
from waltz_core.base.edge import Level, Report
from waltz_core.base.log import RECORD_OVERHEAD, Record
from waltz_core.base.outbox import Emits
from waltz_core.server.archive import Archive
from waltz_core.server.archive_calls import (
    ArchiveCommit,
    ArchiveCompare,
    ArchiveEqual,
    ArchiveEvent,
    ArchiveFailed,
    ArchiveHolds,
    ArchiveLook,
    ArchiveTake,
    ArchiveTaken,
)
from waltz_core.server.context import ClusterState
from waltz_core.server.log_start import LogBeginning
from waltz_core.store.session import StoreSession
from waltz_core.store.session_notes import ReadFailed, RecordsRead
from waltz_core.wire.records import RecordRun

_PIECE = 1_000  # records read and handed on at once
_SAMPLES = 16  # of the mark, within the age at which records are archived


class Stage(enum.Enum):
    """What is under way."""

    LOOK = "the archive is asked what it holds"
    IDLE = "nothing is due"
    TURN = "waits until other partitions have archived"
    READ = "records are read"
    GIVE = "records are handed to the archive"
    COMMIT = "a file is written, read back and added to the manifest"
    COMPARE = "the archive is compared with the log, before the log start rises"
    RAISE = "the storage nodes raise the log start"


class Ages:
    """Which ids were seen so long ago."""

    __slots__ = ("_after", "_samples", "old")

    def __init__(self, after_ms: int) -> None:
        self._after = after_ms
        self._samples: deque[tuple[int, int]] = deque()  # when the mark was what
        self.old = -1  # highest id that is old enough

    def look(self, now: int, mark: int) -> None:
        """Note the mark, and what has become old."""
        samples = self._samples
        if mark > (samples[-1][1] if samples else self.old) and now >= self._next(now):
            samples.append((now, mark))
        while samples and now - samples[0][0] >= self._after:
            self.old = samples.popleft()[1]

    def _next(self, now: int) -> int:
        return self._samples[-1][0] + max(1, self._after // _SAMPLES) if self._samples else now

    def deadline(self, now: int, mark: int) -> int | None:
        """When something becomes old, or the mark wants noting."""
        samples = self._samples
        noted = samples[-1][1] if samples else self.old
        return earliest(samples[0][0] + self._after if samples else None, self._next(now) if mark > noted else None)


class Archiving:
    """Of one partition that this server owns."""

    def __init__(
        self,
        partition_id: int,
        archive: Archive,
        log_start: LogBeginning,
        cluster: ClusterState,
        reading: Tickets,
        out: Emits[Report],
        rng: Rng,
    ) -> None:
        self._partition_id = partition_id
        self._archive = archive
        self._policy = policy = archive.policy
        self._log_start = log_start
        log_start.archived = 0  # who reads from before the log start waits until the archive says what it has
        self._cluster = cluster
        self._reading = reading
        self._out = out
        self.stage = Stage.IDLE
        self.holds: ArchiveHolds | None = None  # None: it was not asked since something failed
        self.trouble = ""  # why nothing is archived or freed that should be
        self.freed = 0  # ids that were given up, so far
        self.archived = 0  # ids that were added, so far
        self._held_from: int | None = None  # the first id of all that was archived when it was last asked
        self._ages = Ages(policy.after_ms)
        self._attempts = Attempts(policy.retry_min_ms, policy.retry_max_ms, rng)
        self._again_at: int | None = None
        self._ticket: int | None = None  # of what the archive was asked
        self._token: int | None = None  # of the piece that is read
        self._freeing = False  # what is read is compared with the archive; else it is for a file
        self._first = self._at = self._stop = self._size = 0  # of what is read: from where, how far, up to where

    # ---- for others to see -------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The id behind the last that is archived, as far as this server knows."""
        return self.holds.end if self.holds is not None else self._log_start.present

    @property
    def first(self) -> int | None:
        """The first id that is archived; None if that is not known."""
        return self.holds.first if self.holds is not None else None

    def files_due(self, mark: int) -> int:
        """Whole files that the records would fill that are not archived."""
        return max(0, mark + 1 - self.end) // (self.holds or self._policy).file_records

    def status(self, mark: int) -> str:
        """What it does, or waits for, for people."""
        if self.trouble:
            return self.trouble
        if self.stage is Stage.IDLE and self.end <= mark:
            return f"{mark + 1 - self.end} records wait until they fill a file, or are old enough"
        return self.stage.value

    # ---- work --------------------------------------------------------------------------------

    def work(self, now: int, mark: int, session: StoreSession) -> None:
        """While the store session is open: begin what is due."""
        self._ages.look(now, mark)
        if self.stage not in (Stage.IDLE, Stage.TURN) or (self._again_at is not None and now < self._again_at):
            return
        self._again_at = None
        if self.holds is None:
            self._look(now)
            return
        stop, start = self._file_stop(self.holds, mark), self._free_up_to(self.holds, mark, session)
        if self.holds.end > mark + 1:
            text = f"it holds ids up to {self.holds.end - 1}, but the log ends at {mark}: is it of another history?"
            self._failed(now, text)
        elif stop <= self.holds.end and start <= self._log_start.present:
            self._rest()
        elif stop <= self.holds.end and session.log_start.moving:
            self._rest()
            self._again_at = now + self._policy.retry_min_ms  # some replica has not answered the last raise
        elif not self._archive.turn(self._partition_id):
            self.stage = Stage.TURN
        elif stop > self.holds.end:
            self._begin(now, session, self.holds.end, stop, freeing=False)
        elif (problem := session.log_start.problem(start)) is not None:
            self._failed(now, f"the log start cannot rise to {start}: {problem[1]}")
        else:
            self._begin(now, session, self._log_start.present, start, freeing=True)

    def _file_stop(self, holds: ArchiveHolds, mark: int) -> int:
        """Where the file that is due ends; not above its beginning if none is."""
        stop = (holds.end // holds.file_records + 1) * holds.file_records
        return stop if stop <= mark + 1 else min(stop, self._ages.old + 1)

    def _free_up_to(self, holds: ArchiveHolds, mark: int, session: StoreSession) -> int:
        """Where the log may begin next; not above the log start if nothing may go."""
        if self._policy.keep is None:
            return 0
        limit = min(holds.end, mark + 1 - self._policy.keep, session.low_water_mark + 1)
        return min(limit, self._log_start.present + holds.file_records)

    def _look(self, now: int) -> None:
        joined = self._cluster.joined
        if joined is None:
            return
        partition_id, policy, start = self._partition_id, self._policy, self._log_start.present
        key, count = joined.cluster_key, joined.num_partitions
        self.stage = Stage.LOOK
        self._archive.put(ArchiveLook(self._owe(now), partition_id, key, count, policy.file_records, start))

    def _owe(self, now: int) -> int:
        self._ticket = ticket = self._archive.owe(now, self._partition_id)
        return ticket

    def _begin(self, now: int, session: StoreSession, first: int, stop: int, *, freeing: bool) -> None:
        self._first, self._at, self._stop, self._size, self._freeing = first, first, stop, 0, freeing
        self._read_piece(now, session)

    def _read_piece(self, now: int, session: StoreSession) -> None:
        self.stage = Stage.READ
        self._token = self._reading.take()
        session.read_records(now, self._token, self._at, min(_PIECE, self._stop - self._at))

    # ---- answers -----------------------------------------------------------------------------

    def read(self, now: int, note: RecordsRead | ReadFailed, *, final: bool) -> None:
        """A replica has answered the read of a piece, or none could; not `final`: as the store session has ended."""
        if note.token != self._token:
            return
        self._token = None
        if isinstance(note, ReadFailed):
            if final:
                self._failed(now, note.reason)
            else:
                self._void()
            return
        records = note.records[: self._stop - self._at]
        partition_id, file_first, first = self._partition_id, self._first, self._at
        self._at += len(records)
        self._size += _size(records)
        if self._freeing:
            self.stage = Stage.COMPARE
            anew = first == file_first
            self._archive.put(ArchiveCompare(self._owe(now), partition_id, first, records, anew))
        else:
            self.stage = Stage.GIVE
            self._archive.put(ArchiveTake(self._owe(now), partition_id, file_first, first, records))

    def answered(self, now: int, event: ArchiveEvent, session: StoreSession | None) -> None:
        """The archive has answered; `session` is the store session, if it is open."""
        if event.ticket != self._ticket:
            return
        self._ticket = None
        match event:
            case ArchiveFailed(reason=reason):
                self._failed(now, reason)
            case ArchiveTaken() if session is not None and self.stage is Stage.GIVE:
                self._on_taken(now, session)
            case ArchiveHolds() if self.stage in (Stage.LOOK, Stage.COMMIT):
                self._on_holds(now, event)
            case ArchiveEqual() if session is not None and self.stage is Stage.COMPARE:
                self._on_equal(now, session)
            case _:
                self._failed(now, f"it answered {type(event).__name__} when {self.stage.value}")

    def _on_taken(self, now: int, session: StoreSession) -> None:
        if self._at < self._stop and self._size < self._policy.file_bytes:
            self._read_piece(now, session)
            return
        self.stage = Stage.COMMIT
        partition_id, first, end = self._partition_id, self._first, self._at
        self._archive.put(ArchiveCommit(self._owe(now), partition_id, first, end))

    def _on_holds(self, now: int, holds: ArchiveHolds) -> None:
        present, held_from = self._log_start.present, self._held_from
        if held_from is not None and (holds.first > held_from or holds.end == holds.first):
            # Such as a file system that is not mounted: what is below the log start is not given up for that.
            text = f"it held ids from {held_from} on, and has none of them now: is it there, and the same one?"
            self._failed(now, text)
            return
        if holds.end < present or holds.first > present:
            text = f"{holds.first} to {holds.end - 1}" if holds.end > holds.first else "none"
            self._log_start.archived = None
            self._failed(now, f"it holds the ids {text}, but the log begins at {present}: is it another archive?")
            return
        self._log_start.archived = holds.first
        if holds.end > holds.first:
            self._held_from = holds.first
        if self.stage is Stage.COMMIT:
            self.archived += holds.end - self._first
            self._works(now)
        self.holds = holds
        self._rest()

    def _on_equal(self, now: int, session: StoreSession) -> None:
        if self._at < self._stop:
            self._read_piece(now, session)
            return
        problem = session.log_start.problem(self._at)
        if problem is not None:
            self._failed(now, f"the log start cannot rise to {self._at}: {problem[1]}")
            return
        self.stage = Stage.RAISE
        session.log_start.raise_to(self._at)

    def raised(self, now: int, before: int) -> None:
        """The log start has risen, whoever wanted it."""
        if self.stage is Stage.RAISE:
            self.freed += self._log_start.present - before
            self._works(now)
            self._rest()

    # ---- ends --------------------------------------------------------------------------------

    def _rest(self) -> None:
        """The next step is begun by `work`, after other partitions had their turn."""
        self.stage = Stage.IDLE
        self._archive.turn_over(self._partition_id)

    def _works(self, now: int) -> None:
        self.trouble = ""
        if self._attempts.succeeded():
            self._out.put(Report(Level.INFO, f"{self._where}: archiving works again, up to {self.end - 1}"))

    @property
    def _where(self) -> str:
        return f"partition {self._partition_id}, archive {self._policy.where}"

    def _failed(self, now: int, reason: str) -> None:
        doing = self.stage.value
        self.trouble = reason
        if self._attempts.failed(reason):
            rest = "nothing is freed, appends continue; archiving is retried"
            self._out.put(Report(Level.WARNING, f"{self._where}: {reason} ({doing}); {rest}"))
        self._void()
        self._again_at = self._attempts.pause(now)

    def _void(self) -> None:
        """What is under way does not count."""
        self.holds = self._ticket = self._token = None
        self._rest()

    def session_ended(self) -> None:
        """The store session is over: the file that was being made is begun again, the archive is asked again."""
        if self.stage is not Stage.IDLE:
            self._void()

    # ---- time --------------------------------------------------------------------------------

    def deadline(self, now: int, mark: int) -> int | None:
        """When something may become due; in an open session."""
        if self._again_at is not None:
            return self._again_at
        if self.stage is not Stage.IDLE:
            return None
        return now if self.holds is None and self._cluster.joined is not None else self._ages.deadline(now, mark)


def _size(records: Sequence[Record]) -> int:
    if isinstance(records, RecordRun):
        return records.size(RECORD_OVERHEAD)
    return sum(RECORD_OVERHEAD + len(each.data) for each in records)
