"""What a server asks of its archive, and the answers.

An archive is kept by a process of its own beside the server (`waltz_spark/archive/agent.py`), so that what it costs is
never paid by commits. It keeps nothing that must survive: what is not answered may or may not have happened, and
looking again (`ArchiveLook`) tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from waltz_core.base.log import Record
from waltz_core.base.record import record


@record
class ArchivePolicy:
    """When what is archived and freed; off where a configuration names no place."""

    where: str  # archive.location: directory or URI
    file_records: int = 100_000  # archive.fileRecords, of a new archive
    file_bytes: int = 256 << 20  # a file ends once it holds so many
    after_ms: int = 3_600_000  # archive.after: so old records are archived, also where they fill no file
    keep: int | None = None  # archive.keepRecords: so many stay on storage nodes; None: nothing is freed
    retry_min_ms: int = 1_000
    retry_max_ms: int = 60_000
    answer_ms: int = 120_000  # archive.answerTimeout: an archive that owes an answer for so long is started anew
    reads_max: int = 8  # reads of it under way, of all partitions together; each brings about a MiB
    files_max: int = 2  # partitions that write, or check, at the same time


# ---- what is asked ---------------------------------------------------------------------------


@record
class ArchiveLook:
    """What of a partition is archived? `ArchiveHolds`."""

    ticket: int
    partition_id: int
    cluster_key: bytes
    partition_count: int
    file_records: int  # of the archive, should this be its beginning
    log_start: int  # where the partition begins in it, likewise


@record
class ArchiveTake:
    """Committed records for the file that begins at `file_first`; the first of them begin it. `ArchiveTaken`."""

    ticket: int
    partition_id: int
    file_first: int
    first: int
    records: Sequence[Record]


@record
class ArchiveCommit:
    """The file is complete: write it, read it back, compare, add it to the manifest. `ArchiveHolds`."""

    ticket: int
    partition_id: int
    first: int
    end: int


@record
class ArchiveCompare:
    """Do the files hold exactly these records, as they can be read there now? `ArchiveEqual`, else it failed."""

    ticket: int
    partition_id: int
    first: int
    records: Sequence[Record]
    anew: bool  # a comparison begins: what was read for an earlier one does not count


@record
class ArchiveRead:
    """Records from `first` on, as many as `count` or as an answer may hold. `ArchiveData`."""

    ticket: int
    partition_id: int
    first: int
    count: int


@record
class ArchiveReset:
    """Begin anew: what is owed will not come. All that was asked is answered by `ArchiveFailed`."""

    reason: str


ArchiveAsk: TypeAlias = ArchiveLook | ArchiveTake | ArchiveCommit | ArchiveCompare | ArchiveRead
ArchiveEffect: TypeAlias = ArchiveAsk | ArchiveReset


# ---- what is answered ------------------------------------------------------------------------


@record
class ArchiveHolds:
    """The manifest names files for the ids `first` to `end - 1` of the partition, without a gap."""

    ticket: int
    first: int
    end: int
    file_records: int


@record
class ArchiveTaken:
    """More may come."""

    ticket: int


@record
class ArchiveEqual:
    """They were read there, and are the same, byte for byte."""

    ticket: int


@record
class ArchiveData:
    """At least one record, from the first that was asked for on."""

    ticket: int
    records: Sequence[Record]


@record
class ArchiveFailed:
    """It was not done, or nobody knows whether it was."""

    ticket: int
    reason: str


ArchiveEvent: TypeAlias = ArchiveHolds | ArchiveTaken | ArchiveEqual | ArchiveData | ArchiveFailed
