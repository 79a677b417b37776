"""`waltz spark ...`: scan a log, archive it, verify an archive, audit, report, restore a log.

Without --master the work runs here, in --jobs processes; with it, in the executors of that Spark master.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from waltz_spark.archive.archive import Verdict, plan_archive, plan_verification, run_archive, run_verification
from waltz_spark.archive.freeing import Freed, plan_free, run_free
from waltz_spark.archive.restore import restore
from waltz_spark.audit.audit import run_audit, to_html, to_rows
from waltz_spark.audit.contention import ContentionReport, contention
from waltz_spark.audit.coverage import EXIT_STATUS, FAILED, PASSED, UNPROVEN
from waltz_spark.audit.invariants import judge, read_invariant
from waltz_spark.audit.load import measure
from waltz_spark.audit.report import contention_sections, load_numbers, load_page, size_class
from waltz_spark.audit.scan import scan
from waltz_spark.base.errors import OptionError
from waltz_spark.base.runners import Here, OnProgress, OnSpark, Runner
from waltz_spark.cli.options import (
    archive_of,
    config_values,
    given_values,
    journals_of,
    live_options,
    log_options,
    log_values,
    parser_of,
)
from waltz_spark.read.options import parse_options
from waltz_spark.write.files import sink_files
from waltz_trio.cli.help import Parser, UsageError
from waltz_trio.cli.interruption import advising, terminable
from waltz_trio.cli.options import confirm

_NO_PAGE = 4  # exit status: everything passed, and the page of --html could not be written
_REJECTED = 3  # exit status: some rows are not in the log, but among the rejected ones, as configured


def make_parser() -> Parser:
    """The commands."""
    return parser_of(__doc__, _ACTIONS)


# ---- where it runs ---------------------------------------------------------------------------


@contextmanager
def _runner(arguments: argparse.Namespace) -> Iterator[Runner]:
    with terminable(), _on_spark(arguments) if arguments.master is not None else _here(arguments) as runner:
        yield runner


@contextmanager
def _here(arguments: argparse.Namespace) -> Iterator[Runner]:
    here = Here(max(1, arguments.jobs))
    try:
        yield here
    finally:
        here.close()


@contextmanager
def _on_spark(arguments: argparse.Namespace) -> Iterator[Runner]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from waltz_spark.spark.session import configure

    answer = signal.getsignal(signal.SIGINT)
    builder = configure(SparkSession.builder.master(arguments.master).appName("waltz spark"))
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # PySpark's answer to Ctrl-C asks the session, which is in the middle of an answer, to cancel its jobs. To stop the
    # session, below, cancels them too.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, answer)
    # Py4J logs Ctrl-C and the failures that it raises, with their traces, some by the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: f"{os.sep}py4j{os.sep}" not in record.pathname)
    try:
        yield OnSpark(spark)
    finally:
        spark.stop()


@contextmanager
def progress(arguments: argparse.Namespace, what: str) -> Iterator[OnProgress | None]:
    """A progress bar on standard error while the block runs, if that is a terminal."""
    if arguments.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("records"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(arguments: argparse.Namespace, text: str, found: dict[str, Any]) -> None:
    print(json.dumps(found) if arguments.json else text)


def _rate(count: int, size: int, seconds: float) -> str:
    per = max(seconds, 1e-9)
    return f"{seconds:.1f} s, {count / per:,.0f} records/s, {size / per / 1e6:,.1f} MB/s"


# ---- actions ---------------------------------------------------------------------------------


def _scan(arguments: argparse.Namespace) -> int:
    options = log_options(arguments)
    with _runner(arguments) as runner, progress(arguments, "scan") as on_progress:
        report = scan(options, runner, on_progress)
    count = sum(part.count for part in report.partitions)
    size = sum(part.size for part in report.partitions)
    lines = [f"{'partition':>9} {'first':>12} {'last':>12} {'records':>12} {'bytes':>16}  state"]
    for part in report.partitions:
        plain = {PASSED: "sound" if part.count else "empty"}.get(part.verdict, part.verdict)
        state = "; ".join((*part.problems, *part.unread)) or plain
        lines.append(
            f"{part.partition:>9} {part.start:>12} {part.end - 1:>12} {part.count:>12} {part.size:>16}  {state}"
        )
    lines.append(f"{count:,} records, {size:,} bytes, {_rate(count, size, report.seconds)}")
    if report.left_out:
        lines.append(
            f"{report.left_out:,} records behind these are not known to be committed: name the running cluster "
            "(-c, --url), or read them all the same (--trust files)"
        )
    lines.append(f"{_SCANNED[report.verdict]}: {report.coverage}")
    output = {
        "records": count,
        "bytes": size,
        "seconds": report.seconds,
        "verdict": report.verdict,
        "sound": report.sound,
        "coverage": report.coverage.as_dict(),
        "left_out": report.left_out,
        "partitions": [
            {
                "partition": part.partition,
                "start": part.start,
                "end": part.end,
                "records": part.count,
                "bytes": part.size,
            }
            | {"verdict": part.verdict, "problems": list(part.problems), "unread": list(part.unread)}
            for part in report.partitions
        ],
    }
    _show(arguments, "\n".join(lines), output)
    return EXIT_STATUS[report.verdict]


_SCANNED = {PASSED: "sound", FAILED: "DAMAGED", UNPROVEN: "unproven"}


def _archive(arguments: argparse.Namespace) -> int:
    plan = plan_archive(
        log_options(arguments),
        arguments.to,
        range_count=arguments.range,
        partial=not arguments.whole,
        keep_last=arguments.keep_last,
    )
    if arguments.dry_run:
        lines = [f"{task.path}: {task.end_id - task.first_id:,} records" for task in plan.tasks]
        text = "\n".join([*lines, f"{plan.record_count:,} records in {len(plan.tasks)} files would be written"])
        files = [{"path": task.path, "records": task.end_id - task.first_id} for task in plan.tasks]
        output = {"records": plan.record_count, "files": files}
        if arguments.free:
            freed = plan_free(log_options(arguments), arguments.to, keep_local=arguments.keep_local).partitions
            text += "\nof what is archived already, " + _freed_text(freed, "would be freed")
            output["freed"] = _freed_found(freed)
        _show(arguments, text, output)
        return 0
    if arguments.free and not arguments.yes and not sys.stdin.isatty():  # before hours of work
        raise OptionError("--free removes records from the storage nodes: add --yes where nobody can be asked")
    left = "What is in the archive stays; the same command goes on behind it"
    with _runner(arguments) as runner, progress(arguments, "archive") as on_progress, advising(lambda: left):
        report = run_archive(plan, runner, on_progress)
    ratio = report.raw_size / report.file_size if report.file_size else 1.0
    text = (
        f"{report.record_count:,} records in {report.file_count} files: {report.raw_size:,} bytes became "
        f"{report.file_size:,} (1:{ratio:.1f}); {_rate(report.record_count, report.raw_size, report.seconds)}"
    )
    output = {
        "records": report.record_count,
        "bytes": report.raw_size,
        "files": report.file_count,
        "file_bytes": report.file_size,
        "commits": report.commit_count,
        "seconds": report.seconds,
    }
    try:
        if arguments.free:
            freed = _free(arguments)
            text += "\n" + _freed_text(freed, "freed")
            output["freed"] = _freed_found(freed)
    finally:  # the archive is finished, whatever becomes of the freeing
        _show(arguments, text, output)
    return 0


def _free(arguments: argparse.Namespace) -> tuple[Freed, ...]:
    plan = plan_free(log_options(arguments), arguments.to, keep_local=arguments.keep_local)
    if not plan.partitions:
        return ()
    if not arguments.yes:
        print(_freed_text(plan.partitions, "will be removed from the storage nodes"), file=sys.stderr)
    confirm("Go on?", given=arguments.yes, refused="nothing was freed")
    with _runner(arguments) as runner, progress(arguments, "verify") as on_progress:
        return run_free(plan, runner, on_progress)


def _freed_text(freed: Sequence[Freed], what: str) -> str:
    if not freed:
        return f"nothing {what}"
    return "\n".join(f"partition {one.partition}: ids {one.start} to {one.end - 1} {what}" for one in freed)


def _freed_found(freed: Sequence[Freed]) -> list[dict[str, int]]:
    return [{"partition": one.partition, "start": one.start, "end": one.end} for one in freed]


def _verify(arguments: argparse.Namespace) -> int:
    archive, live = archive_of(arguments), live_options(arguments)
    trust = arguments.trust or "control"
    checks = plan_verification(archive, arguments.directory, trust=trust, live=live)
    with _runner(arguments) as runner, progress(arguments, "verify") as on_progress:
        verdicts = run_verification(checks, runner, on_progress)
    problems = [problem for verdict in verdicts for problem in verdict.problems]
    unread = list(dict.fromkeys(text for verdict in verdicts for text in verdict.unread))
    count = _records(verdicts)
    compared = _records([verdict for verdict in verdicts if verdict.compared])
    asked = bool(arguments.directory or live)
    whole = bool(verdicts) and not unread and (compared == count or not asked)
    verdict = FAILED if problems else PASSED if whole else UNPROVEN
    ids = f"{compared:,} of {count:,} records ({100 * compared // max(1, count)} %) equal to those of a replica"
    against = ids if asked else "compared with no replica: name some (-c, --url, --directory)"
    text = "\n".join(
        [
            *problems,
            *unread,
            f"{len(verdicts)} files with {count:,} records in {len({verdict.file.partition for verdict in verdicts})} "
            f"partitions, hash chain whole, {against}",
            {PASSED: "no problem", FAILED: f"{len(problems)} problems", UNPROVEN: "unproven"}[verdict],
        ]
    )
    output = {
        "verdict": verdict,
        "files": len(verdicts),
        "records": count,
        "compared_records": compared,
        "equal_in_replicas": sum(verdict.compared for verdict in verdicts),
        "problems": problems,
        "unread": unread,
    }
    _show(arguments, text, output)
    return EXIT_STATUS[verdict]


def _records(verdicts: Sequence[Verdict]) -> int:
    return sum(one.file.end_id - one.file.first_id for one in verdicts)


def _audit(arguments: argparse.Namespace) -> int:
    page = _page_of(arguments)
    invariants = [read_invariant(path) for path in arguments.invariant]
    if invariants and arguments.master is None:
        raise UsageError("--invariant is judged by Spark: give --master, such as --master 'local[*]'")
    if arguments.journal and arguments.no_journal:
        raise UsageError("--journal and --no-journal: give one or the other")
    journals = [] if arguments.no_journal else journals_of(arguments)
    with _runner(arguments) as runner, progress(arguments, "audit") as on_progress:
        report = run_audit(
            arguments.directory,
            arguments.archive,
            runner,
            trust=arguments.trust or "control",
            journals=journals,
            judge_locks=not arguments.no_journal,
            live=live_options(arguments),
            on_progress=on_progress,
        )
        if invariants and isinstance(runner, OnSpark):
            judged = judge(runner.session, log_values(arguments), invariants)
            report = attrs.evolve(report, findings=(*report.findings, *judged))
    lines = [f"{'check':<26} {'partition':>9} {'status':<9} {'records':>14}  scope"]
    for finding in report.findings:
        partition = "" if finding.partition < 0 else finding.partition
        lines.append(
            f"{finding.check:<26} {partition:>9} {finding.status:<9} {finding.looked_at:>14,}  {finding.scope}"
        )
        if finding.detail and finding.status != PASSED:
            lines.append(f"  {finding.detail}")
    shown = "FAILED" if report.verdict == FAILED else report.verdict
    left_out = "".join(f"; {what} left out" for what in report.left_out)
    lines.append(f"{shown}: {report.coverage}{left_out}; {report.seconds:.1f} s")
    output = {
        "verdict": report.verdict,
        "passed": report.passed,
        "coverage": report.coverage.as_dict(),
        "serializability_judged": report.serializability_judged,
        "left_out": list(report.left_out),
        "seconds": report.seconds,
        "findings": to_rows(report),
    }
    _show(arguments, "\n".join(lines), output)
    status = EXIT_STATUS[report.verdict]
    if page is not None:
        try:
            page.write_text(to_html(report), encoding="utf-8")
        except OSError as error:  # of the log that says nothing
            print(f"Error: --html {page}: {error.strerror}", file=sys.stderr)
            return status or _NO_PAGE
    return status


def _page_of(arguments: argparse.Namespace) -> Path | None:
    """Where the page goes.

    Raises:
        UsageError: it cannot be written there, which is better known before hours of work than behind them.
    """
    page: Path | None = arguments.html
    if page is not None and (page.is_dir() or not os.access(page.absolute().parent, os.W_OK | os.X_OK)):
        raise UsageError(f"--html {page}: expected a file in a directory that can be written to")
    return page


def _report(arguments: argparse.Namespace) -> int:
    options = log_options(arguments)
    page = _page_of(arguments)
    if page is not None and importlib.util.find_spec("matplotlib") is None:
        raise OptionError("--html draws with matplotlib, which is not installed: pip install 'waltz-log[report]'")
    with _runner(arguments) as runner, progress(arguments, "report") as on_progress:
        load = measure(options, runner, on_progress)
        journals = journals_of(arguments)
        contended = contention(journals, runner) if journals else None
    lines = [f"{'partition':>9} {'records':>14} {'bytes':>18} {'bytes/record':>13}"]
    lines += [
        f"{part.partition:>9} {part.count:>14,} {part.size:>18,} {part.size / max(1, part.count):>13,.1f}"
        for part in load.partitions
    ]
    lines += [f"{load.count:,} records, {_rate(load.count, load.size, load.seconds)}", "payload sizes:"]
    top = max(load.size_classes)
    for at, count in enumerate(load.size_classes):
        if count:
            lines.append(f"{size_class(at):>16} {count:>14,}  {'#' * max(1, 40 * count // top)}")
    lines.append(f"{len(load.clients):,} clients, the busiest:")
    lines += [f"{client:>16} {count:>14,}  {count / load.count:.1%}" for client, count in load.clients[:10]]
    lines.append(f"zstd makes 1 byte of {load.sample / max(1, load.compressed):.1f}")
    lines += _contention_lines(contended) if contended is not None else []
    numbers = load_numbers(load) | ({} if contended is None else {"contention": attrs.asdict(contended)})
    _show(arguments, "\n".join(lines), numbers)
    if page is not None:
        places = [*options.directory, options.archive, options.url, options.zookeeper, *journals]
        more = contention_sections(contended) if contended is not None else []
        page.write_text(load_page(load, [place for place in places if place], more), encoding="utf-8")
        if not arguments.json:
            print(f"page: {page}")
    return 0


def _contention_lines(report: ContentionReport) -> list[str]:
    refused = report.decided - report.appended
    lines = [f"{report.decided:,} appends were decided, {refused:,} refused:"]
    lines += [f"{reason:>16} {count:>14,}  {count / report.decided:.1%}" for reason, count in report.refused]
    kinds = f"true {report.true_conflicts:,}, false {report.false_conflicts:,}, unknown {report.unknown_conflicts:,}"
    lines += [f"conflicts: {kinds}", "locks (taken, refused at it):"]
    lines += [f"{lock.name:>30} {lock.taken:>12,} {lock.refused:>12,}" for lock in report.locks[:10]]
    lines.append("refused falsely by a lock table of so many slots:")
    lines += [
        f"{table.size:>16,} {table.false:>14,}  {table.false / max(1, table.decided):.2%}" for table in report.tables
    ]
    if report.missing:
        lines.append(f"the journals say that they lack {report.missing:,} decisions")
    return lines


def _restore(arguments: argparse.Namespace) -> int:
    partitions, archive = None, archive_of(arguments)
    if arguments.partitions is not None:
        partitions = parse_options({"archive": archive, "partitions": arguments.partitions}).partitions
    left = f"{arguments.to} holds a part, which no storage node starts on; the same command begins it anew"
    with _runner(arguments) as runner, progress(arguments, "restore") as on_progress, advising(lambda: left):
        report = restore(
            archive,
            arguments.to,
            runner,
            partitions=partitions,
            threshold=arguments.segment_size,
            on_progress=on_progress,
        )
    text = (
        f"{report.directory}: {report.record_count:,} records in {report.segment_count} segments, "
        f"{_rate(report.record_count, report.raw_size, report.seconds)}; equal to the digests of the archive"
    )
    output = {
        "records": report.record_count,
        "bytes": report.raw_size,
        "segments": report.segment_count,
        "seconds": report.seconds,
        "directory": report.directory,
    }
    _show(arguments, text, output)
    return 0


def _sink(arguments: argparse.Namespace) -> int:
    given = {
        **config_values(arguments.config),
        **{name: value for name, value in _target(arguments).items() if value},
        "mode": arguments.mode,
        "cut": arguments.cut,
        "rejects": arguments.rejects,
        "checkpointLocation": arguments.checkpoint,
        "batchId": "0" if arguments.checkpoint else None,
    }
    with _runner(arguments) as runner, progress(arguments, "sink") as on_progress:
        report = sink_files(arguments.files, given_values(arguments, given), runner, arguments.format, on_progress)
    lines = [f"{'partition':>9} {'appended':>12} {'found':>12} {'rejected':>12}"]
    lines += [
        f"{part.partition:>9} {part.appended:>12} {part.found_before:>12} {part.rejected:>12}"
        for part in report.partitions
    ]
    if report.finished_before:
        lines = ["an earlier call did all of it; nothing was left to do"]
    else:
        rate = report.appended / max(report.seconds, 1e-9)
        lines.append(
            f"{report.appended:,} rows appended, {report.found_before:,} found from an earlier call, "
            f"{report.rejected:,} rejected; {report.seconds:.1f} s, {rate:,.0f} rows/s"
        )
    output = {
        "appended": report.appended,
        "found": report.found_before,
        "rejected": report.rejected,
        "finished_before": report.finished_before,
        "seconds": report.seconds,
        "partitions": [
            {
                "partition": part.partition,
                "appended": part.appended,
                "found": part.found_before,
                "rejected": part.rejected,
            }
            for part in report.partitions
        ],
    }
    _show(arguments, "\n".join(lines), output)
    return _REJECTED if report.rejected else 0


def _target(arguments: argparse.Namespace) -> dict[str, str | None]:
    return {"url": arguments.url, "zookeeper": arguments.zookeeper, "clusterRoot": arguments.root}


_ACTIONS = {
    "scan": _scan,
    "archive": _archive,
    "verify": _verify,
    "audit": _audit,
    "report": _report,
    "restore": _restore,
    "sink": _sink,
}
