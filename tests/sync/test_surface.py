"""`waltz_sync` has every public name and parameter of `waltz_trio`, apart from what the tables here say."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import waltz_sync
import waltz_trio

FRONT = ("Application", "Batches", "Client", "Feed", "Pending", "open_client")  # made for threads
WAITS = {  # what waits takes a time-out
    "open_client",
    "Application.caught_up",
    "Application.read",
    "Application.submit",
    "Client.append",
    "Client.append_many",
    "Client.committed_mark",
    "Client.feed",
    "Client.flush",
    "Client.materialize",
    "Client.ready",
    "Client.send",
    "Feed.batches",
    "Pending.outcome",
}
RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
ADDED = {
    "Feed.fetch",  # for Transaction.fetch, which is of Trio
    "Feed.markers",  # an attribute there, which a class does not show
}
MISSING = {"Feed.__enter__", "Feed.__exit__"}  # of what `Client.feed` gives, which is entered as there


def members(front: Any, name: str) -> dict[str, Any]:
    """Public members of a class, and those of Python's protocols, by the names of threads."""
    target = getattr(front, name)
    if not inspect.isclass(target):
        return {name: target}
    found = {}
    for member, value in vars(target).items():
        if not member.startswith("_") or member in RENAMED or member in RENAMED.values():
            found[f"{name}.{RENAMED.get(member, member)}"] = value
    return found


def parameters(value: Any) -> list[tuple[str, Any, Any]] | None:
    if not callable(value):  # a property or a slot
        return None
    found = inspect.signature(value).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


def test_every_name_is_there_and_all_but_the_front_is_the_same_thing() -> None:
    assert waltz_sync.__all__ == waltz_trio.__all__
    same = [name for name in waltz_trio.__all__ if getattr(waltz_sync, name) is getattr(waltz_trio, name)]
    assert sorted(set(waltz_trio.__all__) - set(same)) == sorted(FRONT)


@pytest.mark.parametrize("name", FRONT)
def test_every_member_is_there_with_its_parameters(name: str) -> None:
    theirs, ours = members(waltz_trio, name), members(waltz_sync, name)
    assert set(ours) - ADDED == set(theirs) - MISSING
    for member in set(theirs) - MISSING:
        value = theirs[member]
        expected = parameters(value)
        if member in WAITS:
            assert expected is not None
            expected.append(("timeout", inspect.Parameter.KEYWORD_ONLY, None))
        assert parameters(ours[member]) == expected, member
        assert not inspect.iscoroutinefunction(ours[member]), member


def test_everything_that_waits_in_trio_takes_a_time_out() -> None:
    waits = set()
    for name in FRONT:
        for member, value in members(waltz_trio, name).items():
            returns = str(getattr(value, "__annotations__", {}).get("return", ""))
            if not member.endswith("__") and (inspect.iscoroutinefunction(value) or "Coroutine" in returns):
                waits.add(member)
    assert len(waits) >= 9
    assert waits <= WAITS


def test_it_loads_neither_asyncio_nor_is_loaded_by_waltz_trio() -> None:
    program = "import sys, waltz_{}; print('asyncio' in sys.modules, 'waltz_sync' in sys.modules)"
    for front, expected in (("sync", "False True"), ("trio.connect", "False False")):
        done = subprocess.run([sys.executable, "-c", program.format(front)], capture_output=True, text=True, check=True)
        assert done.stdout.split() == expected.split(), front
