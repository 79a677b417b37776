"""An audit of a log: what can be proved from replicas and archive alone, as one table.

Every check says what it looked at and how far: `passed` is only said of what was compared. Locks, marks and
time are in no record: serializability is judged with the decision journals of the servers, where they are given.
"""

from __future__ import annotations

import hashlib
import html
import itertools
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import numpy as np

from waltz_core.base.record import record
from waltz_spark.archive.archive import checks_of, run_verification
from waltz_spark.audit.coverage import FAILED, PASSED, UNPROVEN, Coverage, size_of, span_text, union, worst
from waltz_spark.audit.pages import page
from waltz_spark.audit.scan import is_unread
from waltz_spark.audit.serializability import LockTask, LockVerdict, check_locks
from waltz_spark.base.errors import OptionError, PipelineError, UnreachableError
from waltz_spark.base.planning import Range, clip
from waltz_spark.base.runners import OnProgress, Runner
from waltz_spark.read.options import Options
from waltz_spark.read.reading import Patience, read_blocks
from waltz_spark.read.sources import Part, Source, Sources, check_key, read_sources
from waltz_spark.records.columns import Shape
from waltz_spark.records.journal import find_journals
from waltz_spark.records.manifest import ArchiveState, read_archive

BLOCK = 10_000
"""Ids per digest when replicas are compared; borders are its multiples."""

_GROUP = 50  # digests per task
_SHAPE = Shape(verify="none")
_PROBLEMS_MAX = 20  # shown per finding
_BY_LOCKS = "serializable by locks"


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
    coverage: Coverage
    seconds: float
    at: str  # when, UTC
    left_out: tuple[str, ...] = ()  # what the caller did not want judged: the verdict says nothing of it

    @property
    def verdict(self) -> str:
        """`passed` only if every check was that is not left out, and every record known to be there was looked at."""
        return worst([*(one.status for one in self.findings), PASSED if self.coverage.whole else UNPROVEN])

    @property
    def serializability_judged(self) -> bool:
        """Journals were compared with the log, of one partition at least; the findings say how far."""
        return any(one.check == _BY_LOCKS and one.partition >= 0 for one in self.findings)

    @property
    def passed(self) -> bool:
        """Nothing failed, and nothing was left unproven."""
        return self.verdict == PASSED


# ---- tasks (in executors) --------------------------------------------------------------------


@record
class SoundTask:
    """One partition of one copy, every record of which is read and checked."""

    source: str
    part: Part


@record
class Soundness:
    """What was found, and the request ids that occur twice."""

    source: str
    part: Part
    count: int
    problem: str | None
    unread: bool  # the problem is that the copy cannot be read now, not what stands in it
    repeated: tuple[tuple[int, int, int, int], ...]  # client id, generation, sequence, transaction id of the second


def check_soundness(task: SoundTask) -> Soundness:
    """Density, checksums of records and data, request ids at most once. Holds 20 bytes per record in memory."""
    count, problem, unread = 0, None, False
    heads: list[Any] = []
    shape = attrs.evolve(_SHAPE, verify="record")
    try:
        for one in task.part.ranges:
            for block in read_blocks(one, shape, Patience(attempts=1)):
                count += block.count
                heads.append(block.heads[["client_id", "generation", "seq", "transaction_id"]].astype(_KEY))
    except PipelineError as error:
        problem, unread = str(error), is_unread(error, task.part.ranges)
    repeated = _repeated(np.concatenate(heads)) if heads else ()
    return Soundness(task.source, task.part, count, problem, unread, repeated)


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
    """Blocks of ids of one partition to digest in each copy."""

    partition: int
    borders: tuple[int, ...]  # rising; digests of the ids between neighbours
    replicas: tuple[tuple[str, tuple[Range, ...]], ...]


@record
class Comparison:
    """Ids whose digests differ between copies, and what could not be read."""

    partition: int
    count: int  # ids that at least two copies were compared in
    differing: tuple[int, ...]  # first id that differs, of each differing block
    problems: tuple[str, ...]
    unread: tuple[str, ...]  # copies that did not answer


def compare_replicas(task: DigestTask) -> Comparison:
    """SHA-256 per block of ids in every copy; where they differ, the first id that does."""
    digests: dict[str, list[str]] = {}
    problems: list[str] = []
    unread: list[str] = []
    for name, ranges in task.replicas:
        try:
            digests[name] = [
                _digest(ranges, low, high) for low, high in zip(task.borders, task.borders[1:], strict=False)
            ]
        except PipelineError as error:
            (unread if is_unread(error, ranges) else problems).append(f"{name}: {error}")
    differing = []
    for at, found in enumerate(zip(*digests.values(), strict=True)):
        if len(set(found)) > 1:
            differing.append(_first_difference(task, digests, at))
    count = task.borders[-1] - task.borders[0] if len(digests) > 1 else 0
    return Comparison(task.partition, count, tuple(differing), tuple(problems), tuple(unread))


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
    own = [ranges for name, ranges in task.replicas if name in digests]
    streams = [_blocks(ranges, low, high, 1) for ranges in own]
    for blocks in zip(*streams, strict=True):
        if len({bytes(block.data) for block in blocks}) > 1:
            return int(blocks[0].first_id)
    raise AssertionError("digests differ, records do not")


# ---- the audit -------------------------------------------------------------------------------


def run_audit(
    directories: Sequence[str],
    archive: str | None,
    runner: Runner,
    *,
    trust: str = "control",
    journals: Sequence[str] = (),
    judge_locks: bool = True,
    live: Options | None = None,
    on_progress: OnProgress | None = None,
) -> AuditReport:
    """Check copies of one log, its archive, and with the journals of its servers whether locks were kept.

    Args:
        directories: replicas or backups; each alone is checked, and all are compared.
        trust: how far they are read, as the option of the source.
        journals: directories or URIs of the decision journals of all servers; needs a copy of the log.
        judge_locks: without journals serializability, and with it the log, is unproven; False leaves it out instead.
        live: options that name a running cluster: every replica is read from its node, up to the committed mark.

    Raises:
        OptionError: nothing is named.
        UnreachableError: the archive cannot be read, or the cluster does not answer.
    """
    begin = time.monotonic()
    if not directories and archive is None and live is None:
        raise OptionError("say what to audit: a running cluster (-c, --url), directories, an archive, or several")
    if journals and not judge_locks:
        raise OptionError("journals are named, and serializability is to be left out: one or the other")
    if journals and not directories and live is None:
        raise OptionError("a journal tells of decisions, not of the log: name a directory or the cluster too")
    sources = read_sources(directories, trust, live)
    findings = [Finding("readable", -1, FAILED, 0, name, text) for name, text in sources.problems]
    soundness = _read_all(sources, runner, on_progress)
    findings += [finding for one in soundness for finding in _sound_findings(one)]
    findings += _comparison(sources, runner)
    if journals:
        findings += _serializability(sources, journals, runner)
    seen = [(one.part.partition, one.part.start, one.part.start + one.count) for one in soundness]
    state = None
    if archive is not None:
        state, more, verified = _archive(archive, sources, runner)
        findings += more
        seen += verified
    covered, coverage = _coverage(sources, state, seen)
    findings += covered
    if judge_locks and not journals and coverage.known:
        scope = f"0 of {coverage.known:,} records: no decision journal"
        findings.append(Finding(_BY_LOCKS, -1, UNPROVEN, 0, scope, _NO_JOURNAL))
    names = tuple(source.name for source in sources.sources)
    places = (*names, *(name for name, _ in sources.problems), *([archive] if archive else []), *journals)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    left_out = () if judge_locks else ("serializability",)
    return AuditReport(tuple(findings), places, coverage, time.monotonic() - begin, at, left_out)


def _read_all(sources: Sources, runner: Runner, on_progress: OnProgress | None) -> list[Soundness]:
    tasks = [SoundTask(source.name, part) for source in sources.sources for part in source.parts]
    total = sum(one.count for task in tasks for one in task.part.ranges)
    done: list[Soundness] = []
    width = max(1, runner.width * 2)
    for at in range(0, len(tasks), width):
        done += runner.run(check_soundness, tasks[at : at + width])
        if on_progress is not None:
            on_progress(sum(one.count for one in done), total)
    return done


def _sound_findings(soundness: Soundness) -> Iterator[Finding]:
    part = soundness.part
    scope = f"{soundness.source}, {span_text([(part.start, part.end)] if part.start < part.end else [])}"
    if not part.ranges and part.start == part.end:
        scope = f"{soundness.source}, no record"
    status = PASSED if soundness.problem is None else UNPROVEN if soundness.unread else FAILED
    yield Finding("dense and sound", part.partition, status, soundness.count, scope, soundness.problem or "")
    texts = [
        f"request {client}/{generation}/{seq} again in transaction {transaction_id}"
        for client, generation, seq, transaction_id in soundness.repeated
    ]
    status = FAILED if texts else PASSED if soundness.problem is None else UNPROVEN
    yield Finding("request ids at most once", part.partition, status, soundness.count, scope, "; ".join(texts))


# ---- replicas, next to each other ------------------------------------------------------------


def _comparison(sources: Sources, runner: Runner) -> list[Finding]:
    if len(sources.sources) < 2 and not sources.live:
        return []  # one directory was named, and nothing to compare it with
    if len(sources.replicas) > 1:
        sources = attrs.evolve(sources, sources=sources.replicas)  # a server has no copy of its own
    tasks = [task for partition in sources.partitions for task in _comparison_tasks(sources, partition)]
    results = runner.run(compare_replicas, tasks)
    return [
        _compared(sources, partition, [one for one in results if one.partition == partition])
        for partition in sources.partitions
    ]


def _comparison_tasks(sources: Sources, partition: int) -> Iterator[DigestTask]:
    """Between two neighbouring ends of copies it does not change which of them hold the ids."""
    own = [(source.name, part) for source in sources.sources if (part := source.part(partition)) and part.ranges]
    edges = sorted({edge for _, part in own for edge in (part.start, part.end)})
    for low, high in itertools.pairwise(edges):
        replicas = tuple((name, part.ranges) for name, part in own if part.start <= low and high <= part.end)
        if len(replicas) < 2:
            continue
        borders = [low, *range((low // BLOCK + 1) * BLOCK, high, BLOCK), high]
        for at in range(0, len(borders) - 1, _GROUP):
            yield DigestTask(partition, tuple(borders[at : at + _GROUP + 1]), replicas)


def _compared(sources: Sources, partition: int, results: Sequence[Comparison]) -> Finding:
    parts = [part for source in sources.sources if (part := source.part(partition)) is not None]
    known = union(((part.start, part.end) for part in parts), 0, 1 << 63)
    count = sum(one.count for one in results)
    texts = [f"differ from id {at} on" for one in results for at in one.differing]
    texts += [text for one in results for text in one.problems]
    unread = list(dict.fromkeys(text for one in results for text in one.unread))
    replicas_read = len(sources.replicas) == len(sources.sources)
    whole = count == size_of(known) and not unread and (replicas_read or not known)
    status = FAILED if texts else PASSED if whole else UNPROVEN
    scope = f"{len(parts)} replicas, {span_text(known)}; {count:,} of {size_of(known):,} records in two or more"
    if not replicas_read:
        unread.append(
            "a server gives out records of any replica: to read each, name the cluster by its ZooKeeper "
            "(-c, --zookeeper), or give adminEndpoints (-o adminEndpoints=host:port,...)"
        )
    elif not whole and not texts and not unread:
        unread.append("some ids are in one copy only")
    return Finding("replicas equal", partition, status, count, scope, "; ".join((texts + unread)[:_PROBLEMS_MAX]))


# ---- what was looked at ----------------------------------------------------------------------


def _coverage(
    sources: Sources, archive: ArchiveState | None, seen: Sequence[tuple[int, int, int]]
) -> tuple[list[Finding], Coverage]:
    """Of each partition how much of what is known was read somewhere; `seen`: partition, half-open ids."""
    partitions = sources.partitions or tuple(range(archive.partition_count if archive else 0))
    findings, ranges = [], list[tuple[int, int, int]]()
    whole = total = 0
    for partition in partitions:
        start, end, named = _known(sources, archive, partition)
        spans = union(((low, high) for at, low, high in seen if at == partition), start, end)
        ranges += [(partition, low, high) for low, high in spans]
        missing = end - start - size_of(spans)
        total += end - start
        whole += named and not missing
        text = ""
        if not named:
            text = "no place that was named holds this partition"
        elif missing:
            text = f"{missing:,} records were not looked at{_why(sources, partition)}"
        scope = f"{span_text(spans)} of {span_text([(start, end)] if start < end else [])}"
        findings.append(Finding("covered", partition, UNPROVEN if text else PASSED, size_of(spans), scope, text))
    if not total and not sources.live:
        findings.append(Finding("covered", -1, UNPROVEN, 0, "no record at all", "there was nothing to look at"))
        whole = 0
    names = [source.name for source in sources.sources] + ([archive.root] if archive else [])
    records = size_of([(low, high) for _, low, high in ranges])
    return findings, Coverage(whole, max(1, len(partitions)), records, total, tuple(ranges), tuple(names))


def _known(sources: Sources, archive: ArchiveState | None, partition: int) -> tuple[int, int, bool]:
    """Ids of a partition that are known to be there, half-open; whether any place that was named holds it."""
    parts = [part for source in sources.sources if (part := source.part(partition)) is not None]
    files = archive.files_of(partition) if archive is not None else ()
    starts = [part.start for part in parts] + [file.first_id for file in files]
    ends = [part.end for part in parts] + [file.end_id for file in files]
    if sources.ends is not None and sources.starts is not None:
        # What lies behind the committed mark of the servers is under way and no part of the log yet.
        starts, ends = [*starts, sources.starts[partition]], [*ends, sources.ends[partition]]
    else:
        ends += [part.end + part.behind for part in parts]
    start = min(starts, default=0)
    return start, max([start, *ends]), bool(parts or files or sources.live)


def _why(sources: Sources, partition: int) -> str:
    parts = [part for source in sources.sources if (part := source.part(partition)) is not None]
    if not sources.live and any(part.behind for part in parts):
        return (
            ": they are in files, and nothing named says that they are committed; name the running cluster "
            "(-c, --url), or read them all the same (--trust files)"
        )
    return ""


# ---- journals and archive --------------------------------------------------------------------

_NO_JOURNAL = (
    "records hold no locks: only the decision journals tell which ones a transaction checked; servers keep them where "
    "server.journal.directory is set, give those of all servers (--journal), or leave this out (--no-journal)"
)

_NO_KEY = (
    "the server does not show its cluster key to this certificate, so nothing tells whether the journals are of this "
    "cluster: use a certificate with the role storage or admin, or name a directory or the ZooKeeper too"
)
_NO_COPY = "no copy of the log can be read, see above, so there is nothing to compare the journals with"


def _serializability(sources: Sources, journals: Sequence[str], runner: Runner) -> list[Finding]:
    """With the copy that reaches furthest, of each partition."""
    if sources.key is None:
        return [Finding(_BY_LOCKS, -1, UNPROVEN, 0, "no record", _NO_KEY if sources.live else _NO_COPY)]
    try:
        files = find_journals(journals, sources.key)
    except PipelineError as error:
        return [Finding("journal readable", -1, FAILED, 0, ", ".join(journals), str(error))]
    tasks = []
    for partition in sources.partitions:
        ranges = _furthest(sources.sources, partition)
        own = tuple(file for file in files if file.partition == partition)
        if ranges or own:
            tasks.append(LockTask(partition, ranges, own))
    return [finding for verdict in runner.run(check_locks, tasks) for finding in _lock_findings(verdict)]


def _furthest(sources: Sequence[Source], partition: int) -> tuple[Range, ...]:
    """The ranges of one copy, each with the same ids in others to go on with where that one does not answer."""
    own = sorted((source.ranges(partition) for source in sources), key=lambda one: -(one[-1].end if one else 0))
    if not own or not own[0]:
        return ()
    best = own[0]
    if len(best) == 1:
        others = [place for one in own[1:] if len(one) == 1 and one[0].end == best[0].end for place in one[0].places]
        return (attrs.evolve(best[0], places=(*best[0].places, *others)),)
    return best


def _lock_findings(verdict: LockVerdict) -> Iterator[Finding]:
    partition, count = verdict.partition, verdict.end_id - verdict.first_id
    scope = f"ids {verdict.first_id} to {verdict.end_id - 1}"
    if verdict.problem is not None:
        yield Finding("journal readable", partition, FAILED, 0, scope, verdict.problem)
        return
    share = 100 * verdict.journalled / count if count else 100.0
    # Rounded down: 100 means all, not nearly all.
    coverage = f"{scope}; {verdict.journalled} of {count} have an entry, {int(share * 100) / 100:g} %"
    gaps = f"the journals say that they lack {verdict.gaps} decisions" if verdict.gaps else ""
    yield Finding(
        "decisions journalled", partition, PASSED if verdict.journalled == count else UNPROVEN, count, coverage, gaps
    )
    proved = count - verdict.violated - verdict.unproven
    status = FAILED if verdict.violated else UNPROVEN if verdict.unproven else PASSED
    scope_of = f"{scope}; {proved} proved, {verdict.violated} violated, {verdict.unproven} unproven"
    yield Finding(_BY_LOCKS, partition, status, count, scope_of, "; ".join(verdict.examples))
    status = FAILED if verdict.against_table else PASSED
    detail = f"{verdict.against_table} were appended although the lock table said no" if verdict.against_table else ""
    yield Finding("decisions follow the lock table", partition, status, verdict.journalled, scope, detail)
    conflicts = f"{verdict.false_conflicts} falsely, {verdict.open_conflicts} unknown"
    rate = f"{verdict.refused} refused because of a lock: {conflicts}"
    yield Finding("false conflicts", partition, PASSED, verdict.refused, rate, "")


def _archive(
    root: str, sources: Sources, runner: Runner
) -> tuple[ArchiveState | None, list[Finding], list[tuple[int, int, int]]]:
    """What is in the archive, findings, and the ids that were read back from it."""
    try:
        state = read_archive(root)
        check_key(root, state.key, sources)
        checks = checks_of(state, sources.sources)
    except UnreachableError:
        raise
    except PipelineError as error:
        return None, [Finding("hash chain", -1, FAILED, 0, root, str(error))], []
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
        unread = list(dict.fromkeys(text for one in own for text in one.unread))
        detail = "; ".join((texts + unread)[:_PROBLEMS_MAX])
        findings.append(Finding("archive equals log", partition, status, looked_at, scope, detail))
    sound = [one.file for one in verdicts if one.read and not one.problems]
    return state, findings, [(file.partition, file.first_id, file.end_id) for file in sound]


# ---- showing it ------------------------------------------------------------------------------


def to_html(report: AuditReport) -> str:
    """One page without anything from outside."""
    counts = {
        status: sum(finding.status == status for finding in report.findings) for status in (PASSED, FAILED, UNPROVEN)
    }
    verdict = {
        PASSED: "Passed.",
        FAILED: f"{counts[FAILED]} checks failed.",
        UNPROVEN: "Nothing failed, but not everything was looked at.",
    }[report.verdict]
    rows = "\n".join(
        f"<tr><td>{html.escape(finding.check)}</td>"
        f"<td class=number>{'' if finding.partition < 0 else finding.partition}</td>"
        f"<td class={finding.status}>{finding.status}</td><td class=number>{finding.looked_at:,}</td>"
        f"<td>{html.escape(finding.scope)}</td><td class=detail>{html.escape(finding.detail)}</td></tr>"
        for finding in report.findings
    )
    places = "".join(f"<li>{html.escape(place)}</li>" for place in report.places)
    parts = [
        f"<p><strong>{verdict}</strong> "
        f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[UNPROVEN]} unproven; "
        f"{report.at}, {report.seconds:.1f} s.</p>\n"
        f"<p>Looked at {html.escape(str(report.coverage))}.</p>\n<ul>{places}</ul>",
        "<table><tr><th>check<th>partition<th>status<th>records<th>scope<th>detail</tr>\n" + rows + "\n</table>",
        *(f"<p>{html.escape(what.capitalize())} was left out.</p>" for what in report.left_out),
    ]
    return page("Audit of a Waltz log", parts)


def to_rows(report: AuditReport) -> list[dict[str, Any]]:
    """The findings as dicts, for a table or JSON."""
    return [attrs.asdict(one) for one in report.findings]
