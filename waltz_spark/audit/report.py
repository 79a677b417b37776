"""The report: load, growth and contention of a log, with pictures, as one page that opens anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from waltz_spark.audit.contention import ContentionReport, Moment, TableSize
from waltz_spark.audit.load import Growth, LoadReport
from waltz_spark.audit.pages import cell, page, picture, table

_SHOWN = 20  # rows of a table of the busiest


def load_page(load: LoadReport, places: Sequence[str], more: Sequence[str] = ()) -> str:
    """The page.

    Args:
        places: what was read, for the reader of the page.
        more: further sections, as HTML.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return page("Report of a Waltz log", [*_head(load, places, made), *_sections(load), *more])


def load_numbers(load: LoadReport) -> dict[str, Any]:
    """The numbers behind the pictures."""
    return attrs.asdict(load) | {"records": load.count, "bytes": load.size}


def size_class(number: int) -> str:
    """The payload sizes of a class, for people."""
    if number < 2:
        return ("0", "1")[number]
    return f"{_short(1 << (number - 1))} – {_short((1 << number) - 1)}"


def _short(value: int) -> str:
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.3g}{unit}"
    return str(value)


def _head(load: LoadReport, places: Sequence[str], made: str) -> Iterator[str]:
    yield (
        f"<p><strong>{load.count:,} records, {load.size:,} bytes</strong> in {len(load.partitions)} partitions; "
        f"made {made}, read and checked in {load.seconds:.1f} s.</p>"
    )
    yield "<ul>" + "".join(f"<li>{cell(place)}</li>" for place in places) + "</ul>"


def _sections(load: LoadReport) -> Iterator[str]:
    yield "<h2>Load per partition</h2>"
    partitions = [str(one.partition) for one in load.partitions]
    yield picture(
        lambda axes: _bars(axes, partitions, [one.count for one in load.partitions], "partition", "records"),
        "Records per partition: how evenly the application spreads its work.",
    )
    rows = [(one.partition, one.count, one.size, one.size / max(1, one.count)) for one in load.partitions]
    yield table(("partition", "records", "bytes", "bytes per record"), rows)

    yield "<h2>Sizes</h2>"
    last = max((at for at, count in enumerate(load.size_classes) if count), default=0)
    names = [size_class(at) for at in range(last + 1)]
    yield picture(
        lambda axes: _bars(axes, names, load.size_classes[: last + 1], "bytes of data", "records"),
        f"Payload sizes; the largest is {load.largest:,} bytes.",
    )

    yield "<h2>Clients</h2>"
    yield table(
        ("client id", "records", "share of the log in %"),
        [(client, count, 100 * count / load.count) for client, count in load.clients[:_SHOWN]],
    )
    rest = load.others + sum(count for _, count in load.clients[_SHOWN:])
    if rest:
        yield f"<p>{rest:,} records by other clients.</p>"
    if len(load.headers) > 1:
        yield "<h2>Headers</h2>"
        shares = [(header, count, 100 * count / load.count) for header, count in load.headers[:_SHOWN]]
        yield table(("header", "records", "share of the log in %"), shares)

    yield "<h2>Compression</h2>"
    ratio = load.sample / max(1, load.compressed)
    yield f"<p>zstd makes {load.compressed:,} bytes of {load.sample:,} bytes of records (1:{ratio:.1f}).</p>"
    if load.archived is not None and load.archived[1]:
        raw, kept = load.archived
        yield f"<p>In the archive {raw:,} bytes of records take {kept:,} bytes (1:{raw / kept:.1f}).</p>"

    if load.growth:
        yield "<h2>Growth</h2>"
        yield picture(
            lambda axes: _grow(axes, load.growth),
            "Bytes in front of each segment when it was begun. A record holds no time; segments do.",
        )


def contention_sections(report: ContentionReport) -> list[str]:
    """Parts of a page about refusals, as HTML."""
    refused = report.decided - report.appended
    parts = [
        "<h2>Contention</h2>",
        f"<p><strong>{report.decided:,} appends were decided, {refused:,} of them refused</strong> "
        f"({100 * refused / max(1, report.decided):.1f} %). Of the conflicts {report.true_conflicts:,} were true, "
        f"{report.false_conflicts:,} false (the lock table is coarser than the locks), {report.unknown_conflicts:,} of "
        f"unknown kind. The journal says that it lacks {report.missing:,} decisions.</p>",
    ]
    if report.moments:
        parts.append(picture(lambda axes: _over_time(axes, report.moments), "Decisions over time."))
    if report.refused:
        parts.append(table(("refused because of", "appends"), report.refused))
    if report.locks:
        heads = ("partition", "lock", "taken", "refused at it")
        parts += [
            "<h3>Locks</h3>",
            table(heads, [(lock.partition, lock.name, lock.taken, lock.refused) for lock in report.locks]),
        ]
    if any(size.decided for size in report.tables):
        parts += [
            "<h3>Size of the lock table</h3>",
            picture(
                lambda axes: _falsely(axes, report.tables),
                "What lock tables of other sizes (server.optimisticLockTableSize) would have refused although nothing "
                "conflicted, by replay of the newest decisions.",
            ),
            table(
                ("slots", "refused falsely", "of"),
                [(size.size, size.false, size.decided) for size in report.tables],
            ),
        ]
    if report.wait_us:
        rows = [(f"{100 * quantile:g} %", micros / 1000) for quantile, micros in report.wait_us]
        parts += ["<h3>Time from arrival to decision</h3>", table(("of the appends within", "ms"), rows)]
    return parts


def _over_time(axes: Any, moments: Sequence[Moment]) -> None:
    times = [datetime.fromtimestamp(one.at_us / 1e6, UTC) for one in moments]
    appended, refused = [one.appended for one in moments], [one.refused for one in moments]
    axes.stackplot(times, appended, refused, labels=("appended", "refused"), colors=("#3b6ea5", "#c44e52"), step="post")
    axes.legend(frameon=False, loc="upper left")
    axes.set_ylabel("appends")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(axis="x", rotation=20)


def _falsely(axes: Any, tables: Sequence[TableSize]) -> None:
    axes.plot([one.size for one in tables], [100 * one.false / max(1, one.decided) for one in tables], marker="o")
    axes.set_xscale("log")
    axes.set_xlabel("slots")
    axes.set_ylabel("refused falsely, %")
    axes.set_ylim(bottom=0)


def _bars(axes: Any, names: Sequence[str], heights: Sequence[int], x: str, y: str) -> None:
    axes.bar(range(len(names)), heights, color="#3b6ea5")
    step = max(1, len(names) // 24)
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=30 if max(map(len, names)) > 4 else 0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _grow(axes: Any, growth: Sequence[Growth]) -> None:
    for partition in sorted({one.partition for one in growth}):
        own = [one for one in growth if one.partition == partition]
        times = [datetime.fromtimestamp(one.at_ms / 1000, UTC) for one in own]
        axes.plot(times, [one.size for one in own], marker=".", drawstyle="steps-post", label=f"partition {partition}")
    axes.set_ylabel("bytes")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    if len({one.partition for one in growth}) <= 12:
        axes.legend(frameon=False)
    axes.tick_params(axis="x", rotation=20)
