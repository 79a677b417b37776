"""What a client does, as spans and metrics of OpenTelemetry."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from waltz_core.base.errors import ConfigError
from waltz_trio.client.shown import shown

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

_NAME = "waltz"


class _Timing:
    """An append or a submit that has begun."""

    __slots__ = ("attributes", "began", "span")

    def __init__(self, span: Span, partition: int) -> None:
        self.span = span
        self.attributes: dict[str, str | int] = {"waltz.partition": partition}
        self.began = time.perf_counter()

    def end(self) -> float:
        """End the span now; how long it took, in seconds."""
        self.span.end()
        return time.perf_counter() - self.began


class OpenTelemetryInstrument:
    """Spans and metrics, given to `open_client(..., instrument=...)`. Needs the extra `otel`.

    A submit is a span `waltz.submit`, child of the caller's span. Each append is a span `waltz.append`, a child of its
    submit or of the caller's span. It ends when a quorum has synced it and it was seen in the feed, or it was refused.

    Args:
        tracer_provider: where spans go; None = the process's own.
        meter_provider: where metrics go; None = the process's own.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError as error:
            raise ConfigError("OpenTelemetryInstrument needs the extra: pip install 'waltz-log[otel]'") from error
        for provider, method in ((tracer_provider, "get_tracer"), (meter_provider, "get_meter")):
            if provider is not None and not hasattr(provider, method):
                raise TypeError(f"expected a provider of OpenTelemetry with {method}, found {shown(provider)}")
        self._trace = trace
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._committed = meter.create_counter("waltz.client.committed", "{append}", "Appends that are in the log")
        self._failed = meter.create_counter("waltz.client.failed", "{append}", "Appends that did not commit")
        self._delivered = meter.create_counter("waltz.client.delivered", "{transaction}", "Handed to feeds")
        self._applied = meter.create_counter("waltz.client.applied", "{transaction}", "Applied by views")
        self._conflicts = meter.create_counter("waltz.client.conflicts", "{conflict}", "Submits that met a lock")
        self._apply = meter.create_histogram("waltz.client.apply.duration", "s", "One batch of a view")
        self._append = meter.create_histogram("waltz.client.append.duration", "s", "From an append to its outcome")
        self._submit = meter.create_histogram("waltz.client.submit.duration", "s", "From a submit to its end")

    def committed(self, partition: int, count: int) -> None:
        """As `Instrument`."""
        self._committed.add(count, {"waltz.partition": partition})

    def failed(self, partition: int, reason: str) -> None:
        """As `Instrument`."""
        self._failed.add(1, {"waltz.partition": partition, "error.type": reason})

    def delivered(self, partition: int, count: int) -> None:
        """As `Instrument`."""
        self._delivered.add(count, {"waltz.partition": partition})

    def applied(self, partition: int, count: int, seconds: float) -> None:
        """As `Instrument`."""
        self._applied.add(count, {"waltz.partition": partition})
        self._apply.record(seconds, {"waltz.partition": partition})

    def conflict(self, partition: int, blocking_id: int) -> None:
        """As `Instrument`."""
        self._conflicts.add(1, {"waltz.partition": partition})

    def append_began(self, partition: int, submit: object | None) -> object:
        """As `TimedInstrument`."""
        context = self._trace.set_span_in_context(submit.span) if isinstance(submit, _Timing) else None
        attributes = {"waltz.partition": partition}
        span = self._tracer.start_span("waltz.append", context, self._trace.SpanKind.CLIENT, attributes)
        return _Timing(span, partition)

    def append_ended(self, append: object, transaction_id: int | None, reason: str) -> None:
        """As `TimedInstrument`."""
        assert isinstance(append, _Timing)
        if transaction_id is not None:
            append.span.set_attribute("waltz.transaction_id", transaction_id)
        else:
            append.attributes["error.type"] = reason
            append.span.set_attribute("error.type", reason)
            if reason != "lock":  # a lock that was taken is how Waltz works, not an error
                append.span.set_status(self._trace.StatusCode.ERROR, reason)
        self._append.record(append.end(), append.attributes)

    def submit_began(self, partition: int) -> object:
        """As `TimedInstrument`."""
        return _Timing(self._tracer.start_span("waltz.submit", attributes={"waltz.partition": partition}), partition)

    def submit_ended(
        self, submit: object, outcome: str, transaction_id: int | None, attempts: int, conflicts: int
    ) -> None:
        """As `TimedInstrument`."""
        assert isinstance(submit, _Timing)
        span = submit.span
        span.set_attributes({"waltz.outcome": outcome, "waltz.attempts": attempts, "waltz.conflicts": conflicts})
        if transaction_id is not None:
            span.set_attribute("waltz.transaction_id", transaction_id)
        if outcome not in ("committed", "declined"):
            span.set_status(self._trace.StatusCode.ERROR, outcome)
        submit.attributes["waltz.outcome"] = outcome
        self._submit.record(submit.end(), submit.attributes)
