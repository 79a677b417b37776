"""Whether every committed transaction kept to its locks: the log, joined with the decisions of its servers.

A transaction with the client mark m, committed as t, is right if none of m + 1 ... t - 1 took one of its write or read
locks. What a transaction took is known if its decision is in a journal: same id, same request id. So a transaction is
`passed`, `violated`, or `unproven`: without an entry of its own, or with locks and a transaction without an entry in
its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from waltz_core.base.lock import LockKind
from waltz_core.base.log import PROBE_MARK
from waltz_core.base.record import record
from waltz_core.server.journal_format import APPENDED
from waltz_core.wire.client_messages import Refusal
from waltz_spark.base.errors import JournalError, PipelineError
from waltz_spark.base.planning import Range
from waltz_spark.read.reading import Patience, read_blocks
from waltz_spark.records.columns import Shape
from waltz_spark.records.journal import FIXED, Entries, JournalFile

_EXAMPLES = 20
_SPAN_MAX = 1 << 31  # transactions of a partition that are looked at together

Ids = npt.NDArray[np.int64]


@record
class LockTask:
    """One partition: the records of one replica, and the journals of all servers."""

    partition: int
    ranges: tuple[Range, ...]
    files: tuple[JournalFile, ...]


@record
class LockVerdict:
    """What was found; counts are of transactions, those of refusals of appends."""

    partition: int
    first_id: int
    end_id: int
    journalled: int = 0  # with an entry
    violated: int = 0
    unproven: int = 0
    against_table: int = 0  # appended although the lock table had said no
    refused: int = 0  # because of a lock
    false_conflicts: int = 0  # of these, whose locks were free
    open_conflicts: int = 0  # of these, it cannot be known
    gaps: int = 0  # decisions that the journals say they lack
    examples: tuple[str, ...] = ()  # of violations
    problem: str | None = None


def check_locks(task: LockTask) -> LockVerdict:
    """Join, and look for every lock at who took it last before. Holds some 400 bytes per transaction in memory."""
    start = task.ranges[0].start if task.ranges else 0
    end = task.ranges[-1].end if task.ranges else 0
    verdict = LockVerdict(task.partition, start, end)
    try:
        if end - start >= _SPAN_MAX:
            raise JournalError(f"partition {task.partition}", 0, f"more than {_SPAN_MAX} transactions at once")
        requests = _requests(task.ranges)
        journal = _Journal([Entries(file) for file in task.files])
    except PipelineError as error:
        return attrs.evolve(verdict, unproven=end - start, problem=str(error))
    return _judge(verdict, requests, journal)


_NAMES = ("client_id", "generation", "seq")
_REQUEST = np.dtype([(name, "i4") for name in _NAMES])


def _requests(ranges: Sequence[Range]) -> Any:
    """Request ids of the log, in order."""
    shape = Shape(verify="none")
    blocks = (block for one in ranges for block in read_blocks(one, shape, Patience(attempts=1)))
    heads = [block.heads[list(_NAMES)].astype(_REQUEST) for block in blocks]
    return np.concatenate(heads) if heads else np.zeros(0, _REQUEST)


class _Journal:
    """Decisions of all files of a partition, one after the other, with the locks of each."""

    def __init__(self, files: Sequence[Entries]) -> None:
        self.fixed = np.concatenate([one.fixed for one in files]) if files else np.zeros(0, FIXED)
        self.gaps = sum(one.gaps for one in files)
        self._locks = {}
        for kind in (LockKind.WRITE, LockKind.READ, LockKind.APPEND):
            parts = [one.locks(kind) for one in files]
            counts = np.concatenate([part[0] for part in parts]) if parts else np.zeros(0, np.int64)
            hashes = np.concatenate([part[1] for part in parts]) if parts else np.zeros(0, np.int32)
            self._locks[kind] = counts, np.cumsum(counts) - counts, hashes

    def locks(self, which: npt.NDArray[np.intp], *kinds: LockKind) -> tuple[npt.NDArray[np.intp], Ids]:
        """Locks of some decisions: positions in `which`, and hashes as unsigned numbers."""
        owners, lock_hashes = [], []
        for kind in kinds:
            counts, firsts, hashes = self._locks[kind]
            count, first = counts[which], firsts[which]
            within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
            owners.append(np.repeat(np.arange(len(which)), count))
            lock_hashes.append(hashes[np.repeat(first, count) + within].view(np.uint32).astype(np.int64))
        return np.concatenate(owners), np.concatenate(lock_hashes)


class _Takers:
    """Who took which lock, ordered by lock and id; ids count from the first of the log."""

    def __init__(self, hashes: Ids, ids: Ids) -> None:
        self._keys = np.sort((hashes << 31) | ids)

    def newest(self, hashes: Ids, below: Ids) -> Ids:
        """The newest taker of each lock below an id, -1 if there is none."""
        place = np.searchsorted(self._keys, (hashes << 31) | below) - 1
        found = self._keys[np.maximum(place, 0)] if len(self._keys) else np.full(len(hashes), -1, np.int64)
        same = (place >= 0) & ((found >> 31) == hashes)
        return np.where(same, found & (_SPAN_MAX - 1), -1)


def _judge(verdict: LockVerdict, requests: Any, journal: _Journal) -> LockVerdict:
    start, count = verdict.first_id, verdict.end_id - verdict.first_id
    entry = _entries_of(requests, journal.fixed, start)
    known = np.flatnonzero(entry >= 0)
    chosen = entry[known]
    marks = journal.fixed["client_mark"][chosen].astype(np.int64)
    owners, hashes = journal.locks(chosen, LockKind.WRITE, LockKind.APPEND)
    takers = _Takers(hashes, known[owners])
    # How many of the ids below have no entry: what is in the way of a proof.
    missing = np.concatenate([[0], np.cumsum(entry < 0)])

    owners, hashes = journal.locks(chosen, LockKind.WRITE, LockKind.READ)
    newest = takers.newest(hashes, known[owners])
    relative = np.clip(marks - start, -1, count)  # marks as ids from the first of the log
    wrong = newest > relative[owners]
    violated, with_locks = np.zeros((2, len(known)), bool)
    violated[owners[wrong]] = True
    with_locks[owners] = True
    in_the_way = missing[known] - missing[np.minimum(relative + 1, known)] > 0
    if start:
        in_the_way |= marks < start - 1  # what is below the log is not known
    examples = [
        f"transaction {start + known[owners[at]]}, decided at mark {marks[owners[at]]}, did not see "
        f"{start + newest[at]}, which took its lock {_signed(int(hashes[at]))}"
        for at in np.flatnonzero(wrong)[:_EXAMPLES]
    ]
    against = int(np.sum(journal.fixed["lock_mark"][chosen].astype(np.int64) > marks))
    verdict = _judge_refusals(verdict, journal, takers, missing)
    return attrs.evolve(
        verdict,
        journalled=len(known),
        violated=int(np.sum(violated)),
        unproven=count - len(known) + int(np.sum(with_locks & in_the_way & ~violated)),
        against_table=against,
        gaps=journal.gaps,
        examples=tuple(examples),
    )


def _entries_of(requests: Any, fixed: Any, start: int) -> npt.NDArray[np.intp]:
    """For every record of the log the decision that made it, -1 if there is none."""
    entry = np.full(len(requests), -1, np.intp)
    which = np.flatnonzero(fixed["verdict"] == APPENDED) if len(fixed) else np.zeros(0, np.intp)
    at = fixed["transaction_id"][which].astype(np.int64) - start if len(which) else np.zeros(0, np.int64)
    inside = (at >= 0) & (at < len(requests))
    which, at = which[inside], at[inside]
    same = np.ones(len(which), bool)
    for name in _NAMES:
        same &= fixed[name][which] == requests[name][at]
    entry[at[same]] = which[same]
    return entry


def _judge_refusals(verdict: LockVerdict, journal: _Journal, takers: _Takers, missing: Ids) -> LockVerdict:
    """Refusals whose locks were free above their client mark, up to the bound in the refusal."""
    if not len(journal.fixed):
        return verdict
    start, count = verdict.first_id, verdict.end_id - verdict.first_id
    refused = (journal.fixed["verdict"] == Refusal.LOCK) & (journal.fixed["client_mark"] > PROBE_MARK)
    which = np.flatnonzero(refused)
    marks = np.clip(journal.fixed["client_mark"][which].astype(np.int64) - start, -1, count)
    bounds = np.clip(journal.fixed["lock_mark"][which].astype(np.int64) + 1 - start, 0, count)
    owners, hashes = journal.locks(which, LockKind.WRITE, LockKind.READ)
    true = np.zeros(len(which), bool)
    true[owners[takers.newest(hashes, bounds[owners]) > marks[owners]]] = True
    unknown = missing[bounds] - missing[np.minimum(marks + 1, bounds)] > 0
    if start:
        unknown |= journal.fixed["client_mark"][which].astype(np.int64) < start - 1
    # A bound above the log: it was in flight and may have come to nothing.
    unknown |= journal.fixed["lock_mark"][which].astype(np.int64) >= start + count
    return attrs.evolve(
        verdict,
        refused=len(which),
        false_conflicts=int(np.sum(~true & ~unknown)),
        open_conflicts=int(np.sum(~true & unknown)),
    )


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
