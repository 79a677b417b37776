"""Calls as a newcomer writes them: each says what was expected, what was found, and what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import waltz_dcb as dcb
import waltz_sync as waltz
import waltz_testing
from tests.sync.conftest import ClusterThread
from waltz_testing import running_cluster

URL = "waltz://127.0.0.1:7801"
ZOOKEEPER = {"zookeeper.sessionTimeout": 4000, "cluster.root": "/waltz", "client.connectTimeout": 1000}


def apply(txn: Any, state: Any) -> None:
    pass


def entered(block: AbstractContextManager[Any]) -> None:
    with block:
        pass


def zookeeper(servers: str) -> None:
    entered(waltz.open_client({"zookeeper.connectString": servers, **ZOOKEEPER}))


def sqlite(path: Any = "view.db", **options: Any) -> Any:
    return waltz.SqliteView(path, apply, **options)


anything: Any = waltz  # to mypy, whose complaints are not what is tested
testing: Any = waltz_testing
store: Any = dcb
A = anything.Append

WITHOUT_CLUSTER: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    # clusters of tests
    (
        "text",
        lambda: entered(testing.running_cluster(partitions="3")),
        TypeError,
        r"number, found '3' \(str\); w",
    ),
    ("half", lambda: entered(testing.running_cluster(partitions=2.5)), TypeError, "partitions is a whole number"),
    ("bool", lambda: entered(testing.running_cluster(partitions=True)), TypeError, "partitions is a whole number"),
    (
        "none",
        lambda: entered(running_cluster(partitions=0)),
        waltz.ConfigError,
        "one partition, found partitions=0",
    ),
    ("servers", lambda: entered(testing.running_cluster(servers="1")), TypeError, "write servers=3"),
    ("nodes", lambda: entered(running_cluster(storage_nodes=-1)), waltz.ConfigError, "found storage_nodes=-1"),
    ("folder", lambda: entered(testing.running_cluster(7)), TypeError, "expected the path of a folder.*found 7"),
    ("bytes", lambda: entered(testing.running_cluster(b"x")), TypeError, "expected the path of a folder.*found b'x'"),
    ("settings", lambda: entered(testing.running_cluster(settings=[1])), TypeError, r"mapping of conf.*found \[1\]"),
    # addresses
    ("quoted", lambda: entered(waltz.open_client(f'"{URL}"')), waltz.ConfigError, f"without what.*'{URL}'$"),
    ("blank", lambda: entered(waltz.open_client(f" {URL}")), waltz.ConfigError, "without what is around it"),
    ("listed", lambda: entered(waltz.open_client(f"['{URL}']")), waltz.ConfigError, "without what is around it"),
    ("quotes", lambda: entered(waltz.open_client('waltz://"h":1')), waltz.ConfigError, "expected host:port, found"),
    ("many", lambda: entered(waltz.open_client(f"{URL},h:1")), waltz.ConfigError, "name one, which describes"),
    ("zk quoted", lambda: zookeeper('"zk:2181"'), waltz.ConfigError, "expected host:port,host:port.*found '\"zk"),
    ("zk list", lambda: zookeeper("['zk:2181']"), waltz.ConfigError, "without brackets, found"),
    ("zk semicolon", lambda: zookeeper("a:1; b:1"), waltz.ConfigError, "expected host:port,host:port"),
    ("zk waltz", lambda: zookeeper(URL), waltz.ConfigError, "expected host:port,host:port"),
    # codecs
    (
        "json",
        lambda: anything.Json({"a": 1}),
        TypeError,
        r"found \{'a': 1\} \(dict\); write Json\(dict\)",
    ),
    ("json list", lambda: anything.Json([1]), TypeError, r"write Json\(list\)"),
    ("json text", lambda: anything.Json("x"), TypeError, r"write Json\(str\)"),
    ("msgpack", lambda: anything.MsgPack({"a": 1}), TypeError, r"write MsgPack\(dict\)"),
    ("avro", lambda: anything.Avro("x"), TypeError, "schema: expected a schema of Avro, such as.*found 'x'"),
    ("avro 3", lambda: anything.Avro(3), TypeError, "expected a schema of Avro.*found 3"),
    ("utf8", lambda: anything.Utf8().dumps(b"x"), TypeError, r"expected a text, found b'x'.*write Append\(VALUE\)"),
    # views
    ("file uri", lambda: sqlite("file:view.db"), waltz.ConfigError, "found the address 'file:view.db': write Sqlite"),
    ("sqlite uri", lambda: sqlite("sqlite:///v.db"), waltz.ConfigError, "found the address"),
    ("proc", lambda: sqlite("/proc/view.db").load_mark(0), waltz.ConfigError, "cannot be opened for writing: No such"),
    (
        "long",
        lambda: sqlite("x" * 300).load_mark(0),
        waltz.ConfigError,
        "cannot be opened for writing: File name",
    ),
    ("absent", lambda: sqlite("/none/view.db").load_mark(0), waltz.ConfigError, "no folder /none: make it first"),
    ("under", lambda: sqlite("/etc/passwd/v.db").load_mark(0), waltz.ConfigError, "no folder /etc/passwd: make it"),
    (
        "dir",
        lambda: sqlite("/etc").load_mark(0),
        waltz.ConfigError,
        "/etc is a folder: name a file in it, such",
    ),
    ("device", lambda: sqlite("/dev/null").load_mark(0), waltz.ConfigError, "is no file that can hold a database"),
    ("version", lambda: sqlite(version=True), TypeError, r"version is a whole number, found True \(bool\)"),
    ("rebuild", lambda: sqlite(rebuild="no"), TypeError, r"rebuild is True or False, found 'no' \(str\)"),
    ("load", lambda: sqlite().seed(0, 1, None), TypeError, "load: expected a function of the cursor"),
    ("marks", lambda: sqlite().seed_all([1], apply), TypeError, r"such as \{0: 41\}, found \[1\]"),
    ("cut", lambda: sqlite().catch_up([1], apply), TypeError, r"cut: expected a mark by partition, .*found \[1\]"),
    ("cut of text", lambda: sqlite().catch_up({"0": 1}, apply), TypeError, "a partition is a whole number, found '0'"),
    ("read", lambda: sqlite().catch_up({0: 1}, 5), TypeError, "read: expected a function of a partition and a mark"),
    ("dict", lambda: anything.DictView(apply).seed("0", 1), TypeError, "a partition is a whole number"),
    ("registry", lambda: anything.PrometheusInstrument(3), TypeError, "expected a CollectorRegistry.*found 3"),
    ("tracer", lambda: anything.OpenTelemetryInstrument(3), TypeError, "expected a provider.*get_tracer, found 3"),
    # tests of applications
    ("check_view", lambda: testing.check_view(3), TypeError, r"function that makes a ViewCase, found 3 \(int\)"),
    ("view_checks", lambda: testing.view_checks(3), TypeError, "expected a ViewCase, found 3"),
    ("simulate", lambda: testing.simulate(3, 3), TypeError, r"expected an application.*write Simulated\(view"),
    ("workload", lambda: testing.simulate(testing.Simulated(apply), 3), TypeError, "expected a workload.*found 3"),
    ("seeds", lambda: testing.simulate(testing.Simulated(apply), apply, seeds="7"), TypeError, "seeds: expected whole"),
    ("seed", lambda: testing.simulate(testing.Simulated(apply), apply, seeds=7), TypeError, r"range\(100\), found 7"),
    (
        "calls",
        lambda: testing.simulate(testing.Simulated(apply), apply, calls="9"),
        TypeError,
        "calls is a whole",
    ),
    ("plan", lambda: testing.check_plan(testing.Simulated(apply), 3), TypeError, "expected a Plan"),
    # events
    ("tags", lambda: store.Event("a", b"", tags=None), TypeError, "tags are a collection of texts, found None"),
    ("item", lambda: store.QueryItem(3), TypeError, "types are a collection of texts, found 3"),
    ("condition", lambda: store.AppendCondition(3), TypeError, "expected a Query, found 3; write AppendCondition"),
    ("after", lambda: store.AppendCondition(dcb.Query.all(), "3"), TypeError, "after is a position.*found '3'"),
]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [pytest.param(*rest, id=f"{number} {name}") for number, (name, *rest) in enumerate(WITHOUT_CLUSTER)],
)
def test_a_wrong_call_says_what_to_write(
    call: Callable[[], object], error: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        call()


@pytest.fixture(scope="module")
def opened(cluster: ClusterThread) -> Iterator[tuple[Any, Any, Any]]:
    with waltz.open_client(cluster.url) as client, client.materialize(waltz.DictView(apply), [0], timeout=60) as app:
        client.append(1, waltz.Append(b"x"))
        with client.feed(1, after=-1) as feed:
            yield client, app, feed


def nothing(state: Any) -> None:
    pass


ON_CLUSTER: list[tuple[str, Callable[[Any, Any, Any], object], type[Exception], str]] = [
    ("partition", lambda client, app, feed: client.append(True, A(b"x")), TypeError, "a partition is a whole number"),
    ("text", lambda client, app, feed: client.append("0", A(b"x")), TypeError, r"whole number, found '0' \(str\)"),
    ("negative", lambda client, app, feed: client.append(-1, A(b"x")), waltz.PartitionNotFoundError, "has 0 to 3"),
    (
        "bytes",
        lambda client, app, feed: client.append(0, b"x"),
        TypeError,
        "an Append, found b'x'.*write Append",
    ),
    (
        "utf8",
        lambda client, app, feed: client.append(0, A(b"x", waltz.Utf8())),
        TypeError,
        "expected a text, found b'x'",
    ),
    (
        "header",
        lambda client, app, feed: client.append(0, A(b"x", header="1")),
        TypeError,
        "a header is a whole",
    ),
    (
        "locks",
        lambda client, app, feed: client.append(0, A(b"x", write={"a": 1})),
        TypeError,
        r"\(name, id\), such",
    ),
    ("based_on", lambda client, app, feed: client.append(0, A(b"x"), based_on=True), TypeError, "based_on is a whole"),
    (
        "ahead",
        lambda client, app, feed: client.append(0, A(b"x", write=[("a", 1)]), based_on=10**6, timeout=60),
        waltz.NotCommittedError,
        "decided at mark 1000000, but the log ends at -1: whose database is that",
    ),
    ("after", lambda client, app, feed: client.feed(2, after=None), TypeError, "after is a whole number, found None"),
    (
        "fetch",
        lambda client, app, feed: feed.fetch(3),
        TypeError,
        r"transaction of this feed.*write feed\.fetch\(txn\)",
    ),
    ("for", lambda client, app, feed: iter(client.feed(2, after=-1)), TypeError, r"first; write: with client\.feed"),
    ("for client", lambda client, app, feed: iter(anything.open_client(URL)), TypeError, "write: with open_client"),
    ("key", lambda client, app, feed: client.partition_of(b"x"), TypeError, "a key is a whole number or text"),
    (
        "fresh",
        lambda client, app, feed: app.read(nothing, partition=0, fresh="no"),
        TypeError,
        "is True or False",
    ),
    (
        "catch_up",
        lambda client, app, feed: client.materialize(waltz.DictView(apply), [2], catch_up="no"),
        TypeError,
        "catch_up is True or False, found 'no'",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [pytest.param(*rest, id=f"{number} {name}") for number, (name, *rest) in enumerate(ON_CLUSTER)],
)
def test_a_wrong_call_of_a_client_says_what_to_write(
    opened: tuple[Any, Any, Any], call: Callable[[Any, Any, Any], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call(*opened)


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (9, ValueError, "there is no {what} 9: this cluster has 0 to {last}"),
        (-1, ValueError, "there is no {what} -1"),
        ("0", TypeError, r"the number of a {what} is a whole number, found '0' \(str\)"),
    ],
)
@pytest.mark.parametrize("verb", ["kill", "restart"])
@pytest.mark.parametrize(("what", "last"), [("server", 0), ("storage node", 2)])
def test_a_node_that_is_none_is_named(
    cluster: ClusterThread, verb: str, what: str, last: int, index: Any, error: type[Exception], text: str
) -> None:
    method = getattr(cluster, f"{verb}_{what.partition(' ')[0]}")
    with pytest.raises(error, match=text.format(what=what, last=last)):
        functools.partial(method, index)()


def test_a_node_that_runs_is_not_started_again(cluster: ClusterThread) -> None:
    with pytest.raises(ValueError, match="server-0 runs already: kill it or stop it before"):
        cluster.restart_server(0)
