"""The loads of `python -m benchmarks`: which command measures each, and what bar it has."""

from __future__ import annotations

import attrs


@attrs.frozen
class Load:
    """One command of `benchmarks`, which writes its figures by --json."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    curve: tuple[str, float] | None = None  # in which picture, and where on its axis
    seconds: int = 25  # that it takes on a quiet machine, roughly


_SHORT = ("--warm-up", "2", "--seconds", "4")


def _append(name: str, *arguments: str, **more: object) -> Load:
    return Load(name, "append", (*_SHORT, *arguments), **more)  # type: ignore[arg-type]


IN_FLIGHT, PARTITIONS, SIZE = "appends in flight", "partitions", "bytes of a payload"

LOADS = (
    _append("append", "--in-flight", "1000", curve=(IN_FLIGHT, 1000)),
    _append("append-1", "--in-flight", "1", curve=(IN_FLIGHT, 1)),
    _append("append-64", "--in-flight", "64", curve=(IN_FLIGHT, 64)),
    _append("append-4000", "--in-flight", "4000", curve=(IN_FLIGHT, 4000)),
    _append("append-python", "--in-flight", "1000", environment=(("WALTZ_SPEEDUPS", "0"),)),
    _append("append-batch", "--in-flight", "1000", "--batch", "250"),
    _append("append-locks", "--in-flight", "1000", "--locks", "1"),
    _append("append-clients", "--in-flight", "1000", "--clients", "4", "--partitions", "4"),
    _append("append-1KB", "--in-flight", "1000", "--size", "1000", curve=(SIZE, 1000)),
    _append("append-10KB", "--in-flight", "1000", "--size", "10000", curve=(SIZE, 10_000)),
    _append("append-1MB", "--in-flight", "16", "--size", "1000000", curve=(SIZE, 1_000_000)),
    _append("append-16-partitions", "--in-flight", "1024", "--partitions", "16", curve=(PARTITIONS, 16)),
    _append("append-128-partitions", "--in-flight", "1024", "--partitions", "128", curve=(PARTITIONS, 128), seconds=40),
    _append("open-loop", "--rate", "5000"),
    Load("overload", "overload", ("--seconds", "4"), seconds=40),
    Load("feed", "feed", ("--count", "100000", "--rounds", "1"), seconds=20),
    Load("readers", "readers", ("--readers", "40", "--count", "20000"), seconds=40),
    Load(
        "application",
        "client",
        ("--seconds", "2", "--count", "50000", "--calls", "500", "--views", "sqlite"),
        seconds=60,
    ),
    Load("starts", "starts", ("--segments", "1000", "--partitions", "100", "--clients", "40"), seconds=90),
)
