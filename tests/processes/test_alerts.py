"""The alerts and the dashboard, judged by Prometheus itself over series of a real scrape, and the page of all metrics.

Each rule fires, and no other one, when what it is for is changed in the scrape of a healthy cluster, and none fires
over the scrape as it is. What depends on how fast this machine is has a fixed value there.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
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
Pages = dict[str, str]
"""Of each process what it serves."""


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
def pages(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer) -> Pages:
    """What every process of a cluster with proxy and gateway serves, at one moment."""
    wanted = {name for text in (*panels(), *(rule["expr"] for rule in rules())) for name in _names(text)}
    wanted.add("waltz_server_client_lag")  # there once the proxy has mounted
    directory, where = tmp_path_factory.mktemp("scraped"), zookeeper.fresh_chroot()
    settings = {"server.trustProxies": True, "archive.location": str(directory / "vault")}
    settings["server.journal.mode"] = "async"
    found: Pages = {}
    with running_cluster(directory, where, partitions=2, servers=1, settings=settings) as cluster:
        proxy, words = files_of_page(cluster, where)
        cluster.child("proxy", "-m", "waltz_trio.cli.main", *words)
        cluster.child("gateway", "-m", "waltz_trio.cli.main", "gateway", "run", "-c", gateway_file(cluster, proxy))
        cluster.start("proxy", "gateway")

        def whole() -> bool:
            found.update((name, cluster.get(name, "/metrics/prometheus") or "") for name in cluster.addresses)
            series = series_of(found)
            return wanted <= {each.name for each in series} and well(series)

        poll("all metrics of rules and dashboard are shown, and all is well", whole)
        for name in ("gateway", "proxy"):
            cluster.children[name].stop()
    return found


@pytest.fixture(scope="module")
def scrape(pages: Pages) -> Scrape:
    """What Prometheus makes of them."""
    return series_of(pages)


def series_of(pages: Pages) -> Scrape:
    return [each for name, page in pages.items() for each in scraped(f"waltz-{name.partition('-')[0]}", name, page)]


def _names(expression: str) -> list[str]:
    return re.findall(r"\bwaltz_\w+", expression)


def well(found: Scrape) -> bool:
    """Whether everything that was started serves by now."""
    values = {
        name: [float(each.values.partition("+0x")[0]) for each in found if each.name == name]
        for name in (
            "waltz_server_healthy",
            "waltz_proxy_healthy",
            "waltz_server_archive_trouble",
            "waltz_gateway_clusters_away",
        )
    }
    return values == {
        "waltz_server_healthy": [1, 1],
        "waltz_proxy_healthy": [1, 1],
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
_WRONG_TOO: dict[str, tuple[Callable[[Series], Series], dict[str, str]]] = {  # other causes of the same rules
    "WaltzProxyBehind": (
        put(constant("0"), "waltz_proxy_healthy", partition="1"),
        {"job": "waltz-proxy", "instance": "proxy", "partition": "1"},
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
    wrong = [(rule, *each[rule["alert"]]) for each in (_WRONG, _WRONG_TOO) for rule in rules() if rule["alert"] in each]
    for rule, change, labels in wrong:
        changed = [change(each) for each in relevant]
        assert changed != relevant, f"{rule['alert']}: the scrape has nothing of its cause"
        tests.append(test_of(rule["alert"], changed, {rule["alert"]: fired(rule, labels)}))
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


# ---- the page of all metrics ---------------------------------------------------------------------

_TYPE = re.compile(r"# TYPE (waltz_\w+) (\w+)")
_ROW = re.compile(r"^\| `(waltz_\w+)` \| ?([^|]*?) ?\| [^|]+ \| ([^|]+) \|", re.MULTILINE)
_SUFFIXES = {"summary": ("", "_sum", "_count"), "histogram": ("_bucket", "_sum", "_count")}
_OF_THE_TYPE = {"summary": "quantile", "histogram": "le"}


def families(page: str) -> Iterator[tuple[str, str, set[tuple[str, ...]]]]:
    """The metrics of a process: name, type, and the labels of their samples, as many sets as there are."""
    labels: dict[str, set[tuple[str, ...]]] = {}
    for match in filter(None, map(_LINE.fullmatch, page.splitlines())):
        labels.setdefault(match[1], set()).add(tuple(sorted(label for label, _ in _LABEL.findall(match[2] or ""))))
    for name, kind in _TYPE.findall(page):
        suffixes, own = _SUFFIXES.get(kind, ("",)), _OF_THE_TYPE.get(kind)
        sets = {each for suffix in suffixes for each in labels[name + suffix]}
        yield name, kind, {tuple(label for label in each if label != own) for each in sets}


def test_the_page_of_metrics_names_what_is_scraped_all_of_it_and_nothing_else(pages: Pages) -> None:
    kinds: dict[str, str] = {}
    labels: dict[str, set[tuple[str, ...]]] = {}
    for page in pages.values():
        for name, kind, sets in families(page):
            kinds[name] = kind
            labels.setdefault(name, set()).update(sets)
    listed = {name: given for name, given, _ in _ROW.findall(text_of("metrics.md"))}
    assert listed.keys() - kinds.keys() == set(), "no process serves these"
    assert kinds.keys() - listed.keys() == set(), "the page does not name these"
    for name, given in listed.items():
        text = given.removesuffix(", or none")
        named = {tuple(sorted(text.split(", "))) if text else ()} | ({()} if text != given else set())
        assert named == labels[name], name
        assert name.endswith("_total") == (kinds[name] == "counter"), name


def test_the_page_of_metrics_shows_for_which_there_is_a_rule() -> None:
    bold = {name for name, _, meaning in _ROW.findall(text_of("metrics.md")) if "**" in meaning}
    assert bold == {name for rule in rules() for name in _names(rule["expr"])}
