"""A run of hours as a picture: one panel for each figure, one line for each process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.soak.samples import CLUSTER, Sample

_PANELS = (
    ("memory_mib", "memory, MiB", False),
    ("descriptors", "descriptors", False),
    ("threads", "threads", False),
    ("disk_mib", "disk of storage nodes, MiB", False),
    ("p50_ms", "latency of commits, ms: median", True),
    ("cpu_us_per_commit", "CPU for each commit, µs, all processes", False),
)
_DOTS = 240  # of each line: a picture shows no more


def plot(path: Path, samples: Sequence[Sample], title: str) -> None:
    """Draw it; a line is broken where a process was started again, and stands grey in the background."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "waltz"  # the same samples give the same file
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot

    width = max((one.at for one in samples), default=1.0) / _DOTS
    figure, grid = pyplot.subplots(3, 2, figsize=(12, 10), layout="constrained", sharex=True)
    names = sorted({one.name for one in samples} - {CLUSTER})
    for axes, (key, text, logarithmic) in zip(grid.flat, _PANELS, strict=True):
        for name in [CLUSTER] if key in ("p50_ms", "cpu_us_per_commit") else names:
            times, values = _line(name, key, samples, width)
            if times:
                axes.plot(times, values, linewidth=0.8, label=name)
        for at in sorted({one.at - one.age for one in samples if one.life > 1}):
            axes.axvline(at / 60, color="grey", alpha=0.15, linewidth=0.5)
        axes.set_title(text, fontsize="medium")
        axes.grid(alpha=0.3)
        if logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xlabel("minutes")
    grid[0][0].legend(fontsize="small", ncols=2)
    figure.suptitle(title)
    figure.savefig(path, metadata={"Date": None})


def _line(name: str, key: str, samples: Sequence[Sample], width: float) -> tuple[list[float], list[float]]:
    """Times in minutes and values, a gap between two lives."""
    dots: dict[tuple[int, int], list[float]] = defaultdict(list)
    for one in samples:
        if one.name == name and key in one.values:
            dots[one.life, int(one.at / width)].append(one.values[key])
    times: list[float] = []
    values: list[float] = []
    life = 0
    for (number, at), found in sorted(dots.items(), key=lambda item: (item[0][1], item[0][0])):
        if life not in (0, number):
            times.append(at * width / 60)
            values.append(float("nan"))
        life = number
        times.append((at + 0.5) * width / 60)
        values.append(sum(found) / len(found))
    return times, values
