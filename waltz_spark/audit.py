"""An audit of a log: what can be proved from replicas and archive alone, as one table.

Every check says what it looked at and how far: `passed` is only said of what was compared. Locks, marks and
time are in no record: serializability is judged with the decision journals of the servers, where they are given.
"""

from __future__ import annotations

import hashlib
import html
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import numpy as np

from waltz_core.record import record
from waltz_spark.archive import OnProgress, plan_verification, run_verification
from waltz_spark.columns import Shape
from waltz_spark.directories import Replica, read_directory
from waltz_spark.errors import ArchiveError, OptionError, PipelineError
from waltz_spark.inventory import Inventory, Look
from waltz_spark.journal import find_journals
from waltz_spark.manifest import read_archive
from waltz_spark.options import parse_options
from waltz_spark.pages import page
from waltz_spark.planning import Range, clip
from waltz_spark.reading import Patience, read_blocks
from waltz_spark.runners import Runner
from waltz_spark.serializability import LockTask, LockVerdict, check_locks

BLOCK = 10_000
"""Ids per digest when replicas are compared; borders are its multiples."""

PASSED, FAILED, UNPROVEN = "passed", "failed", "unproven"
_GROUP = 50  # digests per task
_SHAPE = Shape(verify="none")
_PROBLEMS_MAX = 20  # shown per finding


@record
class Finding:
    """One row of the result."""

    check: str
    partition: int  # -1: the whole log
    status: str
    looked_at: int  # records
    scope: str  # what was compared, and how far
    detail: str  # problems, or nothing


@record
class AuditReport:
    """The result."""

    findings: tuple[Finding, ...]
    places: tuple[str, ...]
    seconds: float
    at: str  # when, UTC

    @property
    def passed(self) -> bool:
        """Nothing failed."""
        return all(one.status != FAILED for one in self.findings)


# ---- tasks (in executors) --------------------------------------------------------------------


@record
class SoundTask:
    """One partition of one directory: every record is to be read and checked."""

    directory: str
    partition: int
    ranges: tuple[Range, ...]
    end: int


@record
class Soundness:
    """What was found, and the request ids that occur twice."""

    directory: str
    partition: int
    count: int
    problem: str | None
    repeated: tuple[tuple[int, int, int, int], ...]  # client id, generation, sequence, transaction id of the second


def check_soundness(task: SoundTask) -> Soundness:
    """Density, checksums of records and data, request ids at most once. Holds 20 bytes per record in memory."""
    count, problem = 0, None
    heads: list[Any] = []
    shape = attrs.evolve(_SHAPE, verify="record")
    try:
        for one in task.ranges:
            for block in read_blocks(one, shape, Patience(attempts=1)):
                count += block.count
                heads.append(block.heads[["client_id", "generation", "seq", "transaction_id"]].astype(_KEY))
    except PipelineError as error:
        problem = str(error)
    repeated = _repeated(np.concatenate(heads)) if heads else ()
    return Soundness(task.directory, task.partition, count, problem, repeated)


_KEY = np.dtype([("client_id", "i4"), ("generation", "i4"), ("seq", "i4"), ("transaction_id", "i8")])


def _repeated(heads: Any) -> tuple[tuple[int, int, int, int], ...]:
    names = ("client_id", "generation", "seq")
    order = np.lexsort([heads["transaction_id"], *(heads[name] for name in reversed(names))])
    ordered = heads[order]
    same = np.ones(len(ordered) - 1, bool)
    for name in names:
        same &= ordered[name][1:] == ordered[name][:-1]
    found = ordered[1:][same][:_PROBLEMS_MAX]
    return tuple(tuple(int(value) for value in one) for one in found)  # type: ignore[misc]


@record
class DigestTask:
    """Blocks of ids of one partition to digest in each directory."""

    partition: int
    borders: tuple[int, ...]  # rising; digests of the ids between neighbours
    replicas: tuple[tuple[str, tuple[Range, ...]], ...]


@record
class Comparison:
    """Ids whose digests differ between directories, and what could not be read."""

    partition: int
    count: int
    differing: tuple[int, ...]  # first id that differs, of each differing block
    problems: tuple[str, ...]


def compare_replicas(task: DigestTask) -> Comparison:
    """SHA-256 per block of ids in every directory; where they differ, the first id that does."""
    digests: dict[str, list[str]] = {}
    problems = []
    for directory, ranges in task.replicas:
        try:
            digests[directory] = [
                _digest(ranges, low, high) for low, high in zip(task.borders, task.borders[1:], strict=False)
            ]
        except PipelineError as error:
            problems.append(f"{directory}: {error}")
    differing = []
    for at, found in enumerate(zip(*digests.values(), strict=True)):
        if len(set(found)) > 1:
            differing.append(_first_difference(task, digests, at))
    return Comparison(task.partition, task.borders[-1] - task.borders[0], tuple(differing), tuple(problems))


def _digest(ranges: Sequence[Range], low: int, high: int) -> str:
    digest = hashlib.sha256()
    for block in _blocks(ranges, low, high, 1 << 14):
        digest.update(block.data)
    return digest.hexdigest()


def _blocks(ranges: Sequence[Range], low: int, high: int, rows_max: int) -> Any:
    shape = attrs.evolve(_SHAPE, rows_max=rows_max)
    for one in ranges:
        part = clip(one, low, high)
        if part is not None:
            yield from read_blocks(part, shape, Patience(attempts=1))


def _first_difference(task: DigestTask, digests: dict[str, list[str]], at: int) -> int:
    low, high = task.borders[at], task.borders[at + 1]
    own = [ranges for directory, ranges in task.replicas if directory in digests]
    streams = [_blocks(ranges, low, high, 1) for ranges in own]
    for blocks in zip(*streams, strict=True):
        if len({bytes(block.data) for block in blocks}) > 1:
            return int(blocks[0].first_id)
    raise AssertionError("digests differ, records do not")


# ---- the audit -------------------------------------------------------------------------------


def audit(
    directories: Sequence[str],
    archive: str | None,
    runner: Runner,
    *,
    trust: str = "control",
    journals: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> AuditReport:
    """Check directories of one log, its archive, and with the journals of its servers whether locks were kept.

    Args:
        directories: replicas or backups; each alone is checked, and all are compared.
        trust: how far they are read, as the option of the source.
        journals: directories or URIs of the decision journals of all servers; needs a directory.

    Raises:
        OptionError: nothing is named.
        UnreachableError: the archive cannot be read.
    """
    begin = time.monotonic()
    if not directories and archive is None:
        raise OptionError("say what to audit: directories, an archive, or both")
    if journals and not directories:
        raise OptionError("a journal tells of decisions, not of the log: name a directory of the log too")
    logs, findings = _logs(directories, trust)
    findings += _soundness(logs, runner, on_progress)
    findings += _comparison(logs, runner)
    if journals:
        findings += _serializability(logs, journals, runner)
    if archive is not None:
        findings += _archive(archive, [log.directory for log in logs], trust, runner)
    places = (*directories, *([archive] if archive else []), *journals)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return AuditReport(tuple(findings), places, time.monotonic() - begin, at)


@record
class _Log:
    directory: str
    replica: Replica
    look: Look
    ranges: tuple[Range, ...]

    def of(self, partition: int) -> tuple[Range, ...]:
        return tuple(one for one in self.ranges if one.partition == partition)


def _logs(directories: Sequence[str], trust: str) -> tuple[list[_Log], list[Finding]]:
    """The directories that can be planned, and a finding for each that cannot."""
    found: list[_Log] = []
    findings = []
    for directory in directories:
        try:
            replica = read_directory(directory, trust=trust, key=found[0].replica.key if found else None)
            inventory = Inventory(parse_options({"directory": directory, "trust": trust}))
            look = inventory.look()
            ranges = tuple(inventory.ranges(look, look.earliest, look.ends))
            found.append(_Log(directory, replica, look, ranges))
        except PipelineError as error:
            findings.append(Finding("readable", -1, FAILED, 0, directory, str(error)))
    return found, findings


def _soundness(logs: Sequence[_Log], runner: Runner, on_progress: OnProgress | None) -> list[Finding]:
    tasks = [
        SoundTask(log.directory, one.partition, log.of(one.partition), one.safe_end)
        for log in logs
        for one in log.replica.partitions
    ]
    total = sum(one.count for log in logs for one in log.ranges)
    found: list[Soundness] = []
    width = max(1, runner.width * 2)
    for at in range(0, len(tasks), width):
        found += runner.run(check_soundness, tasks[at : at + width])
        if on_progress is not None:
            on_progress(sum(one.count for one in found), total)
    findings = []
    for task, one in zip(tasks, found, strict=True):
        start = task.ranges[0].start if task.ranges else task.end
        scope = f"{one.directory}, ids {start} to {task.end - 1}"
        status = PASSED if one.problem is None else FAILED
        findings.append(Finding("dense and sound", one.partition, status, one.count, scope, one.problem or ""))
        texts = [
            f"request {client}/{generation}/{seq} again in transaction {transaction_id}"
            for client, generation, seq, transaction_id in one.repeated
        ]
        status = FAILED if texts else PASSED if one.problem is None else UNPROVEN
        findings.append(Finding("request ids at most once", one.partition, status, one.count, scope, "; ".join(texts)))
    return findings


def _comparison(logs: Sequence[_Log], runner: Runner) -> list[Finding]:
    tasks: list[DigestTask] = []
    scopes: dict[int, str] = {}
    count = max((log.replica.partition_count for log in logs), default=0)
    for partition in range(count):
        own = [(log, log.of(partition)) for log in logs if log.of(partition)]
        if len(own) < 2:
            continue
        low = max(ranges[0].start for _, ranges in own)
        high = min(ranges[-1].end for _, ranges in own)
        if low >= high:
            continue
        scopes[partition] = f"{len(own)} replicas, ids {low} to {high - 1}"
        borders = [low, *range((low // BLOCK + 1) * BLOCK, high, BLOCK), high]
        replicas = tuple((log.directory, ranges) for log, ranges in own)
        groups = [tuple(borders[at : at + _GROUP + 1]) for at in range(0, len(borders) - 1, _GROUP)]
        tasks += [DigestTask(partition, group, replicas) for group in groups]
    results = runner.run(compare_replicas, tasks)
    findings = []
    for partition in range(count):
        own_results = [one for one in results if one.partition == partition]
        if not own_results:
            if len(logs) > 1:
                findings.append(Finding("replicas equal", partition, UNPROVEN, 0, "no id is in two of them", ""))
            continue
        texts = [f"differ from id {at} on" for one in own_results for at in one.differing]
        texts += [text for one in own_results for text in one.problems]
        looked_at = sum(one.count for one in own_results)
        status = FAILED if texts else PASSED
        detail = "; ".join(texts[:_PROBLEMS_MAX])
        findings.append(Finding("replicas equal", partition, status, looked_at, scopes[partition], detail))
    return findings


def _serializability(logs: Sequence[_Log], journals: Sequence[str], runner: Runner) -> list[Finding]:
    """With the log that reaches furthest, of each partition."""
    if not logs:
        return []
    try:
        files = find_journals(journals, logs[0].replica.key)
    except PipelineError as error:
        return [Finding("journal readable", -1, FAILED, 0, ", ".join(journals), str(error))]
    tasks = []
    for partition in range(logs[0].replica.partition_count):
        ranges = max((log.of(partition) for log in logs), key=lambda own: own[-1].end if own else 0)
        own = tuple(file for file in files if file.partition == partition)
        if ranges or own:
            tasks.append(LockTask(partition, ranges, own))
    return [finding for verdict in runner.run(check_locks, tasks) for finding in _lock_findings(verdict)]


def _lock_findings(one: LockVerdict) -> Iterator[Finding]:
    partition, count = one.partition, one.end_id - one.first_id
    scope = f"ids {one.first_id} to {one.end_id - 1}"
    if one.problem is not None:
        yield Finding("journal readable", partition, FAILED, 0, scope, one.problem)
        return
    share = 100 * one.journalled / count if count else 100.0
    # Rounded down: 100 is said of all, not of nearly all.
    coverage = f"{scope}; {one.journalled} of {count} have an entry, {int(share * 100) / 100:g} %"
    gaps = f"the journals say that they lack {one.gaps} decisions" if one.gaps else ""
    yield Finding(
        "decisions journalled", partition, PASSED if one.journalled == count else UNPROVEN, count, coverage, gaps
    )
    proved = count - one.violated - one.unproven
    status = FAILED if one.violated else UNPROVEN if one.unproven else PASSED
    scope_of = f"{scope}; {proved} proved, {one.violated} violated, {one.unproven} unproven"
    yield Finding("serializable by locks", partition, status, count, scope_of, "; ".join(one.examples))
    status = FAILED if one.against_table else PASSED
    detail = f"{one.against_table} were appended although the lock table said no" if one.against_table else ""
    yield Finding("decisions follow the lock table", partition, status, one.journalled, scope, detail)
    rate = f"{one.refused} refused because of a lock: {one.false_conflicts} falsely, {one.open_conflicts} unknown"
    yield Finding("false conflicts", partition, PASSED, one.refused, rate, "")


def _archive(root: str, directories: Sequence[str], trust: str, runner: Runner) -> list[Finding]:
    try:
        state = read_archive(root)
        checks = plan_verification(root, directories, trust=trust)
    except ArchiveError as error:
        return [Finding("hash chain", -1, FAILED, 0, root, str(error))]
    verdicts = run_verification(checks, runner)
    findings = []
    for partition in range(state.partition_count):
        own = [one for one in verdicts if one.file.partition == partition]
        if not own:
            continue
        looked_at = sum(one.file.end_id - one.file.first_id for one in own)
        span = f"ids {own[0].file.first_id} to {own[-1].file.end_id - 1}"
        findings.append(
            Finding("hash chain", partition, PASSED, looked_at, f"{root}, {span}", f"ends in {own[-1].file.chain}")
        )
        texts = [text for one in own for text in one.problems]
        compared = sum(one.file.end_id - one.file.first_id for one in own if one.compared)
        status = FAILED if texts else PASSED if compared == looked_at else UNPROVEN
        scope = f"{root}, {span}; in replicas: {compared} of {looked_at} records"
        findings.append(
            Finding("archive equals log", partition, status, looked_at, scope, "; ".join(texts[:_PROBLEMS_MAX]))
        )
    return findings


# ---- showing it ------------------------------------------------------------------------------


def to_html(report: AuditReport) -> str:
    """One page without anything from outside."""
    counts = {status: sum(one.status == status for one in report.findings) for status in (PASSED, FAILED, UNPROVEN)}
    judged = any(one.check == "serializable by locks" for one in report.findings)
    verdict = "Nothing failed." if report.passed else f"{counts[FAILED]} checks failed."
    rows = "\n".join(
        f"<tr><td>{html.escape(one.check)}</td><td class=number>{'' if one.partition < 0 else one.partition}</td>"
        f"<td class={one.status}>{one.status}</td><td class=number>{one.looked_at:,}</td>"
        f"<td>{html.escape(one.scope)}</td><td class=detail>{html.escape(one.detail)}</td></tr>"
        for one in report.findings
    )
    places = "".join(f"<li>{html.escape(place)}</li>" for place in report.places)
    parts = [
        f"<p><strong>{verdict}</strong> "
        f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[UNPROVEN]} unproven; "
        f"{report.at}, {report.seconds:.1f} s.</p>\n<ul>{places}</ul>",
        "<table><tr><th>check<th>partition<th>status<th>records<th>scope<th>detail</tr>\n" + rows + "\n</table>",
        "" if judged else "<p>Without journals nothing can be said about serializability: records hold no locks.</p>",
    ]
    return page("Audit of a Waltz log", parts)


def to_rows(report: AuditReport) -> list[dict[str, Any]]:
    """The findings as dicts, for a table or JSON."""
    return [attrs.asdict(one) for one in report.findings]
