"""`waltz spark ...`: scan a log, archive it, verify an archive, audit, report, restore a log.

Without --master the work is done here, in --jobs processes; with it, by the executors of that Spark master.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from waltz_core.errors import WaltzError
from waltz_spark.archive import (
    RANGE_COUNT,
    OnProgress,
    plan_archive,
    plan_verification,
    run_archive,
    run_verification,
)
from waltz_spark.audit import audit, to_html, to_rows
from waltz_spark.contention import ContentionReport, contention
from waltz_spark.errors import OptionError
from waltz_spark.files import KINDS, sink_files
from waltz_spark.freeing import Freed, plan_free, run_free
from waltz_spark.invariants import judge, read_invariant
from waltz_spark.load import measure
from waltz_spark.options import Options, parse_options
from waltz_spark.report import contention_sections, load_numbers, load_page, size_class
from waltz_spark.restore import THRESHOLD, restore
from waltz_spark.runners import Here, OnSpark, Runner
from waltz_spark.scan import scan
from waltz_spark.sink_options import MODES

_REJECTED = 3  # exit status: some rows are not in the log, but where they were asked to be


def main(argv: Sequence[str]) -> int:
    """Parse and run; returns the exit status: 1 if something is wrong with the log or the call."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.action(arguments))
    except (WaltzError, OSError) as error:
        print(f"waltz spark: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(f"  {note}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="waltz spark", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    one = _action(actions, "scan", _scan, "read every record, check that none is missing or damaged")
    _add_source(one)
    one = _action(actions, "archive", _archive, "add what is new to an archive of Parquet files")
    _add_source(one)
    one.add_argument("--to", required=True, metavar="ARCHIVE", help="directory or URI (s3://bucket/prefix)")
    one.add_argument("--range", type=int, default=RANGE_COUNT, metavar="N", help="ids per file (%(default)s)")
    one.add_argument("--whole", action="store_true", help="leave out the last, incomplete range of ids")
    one.add_argument("--keep-last", type=int, default=0, metavar="N", help="leave out the last N ids of each partition")
    one.add_argument("--dry-run", action="store_true", help="only say what would be written, and freed")
    one.add_argument(
        "--free",
        action="store_true",
        help="then verify it, compare it with a quorum of replicas, and let the storage nodes give up what it holds",
    )
    one.add_argument(
        "--keep-local", type=int, default=0, metavar="N", help="with --free: the last N ids stay on the storage nodes"
    )
    one.add_argument("--yes", action="store_true", help="with --free: do not ask")
    one = _action(actions, "verify", _verify, "read an archive back, compare digests, hash chain and replicas")
    one.add_argument("archive", help="directory or URI")
    one.add_argument(
        "--directory", action="append", default=[], metavar="D", help="replica to compare with; repeatable"
    )
    one.add_argument("--trust", choices=("control", "files"), default="control", help="how far replicas are read")
    one = _action(actions, "audit", _audit, "check replicas and archive of a log; one table, one page")
    one.add_argument("--directory", action="append", default=[], metavar="D", help="replica or backup; repeatable")
    one.add_argument("--archive", metavar="ARCHIVE", help="directory or URI")
    text = "decision journal of a server; repeat for every server"
    one.add_argument("--journal", action="append", default=[], metavar="D", help=text)
    one.add_argument("--trust", choices=("control", "files"), default="control", help="how far replicas are read")
    query = "file with a query that finds violations of what must always hold; needs --master; repeatable"
    one.add_argument("--invariant", action="append", type=Path, default=[], metavar="FILE.sql", help=query)
    one.add_argument("--html", type=Path, metavar="PATH", help="write the result as a page")
    one = _action(actions, "report", _report, "load, growth and contention of a log, on one page")
    _add_source(one)
    one.add_argument("--journal", action="append", default=[], metavar="D", help=text)
    one.add_argument("--html", type=Path, metavar="PATH", help="write the page with pictures (needs matplotlib)")
    one = _action(actions, "restore", _restore, "make a storage directory from an archive")
    one.add_argument("archive", help="directory or URI")
    one.add_argument("--to", required=True, metavar="DIRECTORY", help="must be empty or absent")
    one.add_argument("--partitions", metavar="P", help="which ones, such as 0-3,7 (all)")
    one.add_argument(
        "--segment-size",
        type=int,
        default=THRESHOLD,
        metavar="BYTES",
        help="if the archive does not tell (%(default)s)",
    )
    one = _action(actions, "sink", _sink, "append the rows of files to a log, each exactly once")
    one.description = (
        "Append the rows of files to a log. Columns: data, and partition or key; header; append_locks; with "
        "--mode conditional also write_locks, read_locks, client_high_water_mark. Exit status: 0 every row is in the "
        "log, 3 the others are in --rejects, 1 something else went wrong."
    )
    one.add_argument("files", nargs="+", metavar="FILE", help="Parquet, JSON lines or CSV; or one directory")
    one.add_argument("--format", choices=tuple(KINDS), help="by default, as the names of the files say")
    target = one.add_argument_group("the log")
    target.add_argument("--url", metavar="URL", help="waltz://host:port of a running cluster")
    target.add_argument("--zookeeper", metavar="H:P", help="connect string of a running cluster")
    target.add_argument("--root", metavar="PATH", help="znode of the cluster")
    one.add_argument("--mode", choices=MODES, help="append (default): all rows; conditional: check locks")
    one.add_argument("--cut", metavar="JSON", help='state the rows were computed from, as next ids: {"0": 15, "1": 7}')
    one.add_argument("--rejects", metavar="DIR", help="where rows go whose locks were taken since (Parquet)")
    one.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="remembers what is done: the same call again completes what an earlier one began, and never repeats it",
    )
    one.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="any option of the sink")
    one.set_defaults(jobs=1)
    return parser


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    meaning: str,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=meaning, description=meaning)
    parser.add_argument("--master", metavar="URL", help="a Spark master: 'local[*]', spark://host:7077, ...")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes, without --master"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(action=run)
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument_group("the log")
    source.add_argument("--directory", action="append", default=[], metavar="D", help="storage directory or backup")
    source.add_argument("--url", metavar="URL", help="waltz://host:port of a running cluster")
    source.add_argument("--zookeeper", metavar="H:P", help="connect string of a running cluster")
    source.add_argument("--root", metavar="PATH", help="znode of the cluster")
    source.add_argument("--archive", metavar="ARCHIVE", help="an archive in front of the rest")
    source.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="any option of the source; repeatable"
    )


def _given(arguments: argparse.Namespace, given: dict[str, str | None]) -> dict[str, str]:
    """Options as text, those of -o included."""
    values: dict[str, str] = {}
    for pair in arguments.option:
        name, _, value = pair.partition("=")
        values[name] = value
    return {**values, **{name: value for name, value in given.items() if value}}


def _options(arguments: argparse.Namespace) -> Options:
    given = {
        "directory": ",".join(arguments.directory),
        "url": arguments.url,
        "zookeeper": arguments.zookeeper,
        "clusterRoot": arguments.root,
        "archive": arguments.archive,
    }
    return parse_options(_given(arguments, given))


# ---- where it runs ---------------------------------------------------------------------------


@contextmanager
def _runner(arguments: argparse.Namespace) -> Iterator[Runner]:
    if arguments.master is None:
        yield Here(max(1, arguments.jobs))
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from waltz_spark.session import configure

    builder = configure(SparkSession.builder.master(arguments.master).appName("waltz spark"))
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield OnSpark(spark)
    finally:
        spark.stop()


@contextmanager
def _progress(arguments: argparse.Namespace, what: str) -> Iterator[OnProgress | None]:
    if arguments.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("records"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _show(arguments: argparse.Namespace, text: str, found: dict[str, Any]) -> None:
    print(json.dumps(found) if arguments.json else text)


def _rate(count: int, size: int, seconds: float) -> str:
    per = max(seconds, 1e-9)
    return f"{seconds:.1f} s, {count / per:,.0f} records/s, {size / per / 1e6:,.1f} MB/s"


# ---- actions ---------------------------------------------------------------------------------


def _scan(arguments: argparse.Namespace) -> int:
    options = _options(arguments)
    with _runner(arguments) as runner, _progress(arguments, "scan") as on_progress:
        report = scan(options, runner, on_progress)
    count = sum(one.count for one in report.partitions)
    size = sum(one.size for one in report.partitions)
    lines = [f"{'partition':>9} {'first':>12} {'last':>12} {'records':>12} {'bytes':>16}  state"]
    for one in report.partitions:
        state = "; ".join(one.problems) or "sound"
        lines.append(f"{one.partition:>9} {one.start:>12} {one.end - 1:>12} {one.count:>12} {one.size:>16}  {state}")
    lines.append(f"{count:,} records, {size:,} bytes, {_rate(count, size, report.seconds)}")
    if report.left_out:
        lines.append(
            f"{report.left_out:,} records behind these are not known to be committed: name the running cluster "
            "(--url, --zookeeper), or read them nonetheless (-o trust=files)"
        )
    found = {
        "records": count,
        "bytes": size,
        "seconds": report.seconds,
        "sound": report.sound,
        "left_out": report.left_out,
        "partitions": [
            {"partition": one.partition, "start": one.start, "end": one.end, "records": one.count, "bytes": one.size}
            | {"problems": list(one.problems)}
            for one in report.partitions
        ],
    }
    _show(arguments, "\n".join(lines), found)
    return 0 if report.sound else 1


def _archive(arguments: argparse.Namespace) -> int:
    plan = plan_archive(
        _options(arguments),
        arguments.to,
        range_count=arguments.range,
        partial=not arguments.whole,
        keep_last=arguments.keep_last,
    )
    if arguments.dry_run:
        lines = [f"{task.path}: {task.end_id - task.first_id:,} records" for task in plan.tasks]
        text = "\n".join([*lines, f"{plan.record_count:,} records in {len(plan.tasks)} files would be written"])
        files = [{"path": task.path, "records": task.end_id - task.first_id} for task in plan.tasks]
        found = {"records": plan.record_count, "files": files}
        if arguments.free:
            freed = plan_free(_options(arguments), arguments.to, keep_local=arguments.keep_local).partitions
            text += "\nof what is archived already, " + _freed_text(freed, "would be freed")
            found["freed"] = _freed_found(freed)
        _show(arguments, text, found)
        return 0
    with _runner(arguments) as runner, _progress(arguments, "archive") as on_progress:
        report = run_archive(plan, runner, on_progress)
    ratio = report.raw_size / report.file_size if report.file_size else 1.0
    text = (
        f"{report.record_count:,} records in {report.file_count} files: {report.raw_size:,} bytes became "
        f"{report.file_size:,} (1:{ratio:.1f}); {_rate(report.record_count, report.raw_size, report.seconds)}"
    )
    found = {
        "records": report.record_count,
        "bytes": report.raw_size,
        "files": report.file_count,
        "file_bytes": report.file_size,
        "commits": report.commit_count,
        "seconds": report.seconds,
    }
    if arguments.free:
        freed = _free(arguments)
        text += "\n" + _freed_text(freed, "freed")
        found["freed"] = _freed_found(freed)
    _show(arguments, text, found)
    return 0


def _free(arguments: argparse.Namespace) -> tuple[Freed, ...]:
    plan = plan_free(_options(arguments), arguments.to, keep_local=arguments.keep_local)
    if not plan.partitions:
        return ()
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise OptionError("--free removes records from the storage nodes: add --yes where nobody can be asked")
        print(_freed_text(plan.partitions, "will be removed from the storage nodes"), file=sys.stderr)
        if input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
            raise OptionError("nothing was freed")
    with _runner(arguments) as runner, _progress(arguments, "verify") as on_progress:
        return run_free(plan, runner, on_progress)


def _freed_text(freed: Sequence[Freed], what: str) -> str:
    if not freed:
        return f"nothing {what}"
    return "\n".join(f"partition {one.partition}: ids {one.start} to {one.end - 1} {what}" for one in freed)


def _freed_found(freed: Sequence[Freed]) -> list[dict[str, int]]:
    return [{"partition": one.partition, "start": one.start, "end": one.end} for one in freed]


def _verify(arguments: argparse.Namespace) -> int:
    checks = plan_verification(arguments.archive, arguments.directory, trust=arguments.trust)
    with _runner(arguments) as runner, _progress(arguments, "verify") as on_progress:
        verdicts = run_verification(checks, runner, on_progress)
    problems = [problem for verdict in verdicts for problem in verdict.problems]
    count = sum(one.file.end_id - one.file.first_id for one in verdicts)
    compared = sum(one.compared for one in verdicts)
    text = "\n".join(
        [
            *problems,
            f"{len(verdicts)} files with {count:,} records, hash chain whole, equal to {compared} files of replicas; "
            + (f"{len(problems)} problems" if problems else "no problem"),
        ]
    )
    found = {"files": len(verdicts), "records": count, "equal_in_replicas": compared, "problems": problems}
    _show(arguments, text, found)
    return 1 if problems else 0


def _audit(arguments: argparse.Namespace) -> int:
    invariants = [read_invariant(path) for path in arguments.invariant]
    if invariants and arguments.master is None:
        raise OptionError("--invariant is judged by Spark: give --master, such as --master 'local[*]'")
    with _runner(arguments) as runner, _progress(arguments, "audit") as on_progress:
        report = audit(
            arguments.directory,
            arguments.archive,
            runner,
            trust=arguments.trust,
            journals=arguments.journal,
            on_progress=on_progress,
        )
        if invariants and isinstance(runner, OnSpark):
            log = {"directory": ",".join(arguments.directory), "archive": arguments.archive or ""}
            options = {name: value for name, value in log.items() if value} | {"trust": arguments.trust}
            report = attrs.evolve(report, findings=(*report.findings, *judge(runner.session, options, invariants)))
    if arguments.html is not None:
        arguments.html.write_text(to_html(report))
    lines = [f"{'check':<26} {'partition':>9} {'status':<9} {'records':>14}  scope"]
    for one in report.findings:
        partition = "" if one.partition < 0 else one.partition
        lines.append(f"{one.check:<26} {partition:>9} {one.status:<9} {one.looked_at:>14,}  {one.scope}")
        if one.detail and one.status != "passed":
            lines.append(f"  {one.detail}")
    lines.append(f"{'nothing failed' if report.passed else 'FAILED'}; {report.seconds:.1f} s")
    found = {"passed": report.passed, "seconds": report.seconds, "findings": to_rows(report)}
    _show(arguments, "\n".join(lines), found)
    return 0 if report.passed else 1


def _report(arguments: argparse.Namespace) -> int:
    options = _options(arguments)
    if arguments.html is not None and importlib.util.find_spec("matplotlib") is None:
        raise OptionError("--html draws with matplotlib, which is not installed: pip install 'waltz-log[report]'")
    with _runner(arguments) as runner, _progress(arguments, "report") as on_progress:
        load = measure(options, runner, on_progress)
        found = contention(arguments.journal, runner) if arguments.journal else None
    if arguments.html is not None:
        places = [*options.directory, options.archive, options.url, options.zookeeper, *arguments.journal]
        more = contention_sections(found) if found is not None else []
        arguments.html.write_text(load_page(load, [place for place in places if place], more), encoding="utf-8")
    lines = [f"{'partition':>9} {'records':>14} {'bytes':>18} {'bytes/record':>13}"]
    lines += [
        f"{one.partition:>9} {one.count:>14,} {one.size:>18,} {one.size / max(1, one.count):>13,.1f}"
        for one in load.partitions
    ]
    lines += [f"{load.count:,} records, {_rate(load.count, load.size, load.seconds)}", "payload sizes:"]
    top = max(load.size_classes)
    for at, count in enumerate(load.size_classes):
        if count:
            lines.append(f"{size_class(at):>16} {count:>14,}  {'#' * max(1, 40 * count // top)}")
    lines.append(f"{len(load.clients):,} clients, the busiest:")
    lines += [f"{client:>16} {count:>14,}  {count / load.count:.1%}" for client, count in load.clients[:10]]
    lines.append(f"zstd makes 1 byte of {load.sample / max(1, load.compressed):.1f}")
    lines += _contention_lines(found) if found is not None else []
    if arguments.html is not None:
        lines.append(f"page: {arguments.html}")
    numbers = load_numbers(load) | ({} if found is None else {"contention": attrs.asdict(found)})
    _show(arguments, "\n".join(lines), numbers)
    return 0


def _contention_lines(found: ContentionReport) -> list[str]:
    refused = found.decided - found.appended
    lines = [f"{found.decided:,} appends were decided, {refused:,} refused:"]
    lines += [f"{reason:>16} {count:>14,}  {count / found.decided:.1%}" for reason, count in found.refused]
    kinds = f"true {found.true_conflicts:,}, false {found.false_conflicts:,}, unknown {found.unknown_conflicts:,}"
    lines += [f"conflicts: {kinds}", "locks (taken, refused at it):"]
    lines += [f"{one.name:>30} {one.taken:>12,} {one.refused:>12,}" for one in found.locks[:10]]
    lines.append("refused falsely by a lock table of so many slots:")
    lines += [f"{one.size:>16,} {one.false:>14,}  {one.false / max(1, one.decided):.2%}" for one in found.tables]
    if found.missing:
        lines.append(f"the journals say that they lack {found.missing:,} decisions")
    return lines


def _restore(arguments: argparse.Namespace) -> int:
    partitions = None
    if arguments.partitions is not None:
        partitions = parse_options({"archive": arguments.archive, "partitions": arguments.partitions}).partitions
    with _runner(arguments) as runner, _progress(arguments, "restore") as on_progress:
        report = restore(
            arguments.archive,
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
    found = {
        "records": report.record_count,
        "bytes": report.raw_size,
        "segments": report.segment_count,
        "seconds": report.seconds,
        "directory": report.directory,
    }
    _show(arguments, text, found)
    return 0


def _sink(arguments: argparse.Namespace) -> int:
    given = {
        "url": arguments.url,
        "zookeeper": arguments.zookeeper,
        "clusterRoot": arguments.root,
        "mode": arguments.mode,
        "cut": arguments.cut,
        "rejects": arguments.rejects,
        "checkpointLocation": arguments.checkpoint,
        "batchId": "0" if arguments.checkpoint else None,
    }
    with _runner(arguments) as runner, _progress(arguments, "sink") as on_progress:
        report = sink_files(arguments.files, _given(arguments, given), runner, arguments.format, on_progress)
    lines = [f"{'partition':>9} {'appended':>12} {'found':>12} {'rejected':>12}"]
    lines += [f"{one.partition:>9} {one.appended:>12} {one.found:>12} {one.rejected:>12}" for one in report.partitions]
    if report.finished_before:
        lines = ["an earlier call did all of it; nothing was left to do"]
    else:
        rate = report.appended / max(report.seconds, 1e-9)
        lines.append(
            f"{report.appended:,} rows appended, {report.found:,} found from an earlier call, {report.rejected:,} "
            f"rejected; {report.seconds:.1f} s, {rate:,.0f} rows/s"
        )
    found = {
        "appended": report.appended,
        "found": report.found,
        "rejected": report.rejected,
        "finished_before": report.finished_before,
        "seconds": report.seconds,
        "partitions": [
            {"partition": one.partition, "appended": one.appended, "found": one.found, "rejected": one.rejected}
            for one in report.partitions
        ],
    }
    _show(arguments, "\n".join(lines), found)
    return _REJECTED if report.rejected else 0
