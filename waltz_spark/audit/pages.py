"""Pages that need nothing from outside: one look for everything that the pipeline shows."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.passed { color: #176b2c; } td.failed { color: #b00020; font-weight: 600; } td.unproven { color: #8a6100; }
td.detail { overflow-wrap: anywhere; font-size: 13px; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
figcaption { font-size: 13px; }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd; } th, td { border-color: #444; }
  td.passed { color: #7bd88f; } td.failed { color: #ff8a80; } td.unproven { color: #e6c35c; } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page around parts that are HTML already."""
    return (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style>\n"
        f"<h1>{html.escape(title)}</h1>\n" + "\n".join(parts) + "\n</html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers are right-aligned, with separators; everything else is text."""
    listed = list(rows)
    numeric = [bool(listed) and all(isinstance(row[at], int | float) for row in listed) for at in range(len(heads))]
    kinds = [" class=number" if is_number else "" for is_number in numeric]
    lines = [
        "<tr>" + "".join(f"<th{kind}>{html.escape(head)}" for kind, head in zip(kinds, heads, strict=True)) + "</tr>"
    ]
    lines += [
        "<tr>" + "".join(f"<td{kind}>{cell(value)}" for kind, value in zip(kinds, row, strict=True)) + "</tr>"
        for row in listed
    ]
    return "<table>" + "\n".join(lines) + "</table>"


def cell(value: object) -> str:
    """One value as HTML."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return html.escape(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def picture(draw: Callable[[Any], None], caption: str, *, height: float = 3.2) -> str:
    """What `draw` puts on matplotlib axes, as SVG within the page.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>"
