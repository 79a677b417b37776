"""Results of `python -m benchmarks`: flat figures, tables, comparisons of two files, pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.loads import IN_FLIGHT, LOADS, PARTITIONS, SIZE

Figures = Mapping[str, float]
Results = Mapping[str, Sequence[Figures]]
"""Load → its figures in each round."""

_LEFT_OUT = ("options", "buckets")  # of no use for a comparison
_PANELS = (  # curve, figure, its name, scale
    (IN_FLIGHT, "tx_per_s", "appends a second", 1.0),
    (IN_FLIGHT, "p50_ms", "ms at the median", 1.0),
    (PARTITIONS, "tx_per_s", "appends a second", 1.0),
    (SIZE, "tx_per_s", "MB a second", 1e-6),
)


def flat(figures: object, prefix: str = "") -> dict[str, float]:
    """The numbers in what a benchmark wrote, by their way down to them; parts of a list go by their `kind`."""
    if isinstance(figures, bool) or figures is None or isinstance(figures, str):
        return {}
    if isinstance(figures, (int, float)):
        return {prefix: float(figures)}
    if isinstance(figures, Mapping):
        parts: Iterator[tuple[str, object]] = ((str(name), part) for name, part in figures.items())
    else:
        assert isinstance(figures, list), f"{prefix}: expected numbers, found {type(figures).__name__}"
        parts = ((str(part.get("kind", number)), part) for number, part in enumerate(figures))
    found: dict[str, float] = {}
    for name, part in parts:
        if name not in _LEFT_OUT:
            found |= flat(part, f"{prefix}.{name}" if prefix else name)
    return found


def medians(rounds: Sequence[Figures]) -> dict[str, float]:
    """Of each figure that every round has."""
    return {name: median(each[name] for each in rounds) for name in rounds[0] if all(name in each for each in rounds)}


def compared(before: Results, after: Results) -> Iterator[tuple[str, str, float, float, float, bool]]:
    """Load, figure, medians before and after, their ratio, and whether it tells anything.

    It tells something if each side was measured at least twice and no round of the one lies among those of the other.
    """
    for load in before:
        if load not in after:
            continue
        old, new = medians(before[load]), medians(after[load])
        for name in old:
            if name not in new or not old[name]:
                continue
            olds, news = [each[name] for each in before[load]], [each[name] for each in after[load]]
            apart = max(olds) < min(news) or max(news) < min(olds)
            yield load, name, old[name], new[name], new[name] / old[name], apart and min(len(olds), len(news)) > 1


def number(value: float) -> str:
    """For people."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def plot(path: Path, results: Results, title: str) -> None:
    """One panel for each curve; every round is a dot, the medians are the line.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "waltz"  # the same figures give the same file
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for axes, (curve, name, text, scale) in zip(grid.flat, _PANELS, strict=True):
        lines = sorted(_points(results, curve, name, scale))
        axes.plot([at for at, _ in lines], [median(values) for _, values in lines], marker="o", markersize=3)
        for at, values in lines:
            axes.plot([at] * len(values), values, linestyle="", marker=".", color="grey", alpha=0.6)
            text_at = (at, median(values))
            axes.annotate(number(median(values)), text_at, textcoords="offset points", xytext=(4, 6))
        axes.set(xlabel=curve, ylabel=text, xscale="log")
        axes.set_xticks([at for at, _ in lines], [f"{at:,.0f}" for at, _ in lines])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.margins(x=0.1, y=0.15)
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _points(results: Results, curve: str, name: str, scale: float) -> Iterator[tuple[float, list[float]]]:
    for load in LOADS:
        at = load.curve[1] if load.curve is not None and load.curve[0] == curve else _shared(load.name, curve)
        if at is None or load.name not in results:
            continue
        factor = scale * at if curve == SIZE else scale
        yield at, [each[name] * factor for each in results[load.name] if name in each]


def _shared(load: str, curve: str) -> float | None:
    """Where the first load stands in the curves of the others."""
    return {PARTITIONS: 1.0, SIZE: 200.0}.get(curve) if load == LOADS[0].name else None


def machine() -> dict[str, Any]:
    """What these figures were made on, without names."""
    import os
    import platform

    cores = len(os.sched_getaffinity(0))
    return {
        "cores": cores,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "arch": platform.machine(),
    }
