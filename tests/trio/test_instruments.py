"""Instruments of a client: a real scrape in Prometheus' format, spans and metrics in OpenTelemetry's own memory."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
import trio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

import waltz_trio as waltz
from waltz_testing import embedded_cluster

LOCK = [("account", 7)]


def decide(state: dict[str, int]) -> waltz.Append | None:
    return waltz.Append(b"x", write=LOCK)


def decline(state: dict[str, int]) -> None:
    return None


async def used(url: str, instrument: waltz.Instrument) -> None:
    """Three submits (two commit, one declines), one conflict, one append that a lock refuses."""
    view: waltz.DictView[Any] = waltz.DictView(lambda txn, state: None)
    async with (
        waltz.open_client(url, instrument=instrument) as client,
        client.materialize(view, [0]) as application,
    ):
        await application.submit(decide, partition=0, until="applied")
        await application.submit(decide, partition=0, until="applied")
        assert await application.submit(decline, partition=0) is None
        with pytest.raises(waltz.LockConflictError):
            await client.append(0, waltz.Append(b"late", write=LOCK), based_on=-1)


async def test_a_scrape_shows_what_a_client_did() -> None:
    registry = CollectorRegistry()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        async with embedded_cluster(partitions=1) as cluster:
            await used(cluster.url, waltz.PrometheusInstrument(registry))

        def scrape() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
                return str(answer.read().decode())

        text = await trio.to_thread.run_sync(scrape)
    finally:
        await trio.to_thread.run_sync(server.shutdown)
        server.server_close()
        thread.join()
    samples = {
        (sample.name, *sorted(label for name, label in sample.labels.items() if name != "partition")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }
    assert samples["waltz_client_committed_total",] == 2
    assert samples["waltz_client_failed_total", "lock"] == 1
    assert samples["waltz_client_applied_total",] == 2
    assert samples["waltz_client_append_seconds_count",] == 3
    assert samples["waltz_client_submit_seconds_count", "committed"] == 2
    assert samples["waltz_client_submit_seconds_count", "declined"] == 1
    assert samples["waltz_client_apply_seconds_count",] >= 1


async def test_spans_lead_from_the_caller_over_the_submit_to_the_synced_append() -> None:
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    async with embedded_cluster(partitions=1) as cluster:
        with tracers.get_tracer("test").start_as_current_span("caller"):
            await used(cluster.url, waltz.OpenTelemetryInstrument(tracers, meters))
    finished = spans.get_finished_spans()
    by_id = {span.context.span_id: span for span in finished}
    told = [
        (span.name, by_id[span.parent.span_id].name, dict(span.attributes or {}).get("waltz.outcome"))
        for span in finished
        if span.parent is not None
    ]
    assert told == [
        ("waltz.append", "waltz.submit", None),
        ("waltz.submit", "caller", "committed"),
        ("waltz.append", "waltz.submit", None),
        ("waltz.submit", "caller", "committed"),
        ("waltz.submit", "caller", "declined"),
        ("waltz.append", "caller", None),
    ]
    appends = [dict(span.attributes or {}) for span in finished if span.name == "waltz.append"]
    assert [each.get("waltz.transaction_id") for each in appends] == [0, 1, None]
    assert appends[2]["error.type"] == "lock"
    assert all(span.status.status_code is not StatusCode.ERROR for span in finished)
    data = reader.get_metrics_data()
    assert data is not None
    points: dict[str, int] = {
        metric.name: sum(getattr(point, "count", getattr(point, "value", 0)) for point in metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert points["waltz.client.committed"] == 2
    assert points["waltz.client.append.duration"] == 3
    assert points["waltz.client.submit.duration"] == 3
    meters.shutdown()
    tracers.shutdown()


async def test_spans_of_a_cancelled_submit_and_of_a_closed_client_end() -> None:
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    instrument = waltz.OpenTelemetryInstrument(tracers)
    view: waltz.DictView[Any] = waltz.DictView(lambda txn, state: None)
    async with (
        embedded_cluster(partitions=1) as cluster,
        waltz.open_client(cluster.url, instrument=instrument) as client,
        client.materialize(view, [0]) as application,
    ):
        with trio.CancelScope() as scope:
            scope.cancel()
            await application.submit(decide, partition=0)
    (span,) = [span for span in spans.get_finished_spans() if span.name == "waltz.submit"]
    assert dict(span.attributes or {})["waltz.outcome"] == "cancelled"
    assert span.status.status_code is StatusCode.ERROR
    tracers.shutdown()


async def test_what_is_refused_before_it_begins_is_no_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[object] = []
    tracers = TracerProvider()
    instrument = waltz.OpenTelemetryInstrument(tracers)
    begin = instrument.submit_began

    def submit_began(partition: int) -> object:
        began.append(begin(partition))
        return began[-1]

    monkeypatch.setattr(instrument, "submit_began", submit_began)
    view: waltz.DictView[Any] = waltz.DictView(lambda txn, state: None, keys=waltz.Keys(lambda txn: None))
    wrong: Any = 7
    async with (
        embedded_cluster(partitions=1) as cluster,
        waltz.open_client(cluster.url, instrument=instrument) as client,
        client.materialize(view, [0]) as application,
    ):
        with pytest.raises(TypeError):
            await application.submit(decide, partition=0, expects=wrong)
        with pytest.raises(TypeError):
            await application.submit_many(decide, [(), ()], partition=0, expects=[LOCK, wrong])
        with pytest.raises(ValueError, match="a key has 1 to 255 bytes"):
            await application.submit_many(decide, [(), ()], partition=0, keys=["a", ""])
        assert began == []
        await application.submit_many(decide, [(), ()], partition=0)
        assert len(began) == 2
    tracers.shutdown()
