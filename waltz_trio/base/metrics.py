"""Metrics of one process: gauges, counters, meters, timers; as the original's JSON and as text for scrapers.

The machines count; this registry reads their counters on request, and keeps the rates.
Each process (each node of an embedded cluster) has its own registry: nothing is global.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

import trio

from waltz_trio.base.exposition import Families, Form, Samples

T = TypeVar("T")

Value: TypeAlias = object
"""What a gauge may show: anything JSON can."""

_TICK = 5.0  # seconds between updates of the moving rates
_MINUTES = (1, 5, 15)
_SAMPLE = 1028  # values kept by a timer: 99.9 % confidence, 5 % error, as in the original's library
_DECAY = 0.015  # per second: a sample that leans to the last five minutes
_TEXT_AGE = 1.0  # seconds for which later requests get the same text
_LARGE = 1_000  # metrics; making the text of more takes a thread, not the time of the event loop
_RESCALE = 3600.0  # seconds after which weights are scaled down, before they overflow
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds, of histograms
_QUANTILES = (("p50", 0.5), ("p75", 0.75), ("p95", 0.95), ("p98", 0.98), ("p99", 0.99), ("p999", 0.999))


class Meter:
    """Events and their rates: mean, and exponentially weighted over 1, 5 and 15 minutes."""

    __slots__ = ("_clock", "_rates", "_started", "_ticked", "_ticked_count", "count")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = self._ticked = clock()
        self._rates: list[float] | None = None
        self._ticked_count = 0
        self.count = 0

    def mark(self, count: int = 1) -> None:
        """Count events."""
        self._tick()
        self.count += count

    def mark_to(self, total: int) -> None:
        """Take over a machine's own counter, which never falls (a smaller one is a restart)."""
        self.mark(total - self.count if total >= self.count else total)

    def rates(self) -> dict[str, float]:
        """`mean_rate`, `m1_rate`, `m5_rate`, `m15_rate`, per second."""
        self._tick()
        lasted = self._clock() - self._started
        moving = self._rates or [0.0] * len(_MINUTES)
        return {
            "mean_rate": self.count / lasted if lasted > 0 else 0.0,
            **{f"m{minutes}_rate": rate for minutes, rate in zip(_MINUTES, moving, strict=True)},
        }

    def _tick(self) -> None:
        due = int((self._clock() - self._ticked) / _TICK)
        if due <= 0:
            return
        self._ticked += due * _TICK
        instant = (self.count - self._ticked_count) / _TICK
        self._ticked_count = self.count
        if self._rates is None:
            self._rates = [instant] * len(_MINUTES)
            due -= 1
            instant = 0.0
        for index, minutes in enumerate(_MINUTES):
            keep = math.exp(-_TICK / 60 / minutes)
            rate = self._rates[index]
            if due > 0:
                rate = (instant + (rate - instant) * keep) * keep ** (due - 1)
            self._rates[index] = rate


class Timer:
    """Durations in seconds: a rate, percentiles of an exponentially decaying sample, an exact histogram."""

    __slots__ = (
        "_buckets",
        "_clock",
        "_landmark",
        "_milliseconds",
        "_random",
        "_sample",
        "_totals",
        "meter",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._landmark = clock()
        self._random = random.Random(0)
        self._sample: list[tuple[float, float, float]] = []  # heap of (priority, weight, seconds)
        self._totals: dict[int, int] = {}  # milliseconds → calls taken over so far
        self._milliseconds = 0  # of all calls together
        self._buckets = [0] * (len(_BOUNDS) + 1)  # calls by the first bound that they do not exceed
        self.meter = Meter(clock)

    @property
    def sum(self) -> float:
        """Seconds that all calls took together; it never falls."""
        return self._milliseconds / 1000

    def buckets(self) -> dict[float, int]:
        """How many calls took at most so many seconds, by upper bound, the last of which is infinite."""
        return dict(zip((*_BOUNDS, math.inf), itertools.accumulate(self._buckets), strict=True))

    def _note(self, seconds: float, count: int) -> None:
        self._buckets[bisect_left(_BOUNDS, seconds)] += count
        self.meter.mark(count)
        now = self._clock()
        if now - self._landmark > _RESCALE:
            self._rescale(now)
        weight = math.exp(_DECAY * (now - self._landmark)) * count
        entry = (weight / (1.0 - self._random.random()), weight, seconds)
        if len(self._sample) < _SAMPLE:
            heapq.heappush(self._sample, entry)
        else:
            heapq.heappushpop(self._sample, entry)

    def update_to(self, totals: Iterable[tuple[int, int]]) -> None:
        """Take over a machine's own counts of calls by milliseconds, which never fall (a smaller one is a restart)."""
        for milliseconds, total in totals:
            known = self._totals.get(milliseconds, 0)
            if total != known:
                count = total - known if total > known else total
                self._milliseconds += milliseconds * count
                self._note(milliseconds / 1000, count)
                self._totals[milliseconds] = total

    def snapshot(self) -> dict[str, float]:
        """max, mean, min, stddev and percentiles, in seconds; zeros where nothing was noted."""
        weights: dict[float, float] = {}  # most samples are of a few values: milliseconds
        for _, weight, seconds in self._sample:
            weights[seconds] = weights.get(seconds, 0.0) + weight
        if not weights:
            return dict.fromkeys(("max", "mean", "min", "stddev", *(name for name, _ in _QUANTILES)), 0.0)
        ranked = sorted(weights.items())
        passed = list(itertools.accumulate(weight for _, weight in ranked))
        total, last = passed[-1], len(ranked) - 1
        mean = sum(value * weight for value, weight in ranked) / total
        variance = sum(weight * (value - mean) ** 2 for value, weight in ranked) / total
        figures = {"max": ranked[-1][0], "mean": mean, "min": ranked[0][0], "stddev": math.sqrt(variance)}
        for name, quantile in _QUANTILES:
            figures[name] = ranked[min(bisect_left(passed, quantile * total), last)][0]
        return figures

    def _rescale(self, now: float) -> None:
        factor = math.exp(-_DECAY * (now - self._landmark))
        self._landmark = now
        self._sample = [(priority * factor, weight * factor, value) for priority, weight, value in self._sample]
        heapq.heapify(self._sample)


class Counter:
    """A number that only grows."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def set(self, count: int) -> None:
        """Take over a machine's own counter."""
        self.count = count


class Registry:
    """The metrics of one process by full name (`group.name`).

    `clock` gives seconds (Trio's). Before each reading, a function given to `on_read` runs in the thread of the
    machines and may look at them; then one given to `on_absorb` moves what was seen into meters, in whichever thread
    makes the text. The asynchronous readings share what is younger than a second, and never overlap.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._gauges: dict[str, Callable[[], Value]] = {}
        self._labels: dict[str, str] = {}  # gauges that show a figure for each of several things → what these are
        self._counters: dict[str, Counter] = {}
        self._meters: dict[str, Meter] = {}
        self._timers: dict[str, Timer] = {}
        self._refreshers: list[Callable[[], None]] = []
        self._absorbers: list[Callable[[], None]] = []
        self._texts: dict[str, tuple[float, str]] = {}
        self.expected = 0  # metrics that there will be once the machines' figures are absorbed
        self._at: float | None = None  # while a reading is made, which may be where the clock cannot be asked
        self._lock = trio.Lock()

    def _time(self) -> float:
        return self.clock() if self._at is None else self._at

    def gauge(self, name: str, read: Callable[[], Value], *, label: str = "") -> None:
        """Register a gauge; the first one of a name stays.

        Args:
            name: in full.
            read: gives what it shows.
            label: where that is an object, the name of the Prometheus label that its keys become.
        """
        self._gauges.setdefault(name, read)
        if label:
            self._labels[name] = label

    def counter(self, name: str) -> Counter:
        """The counter of a name, made when new."""
        return self._counters.setdefault(name, Counter())

    def meter(self, name: str) -> Meter:
        """The meter of a name, made when new."""
        meter = self._meters.get(name)
        if meter is None:
            meter = self._meters[name] = Meter(self._time)
        return meter

    def timer(self, name: str) -> Timer:
        """The timer of a name, made when new."""
        timer = self._timers.get(name)
        if timer is None:
            timer = self._timers[name] = Timer(self._time)
        return timer

    def on_read(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` before every reading, in the thread of the machines."""
        self._refreshers.append(refresh)

    def on_absorb(self, absorb: Callable[[], None]) -> None:
        """Call `absorb` behind that, in any thread; nothing else touches the registry meanwhile."""
        self._absorbers.append(absorb)

    def _look(self) -> None:
        for refresh in self._refreshers:
            refresh()

    def _absorb(self) -> None:
        for absorb in self._absorbers:
            absorb()

    def remove(self, prefix: str) -> None:
        """Forget every metric whose name begins with `prefix` (a partition that left)."""
        for table in (self._gauges, self._labels, self._counters, self._meters, self._timers):
            gone = [name for name in table if name.startswith(prefix)]
            for name in gone:
                del table[name]

    # ---- readings --------------------------------------------------------------------------------

    async def keep_up(self) -> None:
        """`refresh`, to be called now and then, so that rates move unread."""
        await self.reading(lambda: None)

    async def reading(self, make: Callable[[], T]) -> T:
        """Refresh, then `make` something of it; in a thread where there is much."""
        async with self._lock:
            self._look()

            def work() -> T:
                self._absorb()
                return make()

            size = max(self.expected, len(self._gauges) + len(self._meters) + len(self._timers) + len(self._counters))
            self._at = self.clock()
            try:
                return work() if size < _LARGE else await trio.to_thread.run_sync(work)
            finally:
                self._at = None

    async def text(self, kind: str, make: Callable[[], str]) -> str:
        """The text of a kind, made by `make` unless there is a recent one."""
        made = self._texts.get(kind)
        if made is None or self.clock() - made[0] >= _TEXT_AGE:
            # Whoever waited for the lock behind another reader of the same kind takes what that one got.
            made = self._texts[kind] = await self.reading(lambda: self._recent(kind) or (self._time(), make()))
        return made[1]

    def _recent(self, kind: str) -> tuple[float, str] | None:
        found = self._texts.get(kind)
        return found if found is not None and self._time() - found[0] < _TEXT_AGE else None

    def read(self) -> dict[str, object]:
        """The original's `/metrics` object, of what was refreshed last."""
        return {
            "version": "4.0.0",
            "gauges": {name: _gauge(read) for name, read in sorted(self._gauges.items())},
            "counters": {name: {"count": counter.count} for name, counter in sorted(self._counters.items())},
            "histograms": {},
            "meters": {name: _meter(meter) for name, meter in sorted(self._meters.items())},
            "timers": {name: _timer(timer) for name, timer in sorted(self._timers.items())},
        }

    def json(self, *, pretty: bool = False) -> str:
        """`read` as text."""
        tables = self.read()
        if pretty:
            return json.dumps(tables, indent=2, default=str)
        return "{" + ", ".join(f'"{name}": {_object(table)}' for name, table in tables.items()) + "}"

    def prometheus(self, form: Form = Form.PROMETHEUS) -> str:
        """Text for a scraper, of what was refreshed last."""
        families = Families()
        self.fill(families)
        return families.text(form)

    def fill(self, samples: Samples) -> None:
        """Hand over every metric, of what was refreshed last."""
        for name, read in self._gauges.items():
            shown = _gauge(read).get("value")
            if name in self._labels and isinstance(shown, Mapping):
                for key, each in shown.items():
                    if (value := _number(each)) is not None:  # what is not known yet has no sample
                        samples.gauge(name, value, {self._labels[name]: key})
            elif (value := _number(shown)) is not None:
                samples.gauge(name, value)
        for name, counter in self._counters.items():
            samples.counter(name, counter.count)
        for name, meter in self._meters.items():
            samples.counter(name, meter.count)
        for name, timer in self._timers.items():
            snapshot = timer.snapshot()
            quantiles = {quantile: snapshot[key] for key, quantile in _QUANTILES}
            samples.summary(name, quantiles, timer.sum, timer.meter.count)
            samples.histogram(name, timer.buckets(), timer.sum)

    def graphite(self, prefix: str, at: int) -> Iterable[str]:
        """Lines `prefix.name[.attribute] value epochSeconds`; durations in milliseconds, as the original's."""
        found = self.read()
        for kind in ("gauges", "counters", "meters", "timers"):
            table = found[kind]
            assert isinstance(table, Mapping)
            for name, attributes in table.items():
                for attribute, value in attributes.items():
                    number = _number(value)
                    if number is None:
                        continue
                    if kind == "timers" and attribute != "count" and not attribute.endswith("_rate"):
                        number *= 1000
                    tail = "" if kind == "gauges" else f".{attribute}"
                    text = f"{number:.2f}" if isinstance(number, float) else str(number)
                    yield re.sub(r"\s+", "-", f"{prefix}.{name}{tail}") + f" {text} {at}"


def _object(table: object) -> str:
    """JSON, entry by entry: the encoder lets no other thread run before it is done with what it was given."""
    if not isinstance(table, dict):
        return json.dumps(table, default=str)
    return "{" + ", ".join(f"{json.dumps(key)}: {json.dumps(value, default=str)}" for key, value in table.items()) + "}"


def _gauge(read: Callable[[], Value]) -> dict[str, object]:
    try:
        return {"value": read()}
    except Exception as error:  # a broken gauge must not hide the others; the original shows it the same way
        return {"error": str(error)}


def _meter(meter: Meter) -> dict[str, object]:
    return {"count": meter.count, **meter.rates(), "units": "events/second"}


def _timer(timer: Timer) -> dict[str, object]:
    return {
        "count": timer.meter.count,
        **timer.snapshot(),
        **timer.meter.rates(),
        "duration_units": "seconds",
        "rate_units": "calls/second",
    }


def _number(value: object) -> int | float | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    return None
