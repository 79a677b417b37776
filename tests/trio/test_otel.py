"""What servers and storage nodes send for OpenTelemetry, taken by a receiver and read as the official messages."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import h11
import pytest
import trio
import trio.testing
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

import waltz_trio as waltz
from waltz_core.base.errors import ConfigError
from waltz_core.base.tracing import Traced
from waltz_trio.base.metrics import Registry
from waltz_trio.config.config import Config
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster
from waltz_trio.node.otel import OtelExporter, OtelSettings, otel_settings
from waltz_trio.node.server_settings import server_settings
from waltz_trio.node.storage_settings import storage_settings

PATIENCE = 60.0
_PARSED: dict[str, Callable[[], Any]] = {
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}
_IDS = re.compile(r'"(traceId|spanId|parentSpanId)":"([0-9a-f]+)"')


class Receiver:
    """An OTLP receiver: what it does not know as a field of the official messages is an error."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.refusing = False
        self.statuses: dict[str, int] = {}  # of paths that are not taken
        self.refused = 0
        self._news = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        connection, body, path = h11.Connection(h11.SERVER), b"", ""
        async with stream:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.Request):
                    path = event.target.decode()
                    assert dict(event.headers)[b"content-type"] == b"application/json"
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    break
            status = 503 if self.refusing else self.statuses.get(path, 200)
            if status != 200:
                self.refused += 1
            else:
                self._take(path, body.decode())
            self._news.set()
            self._news = trio.Event()
            answer = h11.Response(status_code=status, headers=[("Content-Length", "2")])
            for part in (answer, h11.Data(data=b"{}"), h11.EndOfMessage()):
                await stream.send_all(connection.send(part) or b"")

    def _take(self, path: str, text: str) -> None:
        # OTLP writes ids in hexadecimal digits, where JSON of protobuf otherwise has base64.
        text = _IDS.sub(lambda m: f'"{m[1]}":"{base64.b64encode(bytes.fromhex(m[2])).decode()}"', text)
        self.requests.append(ParseDict(json.loads(text), _PARSED[path]()))

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE):
            while not condition():
                await self._news.wait()

    def spans(self) -> list[tuple[str, Span]]:
        """With the instance that sent each."""
        return [
            (_attribute(whole.resource.attributes, "service.instance.id"), span)
            for request in self._of(ExportTraceServiceRequest)
            for whole in request.resource_spans
            for scope in whole.scope_spans
            for span in scope.spans
        ]

    def lines(self) -> list[str]:
        return [
            record.body.string_value
            for request in self._of(ExportLogsServiceRequest)
            for whole in request.resource_logs
            for scope in whole.scope_logs
            for record in scope.log_records
        ]

    def metrics(self) -> dict[tuple[str, str], Any]:
        """The newest of each service and name."""
        return {
            (_attribute(whole.resource.attributes, "service.name"), metric.name): metric
            for request in self._of(ExportMetricsServiceRequest)
            for whole in request.resource_metrics
            for scope in whole.scope_metrics
            for metric in scope.metrics
        }

    def _of(self, kind: type[Any]) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]


def _attribute(attributes: Any, key: str) -> str:
    (value,) = (each.value for each in attributes if each.key == key)
    return str(value.string_value or value.int_value)


@asynccontextmanager
async def observed(**settings: object) -> AsyncIterator[tuple[Receiver, EmbeddedCluster]]:
    """A cluster that sends all it has, several times a second."""
    receiver = Receiver()
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, receiver.serve, 0, host="127.0.0.1"))
        keys = {
            "otel.endpoint": f"http://127.0.0.1:{listener.socket.getsockname()[1]}",
            "otel.interval": 100,
            **settings,
        }
        async with embedded_cluster(partitions=1, settings=keys) as cluster:
            yield receiver, cluster
        nursery.cancel_scope.cancel()


async def append(cluster: EmbeddedCluster, count: int) -> None:
    async with waltz.open_client(cluster.url) as client:
        for number in range(count):
            await client.append(0, waltz.Append(b"payment %d" % number))


async def test_a_traced_transaction_is_one_trace_from_append_to_sync_on_every_node() -> None:
    async with observed(**{"otel.traceEvery": 1}) as (receiver, cluster):
        await append(cluster, 3)

        def whole() -> dict[bytes, list[tuple[str, Span]]]:
            traces: dict[bytes, list[tuple[str, Span]]] = {}
            for instance, span in receiver.spans():
                traces.setdefault(span.trace_id, []).append((instance, span))
            return {key: spans for key, spans in traces.items() if len(spans) == 6}

        await receiver.until(lambda: len(whole()) == 3)
        for spans in whole().values():
            names = sorted(span.name for _, span in spans)
            assert names == ["waltz.append", "waltz.queue", "waltz.replicate", *["waltz.sync"] * 3]
            assert len({instance for instance, span in spans if span.name == "waltz.sync"}) == 3
            (root,) = (span for _, span in spans if span.name == "waltz.append")
            assert not root.parent_span_id
            assert {span.parent_span_id for _, span in spans if span is not root} == {root.span_id}
            assert len({span.span_id for _, span in spans}) == 6
            assert len({_attribute(span.attributes, "waltz.transaction_id") for _, span in spans}) == 1
            # Clocks of whole milliseconds, one for each node.
            assert all(root.start_time_unix_nano <= span.start_time_unix_nano + 2_000_000 for _, span in spans)
            assert all(span.start_time_unix_nano <= span.end_time_unix_nano for _, span in spans)


async def test_one_transaction_in_so_many_is_traced() -> None:
    async with observed(**{"otel.traceEvery": 4}) as (receiver, cluster):
        await append(cluster, 9)
        await receiver.until(lambda: {_transaction(span) for _, span in receiver.spans()} >= {"8"})
        assert {_transaction(span) for _, span in receiver.spans()} == {"0", "4", "8"}


async def test_metrics_are_those_of_the_prometheus_text_and_histograms_are_exact() -> None:
    async with observed(**{"otel.traceEvery": 0}) as (receiver, cluster):
        await append(cluster, 5)

        def committed() -> Any:
            metric = receiver.metrics().get(("waltz-server", "waltz_server_successful_append"))
            return metric is not None and metric.sum.data_points[0].as_int

        await receiver.until(lambda: committed() == 5)
        (name,) = (key for key in receiver.metrics() if key[1] == "waltz_server_response_latency")
        await receiver.until(lambda: receiver.metrics()[name].histogram.data_points[0].count == 5)
        metrics = receiver.metrics()
        (point,) = metrics[name].histogram.data_points
        assert sum(point.bucket_counts) == 5
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        assert metrics["waltz-server", "waltz_server_successful_append"].sum.is_monotonic
        lags = metrics["waltz-server", "waltz_server_replica_lag"].gauge.data_points
        assert len({_attribute(lag.attributes, "replica") for lag in lags}) == 3
        assert ("waltz-storage", "waltz_storage_sync_count") in metrics
        assert receiver.spans() == []


async def test_log_lines_are_sent_unless_they_are_not_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "waltz")
    async with observed() as (receiver, _):
        await receiver.until(lambda: any("store session 0 open" in line for line in receiver.lines()))
    async with observed(**{"otel.logs": False}) as (receiver, _):
        await receiver.until(lambda: len(receiver.metrics()) > 20)
    assert receiver.lines() == []  # what is left at the end of a process is sent too


async def test_a_receiver_that_is_away_is_named_once_and_gets_what_was_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "waltz")
    async with observed(**{"otel.traceEvery": 1}) as (receiver, cluster):
        receiver.refusing = True
        told = "does not take what is sent: /v1/metrics is answered with status 503"
        await receiver.until(lambda: receiver.refused >= 12)  # three rounds of each process
        await append(cluster, 2)
        receiver.requests.clear()
        receiver.refusing = False
        await receiver.until(lambda: len({span.trace_id for _, span in receiver.spans()}) == 2)
        await receiver.until(lambda: any("answers again" in line for line in receiver.lines()))
    assert sum(told in record.getMessage() for record in caplog.records) == 4


def exporter_to(host: str, port: int, told: list[str]) -> OtelExporter:
    """One that sends when a test says so."""
    settings = OtelSettings(host, port, "", 100.0, 1, True)
    registry = Registry(trio.current_time)
    return OtelExporter(settings, "x", lambda: "here", registry, "waltz.x", lambda level, text: told.append(text))


@pytest.mark.parametrize("status", [302, 503])
async def test_what_is_not_taken_of_one_signal_is_kept_and_sent_once(nursery: trio.Nursery, status: int) -> None:
    told: list[str] = []
    receiver = Receiver()
    (listener,) = await nursery.start(partial(trio.serve_tcp, receiver.serve, 0, host="127.0.0.1"))
    exporter = exporter_to("127.0.0.1", listener.socket.getsockname()[1], told)
    exporter.trace(Traced(b"key", 0, 1, 7, 1, (("append", 1, 2),)))
    receiver.statuses["/v1/traces"] = status
    await exporter.send()
    await exporter.send()
    assert len(told) == 1
    assert told[0].endswith(f"does not take what is sent: /v1/traces is answered with status {status}")

    receiver.statuses.clear()
    for _ in range(3):
        await exporter.send()
    assert [_transaction(span) for _, span in receiver.spans()] == ["7"]
    assert len(told) == 2
    nursery.cancel_scope.cancel()


async def test_a_receiver_for_traces_alone_gets_them(nursery: trio.Nursery) -> None:
    told: list[str] = []
    receiver = Receiver()
    (listener,) = await nursery.start(partial(trio.serve_tcp, receiver.serve, 0, host="127.0.0.1"))
    exporter = exporter_to("127.0.0.1", listener.socket.getsockname()[1], told)
    receiver.statuses = {"/v1/metrics": 404, "/v1/logs": 404}
    for number in range(2):
        exporter.trace(Traced(b"key", 0, 1, number, 1, (("append", 1, 2),)))
        await exporter.send()
    assert [_transaction(span) for _, span in receiver.spans()] == ["0", "1"]
    assert [text.rpartition(": ")[2] for text in told] == ["/v1/metrics is answered with status 404"]
    nursery.cancel_scope.cancel()


async def test_a_receiver_that_does_not_answer_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    class Silent(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *arguments: object) -> Any:
            await trio.sleep_forever()

        async def getnameinfo(self, *arguments: object) -> Any:
            await trio.sleep_forever()

    trio.socket.set_custom_hostname_resolver(Silent())
    told: list[str] = []
    exporter = exporter_to("collector.example", 4318, told)
    began = trio.current_time()
    await exporter.send()
    assert trio.current_time() - began == 10
    assert told == [
        "the receiver of OpenTelemetry at collector.example:4318 does not take what is sent: no answer within 10 s"
    ]
    await exporter.flush()  # at the end of a process
    assert trio.current_time() - began == 12


async def test_what_is_left_at_the_end_of_a_process_is_sent() -> None:
    async with observed(**{"otel.traceEvery": 1, "otel.interval": 3_600_000}) as (receiver, cluster):
        await append(cluster, 1)
        assert receiver.spans() == []
    assert {_transaction(span) for _, span in receiver.spans()} == {"0"}


async def test_when_a_process_has_ended_nothing_collects_its_lines() -> None:
    loggers = [logging.getLogger(name) for name in ("waltz.x", "waltz.zookeeper")]
    before = [list(logger.handlers) for logger in loggers]
    async with trio.open_nursery() as process:
        process.start_soon(exporter_to("127.0.0.1", 1, []).run)
        await trio.testing.wait_all_tasks_blocked()
        assert [list(logger.handlers) for logger in loggers] != before
        process.cancel_scope.cancel()
    assert [list(logger.handlers) for logger in loggers] == before


@pytest.mark.parametrize("where", ["a..b", "127.0.0.1:{port}/pr\u00e4fix"])
async def test_an_endpoint_that_can_be_none_is_told_and_ends_nothing(where: str) -> None:
    told: list[str] = []
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        endpoint = f"http://{where.format(port=listener.socket.getsockname()[1])}"
        settings = otel_settings(Config({"otel.endpoint": endpoint}, "x"))
        assert settings is not None
        exporter = OtelExporter(
            settings, "x", lambda: "here", Registry(trio.current_time), "waltz.x", lambda level, text: told.append(text)
        )
        await exporter.send()
        await exporter.send()
    assert len(told) == 1
    assert "does not take what is sent" in told[0]


async def test_nothing_is_traced_where_nobody_receives() -> None:
    keys = {"cluster.root": "/x", "zookeeper.connectString": "zk", "zookeeper.sessionTimeout": 4000, "server.port": 0}
    keys |= {"storage.port": 0, "storage.admin.port": 0, "storage.directory": "/x"}
    assert server_settings(Config(keys, "x"), lambda text: None).machine.trace_every == 0
    assert storage_settings(Config(keys, "x"), lambda text: None).machine.trace_every == 0
    keys["otel.endpoint"] = "http://collector/prefix/"
    assert server_settings(Config(keys, "x"), lambda text: None).machine.trace_every == 1000
    settings = otel_settings(Config(keys, "x"))
    assert settings is not None
    assert (settings.host, settings.port, settings.path) == ("collector", 4318, "/prefix")


@pytest.mark.parametrize("endpoint", ["collector:4318", "https://collector", "http://", "http://x:y", "http://a@x"])
def test_an_endpoint_of_another_form_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"otel\.endpoint: expected http://HOST"):
        otel_settings(Config({"otel.endpoint": endpoint}, "x"))


def _transaction(span: Span) -> str:
    return _attribute(span.attributes, "waltz.transaction_id")
