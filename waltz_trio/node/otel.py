"""Metrics, log lines and spans of a process for OpenTelemetry: OTLP over HTTP, as JSON.

One task sends what there is once per interval; nothing waits for it. Spans come from the machine, for one transaction
in `otel.traceEvery` (`waltz_core/base/tracing.py`). All processes derive the ids of a trace in the same way, so the
spans of a server and of its storage nodes are one trace although the protocols carry no ids. What cannot be sent is
kept within bounds, and the log has one line when the receiver stops and starts answering.

The SDK of OpenTelemetry is not used: its exporters want threads and `requests`, and its metrics cannot take over
counters and histograms that somebody else keeps.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import h11
import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import ConfigError
from waltz_core.base.tracing import Traced
from waltz_trio.base.exposition import NO_LABELS, named
from waltz_trio.base.metrics import Registry
from waltz_trio.base.pump import wall_offset_ms
from waltz_trio.base.version import version
from waltz_trio.config.config import Config
from waltz_trio.net.dialer import why

_KEPT_MAX = 4096  # spans, and log lines, that wait for a receiver; the oldest go first
_SEND_MAX = 10.0  # seconds
_FLUSH_MAX = 2.0  # seconds, at the end of the process
_PORT = 4318  # of OTLP over HTTP
_CUMULATIVE = 2
_SERVER, _INTERNAL = 2, 1  # kinds of spans
_SEVERITY = {logging.DEBUG: 5, logging.INFO: 9, logging.WARNING: 13, logging.ERROR: 17, logging.CRITICAL: 21}
_SCOPE = {"name": "waltz"}
_ROOT = "append"  # the server's span, to which all others belong

Json = dict[str, Any]


@attrs.frozen
class OtelSettings:
    """Where it goes, and how often."""

    host: str
    port: int
    path: str  # before /v1/...
    interval: float  # seconds
    trace_every: int
    logs: bool


def otel_settings(config: Config) -> OtelSettings | None:
    """The `otel.` keys of a configuration; None where no endpoint is set.

    Raises:
        ConfigError: the endpoint is not of the form `http://HOST[:PORT][/PATH]`.
    """
    endpoint = config.text_or_none("otel.endpoint")
    if endpoint is None:
        return None
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port or _PORT
    except ValueError:
        host, port, parts = None, 0, urlsplit("")
    if parts.scheme != "http" or not host or parts.query or parts.username is not None:
        raise ConfigError(
            f"otel.endpoint: expected http://HOST[:PORT][/PATH], found {endpoint!r}; a collector of this machine or "
            "network takes it from here over TLS"
        )
    return OtelSettings(
        host,
        port,
        parts.path.rstrip("/"),
        config.seconds("otel.interval"),
        config.number("otel.traceEvery"),
        config.flag("otel.logs"),
    )


class OtelExporter:
    """What one process sends.

    Args:
        settings: where to.
        service: name of the kind of process.
        instance: gives what tells this process from others of its kind.
        registry: whose metrics are sent.
        logger: name of the logger whose lines are sent, with those of ZooKeeper's client.
        report: called when the receiver stops and starts answering.
    """

    def __init__(
        self,
        settings: OtelSettings,
        service: str,
        instance: Callable[[], str],
        registry: Registry,
        logger: str,
        report: Callable[[Level, str], None],
    ) -> None:
        self._settings = settings
        self._service = service
        self._instance = instance
        self._registry = registry
        self._loggers = logger, "waltz.zookeeper"
        self._report = report
        self._spans: deque[Json] = deque(maxlen=_KEPT_MAX)
        self._lines: deque[Json] = deque(maxlen=_KEPT_MAX)
        self._began = time.time_ns()
        self._trouble = ""
        self._lock = trio.Lock()

    # ---- what is collected -----------------------------------------------------------------------

    def trace(self, traced: Traced) -> None:
        """Make the spans of a transaction."""
        identity = b"%b %d %d %d" % (traced.key, traced.partition_id, traced.session_id, traced.transaction_id)
        trace_id = hashlib.sha256(identity).digest()[:16]
        root = _span_id(trace_id, _ROOT)
        offset = wall_offset_ms()
        for name, begin, end in traced.steps:
            span: Json = {
                "traceId": trace_id.hex(),
                "spanId": root if name == _ROOT else _span_id(trace_id, f"{name} {self._instance()}"),
                "name": f"waltz.{name}",
                "kind": _SERVER if name == _ROOT else _INTERNAL,
                "startTimeUnixNano": str((begin + offset) * 1_000_000),
                "endTimeUnixNano": str((end + offset) * 1_000_000),
                "attributes": _attributes(
                    {
                        "waltz.partition": traced.partition_id,
                        "waltz.session_id": traced.session_id,
                        "waltz.transaction_id": traced.transaction_id,
                        "waltz.batch_count": traced.count,
                    }
                ),
            }
            if name != _ROOT:
                span["parentSpanId"] = root
            self._spans.append(span)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Collect log lines, from any thread."""
        handler = _Lines(self._lines)
        loggers = [logging.getLogger(name) for name in self._loggers] if self._settings.logs else []
        for logger in loggers:
            logger.addHandler(handler)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(handler)

    # ---- sending ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send once per interval until cancelled."""
        with self._listening():
            while True:
                await trio.sleep(self._settings.interval)
                await self.send()

    async def flush(self) -> None:
        """Send what there is before the process ends; a receiver that does not answer is not waited for."""
        with trio.move_on_after(_FLUSH_MAX):
            await self.send()

    async def send(self) -> None:
        """Send what there is now; spans and lines that the receiver does not take are kept."""
        async with self._lock:
            resource = self._resource()
            metrics = await self._registry.reading(self._metrics)
            try:
                # Each signal by itself: a receiver for traces alone knows no path for metrics.
                trouble = await self._post("metrics", "Metrics", "metrics", metrics, resource)
                of_spans = await self._post_kept("traces", "Spans", "spans", self._spans, resource)
                of_lines = await self._post_kept("logs", "Logs", "logRecords", self._lines, resource)
                trouble = trouble or of_spans or of_lines
            except _SilentError as error:
                trouble = str(error)
        if trouble != self._trouble:
            where = f"the receiver of OpenTelemetry at {self._settings.host}:{self._settings.port}"
            text = f"{where} does not take what is sent: {trouble}" if trouble else f"{where} answers again"
            self._report(Level.WARNING if trouble else Level.INFO, text)
        self._trouble = trouble

    async def _post(self, signal: str, large: str, key: str, items: list[Json], resource: Json) -> str:
        """Send items of one signal; why they were not taken, empty if they were.

        Raises:
            _SilentError: there was no answer, so there is none to the next signal either.
        """
        body = {f"resource{large}": [{"resource": resource, f"scope{large}": [{"scope": _SCOPE, key: items}]}]}
        data = json.dumps(body, separators=(",", ":")).encode()
        try:
            with trio.fail_after(_SEND_MAX):
                status = await _request(self._settings, f"/v1/{signal}", data)
        except trio.TooSlowError:
            raise _SilentError(f"no answer within {_SEND_MAX:.0f} s") from None
        except (OSError, UnicodeError, trio.BrokenResourceError, h11.ProtocolError) as error:
            # UnicodeError: no name of a host, or path, can be so. It must not end the process that reports.
            raise _SilentError(why(error)) from error
        return "" if 200 <= status < 300 else f"/v1/{signal} is answered with status {status}"

    async def _post_kept(self, signal: str, large: str, key: str, waiting: deque[Json], resource: Json) -> str:
        """The same with what waits, if anything does; what was taken waits no more."""
        items = list(waiting)
        trouble = await self._post(signal, large, key, items, resource) if items else ""
        if not trouble:
            for item in items:
                if waiting and waiting[0] is item:  # others may have pushed it out
                    waiting.popleft()
        return trouble

    def _resource(self) -> Json:
        about = {
            "service.name": self._service,
            "service.version": version() or "unknown",
            "service.instance.id": self._instance(),
        }
        return {"attributes": _attributes(about)}

    def _metrics(self) -> list[Json]:
        samples = _Samples(str(self._began), str(time.time_ns()))
        self._registry.fill(samples)
        return list(samples.metrics.values())


class _SilentError(Exception):
    """The receiver does not answer."""


class _Lines(logging.Handler):
    """Keeps log lines as OTLP has them."""

    def __init__(self, lines: deque[Json]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(
            {
                "timeUnixNano": str(int(record.created * 1_000_000_000)),
                "severityNumber": _SEVERITY.get(record.levelno, 0),
                "severityText": record.levelname,
                "body": {"stringValue": record.getMessage()},
                "attributes": _attributes({"logger": record.name}),
            }
        )


class _Samples:
    """The metrics of a registry as OTLP has them, under the names of the Prometheus text without its suffixes."""

    def __init__(self, began: str, now: str) -> None:
        self.metrics: dict[tuple[str, str], Json] = {}
        self._began = began
        self._now = now

    def gauge(self, name: str, value: float, more: Mapping[str, str] = NO_LABELS) -> None:
        """A value that goes up and down."""
        self._put(name, "gauge", {}, _number(value), more)

    def counter(self, name: str, count: int) -> None:
        """A number that only grows."""
        whole = {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
        self._put(name, "sum", whole, {"startTimeUnixNano": self._began, **_number(count)})

    def summary(self, name: str, quantiles: Mapping[float, float], total: float, count: int) -> None:
        """Left out: the receiver makes quantiles of the histogram."""

    def histogram(self, name: str, buckets: Mapping[float, int], total: float) -> None:
        """How many took at most so many seconds, by upper bound; the last bound is infinite."""
        counts, below = [], 0
        for count in buckets.values():
            counts.append(str(count - below))
            below = count
        point = {
            "startTimeUnixNano": self._began,
            "count": str(below),
            "sum": total,
            "bucketCounts": counts,
            "explicitBounds": [bound for bound in buckets if math.isfinite(bound)],
        }
        self._put(name, "histogram", {"aggregationTemporality": _CUMULATIVE}, point)

    def _put(self, name: str, kind: str, whole: Json, point: Json, more: Mapping[str, str] = NO_LABELS) -> None:
        """Add a point to the metric of a name, which is made with its first one."""
        metric, labels = named(name, "")
        held = self.metrics.get((metric, kind))
        if held is None:
            unit = "s" if kind == "histogram" else ""
            held = self.metrics[metric, kind] = {"name": metric, "unit": unit, kind: {**whole, "dataPoints": []}}
        attributes = _attributes({**labels, **more})
        held[kind]["dataPoints"].append({"timeUnixNano": self._now, "attributes": attributes, **point})


def _number(value: float) -> Json:
    if isinstance(value, int):
        return {"asInt": str(value)}
    return {"asDouble": value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")}


def _attributes(values: Mapping[str, str | int]) -> list[Json]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]


def _span_id(trace_id: bytes, name: str) -> str:
    return hashlib.sha256(trace_id + name.encode()).hexdigest()[:16]


async def _request(settings: OtelSettings, path: str, data: bytes) -> int:
    """Send one request; the status of the answer."""
    connection = h11.Connection(h11.CLIENT)
    headers = [
        ("Host", f"{settings.host}:{settings.port}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(data))),
        ("Connection", "close"),
    ]
    async with await trio.open_tcp_stream(settings.host, settings.port) as stream:
        for event in (
            h11.Request(method="POST", target=settings.path + path, headers=headers),
            h11.Data(data=data),
            h11.EndOfMessage(),
        ):
            await stream.send_all(connection.send(event) or b"")
        while True:
            answer = connection.next_event()
            if answer is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(4096))
            elif isinstance(answer, h11.Response):
                return answer.status_code
            elif isinstance(answer, h11.ConnectionClosed):
                raise trio.BrokenResourceError("closed without an answer")
