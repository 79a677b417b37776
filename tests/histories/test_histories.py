"""The checker of histories finds what is wrong and nothing else; real clusters, right ones and broken ones."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.histories.checker import AnomalyError, check, linearize
from tests.histories.history import NEVER, REGISTER, Operation, Recorder, elle, final_lists, load, porcupine
from tests.histories.runs import Clients, record, record_calm
from tests.histories.worker import VIEWS
from tests.processes.cluster import Cluster, running_cluster
from tests.processes.zookeeper import ZooKeeperServer, running_zookeeper
from tests.views.servers import MariaServer, PostgresServer


def op(kind: str, argument: Any, result: Any, call: int, back: int = NEVER, process: str = "p") -> Operation:
    return Operation(process, kind, 0, argument, result, call, back, back != NEVER)


def write(value: int, call: int, back: int = NEVER) -> Operation:
    return op("write", value, None, call, back)


def read(value: int | None, call: int, back: int) -> Operation:
    return op("read", None, value, call, back)


def cas(old: int | None, new: int, done: bool, call: int, back: int = NEVER) -> Operation:
    return op("cas", [old, new], done, call, back)


@pytest.mark.parametrize(
    "history",
    [
        [read(None, 0, 1), write(1, 2, 3), read(1, 4, 5)],
        [write(1, 0, 9), read(None, 1, 2), read(1, 3, 4)],
        [write(1, 0), read(None, 1, 2), read(1, 3, 4), read(1, 5, 6)],
        [write(1, 0, 1), write(2, 2), read(1, 3, 4), read(2, 100, 101)],
        [cas(None, 1, True, 0, 5), cas(None, 2, False, 0, 5), read(1, 6, 7)],
        [write(1, 0, 9), write(2, 0, 9), read(2, 10, 11)],
        [write(1, 0), cas(1, 2, True, 1, 2)],
    ],
)
def test_a_history_that_some_order_explains_passes(history: list[Operation]) -> None:
    assert linearize(history) is None


@pytest.mark.parametrize(
    "history",
    [
        [write(1, 0, 1), read(None, 2, 3)],
        [write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)],
        [write(1, 0, 9), read(1, 1, 2), read(None, 3, 4)],
        [cas(None, 1, True, 0, 5), cas(None, 2, True, 0, 5)],
        [write(1, 0, 1), cas(1, 2, False, 2, 3)],
        [write(1, 5), read(1, 1, 2)],
        [write(1, 0, 1), write(2, 2), read(2, 3, 4), read(1, 5, 6)],
    ],
)
def test_a_history_that_no_order_explains_is_found(history: list[Operation]) -> None:
    assert linearize(history) is not None
    with pytest.raises(AnomalyError, match="register 0 is not linearizable"):
        check(history)


@pytest.mark.parametrize("seed", range(40))
def test_the_search_agrees_with_trying_every_order(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        history = [_drawn(rng, value) for value in range(1, 6)]
        assert (linearize(history) is None) == any(_explains(order) for order in _orders(history)), history


def _drawn(rng: random.Random, value: int) -> Operation:
    call = rng.randrange(12)
    back = call + rng.randrange(1, 6)
    seen = rng.choice((None, 1, 2, 3))
    return rng.choice(
        (
            read(seen, call, back),
            write(value, call, rng.choice((back, back, NEVER))),
            cas(seen, value, rng.random() < 0.5, call, back),
            cas(seen, value, False, call),
        )
    )


def _orders(history: list[Operation]) -> Iterator[tuple[Operation, ...]]:
    unknown = [one for one in history if not one.known]
    for count in range(len(unknown) + 1):
        for taken in itertools.combinations(unknown, count):
            part = [one for one in history if one.known or one in taken]
            yield from itertools.permutations(part)


def _explains(order: tuple[Operation, ...]) -> bool:
    if any(later.back < earlier.call for earlier, later in itertools.combinations(order, 2)):
        return False
    value: int | None = None
    for one in order:
        if one.kind == "read" and one.result != value:
            return False
        if one.kind == "write":
            value = one.argument
        if one.kind == "cas":
            holds = one.argument[0] == value
            if (one.known and holds != one.result) or (not one.known and not holds):
                return False
            value = one.argument[1] if holds else value
    return True


def test_lists_that_two_transactions_saw_in_different_orders_are_found() -> None:
    def txn(key: int, value: int, other: int, seen: list[int], call: int) -> Operation:
        asked = [["r", other, None], ["append", key, value]]
        return Operation("p", "txn", key, asked, [["r", other, seen], ["append", key, value]], call, call + 5)

    good = [txn(1, 10, 2, [], 0), txn(2, 20, 1, [10], 10), txn(1, 30, 2, [20], 20)]
    reads = [txn(3, 40, 1, [10, 30], 30), txn(3, 50, 2, [20], 40), txn(4, 60, 3, [40, 50], 50)]
    last = [txn(5, 70, 4, [60], 60), txn(6, 80, 5, [70], 70)]
    with pytest.raises(AnomalyError, match="80"):
        check([*good, *reads, *last], {1: [10, 30], 2: [20], 3: [40, 50], 4: [60], 5: [70]})
    final = {1: [10, 30], 2: [20], 3: [40, 50], 4: [60], 5: [70], 6: [80]}
    assert check([*good, *reads, *last], final) == 8
    skewed = [txn(1, 10, 2, [], 0), txn(2, 20, 1, [], 0)]
    with pytest.raises(AnomalyError, match="lists are not strictly serializable"):
        check(skewed, {1: [10], 2: [20]})


def look(call: int, back: int, **seen: list[int]) -> Operation:
    """A transaction that only reads; lists by name, as l1."""
    lists = {int(name[1:]): elements for name, elements in seen.items()}
    asked = [["r", key, None] for key in lists]
    return Operation("q", "txn", 0, asked, [["r", key, elements] for key, elements in lists.items()], call, back)


def add(key: int, value: int, call: int, back: int) -> Operation:
    asked = [["r", 9, None], ["append", key, value]]
    return Operation("p", "txn", key, asked, [["r", 9, []], asked[1]], call, back)


@pytest.mark.parametrize(
    "readers",
    [
        [look(0, 9, l1=[], l2=[]), look(0, 9, l1=[10], l2=[])],
        [look(6, 9, l1=[10], l2=[20]), look(0, 9, l1=[10], l2=[]), look(0, 9, l1=[10], l2=[])],
    ],
)
def test_transactions_that_only_read_agree_on_one_order(readers: list[Operation]) -> None:
    both = [add(1, 10, 1, 5), add(2, 20, 1, 5)]
    assert check([*both, *readers], {1: [10], 2: [20]}) == 2 + len(readers)


@pytest.mark.parametrize(
    "readers",
    [
        [look(0, 9, l1=[10], l2=[]), look(0, 9, l1=[], l2=[20])],
        [look(6, 9, l1=[10], l2=[])],
        [look(6, 9, l1=[30])],
    ],
)
def test_what_a_transaction_that_only_reads_cannot_have_seen_is_found(readers: list[Operation]) -> None:
    both = [add(1, 10, 1, 5), add(2, 20, 1, 5)]
    with pytest.raises(AnomalyError, match="the reader"):
        check([*both, *readers], {1: [10], 2: [20]})


def test_what_a_killed_process_had_called_may_have_taken_place(tmp_path: Path) -> None:
    with Recorder(tmp_path / "one", "c1") as recorder:
        recorder.event("0", "call", 1, kind="write", key=7, argument=5)
        recorder.event("1", "call", 2, kind="read", key=7, argument=None)
        recorder.event("1", "ok", 3, result=5)
    with (tmp_path / "one").open("a") as file:
        file.write('{"process": "c1.0", "wha')
    first, second = load([tmp_path / "one"])
    assert (first.kind, first.known, first.back) == ("write", False, NEVER)
    assert (second.result, second.known) == (5, True)


def test_histories_are_written_as_public_checkers_read_them() -> None:
    history = [write(4, 1, 2), cas(4, 5, True, 3, 6), read(5, 7, 8)]
    lines = [json.loads(line) for line in porcupine(history)]
    assert [line["Input"]["Op"] for line in lines] == ["write", "cas", "read"]
    assert lines[1] == {
        "ClientId": 0,
        "Input": {"Op": "cas", "Key": 0, "Old": 4, "New": 5},
        "Call": 3,
        "Output": {"Value": 0, "Done": True, "Known": True},
        "Return": 6,
    }
    asked, seen = [["r", 2, None], ["append", 1, 10]], [["r", 2, [7, 8]], ["append", 1, 10]]
    assert list(elle([Operation("a", "txn", 1, asked, seen, 5, 9)])) == [
        "{:index 0, :type :invoke, :process 0, :time 5, :f :txn, :value [[:r 2 nil] [:append 1 10]]}",
        "{:index 1, :type :ok, :process 0, :time 9, :f :txn, :value [[:r 2 [7 8]] [:append 1 10]]}",
    ]


# ---- real clusters -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    zookeeper: ZooKeeperServer
    with running_zookeeper() as zookeeper:
        directory = tmp_path_factory.mktemp("histories")
        with running_cluster(directory, zookeeper.fresh_chroot(), flags=()) as running:
            yield running


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["locks", "reads"])
def test_without_locks_or_with_reads_of_the_past_an_anomaly_is_found(cluster: Cluster, broken: str) -> None:
    """Among the registers as well as among the lists: each public checker judges one of the two."""
    files = record_calm(cluster, 1_500, broken=broken)
    operations, final = load(files), final_lists(files)
    for kinds in (REGISTER, ("txn",)):
        with pytest.raises(AnomalyError):
            check([one for one in operations if one.kind in kinds], final)


@pytest.mark.slow
def test_a_cluster_under_faults_gives_histories_that_are_linearizable(tmp_path: Path) -> None:
    with closing(PostgresServer()) as postgres, closing(MariaServer()) as maria:
        result = record(tmp_path, seed=7, seconds=12, clients=4, servers=[postgres, maria])
    assert sum(result.faults.values()) >= 2
    assert {way.partition(" ")[2] for way in result.clients} == set(VIEWS)
    assert check(load(result.files), final_lists(result.files)) >= 200


@pytest.mark.slow
def test_clocks_that_jump_on_every_process_change_nothing_that_clients_see(tmp_path: Path) -> None:
    with (
        running_zookeeper() as zookeeper,
        running_cluster(tmp_path, zookeeper.fresh_chroot(), servers=2, flags=(), clocks=True) as cluster,
    ):
        assert cluster.clocks is not None
        rng = random.Random(5)
        clients = Clients(cluster, 2)
        clients.start()
        for _ in range(12):
            for name in (*cluster.storage_names, *cluster.server_names, *clients.names):
                cluster.clocks.jump(name, rng)
            cluster.wait_commits(20)
        clients.finish()
    assert check(load(clients.files), final_lists(clients.files)) >= 240
