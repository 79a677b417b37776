"""The alerts and the dashboard, judged by Prometheus itself over series of a real scrape.

Each rule fires, and no other one, when what it is for is changed in the scrape of a healthy cluster, and none fires
over the scrape as it is. What depends on how fast this machine is has a fixed value there.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.test_operations import DIRECTORY, text_of
from tests.processes.test_proxy import files_of_page
from tests.processes.zookeeper import ZooKeeperServer

MINUTES = 40  # of each series, a value a minute
_LINE = re.compile(r"(waltz_\w+)(?:\{(.*)\})? (\S+)(?: \d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_OF_THIS_MACHINE = ("waltz_server_response_latency_seconds", "waltz_storage_sync_time_ms", "waltz_proxy_age_ms")


@attrs.frozen
class Series:
    """What Prometheus has of one metric of one process."""

    name: str
    labels: Mapping[str, str]
    values: str  # as promtool has it

    def fits(self, name: str, **labels: str) -> bool:
        return self.name == name and labels.items() <= self.labels.items()


Scrape = list[Series]


def constant(value: str) -> str:
    return f"{value}+0x{MINUTES}"


def scraped(job: str, instance: str, page: str) -> Scrape:
    """What Prometheus makes of a page; it adds job, instance and whether there was one."""
    own = {"job": job, "instance": instance}
    found = [Series("up", own, constant("1"))]
    for line in page.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None:
            name, labels, value = match.groups()
            value = "0.001" if name.removesuffix("_bucket") in _OF_THIS_MACHINE else value
            found.append(Series(name, {**dict(_LABEL.findall(labels or "")), **own}, constant(value)))
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(text_of("alerts.yml"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels() -> list[str]:
    """The expressions of the dashboard."""
    return [target["expr"] for panel in json.loads(text_of("grafana.json"))["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer) -> Scrape:
    """Every process of a cluster with proxy and gateway, at one moment."""
    wanted = {name for text in (*panels(), *(rule["expr"] for rule in rules())) for name in _names(text)}
    directory, where = tmp_path_factory.mktemp("scraped"), zookeeper.fresh_chroot()
    settings = {"server.trustProxies": True, "archive.location": str(directory / "vault")}
    found: Scrape = []
    with running_cluster(directory, where, partitions=2, servers=1, settings=settings) as cluster:
        proxy, words = files_of_page(cluster, where)
        cluster.child("proxy", "-m", "waltz_trio.cli.main", *words)
        cluster.child("gateway", "-m", "waltz_trio.cli.main", "gateway", "run", "-c", gateway_file(cluster, proxy))
        cluster.start("proxy", "gateway")

        def whole() -> bool:
            found.clear()
            for name in cluster.addresses:
                job = f"waltz-{name.partition('-')[0]}"
                found.extend(scraped(job, name, cluster.get(name, "/metrics/prometheus") or ""))
            return wanted <= {each.name for each in found} and well(found)

        poll("all metrics of rules and dashboard are shown, and all is well", whole)
        for name in ("gateway", "proxy"):
            cluster.children[name].stop()
    return found


def _names(expression: str) -> list[str]:
    return re.findall(r"\bwaltz_\w+", expression)


def well(found: Scrape) -> bool:
    """Whether everything that was started serves by now."""
    values = {
        name: [float(each.values.partition("+0x")[0]) for each in found if each.name == name]
        for name in ("waltz_server_healthy", "waltz_server_archive_trouble", "waltz_gateway_clusters_away")
    }
    return values == {
        "waltz_server_healthy": [1, 1],
        "waltz_server_archive_trouble": [0, 0],
        "waltz_gateway_clusters_away": [0],
    }


def gateway_file(cluster: Cluster, client: Path) -> str:
    """A gateway for the topics of a cluster, by the configuration of a client."""
    port, health = cluster.ports.take(), cluster.ports.take()
    cluster.addresses["gateway"] = {"server.jetty.port": health}
    topics = [{"name": "payments", "cluster": str(client), "partitions": "0-1"}]
    path = cluster.directory / "gateway.yml"
    path.write_text(yaml.safe_dump({"gateway.port": port, "gateway.healthPort": health, "gateway.topics": topics}))
    return str(path)


# ---- what is wrong, for each rule ----------------------------------------------------------------


def put(values: str, name: str, **labels: str) -> Callable[[Series], Series]:
    def change(each: Series) -> Series:
        return attrs.evolve(each, values=values) if each.fits(name, **labels) else each

    return change


def behind(each: Series) -> Series:
    """One replica stays where it is, the others go on."""
    if each.fits("waltz_storage_max_transaction_id", partition="1") and each.labels["instance"] != "storage-1":
        return attrs.evolve(each, values=constant("200000"))
    return each


def conflicts(each: Series) -> Series:
    """Ten refusals a second for each append that is committed."""
    pace = {"waltz_server_rejected_append_total": 600, "waltz_server_successful_append_total": 60}.get(each.name)
    return each if pace is None or each.labels["partition"] != "0" else attrs.evolve(each, values=f"0+{pace}x{MINUTES}")


_WRONG: dict[str, tuple[Callable[[Series], Series], dict[str, str]]] = {
    "WaltzPartitionNotServed": (put(constant("0"), "waltz_server_healthy", partition="1"), {"partition": "1"}),
    "WaltzPartitionWithoutOwner": (put(constant("1"), "waltz_server_num_partitions"), {}),
    "WaltzProcessDown": (
        put(constant("0"), "up", instance="storage-1"),
        {"job": "waltz-storage", "instance": "storage-1"},
    ),
    "WaltzDamagedRecords": (
        put(constant("3"), "waltz_storage_damaged_transactions", partition="0", instance="storage-2"),
        {"job": "waltz-storage", "instance": "storage-2", "partition": "0"},
    ),
    "WaltzReplicaBehind": (behind, {"job": "waltz-storage", "instance": "storage-1", "partition": "1"}),
    "WaltzSlowCommits": (
        put(constant("0.7"), "waltz_server_response_latency_seconds", partition="0", quantile="0.99"),
        {"job": "waltz-server", "instance": "server-0", "partition": "0", "quantile": "0.99"},
    ),
    "WaltzSlowDisk": (
        put(constant("150"), "waltz_storage_sync_time_ms", instance="storage-0"),
        {"job": "waltz-storage", "instance": "storage-0"},
    ),
    "WaltzManyConflicts": (conflicts, {"job": "waltz-server", "instance": "server-0", "partition": "0"}),
    "WaltzArchiveStands": (
        put(constant("1"), "waltz_server_archive_trouble", partition="0"),
        {"job": "waltz-server", "instance": "server-0", "partition": "0"},
    ),
    "WaltzProxyBehind": (
        put(constant("70000"), "waltz_proxy_age_ms", partition="0"),
        {"job": "waltz-proxy", "instance": "proxy", "partition": "0"},
    ),
    "WaltzGatewayCutOff": (
        put(constant("1"), "waltz_gateway_clusters_away"),
        {"job": "waltz-gateway", "instance": "gateway"},
    ),
}
_VALUES = {"WaltzSlowDisk": "150"}


def fired(rule: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """The alert that is expected of a rule."""
    texts = dict(rule["annotations"])
    for name, text in texts.items():
        text = text.replace("{{ $value }}", _VALUES.get(rule["alert"], ""))
        texts[name] = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)
    return {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": texts}


# ---- the tests -----------------------------------------------------------------------------------


def judged(tmp_path: Path, tests: list[dict[str, Any]]) -> None:
    """Let Prometheus judge."""
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(DIRECTORY / "alerts.yml")], "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def input_of(found: Scrape) -> list[dict[str, str]]:
    """Series as promtool takes them."""
    texts = []
    for each in found:
        labels = ",".join(f'{name}="{text}"' for name, text in sorted(each.labels.items()))
        texts.append({"series": f"{each.name}{{{labels}}}", "values": each.values})
    return texts


def test_prometheus_takes_the_rules_and_each_has_its_test() -> None:
    command = ["promtool", "check", "rules", "--lint-fatal", str(DIRECTORY / "alerts.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, f"{len(rules())} rules found" in done.stdout) == (0, True), done.stdout + done.stderr
    assert [rule["alert"] for rule in rules()] == list(_WRONG)
    assert all(rule["annotations"]["command"] for rule in rules())


def test_no_alert_fires_over_a_healthy_cluster_and_each_alone_where_its_cause_is(
    tmp_path: Path, scrape: Scrape
) -> None:
    names = [rule["alert"] for rule in rules()]
    asked = {name for rule in rules() for name in _names(rule["expr"])} | {"up"}
    relevant = [each for each in scrape if each.name in asked]

    def test_of(name: str, series: Scrape, expected: Mapping[str, Any]) -> dict[str, Any]:
        looks = [
            {"eval_time": f"{MINUTES}m", "alertname": each, "exp_alerts": [expected[each]] if each in expected else []}
            for each in names
        ]
        looks += [{"eval_time": "0s", "alertname": each, "exp_alerts": []} for each in names]  # it must last
        return {"name": name, "interval": "1m", "input_series": input_of(series), "alert_rule_test": looks}

    tests = [test_of("all is well", relevant, {})]
    for rule in rules():
        change, labels = _WRONG[rule["alert"]]
        wrong = [change(each) for each in relevant]
        assert wrong != relevant, f"{rule['alert']}: the scrape has nothing of its cause"
        tests.append(test_of(rule["alert"], wrong, {rule["alert"]: fired(rule, labels)}))
    judged(tmp_path, tests)


def test_every_panel_of_the_dashboard_shows_something_of_a_healthy_cluster(tmp_path: Path, scrape: Scrape) -> None:
    asked = {name for text in panels() for name in _names(text)}
    looks = [
        {
            "expr": f"count({text}) > bool 0",
            "eval_time": f"{MINUTES}m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for text in panels()
    ]
    series = input_of([each for each in scrape if each.name in asked])
    judged(tmp_path, [{"interval": "1m", "input_series": series, "promql_expr_test": looks}])
