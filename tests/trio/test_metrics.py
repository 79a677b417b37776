"""Metrics: the original's JSON, Prometheus text, Graphite lines."""

from __future__ import annotations

import json
import math

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from waltz_trio.base.exposition import Form
from waltz_trio.base.metrics import Registry


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_json_has_the_fields_of_the_original() -> None:
    registry = Registry(Clock())
    registry.gauge("waltz-server.is-closed", lambda: False)
    registry.counter("c").set(3)
    registry.meter("m").mark(2)
    registry.timer("t").update_to([(500, 1)])

    found = json.loads(registry.json())

    assert list(found) == ["version", "gauges", "counters", "histograms", "meters", "timers"]
    assert found["gauges"] == {"waltz-server.is-closed": {"value": False}}
    assert found["counters"] == {"c": {"count": 3}}
    assert set(found["meters"]["m"]) == {"count", "m15_rate", "m1_rate", "m5_rate", "mean_rate", "units"}
    assert set(found["timers"]["t"]) == {
        *("count", "max", "mean", "min", "p50", "p75", "p95", "p98", "p99", "p999", "stddev"),
        *("m15_rate", "m1_rate", "m5_rate", "mean_rate", "duration_units", "rate_units"),
    }
    assert found["timers"]["t"]["p50"] == 0.5


def test_a_gauge_that_fails_shows_its_error_and_hides_nothing_else() -> None:
    registry = Registry(Clock())
    registry.gauge("bad", lambda: 1 // 0)
    registry.gauge("good", lambda: 1)

    assert registry.read()["gauges"] == {"bad": {"error": "integer division or modulo by zero"}, "good": {"value": 1}}


def test_the_first_gauge_of_a_name_stays() -> None:
    registry = Registry(Clock())
    registry.gauge("g", lambda: 1)
    registry.gauge("g", lambda: 2)

    assert registry.read()["gauges"] == {"g": {"value": 1}}


def test_a_steady_rate_is_shown_by_every_window() -> None:
    clock = Clock()
    meter = Registry(clock).meter("m")
    for _ in range(600):
        meter.mark(10)
        clock.now += 1

    rates = meter.rates()

    assert all(abs(rate - 10) < 0.5 for rate in rates.values()), rates


def test_a_rate_decays_when_nothing_happens() -> None:
    clock = Clock()
    meter = Registry(clock).meter("m")
    meter.mark(100)
    clock.now += 5
    before = meter.rates()["m1_rate"]
    clock.now += 60
    after = meter.rates()["m1_rate"]

    assert before == 20.0
    assert after == pytest.approx(20.0 * math.exp(-1), rel=1e-6)


def test_a_meter_follows_the_counter_of_a_machine() -> None:
    meter = Registry(Clock()).meter("m")
    meter.mark_to(5)
    meter.mark_to(7)
    assert meter.count == 7

    meter.mark_to(2)  # the machine was made anew

    assert meter.count == 9


def test_a_timer_follows_the_counts_of_a_machine() -> None:
    timer = Registry(Clock()).timer("t")
    timer.update_to([(2, 3)])
    timer.update_to([(2, 3), (500, 1)])
    assert timer.meter.count == 4
    assert timer.snapshot()["max"] == 0.5
    assert timer.snapshot()["p50"] == 0.002

    timer.update_to([(2, 1)])  # the machine was made anew

    assert timer.meter.count == 5


def test_percentiles_are_those_of_the_values() -> None:
    timer = Registry(Clock()).timer("t")
    timer.update_to((value, 1) for value in range(1, 1001))

    found = timer.snapshot()

    assert found["min"] == 0.001
    assert found["max"] == 1.0
    assert found["p50"] == pytest.approx(0.5, abs=0.002)
    assert found["p99"] == pytest.approx(0.99, abs=0.002)


def test_a_sample_survives_hours() -> None:
    clock = Clock()
    timer = Registry(clock).timer("t")
    for count in range(1, 5001):
        clock.now += 100
        timer.update_to([(250, count)])

    assert timer.snapshot()["p999"] == 0.25


def test_prometheus_text_has_partitions_as_labels_and_types() -> None:
    registry = Registry(Clock())
    for partition in (0, 1):
        registry.gauge(f"waltz-server.partition-{partition}.high-water-mark", lambda: 41)
    registry.gauge("waltz-server.waltz-server-num-partitions", lambda: 2)
    registry.gauge("waltz-server.endpoint", lambda: "h:1")
    registry.meter("waltz-server.partition-1.transaction").mark(4)
    registry.timer("waltz-server.partition-1.response-latency").update_to([(500, 2)])

    lines = registry.prometheus().splitlines()

    assert lines.count("# TYPE waltz_server_high_water_mark gauge") == 1
    assert 'waltz_server_high_water_mark{partition="0"} 41' in lines
    assert "waltz_server_num_partitions 2" in lines
    assert not any("endpoint" in line for line in lines)
    assert 'waltz_server_transaction_total{partition="1"} 4' in lines
    assert 'waltz_server_response_latency_seconds{partition="1",quantile="0.5"} 0.5' in lines
    assert 'waltz_server_response_latency_seconds_count{partition="1"} 2' in lines


def test_the_sum_of_a_timer_is_exact_and_never_falls() -> None:
    clock = Clock()
    registry = Registry(clock)
    timer = registry.timer("waltz-server.partition-0.response-latency")
    calls: dict[int, int] = {}
    before = 0.0
    for milliseconds in (900, *[1] * 50):
        calls[milliseconds] = calls.get(milliseconds, 0) + 1_000
        timer.update_to(calls.items())
        clock.now += 60.0
        text = registry.prometheus()
        (line,) = [line for line in text.splitlines() if "latency_seconds_sum" in line]
        total = float(line.split()[1])
        assert total == sum(number * count for number, count in calls.items()) / 1000
        assert total > before
        before = total


def test_an_object_becomes_a_label_where_the_gauge_names_one() -> None:
    registry = Registry(Clock())
    lags = {"a:1": 0, "b:2": 7}
    registry.gauge("waltz-server.partition-3.replica-lag", lambda: lags, label="replica")
    lines = registry.prometheus().splitlines()
    assert lines[1:] == [
        'waltz_server_replica_lag{partition="3",replica="a:1"} 0',
        'waltz_server_replica_lag{partition="3",replica="b:2"} 7',
    ]
    assert registry.read()["gauges"] == {"waltz-server.partition-3.replica-lag": {"value": lags}}


def test_what_is_not_known_yet_has_no_sample() -> None:
    registry = Registry(Clock())
    ages: dict[str, int | None] = {"0": 40, "1": None}
    registry.gauge("waltz-proxy.age-ms", lambda: ages, label="partition")
    assert registry.prometheus().splitlines() == [
        "# TYPE waltz_proxy_age_ms gauge",
        'waltz_proxy_age_ms{partition="0"} 40',
    ]
    assert registry.read()["gauges"] == {"waltz-proxy.age-ms": {"value": ages}}


async def test_readings_of_the_same_second_share_one_text() -> None:
    now, texts = 0.0, 0
    registry = Registry(lambda: now)

    def make() -> str:
        nonlocal texts
        texts += 1
        return registry.prometheus()

    registry.expected = 10_000  # enough for a thread
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(registry.text, "prometheus", make)
    assert texts == 1
    now = 0.9
    await registry.text("prometheus", make)
    assert texts == 1
    now = 1.0
    await registry.text("prometheus", make)
    assert texts == 2


def test_graphite_lines_are_numbers_with_durations_in_milliseconds() -> None:
    registry = Registry(Clock())
    registry.gauge("a b", lambda: True)
    registry.gauge("text", lambda: "x")
    registry.timer("t").update_to([(500, 1)])

    lines = list(registry.graphite("waltz", 77))

    assert "waltz.a-b 1 77" in lines
    assert "waltz.t.p50 500.00 77" in lines
    assert "waltz.t.count 1 77" in lines
    assert not any("text" in line for line in lines)


async def test_metrics_are_refreshed_before_they_are_read_and_forgotten_by_prefix() -> None:
    registry = Registry(Clock())
    registry.on_read(lambda: registry.meter("p-1.x").mark_to(9))

    found = await registry.reading(registry.read)
    assert found["meters"]["p-1.x"]["count"] == 9  # type: ignore[index]  # JSON object
    registry.remove("p-1.")
    assert registry._meters == {}


@pytest.mark.parametrize("form", Form)
def test_parsers_of_prometheus_read_back_what_was_counted(form: Form) -> None:
    registry = Registry(Clock())
    registry.gauge("waltz-server.partition-3.replica-lag", lambda: {'a"\\\n:1': 7}, label="replica")
    registry.gauge("waltz-server.share", lambda: math.inf)
    registry.meter("waltz-server.partition-3.transaction").mark(4)
    timer = registry.timer("waltz-server.partition-3.response-latency")
    timer.update_to([(0, 1), (5, 2), (6, 10), (70_000, 3)])

    parse = parse_openmetrics if form is Form.OPENMETRICS else parse_prometheus
    families = {family.name: family for family in parse(registry.prometheus(form))}

    latency = "waltz_server_response_latency"
    assert {name: family.type for name, family in families.items()} == {
        "waltz_server_replica_lag": "gauge",
        "waltz_server_share": "gauge",
        "waltz_server_transaction": "counter",
        f"{latency}_seconds": "summary",
        f"{latency}_histogram_seconds": "histogram",
    }
    (lag,) = families["waltz_server_replica_lag"].samples
    assert (lag.labels, lag.value) == ({"partition": "3", "replica": 'a"\\\n:1'}, 7)
    (transactions,) = families["waltz_server_transaction"].samples
    assert (transactions.name, transactions.value) == ("waltz_server_transaction_total", 4)
    samples = families[f"{latency}_histogram_seconds"].samples
    counts = {sample.labels["le"]: sample.value for sample in samples if sample.name.endswith("_bucket")}
    assert [counts[bound] for bound in ("0.001", "0.002", "0.005", "0.01", "10.0", "+Inf")] == [1, 1, 3, 13, 13, 16]
    totals = {sample.name.rpartition("_")[2]: sample.value for sample in samples if "le" not in sample.labels}
    assert totals == {"sum": (5 * 2 + 6 * 10 + 70_000 * 3) / 1000, "count": 16}


def test_a_histogram_counts_every_call_and_never_falls() -> None:
    clock = Clock()
    timer = Registry(clock).timer("t")
    before = timer.buckets()
    for count in range(1, 3_000):  # more than the sample of the quantiles holds
        timer.update_to([(count, 1)])
        clock.now += 10
        now = timer.buckets()
        assert all(now[bound] >= before[bound] for bound in now)
        before = now
    assert (before[0.1], before[1.0], before[2.0], before[math.inf]) == (100, 1_000, 2_000, 2_999)
