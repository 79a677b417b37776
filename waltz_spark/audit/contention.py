"""Contention: refusals, the locks that caused them, and how large a lock table would avoid false ones.

All of it comes from the decision journal; a record of the log holds neither locks nor time.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from waltz_core.base.lock import Conflict
from waltz_core.base.log import PROBE_MARK
from waltz_core.base.record import record
from waltz_core.locks.table import LockTable
from waltz_core.server.journal_format import APPENDED, Decision
from waltz_core.wire.client_messages import Refusal
from waltz_core.wire.lock_names import unpack_names
from waltz_spark.base.runners import OnProgress, Runner
from waltz_spark.records.journal import Entries, JournalFile, find_journals

TABLE_SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
"""Sizes of lock tables, in slots, that are tried; 30,000 is the default of servers."""

REPLAYED_MAX = 100_000  # decisions of a partition, the newest
BINS = 60  # of the time axis
_PROBES = 3  # slots per lock, as the servers have them
_TOP = 20  # locks
_REFUSALS = {one.value: one.name.lower().replace("_", " ") for one in Refusal}

LockName: TypeAlias = tuple[str, int]


@record
class ContendedLock:
    """A lock: how often it was taken, and how often an append was refused because of it."""

    partition: int
    name: str  # `name/id` where clients send names, else the hash
    taken: int
    refused: int


@record
class TableSize:
    """What a lock table of this size would have refused although nothing conflicted."""

    size: int  # slots
    false: int
    decided: int  # appends with locks that could have gone through


@record
class Moment:
    """Decisions of one stretch of time."""

    at_us: int  # its beginning, since 1970
    appended: int
    refused: int


@record
class ContentionReport:
    """What the journals say about one partition, or all of them."""

    decided: int
    appended: int
    refused: tuple[tuple[str, int], ...]  # by reason, the most frequent first
    true_conflicts: int
    false_conflicts: int
    unknown_conflicts: int
    missing: int  # decisions that were not written, as the journal says itself
    wait_us: tuple[tuple[float, int], ...]  # quantile → time from arrival to decision
    moments: tuple[Moment, ...]
    locks: tuple[ContendedLock, ...]  # the most refused first
    tables: tuple[TableSize, ...]


@record
class ContentionTask:
    """Journals of one partition, the files of each server in order."""

    partition: int
    servers: tuple[tuple[JournalFile, ...], ...]


@record
class Counted:
    """What the journals of one partition say; 17 bytes per decision, and the locks that matter."""

    verdicts: Mapping[int, int]
    conflicts: Mapping[int, int]
    missing: int
    waits: array[int]  # microseconds from arrival to decision
    times: array[int]  # of decisions
    appended: bytes  # for each of these, whether it was appended
    locks: tuple[ContendedLock, ...]
    tables: tuple[TableSize, ...]


def contention(
    places: Sequence[str], runner: Runner, on_progress: OnProgress | None = None, key: bytes | None = None
) -> ContentionReport:
    """Read the journals of all servers.

    Args:
        places: directories or URIs.
        key: of the cluster that they must be of; None = that of the first.

    Raises:
        JournalError: a file is missing or damaged.
    """
    files = find_journals(places, key)
    tasks = []
    for partition in sorted({one.partition for one in files}):
        own = [tuple(one for one in files if (one.place, one.partition) == (place, partition)) for place in places]
        tasks.append(ContentionTask(partition, tuple(one for one in own if one)))
    parts: list[Counted] = []
    for at in range(0, len(tasks), max(1, runner.width)):
        parts += runner.run(read_partition, tasks[at : at + max(1, runner.width)])
        if on_progress is not None:
            on_progress(len(parts), len(tasks))
    return together(parts)


def read_partition(task: ContentionTask) -> Counted:
    """Count one partition; runs in an executor."""
    entries = [[Entries(file) for file in files] for files in task.servers]
    missing = sum(one.gaps for files in entries for one in files)
    # Each server's are in the order in which they were made, but the partition moved between them.
    streams = [chain.from_iterable(one.decisions() for one in files) for files in entries]
    return count_decisions(task.partition, heapq.merge(*streams, key=lambda one: one.decided_us), missing)


def count_decisions(partition: int, decisions: Iterable[Decision], missing: int = 0) -> Counted:
    """Count decisions of one partition, given in the order in which they were made."""
    verdicts, conflicts = Counter[int](), Counter[int]()
    taken, refused, names = Counter[int](), Counter[int](), dict[int, LockName]()
    waits, times, appended = array("q"), array("q"), bytearray()
    newest = deque[Decision](maxlen=REPLAYED_MAX)
    for decision in decisions:
        if decision.client_mark <= PROBE_MARK:
            continue  # a question of a sink, no append
        verdicts[decision.verdict] += 1
        waits.append(max(0, decision.decided_us - decision.received_us))
        times.append(decision.decided_us)
        appended.append(decision.verdict == APPENDED)
        hashes = decision.write_locks + decision.read_locks + decision.append_locks
        if decision.names:
            named = zip(hashes, unpack_names(decision.names, len(hashes)), strict=True)
            names.update({lock_hash: lock for lock_hash, lock in named if lock is not None})
        if decision.verdict == APPENDED:
            taken.update(decision.write_locks + decision.append_locks)
        elif decision.verdict == Refusal.LOCK:
            conflicts[decision.conflict] += 1
            lists = (decision.write_locks, decision.read_locks, decision.append_locks)
            if 0 <= decision.lock_kind < len(lists) and 0 <= decision.lock_index < len(lists[decision.lock_kind]):
                refused[lists[decision.lock_kind][decision.lock_index]] += 1
        if hashes and decision.verdict in (APPENDED, Refusal.LOCK):
            newest.append(decision)
    top = sorted(taken.keys() | refused.keys(), key=lambda lock: (-refused[lock], -taken[lock], lock))[:_TOP]
    locks = tuple(ContendedLock(partition, _text(lock, names.get(lock)), taken[lock], refused[lock]) for lock in top)
    tables = table_sizes(newest)
    return Counted(dict(verdicts), dict(conflicts), missing, waits, times, bytes(appended), locks, tables)


def together(parts: Sequence[Counted]) -> ContentionReport:
    """All partitions."""
    verdicts, conflicts = Counter[int](), Counter[int]()
    waits, times, appended = array("q"), array("q"), bytearray()
    for part in parts:
        verdicts.update(part.verdicts)
        conflicts.update(part.conflicts)
        waits += part.waits
        times += part.times
        appended += part.appended
    refused = Counter[str]()
    for verdict, count in verdicts.items():
        if verdict != APPENDED:
            refused[_REFUSALS.get(verdict, "other")] += count
    locks = sorted((lock for one in parts for lock in one.locks), key=lambda one: (-one.refused, -one.taken))
    columns = zip(*(one.tables for one in parts), strict=True)
    tables = (TableSize(row[0].size, sum(t.false for t in row), sum(t.decided for t in row)) for row in columns)
    return ContentionReport(
        verdicts.total(),
        verdicts[APPENDED],
        tuple(refused.most_common()),
        conflicts[Conflict.TRUE],
        conflicts[Conflict.FALSE],
        conflicts[Conflict.UNKNOWN],
        sum(one.missing for one in parts),
        _quantiles(waits),
        _moments(times, appended),
        tuple(locks[:_TOP]),
        tuple(tables),
    )


def _text(lock_hash: int, name: LockName | None) -> str:
    return f"hash {lock_hash}" if name is None else f"{name[0]}/{name[1]}"


def table_sizes(decisions: Sequence[Decision], sizes: Sequence[int] = TABLE_SIZES) -> tuple[TableSize, ...]:
    """Let lock tables of several sizes decide again, and count what they refuse although nobody took the lock.

    Every append that was appended then takes its locks, so all tables see the same log.
    """
    return tuple(TableSize(size, *_replay(decisions, size)) for size in sizes)


def _replay(decisions: Sequence[Decision], size: int) -> tuple[int, int]:
    table = LockTable(size, _PROBES, -1)
    takers: dict[int, int] = {}
    false = decided = 0
    for decision in decisions:
        mark = decision.client_mark
        free = all(takers.get(lock_hash, -1) <= mark for lock_hash in (*decision.write_locks, *decision.read_locks))
        if free:
            decided += 1
            false += table.estimate(decision.write_locks, decision.read_locks) > mark
        if decision.verdict == APPENDED:
            table.commit(decision.write_locks, decision.append_locks, decision.transaction_id)
            takers.update(dict.fromkeys((*decision.write_locks, *decision.append_locks), decision.transaction_id))
    return false, decided


def _quantiles(values: Sequence[int]) -> tuple[tuple[float, int], ...]:
    if not values:
        return ()
    ordered = sorted(values)
    return tuple((one, ordered[min(len(ordered) - 1, int(one * len(ordered)))]) for one in (0.5, 0.9, 0.99, 0.999, 1.0))


def _moments(times: Sequence[int], appended: Sequence[int]) -> tuple[Moment, ...]:
    if not times:
        return ()
    first, last = min(times), max(times)
    width = max(1, -(-(last - first + 1) // BINS))
    bins = [[0, 0] for _ in range((last - first) // width + 1)]
    for at, taken in zip(times, appended, strict=True):
        bins[(at - first) // width][taken] += 1
    return tuple(Moment(first + at * width, taken, refused) for at, (refused, taken) in enumerate(bins))
