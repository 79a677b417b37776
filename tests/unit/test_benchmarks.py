"""`python -m benchmarks`: what it takes from each load, what two files tell, and that every load can be started."""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from benchmarks import __main__ as suite
from benchmarks import kafka_peer, peers, raft_peers, umadb_peer
from benchmarks.loads import LOADS
from benchmarks.results import compared, flat, medians, plot


def test_figures_are_named_by_their_way_and_parts_of_a_list_by_their_kind() -> None:
    written = {
        "tx_per_s": 5,
        "file_system": "ext4",
        "options": {"size": 200},
        "idle": {"server-0": {"resident_mib": 70.5}},
        "ok": True,
    }
    assert flat(written) == {"tx_per_s": 5, "idle.server-0.resident_mib": 70.5}
    assert flat([{"kind": "headers", "tx_per_s": 7}, {"tx_per_s": 8}]) == {"headers.tx_per_s": 7, "1.tx_per_s": 8}


def test_a_median_is_of_what_every_round_has() -> None:
    assert medians([{"a": 1, "b": 1}, {"a": 5}, {"a": 3, "b": 2}]) == {"a": 3}


def test_two_files_tell_something_where_no_round_of_one_lies_among_those_of_the_other() -> None:
    before = {"append": [{"rate": 10, "cost": 5}, {"rate": 12, "cost": 7}], "gone": [{"rate": 1}]}
    after = {"append": [{"rate": 13, "cost": 6}, {"rate": 15, "cost": 4}], "new": [{"rate": 1}]}
    expected: list[object] = [
        ("append", "rate", 11, 14, pytest.approx(14 / 11), True),
        ("append", "cost", 6, 5, pytest.approx(5 / 6), False),
    ]
    assert list(compared(before, after)) == expected
    assert [tells for *_, tells in compared({"append": [{"rate": 1}]}, {"append": [{"rate": 2}]})] == [False]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_every_load_is_a_command_that_takes_its_arguments(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"benchmarks.{load.module}")

    class ParsedError(Exception):
        """The command line was understood, and the work would begin."""

    def stop(*_: object) -> None:
        raise ParsedError

    for name in ("ready", "measure"):  # what comes first behind the command line
        if hasattr(module, name):
            monkeypatch.setattr(module, name, stop)
    monkeypatch.setattr("sys.argv", [load.module, *load.arguments, "--json", "figures.json"])
    with pytest.raises(ParsedError):
        module.main()


def test_the_picture_shows_each_curve_and_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    results = {load.name: [{"tx_per_s": 1234, "p50_ms": 3.0}, {"tx_per_s": 1300, "p50_ms": 2.0}] for load in LOADS}
    for name in ("one.svg", "two.svg"):
        plot(tmp_path / name, results, "as a test has it")
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    for shown in (
        "appends in flight",
        "partitions",
        "bytes of a payload",
        "MB a second",
        "as a test has it",
    ):
        assert shown in text


def test_a_file_without_a_figure_in_common_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, load in (("a.json", "feed"), ("b.json", "append")):
        (tmp_path / name).write_text(json.dumps({"loads": {load: [{"tx_per_s": 1}]}}))
    assert suite.main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    assert "no figure in common" in capsys.readouterr().err
    assert suite.main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0


def test_a_peer_that_was_asked_for_and_is_not_here_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WALTZ_JAVA_CLASSPATH", raising=False)
    monkeypatch.setattr(peers, "ready", lambda: 0)
    assert peers.main(["--peers", "original"]) == 3
    assert "set WALTZ_JAVA_CLASSPATH" in capsys.readouterr().err
    for arguments, said in ((["--peers", "redpanda"], "redpanda is none of"), (["--in-flight", "0"], "--in-flight")):
        with pytest.raises(SystemExit) as ended:
            peers.main(arguments)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


def test_a_peer_takes_every_load_and_ends_before_the_next_one_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[object] = []

    def peer(name: str) -> Any:
        @contextmanager
        def started(_: object) -> Iterator[peers.Measure]:
            done.append(f"{name} starts")

            def measure(in_flight: int) -> dict[str, Any]:
                done.append(in_flight)
                return {"in_flight": in_flight, "tx_per_s": 1}

            yield measure
            done.append(f"{name} ends")

        return started

    for name in ("waltz", "nats"):
        monkeypatch.setitem(peers.PEERS, name, peer(name))
    found = peers.run(["waltz", "nats"], argparse.Namespace(rounds=2, in_flight=[1, 64]))
    assert done == ["waltz starts", 1, 64, "waltz ends", "nats starts", 1, 64, "nats ends"] * 2
    assert [(each["round"], each["asked"]) for each in found["nats"]] == [(1, 1), (1, 64), (2, 1), (2, 64)]
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_the_table_of_peers_shows_the_best_round_of_each_load() -> None:
    rounds = [{"asked": 64, "in_flight": 64, "tx_per_s": rate, "p50_ms": 1.0} for rate in (1000, 3000, 2000)]
    shown = Console(width=120)
    with shown.capture() as text:
        shown.print(peers.table({"waltz": rounds, "postgres": [{**rounds[0], "asked": 1000, "in_flight": 90}]}))
    assert "3,000" in text.get()
    assert "2,000" not in text.get()
    assert "90" in text.get()


def test_the_table_of_peers_says_who_keeps_less_than_three_synced_copies() -> None:
    figures = [{"asked": 1, "in_flight": 1, "tx_per_s": 1}]
    shown = Console(width=80)
    with shown.capture() as text:
        shown.print(peers.table({"kafka": figures, "kafka-unsynced": figures, "umadb": figures}))
    assert "│ kafka-unsynced │" in text.get()
    assert "kafka-unsynced: three copies, none synced; umadb: one copy, synced" in text.get()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "apend"], "apend is none of append, "),
        (["--rounds", "0"], "at least 1"),
        (["--compare", "absent.json", "absent.json"], "absent.json is no file"),
    ],
)
def test_wrong_arguments_say_what_was_expected(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        suite.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_figures_of_peers_are_read_from_what_their_tools_print() -> None:
    nats = (
        "NATS JetStream asynchronous publisher stats: 2,513 msgs/sec ~ 491 KiB/sec ~ min: 12,211.33us ~ "
        "avg: 25,326.09us ~ P50: 21,373.99us ~ P90: 39,166.04us ~ P99: 97,170.32us ~ P99.9: 97,170.32us\n"
    )
    assert raft_peers.nats_figures(nats) == {"tx_per_s": 2513, "p50_ms": 21.37, "p99_ms": 97.17}
    etcd = "  Requests/sec:\t589.3132\n\nLatency distribution:\n  50% in 0.0015 secs.\n  99% in 0.0061 secs.\n"
    assert raft_peers.etcd_figures(etcd) == {
        "tx_per_s": 589,
        "p50_ms": pytest.approx(1.5),
        "p99_ms": pytest.approx(6.1),
    }


def test_kafka_and_umadb_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALTZ_KAFKA_CLASSPATH", raising=False)
    for peer in ("kafka", "kafka-unsynced"):
        assert "set WALTZ_KAFKA_CLASSPATH to jars of org.apache.kafka:kafka_2.13" in (peers.absent(peer) or "")
    monkeypatch.setenv("WALTZ_KAFKA_CLASSPATH", "jars/*")
    monkeypatch.setenv("PATH", "")
    assert "no `java` on PATH" in (peers.absent("kafka") or "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert peers.absent("umadb") == "no umadb: pip install umadb"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a `java` of a shell script."""

    def make(script: str) -> None:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "java").chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("WALTZ_KAFKA_CLASSPATH", "jars/*")
    return make


def test_figures_of_kafka_are_read_from_what_its_producer_answers(java: Callable[[str], None], tmp_path: Path) -> None:
    answer = '{"commits": 146001, "tx_per_s": 48382, "p50_ms": 17.832, "p99_ms": 50.102}'
    arguments, loads = tmp_path / "arguments", tmp_path / "loads"
    java(f"echo \"$@\" > {arguments}; while read -r load; do echo $load >> {loads}; echo '{answer}'; done")
    producer = kafka_peer.Producer({"acks": "all"}, 200, tmp_path / "errors")
    try:
        figures = [producer.load(in_flight, count, 4.0) for in_flight, count in ((1000, 250_000), (64, 0))]
    finally:
        producer.close()
    assert figures == [{"commits": 146001, "tx_per_s": 48382, "p50_ms": 17.832, "p99_ms": 50.102}] * 2
    assert loads.read_text() == "1000 250000 4.0\n64 0 4.0\n"
    assert arguments.read_text().endswith("KafkaLoad.java log 200 acks=all\n")


def test_a_producer_of_kafka_that_ends_tells_what_it_wrote(java: Callable[[str], None], tmp_path: Path) -> None:
    java("read -r load; echo 'NotEnoughReplicasException' >&2; exit 1")
    producer = kafka_peer.Producer({}, 200, tmp_path / "errors")
    try:
        with pytest.raises(AssertionError, match="NotEnoughReplicasException"):
            producer.load(1, 1, 0)
    finally:
        producer.close()


def test_an_append_to_umadb_fails_if_somebody_else_has_appended_since_its_threads_last_one() -> None:
    """Each condition names the position of the thread's last append; what fails is told."""
    conditions: list[tuple[str, int | None]] = []

    def append(events: list[Any], condition: tuple[str, int | None]) -> int:
        if len(conditions) == 3:
            raise OSError("the server is gone")
        assert events == [("benchmark", bytes(200), [condition[0]])]
        conditions.append(condition)
        return 10 * len(conditions)

    umadb = SimpleNamespace(
        Query=lambda items: items[0],
        QueryItem=lambda tags: tags[0],
        AppendCondition=lambda tag, last: (tag, last),
        Event=lambda *event: event,
    )
    with pytest.raises(OSError, match="the server is gone"):
        umadb_peer.appends(umadb, SimpleNamespace(append=append), in_flight=1, size=200, seconds=3600)
    assert [last for _, last in conditions] == [None, 10, 20]
    assert len({tag for tag, _ in conditions}) == 1
