"""The lock table: slots, sequences of operations, and what the appender decides by it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.twin_0132.locks import HeldLockTable
from tests.vectors.reading import Fields, Unit, lines
from waltz_core.base.lock import Lock
from waltz_core.locks.table import LockTable, lcg_chain


def units(path: Path) -> Iterator[Unit]:
    checks = {"index": _check_index, "sequence": _check_sequence, "append": _check_append}
    for name, line in lines(path):
        yield Unit(name, [line], partial(checks[line["kind"]], line))


def _table(line: Fields) -> HeldLockTable:
    return HeldLockTable(line["table_size"], line["num_hash_funcs"], line["initial_hwm"])


def _check_index(line: Fields) -> frozenset[str]:
    table = LockTable(line["table_size"], line["num_hash_funcs"], -1)
    if "lock_name" in line:
        assert Lock(line["lock_name"], line["lock_id"]).wire() == line["hash"]
    assert list(lcg_chain(line["hash"], line["num_hash_funcs"])) == line["lcg_chain"]
    assert list(table.slots(line["hash"])) == line["slots"]
    return frozenset()


def _check_sequence(line: Fields) -> frozenset[str]:
    line.ignore("name")
    table = _table(line)
    requests: dict[int, tuple[list[int], list[int], list[int]]] = {}
    for step in line["steps"]:
        if step["op"] == "reset":
            table.reset(step["hwm"])
        else:
            at = step["req"]
            if step["op"] == "begin":
                requests[at] = step["write"], step["read"], step["append"]
                assert table.begin(*requests[at]) == step["ok"]
            write, read, append = requests[at]
            if step["op"] == "estimate":
                assert table.estimate(write, read) == step["hwm"]
            if step["op"] == "commit_end":
                table.commit(write, append, step["tx"])
            if step["op"] in ("commit_end", "abort_end"):
                table.end(write, append)
        if step["op"] != "estimate":
            assert table.active == step["active"]
    if "final_table" in line:
        assert table.marks() == line["final_table"]
        assert table.held_slots() == line["final_locked_slots"]
    return frozenset()


def _check_append(line: Fields) -> frozenset[str]:
    """Each request decided by a real appender with nothing in flight."""
    line.ignore("name")
    from tests.vectors.appending import decide_alone

    table = _table(line)
    high_water_mark = line["initial_hwm"]
    for request in line["requests"]:
        assert table.estimate(request["write"], request["read"]) == request["estimate"]
        result = decide_alone(table, high_water_mark, request)
        assert result.name == request["result"]
        if result.name == "lock_failure":
            assert result.transaction_id == request["reported_tx"]
            request.ignore("store_ok")
        if result.name == "committed":
            assert result.transaction_id == request["tx"]
            high_water_mark = request["tx"]
    assert not table.held_slots()
    return frozenset()
