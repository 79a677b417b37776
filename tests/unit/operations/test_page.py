"""What the console shows of a view."""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import pytest

from tests.unit.operations.views import KEY, NAMES, cluster, replica, server, with_replica, with_server, with_storage
from waltz_core.operations.findings import Finding
from waltz_core.operations.page import HISTORY, Console, commands
from waltz_core.operations.view import ClusterView
from waltz_core.wire.client_messages import PartitionStatus, ServedState

AWAY = Finding("zookeeper-down", "no answer", "waltz doctor -c CONFIG")


def page_of(view: ClusterView) -> dict[str, Any]:
    return Console("/root").look(view, 1_000)


def marked(mark: int, **figures: float) -> ClusterView:
    """Partition 0 ends at a mark; figures of its server."""
    status = (PartitionStatus(0, 2, ServedState.READY, 5, 4, mark, None),)
    told = {(name.replace("__", ".").replace("_", "-"), 0): value for name, value in figures.items()}
    return with_server(status=status, figures=told)


def test_a_healthy_cluster_is_all_green_and_names_owner_session_and_marks() -> None:
    page = page_of(cluster())

    assert {row["level"] for kind in ("servers", "storages", "partitions") for row in page[kind]} == {"ok"}
    first = page["partitions"][0]
    assert (first["owner"], first["session"], first["generation"], first["mark"]) == ("v1:6000", 4, 2, 100)
    assert [row["storage"] for row in first["replicas"]] == list(NAMES)
    assert (first["sound_replicas"], first["needed_replicas"]) == (3, 2)
    assert page["findings"] == []
    assert page["problem"] == ""


def test_the_page_is_json_and_holds_no_key_of_the_cluster() -> None:
    text = json.dumps(page_of(cluster()))

    assert KEY.hex() not in text
    assert KEY.decode() not in text


def test_a_dead_storage_node_is_red_with_the_reason_and_its_partitions_are_yellow() -> None:
    page = page_of(with_storage(replicas=None, data_problem="refused", admin_problem="refused"))

    node = page["storages"][0]
    assert (node["level"], node["state"], node["trouble"]) == ("bad", "does not answer", ["refused"])
    assert {row["level"] for row in page["partitions"]} == {"warn"}
    assert page["partitions"][0]["replicas"][0]["state"] == "unreachable"
    assert page["findings"][0]["cause"] == "storage-down"
    assert "waltz storage run" in page["findings"][0]["advice"]
    assert [row["cause"] for row in page["findings"][0]["follows"]] == ["no-spare-replica"]


@pytest.mark.parametrize(
    ("view", "kind", "level", "state"),
    [
        (with_storage(disk_free=1, disk_reserve=2), "storages", "bad", "disk full"),
        (with_storage(foreign_key=True), "storages", "bad", "refuses the cluster's key"),
        (with_storage(admin_problem="refused"), "storages", "warn", "not all well"),
        (with_replica(state="limbo", reason="old"), "storages", "bad", "a replica does not serve"),
        (with_replica(suspects=((4, 6),)), "storages", "warn", "not all well"),
        (with_server(problem="refused", partitions=None, status=None), "servers", "bad", "does not answer"),
        (with_server(key=b"other key 123456"), "servers", "bad", "of another cluster"),
        (with_server(health={0: False}), "servers", "bad", "cannot commit everywhere"),
        (with_server(unusable={"s0:7000": "refused"}), "servers", "warn", "misses a storage node"),
        (with_server(problem="refused", partitions=None, status=None), "partitions", "bad", "owner silent"),
        (cluster(servers=(server(2, 1),)), "partitions", "bad", "no owner"),
    ],
)
def test_what_is_wrong_shows_where_it_is(view: ClusterView, kind: str, level: str, state: str) -> None:
    row = page_of(view)[kind][0]

    assert (row["level"], row["state"]) == (level, state)


@pytest.mark.parametrize(
    ("state", "reason", "level", "name"),
    [
        (ServedState.RECOVERING, "waits for s0:7000", "warn", "recovering"),
        (ServedState.STUCK, "waits for an operator", "bad", "stuck"),
        (ServedState.OPENING, None, "warn", "opening"),
        (ServedState.READY, "no quorum", "bad", "cannot commit"),
        (99, None, "warn", "unknown (99)"),
    ],
)
def test_a_partition_says_what_it_waits_for(state: int, reason: str | None, level: str, name: str) -> None:
    view = with_server(status=(PartitionStatus(0, 2, state, 7_000, 4, 100, reason),))

    row = page_of(view)["partitions"][0]

    assert (row["level"], row["state"], row["waits_for"], row["since_ms"]) == (level, name, reason or "", 7_000)


def test_a_server_of_0_13_2_that_tells_no_status_is_judged_by_its_health() -> None:
    row = page_of(with_server(status=None))["partitions"][0]

    assert (row["level"], row["state"], row["mark"], row["owner"]) == ("ok", "ready", None, "v1:6000")


def test_a_replica_that_lags_is_shown_with_its_lag() -> None:
    row = page_of(marked(500_000))["partitions"][0]

    assert row["replicas"][0]["lag"] == 499_900
    assert row["replicas"][0]["level"] == "warn"
    assert row["level"] == "warn"


def test_rates_and_latencies_are_those_of_the_last_seconds() -> None:
    console = Console("/root")
    slow = {"response_within_ms__1": 10.0, "response_within_ms__5": 20.0, "response_within_ms__100": 20.0}
    console.look(marked(100, rejected_append=5, **slow), 0)
    fast = {"response_within_ms__1": 10.0, "response_within_ms__5": 99.0, "response_within_ms__100": 121.0}

    page = console.look(marked(300, rejected_append=9, **fast), 2_000)

    first = page["partitions"][0]
    assert (first["rate"], first["refused"], first["p50_ms"], first["p99_ms"]) == (100.0, 2.0, 5.0, 100.0)
    assert page["totals"] == {"commits": 100.0, "refused": 2.0, "p50_ms": 5.0, "p99_ms": 100.0}
    assert page["history"]["commits"] == [100.0]
    assert page["history"]["at_ms"] == [2_000]


def test_a_server_that_starts_anew_gives_no_rate_below_zero() -> None:
    console = Console("/root")
    console.look(marked(300, rejected_append=9), 0)

    page = console.look(marked(100, rejected_append=1), 2_000)

    assert (page["totals"]["commits"], page["totals"]["refused"]) == (0, 0)


def test_the_history_is_bounded() -> None:
    console = Console("/root")
    for number in range(HISTORY + 50):
        page = console.look(marked(100 + number), number * 1_000)

    assert len(page["history"]["at_ms"]) == HISTORY
    assert page["history"]["commits"][-1] == 1.0


def test_hot_locks_and_lagging_clients_come_first() -> None:
    console = Console("/root")
    console.look(marked(1, hot_lock__7=1, hot_lock__8=90), 0)
    view = marked(1, hot_lock__7=41, hot_lock__8=90)
    figures = {**view.servers[0].figures, ("client-lag.3", -1): 5, ("client-lag.9", -1): 800}
    view = attrs.evolve(view, servers=(attrs.evolve(view.servers[0], figures=figures), *view.servers[1:]))

    page = console.look(view, 4_000)

    assert page["hot_locks"] == [
        {"partition": 0, "hash": 7, "refused": 41, "rate": 10.0},
        {"partition": 0, "hash": 8, "refused": 90, "rate": 0.0},
    ]
    assert [(row["client"], row["lag"]) for row in page["clients"]] == [("9", 800), ("3", 5)]


def test_without_zookeeper_the_last_page_stays_below_the_reason() -> None:
    console = Console("/root", "tools.yml")
    console.look(cluster(), 1_000)

    page = console.lost(AWAY, 9_000)

    assert page["problem"] == "no answer"
    assert page["zookeeper"]["level"] == "bad"
    assert page["findings"][0] == {
        "cause": "zookeeper-down",
        "evidence": "no answer",
        "advice": "waltz doctor -c tools.yml",
        "commands": ["waltz doctor -c tools.yml"],
        "settles": False,
        "follows": [],
    }
    assert len(page["partitions"]) == 2
    assert console.lost(AWAY, 9_500)["findings"][1:] == []
    assert Console("/root").lost(AWAY, 1)["partitions"] == []


def test_a_replica_that_left_the_session_is_catching_up() -> None:
    assert replica(0).max_id == 100
    row = page_of(with_replica(max_id=40))["partitions"][0]["replicas"][0]
    assert (row["max_id"], row["lag"]) == (40, 60)


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        (
            "start it: waltz storage run CONFIG.yml on s0; if it is lost for good: waltz storage replace-node -c t.yml "
            "--from s0:7000 --to HOST:PORT -a ADMIN_PORT",
            [
                "waltz storage run CONFIG.yml",
                "waltz storage replace-node -c t.yml --from s0:7000 --to HOST:PORT -a ADMIN_PORT",
            ],
        ),
        (
            "Only if they are lost for good: waltz storage unsafe-recover -c t.yml -p 3 --accept-data-loss; it keeps",
            ["waltz storage unsafe-recover -c t.yml -p 3 --accept-data-loss"],
        ),
        (
            "stop the servers; waltz zookeeper restore -c t.yml -i FILE, where FILE is what `waltz zookeeper list "
            "--json` prints",
            ["waltz zookeeper restore -c t.yml -i FILE", "waltz zookeeper list --json"],
        ),
        ("waltz certificates makes certificates, roles and the keys of each configuration", []),
        ("synchronise the clocks of all machines: timedatectl set-ntp true", []),
        ("waltz server list -c t.yml -o true", ["waltz server list -c t.yml -o true"]),
    ],
)
def test_the_commands_of_an_advice_can_be_copied_alone(advice: str, expected: list[str]) -> None:
    assert list(commands(advice)) == expected


def test_figures_that_are_none_are_not_shown() -> None:
    """They are what another process says, of any version or make."""
    figures = {
        ("rejected-append", 0): math.nan,
        ("response-within-ms.much", 0): 1.0,
        ("response-within-ms." + "9" * 5_000, 0): 1.0,
        ("hot-lock.", 0): 1.0,
        ("client-lag.3", -1): math.inf,
        ("connections", -1): math.nan,
        ("append-queue-size", 0): -math.inf,
    }

    page = page_of(with_server(figures=figures))

    assert page["clients"] == []
    assert page["servers"][0]["connections"] is None
    assert page["partitions"][0]["queued"] is None
    json.dumps(page, allow_nan=False)
