"""The data pipeline around a Waltz log: source, sink, archive, audit, restore. `docs/pipeline.md` shows how.

Nothing here imports pyspark by itself: a name is looked for when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltz_spark.archive.archive import plan_archive, plan_verification, run_archive, run_verification
    from waltz_spark.archive.freeing import plan_free, run_free
    from waltz_spark.archive.restore import restore
    from waltz_spark.audit.audit import run_audit, to_html, to_rows
    from waltz_spark.audit.contention import contention
    from waltz_spark.audit.load import measure
    from waltz_spark.audit.report import load_page
    from waltz_spark.audit.scan import scan
    from waltz_spark.base.runners import Here, OnSpark, Runner
    from waltz_spark.read.history import follow
    from waltz_spark.read.options import Options, parse_options
    from waltz_spark.read.views import balances, bootstrap, changes, flows
    from waltz_spark.records.journal import decisions, find_journals, read_table
    from waltz_spark.spark.session import configure, register
    from waltz_spark.write.arranging import arrange
    from waltz_spark.write.files import sink_files

__all__ = [
    "Here",
    "OnSpark",
    "Options",
    "Runner",
    "arrange",
    "balances",
    "bootstrap",
    "changes",
    "configure",
    "contention",
    "decisions",
    "find_journals",
    "flows",
    "follow",
    "load_page",
    "measure",
    "parse_options",
    "plan_archive",
    "plan_free",
    "plan_verification",
    "read_table",
    "register",
    "restore",
    "run_archive",
    "run_audit",
    "run_free",
    "run_verification",
    "scan",
    "sink_files",
    "to_html",
    "to_rows",
]

_HOMES = {
    "Here": "waltz_spark.base.runners",
    "OnSpark": "waltz_spark.base.runners",
    "Options": "waltz_spark.read.options",
    "Runner": "waltz_spark.base.runners",
    "arrange": "waltz_spark.write.arranging",
    "balances": "waltz_spark.read.views",
    "bootstrap": "waltz_spark.read.views",
    "changes": "waltz_spark.read.views",
    "configure": "waltz_spark.spark.session",
    "contention": "waltz_spark.audit.contention",
    "decisions": "waltz_spark.records.journal",
    "find_journals": "waltz_spark.records.journal",
    "flows": "waltz_spark.read.views",
    "follow": "waltz_spark.read.history",
    "load_page": "waltz_spark.audit.report",
    "measure": "waltz_spark.audit.load",
    "parse_options": "waltz_spark.read.options",
    "plan_archive": "waltz_spark.archive.archive",
    "plan_free": "waltz_spark.archive.freeing",
    "plan_verification": "waltz_spark.archive.archive",
    "read_table": "waltz_spark.records.journal",
    "register": "waltz_spark.spark.session",
    "restore": "waltz_spark.archive.restore",
    "run_archive": "waltz_spark.archive.archive",
    "run_audit": "waltz_spark.audit.audit",
    "run_free": "waltz_spark.archive.freeing",
    "run_verification": "waltz_spark.archive.archive",
    "scan": "waltz_spark.audit.scan",
    "sink_files": "waltz_spark.write.files",
    "to_html": "waltz_spark.audit.audit",
    "to_rows": "waltz_spark.audit.audit",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
