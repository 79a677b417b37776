"""What a client does, as metrics of `prometheus_client`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from waltz_core.base.errors import ConfigError
from waltz_trio.client.shown import shown

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class PrometheusInstrument:
    """Counters and histograms, given to `open_client(..., instrument=...)`. Needs the extra `prometheus`.

    Several clients of one process share an instrument.

    Args:
        registry: where the metrics are registered; None = the process's own registry of `prometheus_client`.
        prefix: of their names.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, prefix: str = "waltz_client") -> None:
        try:
            from prometheus_client import REGISTRY, Counter, Histogram
        except ImportError as error:
            raise ConfigError("PrometheusInstrument needs the extra: pip install 'waltz-log[prometheus]'") from error
        registry = REGISTRY if registry is None else registry
        if not hasattr(registry, "register"):
            raise TypeError(f"expected a CollectorRegistry of prometheus_client, found {shown(registry)}")

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{prefix}_{name}", text, ("partition", *labels), registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            labels = ("partition", *labels)
            return Histogram(f"{prefix}_{name}_seconds", text, labels, buckets=_BUCKETS, registry=registry)

        self._committed = counter("committed", "Appends of this client that are in the log")
        self._failed = counter("failed", "Appends that did not commit", "reason")
        self._delivered = counter("delivered", "Transactions handed to feeds")
        self._applied = counter("applied", "Transactions applied by views")
        self._conflicts = counter("conflicts", "Submits that met a lock and were decided again")
        self._apply = seconds("apply", "One batch, applied and committed by a view")
        self._append = seconds("append", "From an append to its outcome: synced by a quorum and seen, or refused")
        self._submit = seconds("submit", "From a submit to its end", "outcome")

    def committed(self, partition: int, count: int) -> None:
        """As `Instrument`."""
        self._committed.labels(partition).inc(count)

    def failed(self, partition: int, reason: str) -> None:
        """As `Instrument`."""
        self._failed.labels(partition, reason).inc()

    def delivered(self, partition: int, count: int) -> None:
        """As `Instrument`."""
        self._delivered.labels(partition).inc(count)

    def applied(self, partition: int, count: int, seconds: float) -> None:
        """As `Instrument`."""
        self._applied.labels(partition).inc(count)
        self._apply.labels(partition).observe(seconds)

    def conflict(self, partition: int, blocking_id: int) -> None:
        """As `Instrument`."""
        self._conflicts.labels(partition).inc()

    def append_began(self, partition: int, submit: object | None) -> object:
        """As `TimedInstrument`."""
        return partition, time.perf_counter()

    def append_ended(self, append: object, transaction_id: int | None, reason: str) -> None:
        """As `TimedInstrument`."""
        match append:
            case (partition, float(began)):
                self._append.labels(partition).observe(time.perf_counter() - began)

    def submit_began(self, partition: int) -> object:
        """As `TimedInstrument`."""
        return partition, time.perf_counter()

    def submit_ended(
        self, submit: object, outcome: str, transaction_id: int | None, attempts: int, conflicts: int
    ) -> None:
        """As `TimedInstrument`."""
        match submit:
            case (partition, float(began)):
                self._submit.labels(partition, outcome).observe(time.perf_counter() - began)
