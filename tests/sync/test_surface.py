"""`waltz_sync` and `waltz_asyncio` have every public name and parameter of `waltz_trio`, but for the tables here."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import waltz_asyncio
import waltz_sync
import waltz_trio

FRONT = (
    "Application",
    "Batches",
    "Client",
    "Feed",
    "Pending",
    "PendingMany",
    "Submission",
    "open_client",
)  # made for threads
WAITS = {  # what waits takes a time-out
    "open_client",
    "Application.caught_up",
    "Application.read",
    "Application.submit",
    "Application.submit_many",
    "Client.append",
    "Client.append_many",
    "Client.committed_mark",
    "Client.feed",
    "Client.flush",
    "Client.materialize",
    "Client.read",
    "Client.ready",
    "Client.send",
    "Client.send_many",
    "Feed.batches",
    "Pending.outcome",
    "PendingMany.outcomes",
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
MISTAKES = ("Block", "NotEntered", "AsyncOnly", "AsyncForOnly")  # bases whose members only say how it is written
MISSING = {"Feed.__enter__", "Feed.__exit__"}  # of what `Client.feed` gives, which is entered as there


def members(front: Any, name: str, renamed: dict[str, str] = RENAMED) -> dict[str, Any]:
    """Public members of a class, and those of Python's protocols, by the names of threads unless `renamed` is empty."""
    target = getattr(front, name)
    if not inspect.isclass(target):
        return {name: target}
    found = {}
    bases = [base for base in target.__mro__ if base.__module__.startswith("waltz_") and base.__name__ not in MISTAKES]
    for member, value in ((member, value) for base in reversed(bases) for member, value in vars(base).items()):
        if not member.startswith("_") or member in RENAMED or member in RENAMED.values():
            found[f"{name}.{renamed.get(member, member)}"] = value
    return found


def parameters(value: Any) -> list[tuple[str, Any, Any]] | None:
    if not callable(value):  # a property or a slot
        return None
    found = inspect.signature(value).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


def test_every_name_is_there() -> None:
    assert waltz_sync.__all__ == waltz_trio.__all__


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


@pytest.mark.parametrize("name", FRONT)
def test_asyncio_has_the_same_members_parameters_and_words(name: str) -> None:
    assert waltz_asyncio.__all__ == waltz_trio.__all__
    theirs, ours = members(waltz_trio, name, {}), members(waltz_asyncio, name, {})
    entered = {"Feed.__aenter__", "Feed.__aexit__"}  # of what `Client.feed` gives
    assert set(ours) - {"Feed.markers"} == set(theirs) - entered
    for member in set(theirs) - entered:
        value, own = theirs[member], ours[member]
        assert parameters(own) == parameters(value), member
        if not member.rpartition(".")[2].startswith("__"):
            returns = str(getattr(value, "__annotations__", {}).get("return", ""))
            waits = inspect.iscoroutinefunction(value) or "Coroutine" in returns
            assert inspect.iscoroutinefunction(inspect.unwrap(own)) == waits, member
            if member != "open_client":  # what else runs, and where, differs
                assert inspect.getdoc(own) == inspect.getdoc(value), member


def test_every_front_takes_what_is_no_front_from_waltz_trio() -> None:
    for front in (waltz_sync, waltz_asyncio):
        same = [name for name in waltz_trio.__all__ if getattr(front, name) is getattr(waltz_trio, name)]
        assert sorted(set(waltz_trio.__all__) - set(same)) == sorted(FRONT)


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
    for front, expected in (("sync", "False True"), ("trio.client.connect", "False False")):
        done = subprocess.run([sys.executable, "-c", program.format(front)], capture_output=True, text=True, check=True)
        assert done.stdout.split() == expected.split(), front
